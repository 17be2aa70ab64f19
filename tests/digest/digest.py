#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles digest.cpp with several compilers and flags and demands equal output, line by line, from 1 and 2 threads. With
nvcc also as device code, which runs where there is a device.

usage: digest.py ROOT
Compilers and instruction sets that the machine lacks are left out, by name; exit status 77 if fewer than two are left.
"""
import concurrent.futures
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# (name, command, CPU features that the program needs, part).
BUILDS = [  # the first has all parts: the others are compared with it
    ("g++ -O1", ["g++", "-O1"], [], "all"),
    ("g++ -O3 native contract", ["g++", "-O3", "-march=native", "-ffp-contract=fast"], [], "all"),
    ("g++ -O2 avx2 fma", ["g++", "-O2", "-mavx2", "-mfma"], ["avx2", "fma"], "all"),
    ("clang++-14 -O2 native", ["clang++-14", "-O2", "-march=native"], [], "all"),
    ("clang++-14 -O1 no contract", ["clang++-14", "-O1", "-ffp-contract=off"], [], "all"),
    ("clang++-14 -O2 avx2 fma contract", ["clang++-14", "-O2", "-mavx2", "-mfma", "-ffp-contract=fast"],
     ["avx2", "fma"], "numerics"),
    ("g++ -O0", ["g++", "-O0"], [], "numerics"),
    ("clang++-22 -O3 native contract", ["clang++-22", "-O3", "-march=native", "-ffp-contract=fast"], [], "numerics"),
    ("nvcc host pass", ["nvcc", "-x", "cu", "-O2"], [], "numerics"),
    ("nvcc device", ["nvcc", "-x", "cu", "-O2"], [], "device"),
]
LINES = {"device": 6, "numerics": 11, "all": 15}  # of output, so that a program that prints nothing cannot pass
SKIPPED = 77


def cpu_features():
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    return {word for line in text.splitlines() if line.startswith("flags") for word in line.split()}


def find(compiler):
    return shutil.which(compiler) or shutil.which(f"/usr/local/cuda/bin/{compiler}")


def output_of(build, root, folder):
    """The lines that one build prints, checked to be the same from one and two threads."""
    name, command, _, part = build
    program = folder / name.replace(" ", "_")
    numerics = {"numerics": ["-DDIGEST_NUMERICS_ONLY"], "device": ["-DDIGEST_DEVICE", f"-I{root}"]}.get(part, [])
    threads = [] if command[0] == "nvcc" else ["-pthread"]
    compiling = subprocess.run(
        [find(command[0]), *command[1:], "-std=c++20", *numerics, *threads, f"-I{root}/include",
         str(root / "tests/digest/digest.cpp"), "-o", str(program)], capture_output=True, text=True)
    if compiling.returncode != 0:
        return name, part, f"{name} does not compile digest.cpp:\n{compiling.stderr[-4000:]}"
    outputs = []
    for threads in ("1", "2"):
        run = subprocess.run([str(program), threads], capture_output=True, text=True)
        if part == "device" and run.returncode == SKIPPED:
            return name, part, None
        if run.returncode != 0:
            return name, part, f"{name}: digest {threads} ended with status {run.returncode}\n{run.stdout}{run.stderr}"
        outputs.append(run.stdout.splitlines())
    if outputs[0] != outputs[1]:
        return name, part, f"{name}: 1 and 2 threads differ: {sorted(set(outputs[0]) ^ set(outputs[1]))}"
    if len(outputs[0]) != LINES[part]:
        return name, part, f"{name}: {len(outputs[0])} lines instead of {LINES[part]}"
    return name, part, outputs[0]


def main(root):
    features = cpu_features()
    builds = []
    for build in BUILDS:
        if find(build[1][0]) and features.issuperset(build[2]):
            builds.append(build)
        else:
            print(f"left out: {build[0]}")
    if len(builds) < 2:
        return 77
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(output_of, builds, itertools.repeat(root), itertools.repeat(Path(folder))))
    for name, _, lines in results:
        if lines is None:
            print(f"{name}: compiled, not run: no device")
    failures = [lines for _, _, lines in results if isinstance(lines, str)]
    compared = [result for result in results if isinstance(result[2], list)]
    for name, _, lines in compared:
        for reference, _, expected in compared[:1]:
            for got, want in zip(lines, expected):
                if got != want:
                    failures.append(f"{name} prints '{got}', {reference} prints '{want}'")
        print(f"{name}: {len(lines)} digests")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
