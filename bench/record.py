#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark and stores what it printed in a page of docs/results, with date, commit, machine and command.

usage: record.py PAGE SECTION [--] COMMAND...
  The text between the lines `<!-- run SECTION -->` and `<!-- end -->` of docs/results/PAGE.md is replaced; a page or section that
  is not there yet is added. Only standard output is stored, so that progress can go to standard error.
  Exit status: that of COMMAND, whose failure leaves the page as it is; 2 for bad usage.
"""
import datetime
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def first_line(*command):
    """What a program prints first, or nothing where it is missing or fails."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip().split("\n")[0]


def machine():
    """Processor, its load before the run, and the GPU where there is one."""
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    parts = [f"{os.cpu_count()} × {processor.group(1) if processor else os.uname().machine}", f"load {os.getloadavg()[0]:.1f}"]
    if gpu := first_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"):
        parts.append("{}, driver {}".format(*gpu.split(", ")))
    return ", ".join(parts)


def section_text(command, machine_text, output):
    commit = first_line("git", "describe", "--always", "--dirty", "--exclude=*") or "unknown"
    when = datetime.date.today().isoformat()
    return f"{when}, commit {commit}, `{shlex.join(command)}`. {machine_text}.\n\n```text\n{output.rstrip()}\n```\n"


def with_section(page, name, text):
    """The page with the section's text replaced or added."""
    begin, end = f"<!-- run {name} -->\n", "<!-- end -->\n"
    if begin in page:
        head, _, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not closed:
            raise ValueError(f"there is no '{end.strip()}' after '{begin.strip()}'")
        return head + begin + text + end + tail
    return (page or "# Figures\n") + f"\n## {name}\n\n" + begin + text + end


def main(arguments):
    names, command = arguments[:2], arguments[2:]
    if command[:1] == ["--"]:
        command = command[1:]
    if len(names) < 2 or not command or not re.fullmatch(r"\w[\w-]*", names[0]):
        sys.exit(__doc__)
    path = ROOT / "docs/results" / f"{names[0]}.md"
    before = machine()
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        print(f"record.py: {command[0]}: {error.strerror}", file=sys.stderr)
        return 2
    sys.stdout.write(run.stdout)
    if run.returncode != 0:
        print(f"record.py: {command[0]} ended with {run.returncode}: {path} stays as it was", file=sys.stderr)
        return run.returncode
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        page = with_section(page, names[1], section_text(command, before, run.stdout))
    except ValueError as error:
        print(f"record.py: {path}: {error}", file=sys.stderr)
        return 2
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(page)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
