#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Builds one libFuzzer program with clang's sanitizers and runs it for a moment from a fixed seed.

usage: fuzz.py ROOT NAME RUNS [DIRECTORY SECONDS]
NAME: tests/fuzz/NAME_fuzz.cpp, starting from the files in tests/fuzz/corpus/NAME if there are any; its line
"// fuzz: ..." names what else is compiled and linked. Exit status 77 (skipped) without clang++-14, its run-time
libraries or such a library.
DIRECTORY SECONDS: a long run instead, which keeps program, corpus and inputs that fail in that directory and goes on
from them. It is several times as fast: bounds are checked by libstdc++'s assertions and undefined behaviour traps, but
there is no address sanitizer; run its corpus through one afterwards (the default mode does, with the corpus copied).
"""
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


# Names are suggested by a loop over pairs of letters, whose comparisons would be most of what is traced.
NOT_TRACED = "fun:*edit_cost*\nfun:*nearest_name*\n"
SANITIZED = ["-O1", "-g", "-march=native", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
FAST = ["-O2", "-march=native", "-D_GLIBCXX_ASSERTIONS", "-fsanitize=fuzzer,undefined", "-fsanitize-trap=undefined"]


def long_run(program, corpus, runs, directory, seconds):
    """The totals of a run that goes on from what is in the directory."""
    fuzzed = subprocess.run([program, f"-runs={runs}", f"-max_total_time={seconds}", "-max_len=256", "-reload=0",
                             "-print_final_stats=1", corpus], cwd=directory, stderr=subprocess.PIPE, text=True,
                            encoding="utf-8", errors="replace")
    lines = fuzzed.stderr.splitlines()
    covered = [line for line in lines if " cov: " in line][-1:]
    print("\n".join(lines[-40:] if fuzzed.returncode else covered + [line for line in lines if "stat::" in line]))
    return 1 if fuzzed.returncode else 0


def main(root, name, runs, directory=None, seconds=0):
    compiler = shutil.which("clang++-14")
    if compiler is None:
        print("no clang++-14")
        return 77
    source = root / f"tests/fuzz/{name}_fuzz.cpp"
    extra = [word for line in source.read_text(encoding="utf-8").splitlines() if line.startswith("// fuzz: ")
             for word in line.split()[2:]]
    if any(word.startswith("-lsentencepiece") for word in extra) and not Path("/usr/include/sentencepiece_processor.h").exists():
        print("no libsentencepiece-dev")
        return 77
    extra = [word if word.startswith(("-l", "-D")) else "-I" + str(root / word[2:]) if word.startswith("-I") else str(root / word)
             for word in extra]
    with tempfile.TemporaryDirectory() as scratch:
        if directory is not None:
            scratch = directory / name
        corpus = Path(scratch) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        start = root / "tests/fuzz/corpus" / name
        if start.is_dir():
            shutil.copytree(start, corpus, dirs_exist_ok=True)
        (Path(scratch) / "not_traced").write_text(NOT_TRACED)
        build = [compiler, "-std=c++20", *(FAST if directory else SANITIZED), "-fsanitize-coverage-ignorelist=not_traced",
                 f"-I{root}/include", str(source), "-o", "fuzz", "-pthread", *extra, "-lz"]
        compiled = subprocess.run(build, cwd=scratch, capture_output=True, text=True)
        if compiled.returncode != 0:
            print(f"{shlex.join(build)}\n{compiled.stderr}")
            without_runtime = "libclang_rt" in compiled.stderr
            if without_runtime:
                print("no libclang-rt-14-dev")
            return 77 if without_runtime else 1
        if directory is not None:
            return long_run("./fuzz", "corpus", runs, scratch, seconds)
        # -len_control=0: the first bytes only choose what happens to the others, so that short inputs are of no use.
        fuzzed = subprocess.run(["./fuzz", f"-runs={runs}", "-seed=1", "-max_len=4096", "-len_control=0",
                                 "-use_value_profile=1", "corpus"],
                                cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                encoding="utf-8", errors="replace")
        lines = fuzzed.stdout.splitlines()
        print("\n".join(lines[-40:] if fuzzed.returncode else lines[-1:]))
        for crash in Path(scratch).glob("crash-*"):
            print(f"input that fails, as hex: {crash.read_bytes().hex()}")
        return 1 if fuzzed.returncode else 0


if __name__ == "__main__":
    if len(sys.argv) not in (4, 6):
        sys.exit(__doc__)
    LONG = (Path(sys.argv[4]).resolve(), int(sys.argv[5])) if len(sys.argv) == 6 else ()
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3]), *LONG))
