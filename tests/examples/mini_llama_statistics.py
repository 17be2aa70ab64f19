# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""statistics.jsonl of mini-llama: it changes no checkpoint, has the fields of docs/reference/logs.md, and continues
on resume.

usage: mini_llama_statistics.py PROGRAM ROOT [NAME...]
"""
import math
from pathlib import Path

import mini_llama
from mini_llama import Scratch, records

ROOT = Path()
OPERAND = ["amax", "rms", "crest", "rotated_crest", "sqnr_db", "flushed", "saturated", "nonfinite"]
SCALES = ["spread_mean", "spread_max", "rows_int8", "rows_e5m2"]
GRADIENT = ["norm", "noise", "relative_error", "cosine", "norm_to_noise"]
PLACE = ["event", "step", "layer", "linear"]


class Statistics(Scratch):
    def observed(self, run, event=None):
        return records(self.folder / run / "statistics.jsonl", event)

    def test_fields(self):
        self.train("run", "--statistics-every", 4, schedule="mxfp4_h16")
        found = self.observed("run")
        self.assertEqual(found[0], {"event": "start", "schema": 1, "step": 0, "every": 4, "name": "mxfp4_h16"})
        self.assertEqual([r["step"] for r in found if r["event"] == "step"], [1, 5])
        operands = [r for r in found if r["event"] == "operand" and r["step"] == 5]
        # Six for each of the layer's four linear layers, and for the head.
        self.assertEqual(len(operands), 30)
        places = {(r["layer"], r["linear"], r["tensor"], r["gemm"]) for r in operands}
        self.assertEqual(len(places), 30)
        self.assertIn((None, "head", "dy", "wgrad"), places)
        for r in operands:
            head = r["linear"] == "head"
            self.assertEqual(list(r), PLACE + ["tensor", "gemm", "format"] + OPERAND + ([] if head else SCALES))
            self.assertEqual(r["format"], "bf16" if head else "mxfp4")
            self.assertTrue(50 < r["sqnr_db"] < 60 if head else 10 < r["sqnr_db"] < 25, r)
            self.assertGreaterEqual(r["crest"], 1)
        gradients = [r for r in found if r["event"] == "gradient" and r["step"] == 5]
        self.assertEqual(len(gradients), 5)
        for r in gradients:
            self.assertEqual(list(r), PLACE + GRADIENT)
            self.assertAlmostEqual(r["relative_error"] * r["norm_to_noise"], 1)
            self.assertAlmostEqual(r["noise"] / r["norm"], r["relative_error"])
        last = [r for r in found if r["event"] == "step"][-1]
        self.assertEqual(list(last), ["event", "step", "recipe"] + GRADIENT + ["stall"])
        self.assertEqual(last["stall"], math.sqrt(3))
        self.assertAlmostEqual(last["norm"] / math.hypot(*(r["norm"] for r in gradients)), 1)
        self.assertAlmostEqual(last["noise"] / math.hypot(*(r["noise"] for r in gradients)), 1)
        page = (ROOT / "docs/reference/logs.md").read_text()
        for field in OPERAND + SCALES + GRADIENT + ["stall", "schema", "every"]:
            self.assertIn(f"`{field}`", page)

    def test_adapters(self):
        """With a frozen base, only A and B have gradients. Unmeasured values are absent, not 0."""
        self.train("base", schedule="bf16")
        for targets, names in (("q_proj,k_proj,down_proj", {"q_proj": "qkv", "k_proj": "qkv", "down_proj": "down"}),
                               ("qkv_proj,o_proj", {"qkv_proj": "qkv", "o_proj": "o"})):
            lora = {"init": "base", "lora_rank": 4, "lora_targets": targets, "schedule": "amd_lora"}
            self.train("none", "--statistics-every", 0, "--overwrite", **lora)
            self.train("run", "--statistics-every", 2, "--overwrite", **lora)
            self.assert_same_checkpoint("none", "run")
            for step in (1, 3, 5, 7):  # FP8 from the sixth on
                gradients = [r for r in self.observed("run", "gradient") if r["step"] == step]
                self.assertEqual({(r["layer"], r["linear"], r["tensor"]) for r in gradients},
                                 {(0, linear, f"{name}.lora_{m}") for name, linear in names.items() for m in "AB"})
                for r in gradients:
                    self.assertEqual(list(r), PLACE + ["tensor"] + GRADIENT)
                    if r["tensor"].endswith("A"):  # operands were BF16 before; while B is 0 the gradient is 0
                        self.assertEqual((r["norm"] > 0, r["noise"], r["norm_to_noise"]), (step > 1, 0, None))
                    else:
                        self.assertTrue(r["norm"] > 0 and 0 < r["relative_error"] < 0.01, r)
                last, = [r for r in self.observed("run", "step") if r["step"] == step]
                self.assertAlmostEqual(last["norm"] / math.hypot(*(r["norm"] for r in gradients)), 1)
                self.assertGreater(last["norm_to_noise"], 100)
        self.succeed("report", "run", "--out", "report")
        csv = (self.folder / "report/statistics.csv").read_text()
        self.assertIn("amd_lora,gradient,1,0,qkv,qkv_proj.lora_B,,", csv)
        page = (self.folder / "report/report.html").read_text()
        self.assertIn("Of amd_lora the &quot;gradient&quot; records are those of the adapters", page)
        self.assertIn("the gradients of amd_lora was not measured", page)
        self.assertNotIn("observed steps below it", page)

    def test_noise_of_the_whole_pass(self):
        """A BF16 backward pass for each observed one. No bit changes: with random draws, for all trained weights,
        through every switch. The whole pass has more noise than each gradient's GEMM."""
        self.train("base", schedule="bf16")
        for schedule in ("mxfp4_h16_sr", "heal_repeated"):
            for lora in ({}, {"init": "base", "lora_rank": 4, "lora_targets": "q_proj,down_proj"}):
                with self.subTest(schedule=schedule, lora=lora):
                    options = {"schedule": schedule, "accumulate": 2, "learning_rate": 0.01, **lora}
                    self.train("none", "--statistics-every", 0, "--overwrite", **options)
                    self.train("run", "--statistics-every", 3, "--statistics-noise", "--overwrite", **options)
                    self.assert_same_checkpoint("none", "run")
                    self.assertEqual(self.observed("run", "start")[0]["noise"], True)
                    for step in (1, 4, 7):
                        each = [r for r in self.observed("run", "noise") if r["step"] == step]
                        whole, = [r for r in self.observed("run", "noise_step") if r["step"] == step]
                        self.assertEqual(list(whole), ["event", "step", "recipe"] + GRADIENT + ["stall"])
                        names = {(r["layer"], r["linear"], r.get("tensor")) for r in each}
                        self.assertEqual(names, {(0, linear, f"{name}.lora_{m}") for name,
                                                 linear in (("q_proj", "qkv"), ("down_proj", "down"))
                                                 for m in "AB"} if lora else
                                         {(0, linear, None) for linear in ("qkv", "o", "gate_up", "down")} |
                                         {(None, "head", None)})
                        for r in each:
                            if step > 1 or r.get("tensor", "B")[-1] == "B":  # while B is 0 the gradient of A is 0
                                self.assertTrue(0.005 < r["relative_error"] < 1.5 and r["cosine"] > 0.2, r)
                        if lora:  # otherwise norms of vectors and the embedding train too
                            self.assertAlmostEqual(whole["noise"] / math.hypot(*(r["noise"] for r in each)), 1)
                        own, = [r for r in self.observed("run", "step") if r["step"] == step]
                        self.assertLess(whole["norm_to_noise"],
                                        500 if own["norm_to_noise"] is None else own["norm_to_noise"])

    def test_noise_goes_on_and_is_refused(self):
        self.train("whole", "--statistics-every", 3, "--statistics-noise", schedule="mxfp4_h16")
        self.train("parts", "--statistics-every", 3, "--statistics-noise", "--stop-at", 4, schedule="mxfp4_h16")
        self.succeed("train", "--resume", "parts", "--stop-at", 7)
        self.assertEqual([r for r in self.observed("parts") if r["event"] != "resume"], self.observed("whole"))
        self.succeed("train", "--resume", "parts", "--no-statistics-noise", "--statistics-every", 1)
        self.assertNotIn("noise", self.observed("parts", "resume")[-1])
        self.assertEqual({r["step"] for r in self.observed("parts", "noise")}, {1, 4, 7})
        self.assert_same_checkpoint("whole", "parts")
        self.train("bf16", "--statistics-noise", schedule="bf16")
        self.assertEqual(self.observed("bf16", "noise"), [])
        for command in (self.train_command("out"), ["plan"]):
            self.refuse([*command, "--statistics-noise", "--statistics-every", 0],
                        "--statistics-noise: needs observed steps")
        plans = [self.planned("--recipe", "mxfp4_h16", *more)[0] for more in ((), ("--statistics-noise",))]
        self.assertLess(plans[0]["quantized"], plans[1]["quantized"])

    def test_resume_continues_the_file_at_its_interval(self):
        self.train("whole", "--statistics-every", 3)
        self.train("parts", "--statistics-every", 3, "--stop-at", 4)
        self.succeed("train", "--resume", "parts")
        whole, parts = self.observed("whole"), self.observed("parts")
        self.assertEqual([r for r in parts if r["event"] == "resume"],
                         [{"event": "resume", "schema": 1, "step": 4, "every": 3}])
        self.assertEqual([r for r in parts if r["event"] != "resume"], whole)
        # A run without statistics stays without, unless asked for.
        self.train("without", "--statistics-every", 0, "--stop-at", 4)
        self.succeed("train", "--resume", "without", "--stop-at", 5)
        self.assertFalse((self.folder / "without/statistics.jsonl").exists())
        self.succeed("train", "--resume", "without", "--statistics-every", 1)
        self.assertEqual([r["step"] for r in self.observed("without", "step")], [6, 7, 8])


if __name__ == "__main__":
    mini_llama.main(__doc__, "ROOT")
