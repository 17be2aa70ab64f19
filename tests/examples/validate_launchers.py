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
# The quantizer of each case, and how the first line of --identify begins.
CASES = {
    "mxfp4_h16": (("--quantizer", "te_rocm", "--format", "mxfp4"), "te_rocm"),
    "mxfp4_h16_aiter": (("--quantizer", "te_rocm", "--format", "mxfp4", *AITER), "te_rocm"),
    "mxfp4_stochastic": (("--quantizer", "primus", "--format", "mxfp4", "--rounding", "stochastic", "--random-seed", 7, "--random-stream", 3),
                         "primus"),
    "mxfp8_e4m3": (("--quantizer", "primus", "--format", "mxfp8_e4m3"), "primus"),
    "mxfp8_e5m2_nvidia": (("--quantizer", "nvidia", "--format", "mxfp8_e5m2", "--scale-placement", "nvidia_scale_128x4"), "nvidia"),
    "nvfp4": (("--quantizer", "nvidia", "--format", "nvfp4"), "nvidia"),
    "fp8_e4m3": (("--quantizer", "fp8", "--format", "fp8_e4m3"), "fp8"),
    "fp8_e5m2": (("--quantizer", "fp8", "--format", "fp8_e5m2"), "fp8"),
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
        quantizer, _ = CASES[case]
        source, out = self.folder / "source.safetensors", self.folder / "dump.safetensors"
        factor = ("--factor", 24) if case.startswith("fp8") else ()
        # NVFP4 goes by the definition, which host mode takes long for.
        size = ("--m", 16, "--k", 64) if case == "nvfp4" else ("--axis", "both", "--m", 64)
        # Seeds choose the words of a result, which is not asked for.
        asked = [a for a in quantizer if a not in ("--rounding", "stochastic", "--random-seed", "--random-stream", 7, 3)]
        made = call(VALIDATE, "--make-case", source, *asked, *factor, *size)
        self.assertEqual(made.returncode, 0, made.stderr)
        done = call(DUMP, case, source, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def test_every_byte_is_right(self):
        for case, (quantizer, _) in CASES.items():
            with self.subTest(case=case):
                done = call(VALIDATE, *quantizer, "--input", self.dump(case))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_changed_byte_of_each_tensor_is_found(self):
        for case, (quantizer, _) in CASES.items():
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
        for case, (quantizer, preset) in CASES.items():
            # Words have to be known; else what made the dump is not.
            asked = quantizer if case == "mxfp4_stochastic" else quantizer[2:4]
            with self.subTest(case=case):
                done = call(VALIDATE, "--identify", *asked, "--input", self.dump(case))
                runs = re.search(r"explained, of (\d+):", done.stdout)[1]
                explain_all = re.findall(rf"^ +{runs}  (.*)$", done.stdout, re.M)
                self.assertTrue([line for line in explain_all if line.startswith(preset)], done.stdout + done.stderr)


if __name__ == "__main__":
    if call(DUMP, "mxfp4_h16", "none", "none").returncode == 77:
        print("skipped: no device")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
