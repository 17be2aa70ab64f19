#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles digest.cpp with several compilers and flags. Each build must print the recorded output
(tests/golden/digest.txt) with 1 and 2 threads.

usage: digest.py ROOT [PROGRAM]   the default builds. PROGRAM: a digest program of the build tree that runs this test,
                                  which replaces the build with TREE's flags.
       digest.py --all ROOT       also other optimization levels and CPUs, for the slow suite
       digest.py --nvcc ROOT      nvcc's builds, on the host and as device code; skipped without a device
       digest.py --write ROOT     records the output of the first build with training, after a deliberate change of bits

Builds for missing compilers and instruction sets are left out and named.
"""
import concurrent.futures
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# (name, command, required CPU features, compiled parts).
BUILDS = [
    ("g++ -O3 native contract", ["g++", "-O3", "-march=native", "-ffp-contract=fast"], [], "all"),
    ("clang++-14 -O1 native", ["clang++-14", "-O1", "-march=native"], [], "numerics"),
]
NVCC_BUILDS = [
    ("nvcc host pass", ["nvcc", "-x", "cu", "-O2"], [], "numerics"),
    ("nvcc device", ["nvcc", "-x", "cu", "-O2"], [], "device"),
]
# Flags of a release build of the tree with g++.
TREE = "g++ -O3 native contract"
# --all: other optimization levels, training by other compilers, and vector code of other CPUs.
MORE_BUILDS = [
    ("g++ -O0", ["g++", "-O0"], [], "numerics"),
    # Headers only, as users compile them. The tree's own program takes them from a library.
    ("g++ -O2 native, headers only", ["g++", "-O2", "-march=native"], [], "numerics"),
    ("clang++-14 -O1 native, training", ["clang++-14", "-O1", "-march=native"], [], "all"),
    ("clang++-14 -O2 avx2 fma contract", ["clang++-14", "-O2", "-mavx2", "-mfma", "-ffp-contract=fast"],
     ["avx2", "fma"], "numerics"),
    ("clang++-22 -O3 native contract", ["clang++-22", "-O3", "-march=native", "-ffp-contract=fast"], [], "numerics"),
    ("g++ -O1, training", ["g++", "-O1"], [], "all"),
    ("g++ -O3 native, headers only", ["g++", "-O3", "-march=native"], [], "numerics"),
    ("clang++-14 -O2 native", ["clang++-14", "-O2", "-march=native"], [], "all"),
    ("g++ -O2 avx2 fma, training", ["g++", "-O2", "-mavx2", "-mfma"], ["avx2", "fma"], "all"),
    ("clang++-14 -O1 no contract, training", ["clang++-14", "-O1", "-ffp-contract=off"], [], "all"),
    ("g++ -O3 skylake-avx512 contract", ["g++", "-O3", "-march=skylake-avx512", "-ffp-contract=fast"],
     ["avx512vl", "avx512dq"],
     "numerics"),
    ("g++ -O3 icelake-server contract", ["g++", "-O3", "-march=icelake-server", "-ffp-contract=fast"],
     ["avx512_vbmi2", "avx512vbmi", "vaes"], "numerics"),
    # Compilers generate no AMX code from loops, so the program runs without AMX.
    ("g++ -O3 sapphirerapids contract", ["g++", "-O3", "-march=sapphirerapids", "-ffp-contract=fast"],
     ["avx512_vbmi2", "avx512_fp16", "avx512_bf16", "avx_vnni"], "numerics"),
]
# The parts in each build's output.
PARTS = {"device": {"definitions"}, "numerics": {"definitions", "kernels"},
         "all": {"definitions", "kernels", "training"}}
RECORD = "tests/golden/digest.txt"
SKIPPED = 77


def cpu_features():
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    return {word for line in text.splitlines() if line.startswith("flags") for word in line.split()}


def find(compiler):
    return shutil.which(compiler) or shutil.which(f"/usr/local/cuda/bin/{compiler}")


def can_run(build, features):
    """Is the compiler installed, and can this CPU run its code? Device programs check for a device themselves."""
    _, command, needed, _ = build
    return find(command[0]) and features.issuperset(needed)


def output_of(build, root, folder):
    """Returns (lines that a build prints, "") or (None, fault of its compilation or of its runs with one and two
    threads)."""
    name, command, _, part = build
    program = folder / name.replace(" ", "_")
    if isinstance(command, Path):
        return output_of_program(name, command, part)
    flags = {"numerics": ["-DDIGEST_NUMERICS_ONLY"], "device": ["-DDIGEST_DEVICE", f"-I{root}"]}.get(part, [])
    threads = [] if command[0] == "nvcc" else ["-pthread"]
    compiling = subprocess.run(
        [find(command[0]), *command[1:], "-std=c++20", *flags, *threads, f"-I{root}/include",
         str(root / "tests/digest/digest.cpp"), "-o", str(program)], capture_output=True, text=True)
    if compiling.returncode != 0:
        return None, f"{name} does not compile digest.cpp:\n{compiling.stderr[-4000:]}"
    return output_of_program(name, program, part)


def output_of_program(name, program, part):
    """The same for an existing program."""
    outputs = []
    for threads in ("1", "2"):
        run = subprocess.run([str(program), threads], capture_output=True, text=True)
        if part == "device" and run.returncode == SKIPPED:
            return None, ""
        if run.returncode != 0:
            return None, f"{name}: digest {threads} ended with status {run.returncode}\n{run.stdout}{run.stderr}"
        outputs.append(run.stdout.splitlines())
    # With two threads, the program prints only the parts that use threads.
    threaded = [line for line in outputs[0] if part == "device" or not line.startswith("definitions: ")]
    if threaded != outputs[1] or not threaded:
        return None, f"{name}: 1 and 2 threads differ: {sorted(set(threaded) ^ set(outputs[1]))}"
    return outputs[0], ""


def differences(name, part, lines, record):
    """Differences between a build's lines and the record's lines for its parts."""
    expected = [line for line in record if line.split(":")[0] in PARTS[part]]
    if {line.split(":")[0] for line in expected} != PARTS[part]:
        return [f"{RECORD} lacks one of {', '.join(sorted(PARTS[part]))}"]
    return ([f"{name} prints '{line}', which is not recorded" for line in lines if line not in expected] +
            [f"{name} does not print '{line}', which is recorded" for line in expected if line not in lines])


def main(root, mode, program=None):
    if mode == "--nvcc" and not Path("/dev/nvidiactl").exists():
        print("skipped: no NVIDIA device")
        return SKIPPED
    features = cpu_features()
    builds = []
    for build in {"--all": BUILDS + MORE_BUILDS + NVCC_BUILDS, "--nvcc": NVCC_BUILDS}.get(mode, BUILDS):
        if program is not None and build[0] == TREE:
            builds.append((f"{TREE}, as built", program, [], "all"))
        elif can_run(build, features):
            builds.append(build)
        else:
            print(f"left out: {build[0]}")
    if not builds:
        print("skipped: no compiler")
        return SKIPPED
    if mode == "--write":
        builds = [build for build in builds if build[3] == "all"][:1]
    jobs = min(16, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(output_of, builds, itertools.repeat(root), itertools.repeat(Path(folder))))
    if mode == "--write" and results[0][0] is not None:
        (root / RECORD).write_text("".join(f"{line}\n" for line in results[0][0]), encoding="utf-8")
        return 0
    record = (root / RECORD).read_text(encoding="utf-8").splitlines()
    failures = []
    for (name, _, _, part), (lines, fault) in zip(builds, results):
        failures += [fault] if fault else []
        print(f"{name}: {'compiled, not run' if lines is None else f'{len(lines)} digests'}")
        if lines is not None:
            failures += differences(name, part, lines, record)
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    chosen = sys.argv[1] if sys.argv[1:2] in (["--all"], ["--nvcc"], ["--write"]) else ""
    paths = [Path(path).resolve() for path in sys.argv[2 if chosen else 1:]]
    if len(paths) not in ((1,) if chosen else (1, 2)):
        sys.exit(__doc__)
    sys.exit(main(paths[0], chosen, *paths[1:]))
