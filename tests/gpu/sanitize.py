#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs each test case of the device test programs under CUDA's compute-sanitizer and prints a table of findings.

CUDA calls that tests make fail on purpose, and hazards in the vendor's library, do not count.

usage: sanitize.py FOLDER [--tools memcheck,racecheck,initcheck,synccheck] [--seconds N] [--jobs N] [NAME...]
  FOLDER   folder of the programs (BUILD/tests), which are named *_device_test
  NAME     only test cases of sources NAME_test.cpp (default: all)
  seconds  limit per test case and tool (default 1800); a timeout is shown in the table and is not a failure
  jobs     concurrent test cases (default: half of the cores)
  Exit status: 0 nothing found, 1 something found or a test failed, 77 no compute-sanitizer or no device.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Kernels of the vendor's library, whose hazards do not count.
OTHERS = ("nvjet", "cublas", "cutlass", "splitKreduce", "gemv")


def count_findings(text):
    """Returns the number of findings outside the vendor's library, and the first one."""
    reports = re.split(r"^========= (?=Invalid|Error|Race|Warning|Uninitialized|Barrier|Program hit|Potential)", text,
                       flags=re.M)[1:]
    own = [r for r in reports if not any(name in r for name in OTHERS) and not r.startswith("Program hit")]
    return len(own), own[0].strip().splitlines()[0] if own else ""


class Result(NamedTuple):
    """Result of a test case, or of all test cases of a program, under a tool."""
    said: str  # "nothing", or the failure
    first: str = ""  # the first finding
    assertions: int = 0
    seconds: float = 0.0


def test_cases(program, sources):
    """Returns the names of a program's test cases. Without a device there may be none."""
    only = ["--source-file=" + ",".join(f"*/{name}_test.cpp" for name in sources)] if sources else []
    listed = subprocess.run([str(program), "-ltc", *only], capture_output=True, text=True, errors="replace",
                            check=False).stdout
    return [line for line in listed.splitlines() if line and not line.startswith(("[doctest]", "==="))]


def checked(program, case, tool, seconds):
    begin = time.monotonic()
    escaped = case.replace(",", "\\,")
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "200", str(program), f"--test-case={escaped}"]
    # A new session, so that a timeout also ends the tool's children.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as run:
        try:
            text, _ = run.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            return Result("not in time", "", 0, seconds)
    if "skipped:" in text:
        return Result("skipped")
    cases = re.search(r"test cases:\s*(\d+)", text)
    assertions = re.search(r"assertions:\s*(\d+)\s*\|\s*\d+ passed\s*\|\s*(\d+) failed", text)
    if assertions is None or cases is None or cases[1] != "1":
        return Result("no result", text.strip()[-300:])
    found, first = count_findings(text)
    said = f"{found} found" if found else f"{assertions[2]} failed" if int(assertions[2]) else "nothing"
    return Result(said, first, int(assertions[1]), time.monotonic() - begin)


def together(results):
    """Combines the results of a program's test cases under a tool."""
    others = sorted({r.said for r in results if r.said != "nothing"})
    said = ", ".join(f"{sum(r.said == o for r in results)} x {o}" if len(results) > 1 else o
                     for o in others) or "nothing"
    seconds = sum(r.seconds for r in results)
    return Result("skipped" if others == ["skipped"] else f"{said}, {seconds:.0f} s",
                  next((r.first for r in results if r.first), ""), sum(r.assertions for r in results), seconds)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    given = parser.parse_intermixed_args()
    if shutil.which("compute-sanitizer") is None:
        print("skipped: no compute-sanitizer")
        return 77
    programs = sorted(given.folder.resolve().glob("*_device_test"))
    tools = given.tools.split(",")
    if not programs or not set(tools) <= set(TOOLS):
        parser.error("no program there, or no such tool")
    cases = {p: test_cases(p, given.names) or ["*"] for p in programs}
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        runs = {(p, t): [pool.submit(checked, p, case, t, given.seconds) for case in cases[p]] for t in tools
                for p in programs}
    rows = {key: together([run.result() for run in of]) for key, of in runs.items()}
    if all(row.said == "skipped" for row in rows.values()):
        print("skipped: no device")
        return 77
    print("| program | assertions | " + " | ".join(tools) + " |\n" + "|---" * (len(tools) + 2) + "|")
    for p in programs:
        assertions = max(rows[p, t].assertions for t in tools)
        print(f"| {p.name.removesuffix('_device_test')} | {assertions} | " +
              " | ".join(rows[p, t].said for t in tools) + " |")
    print("\n".join(f"{p.name}, {t}: {row.first}" for (p, t), row in rows.items() if row.first))
    said = [run.result().said for of in runs.values() for run in of]
    clean = all(s in ("nothing", "not in time", "skipped") for s in said)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
