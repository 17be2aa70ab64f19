#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the headers as users do, all of them: the list is read from the tree, so that none is forgotten.

usage: headers.py CHECK ROOT
  alone     each header by itself, g++ (numerics headers without exceptions and run-time types)
  warnings  all headers together: clang++-14 and g++, C++20 and C++23 (as far as they know it), warnings are errors
  odr       two translation units with all headers, in opposite orders, linked into one program
  cuda      all numerics headers as CUDA code, warnings are errors; skipped (exit status 77) without nvcc
"""
import concurrent.futures
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WARNINGS = ["-Wall", "-Wextra", "-Werror"]
NO_DEVICE_CODE = {"rotoscale/eigen.hpp"}
THROWING = {"rotoscale/checked.hpp"}


def public_headers(root):
    return sorted(p.relative_to(root / "include").as_posix() for p in (root / "include").rglob("*.hpp"))


def is_numerics(header):
    parts = header.split("/")
    return len(parts) <= 2 or parts[1] == "detail"


def dependency_flags():
    """Include paths of the libraries that opt-in headers use, as system headers: their warnings are not ours."""
    flags = []
    for package in ("eigen3", "nlohmann_json", "zlib"):
        run = subprocess.run(["pkg-config", "--cflags", package], capture_output=True, text=True)
        flags += shlex.split(run.stdout.replace("-I", "-isystem")) if run.returncode == 0 else []
    return flags


def compile_text(command, text, folder, name):
    """Compiles `text`; returns the compiler's complaint, or '' when there is none."""
    source = folder / name
    source.write_text(text, encoding="utf-8")
    run = subprocess.run([*command, str(source)], capture_output=True, text=True, cwd=folder)
    return "" if run.returncode == 0 else f"{shlex.join(command)} {name}\n{run.stderr or run.stdout}"


def including(headers):
    return "".join(f'#include "{header}"\n' for header in headers)


def check_alone(root, folder):
    base = ["g++", "-fsyntax-only", "-std=c++20", *WARNINGS, f"-I{root}/include", *dependency_flags()]
    strict = [*base, "-fno-exceptions", "-fno-rtti"]

    def check(header):
        # Included twice: the include guard is part of standing alone.
        name = header.replace("/", "_") + ".cpp"
        quiet = is_numerics(header) and header not in THROWING
        return compile_text(strict if quiet else base, including([header, header]), folder, name)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(check, public_headers(root)))


def check_warnings(root, folder):
    text = including(public_headers(root))
    failures = []
    # g++ in C++20: check_odr.
    for compiler, standard in (("clang++-14", "c++20"), ("clang++-14", "c++2b"), ("g++", "c++2b")):
        command = [compiler, f"-std={standard}", "-fsyntax-only", *WARNINGS, f"-I{root}/include", *dependency_flags()]
        failures.append(compile_text(command, text, folder, "all.cpp"))
    return failures


def check_odr(root, folder):
    headers = public_headers(root)
    command = ["g++", "-std=c++20", "-O1", *WARNINGS, f"-I{root}/include", *dependency_flags()]
    failures = [
        compile_text([*command, "-c", "-o", "first.o"], including(headers), folder, "first.cpp"),
        compile_text([*command, "-c", "-o", "second.o"], including(reversed(headers)) + "int main() {}\n", folder,
                     "second.cpp"),
    ]
    if not any(failures):
        link = subprocess.run(["g++", "first.o", "second.o", "-o", "both", "-pthread", "-lz"], capture_output=True,
                              text=True, cwd=folder)
        failures.append(link.stderr)
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
    # Each alone, to name the culprit: nvcc may crash without a word about where.
    failures += [compile_text(command, including([h]), folder, h.replace("/", "_") + ".cu") for h in headers]
    return [*failures, "all numerics headers together do not compile"]


CHECKS = {"alone": check_alone, "warnings": check_warnings, "odr": check_odr, "cuda": check_cuda}


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
