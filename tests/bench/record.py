#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/results equal the output of bench/record.py for their JSON.

usage: record.py ROOT
"""
import importlib.util
import json
import sys
from pathlib import Path


def main(root):
    spec = importlib.util.spec_from_file_location("record", root / "bench/record.py")
    record = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(record)
    failures = []
    for path in sorted((root / "docs/results").glob("*.json")):
        page, sections = path.with_suffix(".md").read_text(), json.loads(path.read_text())
        if record.with_sections(page, sections) != page:
            failures.append(f"{path.name} and its page differ (record.py --write)")
        failures += [f"{path.name}, {name}: rows of different lengths" for name, section in sections.items()
                     if len({len(row) for row in section.get("table", [])}) > 1]
    print("\n".join([*failures, f"{len(failures)} failures"]))
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
