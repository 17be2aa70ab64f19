#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles all headers of the tree as users do.

usage: headers.py CHECK ROOT
  alone      each header by itself, numerics headers without exceptions and RTTI. Compiles four, chosen by the hashes
             of their texts, with clang++-14 if installed, which is twice as fast as g++.
  alone-g++  all of them with g++, for the slow suite
  COMPILER   all headers together, and the templates that include/compiled instantiates: by g++ in C++23, clang++-14 in
             C++20, clang++-22 in C++23. Skipped where it is not installed, and unless warnings are errors.
  standard   the same four as C++17: the first error names the required standard
  standard-all  all of them, for the slow suite
  odr        an object of all headers, linked into one program twice
  isa        two translation units of a program for different instruction sets, which must keep separate functions: the
             newest set
  isa-all    the same with the sets between, for the slow suite
  cuda       all numerics headers as CUDA code, with warnings as errors. Skipped (exit status 77) without nvcc.
"""
import concurrent.futures
import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion"]
WARNING_JOBS = {"g++": "c++2b", "clang++-14": "c++20", "clang++-22": "c++2b"}  # check_odr covers g++ in C++20
NO_DEVICE_CODE = {"rotoscale/eigen.hpp"}
THROWING = {"rotoscale/checked.hpp"}
JOBS = min(16, len(os.sched_getaffinity(0)))  # each thread reserves 128 MiB of addresses


def public_headers(root):
    return sorted(p.relative_to(root / "include").as_posix() for p in (root / "include").rglob("*.hpp"))


def is_numerics(header):
    parts = header.split("/")
    return len(parts) <= 2 or parts[1] == "detail"


def dependency_flags():
    """Include paths of the libraries that opt-in headers use. As system headers they give no warnings."""
    flags = []
    for package in ("eigen3", "nlohmann_json", "zlib"):
        run = subprocess.run(["pkg-config", "--cflags", package], capture_output=True, text=True)
        flags += shlex.split(run.stdout.replace("-I", "-isystem")) if run.returncode == 0 else []
    return flags


def compile_text(command, text, folder, name):
    """Compiles `text`. Returns the compiler's messages, or '' on success."""
    source = folder / name
    source.write_text(text, encoding="utf-8")
    run = subprocess.run([*command, str(source)], capture_output=True, text=True, cwd=folder)
    return "" if run.returncode == 0 else f"{shlex.join(command)} {name}\n{run.stderr or run.stdout}"


def including(headers):
    return "".join(f'#include "{header}"\n' for header in headers)


def sample(root, headers):
    """The four headers whose texts have the smallest hashes. The choice depends on the tree's content alone."""
    return sorted(headers, key=lambda header: (zlib.crc32((root / "include" / header).read_bytes()), header))[:4]


def check_alone(root, folder, compiler="clang++-14", choose=sample):
    command = [compiler if shutil.which(compiler) else "g++", "-std=c++20", "-fsyntax-only", f"-I{root}/include",
               *dependency_flags()]

    def check(header):
        strict = ["-fno-exceptions", "-fno-rtti"] if is_numerics(header) and header not in THROWING else []
        # Included twice, to test the include guard.
        return compile_text([*command, *strict], including([header, header]), folder, header.replace("/", "_") + ".cpp")

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(check, choose(root, public_headers(root))))


def every(_, headers):
    return headers


def warnings_are_errors():
    """True with CI=true or -Dwerror=true. Other compilers have untested warnings."""
    return os.environ.get("CI") == "true" or os.environ.get("ROTOSCALE_WERROR") == "true"


def warnings():
    return WARNINGS + (["-Werror"] if warnings_are_errors() else [])


def check_warnings(root, folder, compiler):
    if not warnings_are_errors() or shutil.which(compiler) is None:
        print(f"skipped: no {compiler}, or warnings are no errors here (CI=true, or tests/run.sh --werror)")
        sys.exit(77)
    text = including(public_headers(root)) + including(sorted((root / "include/compiled").glob("*.cpp")))
    return [compile_text([compiler, f"-std={WARNING_JOBS[compiler]}", "-fsyntax-only", *warnings(),
                          f"-I{root}/include", *dependency_flags(), "-DROTOSCALE_COMPILED"], text, folder, "all.cpp")]


def check_standard(root, folder, choose=sample):
    def check(header):
        name = header.replace("/", "_") + ".cpp"
        complaint = compile_text(["g++", "-std=c++17", "-Wfatal-errors", "-E", "-o", "/dev/null", f"-I{root}/include",
                                  *dependency_flags()], including([header]), folder, name)
        errors = [line for line in complaint.splitlines() if "error:" in line]
        if errors and "Rotoscale needs C++20" in errors[0]:
            return ""
        return f"{header} as C++17: " + (errors[0] if errors else "compiles")

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(check, choose(root, public_headers(root))))


