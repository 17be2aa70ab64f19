#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times FP32 to MXFP4 (OCP's floor scales, nearest even) by this library and by two Python packages.

usage: peers.py PEERS [--quick]
  PEERS is the program built from peers.cpp. --quick takes three turns instead of seven.
  All arms quantize the same array, each on one thread, in turns. Ratios divide medians. The results are compared first:
  codes and scales with ml_dtypes, values with microxcaling.
  A package that is missing is left out. Exit status 77: both are missing. ROTOSCALE_ORACLE_PYTHON names an interpreter
  with numpy, ml_dtypes, torch and microxcaling.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
ROWS, COLS = 2048, 2048
TARGETS = {"ml_dtypes": 20, "microxcaling": 10}


def with_ml_dtypes(np, ml_dtypes, x):
    """Codes, one a byte, and scale bytes. NumPy computes the scales, ml_dtypes the elements."""
    blocks = x.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    field = (amax.view(np.uint32) >> 23).astype(np.int32)
    byte = np.maximum(field - 2, 0)
    scaled = np.ldexp(blocks, 127 - byte)
    return scaled.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(x.shape), byte.astype(np.uint8)


def with_microxcaling(torch, mx_ops, x):
    return mx_ops._quantize_mx(torch.from_numpy(x), 8, "fp4_e2m1", axes=[-1], block_size=32, round="even").numpy()


def check(np, stored, x, codes, scales, values):
    packed = stored[: x.size // 2]
    ours = np.stack([packed & 15, packed >> 4], axis=-1).ravel()
    our_scales = stored[x.size // 2 :]
    if codes is not None and not (np.array_equal(ours, codes.ravel()) and np.array_equal(our_scales, scales.ravel())):
        sys.exit("peers.py: ml_dtypes' codes or scales differ")
    if values is not None:
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
        decoded = np.ldexp(table[ours].reshape(-1, 32), our_scales.astype(np.int32)[:, None] - 127)
        if not np.array_equal(decoded.ravel(), values.ravel()):
            sys.exit("peers.py: microxcaling's values differ")


def import_or_none(name):
    try:
        return __import__(name, fromlist=["_"])
    except ImportError:
        return None


def main():
    python = os.environ.get("ROTOSCALE_ORACLE_PYTHON")
    if python and os.path.abspath(python) != os.path.abspath(sys.executable):
        os.execv(python, [python, *sys.argv])
    np, ml_dtypes, torch, mx_ops = (import_or_none(x) for x in ("numpy", "ml_dtypes", "torch", "mx.mx_ops"))
    peers = {}
    if np and ml_dtypes:
        peers["ml_dtypes"] = lambda x: with_ml_dtypes(np, ml_dtypes, x)
    if np and torch and mx_ops:
        torch.set_num_threads(1)
        peers["microxcaling"] = lambda x: with_microxcaling(torch, mx_ops, x)
    if not peers:
        print("skipped: neither ml_dtypes nor microxcaling is installed (ROTOSCALE_ORACLE_PYTHON)")
        return SKIPPED

    program, turns = sys.argv[1], 3 if "--quick" in sys.argv else 7
    x = np.random.default_rng(5).standard_normal((ROWS, COLS)).astype(np.float32)
    seconds, results = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        source, stored = Path(scratch) / "x", Path(scratch) / "codes"
        x.tofile(source)
        for _ in range(turns):
            command = [program, source, str(ROWS), str(COLS), stored, "9"]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            for name, passes in json.loads(out).items():
                seconds.setdefault(name, []).append(float(np.median(passes)))
            for name, quantize in peers.items():
                start = time.perf_counter()
                results[name] = quantize(x)
                seconds.setdefault(name, []).append(time.perf_counter() - start)
        codes, scales = results.get("ml_dtypes", (None, None))
        check(np, np.fromfile(stored, np.uint8), x, codes, scales, results.get("microxcaling"))

    median = {name: float(np.median(all_turns)) for name, all_turns in seconds.items()}
    for name, value in median.items():
        spread = float(np.std(seconds[name]) / np.mean(seconds[name]))
        print(f"{name:13} {x.size / value / 1e6:9.1f} M elements/s, spread {spread:.0%}")
    for ours in ("mxfp4", "mxfp4_h16"):
        for name in peers:
            print(f"{ours:13} against {name:12} {median[name] / median[ours]:7.1f}  (target {TARGETS[name]})")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main())
