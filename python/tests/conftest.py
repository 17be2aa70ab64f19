# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""The oracle: a C++ program over the reference headers, compiled once per run."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """oracle(mode, *arguments, data): what the program prints, as bytes."""
    program = tmp_path_factory.mktemp("oracle") / "oracle"
    compiler = os.environ.get("CXX", "g++").split()
    subprocess.run([*compiler, "-std=c++20", "-O1", "-I", ROOT / "include", ROOT / "python/tests/oracle.cpp", "-o",
                    program, "-pthread"], check=True)

    def run(*arguments, data):
        return subprocess.run([program, *map(str, arguments)], input=data, stdout=subprocess.PIPE, check=True).stdout

    return run
