# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Plain mutants of a header for `mutants.py --generate`, on each line that its test reaches: exchanged operators,
integers off by one, removed statements."""
import json
import re
import subprocess
from typing import NamedTuple

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


def covered_lines(root, source, test, sources, main_object, folder, flags):
    """Line numbers of `source` that the test runs, by gcov."""
    program = folder / "covered"
    subprocess.run(["g++", "-std=c++20", "-O0", "--coverage", *flags, "-w", f"-I{root}/include", f"-I{root}/tests",
                    f"-I{root}", "-pthread", str(root / test), *(str(root / s) for s in sources), str(main_object),
                    "-o", str(program)], check=True, cwd=folder)
    subprocess.run([str(program), "--test-suite-exclude=slow"], check=True, cwd=folder, capture_output=True)
    lines = set()
    for notes in folder.glob("*.gcno"):
        shown = subprocess.run(["gcov", "--json-format", "--stdout", str(notes)], check=True, cwd=folder,
                               capture_output=True,
                               text=True)
        for report in shown.stdout.splitlines():
            for file in json.loads(report)["files"]:
                if file["file"].endswith(source):
                    lines |= {line["line_number"] for line in file["lines"] if line["count"] > 0}
    return lines
