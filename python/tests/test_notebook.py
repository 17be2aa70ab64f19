# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Executes notebooks without Jupyter and compares their outputs. ROTOSCALE_WRITE_GUIDE=1 records them."""
import ast
import contextlib
import io
import json
import os
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide"


def lines(text):
    return text.splitlines(keepends=True)


def execute(source, names, number):
    """Outputs of a cell, as a notebook stores them: printed text, then the value of its last expression."""
    tree, value, printed = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        drawn = hasattr(value, "_repr_svg_")
        data = {"image/svg+xml": lines(value._repr_svg_())} if drawn else {"text/plain": lines(repr(value))}
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


@pytest.mark.parametrize("name", ["study.ipynb"])
def test_notebook(name, monkeypatch):
    monkeypatch.chdir(GUIDE)
    path = GUIDE / name
    notebook, names, number = json.loads(path.read_text(encoding="utf-8")), {}, 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        outputs = execute("".join(cell["source"]), names, number)
        if os.environ.get("ROTOSCALE_WRITE_GUIDE"):
            cell["outputs"], cell["execution_count"] = outputs, number
        else:
            assert cell["outputs"] == outputs
    if os.environ.get("ROTOSCALE_WRITE_GUIDE"):
        path.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
