#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the device's test programs under CUDA's compute-sanitizer and prints what each tool found, as a table. Calls of CUDA that fail, which
tests provoke, and hazards within the vendor's library do not count.

usage: sanitize.py FOLDER [--tools memcheck,racecheck,initcheck,synccheck] [--seconds N] [--jobs N] [NAME...]
  FOLDER   where the programs are (BUILD/tests): all files named *_device_test, or those whose name holds a NAME
  seconds  a program's limit under a tool (default 1800); one that takes longer is no failure, and the table says so
  jobs     programs at a time (default: half of the cores)
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

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Hazards within the vendor's library are not this project's.
OTHERS = ("nvjet", "cublas", "cutlass", "splitKreduce", "gemv")


def count_findings(text):
    """Errors and hazards that are not in a kernel of the vendor's library, and the first of them."""
    reports = re.split(r"^========= (?=Invalid|Error|Race|Warning|Uninitialized|Barrier|Program hit|Potential)", text, flags=re.M)[1:]
    own = [r for r in reports if not any(name in r for name in OTHERS) and not r.startswith("Program hit")]
    return len(own), own[0].strip().splitlines()[0] if own else ""


def checked(program, tool, seconds):
    begin = time.monotonic()
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "200", str(program)]
    # A session of its own: what the tool started ends with it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as run:
        try:
            text, _ = run.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            return "not in time", "", ""
    if "skipped:" in text:
        return "skipped", "", ""
    assertions = re.search(r"assertions:\s*(\d+)\s*\|\s*\d+ passed\s*\|\s*(\d+) failed", text)
    if assertions is None:
        return "no result", text.strip()[-300:], ""
    found, first = count_findings(text)
    said = f"{found} found" if found else f"{assertions[2]} failed" if int(assertions[2]) else "nothing"
    return f"{said}, {time.monotonic() - begin:.0f} s", first, assertions[1]


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
    programs = sorted(p for p in given.folder.glob("*_device_test") if not given.names or any(n in p.name for n in given.names))
    tools = given.tools.split(",")
    if not programs or not set(tools) <= set(TOOLS):
        parser.error("no program of this name, or no such tool")
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        runs = {(p, t): pool.submit(checked, p, t, given.seconds) for t in tools for p in programs}
    rows = {key: run.result() for key, run in runs.items()}
    if all(said == "skipped" for said, _, _ in rows.values()):
        print("skipped: no device")
        return 77
    print("| program | assertions | " + " | ".join(tools) + " |\n" + "|---" * (len(tools) + 2) + "|")
    for p in programs:
        assertions = next((a for t in tools for a in [rows[p, t][2]] if a), "")
        print(f"| {p.name.removesuffix('_device_test')} | {assertions} | " + " | ".join(rows[p, t][0] for t in tools) + " |")
    firsts = [f"{p.name}, {t}: {first}" for (p, t), (_, first, _) in rows.items() if first]
    print("\n".join(firsts))
    clean = all(said.startswith(("nothing", "not in time")) for said, _, _ in rows.values())
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
