#!/usr/bin/env python3
"""Measures llama.cpp on the GGUF files that the engine is measured on.

    python3 crates/engine/benches/llama_cpp.py [--format Q4_1 ...] [--threads 1 2] [--runs 5]

Needs Python 3.9 or newer with `venv`, a C++ compiler, and a package registry that pip is set up for. The first
run builds the newest llama-cpp-python from source for this machine's own instructions, which takes minutes; the
environment is kept in the cache (`--cache`, else $RESTAGE_CACHE, else $XDG_CACHE_HOME/restage, else
~/.cache/restage). `--rebuild` builds the newest release again.

The model is the Q4_1 GGUF that `cargo xtask real-model` leaves in the same cache. The other formats are made
from it once by llama.cpp's own quantiser, every matrix in the one format (`pure`), so that their numbers say
nothing of quality: they have the rounding of Q4_1 in them. They serve to compare speed.

A run: the KV cache is emptied, `--prompt` tokens go through in one batch (prefill), then `--decode` tokens one
at a time behind them (decode). Token ids are fixed, not sampled, so that no sampler is timed. One run goes
untimed first; figures are tokens per second, medians of `--runs`, as JSON on stdout. Logits are computed for the
last token of a batch only.
"""

import argparse
import ctypes
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path

# Set in the environment of the process that runs inside the built environment.
INSIDE = "RESTAGE_LLAMA_CPP_INSIDE"
MODEL = "smollm2-135m/smollm2-135m.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# `enum llama_ftype` of llama.h.
FTYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}


def default_cache():
    """The cache of `cargo xtask real-model`, found by the same rule."""
    if os.environ.get("RESTAGE_CACHE"):
        return Path(os.environ["RESTAGE_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "restage"


def arguments():
    parser = argparse.ArgumentParser(description="Measures llama.cpp; prints JSON.")
    parser.add_argument("--format", nargs="+", choices=sorted(FTYPES), default=["Q4_1", "Q4_0", "Q8_0", "BF16", "F32"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prefill")
    parser.add_argument("--decode", type=int, default=64, help="tokens fed one at a time")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--rebuild", action="store_true", help="build the newest release again")
    found = parser.parse_args()
    if min(found.threads + [found.prompt, found.decode, found.runs]) < 1:
        parser.error("counts must be 1 or more")
    return found


def enter(cache, rebuild):
    """Builds the environment where it is missing and runs this script in it; gives its exit status."""
    folder = cache / "llama-cpp"
    python = folder / "bin" / "python"
    stamp = folder / "complete"
    if rebuild or not stamp.exists():
        print(f"building llama-cpp-python in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        # A prebuilt wheel would be for an older processor than this one.
        command = [python, "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python", "--no-cache-dir",
                   "llama-cpp-python"]
        subprocess.run(command, check=True, stdout=sys.stderr, env=dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON"))
        stamp.write_text("built\n")
    return subprocess.run([python, __file__, *sys.argv[1:]], env=dict(os.environ, **{INSIDE: "1"})).returncode


def model_in(cache, name):
    """The GGUF of a format, made by llama.cpp where the cache has none."""
    source = cache / MODEL
    if not source.exists():
        sys.exit(f"{source} is missing: run `cargo xtask real-model` first")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        sys.exit(f"{source} has SHA-256 {digest}, expected {MODEL_SHA256}")
    if name == "Q4_1":
        return source
    made = cache / "llama-cpp-models" / f"smollm2-135m.{name}.gguf"
    if made.exists():
        return made
    import llama_cpp

    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_suffix(f".{os.getpid()}.part")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FTYPES[name]
    params.allow_requantize = True
    params.pure = True
    status = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(part), ctypes.byref(params))
    if status != 0:
        part.unlink(missing_ok=True)
        sys.exit(f"llama.cpp cannot make {name} of {source}: status {status}")
    part.rename(made)
    return made


class Feed:
    """A context that token ids are fed to."""

    def __init__(self, path, threads, length):
        import llama_cpp

        self.api = llama_cpp
        self.llama = llama_cpp.Llama(str(path), n_ctx=length, n_batch=length, n_ubatch=length, n_threads=threads,
                                     n_threads_batch=threads, n_gpu_layers=0, verbose=False)
        self.context = self.llama._ctx.ctx

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def put(self, ids):
        tokens = (self.api.llama_token * len(ids))(*ids)
        status = self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(ids)))
        if status != 0:
            sys.exit(f"llama.cpp cannot decode {len(ids)} tokens: status {status}")
        self.api.llama_synchronize(self.context)


def measure(path, threads, prompt, decode, runs):
    """Tokens per second of prefill and decode: the medians and every run."""
    feed = Feed(path, threads, prompt + decode)
    # Any ids do, since no kernel looks at them; these lie inside of every vocabulary of a thousand or more.
    ids = [100 + place * 7 % 900 for place in range(prompt + decode)]
    prefills, decodes = [], []
    for run in range(runs + 1):
        feed.clear()
        start = time.perf_counter()
        feed.put(ids[:prompt])
        middle = time.perf_counter()
        for token in ids[prompt:]:
            feed.put([token])
        end = time.perf_counter()
        # The first run pages the weights in.
        if run > 0:
            prefills.append(prompt / (middle - start))
            decodes.append(decode / (end - middle))
    feed.llama.close()
    return {
        "prefill": round(statistics.median(prefills), 1),
        "decode": round(statistics.median(decodes), 1),
        "prefill_runs": [round(value, 1) for value in prefills],
        "decode_runs": [round(value, 1) for value in decodes],
    }


def main():
    found = arguments()
    if os.environ.get(INSIDE) != "1":
        sys.exit(enter(found.cache, found.rebuild))
    import llama_cpp

    results = []
    for name in found.format:
        path = model_in(found.cache, name)
        for threads in found.threads:
            figures = measure(path, threads, found.prompt, found.decode, found.runs)
            results.append({"format": name, "bytes": path.stat().st_size, "threads": threads, **figures})
    report = {
        "llama_cpp_python": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode(),
        "prompt_tokens": found.prompt,
        "decode_tokens": found.decode,
        "unit": "tokens per second",
        "results": results,
    }
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
