"""Writes the fixtures that are computed rather than recorded: `fixtures/cases/` and `fixtures/demo/`.

    python3 xtask/python/make_fixtures.py            write them
    python3 xtask/python/make_fixtures.py --check    write them elsewhere and compare with the tree

Needs numpy. `fixtures/README.md` describes the form of a case.

Every case is said twice. Its copies are what a loader would record; its expected parameters are a plain
numpy expression written beside them. The copies are then carried out here with numpy as well, and must give
the same bytes and write every element once, so a slip in either one stops the generator.

Values depend on names only: no clock, and no random generator whose stream a numpy release may change.
"""

import argparse
import filecmp
import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"

# safetensors dtype -> how numpy holds its bits. The order is the one the safetensors library writes
# tensors in (wider alignment first); numpy has no bf16 and no fp8, so those are held as integers.
DTYPES = {
    "I64": "<i8", "F64": "<f8", "F32": "<f4", "I32": "<i4", "BF16": "<u2", "F16": "<f2", "I16": "<i2",
    "F8_E4M3": "|u1", "I8": "|i1", "U8": "|u1",
}


def write_safetensors(path, tensors, metadata=None):
    """`tensors`: name -> (dtype, array)."""
    order = list(DTYPES)
    header = {} if metadata is None else {"__metadata__": metadata}
    body = []
    end = 0
    for name in sorted(tensors, key=lambda n: (order.index(tensors[n][0]), n)):
        dtype, array = tensors[name]
        assert array.dtype == np.dtype(DTYPES[dtype]), (path, name, array.dtype)
        data = array.tobytes()
        begin, end = end, end + len(data)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        body.append(data)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(body))


def number(text, below):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") % below


def values(seed, dtype, shape):
    """An array whose elements all differ, none of them zero."""
    count = int(np.prod(shape, dtype=np.int64))
    k = np.arange(count)
    if dtype == "F32":
        # Exact in f32 (below 2**23), not in bf16. Sources of one case lie in different ranges.
        flat = (number(seed, 4096) * 1024 + k + 0.5).astype("<f4")
        assert count <= 1024
    elif dtype == "F64":
        flat = (number(seed, 4096) * 1024 + k) / 3.0 + 1.0
    elif dtype in ("I64", "I32"):
        flat = 1 + number(seed, 1 << 20) * 1024 + k
    elif dtype == "BF16":
        assert count <= 8192
        flat = 0x2000 + (number(seed, 8192) + k) % 8192
    elif dtype in ("F16", "I16"):
        assert count <= 1024
        flat = 1 + number(seed, 1024) + k
    else:
        # One byte an element: 255 different values, and 85 of those are finite positive fp8 ones.
        limit = {"U8": 255, "I8": 127, "F8_E4M3": 85}[dtype]
        assert count <= limit, (seed, count)
        flat = 1 + (number(seed, limit) + k) % limit
    array = flat.astype(DTYPES[dtype]).reshape(shape)
    assert len(np.unique(array)) == count
    return array


