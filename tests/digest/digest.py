#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles digest.cpp with several compilers and flags and demands equal output, line by line, from 1 and 2 threads.

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

# (name, command, CPU features that the program needs, part). With nvcc only the host pass is of interest.
BUILDS = [
    ("g++ -O1", ["g++", "-O1"], [], "all"),
    ("g++ -O3 native contract", ["g++", "-O3", "-march=native", "-ffp-contract=fast"], [], "all"),
    ("g++ -O2 avx2 fma", ["g++", "-O2", "-mavx2", "-mfma"], ["avx2", "fma"], "all"),
    ("clang++-14 -O2 native", ["clang++-14", "-O2", "-march=native"], [], "all"),
    ("clang++-14 -O1 no contract", ["clang++-14", "-O1", "-ffp-contract=off"], [], "all"),
    ("clang++-14 -O2 avx2 fma contract", ["clang++-14", "-O2", "-mavx2", "-mfma", "-ffp-contract=fast"],
     ["avx2", "fma"], "numerics"),
    ("nvcc", ["nvcc", "-x", "cu", "-O2"], [], "numerics"),
]
LINES = {"numerics": 6, "all": 10}  # of output, so that a program that prints nothing cannot pass


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
    numerics = ["-DDIGEST_NUMERICS_ONLY"] if part == "numerics" else []
    threads = [] if command[0] == "nvcc" else ["-pthread"]
    compiling = subprocess.run(
        [find(command[0]), *command[1:], "-std=c++20", *numerics, *threads, f"-I{root}/include",
         str(root / "tests/digest/digest.cpp"), "-o", str(program)], capture_output=True, text=True)
    if compiling.returncode != 0:
        return name, part, f"{name} does not compile digest.cpp:\n{compiling.stderr[-4000:]}"
    outputs = []
    for threads in ("1", "2"):
        run = subprocess.run([str(program), threads], capture_output=True, text=True)
        if run.returncode != 0:
            return name, part, f"{name}: digest {threads} ended with status {run.returncode}\n{run.stderr}"
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
    failures = [lines for _, _, lines in results if isinstance(lines, str)]
    compared = [result for result in results if not isinstance(result[2], str)]
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
