#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times rotoscale.quantize: one block beside ml_dtypes' astype, and 8192 x 8192 beside the C++ function.

usage: calls.py [QUANTIZE_BENCH]
  QUANTIZE_BENCH is the program built from quantize_bench.cpp. Without it the large matrix is left out. A time
  is the least of 300 runs of a small call, of 15 turns of a large one: other work on the machine only adds. Prints a
  Markdown table.
"""
import json
import subprocess
import sys
import time

import ml_dtypes
import numpy as np

import rotoscale

TURNS, CASE = 15, "from_fp32/mxfp4_h16_rows"


def seconds_of(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def cpp_seconds(program):
    done = subprocess.run([program, f"--benchmark_filter={CASE}", "--benchmark_min_time=0.2", "--benchmark_format=json"],
                          capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)["benchmarks"][0]
    return record["real_time"] / {"ns": 1e9, "us": 1e6, "ms": 1e3}[record["time_unit"]]


def main():
    block = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    small = {"quantize, 32 numbers": lambda: rotoscale.quantize(block),
             "astype of ml_dtypes, 32 numbers": lambda: block.astype(ml_dtypes.float8_e4m3fn)}
    rows = [(name, f"{min(seconds_of(call, 300) for _ in range(300)) * 1e6:.2f} us", "")
            for name, call in small.items()]
    if len(sys.argv) > 1:
        rotoscale.set_threads(2)  # as quantize_bench
        x = np.random.default_rng(1).standard_normal((8192, 8192)).astype(np.float32)
        large = lambda: rotoscale.quantize(x, preset="te_rocm", source="fp32")  # noqa: E731
        turns = [(cpp_seconds(sys.argv[1]), seconds_of(large, 3)) for _ in range(TURNS)]
        cpp, python = (min(arm) for arm in zip(*turns))
        rows += [("C++, 8192 x 8192 with H16", f"{cpp * 1e3:.1f} ms", ""),
                 ("quantize, 8192 x 8192 with H16", f"{python * 1e3:.1f} ms", f"{cpp / python:.2f}")]
    print("| call | time | of C++'s speed |\n| --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
