"""Value operations and what torch makes of them: every pair of dtypes, and arithmetic with constants.

    python make_values.py > values.json

Bytes are little-endian and in hexadecimal. Inputs are few at a time, so that torch takes its scalar path: the
vectorised one casts floats that do not fit an integer differently.
"""
import json
import random
import struct

import torch

rng = random.Random(7)
DTYPES = dict(bool=torch.bool, u8=torch.uint8, i8=torch.int8, u16=torch.uint16, i16=torch.int16, u32=torch.uint32,
              i32=torch.int32, u64=torch.uint64, i64=torch.int64, f16=torch.float16, bf16=torch.bfloat16,
              f32=torch.float32, f64=torch.float64, f8_e4m3=torch.float8_e4m3fn, f8_e5m2=torch.float8_e5m2)
NAMES = {v: k for k, v in DTYPES.items()}


def hexed(t):
    return bytes(t.contiguous().view(torch.uint8).reshape(-1).tolist()).hex() if t.numel() else ""


def inputs(name):
    dt = DTYPES[name]
    size = torch.empty(0, dtype=dt).element_size()
    if name == "bool":
        return [torch.tensor([True, False])]
    raw = [bytes(rng.randrange(256) for _ in range(size)) for _ in range(49)]
    if size == 1:
        raw = [bytes([i]) for i in range(256)]
    elif name in ("f32", "f64"):
        fmt = "<f" if name == "f32" else "<d"
        near = [0.0, -0.0, 1.0, 0.5, 448.0, 464.0, 465.0, 480.0, 57344.0, 61440.0, 61439.996, 65504.0, 65519.99, 65520.0, 1e-3,
                2**-9, 2**-10, 2**-10 * 1.0001, 2**-16, 2**-17, 2**-24, 2**-25, 2**-133, 3.7, 300.0, 1e5, 2.0**31, 2.0**63, 1e20,
                1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 2**-4, 1 + 3 * 2**-4, 3e38, float("inf"), float("nan")]
        near += [rng.gauss(0, 1) * 2.0 ** rng.randint(-20, 20) for _ in range(60)]
        raw += [struct.pack(fmt, s * x) for x in near for s in (1, -1)]
    out = []
    for i in range(0, len(raw), 7):
        b = bytearray(b"".join(raw[i:i + 7]))
        out.append(torch.frombuffer(b, dtype=torch.uint8).clone().view(dt))
    return out


cases = []
for name in DTYPES:
    for other in DTYPES:
        ins, outs = "", ""
        for t in inputs(name):
            ins += hexed(t)
            outs += hexed(t.to(DTYPES[other]))
        cases.append(dict(op=dict(op="to", dtype=other), dtype=name, **{"in": ins}, out=outs, to=other))
    for op in ("mul", "add", "neg"):
        for value in ([None] if op == "neg" else [2, -3, 300, 2**40, 0.1, 2.5, -1e-3, 1 / 3, 1e6]):
            ins, outs, to = "", "", None
            try:
                for t in inputs(name)[:20]:
                    r = -t if op == "neg" else t * value if op == "mul" else t + value
                    ins, outs, to = ins + hexed(t), outs + hexed(r), NAMES[r.dtype]
            except (NotImplementedError, RuntimeError):
                ins, outs, to = None, None, None
            o = dict(op=op) if value is None else dict(op=op, value=value)
            cases.append(dict(op=o, dtype=name, **{"in": ins}, out=outs, to=to))
print('{"torch":"%s","cases":[' % torch.__version__)
print(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
print("]}")
