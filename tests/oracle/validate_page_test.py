# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the Python and the commands of docs/reference/dumps.md in the page's order. rotoscale-validate must find
every written dump identical. This script supplies the reader's part: a quantizer's source and result, a GEMM's
inputs, and a kernel in float64. Its sums of such inputs are exact. Skips (77) without numpy, ml_dtypes and
safetensors. A block that imports another missing package is left out with its command.

usage: validate_page_test.py VALIDATE PAGE
"""

import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import oracle

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
from safetensors_bytes import load  # noqa: E402


class Reader:
    """Names that the page assumes, by the package that a block uses."""

    def __init__(self, np, ml_dtypes, validate):
        self.np, self.ml_dtypes = np, ml_dtypes
        subprocess.run([validate, "--make-case", "quantized.safetensors", "--quantizer", "te_rocm", "--with-d"],
                       check=True)
        tensors = load(pathlib.Path("quantized.safetensors"))
        self.x = np.frombuffer(tensors["x"][2], ml_dtypes.bfloat16).astype(np.float32).reshape(tensors["x"][1])
        self.codes, self.scales = (np.frombuffer(tensors[name][2], np.uint8).reshape(tensors[name][1])
                                   for name in ("codes", "scales"))
        rng = np.random.default_rng(3)
        self.a, self.b = (rng.standard_normal((rows, 128)).astype(np.float32) for rows in (24, 40))

    def values(self, array):
        """Converts to float64 from any package's array."""
        if type(array).__module__.startswith("torch"):
            array = array.float().numpy()
        return self.np.asarray(array).astype(self.np.float64)

    def gemm(self, a, b, scale_a=None, scale_b=None):
        """FP4 under scales: exact sums of 32 products, added in FP32. Otherwise one exact sum: float64 holds all
        sums of numbers near 1."""
        a, b = self.values(a), self.values(b)
        if scale_a is None:
            return (a @ b.T).astype(self.np.float32)
        scale_a, scale_b = self.values(scale_a), self.values(scale_b)
        total = self.np.zeros((len(a), len(b)), self.np.float32)
        for block in range(a.shape[1] // 32):
            part = slice(32 * block, 32 * block + 32)
            scales = self.np.outer(scale_a[:, block], scale_b[:, block])
            total = (total + a[:, part] @ b[:, part].T * scales).astype(self.np.float32)
        return total

    def names(self, uses_torch):
        names = {name: getattr(self, name) for name in ("x", "codes", "scales", "a", "b", "gemm")}
        if uses_torch:
            torch = importlib.import_module("torch")
            names.update({name: torch.from_numpy(getattr(self, name).copy()) for name in ("x", "codes", "scales")})
        return names


def check_packing(np, pack, unpack, validate):
    """Tests the page's two functions. A dot product of equally packed operands would not show their order of
    nibbles."""
    subprocess.run([validate, "--make-case", "plain.safetensors", "--quantizer", "ocp", "--with-d"], check=True)
    tensors = load(pathlib.Path("plain.safetensors"))
    codes = np.frombuffer(tensors["codes"][2], np.uint8).reshape(tensors["codes"][1])
    signs = np.frombuffer(tensors["x"][2], np.uint16).reshape(tensors["x"][1]) >> 15
    assert (pack(unpack(codes)) == codes).all(), "pack is not unpack's inverse"
    scales = np.frombuffer(tensors["scales"][2], np.uint8).reshape(tensors["scales"][1])
    of_numbers = np.repeat(scales != 0xFF, 32, axis=1)  # codes of a block with NaN or Inf have no meaning
    assert (unpack(codes).view(np.uint8) >> 3 == signs)[of_numbers].all(), "unpack has other signs than the source"


def main():
    np, ml_dtypes, _ = oracle.require("numpy", "ml_dtypes", "safetensors")
    validate, page = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", page, re.M | re.S)
    ran, left_out, checked, runs, kept = 0, 0, 0, True, {}  # kept: names that blocks have defined
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        reader = Reader(np, ml_dtypes, validate)
        for language, text in blocks:
            if language == "python":
                modules = [name.split(".")[0] for line in re.findall(r"^import (.*)$", text, re.M)
                           for name in line.split(", ")]
                runs = all(importlib.util.find_spec(name) for name in modules)
                ran, left_out = ran + runs, left_out + (not runs)
                if runs:
                    kept.update(reader.names("torch" in modules))
                    exec(text, kept)
                continue
            words = shlex.split(text.replace("\\\n", " "), comments=True)
            if not runs and "--make-case" not in words:
                continue
            assert words[0] == "rotoscale-validate", f"not a command of this page: {text}"
            done = subprocess.run([validate, *words[1:]], capture_output=True, text=True)
            if done.returncode != 0 or not ("--make-case" in words
                                            or re.search(r"\b0 of \d+ (elements|blocks) differ", done.stdout)):
                print(f"{text}{done.stdout}{done.stderr}exit status {done.returncode}")
                return 1
            checked += "--make-case" not in words
        check_packing(np, kept["pack"], kept["unpack"], validate)
    print(f"{ran} blocks of Python ran, {left_out} left out; {checked} files identical")
    return 0 if ran >= 4 and checked >= 4 else 1


if __name__ == "__main__":
    sys.exit(main())
