#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of mini-llama, each one line with all files unchanged: arguments, configurations, damaged checkpoints,
models above a memory limit or the size limits. One case of each kind; unit tests of the functions have the others.

usage: mini_llama_refusals.py PROGRAM [NAME...]
"""
import json
import re
import shutil
import struct

import mini_llama
from mini_llama import ROOT, SHAPE, THREADS, TRAIN, Scratch, as_flags, generated_text, records, tree_of


class BadArguments(Scratch):
    def test_unknown_names(self):
        command = self.train_command("out")
        self.refuse([*command, "--learning-rte", 1], "--learning-rte", "did you mean '--learning-rate'?")
        self.refuse(["trian"], "trian", "did you mean 'train'?")
        self.refuse(["eval", "--checkpont", "x"], "checkpoint")
        self.refuse([], "needs a command: train")
        for recipe in ("--recipe", "--schedule"):
            self.refuse([*command, recipe, "mxfp4_h61"], "mxfp4_h61", "did you mean 'mxfp4_h16'?")
            self.refuse([*command, recipe, "mxfp4_h16_hael"], "mxfp4_h16_hael", "did you mean 'mxfp4_h16_heal'?")

    def test_missing_out_and_data(self):
        command = self.train_command("out")
        self.refuse(command[:1] + command[3:], "--out", "is required")
        self.refuse(command[:3] + command[5:], "--data", "no text given")


class BadFiles(Scratch):
    def test_configuration(self):
        """Wrong keys and types in the file are named with their place. All kinds: json_test, config_json_test."""
        base = {"data": ["text.txt"], "model": SHAPE, "train": {**TRAIN, "steps": 8}}
        for part, key, value, said in (("train", "steps", "8", "expected an integer"),
                                       ("model", "hiden_size", 32, "did you mean 'hidden_size'?")):
            self.write("bad.json", {**base, part: {**base[part], key: value}})
            self.refuse(["train", "--config", "bad.json", "--out", "out"], "bad.json", f"{part}.{key}", said)
        self.write("bad.json", '{"train": {"steps": 8')
        self.refuse(["train", "--config", "bad.json", "--out", "out"], "bad.json", "line 1")
        self.refuse(["train", "--config", "missing.json", "--out", "out"], "missing.json")

    def test_text(self):
        (self.folder / "empty.txt").write_bytes(b"")
        (self.folder / "short.txt").write_bytes(b"x" * 40)
        (self.folder / "little.txt").write_bytes(generated_text(400))
        (self.folder / "hollow").mkdir()
        for name, part in (("missing.txt", "No such file"), ("empty.txt", "empty"), ("short.txt", "too short"),
                           ("hollow", "no text"), ("text.txt/below", "text.txt/below")):
            self.refuse(self.train_command("out", data=name), name, part)
        self.refuse(self.train_command("out", data="little.txt", steps=1000), "little.txt", "too short", "1000 steps",
                    "--max-epochs")
        self.succeed(*self.train_command("out", data="little.txt", steps=100, max_epochs=20, validation=0.2))

    def test_recipe_and_schedule_files(self):
        """Names the file and the field. All faults of a recipe: recipe_test; of a schedule: schedule_test,
        trigger_test."""
        self.write("recipe.json", {"fprop": {"x": {"format": "mxfp5"}}})
        self.write("arm.json", {"phases": [{"recipe": "recipe.json"}]})
        for schedule in ("arm.json", "recipe.json"):
            self.refuse(self.train_command("out", schedule=schedule), "recipe.json", "fprop.x.format",
                        "did you mean 'mxfp4'?")
        # A later phase is checked before the first step.
        self.write("arm.json", {"phases": [{"recipe": "bf16"}, {"recipe": "mxfp4", "at": 4}]})
        self.refuse(self.train_command("out", schedule="arm.json", hidden_size=48),
                    "arm.json: phases[1].recipe: recipe mxfp4: --hidden-size: 48", "fprop.x")
        self.refuse(self.train_command("out", schedule="heal_gradient_noise"), "heal_gradient_noise: phases[1].trigger",
                    "never fires")


class BadCheckpoints(Scratch):
    def test_what_is_no_checkpoint(self):
        """mini_llama_resume.py has checkpoints without some files and with damaged ones."""
        self.refuse(["train", "--resume", "nowhere"], "nowhere")
        for command in (["train", "--resume", "text.txt"], ["replay", "text.txt", "--steps", "0:1"],
                        ["eval", "--checkpoint", "text.txt"]):
            self.refuse(command, "text.txt: not a directory, as checkpoints and runs are")
        self.write("hollow/keep", "")
        self.refuse(["train", "--resume", "hollow"], "hollow", "checkpoints")

    def test_state_that_no_run_leaves(self):
        self.train("run", "--stop-at", 4)
        state = json.loads((self.checkpoint("run", 4) / "trainer_state.json").read_text())

        def bad(change, *parts):
            changed = json.loads(json.dumps(state))
            change(changed)
            shutil.rmtree(self.folder / "copy", ignore_errors=True)
            shutil.copytree(self.folder / "run", self.folder / "copy")
            (self.checkpoint("copy", 4) / "trainer_state.json").write_text(json.dumps(changed))
            self.refuse(["train", "--resume", "copy"], "trainer_state.json", *parts)

        bad(lambda s: s.update(step=99), "not the state")
        bad(lambda s: s["run"]["train"].update(batch=0), "train.batch")
        bad(lambda s: s["phases"][0].update(from_step=3), "phases[0]")
        bad(lambda s: s["phases"][0]["recipe"]["fp8"].update(history_length=0), "phases[0]", "history_length")
        bad(lambda s: s.update(phase=1), "phase")
        bad(lambda s: s["phases"].append({**s["phases"][0], "from_step": 2}), "phase: the next one began at step 2")

        def odd_blocks(s):
            for gemm in ("fprop", "dgrad", "wgrad"):
                for operand in s["phases"][0]["recipe"][gemm].values():
                    if isinstance(operand, dict):
                        operand["format"] = "mxfp4"
            s["run"]["train"].update(batch=1, sequence=31)

        bad(odd_blocks, "batch * sequence: 31")

    def test_other_text_and_changed_flags(self):
        self.train("run", "--stop-at", 4)
        (self.folder / "other.txt").write_bytes(generated_text(seed=2))
        self.refuse(["train", "--resume", "run", "--data", "other.txt"], "other.txt", "not the text")
        self.write("x.json", SHAPE)
        for flag, value in (("--recipe", "mxfp4"), ("--hidden-size", 64), ("--model-config", "x.json")):
            self.refuse(["train", "--resume", "run", f"{flag}={value}"], flag, "cannot be changed")
        self.refuse(["train", "--resume", "run", "--steps", 16], "--steps 16", "--decay-steps")
        self.refuse(["train", "--resume", "run", "--overwrite"], "--overwrite", "cannot be changed")
        self.refuse(["train", "--resume", "run", "--tie-word-embeddings"], "--tie-word-embeddings", "cannot be changed")

    def test_checkpoint_of_another_vocabulary(self):
        self.train("run", "--stop-at", 4)
        config = json.loads((self.checkpoint("run", 4) / "config.json").read_text())
        (self.checkpoint("run", 4) / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
        self.refuse(["eval", "--checkpoint", "run"], "config.json: vocab_size is not that of trainer_state.json")
        (self.checkpoint("run", 4) / "trainer_state.json").unlink()  # as in another program's model
        self.refuse(["eval", "--checkpoint", "run", "--data", "text.txt"], "its vocabulary of 100", "--tokenizer")


class Memory(Scratch):
    def plan(self, *more, **options):
        plan, checkpoints, _ = self.planned(*as_flags({**SHAPE, **TRAIN, **THREADS, "steps": 8, **options}), *more)
        self.assertEqual(checkpoints.split()[:2],
                         ["checkpoints", "asynchronous:" if plan["snapshot"] else "synchronous:"])
        return plan

    def test_the_plan_is_what_a_run_takes(self):
        for schedule in ("fp32", "bf16", "mxfp4_h16_heal"):
            plan = self.plan(schedule=schedule)
            self.assertEqual(list(plan),
                             ["weights", "masters", "gradients", "moments", "quantized", "adapters", "stash",
                                          "activations", "workspace", "snapshot", "transfers", "device", "total"])
            self.assertEqual(plan["total"], sum(plan.values()) - plan["device"] - plan["total"])
            self.assertEqual(plan["device"], plan["total"] - plan["stash"] - plan["snapshot"] - plan["transfers"])
            self.train(schedule, schedule=schedule)
            memory = records(self.folder / schedule / "log.jsonl", "start")[0]["memory"]
            self.assertEqual({name: entry["peak"] for name, entry in memory.items()}, plan)
            for entry in memory.values():
                self.assertLessEqual(entry["bytes"], entry["peak"])
        self.assertEqual(list(p.name for p in self.folder.glob("plan*")), [])

    def test_llama_shapes_by_name(self):
        """Parameter counts, as published where a model is. A plan allocates nothing (session_memory_test)."""
        own_head = {"llama_124m": 162220800, "llama_1b": 1498482688}  # as in the training benchmark
        for name, count in (("llama_124m", 123587328), ("llama_1b", 1235814400), ("llama_3b", 3212749824),
                            ("llama_8b", 8030261248), ("llama_70b", 70553706496)):
            file = json.loads((ROOT / f"examples/llama/configs/{name}.json").read_text(encoding="utf-8"))
            self.assertEqual(file["name"], name)
            for more, wanted in (((), count), (("--no-tie-word-embeddings",), own_head.get(name))):
                if wanted is None:
                    continue
                plan, _, parameters = self.planned("--config", name, "--recipe", "bf16", "--threads", 1, *more)
                self.assertEqual(parameters, f"parameters   {wanted}, {wanted} of them train")
                self.assertGreater(plan["total"], 18 * wanted)  # master, gradient, two moments, a BF16 operand
            self.succeed("plan", "--config", name, "--recipe", "mxfp4_h16", "--threads", 1)
        self.succeed("plan", "--data", "text.txt", "--batch", 1000000, "--steps", 2)  # a plan reads no token
        # Other vocabulary, other context: flags override.
        *_, parameters = self.planned("--config", "llama_124m", "--vocab-size", 256, "--threads", 1)
        self.assertEqual(parameters, f"parameters   {84953856 + 256 * 768}, {84953856 + 256 * 768} of them train")
        self.assertIn("124475904", self.planned("--config", "gpt2_124m", "--threads", 1)[2])
        self.refuse(["plan", "--config", "llama_7b"], "llama_7b", "did you mean 'llama_")

    def test_the_plan_covers_a_synthetic_warm_up(self):
        plain = self.plan(schedule="mxfp4_h16")
        for recipe in ("bf16", "fp32"):
            flags = ["--synthetic-warmup", 2, "--synthetic-recipe", recipe]
            plan = self.plan(*flags, schedule="mxfp4_h16")
            self.assertGreater(plan["total"], plain["total"])
            self.train(recipe, *flags, schedule="mxfp4_h16")
            memory = records(self.folder / recipe / "log.jsonl", "start")[0]["memory"]
            self.assertEqual({name: entry["peak"] for name, entry in memory.items()}, plan)
        self.refuse(["plan", *as_flags({**SHAPE, **TRAIN}), "--synthetic-recipe", "bf16"], "--synthetic-recipe",
                    "--synthetic-warmup")
        self.refuse(["plan", *as_flags({**SHAPE, **TRAIN}), "--synthetic-warmup", 1, "--synthetic-recipe", "nothing"],
                    "--synthetic-recipe", "nothing")

    def test_over_budget_is_refused_with_the_table(self):
        total = self.plan(schedule="bf16")["total"]
        self.train("fits", "--memory-limit", total, schedule="bf16")
        before = tree_of(self.folder)
        done = self.run_program(*self.train_command("out", "--memory-limit", total - 1, schedule="bf16"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        line, *table = done.stderr.splitlines()
        self.assertEqual(table[-1].split()[:2], ["total", str(total)])
        self.assertIn("--memory-limit", line)
        self.assertEqual(tree_of(self.folder), before)

    def test_a_plan_of_adapters_needs_no_weights(self):
        *_, parameters = self.planned("--config", "llama_8b", "--lora-rank", 16, "--recipe", "mxfp4_tc", "--device",
                                      "cpu")
        self.assertEqual(parameters, "parameters   8039698432, 9437184 of them train")
        self.refuse(self.train_command("out", "--lora-rank", 4), "--init: is missing")

    def test_a_step_of_many_gpus_is_predicted(self):
        """By hand: masses of bytes over the rates of links, times of the profile over ranks."""
        self.write("one", "A GPU, recipe bf16, 128 tokens a step\nstep 100.000 ms, 1280 tokens/s\n\n"
                   "class  calls        us   share\noptimizer      1   20000.0   20.0%\n")
        options = [*as_flags({**SHAPE, "batch": 2, "sequence": 32, "accumulate": 8, "recipe": "bf16", "threads": 1})]
        arena = self.planned(*options)[0]["masters"] * 1e-9
        on = ["plan", "--profile", "one", "--gpus", 2, *options]
        out = self.succeed(*on, "--nodes", 2, "--link", 0.4, "--node-link", 0.1)
        # Two microbatches of 64 tokens; a quarter of the arena from the neighbour, a half from the other node.
        compute, gather = 2 * 80 * 64 / 128, 1e3 * (arena / 4 / 0.4 + arena / 2 / 0.1)
        # Under the backward pass and the next forward pass of a microbatch, but a half: one layer, and the rest.
        shown = sum(max(gather - compute / 2 * part, gather / 2) for part in (2 / 3, 1 / 3))
        wanted = {"compute": compute, "reduce": gather, "gather": gather, "step": compute + 5 + shown}
        for name, value in wanted.items():
            found = re.search(rf"^{name} .*?([\d.]+) ms", out, re.M)
            self.assertAlmostEqual(float(found[1]), value, delta=0.006, msg=out)
        alone = (compute + 20) / wanted["step"]
        self.assertAlmostEqual(float(re.search(r"^efficiency +([\d.]+)", out, re.M)[1]), alone, delta=6e-4)
        # Each pass of four microbatches gathers half of the BF16 weights, under 20 ms of compute.
        out = self.succeed(*on, "--nodes", 1, "--link", 1e-6, "--lora-rank", 4, "--divide-frozen")
        self.assertIn(f"{8 * 12288:.2f} ms a step, {8 * (12288 - 20):.2f} of them not under the passes", out)
        # ZeRO-2 reduces each of four microbatches, and gathers BF16 operands of one layer and the head.
        times = {}
        for shard in ("moments", "gradients"):
            out = self.succeed(*on, "--link", 1e-6, "--shard", shard)
            times[shard] = [float(re.search(rf"^{name} .*?([\d.]+) ms", out, re.M)[1]) for name in ("reduce", "gather")]
        operands, table, norms = 2 * (12288 + 8192), 4 * 8192, 4 * 96
        self.assertEqual(times["gradients"], [4 * times["moments"][0], (operands + table + norms) / 2])
        self.refuse(on, "--link: is required")
        self.refuse([*on, "--link", 1, "--nodes", 3], "--node-link: is required")
        self.refuse(["plan", "--nodes", 2, *options], "--nodes: needs --profile")
        self.refuse(["plan", "--profile", "text.txt", *options], "--profile: text.txt is no output of profile")

    def test_a_snapshot_is_taken_where_it_fits(self):
        some = {"checkpoint_every": 4, "steps": 8, "schedule": "bf16"}
        self.assertEqual(self.plan(**{**some, "checkpoint_every": 8})["snapshot"], 0)  # no step follows
        plan = self.plan(**some)
        self.assertGreater(plan["snapshot"], plan["masters"] + plan["moments"])  # and scales
        self.assertEqual(self.plan("--memory-limit", plan["total"], **some), plan)
        without = {**plan, "snapshot": 0, "total": plan["total"] - plan["snapshot"]}
        self.assertEqual(self.plan("--memory-limit", plan["total"] - 1, **some), without)
        self.assertEqual(self.plan("--async-checkpoints", "off", **some), without)
        self.assertEqual(self.plan("--async-checkpoints", "on", **{**some, "checkpoint_every": 0}), plan)
        self.train("run", "--memory-limit", plan["total"] - 1, **some)
        memory = records(self.folder / "run/log.jsonl", "start")[0]["memory"]
        self.assertEqual({name: entry["peak"] for name, entry in memory.items()}, without)
        done = self.run_program(*self.train_command("out", "--memory-limit", plan["total"] - 1, "--async-checkpoints",
                                                    "on", **some))
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1].split()[1]), (2, str(plan["total"])))
        self.refuse(self.train_command("out", "--async-checkpoints", "never"), "--async-checkpoints", "never")

    def test_a_contract_set_is_logged_under_its_name(self):
        options = {"schedule": "mxfp4_h16", "steps": 2}
        self.train("named", "--contracts", "cpu", "--device", "cpu", **options)
        self.train("native", "--contracts", "native", "--device", "cpu", **options)
        self.assert_same_checkpoint("named", "native", 2)
        for run in ("named", "native"):
            start = records(self.folder / run / "log.jsonl", "start")[0]
            recipe = start["schedule"][0]["recipe"]
            self.assertEqual(recipe["contracts"], "cpu")
            self.assertEqual(recipe["wgrad"]["accumulate"], "intel-amx-bf16")
            self.assertEqual(start["contracts"]["fprop"], "intel-amx-bf16")
        self.refuse(self.train_command("out") + ["--contracts", "hoper"], "--contracts", "did you mean 'hopper'?")
        self.refuse(["train", "--resume", "named", "--contracts", "hopper"], "--contracts", "cannot be changed")


class Limits(Scratch):
    """The largest accepted value of each, and the next one. `plan` takes no memory."""

    def test_at_the_edge(self):
        huge = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
                "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 64}
        for key, most in (("vocab_size", 1 << 24), ("hidden_size", 1 << 24), ("intermediate_size", 1 << 24),
                          ("num_hidden_layers", 4000), ("head_dim", 65536), ("max_position_embeddings", 1 << 24)):
            flags = as_flags({**huge, "sequence": 32, "batch": 1, key: most})
            self.succeed("plan", *flags)
            flags = as_flags({**huge, "sequence": 32, "batch": 1, key: most + (2 if key == "head_dim" else 1)})
            self.refuse(["plan", *flags], "--" + key.replace("_", "-"), str(most))
        longest = {**huge, "max_position_embeddings": 1 << 24, "batch": 1}
        self.succeed("plan", *as_flags({**longest, "sequence": 1 << 24}))
        self.refuse(["plan", *as_flags({**longest, "sequence": (1 << 24) + 1})], "--sequence")
        self.refuse(["plan", *as_flags({**huge, "sequence": 96})], "--sequence: 96", "--max-position-embeddings")

    def test_a_vocabulary_as_large_and_as_small_as_the_tokens(self):
        (self.folder / "few.bin").write_bytes(struct.pack("<256i", 20240520, 1, 4000, *[0] * 253) +
                                              struct.pack("<4000H", *[i % 3 for i in range(4000)]))
        self.train("few", data="few.bin", vocab_size=3, steps=2)
        self.refuse(self.train_command("no", data="few.bin", vocab_size=2), "--vocab-size")
        self.refuse(self.train_command("no", vocab_size=255), "256", "255", "--vocab-size")
        self.train("large", vocab_size=1 << 16, steps=1, eval_windows=1, final_eval_windows=1)

    def test_a_size_that_the_tensors_do_not_have_asks_for_no_memory(self):
        self.train("run")
        path = self.checkpoint("run") / "config.json"
        config = json.loads(path.read_text())
        # More than any machine has, if it were believed.
        path.write_text(json.dumps({**config, "hidden_size": 1 << 24, "intermediate_size": 1 << 24}))
        commands = (["eval", "--checkpoint", "run", "--data", "text.txt"], ["sample", "--checkpoint", "run"],
                    ["train", "--out", "new", "--data", "text.txt", "--init", "run", "--sequence", 32, "--batch", 2,
                     "--steps", 2])
        for command in (*commands, ["train", "--resume", "run"]):
            self.refuse(command, "config.json: hidden_size is not that of trainer_state.json")
        (path.parent / "trainer_state.json").unlink()  # as in another program's model
        for command in commands:
            self.refuse(command, "its shape 256 x 32 is not the model's 256 x 16777216")


if __name__ == "__main__":
    mini_llama.main(__doc__)
