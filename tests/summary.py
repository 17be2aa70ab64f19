#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Adds up Meson's test logs. Doctest programs count their test cases; every other test counts as one.

usage: summary.py testlog.json...

The last line is "N passed, N failed", optionally with ", N skipped". Exit status 1 if a test failed or none passed.
"""
import json
import re
import sys
from pathlib import Path

DOCTEST = re.compile(r"\[doctest\] test cases:\s*(\d+) \|\s*(\d+) passed \|\s*(\d+) failed")


def count(test):
    """(passed, failed, skipped) of one log entry. Cases excluded by a doctest filter are not counted."""
    result = test["result"]
    if result == "SKIP":
        return 0, 0, 1
    summary = DOCTEST.findall(test.get("stdout", ""))
    if not summary:
        return (1, 0, 0) if result == "OK" else (0, 1, 0)
    total, passed, failed = map(int, summary[-1])
    if total == 0:
        print(f"{test['name']}: no test case matches its filter")
        return 0, 1, 0
    # A program can fail although its cases pass: a leak found at exit, for example.
    return passed, max(failed, 0 if result == "OK" else 1), 0


def main(logs):
    passed = failed = skipped = 0
    for log in map(Path, logs):
        if not log.exists():
            print(f"{log}: not written: the build failed or no test was run")
            failed += 1
            continue
        for line in log.read_text(encoding="utf-8").splitlines():
            test = json.loads(line)
            test["name"] = test["name"].split(" / ", 1)[-1]
            p, f, s = count(test)
            passed, failed, skipped = passed + p, failed + f, skipped + s
            if f:
                print(f"FAILED {test['name']} ({log.parent.parent}, {test['result'].lower()})")
            if s:
                reason = (test.get("stdout", "").strip().splitlines() or ["no reason given"])[-1]
                print(f"skipped {test['name']}: {reason}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
