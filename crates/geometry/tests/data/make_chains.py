"""Random chains of operations and what torch makes of them, in the form of op_chains.json.

    python make_chains.py SEED COUNT > more_chains.json

Every source is an arange, so that a value of the result is the flat index in the source. Chains go on until an
operation fails or the length is reached; of the failing ones only the last operation is wrong.
"""
import json
import random
import sys

import torch

seed, count = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)


def pick_shape():
    while True:
        shape = [rng.choice([0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7]) for _ in range(rng.choice([0, 1, 2, 2, 3, 3, 4, 4, 5, 6]))]
        n = 1
        for s in shape:
            n *= s
        if n <= 400 and (n or rng.random() < 0.3):
            return shape


def a_dim(t, extra=0):
    n = max(t.dim() + extra, 1)
    return rng.randint(-n - 1, n) if rng.random() < 0.03 else rng.randint(-n, n - 1)


def factor(n):
    out = []
    while n > 1 and rng.random() < 0.8:
        ds = [d for d in range(2, n + 1) if n % d == 0]
        d = rng.choice(ds)
        out.append(d)
        n //= d
    out.append(n)
    if rng.random() < 0.2:
        out.insert(rng.randint(0, len(out)), 1)
    rng.shuffle(out)
    return out


def a_shape(n):
    s = factor(n) if n else [rng.choice([0, 2, 3]), 0]
    if rng.random() < 0.3 and s:
        s[rng.randrange(len(s))] = -1
    if rng.random() < 0.05:
        s.append(rng.choice([0, 2, -1, 5]))
    return s


def cuts(size):
    if rng.random() < 0.5:
        return rng.choice([1, 2, 2, 3, 4, 5, 0 if rng.random() < 0.2 else 2, -1 if rng.random() < 0.1 else 2])
    return [rng.randint(-size - 2, size + 2) for _ in range(rng.randint(0, 3))]


def part(parts):
    n = len(parts)
    return rng.randint(-n - 1, n) if rng.random() < 0.05 else (rng.randint(-n, n - 1) if n else 0)


def size_of(t, d):
    try:
        return t.size(d)
    except IndexError:
        return 1


