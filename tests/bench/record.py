#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the scripts that turn measurements into tables.

- bench/ratios.py reads benchmark names with and without `/real_time`. - A copy of bench/record.py writes a page in a
temporary folder. - The pages of docs/results equal the output for their JSON.

usage: record.py ROOT
"""
import contextlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = "# Figures\n\nBefore.\n\n<!-- run a -->\nold a\n<!-- end -->\n\n<!-- run b -->\nold b\n<!-- end -->\nAfter.\n"


# Benchmark, its counter, median and spread. Google Benchmark appends `/real_time` to names of wall-clock runs.
CLOCK, CPU = True, False
RUNS = {
    "quantize": [("copy", CLOCK, "bytes_per_second", 200.0, 0.01),
                 ("from_fp32/mxfp4_rows", CLOCK, "bytes_per_second", 180.0, 0.02)],
    "gemm": [("eigen/down", CPU, "flops", 10.0, 0.0), ("mxfp4/down", CPU, "flops", 15.0, 0.0),
             ("eigen/units", CPU, "flops", 11.0, 0.0), ("fp32/units", CLOCK, "flops", 10.0, 0.0),
             ("fp32/units-two", CLOCK, "flops", 19.0, 0.0), ("hopper-fp8/units", CLOCK, "flops", 2.5, 0.0),
             ("hopper-fp8/units-two", CLOCK, "flops", 4.5, 0.0), ("reference/units", CLOCK, "flops", 0.01, 0.0)],
    "train": [("linears/eigen", CPU, "flops", 4.0, 0.0), ("linears/bf16", CPU, "flops", 3.0, 0.0),
              ("step/fp32", CPU, "tokens", 100.0, 0.0), ("step/bf16", CPU, "tokens", 80.0, 0.0),
              ("step512/bf16", CPU, "tokens", 9.0, 0.0)],
}
RATIOS = {
    ("from_fp32/mxfp4_rows", "copy"): ("0.90", "2%"), ("mxfp4/down", "eigen/down"): ("1.50", "0%"),
    ("eigen/units", "fp32/units"): ("1.10", "0%"), ("fp32/units-two", "fp32/units"): ("1.90", "0%"),
    ("hopper-fp8/units", "fp32/units"): ("0.25", "0%"), ("hopper-fp8/units-two", "hopper-fp8/units"): ("1.80", "0%"),
    ("reference/units", "fp32/units"): ("0.0010", "0%"), ("linears/bf16", "linears/eigen"): ("0.75", "0%"),
    ("step/bf16", "step/fp32"): ("0.80", "0%"), ("step/fp32", "step/bf16"): ("1.25", "0%"),
}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_pages(root, expect):
    record = load(root / "bench/record.py")
    for path in sorted((root / "docs/results").glob("*.json")):
        page, sections = path.with_suffix(".md").read_text(), json.loads(path.read_text())
        expect(record.with_sections(page, sections) == page, f"{path.name} and its page differ (record.py --write)")
        for name, section in sections.items():
            widths = {len(row) for row in section.get("table", [])}
            expect(len(widths) <= 1, f"{path.name}, {name}: rows of {widths} cells")


def check_ratios(root, expect):
    ratios = load(root / "bench/ratios.py")
    for suffix in ("", "/real_time"):
        with tempfile.TemporaryDirectory() as folder:
            for file, runs in RUNS.items():
                rows = []
                for name, clock, counter, median, spread in runs:
                    run_name = name + (suffix if clock else "")
                    rows += [{"run_name": run_name, counter: 7.0},
                             {"run_name": run_name, "aggregate_name": "median", counter: median},
                             {"run_name": run_name, "aggregate_name": "cv", counter: spread}]
                Path(folder, file + ".json").write_text(json.dumps({"benchmarks": rows}))
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                ratios.main(Path(folder))
            found = {}
            for line in printed.getvalue().splitlines():
                name, _, _, base, ratio, _, spread = line.split()
                found[name, base] = (ratio, spread)
            expect(found == RATIOS, f"ratios of runs named with suffix {suffix!r}: {found}")


def main(root):
    failures = []

    def expect(condition, what):
        if not condition:
            failures.append(what)

    check_ratios(root, expect)
    check_pages(root, expect)
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
        head, tail = PAGE.split("old a\n")
        new = text[len(head):len(text) - len(tail)]
        expect(run.returncode == 0 and run.stdout == "figure 1\n" and text.startswith(head) and text.endswith(tail) and
               new.endswith("\n\n```text\nfigure 1\n```\n"), "replaces its section by standard output")
        expect("commit unknown" in new and "`sh -c 'echo figure 1; echo progress >&2'`" in new and "load" in new,
               "names commit, command and machine")
        record("new", "a", "echo", "figure 2")
        expect(Path(page.parent, "new.md").read_text().startswith("# Figures\n\n## a\n"), "adds a page")
        before = page.read_text()
        run = record("page", "a", "sh", "-c", "echo half; exit 77")
        expect(run.returncode == 77 and page.read_text() == before, "a failed command changes nothing")
        expect(record("../page", "a", "echo").returncode != 0 and record("page", "a").returncode != 0,
               "bad usage is refused")
        expect(sorted(p.name for p in page.parent.iterdir()) == ["new.json", "new.md", "page.json", "page.md"],
               "leaves no temporary file")

    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
