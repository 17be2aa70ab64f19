# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the Python of README.md and docs/guide/python.md in order and compares what it prints.

ROTOSCALE_WRITE_GUIDE=1 records the output instead. A block that imports a missing module is left out.
"""
import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^<!-- run by python/tests/test_guide.py -->\n```(\w+)\n(.*?)^```$", re.M | re.S)


def printed_by(language, body, names, folder):
    if language == "python":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(body, "guide", "exec"), names)
        return out.getvalue()
    body = re.sub(r"^python ", f"'{sys.executable}' ", body, flags=re.M)
    return subprocess.run(["bash", "-e", "-c", body], cwd=folder, stdout=subprocess.PIPE, check=True, text=True).stdout


@pytest.mark.parametrize("page", ["README.md", "docs/guide/python.md"])
def test_page(page, tmp_path):
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    names, printed, left_out, pieces, end = {}, None, False, [], 0
    for match in BLOCK.finditer(text):
        language, body = match.groups()
        if language != "text":
            imports = re.findall(r"^import (\w+)", body, re.M)
            left_out = any(importlib.util.find_spec(module) is None for module in imports)
        if left_out:
            continue
        if language != "text":
            printed = printed_by(language, body, names, tmp_path)
        elif os.environ.get("ROTOSCALE_WRITE_GUIDE"):
            pieces += [text[end:match.start(2)], printed]
            end = match.end(2)
        else:
            assert body == printed
    assert printed is not None
    if pieces:
        path.write_text("".join(pieces) + text[end:], encoding="utf-8")
