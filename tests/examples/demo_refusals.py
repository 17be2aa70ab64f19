# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Errors that examples/demo.sh reports before it builds: one line that names the option or the program, exit status
2.

usage: demo_refusals.py ROOT
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(sys.argv[1])
failed = 0


def refuses(name, needle, *arguments, path=os.environ["PATH"]):
    global failed
    run = subprocess.run([shutil.which("bash"), root / "examples/demo.sh", *arguments], capture_output=True, text=True,
                         env={**os.environ, "PATH": path, "ROTOSCALE_SKIP_PACKAGES": "1", "LC_ALL": "C.UTF-8"},
                         check=False)
    lines = run.stderr.splitlines()
    if run.returncode != 2 or run.stdout or len(lines) != 1 or needle not in lines[0]:
        failed += 1
        print(f"{name}: exit {run.returncode}, {run.stdout!r}, {run.stderr!r}")


refuses("an unknown option", "'--slow'", "--slow")
refuses("a missing value", "--data", "--data")
refuses("threads without a number", "'many'", "--threads", "many")
refuses("kernels of nobody", "'metal'", "--gpu", "metal")
refuses("a file that is not there", "/nonexistent/text", "--data", "/nonexistent/text")
for option in ((), ("--threads",), ("--data",)):
    refuses(f"a newline of {option}", r"nonexistent\nline", *option, "nonexistent\nline")
with tempfile.TemporaryDirectory() as folder:
    for program in ("dirname", "nproc", "realpath"):
        os.symlink(shutil.which(program), Path(folder) / program)
    refuses("no program that has the default text", "bible", path=folder)

if failed:
    sys.exit(1)
print("examples/demo.sh refuses each in one line")
