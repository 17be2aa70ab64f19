# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Oracles: C++ programs over the headers, compiled once per run."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def program(folder, name, optimization="-O1"):
    """Compiles python/tests/NAME.cpp. Returns run(*arguments, data): what it prints, as bytes."""
    path, source = folder / name, ROOT / f"python/tests/{name}.cpp"
    compiler = os.environ.get("CXX", "g++").split()
    subprocess.run([*compiler, "-std=c++20", optimization, "-I", ROOT / "include", source, "-o", path, "-pthread"],
                   check=True)

    def run(*arguments, data):
        return subprocess.run([path, *map(str, arguments)], input=data, stdout=subprocess.PIPE, check=True).stdout

    return run


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    return program(tmp_path_factory.mktemp("oracle"), "oracle")


@pytest.fixture(scope="session")
def linear_oracle(tmp_path_factory):
    return program(tmp_path_factory.mktemp("oracle"), "linear_oracle", "-O0")
