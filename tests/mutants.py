#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Breaks the code on purpose, one place at a time. A test must fail each time.

usage: mutants.py ROOT [TEXT]              TEXT: only mutants whose name, list or source contains it
       mutants.py --check ROOT             checks that each text is found exactly once; compiles nothing
       mutants.py --generate HEADER ROOT   tries plain mutants of a header (include/rotoscale/scale.hpp), on lines that
                                           its test reaches

tests/.../X.mutants lists the mutants that X_test.cpp must detect (docs/hacking.md has the format). Lists cover
numerics and kernels, and only changes that --generate cannot make.

A failing test program or a static_assert kills a mutant. Any other compile error is an error of the list. So is a
text that is not found exactly once. Mutants of the byte instructions need AVX512_VBMI2.
"""
import argparse
import concurrent.futures
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import mutants_generate

# Folders of mutants, which are copied for compilation.
FOLDERS = ("include", "gpu")

TOKEN = re.compile(r"""
    (?P<blank>\s+|\\\n|//[^\n]*|/\*.*?\*/)
  | R"(?P<raw>\w*)\(.*?\)(?P=raw)"
  | "(?:\\.|[^"\\\n])*"
  | '(?:\\.|[^'\\\n])*'
  | \.?\d(?:[eEpP][+-]|'\w|[\w.])*
  | \w+
  | .""", re.S | re.X)


class Mutant(NamedTuple):
    name: str
    source: str  # relative to the root, as are `list` and `sources`
    text: str
    replacement: str
    flags: tuple  # instead of -march=native
    sources: tuple  # compiled with the test
    list: str
    line: int

    @property
    def test(self):
        return self.list.removesuffix(".mutants") + "_test.cpp"


class ListError(Exception):
    """A list that cannot be read: `file:line: message`."""


@functools.lru_cache(maxsize=None)


def tokens(text):
    """[(token, begin, end)] without white space and comments, so that lists may break lines and comment freely."""
    return [(m.group(), m.start(), m.end()) for m in TOKEN.finditer(text) if m.group("blank") is None]


@functools.lru_cache(maxsize=None)


def joined(text):
    """The tokens as one string, for searching."""
    return "\0" + "\0".join(token for token, _, _ in tokens(text)) + "\0"


def read_list(root, path):
    """The mutants of one list."""
    mutants, sources, source, flags = [], (), None, ()
    entry = None

    def close():
        if entry is None:
            return
        name, line, old, new = entry
        if not old:
            raise ListError(f"{path}:{line}: '{name}' has no line that begins with -")
        if source is None:
            raise ListError(f"{path}:{line}: no [source] above '{name}'")
        mutants.append(Mutant(name, source, "\n".join(old), "\n".join(new), flags, sources, path.as_posix(), line))

    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if line == "" or line.startswith("#"):
            continue
        if line[0] in "-+" and (line[1:2] in ("", " ")):
            if entry is None or (line[0] == "-" and entry[3]):
                raise ListError(f"{path}:{number}: a name is missing above this line")
            entry[2 if line[0] == "-" else 3].append(line[2:])
            continue
        close()
        entry = None
        if line.startswith("sources:"):
            sources = tuple(line.split()[1:])
        elif match := re.fullmatch(r"\[(\S+)\]((?: +-\S+)*)", line):
            source, flags = match.group(1), tuple(match.group(2).split())
        else:
            entry = (line, number, [], [])
    close()
    return mutants


def read_lists(root):
    paths = sorted((root / "tests").rglob("*.mutants"))
    return [mutant for path in paths for mutant in read_list(root, path.relative_to(root))]


def places(text, mutant_text):
    """[(begin, end)] of each occurrence of a mutant's text, compared by whole tokens."""
    here, wanted = tokens(text), tokens(mutant_text)
    whole, part = joined(text), joined(mutant_text)
    found, at = [], whole.find(part)
    while at >= 0:
        first = whole.count("\0", 0, at)
        found.append((here[first][1], here[first + len(wanted) - 1][2]))
        at = whole.find(part, at + 1)
    return found


def list_fault(root, mutant):
    """The fault of an entry, or None."""
    source = root / mutant.source
    for path in (mutant.source, mutant.test, *mutant.sources):
        if not (root / path).is_file():
            return f"no such file: {path}"
    if not mutant.source.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
        return f"{mutant.source} is in none of {', '.join(FOLDERS)}"
    text = source.read_text(encoding="utf-8")
    count = len(places(text, mutant.text))
    if count != 1:
        return f"its text occurs {count} times in {mutant.source}"
    if joined(mutant.text) == joined(mutant.replacement):
        return "its replacement is its text"
    return None


def check(root, mutants):
    """Prints the faults of the lists, one line each. Returns their number."""
    faults = [(m, fault) for m in mutants if (fault := list_fault(root, m)) is not None]
    names = [m.name for m in mutants]
    faults += [(m, "the name is there twice") for m in mutants if names.count(m.name) > 1]
    for mutant, fault in faults:
        print(f"{mutant.list}:{mutant.line}: '{mutant.name}': {fault}")
    return len(faults)


def configured(root, source, folder):
    """The file to compile for a source. For X.cpp.in: X.cpp as Meson makes it, with the table NAME.csv in place of
    @NAME@."""
    path = root / source
    if path.suffix != ".in":
        return path
    table = lambda name: (path.parent / f"{name.group(1)}.csv").read_text(encoding="utf-8")
    written = folder / path.stem
    written.write_text(re.sub(r"@(\w+)@", table, path.read_text(encoding="utf-8")), encoding="utf-8")
    return written


def outcome(root, folder, mutant, name, text):
    """Result of `text` as the mutant's source: `killed`, `survived`, or the compile error."""
    place = folder / name
    for part in FOLDERS:
        shutil.copytree(root / part, place / part)
    (place / mutant.source).write_text(text, encoding="utf-8")
    program = place / "program"
    flags = mutant.flags or ["-march=native"]
    try:
        compiling = subprocess.run(
            ["g++", "-std=c++20", "-O1", *flags, "-w", f"-I{place}/include", f"-I{place}",
             f"-I{root}/tests", f"-I{root}", "-pthread", str(root / mutant.test),
             *(str(configured(place, source, place)) for source in mutant.sources), str(folder / "main.o"), "-o",
             str(program)],
            capture_output=True, text=True)
        if compiling.returncode != 0:
            return "killed" if "static assertion failed" in compiling.stderr else compiling.stderr[:2000]
        run = subprocess.run([str(program), "--test-suite-exclude=slow", "--abort-after=1"], capture_output=True,
                             env=os.environ | {"ROTOSCALE_GOLDEN": str(root / "tests/golden")}, timeout=300)
        return "survived" if run.returncode == 0 else "killed"
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        shutil.rmtree(place)


def mutated(root, mutant):
    """The mutant's source with its one change."""
    text = (root / mutant.source).read_text(encoding="utf-8")
    (begin, end), = places(text, mutant.text)
    return f"{text[:begin]} {mutant.replacement} {text[end:]}"


def compile_main(root, folder):
    subprocess.run(["g++", "-std=c++20", "-O1", "-c", str(root / "tests/main.cpp"), "-o", str(folder / "main.o")],
                   check=True)


def try_mutants(root, mutants, jobs):
    """Prints each survivor. Returns their number."""
    def attempt(mutant):
        return outcome(root, folder, mutant, re.sub(r"\W", "_", mutant.name), mutated(root, mutant))

    survivors = 0
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        compile_main(root, folder)
        for mutant, what in zip(mutants, pool.map(attempt, mutants)):
            if what != "killed":
                survivors += 1
                why = "no test notices" if what == "survived" else f"does not compile:\n{what}"
                print(f"{mutant.list}:{mutant.line}: '{mutant.name}': {why}", flush=True)
    return survivors


def generate(root, source, known, jobs):
    """Tries every plain mutant of a header that is in no list. Prints the survivors and returns their number."""
    lists = sorted({(m.list, m.sources) for m in known if m.source == source})
    own = "tests/" + source.removeprefix("include/").removesuffix(".hpp") + ".mutants"
    list_name, sources = next((found for found in lists if found[0] == own), (own, ()))
    pattern = Mutant("", source, "", "", (), sources, list_name, 0)
    text = (root / source).read_text(encoding="utf-8")
    listed = {joined(mutated(root, m)) for m in known if m.source == source}
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        compile_main(root, folder)
        compiled = [configured(root, s, folder) for s in sources]
        lines = mutants_generate.covered_lines(root, source, pattern.test, compiled, folder / "main.o", folder,
                                               ["-march=native"])
        found = [c for c in mutants_generate.changes(text, lines)
                 if joined(text[:c.begin] + c.replacement + text[c.end:]) not in listed]
        print(f"{source}: {len(lines)} lines covered by {pattern.test}, {len(found)} mutants", flush=True)
        results = pool.map(lambda i: outcome(root, folder, pattern, f"g{i}",
                                             text[:found[i].begin] + found[i].replacement +
                                             text[found[i].end:]), range(len(found)))
        counts = {"killed": 0, "survived": 0}
        for change, what in zip(found, results):
            if what in counts:
                counts[what] += 1
            if what == "survived":
                print(f"{source}:{change.line}: {change.what}", flush=True)
    print(f"{counts['killed']} killed, {counts['survived']} survive, {len(found) - sum(counts.values())} do not "
          f"compile")
    return counts["survived"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only whether the lists fit the sources")
    parser.add_argument("--generate", metavar="HEADER", help="plain mutants of a header, tried with its own test")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants tried at a time")
    parser.add_argument("root", type=Path)
    parser.add_argument("text", nargs="?", default="", help="only mutants whose name, list or source contains it")
    options = parser.parse_args()
    root = options.root.resolve()
    if not (root / "tests/main.cpp").is_file():
        print(f"mutants.py: '{root}' is not the root of this project", file=sys.stderr)
        return 2
    try:
        mutants = read_lists(root)
    except ListError as error:
        print(error)
        return 1
    mutants = [m for m in mutants if any(options.text in where for where in (m.name, m.list, m.source))]
    faults = check(root, mutants)
    if options.check or faults:
        print(f"{len(mutants)} mutants, {faults} faults of their lists")
        return 1 if faults or not mutants else 0
    if options.generate is not None:
        return 1 if generate(root, options.generate, mutants, options.jobs) else 0
    survivors = try_mutants(root, mutants, options.jobs)
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants killed")
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
