# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Training from given weights, and adapters beside them: what a run leaves, exact resume, the base by its digest, merging,
and every bad input with its exit code and its one line.

usage: mini_llama_lora.py PROGRAM [NAME...]
"""
import json
import shutil
import struct
import sys
import unittest
from pathlib import Path

import mini_llama
from mini_llama import Scratch, records, tree_of

SPLIT = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
FUSED = "qkv_proj,o_proj,gate_up_proj,down_proj"


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} and the metadata."""
    content = Path(path).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    data = content[8 + length:]
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}, metadata


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


class Lora(Scratch):
    def setUp(self):
        super().setUp()
        self.train("base", schedule="bf16", learning_rate=0.01)
        self.base = self.checkpoint("base").relative_to(self.folder)

    def lora_command(self, out, *more, **options):
        return self.train_command(out, "--init", self.base, *more, **{"lora_rank": 4, "lora_alpha": 12, "seed": 7, **options})

    def lora(self, out, *more, **options):
        return self.succeed(*self.lora_command(out, *more, **{"learning_rate": 0.01, **options}))

    def evaluate(self, *arguments):
        return json.loads(self.succeed("eval", "--threads", 1, *arguments))["val_loss"]


class Init(Lora):
    def test_all_weights_train_from_given_ones(self):
        expected = self.evaluate("--checkpoint", "base", "--windows", 4)
        for init in ("base", self.base, self.base / "model.safetensors"):
            out = f"from-{Path(init).name}"
            self.train(out, "--init", init)
            self.assertEqual(records(self.folder / out / "log.jsonl", "eval")[0]["val_loss"], expected)
            self.assertIn("model.safetensors", tree_of(self.checkpoint(out)))
        self.assertEqual(tree_of(self.checkpoint("from-base"))["model.safetensors"],
                         tree_of(self.checkpoint("from-model.safetensors"))["model.safetensors"])

    def test_the_shape_is_the_given_models(self):
        shape = [part for flag in ("sequence", "batch", "steps") for part in ("--" + flag, {"sequence": 32, "batch": 2, "steps": 2}[flag])]
        self.succeed("train", "--data", "text.txt", "--out", "run", "--init", "base", *shape)
        self.assertEqual(records(self.folder / "run/log.jsonl", "start")[0]["config"]["model"]["hidden_size"], 32)

    def test_resume_needs_no_base(self):
        self.train("whole", "--init", "base", learning_rate=0.01)
        self.train("parts", "--init", "base", "--stop-at", 4, learning_rate=0.01)
        (self.folder / "base").rename(self.folder / "elsewhere")
        self.succeed("train", "--resume", "parts")
        self.assert_same_checkpoint("whole", "parts")


