#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks bench/record.py, which writes the pages of docs/results: in a copy of the script beside a page of its own.

usage: record.py ROOT
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = "# Figures\n\nBefore.\n\n<!-- run a -->\nold a\n<!-- end -->\n\n<!-- run b -->\nold b\n<!-- end -->\nAfter.\n"


def main(root):
    failures = []

    def expect(condition, what):
        if not condition:
            failures.append(what)

    with tempfile.TemporaryDirectory() as folder:
        script, page = Path(folder, "bench/record.py"), Path(folder, "docs/results/page.md")
        script.parent.mkdir()
        page.parent.mkdir(parents=True)
        shutil.copy(root / "bench/record.py", script)

        def record(*arguments):
            return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True)

        page.write_text(PAGE)
        run = record("page", "a", "--", "sh", "-c", "echo figure 1; echo progress >&2")
        text = page.read_text()
        expect(run.returncode == 0 and run.stdout == "figure 1\n", "prints what the command prints")
        head, tail = PAGE.split("old a\n")
        expect(text.startswith(head) and text.endswith(tail), "leaves the rest of the page")
        new = text[len(head):len(text) - len(tail)]
        expect(new.endswith("\n\n```text\nfigure 1\n```\n"), "stores standard output only")
        expect("commit unknown" in new and "`sh -c 'echo figure 1; echo progress >&2'`" in new and "load" in new,
               "names commit, command and machine")
        record("page", "a", "echo", "figure 2")
        expect("figure 2" in page.read_text() and "figure 1" not in page.read_text(), "replaces its section")
        record("page", "c", "echo", "figure 3")
        expect(page.read_text().endswith("After.\n\n## c\n\n<!-- run c -->\n" + page.read_text().split("<!-- run c -->\n")[1]) and
               "figure 3\n```\n<!-- end -->\n" in page.read_text(), "adds a section")
        record("new", "a", "echo", "figure 4")
        expect(Path(page.parent, "new.md").read_text().startswith("# Figures\n\n## a\n"), "adds a page")

        before = page.read_text()
        run = record("page", "a", "sh", "-c", "echo half; exit 77")
        expect(run.returncode == 77 and page.read_text() == before, "a failed command changes nothing")
        expect(record("page", "a", "no-such-program").returncode == 2 and page.read_text() == before, "a missing command changes nothing")
        page.write_text(PAGE.replace("<!-- end -->\nAfter", "After"))
        before = page.read_text()
        run = record("page", "b", "echo", "figure 5")
        expect(run.returncode == 2 and "page.md" in run.stderr and page.read_text() == before, "an open section is refused")
        expect(record("../page", "a", "echo").returncode != 0 and record("page", "a").returncode != 0, "bad usage is refused")
        expect(sorted(p.name for p in page.parent.iterdir()) == ["new.md", "page.md"], "leaves no temporary file")

    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