def apply(array, op):
    """One op of a chain, with numpy's own indexing."""
    kind = op["op"]
    if kind == "narrow":
        cut = [slice(None)] * array.ndim
        cut[op["dim"]] = slice(op["start"], op["start"] + op["length"])
        return array[tuple(cut)]
    if kind == "select" or kind == "unbind":
        cut = [slice(None)] * array.ndim
        cut[op["dim"]] = op["index"]
        return array[tuple(cut)]
    if kind == "getitem":
        items = [slice(*i["slice"]) if "slice" in i else i["int"] for i in op["index"]]
        return array[tuple(items)]
    if kind == "transpose":
        return array.swapaxes(op["dim0"], op["dim1"])
    if kind == "t":
        return array.T
    if kind == "permute":
        return array.transpose(op["dims"])
    if kind in ("view", "reshape"):
        return array.reshape(op["shape"])
    if kind == "chunk":
        size = -(-array.shape[op["dim"]] // op["chunks"])
        cut = [slice(None)] * array.ndim
        cut[op["dim"]] = slice(op["index"] * size, (op["index"] + 1) * size)
        return array[tuple(cut)]
    raise AssertionError(f"no rule for {kind}")


def narrow(dim, start, length):
    return {"op": "narrow", "dim": dim, "start": start, "length": length}


def row_major(shape):
    stride, step = [], 1
    for n in reversed(shape):
        stride.insert(0, step)
        step *= max(n, 1)
    return stride


def rows(shape, counts, first_file=0):
    """Shards along dimension 0, one file each: (file, offset, shape)."""
    pieces, start = [], 0
    for i, n in enumerate(counts):
        pieces.append((first_file + i, [start] + [0] * (len(shape) - 1), [n] + list(shape[1:])))
        start += n
    return pieces


class Case:
    """One case: what is published, what is copied, what must come out."""

    def __init__(self, name, about):
        self.name, self.about = name, about
        self.sources, self.whole, self.params, self.expected = {}, {}, {}, {}
        self.copies, self.fills, self.files, self.extra = [], [], {}, {}

    def source(self, name, dtype, shape, pieces=None):
        """Publishes a source; `pieces` are (file, offset, shape), by default one file with all of it.

        A second piece in one file gets a name of its own there.
        """
        whole = values(f"{self.name}/{name}", dtype, shape)
        shards = []
        for file, offset, size in pieces or [(None, [0] * len(shape), list(shape))]:
            file = "source.safetensors" if file is None else f"source-{file}.safetensors"
            stored = self.files.setdefault(file, {})
            tensor = name if name not in stored else f"{name}.part{len(stored)}"
            box = tuple(slice(o, o + n) for o, n in zip(offset, size))
            stored[tensor] = (dtype, np.ascontiguousarray(whole[box]).reshape(size))
            shards.append({"file": file, "tensor": tensor, "offset": offset, "shape": size})
        self.sources[name] = {"dtype": dtype, "shape": list(shape), "shards": shards}
        self.whole[name] = whole
        return whole

    def param(self, name, dtype, expected):
        """Declares a parameter by its expected value; an incomplete one gives its shape as a tuple."""
        if isinstance(expected, tuple):
            self.extra.setdefault("incomplete", []).append(name)
            self.params[name] = {"dtype": dtype, "shape": list(expected)}
        else:
            self.params[name] = {"dtype": dtype, "shape": list(expected.shape)}
            self.expected[name] = np.ascontiguousarray(expected).reshape(expected.shape)

    def copy(self, source, ops, param, offset=0, shape=None, stride=None):
        shape = self.params[param]["shape"] if shape is None else shape
        self.copies.append({
            "source": source, "ops": ops, "param": param, "dest_offset": offset, "dest_shape": shape,
            "dest_stride": row_major(shape) if stride is None else stride,
        })

    def fill(self, param, offset, shape, stride=None):
        self.fills.append({
            "param": param, "dest_offset": offset, "dest_shape": shape,
            "dest_stride": row_major(shape) if stride is None else stride,
        })

    def replay(self):
        """Carries the copies out and compares: same bytes, every element written once."""
        refused = self.extra.get("refused", [])
        for name, spec in self.params.items():
            flat = np.zeros(int(np.prod(spec["shape"], dtype=np.int64)), DTYPES[spec["dtype"]])
            hits = np.zeros(flat.shape, "u1")

            def at(buffer, entry):
                step = buffer.itemsize
                last = sum((n - 1) * s for n, s in zip(entry["dest_shape"], entry["dest_stride"]))
                assert 0 in entry["dest_shape"] or entry["dest_offset"] + last < len(buffer), self.name
                return np.lib.stride_tricks.as_strided(
                    buffer[entry["dest_offset"]:], entry["dest_shape"], [s * step for s in entry["dest_stride"]])

            for entry in self.copies + self.fills:
                if entry["param"] != name or entry.get("source") in refused:
                    continue
                at(hits, entry)[...] += 1
                if "source" in entry:
                    view = self.whole[entry["source"]]
                    for op in entry["ops"]:
                        view = apply(view, op)
                    assert list(view.shape) == entry["dest_shape"], (self.name, name, view.shape)
                    at(flat, entry)[...] = view
            if name in self.expected:
                assert (hits == 1).all(), (self.name, name, hits)
                assert flat.tobytes() == self.expected[name].tobytes(), (self.name, name)
            else:
                assert (hits == 0).any(), (self.name, name)

    def write(self, root):
        self.replay()
        folder = root / self.name
        folder.mkdir(parents=True)
        for file, tensors in self.files.items():
            write_safetensors(folder / file, tensors)
        write_safetensors(
            folder / "expected.safetensors",
            {name: (self.params[name]["dtype"], array) for name, array in self.expected.items()})
        case = {"about": self.about, "sources": self.sources, "params": self.params, "copies": self.copies}
        if self.fills:
            case["fills"] = self.fills
        (folder / "case.json").write_text(pretty(case | self.extra) + "\n", encoding="utf-8")


def pretty(value, indent=0):
    """JSON with one line for everything that fits in one."""
    line = json.dumps(value)
    if len(line) + indent <= 100 or not value:
        return line
    pad = "  " * (indent // 2 + 1)
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(k)}: {pretty(v, len(pad))}" for k, v in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + "  " * (indent // 2) + "}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(pad + pretty(v, len(pad)) for v in value) + "\n" + "  " * (indent // 2) + "]"
    return line


CASES = []


def case(about):
    def add(build):
        CASES.append((build.__name__, about, build))
        return build
    return add


@case("A column-parallel weight: the second half of the rows.")
def column_block(c):
    w = c.source("w", "F32", [8, 4])
    c.param("p", "F32", w[4:8])
    c.copy("w", [narrow(0, 4, 4)], "p")


@case("A row-parallel weight: the middle columns of every row, over two row shards.")
def row_parallel_columns(c):
    w = c.source("w", "F32", [6, 8], rows([6, 8], [3, 3]))
    c.param("p", "F32", w[:, 4:6])
    c.copy("w", [narrow(1, 4, 2)], "p")


def fused_qkv(c, rank):
    # 4 query heads and 2 key and value heads of 2 rows; the trainer cut each projection over two ranks.
    q = c.source("q", "F32", [8, 4], rows([8, 4], [4, 4]))
    k = c.source("k", "F32", [4, 4], rows([4, 4], [2, 2]))
    v = c.source("v", "F32", [4, 4], rows([4, 4], [2, 2]))
    c.param("qkv", "F32", np.concatenate(
        [q[4 * rank:4 * rank + 4], k[2 * rank:2 * rank + 2], v[2 * rank:2 * rank + 2]]))
    c.copy("q", [narrow(0, 4 * rank, 4)], "qkv", 0, [4, 4])
    c.copy("k", [narrow(0, 2 * rank, 2)], "qkv", 16, [2, 4])
    c.copy("v", [narrow(0, 2 * rank, 2)], "qkv", 24, [2, 4])


@case("Fused qkv of 4 query and 2 key/value heads at tensor-parallel 2: rank 0 holds q0 q1 k0 v0.")
def fused_qkv_tp2_rank0(c):
    fused_qkv(c, 0)


@case("Fused qkv of 4 query and 2 key/value heads at tensor-parallel 2: rank 1 holds q2 q3 k1 v1.")
def fused_qkv_tp2_rank1(c):
    fused_qkv(c, 1)


@case("Fused gate and up at tensor-parallel 2: rank 1 takes its half of each member, not the second half of both.")
def fused_gate_up_tp2_rank1(c):
    gate = c.source("gate", "BF16", [8, 4], rows([8, 4], [4, 4]))
    up = c.source("up", "BF16", [8, 4], rows([8, 4], [4, 4]))
    c.param("gate_up", "BF16", np.concatenate([gate[4:], up[4:]]))
    c.copy("gate", [{"op": "chunk", "chunks": 2, "dim": 0, "index": 1}], "gate_up", 0, [4, 4])
    c.copy("up", [{"op": "chunk", "chunks": 2, "dim": 0, "index": 1}], "gate_up", 16, [4, 4])


@case("The whole of an unsharded source.")
def full_copy(c):
    w = c.source("w", "F32", [5, 7])
    c.param("p", "F32", w)
    c.copy("w", [], "p")


@case("Even shards along the rows; the wanted rows span three of the four.")
def row_shards_even(c):
    w = c.source("w", "F32", [12, 4], rows([12, 4], [3, 3, 3, 3]))
    c.param("p", "F32", w[2:8])
    c.copy("w", [narrow(0, 2, 6)], "p")


@case("A two-dimensional grid of shards, two of them in each file; the wanted box touches all four.")
def grid_shards(c):
    pieces = [(i, [4 * i, 6 * j], [4, 6 - 2 * j]) for i in range(2) for j in range(2)]
    w = c.source("w", "F32", [8, 10], pieces)
    c.param("p", "F32", w[2:7, 3:9])
    c.copy("w", [narrow(0, 2, 5), narrow(1, 3, 6)], "p")


@case("20 rows over 8 ranks, 3 3 3 3 3 3 2 0: the last rank publishes an empty shard.")
def uneven_and_empty_shards(c):
    w = c.source("w", "F32", [20, 4], rows([20, 4], [3, 3, 3, 3, 3, 3, 2, 0]))
    c.param("p", "F32", w[10:20])
    c.copy("w", [narrow(0, 10, 10)], "p")


@case("A transposed copy: every element is a run of its own.")
def transposed(c):
    w = c.source("w", "F32", [4, 6], rows([4, 6], [2, 2]))
    c.param("p", "F32", w.T)
    c.copy("w", [{"op": "t"}], "p")


@case("A column slice of 96 rows in two row shards: 96 runs are over the bound of 64, so the source is pulled whole.")
def heavy_slice_row_shards(c):
    w = c.source("w", "F32", [96, 8], rows([96, 8], [48, 48]))
    c.param("p", "F32", w[:, 2:6])
    c.copy("w", [narrow(1, 2, 4)], "p")
    c.extra["full_pulls"] = ["w"]


@case("The same slice of two column shards: no shard is a run of the whole, so it stays exact at 192 runs.")
def heavy_slice_column_shards(c):
    w = c.source("w", "F32", [96, 8], [(0, [0, 0], [96, 4]), (1, [0, 4], [96, 4])])
    c.param("p", "F32", w[:, 2:6])
    c.copy("w", [narrow(1, 2, 4)], "p")


@case("Two copies of one source, one of them transposed and over a bound of 8: both are replayed from one full pull.")
def full_pull_serves_two_copies(c):
    w = c.source("w", "BF16", [8, 6], rows([8, 6], [3, 5]))
    other = c.source("other", "BF16", [4, 6], rows([4, 6], [2, 2]))
    c.param("fused", "BF16", np.concatenate([w.T.reshape(-1), w[1:3].reshape(-1)]))
    c.param("q", "BF16", other)
    c.copy("w", [{"op": "transpose", "dim0": 0, "dim1": 1}], "fused", 0, [6, 8])
    c.copy("w", [narrow(0, 1, 2)], "fused", 48, [2, 6])
    c.copy("other", [], "q")
    c.extra |= {"max_descriptors": 8, "full_pulls": ["w"]}


@case("2 key heads at tensor-parallel 4: rank r holds head r // 2, so neighbours hold copies.")
def kv_replication_tp4(c):
    k = c.source("k", "F32", [4, 4], rows([4, 4], [2, 2]))
    for rank in range(4):
        head = rank // 2
        c.param(f"rank{rank}.k", "F32", k[2 * head:2 * head + 2])
        c.copy("k", [narrow(0, 2 * head, 2)], f"rank{rank}.k")


@case("10 vocabulary rows padded to 16 at tensor-parallel 2: rank 1 holds rows 8 and 9, then six rows of zeros.")
def padded_vocab_tp2_rank1(c):
    w = c.source("embed", "BF16", [10, 4], rows([10, 4], [5, 5]))
    c.param("p", "BF16", np.concatenate([w[8:10], np.zeros((6, 4), "<u2")]))
    c.copy("embed", [narrow(0, 8, 2)], "p", 0, [2, 4])
    c.fill("p", 8, [6, 4])


@case("A vocabulary rank that is nothing but padding: zeros, and not a byte read.")
def padded_vocab_only_padding(c):
    w = c.source("embed", "BF16", [6, 4], rows([6, 4], [3, 3]))
    c.param("rank0", "BF16", np.concatenate([w, np.zeros((2, 4), "<u2")]))
    c.param("rank1", "BF16", np.zeros((8, 4), "<u2"))
    c.copy("embed", [], "rank0", 0, [6, 4])
    c.fill("rank0", 24, [2, 4])
    c.copy("embed", [narrow(0, 6, 0)], "rank1", 0, [0, 4])
    c.fill("rank1", 0, [8, 4])


@case("Tied embeddings: one source goes to two parameters.")
def tied_embeddings(c):
    w = c.source("model.embed_tokens.weight", "BF16", [10, 4], rows([10, 4], [5, 5]))
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        c.param(name, "BF16", w)
        c.copy("model.embed_tokens.weight", [], name)


@case("Capture gave up on one source (it was multiplied): it is named and never read; the other is reconstructed.")
def unsupported_source(c):
    w = c.source("w", "F32", [4, 4], rows([4, 4], [2, 2]))
    c.source("bad", "F32", [4, 4], rows([4, 4], [2, 2], first_file=2))
    c.param("p", "F32", w)
    c.param("p2", "F32", (4, 4))
    c.copy("w", [], "p")
    c.extra |= {"unsupported": {"bad": "mul"}, "refused": ["bad"]}


@case("Rows 4 to 7 of w were never published: w is refused, v is reconstructed.")
def gap_in_rows(c):
    c.source("w", "F32", [8, 4], rows([8, 4], [2, 2]))
    v = c.source("v", "F32", [4, 4], rows([4, 4], [2, 2]))
    c.param("p", "F32", (8, 4))
    c.param("q", "F32", v)
    c.copy("w", [], "p")
    c.copy("v", [], "q")
    c.extra["refused"] = ["w"]


@case("One member of a fused parameter has a hole between its shards: the parameter stays incomplete.")
def gap_in_one_fused_member(c):
    c.source("gate", "F32", [6, 4], rows([6, 4], [3, 3]))
    c.source("up", "F32", [6, 4], [(0, [0, 0], [2, 4]), (1, [3, 0], [3, 4])])
    norm = c.source("norm", "F32", [4])
    c.param("gate_up", "F32", (12, 4))
    c.param("norm", "F32", norm)
    c.copy("gate", [], "gate_up", 0, [6, 4])
    c.copy("up", [], "gate_up", 24, [6, 4])
    c.copy("norm", [], "norm")
    c.extra["refused"] = ["up"]


@case("A 0-d scalar that two ranks publish.")
def scalar(c):
    s = c.source("scale", "F32", [], [(0, [], []), (1, [], [])])
    c.param("p", "F32", s)
    c.copy("scale", [], "p")


@case("A slice with steps: every second row from 1, every third column.")
def stepped_slice(c):
    w = c.source("w", "F32", [9, 7], rows([9, 7], [4, 5]))
    c.param("p", "F32", w[1::2, ::3])
    c.copy("w", [{"op": "getitem", "index": [{"slice": [1, None, 2]}, {"slice": [None, None, 3]}]}], "p")


@case("A reshape of a transposed view: torch copies there, and the elements are still an exact gather.")
def reshape_after_transpose(c):
    w = c.source("w", "F32", [4, 6], rows([4, 6], [2, 2]))
    c.param("p", "F32", w.T.reshape(8, 3))
    c.copy("w", [{"op": "transpose", "dim0": 0, "dim1": 1}, {"op": "reshape", "shape": [8, 3]}], "p")


@case("Stacked experts: experts 2 and 3 of four, the second half of the rows of each, through a 3-D view.")
def experts_narrow_3d(c):
    w = c.source("w", "BF16", [16, 3], rows([16, 3], [7, 9]))
    c.param("p", "BF16", w.reshape(4, 4, 3)[2:4, 2:4])
    c.copy("w", [{"op": "view", "shape": [4, 4, 3]}, narrow(0, 2, 2), narrow(1, 2, 2)], "p")


@case("Square experts loaded transposed, one by select and one by unbind, into one stacked parameter.")
def experts_transposed(c):
    w = c.source("w", "F32", [3, 4, 4], rows([3, 4, 4], [1, 2]))
    c.param("p", "F32", np.stack([w[2].T, w[0].T]))
    c.copy("w", [{"op": "select", "dim": 0, "index": 2}, {"op": "t"}], "p", 0, [4, 4])
    c.copy("w", [{"op": "unbind", "dim": 0, "index": 0}, {"op": "t"}], "p", 16, [4, 4])


@case("bf16: an odd number of two-byte elements a row, so runs begin on no larger boundary.")
def dtype_bf16(c):
    w = c.source("w", "BF16", [6, 5], rows([6, 5], [3, 3]))
    c.param("p", "BF16", w[:, 1:4])
    c.copy("w", [narrow(1, 1, 3)], "p")


@case("u8: single bytes out of rows of seven.")
def dtype_u8(c):
    w = c.source("w", "U8", [6, 7], rows([6, 7], [2, 4]))
    c.param("p", "U8", w[1:5, 2:5])
    c.copy("w", [narrow(0, 1, 4), narrow(1, 2, 3)], "p")


@case("f64: eight bytes an element, from column shards.")
def dtype_f64(c):
    w = c.source("w", "F64", [4, 6], [(0, [0, 0], [4, 2]), (1, [0, 2], [4, 4])])
    c.param("p", "F64", w[:, 1:5])
    c.copy("w", [narrow(1, 1, 4)], "p")


@case("Sources of eight dtypes in the same two files.")
def dtypes_mixed(c):
    for dtype in ("I64", "F32", "I32", "BF16", "F16", "F8_E4M3", "I8", "U8"):
        name = dtype.lower()
        w = c.source(name, dtype, [6, 5], rows([6, 5], [3, 3]))
        c.param(f"p.{name}", dtype, w[1:5, 1:4])
        c.copy(name, [narrow(0, 1, 4), narrow(1, 1, 3)], f"p.{name}")


@case("A destination whose strides are permuted: the parameter holds the columns one after the other.")
def permuted_destination(c):
    w = c.source("w", "F32", [6, 4], rows([6, 4], [3, 3]))
    c.param("p", "F32", w.T)
    c.copy("w", [], "p", 0, [6, 4], [1, 6])


@case("A 3-D destination with permuted strides, from a permuted source.")
def permuted_both_sides(c):
    w = c.source("w", "BF16", [2, 3, 4], rows([2, 3, 4], [1, 1]))
    c.param("p", "BF16", w.transpose(1, 0, 2))
    c.copy("w", [{"op": "permute", "dims": [2, 0, 1]}], "p", 0, [4, 2, 3], [1, 4, 8])


@case("A destination with three columns of padding after each row, which a fill sets to zero.")
def padded_rows_destination(c):
    w = c.source("w", "F32", [6, 5], rows([6, 5], [3, 3]))
    c.param("p", "F32", np.pad(w, ((0, 0), (0, 3))))
    c.copy("w", [], "p", 0, [6, 5], [8, 1])
    c.fill("p", 5, [6, 3], [8, 1])


@case("Four replicas of the same two row shards: each byte is wanted once, whichever replica it comes from.")
def replicated_shards(c):
    pieces = [(2 * r + h, [4 * h, 0], [4, 4]) for r in range(4) for h in range(2)]
    w = c.source("w", "F32", [8, 4], pieces)
    c.param("p", "F32", w[2:7])
    c.copy("w", [narrow(0, 2, 5)], "p")


@case("Shards that overlap by two rows and agree there.")
def overlapping_shards(c):
    w = c.source("w", "F32", [8, 4], [(0, [0, 0], [5, 4]), (1, [3, 0], [5, 4])])
    c.param("p", "F32", w)
    c.copy("w", [], "p")


@case("A bias of 23 elements in uneven shards, published out of order.")
def uneven_1d(c):
    pieces = [(0, [12], [11]), (1, [0], [7]), (2, [7], [0]), (3, [7], [5])]
    b = c.source("b", "F32", [23], pieces)
    c.param("p", "F32", b[3:20])
    c.copy("b", [narrow(0, 3, 17)], "p")


@case("A source without elements is an ordinary value, and its neighbour is reconstructed.")
def empty_source(c):
    e = c.source("empty", "F32", [0, 4])
    w = c.source("w", "F32", [3, 4])
    c.param("none", "F32", e)
    c.param("p", "F32", w)
    c.copy("empty", [], "none")
    c.copy("w", [], "p")


def write_cases(root):
    for name, about, build in CASES:
        c = Case(name, about)
        build(c)
        c.write(root)


# A small model in the form that Hugging Face gives one: two files and an index.
DEMO = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
    "head_dim": 16, "hidden_act": "silu", "hidden_size": 128, "initializer_range": 0.02,
    "intermediate_size": 352, "max_position_embeddings": 1024, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 8, "num_hidden_layers": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 512,
}


