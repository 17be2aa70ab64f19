#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""mini-llama with a GPT-2: resume, replay of a device's run, healing, adapters, statistics, llm.c's files.

usage: mini_llama_gpt2.py PROGRAM [NAME...]
"""
import json
import struct

import mini_llama
from mini_llama import THREADS, TRAIN, as_flags, records
from mini_llama_devices import OnDevice
from safetensors_bytes import load

SHAPE = {"vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "layer_norm_epsilon": 1e-5,
         "initializer_range": 0.02}


class Gpt2(OnDevice):
    def setUp(self):
        super().setUp()
        (self.folder / "small.json").write_text(json.dumps({"gpt2": SHAPE}))

    def run_gpt2(self, out, *more, **options):
        flags = {**TRAIN, **THREADS, "steps": 4, "checkpoint_every": 2, **options}
        return self.succeed("train", "--config", "small.json", "--out", out, "--data", "text.txt", *as_flags(flags),
                            *more)

    def checkpoint(self, run, step):
        return self.folder / run / f"checkpoints/step-{step:09}"

    def test_a_run_resumes_and_is_replayed(self):
        self.run_gpt2("run", "--recipe", "mxfp4_h16", "--digest-steps", "2:4", statistics_every=2)
        self.run_gpt2("parts", "--recipe", "mxfp4_h16", "--stop-at", 2, statistics_every=2)
        self.succeed("train", "--resume", "parts", "--no-progress")
        for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
            self.assertEqual((self.checkpoint("run", 4) / name).read_bytes(),
                             (self.checkpoint("parts", 4) / name).read_bytes())
        config = json.loads((self.checkpoint("run", 4) / "config.json").read_text())
        self.assertEqual((config["model_type"], config["n_layer"]), ("gpt2", 2))
        self.assertIn(" digests", self.replay("--steps", "2:4"))
        self.assertIn('"layer":1,', (self.folder / "run/statistics.jsonl").read_text())
        self.succeed("eval", "--checkpoint", "run")
        self.succeed("sample", "--checkpoint", "run", "--prompt", "the ", "--tokens", 8)

    def test_a_device_leaves_the_cpus_bytes(self):
        device = self.device()
        for recipe in ("mxfp4_h16", "fp8_amd"):
            self.run_gpt2("run", "--recipe", recipe, "--device", device, "--overwrite", steps=2, batch=1,
                          eval_windows=1, final_eval_windows=1)
            self.assertIn("of the checkpoint are equal", self.replay("--steps", "0:2", "--device", "cpu"))

    def test_adapters_stand_beside_a_checkpoint_and_heal(self):
        self.run_gpt2("base", steps=2)
        (self.folder / "heal.json").write_text(json.dumps(
            {"name": "heal", "phases": [{"recipe": "mxfp4", "at": 0}, {"recipe": "fp8_amd", "at": 2}]}))
        self.run_gpt2("lora", "--init", "base", "--schedule", "heal.json", "--lora-rank", 4, "--lora-targets",
                      "c_attn,c_proj,c_fc")
        self.run_gpt2("named", "--init", "base", "--lora-rank", 4, steps=1)
        config = json.loads((self.folder / "named/config.json").read_text())
        self.assertEqual(config["lora"]["targets"], ["c_attn"])
        options = {"init": "base", "data": ["text.txt"], "lora": {"rank": 4}, "train": {"sequence": 32}}
        study = {"name": "s", "seeds": 1, "baseline": "bf16", "options": options, "arms": [{"name": "bf16"}]}
        (self.folder / "study.json").write_text(json.dumps(study))
        self.succeed("study", "study.json", "--out", "study", "--budget")
        self.refuse(["train", "--init", "base", "--out", "b", "--data", "text.txt", "--lora-targets", "c_attn,q_proj"],
                    "--lora-targets: the model has no linear layer 'q_proj'")
        tensors = load(self.checkpoint("lora", 4) / "adapter_model.safetensors")
        self.assertIn("base_model.model.transformer.h.1.mlp.c_proj.lora_B.weight", tensors)
        self.succeed("merge", "--base", "base", "--adapter", "lora", "--out", "merged")
        self.succeed("eval", "--checkpoint", "merged", "--data", "text.txt", "--sequence", 32)

    def llmc_file(self, tensors, dtype):
        """Bytes of the file that llm.c's train_gpt2.py writes."""
        width, heads, layers = SHAPE["n_embd"], SHAPE["n_head"], SHAPE["n_layer"]
        header = [20240326, {"F32": 3, "BF16": 5}[dtype], SHAPE["n_positions"], 256, layers, heads, width, 256]
        names = ["wte.weight", "wpe.weight"]
        for kind in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            names += [f"h.{i}.{kind}.{part}" for part in ("weight", "bias") for i in range(layers)]
        words = []
        for name in names + ["ln_f.weight", "ln_f.bias"]:
            _, shape, data = tensors["transformer." + name]
            own = struct.unpack(f"<{len(data) // 4}I", data)
            if ".c_" in name and name.endswith("weight"):  # Conv1D
                own = [x for column in range(shape[1]) for x in own[column::shape[1]]]
            words += own
        if dtype == "BF16":  # to nearest even
            body = struct.pack(f"<{len(words)}H", *(x + 0x7fff + (x >> 16 & 1) >> 16 for x in words))
        else:
            body = struct.pack(f"<{len(words)}I", *words)
        return struct.pack("<256i", *header, *[0] * 248) + body

    def test_files_of_llm_c(self):
        self.run_gpt2("run", steps=2)
        tensors = load(self.checkpoint("run", 2) / "model.safetensors")
        for dtype in ("BF16", "F32"):
            self.succeed("convert", "--from", "run", "--out", dtype, "--dtype", dtype)
            self.assertTrue((self.folder / dtype).read_bytes() == self.llmc_file(tensors, dtype), dtype)
        self.succeed("convert", "--from", "F32", "--out", "again")
        self.assertEqual(load(self.folder / "again/model.safetensors"), tensors)
        self.run_gpt2("more", "--init", "again", steps=1)
        self.refuse(["convert", "--from", "text.txt", "--out", "b"], "not a model of llm.c")
        self.refuse(["convert", "--from", "run", "--out", "F32"], "exists")
        config = self.folder / "again/config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "odd": 1}))
        said = self.refuse(["convert", "--from", "again", "--out", "b"], "odd: unknown key")
        self.assertNotIn("--ignore-config-key", said)

    def test_flags_of_a_llama_are_refused(self):
        self.refuse(["train", "--config", "small.json", "--out", "run", "--data", "text.txt", "--hidden-size", 64],
                    "--hidden-size", "is of a Llama")
        self.run_gpt2("run", steps=1)
        self.refuse(["train", "--init", "run", "--out", "b", "--data", "text.txt", "--num-hidden-layers", 3],
                    "--num-hidden-layers", "is of a Llama")
        for config, said in (({"gpt2": {"n_embd": 64}}, "c.json): 64 contradicts --init run"),
                             ({"model": {"hidden_size": 32}}, "--init run: is a model of another kind")):
            (self.folder / "c.json").write_text(json.dumps(config))
            self.refuse(["train", "--config", "c.json", "--init", "run", "--out", "b", "--data", "text.txt",
                         "--sequence", 32], said)
        start = records(self.folder / "run/log.jsonl", "start")[0]
        self.assertEqual(start["config"]["gpt2"], SHAPE)


if __name__ == "__main__":
    mini_llama.main(__doc__)
