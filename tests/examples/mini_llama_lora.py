# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Training from given weights, and adapters on them: files of a run, exact resume, the base's digest, runs from
given adapters, AMD's configuration, merging. Every bad input gives its exit code and one line.

usage: mini_llama_lora.py PROGRAM [NAME...]
"""
import json
import shutil
from pathlib import Path

import mini_llama
from mini_llama import ADAPTER_FILES, MODEL_FILES, Scratch, as_flags, records, tree_of
from safetensors_bytes import load, read_safetensors, write_safetensors

ROOT = Path(__file__).resolve().parents[2]
SPLIT = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
FUSED = "qkv_proj,o_proj,gate_up_proj,down_proj"


class Lora(Scratch):
    def setUp(self):
        super().setUp()
        self.train("base", schedule="bf16", learning_rate=0.01)
        self.base = self.checkpoint("base").relative_to(self.folder)

    def lora_command(self, out, *more, **options):
        return self.train_command(out, "--init", self.base, *more,
                                  **{"lora_rank": 4, "lora_alpha": 12, "seed": 7, **options})

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

    def test_resume_needs_no_base(self):
        self.train("whole", "--init", "base", learning_rate=0.01)
        self.train("parts", "--init", "base", "--stop-at", 4, learning_rate=0.01)
        (self.folder / "base").rename(self.folder / "elsewhere")
        self.succeed("train", "--resume", "parts")
        self.assert_same_checkpoint("whole", "parts")

    def test_a_place_that_resume_is_given_must_hold_what_the_run_began_with(self):
        """If all weights train, a resume needs the given weights only before the first checkpoint."""
        self.train("wide", checkpoint_every=4, hidden_size=64)
        self.train("other", checkpoint_every=4, seed=2)
        self.lora("adapters")
        self.lora("others", seed=8)
        self.train("whole", "--init", "base", schedule="mxfp4_h16_sr")
        self.train("parts", "--init", "base", "--stop-at", 4, schedule="mxfp4_h16_sr")
        for init, said in (("wide",
                            "its shape 256 x 64 is not the model's 256 x 32; --init takes what the run began with\n"),
                           ("other",
                            "other/checkpoints/step-000000008: not the weights that the run began with (--init)\n"),
                           ("nowhere", "nowhere: no such"), ("adapters", "holds adapters, no model"),
                           ("text.txt", "text.txt: not a directory")):
            with self.subTest(init=init):
                self.refuse(["train", "--resume", "parts", "--init", init], said)
                self.refuse(["replay", "parts", "--steps", "0:4", "--init", init], said)
        shutil.copytree(self.folder / "base", self.folder / "copy")
        self.succeed("train", "--resume", "parts", "--init", "copy")
        for name in MODEL_FILES:
            if name != "trainer_state.json":  # it has the new name
                self.assertEqual(*((self.checkpoint(run) / name).read_bytes() for run in ("whole", "parts")))
        self.train("begun", "--init", "base", "--adapter", "adapters", "--stop-at", 4)
        for adapter, said in (("others", "not the adapters that the run began with (--adapter)"),
                              ("base", "holds no adapters")):
            self.refuse(["train", "--resume", "begun", "--adapter", adapter], said)
            self.refuse(["replay", "begun", "--steps", "0:4", "--adapter", adapter], said)
        self.succeed("train", "--resume", "begun", "--adapter", "adapters")

    def test_a_base_that_goes_on(self):
        """A run keeps the base checkpoint that was newest at its start, although the base trains on."""
        growing = {"learning_rate": 0.01, "checkpoint_every": 4, "keep_checkpoints": 1}
        self.train("growing", "--stop-at", 4, **growing)
        kinds = {"full": (), "lora": ("--lora-rank", 4)}
        for kind, more in kinds.items():
            self.train(f"{kind}-whole", "--init", "growing", *more)
            self.train(f"{kind}-begun", "--init", "growing", "--stop-at", 4, *more)
            shutil.rmtree(self.folder / f"{kind}-begun/checkpoints")  # as if killed before its first checkpoint
        shutil.copytree(self.checkpoint("growing", 4), self.folder / "copy")
        self.train("later", **{**growing, "keep_checkpoints": 2})
        shutil.copytree(self.checkpoint("later", 8), self.checkpoint("growing", 8))
        for kind, wanted in (("full", "weights that the run began"), ("lora", "base that the adapters were trained")):
            shutil.copytree(self.folder / f"{kind}-begun", self.folder / f"{kind}-left")
            self.succeed("train", "--resume", f"{kind}-begun", "--threads", 1)
            self.assert_same_checkpoint(f"{kind}-whole", f"{kind}-begun")
            self.refuse(["train", "--resume", f"{kind}-left", "--init", "growing"],
                        f"step-000000008: not the {wanted}")
        loss = records(self.folder / "lora-whole/log.jsonl", "end")[0]["final_val_loss"]
        self.assertEqual(self.evaluate("--checkpoint", "lora-whole"), loss)
        # The deleted checkpoint is asked for.
        shutil.rmtree(self.checkpoint("growing", 4))
        self.refuse(["eval", "--checkpoint", "lora-whole"], "growing/checkpoints/step-000000004", "--adapter")
        for kind in kinds:
            self.refuse(["train", "--resume", f"{kind}-left"], "growing/checkpoints/step-000000004: is gone",
                        "--keep-checkpoints", "--init")
            self.succeed("train", "--resume", f"{kind}-left", "--init", "copy", "--threads", 1)
            name = "adapter_model.safetensors" if kind == "lora" else "model.safetensors"
            self.assertEqual(*(tree_of(self.checkpoint(f"{kind}-{run}"))[name] for run in ("whole", "left")))
        shutil.copytree(self.checkpoint("growing", 8), self.checkpoint("growing", 4))
        self.refuse(["eval", "--checkpoint", "lora-whole"], "growing/checkpoints/step-000000004",
                    "not the base that the adapters")


class Adapters(Lora):
    def check_resume(self, stop=4, **options):
        self.lora("whole", **options)
        self.lora("parts", "--stop-at", stop, **options)
        self.succeed("train", "--resume", "parts")
        self.assert_same_checkpoint("whole", "parts")
        end = records(self.folder / "whole/log.jsonl", "end")[0]
        self.assertEqual(self.evaluate("--checkpoint", "whole"), end["final_val_loss"])
        # Before the first step, the model is the base under the same recipe.
        start = records(self.folder / "whole/log.jsonl", "eval")[0]
        if "fixed_signs" not in start["recipe"]:  # random signs depend on the run's seed
            self.assertEqual(start["val_loss"],
                             self.evaluate("--checkpoint", "base", "--recipe", start["recipe"], "--windows", 4))
        self.assertLess(end["final_val_loss"], 1.05 * start["val_loss"])

    def test_fp8_split_and_accumulated(self):
        self.check_resume(schedule="fp8_amd", lora_targets=SPLIT, accumulate=2)

    def test_fixed_signs_fused(self):
        self.check_resume(schedule="mxfp4_h16_fixed_signs", lora_targets=FUSED)

    def test_healing_as_amd_does(self):
        """Stopped before the switch after step 5 (339 of 550), at it, and after it."""
        for schedule, stop in (("amd_lora", 4), ("amd_lora", 5), ("heal_scaled_stash", 6)):
            with self.subTest(schedule=schedule, stop=stop):
                self.check_resume(stop, schedule=schedule)
                for run in ("whole", "parts"):
                    switch, = records(self.folder / run / "log.jsonl", "switch")
                    memory = switch["memory"]
                    self.assertEqual((switch["step"], switch["reason"], switch["scales"]),
                                     (5, {"kind": "step", "at": 5}, "reset"))
                    # Only the stash is added: MXFP4 and FP8 are never resident together.
                    self.assertEqual(memory["quantized_between"], 0)
                    self.assertEqual(memory["quantized_peak"],
                                     max(memory["quantized_before"], memory["quantized_after"]))
                    self.assertTrue(0 < memory["streamed"] < memory["quantized_after"])
                    self.assertLess(memory["quantized_peak"], memory["quantized_before"] + memory["streamed"])
                    start = records(self.folder / run / "log.jsonl", "start")[0]["memory"]
                    self.assertGreaterEqual(start["stash"]["bytes"], memory["streamed"])
                    shutil.rmtree(self.folder / run)

    def test_healing_by_triggers_and_back(self):
        plateau = {"kind": "plateau", "patience": 1, "min_delta": 10}
        noise = {"kind": "gradient_noise", "patience": 1, "ratio": 1e9, "every": 2}
        self.write("heal.json",
                   {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "fp8_amd", "trigger": plateau, "scales": "seed"},
                                            {"recipe": "mxfp4_h16", "trigger": noise},
                                            {"recipe": "bf16", "trigger": plateau}]})
        self.check_resume(5, schedule="heal.json", eval_every=1)
        switches = records(self.folder / "whole/log.jsonl", "switch")
        self.assertEqual([(s["step"], s["to"], s["reason"]["kind"]) for s in switches],
                         [(2, "fp8_amd", "plateau"), (4, "mxfp4_h16", "gradient_noise"), (6, "bf16", "plateau")])

    def test_tensors_have_pefts_names_and_shapes(self):
        self.lora("fused", lora_targets=FUSED)
        self.lora("split", lora_targets=SPLIT)
        files = [self.checkpoint(run) / "adapter_model.safetensors" for run in ("fused", "split")]
        fused, split = map(load, files)
        self.assertEqual(read_safetensors(files[0])[0]["__metadata__"], {"format": "pt"})
        shapes = {"self_attn.q_proj": (32, 64), "self_attn.k_proj": (32, 32), "self_attn.v_proj": (32, 32),
                  "self_attn.o_proj": (64, 32), "mlp.gate_proj": (32, 64), "mlp.up_proj": (32, 64),
                  "mlp.down_proj": (64, 32)}
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
        self.assertEqual((config["r"], config["lora_alpha"], config["lora_dropout"], config["peft_type"],
                          config["base_model_name_or_path"]), (4, 12, 0.1, "LORA", str(self.base)))
        self.assertEqual(config["target_modules"], SPLIT.split(","))

    def test_an_adapter_beside_a_base_that_is_named(self):
        self.lora("run", schedule="fp32", lora_targets=SPLIT)
        own = self.evaluate("--checkpoint", "run")
        self.assertEqual(own, self.evaluate("--checkpoint", "base", "--adapter", "run", "--recipe", "fp32"))
        self.assertNotEqual(own, self.evaluate("--checkpoint", "base", "--recipe", "fp32"))
        # PEFT's output: only these two files.
        (self.folder / "peft").mkdir()
        for name in ADAPTER_FILES[:2]:
            shutil.copy(self.checkpoint("run") / name, self.folder / "peft")
        self.assertEqual(own, self.evaluate("--checkpoint", "base", "--adapter", "peft", "--recipe", "fp32"))
        texts = [self.succeed("sample", "--checkpoint", "base", "--tokens", 4, "--temperature", 0, *more)
                 for more in ((), ("--adapter", "peft"), ("--adapter", "run"))]
        self.assertEqual(texts[1], texts[2])

    def test_a_merged_model_has_the_loss(self):
        """FP32 on both sides: results differ by roundings of 2^-24."""
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
        tensors = load(self.folder / "narrow/model.safetensors")
        self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {"BF16"})
        self.assertEqual(json.loads((self.folder / "narrow/config.json").read_text())["torch_dtype"], "bfloat16")
        code, shown = self.on_a_terminal(["merge", "--base", "base", "--adapter", "run", "--out", "again"])
        self.assertEqual((code, shown.count("\n")), (0, 1))
        self.assertIn("merging 0 %", shown)

    def test_the_plan_of_llama_2_70b(self):
        """MLPerf's adapters have 44.6 million parameters. MXFP4 takes 4.25 bits per weight and orientation, the head
        16."""
        shape = {"vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                 "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192}
        self.write("70b.json", shape)
        plan, *_ = self.planned("--model-config", "70b.json", "--init", "base", "--lora-rank", 16, "--recipe",
                                "mxfp4_h16", "--batch", 1, "--sequence", 8192)
        self.assertEqual(plan["masters"], 4 * 80 * 16 * ((8192 + 10240) + (8192 + 8192)))
        weights = 80 * 8192 * (10240 + 8192 + 2 * 28672 + 28672)
        self.assertAlmostEqual(plan["quantized"] / (2 * weights * 4.25 / 8 + 2 * 32000 * 8192), 1, delta=1e-3)


class GivenAdapters(Lora):
    def begin(self, out, adapter, *more, **options):
        return self.succeed(*self.train_command(out, "--init", self.base, "--adapter", adapter, *more,
                                                **{"seed": 9, "learning_rate": 0.01, "schedule": "fp32", **options}))

    def copy_files(self, run, folder="peft"):
        """PEFT's output: only these two files."""
        (self.folder / folder).mkdir()
        for name in ADAPTER_FILES[:2]:
            shutil.copy(self.checkpoint(run) / name, self.folder / folder)

    def config(self, run):
        return records(self.folder / run / "log.jsonl", "start")[0]["config"]

    def matrices(self, run):
        return {name: data for name, (_, _, data) in load(self.checkpoint(run) / "adapter_model.safetensors").items()}

    def test_a_run_begins_with_their_values_and_goes_on_exactly(self):
        self.lora("first", schedule="fp32", lora_targets="q_proj,v_proj,down_proj", lora_dropout=0.2)
        self.copy_files("first")
        expected = self.evaluate("--checkpoint", "base", "--adapter", "first", "--recipe", "fp32", "--windows", 4)
        self.assertNotEqual(expected, self.evaluate("--checkpoint", "base", "--recipe", "fp32", "--windows", 4))
        for number, given in enumerate(("first", "peft")):
            whole, parts = f"whole-{number}", f"parts-{number}"
            self.begin(whole, given)
            lora = self.config(whole)["lora"]
            self.assertEqual({key: lora[key] for key in ("rank", "alpha", "dropout", "targets")},
                             {"rank": 4, "alpha": 12, "dropout": 0.2, "targets": ["q_proj", "v_proj", "down_proj"]})
            self.assertEqual(records(self.folder / whole / "log.jsonl", "eval")[0]["val_loss"], expected)
            self.begin(parts, given, "--stop-at", 4)
            self.succeed("train", "--resume", parts)
            self.assert_same_checkpoint(whole, parts)
            for name in ("adapter_model.safetensors", "optimizer.safetensors"):
                self.assertEqual(tree_of(self.checkpoint(whole))[name], tree_of(self.checkpoint("whole-0"))[name])
        self.assertNotEqual(self.matrices("first"), self.matrices("whole-0"))
        # A learning rate of 0 leaves the given values unchanged, byte for byte.
        self.begin("still", "peft", learning_rate=0)
        self.assertEqual(self.matrices("still"), self.matrices("first"))

    def test_resuming_takes_them_from_the_checkpoint(self):
        self.lora("first")
        self.begin("whole", "first")
        self.begin("parts", "first", "--stop-at", 4)
        self.begin("fresh", "first", "--stop-at", 4)
        shutil.rmtree(self.folder / "fresh/checkpoints")
        shutil.move(self.folder / "first", self.folder / "elsewhere")
        self.succeed("train", "--resume", "parts")
        self.assert_same_checkpoint("whole", "parts")
        # A run killed before its first checkpoint needs the same adapters again.
        self.refuse(["train", "--resume", "fresh"], "first")
        path = next((self.folder / "elsewhere/checkpoints").iterdir()) / "adapter_model.safetensors"
        tensors = load(path)
        name = "base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight"
        dtype, shape, data = tensors[name]
        write_safetensors(path, {**tensors, name: (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))})
        self.refuse(["train", "--resume", "fresh", "--adapter", "elsewhere"],
                    "elsewhere/checkpoints/step-000000008: not the adapters that the run began with")
        write_safetensors(path, tensors)
        self.succeed("train", "--resume", "fresh", "--adapter", "elsewhere")
        self.assertEqual(self.matrices("fresh"), self.matrices("whole"))

    def test_fused_targets(self):
        def a(run):
            return [self.matrices(run)[f"base_model.model.model.layers.0.self_attn.{m}_proj.lora_A.weight"]
                    for m in "qkv"]
        self.lora("fused", lora_targets=FUSED)
        self.copy_files("fused")
        self.begin("from-run", "fused")
        self.begin("from-files", "peft")
        self.begin("said", "peft", lora_targets=FUSED)
        self.assertEqual(self.config("from-run")["lora"]["targets"], FUSED.split(","))
        self.assertEqual(self.config("from-files")["lora"]["targets"], SPLIT.split(","))
        self.assertEqual(len(set(a("from-run"))), 1)
        self.assertEqual(len(set(a("from-files"))), 3)
        self.assertEqual(self.matrices("said"), self.matrices("from-run"))
        # Parts with different A cannot become one.
        self.refuse([*self.train_command("out"), "--init", self.base, "--adapter", "from-files", "--lora-targets",
                     FUSED], "k_proj.lora_A.weight", "as a fused adapter's has to be")

    def test_what_is_said_of_them_is_checked(self):
        self.lora("first", lora_targets="q_proj,o_proj")
        for flag, value, *parts in (("rank", 8, "8 is not the 4 of", "first"), ("alpha", 24, "24.0 is not the 12.0 of"),
                                    ("targets", "q_proj", "q_proj are not the q_proj,o_proj of"),
                                    ("init", "xavier_normal", "excludes --adapter")):
            with self.subTest(flag):
                self.refuse([*self.train_command("out"), "--init", self.base, "--adapter", "first", f"--lora-{flag}",
                             value], f"--lora-{flag}: ", *parts)
        self.write("c.json", {"lora": {"rank": 5, "dropout": 0.3}, "init": "base", "adapter": "first"})
        self.refuse([*self.train_command("out"), "--config", "c.json"], "c.json: lora.rank: 5 is not the 4 of")
        self.write("c.json", {"lora": {"dropout": 0.3}, "init": "base", "adapter": "first"})
        self.succeed(*self.train_command("said"), "--config", "c.json")
        self.begin("flags", "first", "--lora-rank", 4, "--lora-alpha", 12, "--lora-targets", "o_proj,q_proj",
                   "--lora-dropout", 0.3)
        for run in ("said", "flags"):
            self.assertEqual((self.config(run)["lora"]["rank"], self.config(run)["lora"]["dropout"]), (4, 0.3))
        self.refuse([*self.train_command("out"), "--adapter", "first"], "init: is missing")
        self.refuse([*self.train_command("out"), "--init", "base", "--adapter", "base"], "holds no adapters")
        self.refuse([*self.train_command("out"), "--init", "base", "--adapter", "nowhere"], "nowhere")
        self.refuse([*self.train_command("first"), "--init", "base", "--adapter", "first", "--overwrite"], "first",
                    "--overwrite")