class Adapters(Lora):
    FILES = ["adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json"]

    def check_resume(self, stop=4, **options):
        self.lora("whole", **options)
        self.lora("parts", "--stop-at", stop, **options)
        self.succeed("train", "--resume", "parts")
        first, second = tree_of(self.checkpoint("whole")), tree_of(self.checkpoint("parts"))
        self.assertEqual(sorted(first), self.FILES)
        self.assertEqual(first, second)
        end = records(self.folder / "whole/log.jsonl", "end")[0]
        self.assertEqual(self.evaluate("--checkpoint", "whole"), end["final_val_loss"])
        # Before the first step the model is the base under the same recipe.
        start = records(self.folder / "whole/log.jsonl", "eval")[0]
        if "fixed_signs" not in start["recipe"]:  # whose signs are of the run's own seed
            self.assertEqual(start["val_loss"], self.evaluate("--checkpoint", "base", "--recipe", start["recipe"], "--windows", 4))
        self.assertLess(end["final_val_loss"], 1.05 * start["val_loss"])

    def test_mxfp4(self):
        self.check_resume(schedule="mxfp4_h16")

    def test_fp8_split_and_accumulated(self):
        self.check_resume(schedule="fp8_amd", lora_targets=SPLIT, accumulate=2)

    def test_fixed_signs_fused(self):
        self.check_resume(schedule="mxfp4_h16_fixed_signs", lora_targets=FUSED)

    def test_healing_as_amd_does(self):
        for schedule in ("amd_lora", "heal_scaled_stash"):
            for stop in (4, 5, 6):  # the switch is behind step 5: 339 of 550
                with self.subTest(schedule=schedule, stop=stop):
                    self.check_resume(stop, schedule=schedule)
                    for run in ("whole", "parts"):
                        switch, = records(self.folder / run / "log.jsonl", "switch")
                        memory = switch["memory"]
                        self.assertEqual((switch["step"], switch["reason"], switch["scales"]),
                                         (5, {"kind": "step", "at": 5}, "reset"))
                        # The stash is all that comes; MXFP4 and FP8 are never resident together.
                        self.assertEqual(memory["quantized_between"], 0)
                        self.assertEqual(memory["quantized_peak"], max(memory["quantized_before"], memory["quantized_after"]))
                        self.assertTrue(0 < memory["streamed"] < memory["quantized_after"])
                        self.assertLess(memory["quantized_peak"], memory["quantized_before"] + memory["streamed"])
                        start = records(self.folder / run / "log.jsonl", "start")[0]["memory"]
                        self.assertGreaterEqual(start["stash"]["bytes"], memory["streamed"])
                        shutil.rmtree(self.folder / run)

    def test_healing_by_triggers_and_back(self):
        plateau = {"kind": "plateau", "patience": 1, "min_delta": 10}
        noise = {"kind": "gradient_noise", "patience": 1, "ratio": 1e9, "every": 2}
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "fp8_amd", "trigger": plateau, "scales": "seed"},
                                            {"recipe": "mxfp4_h16", "trigger": noise}, {"recipe": "bf16", "trigger": plateau}]})
        for stop in range(1, 8):
            with self.subTest(stop=stop):
                self.check_resume(stop, schedule="heal.json", eval_every=1)
                switches = records(self.folder / "whole/log.jsonl", "switch")
                self.assertEqual([(s["step"], s["to"], s["reason"]["kind"]) for s in switches],
                                 [(2, "fp8_amd", "plateau"), (4, "mxfp4_h16", "gradient_noise"), (6, "bf16", "plateau")])
                for run in ("whole", "parts"):
                    shutil.rmtree(self.folder / run)

    def test_another_recipe_in_the_middle(self):
        for stop in (3, 5, 6):
            self.check_resume(stop, schedule="mxfp4_h16_heal", lora_targets="q_proj,v_proj,down_proj")
            for run in ("whole", "parts"):
                shutil.rmtree(self.folder / run)

    def test_threads_give_equal_bytes(self):
        self.lora("one", "--threads", 1)
        self.lora("three", "--threads", 3)
        self.assertEqual(tree_of(self.checkpoint("one")), tree_of(self.checkpoint("three")))

    def test_tensors_have_pefts_names_and_shapes(self):
        self.lora("fused", lora_targets=FUSED)
        self.lora("split", lora_targets=SPLIT)
        fused, metadata = read_safetensors(self.checkpoint("fused") / "adapter_model.safetensors")
        split, _ = read_safetensors(self.checkpoint("split") / "adapter_model.safetensors")
        self.assertEqual(metadata, {"format": "pt"})
        shapes = {"self_attn.q_proj": (32, 64), "self_attn.k_proj": (32, 32), "self_attn.v_proj": (32, 32),
                  "self_attn.o_proj": (64, 32), "mlp.gate_proj": (32, 64), "mlp.up_proj": (32, 64), "mlp.down_proj": (64, 32)}
        expected = {}
        for module, (inputs, outputs) in shapes.items():
            name = f"base_model.model.model.layers.0.{module}.lora_"
            expected[name + "A.weight"] = [4, inputs]
            expected[name + "B.weight"] = [outputs, 4]
        for tensors in (fused, split):
            self.assertEqual({name: shape for name, (_, shape, _) in tensors.items()}, expected)
        a = [fused[f"base_model.model.model.layers.0.self_attn.{m}_proj.lora_A.weight"][2] for m in "qkv"]
        self.assertTrue(a[0] == a[1] == a[2])
        config = json.loads((self.checkpoint("fused") / "adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"], config["lora_dropout"], config["peft_type"], config["base_model_name_or_path"]),
                         (4, 12, 0.1, "LORA", str(self.base)))
        self.assertEqual(config["target_modules"], SPLIT.split(","))

    def test_an_adapter_beside_a_base_that_is_named(self):
        self.lora("run", schedule="fp32", lora_targets=SPLIT)
        own = self.evaluate("--checkpoint", "run")
        self.assertEqual(own, self.evaluate("--checkpoint", "base", "--adapter", "run", "--recipe", "fp32"))
        self.assertNotEqual(own, self.evaluate("--checkpoint", "base", "--recipe", "fp32"))
        # As PEFT leaves it: the two files alone.
        (self.folder / "peft").mkdir()
        for name in self.FILES[:2]:
            shutil.copy(self.checkpoint("run") / name, self.folder / "peft")
        self.assertEqual(own, self.evaluate("--checkpoint", "base", "--adapter", "peft", "--recipe", "fp32"))
        texts = [self.succeed("sample", "--checkpoint", "base", "--tokens", 4, "--temperature", 0, *more)
                 for more in ((), ("--adapter", "peft"), ("--adapter", "run"))]
        self.assertEqual(texts[1], texts[2])

    def test_a_merged_model_has_the_loss(self):
        """FP32 on both sides: the two differ by roundings of 2^-24."""
        self.lora("run", schedule="fp32", lora_targets=FUSED, learning_rate=0.05)
        self.succeed("merge", "--base", "base", "--adapter", "run", "--out", "merged")
        self.assertEqual(sorted(tree_of(self.folder / "merged")), ["config.json", "model.safetensors"])
        self.train("check", "--init", "merged", schedule="fp32")
        found = records(self.folder / "check/log.jsonl", "eval")[0]["val_loss"]
        expected = self.evaluate("--checkpoint", "base", "--adapter", "run", "--recipe", "fp32", "--windows", 4)
        self.assertLess(abs(found - expected), 1e-6)
        base = self.evaluate("--checkpoint", "base", "--recipe", "fp32", "--windows", 4)
        self.assertGreater(abs(base - expected), 1e-3)
        self.succeed("merge", "--base", "base", "--adapter", "run", "--out", "narrow", "--dtype", "BF16")
        tensors, _ = read_safetensors(self.folder / "narrow/model.safetensors")
        self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {"BF16"})

    def test_the_plan_shows_what_adapters_take(self):
        def plan(*more):
            command = self.train_command("out", schedule="mxfp4_h16")[3:]
            rows = [line.split() for line in self.succeed("plan", *command, *more).splitlines()]
            return {row[0]: int(row[1]) for row in rows}
        base, lora = plan(), plan("--init", self.base, "--lora-rank", 4)
        self.assertEqual((base["adapters"], lora["quantized"]), (0, base["quantized"]))
        self.assertGreater(lora["adapters"], 0)
        self.assertLess(lora["moments"], base["moments"] / 2)
        self.lora("run", schedule="mxfp4_h16", lora_targets="qkv_proj,o_proj")
        start = records(self.folder / "run/log.jsonl", "start")[0]
        self.assertEqual({name: entry["peak"] for name, entry in start["memory"].items()}, lora)
        self.assertEqual(start["trained_parameters"], 4 * (32 + 128) + 4 * (64 + 32))

    def test_the_plan_of_llama_2_70b(self):
        """MLPerf's adapters have 44.6 million parameters; MXFP4 takes 4.25 bits a weight and orientation, the head 16."""
        shape = {"vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                 "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192}
        self.write("70b.json", shape)
        rows = [line.split() for line in self.succeed("plan", "--model-config", "70b.json", "--init", "base", "--lora-rank", 16,
                                                      "--recipe", "mxfp4_h16", "--batch", 1, "--sequence", 8192).splitlines()]
        plan = {row[0]: int(row[1]) for row in rows}
        self.assertEqual(plan["masters"], 4 * 80 * 16 * ((8192 + 10240) + (8192 + 8192)))
        weights = 80 * 8192 * (10240 + 8192 + 2 * 28672 + 28672)
        self.assertAlmostEqual(plan["quantized"] / (2 * weights * 4.25 / 8 + 2 * 32000 * 8192), 1, delta=1e-3)

    def test_a_base_that_moved_and_one_that_changed(self):
        self.lora("whole")
        self.lora("parts", "--stop-at", 4)
        (self.folder / "base").rename(self.folder / "elsewhere")
        self.refuse(["train", "--resume", "parts"], str(self.base))
        moved = Path("elsewhere/checkpoints") / self.base.name
        copy = self.folder / "changed"
        shutil.copytree(self.folder / moved, copy)
        tensors, _ = read_safetensors(copy / "model.safetensors")
        dtype, shape, data = tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.layers.0.mlp.up_proj.weight"] = dtype, shape, data[:-1] + bytes([data[-1] ^ 1])
        write_safetensors(copy / "model.safetensors", tensors)
        self.refuse(["train", "--resume", "parts", "--init", "changed"], "changed: not the weights that the adapters were trained beside")
        self.succeed("train", "--resume", "parts", "--init", moved)
        self.assertEqual(*(tree_of(self.checkpoint(run))["adapter_model.safetensors"] for run in ("whole", "parts")))


