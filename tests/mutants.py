#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Breaks a header in one place at a time, on each line that its test reaches. The test must fail each time.

usage: mutants.py HEADER [SOURCE...]   HEADER: include/rotoscale/scale.hpp, tested by tests/rotoscale/scale_test.cpp
                                       SOURCE: compiled with the test, as gpu/nn/layers.cpp

Changes: exchanged operators, integers plus 1, removed statements. Prints the changes that no test notices.
"""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("include", "gpu")  # copied for each mutant

EXCHANGED = {
    "<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"], "==": ["!="], "!=": ["=="], "&&": ["||"], "||": ["&&"],
    "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["/"], "<<": [">>"], ">>": ["<<"], "&": ["|"], "|": ["&"],
    "^": ["|"], "+=": ["-="], "-=": ["+="], "*=": ["/="], "/=": ["*="], "|=": ["&="], "&=": ["|="], "<<=": [">>="],
    ">>=": ["<<="], "++": ["--"], "--": ["++"],
}
# clang-format puts blanks around binary operators, but not in template arguments.
OPERATOR = re.compile(r"(?<=\s)(<<=|>>=|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|/=|\|=|&=|<<|>>|[-<>+*/%&|^])(?=\s)|\+\+|--")
INTEGER = re.compile(r"(?<![\w.])(0x[0-9A-Fa-f]+|\d+)([uUlL]*)(?![\w.'])")
# Starts of statements that cannot be removed.
KEPT = re.compile(r"\s*(?:(?:const|constexpr|auto|return|using|static|break|continue|throw|case|default|"
                  r"template|struct|class|enum|"
                  r"static_assert|ROTOSCALE_ASSERT|else|if|for|while|switch|typedef|friend|namespace|public|"
                  r"private)\b|[\w:<>,]+[&*]? "
                  r"[&*]?\w+(?:\[\w*\])?(?: = |\{|;|\())")


class Change(NamedTuple):
    line: int
    what: str
    begin: int
    end: int
    replacement: str


def blanked(text):
    """The text with comments, strings, preprocessor lines and assertions blanked. Positions are unchanged."""
    def blanks(match):
        return re.sub(r"[^\n]", " ", match.group())
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', blanks, text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", blanks, text, flags=re.M)
    return re.sub(r"\b(?:static_assert|ROTOSCALE_ASSERT)\(.*?\);", blanks, text, flags=re.S)


def changes(text, lines):
    """Every Change on the given line numbers."""
    code = blanked(text)
    starts = [0] + [m.end() for m in re.finditer("\n", code)]

    def on(position):
        return code.count("\n", 0, position) + 1

    for number in sorted(lines):
        begin = starts[number - 1]
        end = starts[number] if number < len(starts) else len(code)
        for match in OPERATOR.finditer(code, begin, end):
            for other in EXCHANGED[match.group()]:
                yield Change(number, f"{match.group()} as {other}", match.start(), match.end(), other)
        for match in INTEGER.finditer(code, begin, end):
            yield Change(number, f"{match.group()} plus 1", match.start(), match.end(),
                         f"{int(match.group(1), 0) + 1}{match.group(2)}")
    for match in re.finditer(r"(?<=[;{})])\s*([^;{}]*;)", code):
        statement = match.group(1)
        if on(match.start(1)) in lines and not KEPT.match(statement) and re.search(r"[=(]|\+\+|--", statement):
            yield Change(on(match.start(1)), "left out", match.start(1), match.end(1), ";")


def command(tree, test, sources, folder, *flags):
    """Compiles the test against the headers of `tree` to `folder`/program."""
    return ["g++", "-std=c++20", *flags, "-march=native", "-w", f"-I{tree}/include", f"-I{tree}", f"-I{ROOT}/tests",
            "-pthread", str(ROOT / test), *(str(tree / source) for source in sources), "-o", str(folder / "program")]


def run_test(folder):
    return subprocess.run([str(folder / "program"), "--test-suite-exclude=slow", "--abort-after=1"], cwd=folder,
                          capture_output=True, env=os.environ | {"ROTOSCALE_GOLDEN": str(ROOT / "tests/golden")},
                          timeout=300).returncode


def covered_lines(header, test, sources, folder):
    """Line numbers of `header` that the test runs, by gcov."""
    subprocess.run(command(ROOT, test, sources, folder, "-O0", "--coverage"), check=True, cwd=folder)
    if run_test(folder) != 0:
        sys.exit(f"{test} fails")
    lines = set()
    for notes in folder.glob("*.gcno"):
        shown = subprocess.run(["gcov", "--json-format", "--stdout", str(notes)], check=True, cwd=folder,
                               capture_output=True, text=True)
        for report in shown.stdout.splitlines():
            for file in json.loads(report)["files"]:
                if file["file"].endswith(header):
                    lines |= {line["line_number"] for line in file["lines"] if line["count"] > 0}
    return lines


def outcome(header, text, test, sources, folder):
    """Result of `text` as the header: `killed`, `survived`, or `does not compile`."""
    for part in FOLDERS:
        shutil.copytree(ROOT / part, folder / part)
    (folder / header).write_text(text, encoding="utf-8")
    try:
        compiling = subprocess.run(command(folder, test, sources, folder, "-O1"), capture_output=True, text=True)
        if compiling.returncode != 0:
            return "killed" if "static assertion failed" in compiling.stderr else "does not compile"
        return "survived" if run_test(folder) == 0 else "killed"
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        shutil.rmtree(folder)


def main(header, *sources):
    text = (ROOT / header).read_text(encoding="utf-8")
    test = "tests/" + header.removeprefix("include/").removesuffix(".hpp") + "_test.cpp"
    counts = {"killed": 0, "survived": 0, "does not compile": 0}
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        main_object = Path(name, "main.o")
        subprocess.run(["g++", "-std=c++20", "-c", str(ROOT / "tests/main.cpp"), "-o", str(main_object)], check=True)
        sources = (*sources, main_object)
        found = list(changes(text, covered_lines(header, test, sources, Path(name))))
        results = pool.map(lambda i: outcome(header, text[:found[i].begin] + found[i].replacement +
                                             text[found[i].end:], test, sources, Path(name, f"mutant{i}")),
                           range(len(found)))
        for change, result in zip(found, results):
            counts[result] += 1
            if result == "survived":
                print(f"{header}:{change.line}: {change.what}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
