#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks bench/tune in host mode, where times have no meaning: rows, shapes of a model, refusals.

usage: tune.py PROGRAM
"""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""
HEADER = "arch,units,format,m,n,k,kernel,tile,stages,split_k,raster,us,tflops,error"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
          "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
          "head_dim": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "tie_word_embeddings": False, "hidden_act": "silu"}


class Tune(unittest.TestCase):
    def run_program(self, *arguments):
        return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)

    def config(self, **changed):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name, "config.json")
        path.write_text(json.dumps(CONFIG | changed))
        return path

    def rows(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], r"^# the host, no driver, \d{4}-\d\d-\d\d, written by bench/tune\.")
        self.assertEqual(lines[1], HEADER)
        table = [line.split(",") for line in lines[2:] if not line.startswith("#")]
        return table, [line for line in lines[2:] if line.startswith("#")]

    def test_shapes_and_formats(self):
        table, quantizers = self.rows("32x64x64", "32x64x64", "1x32x64", "--formats", "mxfp4", "mxfp8")
        self.assertEqual([row[2:7] for row in table],
                         [["mxfp4", "32", "64", "64", "fast"], ["mxfp4", "32", "64", "64", "accurate"],
                          ["mxfp4", "1", "32", "64", "fast"], ["mxfp4", "1", "32", "64", "accurate"],
                          ["mxfp8", "32", "64", "64", "accurate"], ["mxfp8", "1", "32", "64", "accurate"]])
        for row in table:
            self.assertEqual((row[0], row[9]), ("host", "1"))
            self.assertIn(row[7], ["256x256", "128x128", "64x256", "256x64"])
            self.assertIn(row[8], ["3", "4", "5", "6"])
            self.assertRegex(row[10], "^[mn]4$")  # one row and one column of tiles
            self.assertLess(float(row[13]), 0.01)  # BF16 outputs: at most 2^-9 each
            self.assertGreaterEqual(float(row[13]), 0)
        # 32 x 64 and 64 x 64. One row has no blocks along columns.
        self.assertEqual(len(quantizers), 4)
        self.assertTrue(all(re.match(r"# quantize (H16 \+ MXFP4|MXFP8 E4M3), rows and columns of \d+ x \d+ BF16: ", q)
                            for q in quantizers))

    def test_a_models_shapes(self):
        table, _ = self.rows("--config", self.config(), "--tokens", 32)
        shapes = [tuple(map(int, row[3:6])) for row in table if row[6] == "fast"]
        self.assertEqual(shapes, [(32, 128, 64), (32, 64, 128), (128, 64, 32),    # q, k, v: fprop, dgrad, wgrad
                                  (32, 64, 64), (64, 64, 32),                     # o, whose dgrad is as its fprop
                                  (32, 192, 64), (32, 64, 192), (192, 64, 32),    # gate and up
                                  (32, 64, 96), (32, 96, 64), (64, 96, 32)])      # down

    def test_a_lost_table_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, "32x32x32"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr), (2, "tune: standard output: cannot write\n"))

    def test_refusals(self):
        for arguments, part in ((["4096"], "4096: is no shape MxNxK"), (["8x8x8x8"], "8x8x8x8: is no shape MxNxK"),
                                (["32x32x33"], "K must be a multiple of 32"),
                                (["0x8x32"], "0x8x32: M, N and K must be 1 to 2^20"),
                                (["--tokens", "64"], "--tokens: needs --config"),
                                (["--config", self.config(intermediate_size=100)],
                                 "config.json: intermediate_size, 100 features: GEMMs need multiples of 32"),
                                (["--token", "8"], "did you mean '--tokens'?"),
                                (["--config", self.config(), "--tokens", "100"],
                                 "--tokens: 100 is no multiple of 32")):
            done = self.run_program(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