def propose(t):
    kind = rng.choice(KINDS)
    d = a_dim(t)
    n = size_of(t, d)
    one = lambda xs: xs[0] if len(xs) == 1 and rng.random() < 0.5 else xs
    if kind == "narrow":
        start = rng.randint(-n, n)
        at = start + n if start < 0 else start
        length = rng.randint(0, max(n - at, 0)) + (rng.random() < 0.05)
        return dict(op=kind, dim=d, start=start, length=length), lambda: t.narrow(d, start, length)
    if kind == "select":
        i = rng.randint(-n, n - 1) if n and rng.random() > 0.03 else n
        return dict(op=kind, dim=d, index=i), lambda: t.select(d, i)
    if kind == "getitem":
        items, py = [], []
        for _ in range(rng.randint(0, t.dim() + 1)):
            r = rng.random()
            if r < 0.25:
                i = rng.randint(-2, 2)
                items.append({"int": i}); py.append(i)
            elif r < 0.7:
                s = [rng.choice([None, rng.randint(-8, 8)]), rng.choice([None, rng.randint(-8, 8)]), rng.choice([None, 1, 2, 3])]
                items.append({"slice": s}); py.append(slice(*s))
            elif r < 0.85 and {"ellipsis": True} not in items:
                items.append({"ellipsis": True}); py.append(Ellipsis)
            else:
                items.append({"newaxis": True}); py.append(None)
        return dict(op=kind, index=items), lambda: t[tuple(py)]
    if kind in ("view", "reshape"):
        s = a_shape(t.numel())
        return dict(op=kind, shape=s), lambda: getattr(t, kind)(s)
    if kind == "unsqueeze":
        d = a_dim(t, 1)
        return dict(op=kind, dim=d), lambda: t.unsqueeze(d)
    if kind == "squeeze":
        q = rng.choice([None, d, sorted({a_dim(t) for _ in range(2)})])
        return dict(op=kind, dim=q), lambda: t.squeeze() if q is None else t.squeeze(q if isinstance(q, int) else tuple(q))
    if kind == "transpose":
        e = a_dim(t)
        return dict(op=kind, dim0=d, dim1=e), lambda: t.transpose(d, e)
    if kind == "swapaxes":
        e = a_dim(t)
        return dict(op=kind, axis0=d, axis1=e), lambda: t.swapaxes(d, e)
    if kind == "swapdims":
        e = a_dim(t)
        return dict(op=kind, dim0=d, dim1=e), lambda: t.swapdims(d, e)
    if kind == "t":
        return dict(op=kind), lambda: t.t()
    if kind == "permute":
        p = list(range(t.dim()))
        rng.shuffle(p)
        p = [x - t.dim() if rng.random() < 0.3 else x for x in p]
        if rng.random() < 0.03:
            p.append(0)
        return dict(op=kind, dims=p), lambda: t.permute(p)
    if kind == "movedim":
        k = rng.randint(1, max(1, min(3, t.dim())))
        p = list(range(max(t.dim(), 1)))
        a, b = rng.sample(p, min(k, len(p))), rng.sample(p, min(k, len(p)))
        return dict(op=kind, source=a, destination=b), lambda: t.movedim(a, b)
    if kind == "flatten":
        e = a_dim(t)
        return dict(op=kind, start_dim=d, end_dim=e), lambda: t.flatten(d, e)
    if kind == "unflatten":
        s = a_shape(n)
        return dict(op=kind, dim=d, sizes=s), lambda: t.unflatten(d, s)
    if kind == "chunk":
        c = rng.randint(0 if rng.random() < 0.1 else 1, 5)
        i = rng.randint(-2, 2)
        return dict(op=kind, chunks=c, dim=d, index=i), lambda: t.chunk(c, d)[i]
    if kind == "split":
        c = rng.randint(0, 4) if rng.random() < 0.5 else None
        if c is None:
            c, left = [], n
            while left > 0:
                x = rng.randint(0, left); c.append(x); left -= x
            if rng.random() < 0.1: c.append(1)
        i = rng.randint(-2, 2)
        return dict(op=kind, size=c, dim=d, index=i), lambda: t.split(c, d)[i]
    if kind == "unbind":
        i = rng.randint(-2, 2)
        return dict(op=kind, dim=d, index=i), lambda: t.unbind(d)[i]
    if kind == "contiguous":
        return dict(op=kind), lambda: t.contiguous()
    if kind in ("expand", "broadcast_to"):
        s = [rng.choice([2, 3, 0 if rng.random() < 0.1 else 1]) if x == 1 else rng.choice([x, -1, x]) for x in t.shape]
        s = [rng.randint(1, 2) for _ in range(rng.choice([0, 0, 1]))] + s
        if kind == "broadcast_to":
            s = [x if x != -1 else y for x, y in zip(s, [0] * (len(s) - t.dim()) + list(t.shape))]
        return dict(op=kind, shape=s), lambda: getattr(t, kind)(s)
    if kind == "flip":
        ds = sorted({a_dim(t) for _ in range(rng.randint(0, 3))}) if t.dim() else rng.choice([[], [0]])
        ds = one(ds) if ds else ds
        return dict(op=kind, dims=ds), lambda: t.flip(ds)
    if kind == "roll":
        if rng.random() < 0.3:
            s = rng.randint(-9, 9)
            return dict(op=kind, shifts=s, dims=None), lambda: t.roll(s)
        k = rng.randint(1, 3)
        s, ds = [rng.randint(-9, 9) for _ in range(k)], [a_dim(t) for _ in range(k + (rng.random() < 0.03))]
        return dict(op=kind, shifts=one(s), dims=one(ds)), lambda: t.roll(s, ds)
    if kind == "repeat":
        r = [rng.choice([1, 1, 2, 3, 0 if rng.random() < 0.2 else 1, -1 if rng.random() < 0.05 else 1])
             for _ in range(t.dim() + rng.choice([0, 0, 1, -1 if rng.random() < 0.2 else 0]))]
        return dict(op=kind, repeats=r), lambda: t.repeat(r)
    if kind == "tile":
        r = [rng.choice([1, 1, 2, 3, 0 if rng.random() < 0.2 else 1]) for _ in range(rng.randint(0, t.dim() + 1))]
        return dict(op=kind, dims=r), lambda: t.tile(r)
    if kind == "repeat_interleave":
        r = rng.choice([0 if rng.random() < 0.2 else 1, 2, 3, -1 if rng.random() < 0.1 else 2])
        q = rng.choice([None, d, d])
        return dict(op=kind, repeats=r, dim=q), lambda: t.repeat_interleave(r, dim=q)
    if kind == "tensor_split":
        c = cuts(n)
        try: p = t.tensor_split(c, d)
        except Exception: p = [0]
        i = part(p)
        return dict(op=kind, indices_or_sections=c, dim=d, index=i), lambda: t.tensor_split(c, d)[i]
    if kind in ("hsplit", "vsplit", "dsplit"):
        c = cuts(n)
        f = getattr(t, kind)
        try: p = f(c)
        except Exception: p = [0]
        i = part(p)
        return dict(op=kind, indices_or_sections=c, index=i), lambda: f(c)[i]
    if kind == "diagonal":
        e, o = a_dim(t), rng.randint(-4, 4)
        return dict(op=kind, offset=o, dim1=d, dim2=e), lambda: t.diagonal(o, d, e)
    if kind == "unfold":
        s, p = rng.randint(0, n) + (rng.random() < 0.05), rng.randint(0 if rng.random() < 0.1 else 1, 3)
        return dict(op=kind, dimension=d, size=s, step=p), lambda: t.unfold(d, s, p)
    if kind == "index_select":
        k = rng.randint(0, 8)
        i = [rng.randrange(n) if n else 0 for _ in range(k)]
        if rng.random() < 0.05: i.append(rng.choice([-1, n]))
        return dict(op=kind, dim=d, index=i), lambda: t.index_select(d, torch.tensor(i, dtype=torch.int64))
    if kind == "take":
        n = t.numel()
        i = [rng.randint(-n, n - 1) if n else 0 for _ in range(rng.randint(0, 10))]
        if rng.random() < 0.05: i.append(n)
        return dict(op=kind, index=i), lambda: t.take(torch.tensor(i, dtype=torch.int64))
    if kind == "value":
        r = rng.choice(["to", "neg", "mul", "add"])
        if r == "to":
            name, dt = rng.choice([("f64", torch.float64), ("f32", torch.float32), ("i64", torch.int64)])
            return dict(op="to", dtype=name), lambda: t.to(dt)
        if r == "neg":
            return dict(op="neg"), lambda: -t
        v = rng.choice([1, 2, -3, 0.5])
        return dict(op=r, value=v), lambda: t * v if r == "mul" else t + v
    raise AssertionError(kind)


