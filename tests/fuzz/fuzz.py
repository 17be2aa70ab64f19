#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Builds one libFuzzer program with clang's sanitizers and runs it from a fixed seed. This script serves the slow
suite; the default suite replays the stored inputs without clang (replay.cpp).

usage: fuzz.py ROOT NAME RUNS
  NAME  tests/fuzz/NAME_fuzz.cpp, started from the files in tests/fuzz/corpus/NAME. Its line "// fuzz: ..." names the
        other sources and libraries.

Exit status 77 (skipped): no clang (CLANGS), no run-time libraries, or no such library. Sources are compiled through
ccache if it is installed.
"""
import concurrent.futures
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


# Name suggestions loop over pairs of letters; their comparisons would dominate the trace.
NOT_TRACED = "fun:*edit_cost*\nfun:*nearest_name*\n"
SANITIZED = ["-O1", "-march=native", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]


def parts_of(root, name):
    """Sources, flags and libraries of a target."""
    source = root / f"tests/fuzz/{name}_fuzz.cpp"
    extra = [word for line in source.read_text(encoding="utf-8").splitlines() if line.startswith("// fuzz: ")
             for word in line.split()[2:]]
    return ([source, *(root / word for word in extra if not word.startswith("-"))],
            ["-I" + str(root / word[2:]) if word.startswith("-I") else word for word in extra
             if word.startswith(("-I", "-D"))],
            [word for word in extra if word.startswith("-l")])


CLANGS = ("clang++-14", "clang++-19")  # of Debian 12 and 13


def find_clang():
    return next(filter(None, map(shutil.which, CLANGS)), None)


def build(compiler, sources, flags, libraries, scratch):
    """Compiles and links ./fuzz in the directory. Returns the failure, or None."""
    ccache = [shutil.which("ccache")] if shutil.which("ccache") else []
    objects = [f"{number}.o" for number in range(len(sources))]
    compiling = [[*ccache, compiler, *flags, "-c", str(source), "-o", object_file]
                 for source, object_file in zip(sources, objects)]

    def called(command):
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True,
                              env=os.environ | {"CCACHE_NOHASHDIR": "1"})  # the folder differs each time
        return f"{shlex.join(command)}\n{done.stderr}" if done.returncode else None

    with concurrent.futures.ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as pool:
        failed = [fault for fault in pool.map(called, compiling) if fault]
    return failed[0] if failed else called([compiler, *flags, *objects, "-o", "fuzz", *libraries, "-pthread", "-lz"])


def run_briefly(name, runs, scratch):
    """Runs one target from a fixed seed. Returns the exit status of a test."""
    # -len_control=0: the first bytes only choose options, so short inputs are useless.
    fuzzed = subprocess.run(["./fuzz", f"-runs={runs}", "-seed=1", "-max_len=4096", "-len_control=0",
                             "-use_value_profile=1", "corpus"],
                            cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            encoding="utf-8", errors="replace", env=os.environ | {"ROTOSCALE_FUZZ": name})
    lines = fuzzed.stdout.splitlines()
    print("\n".join(lines[-40:] if fuzzed.returncode else lines[-1:]))
    for crash in Path(scratch).glob("crash-*"):
        print(f"input that fails, as hex: {crash.read_bytes().hex()}")
    return 1 if fuzzed.returncode else 0


def main(root, name, runs):
    compiler = find_clang()
    if compiler is None:
        print("no " + " or ".join(CLANGS))
        return 77
    sources, flags, libraries = parts_of(root, name)
    if any(word.startswith("-lsentencepiece")
           for word in libraries) and not Path("/usr/include/sentencepiece_processor.h").exists():
        print("no libsentencepiece-dev")
        return 77
    sources.append(root / "tests/fuzz/libfuzzer.cpp")
    flags += ["-std=c++20", *SANITIZED, "-g", "-fsanitize-coverage-ignorelist=not_traced", f"-I{root}/include",
              f"-I{root}/tests/fuzz", "-pthread"]
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus")
        corpus.mkdir()
        start = root / "tests/fuzz/corpus" / name
        if start.is_dir():
            shutil.copytree(start, corpus, dirs_exist_ok=True)
        Path(scratch, "not_traced").write_text(NOT_TRACED)
        fault = build(compiler, sources, flags, libraries, scratch)
        if fault is not None:
            print(fault)
            without_runtime = "libclang_rt" in fault
            if without_runtime:
                print("no " + compiler.rsplit("/", 1)[-1].replace("clang++", "libclang-rt") + "-dev")
            return 77 if without_runtime else 1
        return run_briefly(name, runs, scratch)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3])))
