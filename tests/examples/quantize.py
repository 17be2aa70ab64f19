#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale-quantize writes the bytes that rotoscale-validate computes, and reads back values near the source.

usage: quantize.py QUANTIZE VALIDATE
"""
import math
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from safetensors_bytes import npy

QUANTIZE, VALIDATE = (str(Path(a).resolve()) for a in sys.argv[1:3])


def floats(path):
    data = path.read_bytes()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    return struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])


class Quantize(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        generator = random.Random(1)
        self.x = [generator.gauss(0, 1) for _ in range(64 * 96)]
        (self.folder / "x.npy").write_bytes(npy("<f4", [64, 96], struct.pack("<6144f", *self.x)))
        (self.folder / "h.npy").write_bytes(npy("<f2", [6, 100], struct.pack("<600e", *self.x[:600])))

    def call(self, program, *arguments):
        return subprocess.run([program, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              check=False)

    def run_it(self, *arguments):
        done = self.call(QUANTIZE, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def refused(self, said, *arguments):
        before = {p: p.read_bytes() for p in self.folder.iterdir()}
        done = self.call(QUANTIZE, *arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, f"^rotoscale-quantize: .*{said}.*\n$")
        self.assertEqual({p: p.read_bytes() for p in self.folder.iterdir()}, before)

    def test_the_validator_computes_the_same_bytes(self):
        for preset, options in (("te_rocm", ["--axis", "both"]), ("nvidia", ["--format", "nvfp4"]),
                                ("ocp", ["--nibbles", "halves"]), ("fp8", ["--format", "fp8_e4m3"]),
                                ("ocp", ["--format", "mxfp8_e5m2", "--scale-placement", "column_major"])):
            said = self.run_it("x.npy", "--preset", preset, *options, "--with-source", "--out", "q.safetensors")
            self.assertRegex(said, r"^codes: SQNR [\d.]+ dB, saturated [\d.]+ % of 6144 elements, flushed to 0 ")
            shown = [o for o in options if o not in ("--axis", "both")]
            done = self.call(VALIDATE, "--quantizer", preset, *shown, "--input", "q.safetensors")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.run_it("q.safetensors", "--dequantize", "--out", "y.npy")
            y = floats(self.folder / "y.npy")
            noise = sum((a - b) ** 2 for a, b in zip(self.x, y, strict=True))
            sqnr = 10 * math.log10(sum(a * a for a in self.x) / noise)
            self.assertAlmostEqual(float(said.split()[2]), sqnr, delta=0.02)

    def test_padding_is_dropped_again(self):
        self.refused("6 x 100: 100 columns are no multiple of 32; --pad zero adds zeros", "h.npy", "--out",
                     "q.safetensors")
        said = self.run_it("h.npy", "--pad", "zero", "--axis", "both", "--preset", "te_rocm", "--out", "q.safetensors")
        self.assertIn("padded with zeros to 32 x 128\n", said)
        for axis in ("row", "column"):
            self.run_it("q.safetensors", "--dequantize", "--axis", axis, "--out", "y.npy")
            y = floats(self.folder / "y.npy")
            self.assertEqual(len(y), 600)
            self.assertLess(sum((a - b) ** 2 for a, b in zip(self.x, y)), 0.02 * sum(a * a for a in y))

    def test_refusals(self):
        self.refused("x.npy: would be written, and is an input", "x.npy", "--out", "x.npy")
        self.refused("--preset: no preset 'te_rock' .*did you mean 'te_rocm'", "x.npy", "--preset", "te_rock",
                     "--out", "q")
        self.refused("stochastic needs --random-seed", "x.npy", "--rounding", "stochastic", "--out", "q")
        (self.folder / "page.safetensors").write_text("<!DOCTYPE html>")
        self.refused("is a web page", "page.safetensors", "--out", "q")
        self.run_it("x.npy", "--out", "q.safetensors")
        data = (self.folder / "q.safetensors").read_bytes()
        (self.folder / "bad.safetensors").write_bytes(data.replace(b'"rows":"64"', b'"rows":"6x"'))
        self.refused("metadata 'rows': '6x' is no extent", "bad.safetensors", "--dequantize", "--out", "y.npy")
        (self.folder / "bad.safetensors").write_bytes(data.replace(b'"rows":"64"', b'"rows":"65"'))
        self.refused("sizes of its tensors", "bad.safetensors", "--dequantize", "--out", "y.npy")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