KINDS = ("narrow select getitem view reshape unsqueeze squeeze transpose swapaxes swapdims t permute movedim flatten "
         "unflatten chunk split unbind contiguous expand broadcast_to flip roll repeat tile repeat_interleave "
         "tensor_split hsplit vsplit dsplit diagonal unfold index_select take").split()
VALUES = len(sys.argv) > 3
if VALUES:
    KINDS = KINDS + ["value"] * 4


def case(i):
    shape = pick_shape()
    n = 1
    for s in shape:
        n *= s
    src = torch.arange(n, dtype=torch.int64).reshape(shape)
    t, ops, copied_at = src, [], None
    for _ in range(rng.randint(1, 14)):
        op, run = propose(t)
        ops.append(op)
        try:
            u = run()
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as e:
            if rng.random() < 0.9:
                ops.pop()
                continue
            at = len(ops) - 1
            return dict(id=f"torch-{seed}-{i}", shape=shape, ops=ops, expect="error", error_at=at,
                        error_text=str(e).splitlines()[0][:120])
        if u.numel() > 3000 or u.dim() > 12:
            ops.pop()
            break
        if copied_at is None and u.untyped_storage()._cdata != src.untyped_storage()._cdata:
            copied_at = len(ops) - 1
        t = u
    e = dict(shape=list(t.shape), stride=list(t.stride()), storage_offset=t.storage_offset(), is_view=copied_at is None,
             copied_at=copied_at, contiguous=t.is_contiguous(), values=t.contiguous().view(-1).tolist(), dtype=str(t.dtype))
    return dict(id=f"torch-{seed}-{i}", shape=shape, ops=ops, expect=e)


print('{"seed":%d,"torch":"%s","cases":[' % (seed, torch.__version__))
for i in range(count):
    print(json.dumps(case(i), separators=(",", ":")) + ("," if i + 1 < count else ""))
print("]}")
