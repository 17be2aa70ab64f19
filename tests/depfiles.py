#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Are the objects and listings of custom commands built again when one of their headers changes?

usage: depfiles.py NINJA BUILD HEADER OUTPUT...

Every custom command of BUILD that compiles must write a depfile. Every OUTPUT must have been built, and ninja must have
recorded HEADER as one of its dependencies.
"""
import re
import subprocess
import sys
from pathlib import Path

BUILD_LINE = re.compile(r"^build (\S+): (CUSTOM_COMMAND\S*) ")


def compiles_without_depfile(build):
    """Outputs of custom commands with -c or -S (except `sh -c`) that give ninja no depfile."""
    output = rule = None
    for line in (build / "build.ninja").read_text(encoding="utf-8").splitlines():
        if match := BUILD_LINE.match(line):
            output, rule = match.groups()
        elif output and line.startswith(" COMMAND = "):
            words = line.split()
            compiles = any(word in ("-c", "-S") and not before.endswith("sh") for before, word in zip(words, words[1:]))
            if compiles and not rule.endswith("_DEP"):
                yield output
            output = None


def main(ninja, build, header, outputs):
    wrong = [f"{output}: compiled by a custom command without a depfile" for output in compiles_without_depfile(build)]
    for output in outputs:
        name = Path(output).resolve().relative_to(build.resolve()).as_posix()
        noted = subprocess.run([ninja, "-C", build, "-t", "deps", name], capture_output=True, text=True,
                               check=True).stdout
        if not any(line.strip().endswith("/" + header) for line in noted.splitlines()):
            wrong.append(f"{name}: not built again when {header} changes")
    for line in wrong:
        print(line)
    print(f"{len(outputs)} outputs, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
