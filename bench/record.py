#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark, records its output in docs/results/PAGE.json and writes a section of docs/results/PAGE.md from it.

usage: record.py PAGE SECTION [--] COMMAND...
       record.py --write PAGE...
  PAGE.json maps each section to its runs (date, commit, machine, command) and to `text` (printed lines) or `table`
  (rows, the head first). The page has a section between the lines `<!-- run SECTION -->` and `<!-- end -->`. A missing
  page or section is added. Only standard output is recorded; progress goes to standard error.
  --write writes all sections of the pages from their JSON.
  The exit status is COMMAND's, or 2 for bad usage. A command that fails changes nothing.
"""
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"


def first_line(*command):
    """First line that a program prints, or an empty string if it is missing or fails."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip().split("\n")[0]


def machine():
    """Processor, its load before the run, and the GPU if there is one."""
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    name = processor.group(1) if processor else os.uname().machine
    parts = [f"{os.cpu_count()} × {name}", f"load {os.getloadavg()[0]:.1f}"]
    if gpu := first_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"):
        parts.append("{}, driver {}".format(*gpu.split(", ")))
    return ", ".join(parts)


def section_text(section):
    """Markdown of one section: a line for each run, then the table or the text."""
    lines = []
    for run in section["runs"]:
        line = f"{run['date']}, commit {run['commit']}, `{run['command']}`. {run['machine']}."
        bullet = "- " if len(section["runs"]) > 1 else ""
        lines += textwrap.wrap(line, 100, initial_indent=bullet, subsequent_indent=" " * len(bullet),
                               break_long_words=False, break_on_hyphens=False)
    lines.append("")
    if "table" in section:
        head, *rows = section["table"]
        rule = "|" + "---|" * len(head)
        head, *rows = ("| " + " | ".join(row) + " |" for row in (head, *rows))
        lines += [head, rule, *rows]
    else:
        lines += ["```text", *section["text"], "```"]
    return "\n".join(lines) + "\n"


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


def with_sections(page, sections):
    for name, section in sections.items():
        page = with_section(page, name, section_text(section))
    return page


def dumps(sections):
    """JSON with a run, a row or a line of text in each line."""
    def lines(indent, brackets, parts):
        return brackets[0] + "\n" + ",\n".join(indent + part for part in parts) + "\n" + indent[1:] + brackets[1]

    def member(name, values):
        return json.dumps(name) + ": " + lines("   ", "[]", [json.dumps(v, ensure_ascii=False) for v in values])

    return lines(" ", "{}", [json.dumps(name) + ": " + lines("  ", "{}", [member(*item) for item in section.items()])
                             for name, section in sections.items()]) + "\n"


def read(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""


def store(path, text):
    """Replaces a file at once, so that a reader sees the old or the new one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def write(name, new=None):
    """Records the sections of `new` and writes them into PAGE.md; without `new` writes all of PAGE.json."""
    page, record = RESULTS / f"{name}.md", RESULTS / f"{name}.json"
    sections = json.loads(read(record) or "{}")
    try:
        text = with_sections(read(page), new or sections)
    except ValueError as error:
        print(f"record.py: {page}: {error}", file=sys.stderr)
        return 2
    if new:
        store(record, dumps(sections | new))
    store(page, text)
    return 0


def main(arguments):
    if arguments[:1] == ["--write"]:
        return max(map(write, arguments[1:]), default=2)
    names, command = arguments[:2], arguments[2:]
    if command[:1] == ["--"]:
        command = command[1:]
    if len(names) < 2 or not command or not re.fullmatch(r"\w[\w-]*", names[0]):
        sys.exit(__doc__)
    run = {"date": datetime.date.today().isoformat(),
           "commit": first_line("git", "describe", "--always", "--dirty", "--exclude=*") or "unknown",
           "machine": machine(), "command": shlex.join(command)}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        print(f"record.py: {command[0]}: {error.strerror}", file=sys.stderr)
        return 2
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        print(f"record.py: {command[0]} ended with {done.returncode}: {names[0]} stays as it was", file=sys.stderr)
        return done.returncode
    return write(names[0], {names[1]: {"runs": [run], "text": done.stdout.rstrip().split("\n")}})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
