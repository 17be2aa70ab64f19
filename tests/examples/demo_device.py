# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels that examples/demo.sh builds: CUDA's if requested, or if there are nvcc and a supported device. A copy
of the script runs with stand-ins for these programs, which record their calls.

usage: demo_device.py ROOT
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(sys.argv[1])
failed = 0
toolkit = Path("/usr/local/cuda/bin/nvcc").exists()


def builds(want, name, *arguments, devices=None, nvcc=True, visible=None):
    """`devices`: compute capabilities that nvidia-smi prints; None without nvidia-smi."""
    global failed
    with tempfile.TemporaryDirectory() as folder:
        tree, programs = Path(folder) / "tree", Path(folder) / "programs"
        for script in ("examples/demo.sh", "tests/setup.sh"):
            (tree / script).parent.mkdir(parents=True)
            shutil.copy(root / script, tree / script)
        programs.mkdir()
        asked = Path(folder) / "asked"
        made = {"meson": f'printf "%s\\n" "$@" >"{asked}"', "ninja": "exit 1", "bible": "exit 1"}
        if nvcc:
            made["nvcc"] = "exit 1"
        if devices is not None:
            made["nvidia-smi"] = f'[ "$*" = "--query-gpu=compute_cap --format=csv,noheader" ] && printf "{devices}"'
        for program, body in made.items():
            (programs / program).write_text(f"#!/bin/sh\n{body}\n")
            (programs / program).chmod(0o755)
        for program in ("sh", "bash", "dirname", "nproc", "realpath", "cat", "mkdir", "grep"):
            os.symlink(shutil.which(program), programs / program)
        environment = {"PATH": str(programs), "ROTOSCALE_SKIP_PACKAGES": "1"}
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        run = subprocess.run([shutil.which("bash"), tree / "examples/demo.sh", *arguments], capture_output=True,
                             text=True, env=environment, check=False)
        said = asked.read_text().splitlines() if asked.exists() else []
        found = [option for option in said if option.startswith("-Dgpu=")]
        if found != [f"-Dgpu={want}"] or run.stdout or run.stderr:
            failed += 1
            print(f"{name}: {said}, exit {run.returncode}, {run.stdout!r}, {run.stderr!r}")


builds("cuda", "an H100", devices="9.0\\n")
builds("cuda", "a second device", devices="8.9\\n9.0\\n", visible="1")
builds("none", "nvcc without a driver")
builds("none", "a driver without a device", devices="")
builds("none", "a device that the kernels do not run on", devices="8.9\\n10.0\\n")
builds("none", "a device that is hidden", devices="9.0\\n", visible="")
builds("none", "another way of hiding it", devices="9.0\\n", visible="-1")
if not toolkit:
    builds("none", "a device without a toolkit", devices="9.0\\n", nvcc=False)
builds("cuda", "what is asked for", "--gpu", "cuda")
builds("host", "what else is asked for", "--gpu", "host", devices="9.0\\n")

if failed:
    sys.exit(1)
print("examples/demo.sh builds CUDA's kernels for who has a device")
