#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Dumps of this project's own launchers, of a device or in host mode: rotoscale-validate finds every byte right, a changed one wrong, and
says which quantizer made them.

usage: validate_launchers.py VALIDATE LAUNCHER_DUMP
  Exit status: 77 where LAUNCHER_DUMP finds no device.
"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from safetensors_bytes import load, write_safetensors

VALIDATE, DUMP = (Path(p).resolve() for p in sys.argv[1:3])
AITER = ("--code-placement", "aiter_data_16x16", "--scale-placement", "aiter_scale")
SEEDED = ("--rounding", "stochastic", "--random-seed", 7, "--random-stream", 3)
# The quantizer of each case, what --identify says of it, first to last of what explains all, and what its source is. The
# FP8 cast rounds to BF16 first.
CASES = {
    "mxfp4_h16": (("--quantizer", "te_rocm", "--format", "mxfp4"), "te_rocm"),
    "mxfp4_h16 F32": (("--quantizer", "te_rocm", "--format", "mxfp4"), "te_rocm", "--x-format", "F32"),
    "mxfp4_h16 F16": (("--quantizer", "te_rocm", "--format", "mxfp4"), "te_rocm", "--x-format", "F16"),
    "mxfp4_h16_aiter": (("--quantizer", "te_rocm", "--format", "mxfp4", *AITER),
                        "te_rocm, but scales in aiter_scale, codes in aiter_data_16x16; te_rocm, but scales in "
                        "hipblaslt_scale_32x8, codes in aiter_data_16x16", "--m", 256),
    "mxfp4_stochastic": (("--quantizer", "primus", "--format", "mxfp4", *SEEDED), "primus"),
    "mxfp4_square": (("--quantizer", "primus", "--format", "mxfp4", "--block-rows", 32), "primus"),
    "mxfp4_h32": (("--quantizer", "te_rocm", "--format", "mxfp4", "--rotation", 32), "te_rocm, but rotation of 32 points; te_rocm, but "
                  "rotation of 32 points, rounding nearest_away"),
    "mxfp6_e2m3": (("--quantizer", "ocp", "--format", "mxfp6_e2m3"), "torchao_floor = ocp"),
    "mxfp8_e4m3": (("--quantizer", "primus", "--format", "mxfp8_e4m3"), "primus"),
    "mxfp8_e4m3 F32": (("--quantizer", "primus", "--format", "mxfp8_e4m3"), "primus", "--x-format", "F32"),
    "mxfp8_e5m2_nvidia": (("--quantizer", "nvidia", "--format", "mxfp8_e5m2", "--scale-placement", "nvidia_scale_128x4"),
                          "nvidia, but scales in nvidia_scale_128x4"),
    # By the definition, which host mode takes long for. A factor of 1, and one of the tensor's own amax.
    "nvfp4": (("--quantizer", "nvidia", "--format", "nvfp4"), "aiter_even; nvidia", "--m", 16, "--k", 64),
    "nvfp4 factor": (("--quantizer", "nvidia", "--format", "nvfp4"), "aiter_even; aiter_round_down; nvidia", "--m", 16, "--k", 64, "--seed", 2),
    "fp8_e4m3": (("--quantizer", "fp8", "--format", "fp8_e4m3"), "fp8; fp8, but source rounded to FP16", "--factor", 24),
    "fp8_e5m2": (("--quantizer", "fp8", "--format", "fp8_e5m2"), "fp8", "--factor", 24),
    "fp8_e5m2 F32": (("--quantizer", "fp8", "--format", "fp8_e5m2", "--source", "bf16"), "fp8, but source rounded to BF16", "--factor", 24,
                     "--x-format", "F32"),
}


def call(*arguments):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=False, timeout=300)


class Launchers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def dump(self, case):
        """The launcher's file, of a source on which quantizers differ."""
        quantizer, _, *about = CASES[case]
        source, out = self.folder / "source.safetensors", self.folder / "dump.safetensors"
        size = () if "--m" in about else ("--axis", "both", "--m", 64)
        # Seeds choose the words of a result, which is not asked for.
        asked = [a for a in quantizer if a not in SEEDED]
        made = call(VALIDATE, "--make-case", source, *asked, *about, *size)
        self.assertEqual(made.returncode, 0, made.stderr)
        done = call(DUMP, case.split()[0], source, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def test_every_byte_is_right(self):
        for case, (quantizer, *_) in CASES.items():
            with self.subTest(case=case):
                done = call(VALIDATE, *quantizer, "--input", self.dump(case))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_changed_byte_of_each_tensor_is_found(self):
        for case, (quantizer, *_) in CASES.items():
            path = self.dump(case)
            tensors = load(path)
            for name, (dtype, shape, data) in tensors.items():
                if name in ("x", "factor", "amax"):
                    continue
                with self.subTest(case=case, tensor=name):
                    at = 0  # what is behind may be padding
                    changed = {**tensors, name: (dtype, shape, data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])}
                    wrong = self.folder / "wrong.safetensors"
                    write_safetensors(wrong, changed)
                    done = call(VALIDATE, *quantizer, "--input", wrong)
                    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_the_quantizer_is_identified(self):
        for case, (quantizer, said, *_) in CASES.items():
            # Words and squares have to be known; else what made the dump is not.
            asked = quantizer if case == "mxfp4_stochastic" else (*quantizer[2:4], *(quantizer[4:] if case == "mxfp4_square" else ()))
            with self.subTest(case=case):
                done = call(VALIDATE, "--identify", *asked, "--input", self.dump(case))
                runs = re.search(r"explained, of (\d+)", done.stdout)[1]
                explain_all = "; ".join(re.findall(rf"^  {runs}  (.*)$", done.stdout, re.M))
                self.assertEqual((done.returncode, explain_all), (0, said), done.stdout + done.stderr)


if __name__ == "__main__":
    if call(DUMP, "mxfp4_h16", "none", "none").returncode == 77:
        print("skipped: no device")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
