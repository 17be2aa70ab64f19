#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Builds one libFuzzer program with clang's sanitizers and runs it from a fixed seed. This script serves the slow
suite; the default suite replays the stored inputs without clang (replay.cpp).

usage: fuzz.py ROOT NAME RUNS [DIRECTORY SECONDS]
  NAME               tests/fuzz/NAME_fuzz.cpp, started from the files in tests/fuzz/corpus/NAME. Its line "// fuzz: ..."
                     names the other sources and libraries.
  DIRECTORY SECONDS  a long run. The directory keeps program, corpus and failing inputs, and the next run continues.

Exit status 77 (skipped): no clang (CLANGS), no run-time libraries, or no such library. CXXFLAGS are appended to the
flags (another -march). Sources are compiled through ccache if it is installed.

A long run is many times faster: libstdc++'s assertions check bounds, undefined behaviour traps, there is no address
sanitizer, comparisons are not traced, and inputs are chosen evenly. Without a clang it runs the program in DIRECTORY,
so that machines without compilers can help. Afterwards copy its corpus to tests/fuzz/corpus and run the default mode.
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
FAST = ["-O2", "-march=native", "-D_GLIBCXX_ASSERTIONS", "-fsanitize=fuzzer,undefined", "-fsanitize-trap=undefined",
        "-fno-sanitize-coverage=trace-cmp"]


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


def flags_of(root, kind):
    return ["-std=c++20", *kind, "-fsanitize-coverage-ignorelist=not_traced", f"-I{root}/include",
            f"-I{root}/tests/fuzz", "-pthread"]


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


def long_run(runs, directory, seconds):
    """Continues with the directory's corpus. Prints the totals."""
    command = ["./fuzz", f"-runs={runs}", f"-max_total_time={seconds}", "-max_len=256", "-entropic=0",
               "-reduce_inputs=0", "-print_final_stats=1", "corpus"]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:  # a full pipe would stop it
        failed = subprocess.run(command, cwd=directory, stderr=log).returncode != 0
        log.seek(0)
        lines = log.read().splitlines()
    covered = [line for line in lines if " cov: " in line][-1:]
    print("\n".join(lines[-40:] if failed else covered + [line for line in lines if "stat::" in line]))
    return 1 if failed else 0


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


def main(root, name, runs, directory=None, seconds=0):
    compiler = find_clang()
    if compiler is None and directory is not None and (directory / name / "fuzz").exists():
        return long_run(runs, directory / name, seconds)
    if compiler is None:
        print("no " + " or ".join(CLANGS))
        return 77
    sources, flags, libraries = parts_of(root, name)
    if any(word.startswith("-lsentencepiece")
           for word in libraries) and not Path("/usr/include/sentencepiece_processor.h").exists():
        print("no libsentencepiece-dev")
        return 77
    sources.append(root / "tests/fuzz/libfuzzer.cpp")
    fast = FAST + shlex.split(os.environ.get("CXXFLAGS", ""))
    flags += flags_of(root, fast if directory else [*SANITIZED, "-g"])
    with tempfile.TemporaryDirectory() as scratch:
        if directory is not None:
            scratch = directory / name
        corpus = Path(scratch) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        start = root / "tests/fuzz/corpus" / name
        if start.is_dir():
            shutil.copytree(start, corpus, dirs_exist_ok=True)
        (Path(scratch) / "not_traced").write_text(NOT_TRACED)
        fault = build(compiler, sources, flags, libraries, scratch)
        if fault is not None:
            print(fault)
            without_runtime = "libclang_rt" in fault
            if without_runtime:
                print("no " + compiler.rsplit("/", 1)[-1].replace("clang++", "libclang-rt") + "-dev")
            return 77 if without_runtime else 1
        if directory is not None:
            return long_run(runs, scratch, seconds)
        return run_briefly(name, runs, scratch)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 6):
        sys.exit(__doc__)
    LONG = {"directory": Path(sys.argv[4]).resolve(), "seconds": int(sys.argv[5])} if len(sys.argv) == 6 else {}
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3]), **LONG))