def gaussian_bf16(name, shape):
    """bf16 bits of a bell curve around 0, standard deviation 0.0255: eight bytes summed for each element."""
    count = int(np.prod(shape))
    stream = hashlib.shake_128(f"demo/{name}".encode()).digest(8 * count)
    total = np.frombuffer(stream, "u1").reshape(count, 8).sum(axis=1, dtype="i4")
    value = (total - 1020).astype("<f4") * np.float32(2.0 ** -13)
    if name.endswith("norm.weight"):
        value = value + np.float32(1)
    bits = value.view("<u4")
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2").reshape(shape)


def write_demo(root):
    hidden, inner, vocab = DEMO["hidden_size"], DEMO["intermediate_size"], DEMO["vocab_size"]
    heads, kv = DEMO["num_attention_heads"] * DEMO["head_dim"], DEMO["num_key_value_heads"] * DEMO["head_dim"]
    layers = DEMO["num_hidden_layers"]
    shapes = {"model.embed_tokens.weight": [vocab, hidden]}
    for i in range(layers):
        for part, shape in {
            "input_layernorm": [hidden], "self_attn.q_proj": [heads, hidden], "self_attn.k_proj": [kv, hidden],
            "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, heads],
            "post_attention_layernorm": [hidden], "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner],
        }.items():
            shapes[f"model.layers.{i}.{part}.weight"] = shape
    shapes |= {"model.norm.weight": [hidden], "lm_head.weight": [vocab, hidden]}

    def file_of(name):
        late = not name.startswith("model.embed") and not any(
            name.startswith(f"model.layers.{i}.") for i in range(layers // 2))
        return f"model-0000{1 + late}-of-00002.safetensors"

    root.mkdir(parents=True)
    files = {}
    for name, shape in shapes.items():
        files.setdefault(file_of(name), {})[name] = ("BF16", gaussian_bf16(name, shape))
    for file, tensors in files.items():
        write_safetensors(root / file, tensors, {"format": "pt"})
    size = sum(array.nbytes for tensors in files.values() for _, array in tensors.values())

    def write(name, value):
        (root / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    write("model.safetensors.index.json", {
        "metadata": {"total_size": size}, "weight_map": {name: file_of(name) for name in sorted(shapes)}})
    write("config.json", DEMO)
    write("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write("tokenizer_config.json", {
        "bos_token": "<s>",
        "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
        "eos_token": "</s>",
        "model_max_length": DEMO["max_position_embeddings"],
    })


def files_under(root):
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


def main():
    parser = argparse.ArgumentParser(description="write fixtures/cases and fixtures/demo")
    parser.add_argument("--check", action="store_true", help="compare with the tree, change nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        write_cases(fresh / "cases")
        write_demo(fresh / "demo")
        made = files_under(fresh)
        kept = {f"{part}/{f}" for part in ("cases", "demo") for f in files_under(FIXTURES / part)}
        changed = sorted(
            f for f in made | kept
            if f not in made or f not in kept or not filecmp.cmp(fresh / f, FIXTURES / f, shallow=False))
        if check:
            for f in changed:
                why = "is not generated" if f not in made else "is missing" if f not in kept else "differs"
                print(f"fixtures/{f}: {why}", file=sys.stderr)
            print(f"{len(CASES)} cases, {len(made)} files, {len(changed)} not as generated")
            return 1 if changed else 0
        for f in changed:
            if f in made:
                (FIXTURES / f).parent.mkdir(parents=True, exist_ok=True)
                (FIXTURES / f).write_bytes((fresh / f).read_bytes())
            else:
                (FIXTURES / f).unlink()
        print(f"{len(CASES)} cases, {len(made)} files, {len(changed)} written or removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