def check_odr(root, folder):
    # An object linked with itself defines every non-inline function twice.
    command = ["g++", "-std=c++20", *warnings(), f"-I{root}/include", *dependency_flags()]
    failures = [compile_text([*command, "-c", "-o", "first.o"], including(public_headers(root)), folder, "first.cpp"),
                compile_text([*command, "-c", "-o", "main.o"], "int main() {}\n", folder, "main.cpp")]
    if not any(failures):
        shutil.copy(folder / "first.o", folder / "second.o")
        link = subprocess.run(["g++", "main.o", "first.o", "second.o", "-o", "both", "-pthread", "-lz"],
                              capture_output=True, text=True, cwd=folder)
        failures.append(link.stderr)
    return failures


# Second translation unit: -march, the CPU feature that it needs, and FP32 lanes of its registers. The first unit is for
# any x86-64.
NEWER = {"haswell": ("fma", 8), "sapphirerapids": ("avx512vbmi2", 16)}


def functions_of(program):
    """Demangled functions of an object that the linker may merge."""
    run = subprocess.run(["nm", "-C", "--defined-only", program], capture_output=True, text=True, check=True)
    found = (line.split(" ", 2) for line in run.stdout.splitlines())
    return {name for _, kind, name in found if kind in "WT"}


def check_isa(root, folder, newer=("sapphirerapids",)):
    if platform.machine() != "x86_64":
        print("not an x86-64 machine")
        sys.exit(77)
    # Without optimization every function is emitted. Implicit constructors have no name for a tag.
    command = ["g++", "-std=c++20", *warnings(), f"-I{root}/include"]
    implicit = re.compile(r"(?:.*::)?(\w+)::\1\(\)")
    pair = Path(root, "tests/consumer/isa_pair.cpp").read_text()

    def compile_part(part, march):
        return compile_text([*command, f"-march={march}", f"-DPART={part}", "-c", "-o", f"{march}.o"], pair, folder,
                            f"{march}.cpp")

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        failures = list(pool.map(compile_part, ["older"] + ["newer"] * len(newer), ["x86-64", *newer]))
    for march in newer:
        feature, lanes = NEWER[march]
        if any(failures):
            break
        shared = functions_of(folder / "x86-64.o") & functions_of(folder / f"{march}.o")
        failures += [f"{march}: the linker keeps one of {name}" for name in sorted(shared)
                     if name.startswith("rotoscale") and not implicit.fullmatch(name)]
        main = Path(root, "tests/consumer/isa_main.cpp").read_text()
        failures.append(compile_text([*command, f"-DNEWER=\"{feature}\"", f"-DLANES={lanes}", "x86-64.o", f"{march}.o",
                                      "-pthread", "-o", march], main, folder, "main.cpp"))
        if not failures[-1]:
            run = subprocess.run([folder / march], capture_output=True, text=True)
            failures.append(run.stdout + run.stderr if run.returncode != 0 else "")
    return failures


def check_cuda(root, folder):
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        print("no nvcc")
        sys.exit(77)
    headers = [h for h in public_headers(root) if is_numerics(h) and h not in NO_DEVICE_CODE]
    # To PTX: half of the time is ptxas' and the host compiler's.
    command = [nvcc, "-x", "cu", "-std=c++20", "--Werror", "all-warnings", f"-I{root}/include", "-ptx", "-o", "all.ptx"]
    device = Path(root, "tests/consumer/device.cu").read_text()
    failures = [compile_text(command, device, folder, "device.cu")]
    if not compile_text(command, including(headers), folder, "all.cu"):
        return failures
    # Each header separately, to find the fault: nvcc may crash without a message.
    failures += [compile_text(command, including([h]), folder, h.replace("/", "_") + ".cu") for h in headers]
    return [*failures, "all numerics headers together do not compile"]


CHECKS = {"alone": check_alone, "alone-g++": functools.partial(check_alone, compiler="g++", choose=every),
          "standard": check_standard, "standard-all": functools.partial(check_standard, choose=every), "odr": check_odr,
          "isa": check_isa, "isa-all": functools.partial(check_isa, newer=NEWER), "cuda": check_cuda}
CHECKS |= {compiler: functools.partial(check_warnings, compiler=compiler) for compiler in WARNING_JOBS}


def main(check, root):
    with tempfile.TemporaryDirectory() as folder:
        failures = [failure for failure in CHECKS[check](root, Path(folder)) if failure]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in CHECKS:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).resolve()))
