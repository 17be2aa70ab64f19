#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Builds one libFuzzer program with clang's sanitizers and runs it for a moment from a fixed seed.

usage: fuzz.py ROOT NAME RUNS [brief [PROGRAM] | DIRECTORY SECONDS [PROCESSES]]
       fuzz.py --build PROGRAM DEPFILE ROOT NAME...
NAME: tests/fuzz/NAME_fuzz.cpp, starting from the files in tests/fuzz/corpus/NAME if there are any; its line
"// fuzz: ..." names what else is compiled and linked. Exit status 77 (skipped) without a clang (CLANGS), its
run-time libraries or such a library.
brief: all sources at once, without the checks of each pointer and without debugging information, which are most of the compile
time; the address sanitizer still sees a wrong access, and says where when the default mode is run with the input that failed.
PROGRAM is one of `brief`'s with many targets, which --build makes: what they share is compiled once.
DIRECTORY SECONDS: a long run instead, which keeps program, corpus and inputs that fail in that directory and goes on
from them; PROCESSES share the runs and, every ten seconds, what they found. CXXFLAGS come after the own flags (another
-march). Without a clang the program that lies there is run, so that machines without compilers can help. It is many
times as fast: bounds are checked by libstdc++'s assertions and undefined behaviour traps, but there is no address
sanitizer, comparisons are not traced, and inputs to change are chosen evenly, as the choice of the rarest and shortest
takes longer than most targets do. Run its corpus through the default mode afterwards (copied to the corpus). Each source
is compiled through ccache where that is installed.
"""
import concurrent.futures
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


# Names are suggested by a loop over pairs of letters, whose comparisons would be most of what is traced.
NOT_TRACED = "fun:*edit_cost*\nfun:*nearest_name*\n"
SANITIZED = ["-O1", "-march=native", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
# Targets that share the reader of JSON and of safetensors; the rest are compiled beside them, on another core.
OF_JSON = ("json", "safetensors", "peft", "dump", "cases")
BRIEF = ["-fno-sanitize=null,alignment,object-size,vptr,pointer-overflow"]
FAST = ["-O2", "-march=native", "-D_GLIBCXX_ASSERTIONS", "-fsanitize=fuzzer,undefined", "-fsanitize-trap=undefined",
        "-fno-sanitize-coverage=trace-cmp"]


def parts_of(root, name):
    """What a target is made of: sources, flags, libraries."""
    source = root / f"tests/fuzz/{name}_fuzz.cpp"
    extra = [word for line in source.read_text(encoding="utf-8").splitlines() if line.startswith("// fuzz: ")
             for word in line.split()[2:]]
    return ([source, *(root / word for word in extra if not word.startswith("-"))],
            ["-I" + str(root / word[2:]) if word.startswith("-I") else word for word in extra if word.startswith(("-I", "-D"))],
            [word for word in extra if word.startswith("-l")])


def write_at_once(path, sources):
    path.write_text("".join(f'#include "{source}"\n' for source in dict.fromkeys(sources)))  # targets share some
    return path


CLANGS = ("clang++-14", "clang++-19")  # of Debian 12 and 13


def find_clang():
    return next(filter(None, map(shutil.which, CLANGS)), None)


def flags_of(root, kind):
    return ["-std=c++20", *kind, "-fsanitize-coverage-ignorelist=not_traced", f"-I{root}/include", f"-I{root}/tests/fuzz", "-pthread"]


def build_many(program, depfile, root, names):
    """A program with many targets and the list of what it is made of; the exit status of a build."""
    compiler = find_clang()
    parts = {name: parts_of(root, name) for name in names}
    flags, libraries = (sorted({flag for part in parts.values() for flag in part[kind]}) for kind in (1, 2))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "not_traced").write_text(NOT_TRACED)
        halves = [[name for name in names if (name in OF_JSON) == of_json] for of_json in (True, False)]
        sources = [write_at_once(scratch / f"half{number}.cpp", [source for name in half for source in parts[name][0]])
                   for number, half in enumerate(halves)]
        fault = build(compiler, [*sources, root / "tests/fuzz/libfuzzer.cpp"],
                      [*flags, *flags_of(root, SANITIZED + BRIEF), "-MMD"], libraries, scratch)
        if fault is not None:
            print(fault)
            return 1
        made_of = [word for path in sorted(scratch.glob("*.d")) for word in path.read_text().replace("\\\n", " ").split()[1:]]
        depfile.write_text(f"{program}: {' '.join(word for word in made_of if not word.startswith(str(scratch)))}\n")
        shutil.copy(scratch / "fuzz", program)
    return 0


def build(compiler, sources, flags, libraries, scratch):
    """Compiles and links ./fuzz in the directory; what failed, or None."""
    ccache = [shutil.which("ccache")] if shutil.which("ccache") else []
    objects = [f"{number}.o" for number in range(len(sources))]
    compiling = [[*ccache, compiler, *flags, "-c", str(source), "-o", object_file]
                 for source, object_file in zip(sources, objects)]

    def called(command):
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True,
                              env=os.environ | {"CCACHE_NOHASHDIR": "1"})  # another folder each time
        return f"{shlex.join(command)}\n{done.stderr}" if done.returncode else None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [fault for fault in pool.map(called, compiling) if fault]
    return failed[0] if failed else called([compiler, *flags, *objects, "-o", "fuzz", *libraries, "-pthread", "-lz"])


def long_run(corpus, runs, directory, seconds, processes):
    """Goes on from what is in the directory; prints each process's totals and their sum."""
    command = ["./fuzz", f"-runs={-(-runs // processes)}", f"-max_total_time={seconds}", "-max_len=256",
               f"-reload={10 if processes > 1 else 0}", "-entropic=0", "-reduce_inputs=0", "-print_final_stats=1", corpus]
    with contextlib.ExitStack() as files:
        # A file each: a pipe that nobody reads would stop its process.
        logs = [files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
                for _ in range(processes)]
        running = [subprocess.Popen(command, cwd=directory, stderr=log) for log in logs]
        failed = [process.wait() != 0 for process in running]
        executed = 0
        for log, failure in zip(logs, failed):
            log.seek(0)
            lines = log.read().splitlines()
            covered = [line for line in lines if " cov: " in line][-1:]
            statistics = [line for line in lines if "stat::" in line]
            print("\n".join(lines[-40:] if failure else covered + statistics))
            executed += sum(int(line.split()[1]) for line in statistics if "number_of_executed_units" in line)
    if processes > 1:
        print(f"executed by all processes: {executed}")
    return 1 if any(failed) else 0


