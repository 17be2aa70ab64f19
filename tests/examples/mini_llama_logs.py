#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Logs of mini-llama other than log.jsonl:

- TensorBoard's event files, read by this script, and by TensorBoard where it is installed
- MLPerf's lines, checked by MLCommons' compliance checker where it is installed
- FLOPs and roofs

usage: mini_llama_logs.py PROGRAM [NAME...]
"""
import json
import math
import shutil
import struct
from pathlib import Path

import mini_llama
from mini_llama import SHAPE, Scratch, records


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def fields(data):
    """(number, value) pairs of a protocol buffer: integers, bytes, or 4 or 8 raw bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                return value

    while at < len(data):
        key = varint()
        size = {0: None, 1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        if key & 7 == 2:
            size = varint()
        yield key >> 3, data[at:at + size]
        at += size


def events(path):
    data, at, found = Path(path).read_bytes(), 0, []
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        body = data[at + 12:at + 12 + length]
        body_crc, = struct.unpack_from("<I", data, at + 12 + length)
        for part, stored in ((data[at:at + 8], length_crc), (body, body_crc)):
            crc = crc32c(part)
            assert stored == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        at += 16 + length
        found.append(dict(fields(body)))
    return found


def scalars(path):
    found = []
    for e in events(path):
        for number, value in fields(e.get(5, b"")):
            assert number == 1
            parts = dict(fields(value))
            found.append((e.get(2, 0), parts[1].decode(), struct.unpack("<f", parts[2])[0]))
    return found


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Logs(Scratch):
    def test_crc(self):
        self.assertEqual(crc32c(bytes(32)), 0x8A9136AA)  # RFC 3720, B.4
        self.assertEqual(crc32c(bytes(range(32))), 0x46DD794E)

    def test_tensorboard_through_a_resume(self):
        self.train("whole", checkpoint_every=2)
        self.train("parts", "--tensorboard", checkpoint_every=2)
        for step in (6, 8):  # as if it were lost
            shutil.rmtree(self.checkpoint("parts", step))
        self.succeed("train", "--resume", "parts", "--tensorboard")  # from the start: no checkpoint is left
        files = sorted((self.folder / "parts/tensorboard").iterdir())
        self.assertEqual(len(files), 2)
        # A reader that drops records voided by a session start sees one curve.
        seen = {}
        for file in files:
            for e in events(file):
                if 7 in e:
                    seen = {key: v for key, v in seen.items() if key[1] < e[2]}
            for step, tag, value in scalars(file):
                seen[tag, step] = value
        for r in records(self.folder / "whole/log.jsonl", "step"):
            self.assertEqual(seen["train/loss", r["step"]], float32(r["loss"]))

    def test_tensorboard_file(self):
        self.train("run", "--tensorboard", "--roof", "1e12")
        path, = (self.folder / "run/tensorboard").iterdir()
        first = events(path)[0]
        self.assertEqual(first[3], b"brain.Event:2")
        wanted = []
        documentation = (Path(__file__).resolve().parents[2] / "docs/reference/logs.md").read_text()
        tags = {"step": {"loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/gradient_norm",
                         "tokens_per_s": "train/tokens_per_s", "roof_share": "train/roof_share",
                         "loader_share": "train/loader_share"},
                "eval": {"val_loss": "validation/loss", "bits_per_byte": "validation/bits_per_byte"}}
        for tag in [tag for named in tags.values() for tag in named.values()]:
            self.assertIn(f"`{tag}`", documentation)
        for r in records(self.folder / "run/log.jsonl"):
            wanted += [(r["step"], tag, float32(r[key])) for key, tag in tags.get(r["event"], {}).items()]
        self.assertEqual(scalars(path), wanted)
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            return
        accumulator = EventAccumulator(str(path.parent))
        accumulator.Reload()
        for tag in {tag for _, tag, _ in wanted}:
            self.assertEqual([(e.step, e.value) for e in accumulator.Scalars(tag)],
                             [(step, value) for step, t, value in wanted if t == tag])

    def test_flops_and_roof(self):
        self.train("run", "--roof", "2e9", steps=2)
        start = records(self.folder / "run/log.jsonl", "start")[0]
        d, f, v, s = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"], 32
        q, kv = SHAPE["num_attention_heads"] * SHAPE["head_dim"], SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
        weights = d * (q + 2 * kv) + q * d + 3 * d * f + v * d
        self.assertEqual(start["flops_per_token"], 6 * weights + 6 * q * s)
        self.assertEqual(start["roof"], {"flops_per_s": 2e9, "source": "given"})
        for r in records(self.folder / "run/log.jsonl", "step"):
            self.assertTrue(math.isclose(r["flops_per_s"], r["tokens_per_s"] * start["flops_per_token"], rel_tol=1e-12))
            self.assertEqual(r["roof_share"], r["flops_per_s"] / 2e9)
        self.train("none", steps=2)
        self.assertIsNone(records(self.folder / "none/log.jsonl", "start")[0]["roof"])
        self.assertEqual({r["roof_share"] for r in records(self.folder / "none/log.jsonl", "step")}, {None})
        self.train("measured", "--roof", "measure", "--threads", 1, steps=2)
        roof = records(self.folder / "measured/log.jsonl", "start")[0]["roof"]
        self.assertGreater(roof["flops_per_s"], 0)
        for bad in ("fast", "-1", "0", "1e9x", "inf", "nan"):
            self.refuse([*self.train_command("bad"), "--roof", bad], "--roof", bad)


class MLPerf(Scratch):
    """Text of one letter: a tiny model meets the open division's bound at once."""

    def run_benchmark(self, benchmark, *more, **options):
        (self.folder / "easy.txt").write_bytes(b"ab" * 100000)
        flags = {"learning_rate": 0.02, "warmup": 2, "sequence": 32, "batch": 2, "accumulate": 2, "steps": 200,
                 "eval_every_samples": 16, "eval_windows": 5, "final_eval_windows": 5, **options}
        out = self.succeed("train", "--out", "run", "--data", "easy.txt", "--mlperf", benchmark,
                           *mini_llama.as_flags({**SHAPE, **flags}), *more)
        lines = (self.folder / "run/mlperf.log").read_text().splitlines()
        for line in lines:
            self.assertTrue(line.startswith(":::MLLOG {"))
        return out, [json.loads(line[9:]) for line in lines]

    def check_compliance(self):
        try:
            from mlperf_logging.compliance_checker import mlp_compliance
        except ImportError:
            return
        checker = mlp_compliance.make_checker("training", "6.0.0", False, True)
        ok, *_ = mlp_compliance.main(str(self.folder / "run/mlperf.log"), "training_6.0.0/common.yaml", checker)
        self.assertTrue(ok)

    def test_llama31_8b(self):
        _, lines = self.run_benchmark("llama31_8b", target_loss=0.9)
        self.check_compliance()
        values = {line["key"]: line["value"] for line in lines}
        self.assertIn("not an MLPerf submission", values["submission_org"])
        self.assertEqual((values["submission_division"], values["global_batch_size"],
                          values["gradient_accumulation_steps"]), ("open", 4, 2))
        self.assertEqual((values["opt_adamw_epsilon"], values["opt_adamw_beta_2"], values["eval_samples"]),
                         (1e-5, 0.95, 5))
        keys = [line["key"] for line in lines]
        for earlier, later in (("cache_clear", "init_start"), ("init_start", "init_stop"), ("seed", "init_stop"),
                               ("init_stop", "run_start"), ("run_start", "block_start"), ("block_stop", "eval_start"),
                               ("eval_start", "eval_accuracy"), ("eval_accuracy", "eval_stop"),
                               ("eval_stop", "run_stop")):
            self.assertLess(keys.index(earlier), keys.index(later))
        self.assertEqual(keys[-1], "run_stop")
        evaluations = [line for line in lines if line["key"] == "eval_accuracy"]
        self.assertEqual([e["metadata"]["samples_count"] for e in evaluations],
                         [16 * (i + 1) for i in range(len(evaluations))])
        self.assertTrue(all(e["value"] > 0.9 for e in evaluations[:-1]))
        self.assertLessEqual(evaluations[-1]["value"], 0.9)
        self.assertEqual(lines[-1]["metadata"]["status"], "success")
        # The losses equal the log's, and no evaluation precedes the first step.
        log = records(self.folder / "run/log.jsonl")
        self.assertEqual([r["val_loss"] for r in log if r["event"] == "eval"], [e["value"] for e in evaluations])
        self.assertEqual(log[-1]["status"], "target")
        self.assertGreater(log[-1]["time_to_target"], 0)

    def test_lora_leaves_out_its_first_evaluations(self):
        _, lines = self.run_benchmark("llama2_70b_lora", target_loss=0.9)
        self.check_compliance()
        first = next(line for line in lines if line["key"] == "eval_accuracy")
        self.assertEqual(first["metadata"]["samples_count"], 16 * (math.floor(0.125 * 4 + 2) + 1))

    def test_evaluated_are_the_sequences_there_are(self):
        _, lines = self.run_benchmark("llama31_8b", steps=8, target_loss=1e-9, eval_windows=100000,
                                      final_eval_windows=100000)
        start, = records(self.folder / "run/log.jsonl", "start")
        end, = records(self.folder / "run/log.jsonl", "end")
        values = {line["key"]: line["value"] for line in lines}
        self.assertEqual((lines[-1]["key"], lines[-1]["metadata"]["status"]), ("run_stop", "aborted"))
        self.assertEqual((end["status"], end["time_to_target"]), ("ok", None))
        self.assertEqual(values["eval_samples"], len(end["window_losses"]))
        self.assertEqual((values["eval_samples"], values["train_samples"]),
                         (start["val_windows"], start["train_windows"]))
        self.refuse(["plan", "--mlperf", "llama31_8b", "--on-divergence", "rollback", "--sequence", 32],
                    "--on-divergence", "--mlperf")

    def test_defaults_are_the_rules_and_are_overridden(self):
        self.refuse(["plan", "--mlperf", "llama31_8B"], "--mlperf", "llama31_8b")
        self.write("c.json", {"data": ["easy.txt"], "model": SHAPE,
                              "train": {"mlperf": "llama31_8b", "sequence": 32, "batch": 2, "steps": 4,
                                        "eval_windows": 2}})
        (self.folder / "easy.txt").write_bytes(b"ab" * 10000)
        self.succeed("train", "--config", "c.json", "--out", "run", "--eval-windows", 3)
        train = json.loads((self.folder / "run/config.json").read_text())["train"]
        self.assertEqual((train["epsilon"], train["sequence"], train["eval_windows"], train["eval_every_samples"],
                          train["target_loss"]), (1e-5, 32, 3, 12288, 3.3))


if __name__ == "__main__":
    mini_llama.main(__doc__)
