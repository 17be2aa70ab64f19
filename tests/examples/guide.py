#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of README.md and docs/guide/*.md, compares their output, and checks all links.

usage: guide.py [--write] ROOT BUILD [PAGE...]
  The ```sh blocks of a page run in one shell, in a scratch folder with the tree's folders, and with BUILD's programs
  on the path. A ```text block is the output of the sh block above it. `...` stands for any lines, `…` for any text
  within a line. Decimal numbers may differ by 1 %, since losses depend on the C library.
  Comments before a block:
    <!-- file NAME -->      the block is written to NAME
    <!-- run by PATH -->    the named test or script runs the commands
    <!-- examples/NAME -->  outputs.py checks the block
  --write records the output of the commands.
"""
import concurrent.futures
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"(?:^<!-- (.+?) -->\n)?^```(\w+)\n(.*?)^```$", re.M | re.S)
DECIMAL = re.compile(r"[-+]?\d+\.\d+")
FOLDERS = ["docs", "examples", "include", "tests"]  # folders of the tree for commands


def same_line(recorded, printed):
    pattern = ".*".join(re.escape(DECIMAL.sub("#", part)) for part in recorded.rstrip().split("…"))
    if not re.fullmatch(pattern, DECIMAL.sub("#", printed.rstrip())):
        return False
    return all(math.isclose(float(a), float(b), rel_tol=0.01, abs_tol=1e-3)
               for a, b in zip(DECIMAL.findall(recorded), DECIMAL.findall(printed)))


def same(recorded, printed):
    if not recorded:
        return not printed
    if recorded[0] == "...":
        return any(same(recorded[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and same_line(recorded[0], printed[0]) and same(recorded[1:], printed[1:])


def run_page(page, text, root, build, folder):
    """Runs the blocks of a page in one shell. Returns the page with their output, and the faults."""
    faults, script = [], ""
    for name in FOLDERS:
        (folder / name).symlink_to(root / name)
    for marker, language, body in BLOCK.findall(text):
        kind, _, value = marker.partition(" ")
        if kind == "file":
            (folder / value).write_text(body, encoding="utf-8")
        elif marker.startswith("run by ") and not (root / marker[7:]).exists():
            faults.append(f"{page}: there is no {marker[7:]}")
        if language == "sh":
            script += ("" if marker else body) + "printf '\\036'\n"
    no_plots = folder / "gnuplot"  # takes seconds
    no_plots.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    no_plots.chmod(0o755)
    programs = [str(folder), *(str(build / "examples" / name) for name in ("llama", "validate", "quantize"))]
    environment = {**os.environ, "PATH": ":".join([*programs, os.environ["PATH"]]), "HOME": str(folder),
                   "LC_ALL": "C.UTF-8"}
    (folder / "page.sh").write_text(script, encoding="utf-8")
    done = subprocess.run(["bash", "-e", "page.sh"], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          encoding="utf-8", errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    *printed, rest = done.stdout.split("\036")
    if done.returncode != 0:
        faults.append(f"{page}: exit status {done.returncode} after\n{rest}")
    blocks = -1

    def compare(match):
        nonlocal blocks
        marker, language, body = match.groups()
        blocks += language == "sh"
        if language != "text" or marker or not 0 <= blocks < len(printed):
            return match[0]
        lines = [line for line in printed[blocks].splitlines() if "plots skipped" not in line]
        if same(body.splitlines(), lines):
            return match[0]
        faults.append(f"{page}: recorded:\n{body}printed:\n{printed[blocks]}")
        return match[0].replace("```text\n" + body, "```text\n" + printed[blocks])

    return BLOCK.sub(compare, text), faults


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def broken_links(root, page):
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)]*)?\)", page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        if path.startswith("http"):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor[1:] not in anchors(target)):
            yield f"{page.relative_to(root)}: no {path}{anchor}"


def main(root, build, chosen, write):
    sys.stdout.reconfigure(errors="replace")
    guide = [root / "README.md", *sorted((root / "docs/guide").glob("*.md"))]
    faults = [] if chosen else [fault for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md"),
                                                   *(root / "gpu").rglob("*.md")]
                                for fault in broken_links(root, page)]
    def check(page):
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            new, wrong = run_page(page.relative_to(root), text, root, build, Path(folder))
        if write and new != text:
            page.write_text(new, encoding="utf-8")
        return wrong

    with concurrent.futures.ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
        for wrong in pool.map(check, [page for page in guide if not chosen or page.stem in chosen]):
            faults += wrong
    for fault in faults:
        print(f"FAILED {fault}")
    print(f"{len(guide)} pages, {len(faults)} failures")
    return 1 if faults else 0


if __name__ == "__main__":
    words = [a for a in sys.argv[1:] if a != "--write"]
    if len(words) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(words[0]).resolve(), Path(words[1]).resolve(), words[2:], "--write" in sys.argv))