def run_briefly(program, name, runs, scratch):
    """Some inputs from a fixed seed, by one target of a program; the exit status of a test."""
    # -len_control=0: the first bytes only choose what happens to the others, so that short inputs are of no use.
    fuzzed = subprocess.run([program, f"-runs={runs}", "-seed=1", "-max_len=4096", "-len_control=0", "-use_value_profile=1", "corpus"],
                            cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            encoding="utf-8", errors="replace", env=os.environ | {"ROTOSCALE_FUZZ": name})
    lines = fuzzed.stdout.splitlines()
    print("\n".join(lines[-40:] if fuzzed.returncode else lines[-1:]))
    for crash in Path(scratch).glob("crash-*"):
        print(f"input that fails, as hex: {crash.read_bytes().hex()}")
    return 1 if fuzzed.returncode else 0


def main(root, name, runs, brief=False, program=None, directory=None, seconds=0, processes=1):
    compiler = find_clang()
    if compiler is None and directory is not None and (directory / name / "fuzz").exists():
        return long_run("corpus", runs, directory / name, seconds, processes)
    if compiler is None and program is None:
        print("no " + " or ".join(CLANGS))
        return 77
    sources, flags, libraries = parts_of(root, name)
    if any(word.startswith("-lsentencepiece") for word in libraries) and not Path("/usr/include/sentencepiece_processor.h").exists():
        print("no libsentencepiece-dev")
        return 77
    sources.append(root / "tests/fuzz/libfuzzer.cpp")
    fast = FAST + shlex.split(os.environ.get("CXXFLAGS", ""))
    flags += flags_of(root, fast if directory else SANITIZED + BRIEF if brief else [*SANITIZED, "-g"])
    with tempfile.TemporaryDirectory() as scratch:
        if directory is not None:
            scratch = directory / name
        corpus = Path(scratch) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        start = root / "tests/fuzz/corpus" / name
        if start.is_dir():
            shutil.copytree(start, corpus, dirs_exist_ok=True)
        if program is not None:
            return run_briefly(program, name, runs, scratch)
        (Path(scratch) / "not_traced").write_text(NOT_TRACED)
        if brief:
            sources = [write_at_once(Path(scratch) / f"{name}_at_once.cpp", sources)]
        fault = build(compiler, sources, flags, libraries, scratch)
        if fault is not None:
            print(fault)
            without_runtime = "libclang_rt" in fault
            if without_runtime:
                print("no " + compiler.rsplit("/", 1)[-1].replace("clang++", "libclang-rt") + "-dev")
            return 77 if without_runtime else 1
        if directory is not None:
            return long_run("corpus", runs, scratch, seconds, processes)
        return run_briefly("./fuzz", name, runs, scratch)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"] and len(sys.argv) >= 6:
        sys.exit(build_many(Path(sys.argv[2]).resolve(), Path(sys.argv[3]), Path(sys.argv[4]).resolve(), sys.argv[5:]))
    BRIEFLY = sys.argv[4:5] == ["brief"] and len(sys.argv) <= 6
    if len(sys.argv) not in (4, 6, 7) and not BRIEFLY:
        sys.exit(__doc__)
    MORE = {"brief": True, "program": str(Path(sys.argv[5]).resolve()) if sys.argv[5:] else None} if BRIEFLY else {
        "directory": Path(sys.argv[4]).resolve(), "seconds": int(sys.argv[5]), "processes": int((sys.argv[6:] or ["1"])[0])
    } if len(sys.argv) >= 6 else {}
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3]), **MORE))
