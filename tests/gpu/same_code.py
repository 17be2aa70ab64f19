#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Compares two listings of AMD's kernels, same_code.py ONE.s OTHER.s: headers of an SDK, whatever they define, and leave to
fuse products with additions must not change an instruction, register count or budget. Only the unit's own name may
differ."""
import sys
from pathlib import Path


def lines(name):
    return [line for line in Path(name).read_text().splitlines() if "__hip_cuid_" not in line]


first, second = (lines(name) for name in sys.argv[1:3])
if len(first) < 1000:
    sys.exit(f"{sys.argv[1]}: {len(first)} lines are no listing of kernels")
for number, (a, b) in enumerate(zip(first, second), 1):
    if a != b:
        sys.exit(f"line {number}: {a.strip()} | {b.strip()}")
if len(first) != len(second):
    sys.exit(f"{len(first)} lines and {len(second)}")
print(f"{len(first)} lines are equal")
