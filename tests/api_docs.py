#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Doxygen must build the API pages without a warning: every public entity has a docstring.

usage: api_docs.py ROOT   exit status 77 without doxygen
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main(root):
    doxygen = shutil.which("doxygen")
    if doxygen is None:
        print("skipped: no doxygen (Debian: apt install doxygen)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        values = {"version": "test", "output": folder, "root": str(root), "html": "NO"}
        text = (root / "docs/Doxyfile.in").read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        # Doxygen checks documentation only if it has pages to write.
        config = Path(folder, "Doxyfile")
        config.write_text(text + "GENERATE_XML = YES\n", encoding="utf-8")
        run = subprocess.run([doxygen, str(config)], capture_output=True, text=True, cwd=folder)
        pages = len(list(Path(folder, "xml").glob("*.xml"))) if run.returncode == 0 else 0
    warnings = sorted(set(run.stderr.replace(f"{root}/", "").splitlines()))
    for line in warnings:
        print(line)
    print(f"{pages} pages, {len(warnings)} lines of warnings")
    return 1 if warnings or run.returncode != 0 or pages < 100 else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
