#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles all headers of the tree as users do.

usage: headers.py CHECK ROOT
  alone      each header by itself, numerics headers without exceptions and RTTI. Compiles the twelve headers that
             changed last (without Git: every tenth), with clang++-14 if installed, which is twice as fast as g++.
  alone-g++  all of them with g++, for the slow suite
  warnings   all headers together, and the templates that include/compiled instantiates. Every installed g++ and clang,
             C++20 and C++23 (where supported). Skipped unless warnings are errors.
  standard   each header as C++17: the first error names the required standard
  odr        an object of all headers, linked into one program twice
  isa        two translation units of a program for different instruction sets, which must keep separate functions: the
             newest set; with CI=true also those between
  cuda       all numerics headers as CUDA code, with warnings as errors. Skipped (exit status 77) without nvcc.
"""
import concurrent.futures
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion"]
COMPILERS = ("g++", "clang++-14", "clang++-22")
NO_DEVICE_CODE = {"rotoscale/eigen.hpp"}
THROWING = {"rotoscale/checked.hpp"}


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


def includes_of(root):
    """{header: public headers that it always includes, directly or not}"""
    direct = {}
    for header in public_headers(root):
        direct[header], depth = [], 0
        for line in (root / "include" / header).read_text(encoding="utf-8").splitlines():
            depth += bool(re.match(r"#\s*if", line)) - bool(re.match(r"#\s*endif", line))
            found = re.match(r'#include ["<](rotoscale[^">]*)[">]', line)
            direct[header] += [found[1]] if found and depth == 0 else []
    closed = {}

    def closure(header):
        if header not in closed:
            closed[header] = None  # ends the recursion in a circle with an error
            closed[header] = set(direct[header]).union(*(closure(included) for included in direct[header]))
        return closed[header]

    return {header: closure(header) for header in direct}


# Precompiled for the headers that include them: the standard library is two thirds of the time of a header. Each of
# these is also compiled by itself. Sorted by the number of headers that they include, most first.
PRECOMPILED = {
    True: ("rotoscale/detail/gemm_plan.hpp", "rotoscale/detail/quantize_tile.hpp", "rotoscale/block.hpp",
           "rotoscale/bits.hpp"),
    False: ("rotoscale/llama/model_class.hpp", "rotoscale/io/json.hpp", "rotoscale/nn/operation_arguments.hpp",
            "rotoscale/nn/recipe.hpp"),
}


def changed_last(root, headers, most=12):
    """The headers that changed last, in the working tree or in its history."""
    changed = []
    for command in (["diff", "--name-only", "HEAD"], ["log", "-n", "40", "--name-only", "--format="]):
        run = subprocess.run(["git", *command, "--relative", "--", "."], cwd=root / "include", capture_output=True,
                             text=True)
        changed += run.stdout.splitlines()
    chosen = [header for header in dict.fromkeys(changed) if header in headers]
    return chosen[:most] if chosen else sorted(headers)[::10]


def check_alone(root, folder, compiler="clang++-14", choose=changed_last):
    if not shutil.which(compiler):
        compiler = "g++"
    base = [compiler, "-std=c++20", f"-I{root}/include", *dependency_flags()]
    included = includes_of(root)

    def command(strict):
        return [*base, *(["-fno-exceptions", "-fno-rtti"] if strict else [])]

    def precompiled(job):
        strict, header = job
        output = folder / f"{header.replace('/', '_')}.{strict}.pch"
        run = subprocess.run([*command(strict), "-fpch-instantiate-templates", "-x", "c++-header",
                              str(root / "include" / header),
                              "-o", str(output)], capture_output=True)
        return job, output if run.returncode == 0 else None

    def is_strict(header):
        return is_numerics(header) and header not in THROWING

    def base_of(header):
        strict = is_strict(header)
        return next(((strict, base) for base in PRECOMPILED[strict] if base in included[header]), None)

    def check(header):
        # Included twice, to test the include guard.
        name = header.replace("/", "_") + ".cpp"
        text = including([header, header])
        plain = [*command(is_strict(header)), "-fsyntax-only"]
        first = ready.get(base_of(header))
        if first and not compile_text([*plain, "-include-pch", str(first)], text, folder, name):
            return ""
        return compile_text(plain, text, folder, name)

    chosen = choose(root, included)
    bases = [base_of(header) for header in chosen]
    jobs = {base for base in bases if base and bases.count(base) > 1} if compiler.startswith("clang") else []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ready = dict(pool.map(precompiled, jobs))
        return list(pool.map(check, chosen))


def check_alone_gcc(root, folder):
    return check_alone(root, folder, "g++", lambda root, headers: headers)


def warnings_are_errors():
    """True with CI=true or -Dwerror=true. Other compilers have untested warnings."""
    return os.environ.get("CI") == "true" or os.environ.get("ROTOSCALE_WERROR") == "true"


def warnings():
    return WARNINGS + (["-Werror"] if warnings_are_errors() else [])


def check_warnings(root, folder):
    if not warnings_are_errors():
        print("skipped: warnings are no errors here (CI=true, or tests/run.sh --werror)")
        sys.exit(77)
    texts = [including(public_headers(root)), including(sorted((root / "include/compiled").glob("*.cpp")))]

    def check(job):
        compiler, standard, number = job
        command = [compiler, f"-std={standard}", "-fsyntax-only", *warnings(), f"-I{root}/include",
                   *dependency_flags(), *(["-DROTOSCALE_COMPILED"] if number == 1 else [])]
        return compile_text(command, texts[number], folder, f"{compiler}-{standard}-{number}.cpp")

    # check_odr covers all headers with g++ in C++20.
    jobs = [(compiler, standard, number) for compiler in COMPILERS if shutil.which(compiler)
            for standard in ("c++20", "c++2b") for number in (0, 1)
            if (compiler, standard, number) != ("g++", "c++20", 0)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(check, jobs))


def check_standard(root, folder):
    def check(header):
        name = header.replace("/", "_") + ".cpp"
        complaint = compile_text(["g++", "-std=c++17", "-Wfatal-errors", "-E", "-o", "/dev/null", f"-I{root}/include",
                                  *dependency_flags()], including([header]), folder, name)
        errors = [line for line in complaint.splitlines() if "error:" in line]
        if errors and "Rotoscale needs C++20" in errors[0]:
            return ""
        return f"{header} as C++17: " + (errors[0] if errors else "compiles")

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(check, public_headers(root)))


def check_odr(root, folder):
    # An object linked with itself defines every non-inline function twice.
    command = ["g++", "-std=c++20", "-O1" if warnings_are_errors() else "-O0", *warnings(), f"-I{root}/include",
               *dependency_flags()]
    failures = [compile_text([*command, "-c", "-o", "first.o"], including(public_headers(root)), folder, "first.cpp"),
                compile_text([*command, "-c", "-o", "main.o"], "int main() {}\n", folder, "main.cpp")]
    if not any(failures):
        shutil.copy(folder / "first.o", folder / "second.o")
        link = subprocess.run(["g++", "main.o", "first.o", "second.o", "-o", "both", "-pthread", "-lz"],
                              capture_output=True,
                              text=True, cwd=folder)
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


def check_isa(root, folder):
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

    newer = NEWER if warnings_are_errors() else {"sapphirerapids": NEWER["sapphirerapids"]}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = list(pool.map(compile_part, ["older"] + ["newer"] * len(newer), ["x86-64", *newer]))
    for march, (feature, lanes) in newer.items():
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
    command = [nvcc, "-x", "cu", "-std=c++20", "--Werror", "all-warnings", f"-I{root}/include", "-c", "-o", "all.o"]
    device = Path(root, "tests/consumer/device.cu").read_text()
    failures = [compile_text(command, device, folder, "device.cu")]
    if not compile_text(command, including(headers), folder, "all.cu"):
        return failures
    # Each header separately, to find the fault: nvcc may crash without a message.
    failures += [compile_text(command, including([h]), folder, h.replace("/", "_") + ".cu") for h in headers]
    return [*failures, "all numerics headers together do not compile"]


CHECKS = {"alone": check_alone, "alone-g++": check_alone_gcc, "warnings": check_warnings, "standard": check_standard,
          "odr": check_odr,
          "isa": check_isa, "cuda": check_cuda}


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