class Amd(Lora):
    """AMD's MLPerf v6.0 run of Llama 2 70B, by name."""
    TRAIN = {"steps": 550, "batch": 1, "accumulate": 8, "sequence": 8192, "learning_rate": 6e-4,
             "final_learning_rate": 0, "warmup": 0,
             "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 1e-4, "clip": 0.3, "eval_every": 48}
    LORA = {"rank": 16, "alpha": 32, "dropout": 0.1, "targets": ["qkv_proj", "o_proj"], "init": "xavier_normal"}
    # Limits for a model of one layer with 64 positions and a short text.
    TINY = {"sequence": 32, "batch": 2, "accumulate": 1, "eval_windows": 2, "final_eval_windows": 2, "max_epochs": 99}

    def run_config(self, out, *more, **options):
        self.succeed("train", "--config", "amd_llama2_70b_lora", "--init", self.base, "--data", "text.txt", "--out",
                     out, *as_flags({**self.TINY, **options}), *more)
        return records(self.folder / out / "log.jsonl", "start")[0]

    def test_every_value_is_in_the_log(self):
        start = self.run_config("run", "--stop-at", 2)
        config = start["config"]
        self.assertEqual((start["name"], config["schedule"], config["lora"]),
                         ("amd_llama2_70b_lora", "amd_lora", self.LORA))
        self.assertEqual({key: config["train"][key] for key in self.TRAIN},
                         {**self.TRAIN, **{k: v for k, v in self.TINY.items() if k in self.TRAIN}})
        mxfp4, fp8 = start["schedule"]
        self.assertEqual((mxfp4["recipe"]["name"], fp8["recipe"]["name"], fp8["from_step"], fp8["cap"]),
                         ("mxfp4_h16", "fp8_amd", 339, 211))
        self.assertEqual((fp8["scales"], fp8["recipe"]["fp8"]["history_length"], fp8["recipe"]["fp8"]["algorithm"]),
                         ("reset", 4, "most_recent"))
        self.assertEqual((start["warmup_steps"], start["decay_steps"]), (0, 550))
        self.assertEqual(records(self.folder / "run/log.jsonl", "step")[0]["lr"], 6e-4)
        # The file also has the values that this model cannot take.
        file = json.loads((ROOT / "examples/llama/configs/amd_llama2_70b_lora.json").read_text())
        self.assertEqual({key: file["train"][key] for key in self.TRAIN}, self.TRAIN)
        self.assertEqual(file["lora"], self.LORA)


class BadInput(Lora):
    def test_fields(self):
        for flag, value, *parts in (("rank", "0", "--lora-rank: 0"), ("alpha", "nan", "--lora-alpha: nan"),
                                    ("targets", "x_proj", "--lora-targets", "'x_proj'", "did you mean"),
                                    ("targets", "qkv_proj,q_proj", "--lora-targets",
                                     "'q_proj' is a part of 'qkv_proj'"), ("init", "zero", "lora-init")):
            with self.subTest(flag=flag, value=value):
                self.refuse([*self.train_command("out"), "--init", self.base, f"--lora-{flag}={value}"], *parts)
        self.refuse([*self.train_command("out"), "--lora-rank", 4], "init: is missing")
        self.write("c.json", {"lora": {"rank": 4, "targets": []}, "init": "base", "data": ["text.txt"]})
        self.refuse(["train", "--config", "c.json", "--out", "out"], "c.json: lora.targets: names no linear layer")
        self.write("c.json", {"lora": {"rnk": 4}})
        self.refuse(["train", "--config", "c.json", "--out", "out"], "lora.rnk", "did you mean 'rank'?")
        self.refuse([*self.lora_command("out", schedule="mxfp4_h16_step_signs")], "mxfp4_h16_step_signs",
                    "fprop.w.rotation.signs: step", "frozen")
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "mxfp4_h16_step_signs", "at": 4}]})
        self.refuse([*self.lora_command("out", schedule="heal.json")],
                    "heal.json: phases[1].recipe: recipe mxfp4_h16_step_signs: fprop.w")
        self.refuse([*self.lora_command("out", "--synthetic-warmup", 1, "--synthetic-recipe", "mxfp4_h16_step_signs")],
                    "--synthetic-recipe: recipe mxfp4_h16_step_signs", "frozen")

    def test_a_base_that_is_none(self):
        self.refuse([*self.train_command("out"), "--init", "nowhere"], "nowhere")
        self.refuse([*self.train_command("out"), "--init", "text.txt"], "text.txt")
        self.refuse(self.train_command("out", "--init", self.base, intermediate_size=96),
                    "--intermediate-size: 96 contradicts --init ")
        self.lora("run")
        self.refuse([*self.train_command("out"), "--init", "run"], "holds adapters, no model")

    def adapter(self, change_config=None, change_tensors=None):
        folder = self.folder / "adapter"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        config = json.loads((self.checkpoint("run") / "adapter_config.json").read_text())
        tensors = load(self.checkpoint("run") / "adapter_model.safetensors")
        config.update(change_config or {})
        if change_tensors:
            change_tensors(tensors)
        (folder / "adapter_config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "delete"}))
        write_safetensors(folder / "adapter_model.safetensors", tensors)

    def check_adapter(self, *parts):
        self.refuse([*self.train_command("out"), "--init", "base", "--adapter", "adapter"], *parts)
        self.assertFalse((self.folder / "out").exists())
        self.refuse(["eval", "--checkpoint", "base", "--adapter", "adapter"], *parts)
        self.refuse(["merge", "--base", "base", "--adapter", "adapter", "--out", "merged"], *parts)

    def test_adapters_of_another_kind_or_shape(self):
        self.lora("run", lora_targets="q_proj,v_proj")
        self.adapter({"r": 8})
        self.check_adapter("its shape 4 x 32 is not the model's 8 x 32")
        for key, value, *parts in (("r", "delete", "r is missing"), ("lora_dropout", 1.5, "lora_dropout"),
                                   ("lora_alpha", "much", "lora_alpha: expected a number"),
                                   ("use_dora", True, "use_dora"), ("modules_to_save", ["lm_head"], "modules_to_save"),
                                   ("rank_pattern", {"q_proj": 2}, "rank_pattern: is not supported"),
                                   ("init_lora_weights", "pissa", "init_lora_weights"),
                                   ("use_someday", 3, "use_someday"),
                                   ("target_modules", ["q_proj", 3], "target_modules", "a string"),
                                   ("target_modules", ["v_proj"], "target_modules", "does not name 'q_proj'")):
            with self.subTest(key=key, value=value):
                self.adapter({key: value})
                self.refuse(["eval", "--checkpoint", "base", "--adapter", "adapter"], "adapter", *parts)
        name = "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight"
        self.adapter(None, lambda t: t.pop(name))
        self.check_adapter(f"'{name}' is missing")
        self.adapter(None, lambda t: t.update({"base_model.model.lm_head.lora_A.weight": ("F32", [1], b"\0\0\0\0")}))
        self.check_adapter("adapters of 'lm_head' are not supported")
        self.adapter(None, lambda t: t.clear())
        self.check_adapter("no tensor of a linear layer's adapter")

    def test_commands_without_their_parts(self):
        self.lora("run")
        self.refuse(["eval", "--checkpoint", "base", "--adapter", "base"], "holds no adapters")
        self.refuse(["eval", "--checkpoint", "run", "--adapter", "run"], "--adapter", "holds adapters, not their base")
        self.refuse(["merge", "--base", "run", "--adapter", "run", "--out", "merged"], "holds adapters, no model")
        self.refuse(["merge", "--base", "base", "--adapter", "run", "--out", "base"], "base: exists")
        self.refuse(["merge", "--base", "base", "--adapter", "run"], "--out")
        self.refuse(["merge", "--base", "base", "--adapter", "run", "--out", "m", "--dtype", "F8"], "dtype")
        self.refuse(["train", "--resume", "run", "--lora-rank", 8], "--lora-rank", "cannot be changed")
        shutil.move(self.folder / "base", self.folder / "gone")
        self.refuse(["eval", "--checkpoint", "run"], str(self.base), "--adapter")


if __name__ == "__main__":
    mini_llama.main(__doc__)
