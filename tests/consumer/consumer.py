#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Uses Rotoscale as other projects do, and runs their programs.

usage: consumer.py CHECK ROOT | consumer.py gpu ROOT MODE ARCHIVE
  meson      as a Meson subproject (tests/consumer/meson)
  pkgconfig  installed, found through pkg-config, compiled by hand
  cmake      installed and found by find_package (tests/consumer/cmake); as a source tree by FetchContent. Skipped (exit
             status 77) without CMake.
  gpu        the device library ARCHIVE, built for MODE (host, cuda, hip), installed, found both ways, and used by
             programs that g++ compiles. Without a device the programs must say so and exit with 77.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def run(*command, **settings):
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, **settings)
    if result.returncode != 0:
        print(f"$ {shlex.join(str(part) for part in command)}\n{result.stdout}")
        sys.exit(1)
    return result.stdout


def version(root):
    text = (root / "include/rotoscale/version.hpp").read_text(encoding="utf-8")
    return re.search(r'ROTOSCALE_VERSION "(.*)"', text).group(1)


NO_PROGRAMS = ["-Dtests=disabled", "-Dexamples=disabled", "-Dbench=disabled"]


def install(root, folder, options=(), gpu=None, archive=None):
    """Installs into folder/prefix and returns the prefix. `gpu`: target of the device library `archive`. Without it
    only headers are installed, with README's command."""
    prefix = folder / "prefix"
    build = folder / "rotoscale"
    run("meson", "setup", f"--prefix={prefix}", "-Dlibdir=lib",
        *([f"-Dgpu={gpu}", *NO_PROGRAMS] if gpu else options), build, root)
    if gpu:
        # Its members: a build tree's archive may have only their names.
        members = run("ar", "t", archive, cwd=archive.parent).split()
        if (archive.parent / members[0]).exists():
            run("ar", "rcs", build / "gpu/librotoscale_gpu.a", *members, cwd=archive.parent)
        else:
            shutil.copy(archive, build / "gpu/librotoscale_gpu.a")
    run("meson", "install", "-C", build, "--no-rebuild", "--tags", "devel")
    if built := list(build.rglob("*.o")):
        print("installing built", *built)
        sys.exit(1)
    installed = {p.relative_to(prefix / "include") for p in (prefix / "include").rglob("*.hpp")}
    expected = {p.relative_to(root / "include") for p in (root / "include").rglob("*.hpp")}
    if gpu is not None:
        expected |= {Path("rotoscale/gpu") / p.name for p in (root / "gpu/api").glob("*.hpp")}
    if installed != expected:
        print("installed headers differ from include/:", *sorted(map(str, installed ^ expected)))
        sys.exit(1)
    return prefix


def check_output(root, program):
    output = run(program).strip()
    if output != f"rotoscale {version(root)}":
        print(f"{program} printed {output!r}")
        sys.exit(1)


def check_meson(root, folder):
    project = folder / "project"
    shutil.copytree(root / "tests/consumer/meson", project)
    for name in ("main.cpp", "io.cpp"):
        shutil.copy(root / "tests/consumer" / name, project)
    (project / "subprojects").mkdir()
    (project / "subprojects/rotoscale").symlink_to(root)
    run("meson", "setup", project / "build", project)
    run("ninja", "-C", project / "build")
    for name in ("consumer", "consumer_io"):
        check_output(root, project / "build" / name)


def check_pkgconfig(root, folder):
    prefix = install(root, folder)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "share/pkgconfig")}
    for package, source in (("rotoscale", "main.cpp"), ("rotoscale-io", "io.cpp")):
        if run("pkg-config", "--modversion", package, env=environment).strip() != version(root):
            print(f"{package}.pc states another version")
            sys.exit(1)
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", package, env=environment))
        program = folder / f"{package}-consumer"
        run("g++", "-std=c++20", root / "tests/consumer" / source, "-o", program, *flags)
        check_output(root, program)


def check_cmake(root, folder):
    if shutil.which("cmake") is None:
        print("no cmake")
        sys.exit(77)
    prefix = install(root, folder, ["-Dgpu=none", *NO_PROGRAMS])
    build = folder / "build"
    major, minor, _ = map(int, version(root).split("."))
    configure = ["cmake", "-G", "Ninja", "-S", root / "tests/consumer/cmake", "-B", build,
                 f"-DCMAKE_PREFIX_PATH={prefix}"]
    run(*configure, f"-DROTOSCALE_WANTED={major}.{minor}")
    run("cmake", "--build", build)
    for name in ("consumer", "consumer_io"):
        check_output(root, build / name)
    run("cmake", "-G", "Ninja", "-S", root / "tests/consumer/cmake", "-B", folder / "tree", f"-DROTOSCALE_TREE={root}")
    run("cmake", "--build", folder / "tree")
    for name in ("consumer", "consumer_io"):
        check_output(root, folder / "tree" / name)
    # An incompatible version must be refused.
    refused = subprocess.run([str(part) for part in [*configure, f"-DROTOSCALE_WANTED={major}.{minor + 1}"]],
                             capture_output=True, text=True)
    if refused.returncode == 0 or "version" not in refused.stderr:
        print(f"find_package(rotoscale {major}.{minor + 1}) was accepted")
        sys.exit(1)


NO_DEVICES = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}


def check_gpu_program(root, program, mode):
    """The program works, or reports that there is no device, which it must also do when devices are hidden."""
    for environment in (os.environ, os.environ | NO_DEVICES):
        result = subprocess.run([str(program)], capture_output=True, text=True, env=environment)
        output = result.stdout.strip()
        works = result.returncode == 0 and output == f"rotoscale {version(root)}"
        refuses = result.returncode == 77 and output != "" and mode != "host"
        if not (refuses or (works and (mode == "host" or environment is os.environ))):
            print(f"{program}: exit status {result.returncode}, printed {output!r}")
            sys.exit(1)


def check_gpu(root, folder, mode, archive):
    prefix = install(root, folder, gpu=mode, archive=Path(archive).resolve())
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{prefix}/share/pkgconfig:{prefix}/lib/pkgconfig"}
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "rotoscale-gpu", env=environment))
    program = folder / "gpu-consumer"
    run("g++", "-std=c++20", root / "tests/consumer/gpu.cpp", "-o", program, *flags)
    check_gpu_program(root, program, mode)
    if shutil.which("cmake") is not None:
        run("cmake", "-G", "Ninja", "-S", root / "tests/consumer/cmake", "-B", folder / "build",
            f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", folder / "build", "--target", "consumer_gpu")
        check_gpu_program(root, folder / "build/consumer_gpu", mode)


CHECKS = {"meson": check_meson, "pkgconfig": check_pkgconfig, "cmake": check_cmake, "gpu": check_gpu}


if __name__ == "__main__":
    if len(sys.argv) != (5 if sys.argv[1:2] == ["gpu"] else 3) or sys.argv[1] not in CHECKS:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        CHECKS[sys.argv[1]](Path(sys.argv[2]).resolve(), Path(scratch), *sys.argv[3:])
