#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the example programs, and checks recorded outputs and generated parts of documents.

usage: outputs.py [--write] ROOT BUILD
  BUILD: a build directory of ROOT with the examples. For every NAME.cpp that begins with a digit, examples/NAME.out
  must equal the output of examples/NAME, byte for byte. In README.md and docs/*.md, the text between `<!-- WHAT -->`
  and `<!-- end -->` must be:
    examples/NAME.cpp         that file from its first line of code on
    examples/NAME.out         that recorded output
    recipes                   a table of the presets
    schedule NAME             the schedule as mini-llama logs it for a run of 1000 steps
  --write updates all of them.
"""
import difflib
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

GENERATED = re.compile(r"(?<=^<!-- )((?:examples/|schedule )\S+|recipes)( -->\n)(.*?)(?=^<!-- end -->$)", re.M | re.S)
# The smallest run that mini-llama accepts under every recipe.
TINY = ("--hidden-size 32 --intermediate-size 32 --num-hidden-layers 1 --num-attention-heads 1 "
        "--num-key-value-heads 1 --batch 1 --sequence 32 --eval-windows 1 --final-eval-windows 1 "
        "--steps 1000 --stop-at 1 --threads 1 --device cpu --overwrite").split()


def fenced(language, text):
    return f"```{language}\n{text.rstrip()}\n```\n"


def fenced_json(text):
    """JSON with line breaks between members where lines exceed 100 columns."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        parts = textwrap.wrap(line.replace(": ", ":\0"), 100, subsequent_indent=indent, break_long_words=False,
                              break_on_hyphens=False)
        lines += [part.replace("\0", " ") for part in parts]
    return fenced("json", "\n".join(lines))


def without_head(source):
    """A source file without its head comment."""
    lines = source.splitlines(keepends=True)
    while lines and lines[0].startswith("//"):
        lines.pop(0)
    return "".join(lines)


class Llama:
    """Recipes and schedules as mini-llama logs them."""

    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        (self.folder / "text").write_bytes(b"a b\n" * 20000)

    def phases(self, name):
        out = self.folder / name
        command = [str(self.program), "train", "--schedule", name, "--data", str(self.folder / "text"), "--out",
                   str(out), *TINY]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{name}: {run.stderr}")
        return json.loads((out / "log.jsonl").read_text(encoding="utf-8").splitlines()[0])["schedule"]

    def show(self, name):
        phases = self.phases(name)
        unset = {"cap": 0, "scales": "reset", "trigger": None}
        lines = [json.dumps({"from_step": p["from_step"], "recipe": p["recipe"]["name"],
                             **{key: p[key] for key in unset if p[key] != unset[key]}}) for p in phases]
        return fenced_json("[\n  " + ",\n  ".join(lines) + "\n]")


def operand(o):
    """An operand's format, blocks, rotation and rounding in short."""
    words = [o["format"]]
    own = {"length": 16, "rows": 1, "scale": "ue4m3"} if o["format"] == "nvfp4" else {"length": 32, "rows": 1,
                                                                                      "scale": "e8m0"}
    if o["block"] not in (None, own):
        rows, length = o["block"]["rows"], o["block"]["length"]
        words.append(f"{length}²" if rows == length else f"{rows} × {length}")
    if o["rotation"]:
        signs = o["rotation"]["signs"]
        words.append(f"H{o['rotation']['points']}" + ("" if signs == "none" else f"±{signs}"))
    return " ".join(words + (["SR"] if o["rounding"] == "stochastic" else []))


def recipes(llama, names):
    """A table of presets by the operands of their GEMMs."""
    same = {}
    for name in names:
        r = llama.phases(name)[0]["recipe"]
        pairs = [(r[gemm][left], r[gemm][right]) for gemm, left,
                 right in (("fprop", "x", "w"), ("dgrad", "dy", "w"), ("wgrad", "dy", "x"))]
        cells = " | ".join(" / ".join(dict.fromkeys(map(operand, pair))) for pair in pairs)
        same.setdefault(cells, []).append(f"`{name}`")
    rows = ["| fprop x / w | dgrad dy / w | wgrad dy / x | Recipes |", "|---|---|---|---|"]
    for cells, of in same.items():
        for line in textwrap.wrap(", ".join(of), 92 - len(cells)):
            rows.append(f"| {cells} | {line} |")
            cells = "| |"
    return "\n".join(["", *rows, "", ""])


def presets(root):
    """Names of the recipes of presets.hpp and of the schedules of schedule.hpp."""
    def body(header, function):
        text = (root / "include/rotoscale/nn" / header).read_text(encoding="utf-8")
        return re.search(function + r"\(\) \{.*?^\}", text, re.M | re.S).group()

    own, schedules = body("presets.hpp", "recipe> portable"), body("schedule.hpp", "schedule> schedules")
    aliases = re.findall(r'\{"(\w+)", "\w+", "\w+"\}', (root / "include/rotoscale/nn/presets.hpp").read_text("utf-8"))
    return re.findall(r'\("(\w+)"', own) + aliases, re.findall(r'(?:\{|healing\()"(\w+)", \{', schedules)


def expected(root, llama, what):
    """The text after the marker `what`."""
    if what == "recipes":
        return recipes(llama, presets(root)[0])
    if what.startswith("schedule "):
        return llama.show(what.removeprefix("schedule "))
    if not (root / what).exists():
        return f"There is no {what}.\n"
    text = (root / what).read_text(encoding="utf-8")
    if what.endswith(".cpp"):
        return fenced("cpp", without_head(text))
    return "\n" + text.rstrip() + "\n\n" if text.startswith("|") else fenced("text", text)


def main(root, build, write):
    failures = []

    def settle(path, old, new):
        if old == new:
            return
        if write:
            path.write_text(new, encoding="utf-8")
        else:
            failures.append(f"{path} is out of date (see --write)")
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"{path}",
                                                       "program"))

    examples = sorted(p.stem for p in (root / "examples").glob("[0-9]*.cpp"))
    for name in examples:
        program, recorded = build / "examples" / name, root / "examples" / f"{name}.out"
        if not program.exists():
            failures.append(f"{program} was not built: is it one of small_examples in examples/meson.build?")
            continue
        output = subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout.decode()
        settle(recorded, recorded.read_text(encoding="utf-8") if recorded.exists() else "", output)

    with tempfile.TemporaryDirectory() as folder:
        llama = Llama(build / "examples/llama/mini-llama", folder)
        seen = set()
        for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
            old = path.read_text(encoding="utf-8")
            seen.update(match.group(1) for match in GENERATED.finditer(old))
            new = GENERATED.sub(lambda m: m.group(1) + m.group(2) + expected(root, llama, m.group(1)), old)
            settle(path, old, new)
    for what in ("schedule amd_lora", "recipes", "examples/03_block.cpp", "examples/03_block.out",
                 "examples/01_formats.out", "examples/10_files.out"):
        if what not in seen:
            failures.append(f"no document shows '{what}'")
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(examples)} examples, {len(seen)} generated parts of documents, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    if len(arguments) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(arguments[0]).resolve(), Path(arguments[1]).resolve(), "--write" in sys.argv))
