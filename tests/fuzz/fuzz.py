#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Builds one libFuzzer program with clang's sanitizers and runs it for a moment from a fixed seed.

usage: fuzz.py ROOT NAME RUNS   NAME: tests/fuzz/NAME_fuzz.cpp, starting from the files in tests/fuzz/corpus/NAME if
there are any; its line "// fuzz: ..." names what else is compiled and linked. Exit status 77 (skipped) without
clang++-14, its run-time libraries or such a library.
"""
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main(root, name, runs):
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
        corpus = Path(scratch) / "corpus"
        start = root / "tests/fuzz/corpus" / name
        shutil.copytree(start, corpus) if start.is_dir() else corpus.mkdir()
        build = [compiler, "-std=c++20", "-O1", "-g", "-march=native", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all",
                 f"-I{root}/include", str(source), "-o", "fuzz", "-pthread", *extra, "-lz"]
        compiled = subprocess.run(build, cwd=scratch, capture_output=True, text=True)
        if compiled.returncode != 0:
            print(f"{shlex.join(build)}\n{compiled.stderr}")
            without_runtime = "libclang_rt" in compiled.stderr
            if without_runtime:
                print("no libclang-rt-14-dev")
            return 77 if without_runtime else 1
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
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3])))
