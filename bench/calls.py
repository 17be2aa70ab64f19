#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times rotoscale.quantize: one block against ml_dtypes' astype, and 8192 x 8192 against the C++ function.

usage: calls.py [--small]
  --small leaves the large matrix out. Otherwise $CXX (g++) compiles calls.cpp for this machine.

A small call has the least time of 300 runs: other work on the machine only adds. The large calls alternate in this
process; the ratio is the median over pairs. C++ writes to memory that exists, Python returns a new array each time.
Prints a Markdown table.
"""
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import rotoscale

PAIRS, SIZE = 41, 8192
HERE = Path(__file__).resolve().parent


def seconds_of(call, count=1):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def cpp_function(folder):
    """quantize_mxfp4_h16 of calls.cpp, compiled as the programs are."""
    path = Path(folder) / "calls.so"
    compiler = os.environ.get("CXX", "g++").split()
    subprocess.run([*compiler, "-std=c++20", "-O3", "-march=native", "-DNDEBUG", "-shared", "-fPIC", "-pthread",
                    "-I", HERE.parent / "include", HERE / "calls.cpp", "-o", path], check=True)
    function = ctypes.CDLL(path).quantize_mxfp4_h16
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    return function


def aligned_bytes(shape):
    """Zeros that begin at a page."""
    memory = np.zeros(int(np.prod(shape)) + 4096, np.uint8)
    first = -memory.ctypes.data % 4096
    return memory[first:first + int(np.prod(shape))].reshape(shape)


def large_rows():
    rotoscale.set_threads(2)  # as calls.cpp
    x = aligned_bytes((SIZE, 4 * SIZE)).view(np.float32)
    x[:] = np.random.default_rng(1).standard_normal((SIZE, SIZE), np.float32)
    codes, scales = aligned_bytes((SIZE, SIZE // 2)), aligned_bytes((SIZE, SIZE // 32))
    codes[:], scales[:] = 1, 1  # pages exist before the clock starts
    with tempfile.TemporaryDirectory() as folder:
        function = cpp_function(folder)
    arguments = (x.ctypes.data, SIZE, SIZE, codes.ctypes.data, scales.ctypes.data)
    cpp = lambda: function(*arguments)  # noqa: E731
    python = lambda: rotoscale.quantize(x, preset="te_rocm", source="fp32")  # noqa: E731
    cpp()
    q = python()
    assert np.array_equal(q.codes, codes) and np.array_equal(q.scales, scales)
    del q
    pairs = [(seconds_of(cpp), seconds_of(python)) for _ in range(PAIRS)]
    times = [statistics.median(arm) * 1e3 for arm in zip(*pairs)]
    ratio = statistics.median(cpp / python for cpp, python in pairs)
    return [("C++, 8192 x 8192 with H16", f"{times[0]:.1f} ms", ""),
            ("quantize, 8192 x 8192 with H16", f"{times[1]:.1f} ms", f"{ratio:.3f}")]


def main():
    block = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    small = {"quantize, 32 numbers": lambda: rotoscale.quantize(block),
             "astype of ml_dtypes, 32 numbers": lambda: block.astype(ml_dtypes.float8_e4m3fn)}
    rows = [(name, f"{min(seconds_of(call, 300) for _ in range(300)) * 1e6:.2f} us", "")
            for name, call in small.items()]
    if "--small" not in sys.argv:
        rows += large_rows()
    print("| call | time | of C++'s speed |\n| --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