class BadInput(Lora):
    def test_fields(self):
        for flag, value, *parts in (("rank", "0", "--lora-rank: 0"), ("rank", "-3", "--lora-rank"), ("alpha", "nan", "--lora-alpha: nan"),
                                    ("alpha", "inf", "--lora-alpha"), ("alpha", "0", "--lora-alpha"), ("dropout", "1", "--lora-dropout: 1"),
                                    ("dropout", "nan", "--lora-dropout"), ("dropout", "-0.1", "--lora-dropout"),
                                    ("targets", "x_proj", "--lora-targets", "'x_proj'", "did you mean"),
                                    ("targets", "q_proj,q_proj", "--lora-targets", "twice"),
                                    ("targets", "qkv_proj,q_proj", "--lora-targets", "'q_proj' is a part of 'qkv_proj'"),
                                    ("init", "zero", "lora-init")):
            with self.subTest(flag=flag, value=value):
                self.refuse([*self.train_command("out"), "--init", self.base, f"--lora-{flag}={value}"], *parts)
        self.refuse([*self.train_command("out"), "--lora-rank", 4], "init: is missing")
        self.write("c.json", {"lora": {"rank": 4, "targets": []}, "init": "base", "data": ["text.txt"]})
        self.refuse(["train", "--config", "c.json", "--out", "out"], "c.json: lora.targets: names no linear layer")
        self.write("c.json", {"lora": {"rnk": 4}})
        self.refuse(["train", "--config", "c.json", "--out", "out"], "lora.rnk", "did you mean 'rank'?")
        self.refuse([*self.lora_command("out", schedule="mxfp4_h16_step_signs")], "mxfp4_h16_step_signs", "frozen")

    def test_a_base_that_is_none(self):
        self.refuse([*self.train_command("out"), "--init", "nowhere"], "nowhere")
        self.refuse([*self.train_command("out"), "--init", "text.txt"], "text.txt")
        self.refuse(self.train_command("out", "--init", self.base, intermediate_size=96), "gate_proj", "64 x 32", "96 x 32")
        self.lora("run")
        self.refuse([*self.train_command("out"), "--init", "run"], "holds adapters, no model")

    def adapter(self, change_config=None, change_tensors=None):
        folder = self.folder / "adapter"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        config = json.loads((self.checkpoint("run") / "adapter_config.json").read_text())
        tensors, _ = read_safetensors(self.checkpoint("run") / "adapter_model.safetensors")
        config.update(change_config or {})
        if change_tensors:
            change_tensors(tensors)
        (folder / "adapter_config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "delete"}))
        write_safetensors(folder / "adapter_model.safetensors", tensors)

    def check_adapter(self, *parts):
        self.refuse(["eval", "--checkpoint", "base", "--adapter", "adapter"], *parts)
        self.refuse(["merge", "--base", "base", "--adapter", "adapter", "--out", "merged"], *parts)

    def test_adapters_of_another_kind_or_shape(self):
        self.lora("run", lora_targets="q_proj,v_proj")
        for key, value, *parts in (("r", 8, "its shape 4 x 32 is not the model's 8 x 32"), ("r", 0, "adapter_config.json: r: 0"),
                                   ("r", "delete", "r is missing"), ("lora_alpha", "much", "lora_alpha: expected a number"),
                                   ("lora_alpha", -1, "lora_alpha"), ("lora_dropout", 1.5, "lora_dropout"),
                                   ("peft_type", "IA3", "peft_type"), ("use_dora", True, "use_dora"), ("bias", "all", "bias"),
                                   ("rank_pattern", {"q_proj": 2}, "rank_pattern"), ("modules_to_save", ["lm_head"], "modules_to_save"),
                                   ("init_lora_weights", "pissa", "init_lora_weights"), ("layers_to_transform", [0], "layers_to_transform"),
                                   ("fan_in_fan_out", True, "fan_in_fan_out"), ("use_someday", 3, "use_someday")):
            with self.subTest(key=key, value=value):
                self.adapter({key: value})
                self.check_adapter("adapter", *parts)
        name = "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight"
        self.adapter(None, lambda t: t.pop(name))
        self.check_adapter(f"'{name}' is missing")
        self.adapter(None, lambda t: t.update({"base_model.model.lm_head.lora_A.weight": ("F32", [1], b"\0\0\0\0")}))
        self.check_adapter("lm_head.lora_A.weight", "no such parameter")
        self.adapter(None, lambda t: t.clear())
        self.check_adapter("no tensor of a linear layer's adapter")

    def test_commands_without_their_parts(self):
        self.lora("run")
        self.refuse(["eval", "--checkpoint", "base", "--adapter", "base"], "holds no adapters")
        self.refuse(["eval", "--checkpoint", "run", "--adapter", "run"], "--adapter", "holds adapters itself")
        self.refuse(["merge", "--base", "run", "--adapter", "run", "--out", "merged"], "holds adapters, no model")
        self.refuse(["merge", "--base", "base", "--adapter", "run", "--out", "base"], "base: exists")
        self.refuse(["merge", "--base", "base", "--adapter", "run"], "--out")
        self.refuse(["merge", "--base", "base", "--adapter", "run", "--out", "m", "--dtype", "F8"], "dtype")
        self.refuse(["train", "--resume", "run", "--lora-rank", 8], "--lora-rank", "cannot be changed")
        shutil.move(self.folder / "base", self.folder / "gone")
        self.refuse(["eval", "--checkpoint", "run"], str(self.base), "--adapter")

    def test_a_base_is_not_overwritten(self):
        for base in ("base", self.base):
            self.refuse([*self.train_command("base"), "--overwrite", "--init", base, "--lora-rank", 4], str(base), "--overwrite")

    def test_a_fused_checkpoint_whose_parts_disagree(self):
        self.lora("run", "--stop-at", 4, lora_targets=FUSED)
        path = self.checkpoint("run", 4) / "adapter_model.safetensors"
        tensors, _ = read_safetensors(path)
        name = "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"
        dtype, shape, data = tensors[name]
        tensors[name] = dtype, shape, data[:-1] + bytes([data[-1] ^ 1])
        write_safetensors(path, tensors)
        self.refuse(["train", "--resume", "run"], name, "fused")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    mini_llama.PROGRAM = str(Path(sys.argv[1]).resolve())
    select = [word for name in sys.argv[2:] for word in ("-k", name)]
    unittest.main(argv=sys.argv[:1] + select, verbosity=1)
