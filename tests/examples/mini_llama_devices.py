#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""mini-llama on devices: --device, and replay of a run on another device.

usage: mini_llama_devices.py PROGRAM [NAME...]
"""
import re

import mini_llama
from mini_llama import SHAPE, Scratch, as_flags, records


FOUND = []  # the device, after it was found


class OnDevice(Scratch):
    def device(self):
        """The program's device; `host` if kernels run on the CPU."""
        for name in FOUND or ("host", "cuda", "hip"):
            done = None if FOUND else self.run_program(*self.train_command("probe", "--device", name, "--overwrite",
                                                                           steps=1, eval_windows=1,
                                                                           final_eval_windows=1, sequence=32, batch=1))
            if FOUND or done.returncode == 0:
                FOUND[:] = [name]
                return name
        self.skipTest("no device: " + done.stderr)


class Devices(OnDevice):
    def test_training_on_a_device_is_replayed_by_the_cpu(self):
        device = self.device()
        # Step 3 is observed and leaves digests.
        more = {"steps": 4, "checkpoint_every": 2, "batch": 1, "eval_windows": 1, "final_eval_windows": 1,
                "statistics_every": 2}
        # Other recipes: gpu/train/training_test.
        self.train("run", "--device", device, "--recipe", "mxfp4_h16", "--digest-steps", "2:4", **more)
        self.assertIn("(", records(self.folder / "run" / "log.jsonl", "start")[0]["device"])
        for steps in ("2:4", "0:4"):
            self.assertIn("of the checkpoint are equal", self.replay("--steps", steps, "--device", "cpu"))
        self.assertIn(" digests", self.replay("--steps", "2:4"))
        # A device replays a run of the CPU. --keep keeps the result.
        self.train("run", "--device", "cpu", "--recipe", "mxfp4_h16", "--overwrite", **more)
        self.assertIn("are equal", self.replay("--steps", "2:4", "--device", device, "--keep", "kept"))
        self.assertEqual([p.name for p in (self.folder / "kept/checkpoints").iterdir()], ["step-000000004"])
        self.assertEqual((self.folder / "kept/checkpoints/step-000000004/model.safetensors").read_bytes(),
                         (self.folder / "run/checkpoints/step-000000004/model.safetensors").read_bytes())

    def test_recipes_of_matrix_units_are_replayed_by_the_cpu(self):
        device = self.device()
        self.write("healed.json",
                   {"name": "healed", "phases": [{"recipe": "mxfp4_tc", "at": 0}, {"recipe": "fp8_tc", "at": 2}]})
        more = {"steps": 4, "checkpoint_every": 2, "batch": 1, "eval_windows": 1, "final_eval_windows": 1}
        if device == "hip":
            for recipe in ("bf16_tc", "fp8_tc", "mxfp8_tc", "mxfp4_tc"):
                self.refuse(self.train_command("run", "--device", device, "--recipe", recipe, **more), "has no kernel")
            return
        self.train("run", "--device", device, "--recipe", "mxfp8_tc", **more | {"steps": 2})
        contracts = records(self.folder / "run" / "log.jsonl", "start")[0]["contracts"]
        for gemm in ("fprop", "dgrad", "wgrad", "head_fprop"):
            self.assertEqual(contracts[gemm].split(":")[0], "mx-bf16-sm90")
        self.assertIn("of the checkpoint are equal", self.replay("--steps", "0:2", "--device", "cpu"))
        self.train("run", "--device", device, "--overwrite", schedule="healed.json", **more)
        for steps in ("0:2", "2:4"):
            self.assertIn("of the checkpoint are equal", self.replay("--steps", steps, "--device", "cpu"))

    def test_adapters_on_a_device_are_replayed_by_the_cpu(self):
        """Adapters of q_proj, k_proj and v_proj draw one mask each. The run heals after step 5."""
        device = self.device()
        self.train("base", steps=1)
        more = {"init": "base", "lora_rank": 4, "schedule": "amd_lora", "checkpoint_every": 4, "batch": 1,
                "eval_windows": 1, "final_eval_windows": 1}
        self.train("run", "--device", device, "--digest-steps", "4:6",
                   lora_targets="q_proj,k_proj,v_proj,up_proj,down_proj", **more)
        # Digests of both phases. After the switch, the frozen base has the operands of the stash.
        self.assertRegex(self.replay("--steps", "4:8", "--device", "cpu"),
                         r"of the checkpoint are equal, and \d+ digests")
        _, lines = self.digests()
        weights = [{o.split(" ")[4] for o, _ in line["operations"] if o.startswith("quantize w ")} for line in lines]
        self.assertEqual(weights, [{"mxfp4", "bf16"}, {"fp8_e4m3", "bf16"}])

    def test_a_step_of_the_1b_class_takes_at_most_46_gib(self):
        """With a separate head, statistics, and 4 x 4096 tokens."""
        plan, *_ = self.planned("--device", self.device(), "--config", "llama_1b", "--no-tie-word-embeddings",
                                "--recipe", "bf16_tc")
        self.assertLessEqual(plan["device"], 46 << 30)
        self.assertEqual(plan["device"] + sum(plan[name] for name in ("snapshot", "stash", "transfers")), plan["total"])


class Continuations(OnDevice):
    def test_a_run_goes_on_elsewhere_with_the_same_bytes(self):
        """In parts, each on its device to its step: without graphs, or with a wait after each operation."""
        device = self.device()
        more = {"steps": 6, "batch": 1, "eval_windows": 1, "final_eval_windows": 1}
        for recipe, flag, parts in (("mxfp4_h16", "--no-graphs", [(2, device), (4, "cpu"), (6, device)]),
                                    ("fp8_amd", "--wait-for-each", [(3, "cpu"), (6, device)])):
            with self.subTest(recipe=recipe):
                self.train("whole", "--device", "cpu", "--recipe", recipe, "--overwrite", **more)
                command = [*self.train_command("run", "--recipe", recipe, **more), "--overwrite"]
                for step, name in parts:
                    self.succeed(*command, "--device", name, *([flag] if name == device else []),
                                 *(["--stop-at", step] if step != 6 else []))
                    command = ["train", "--resume", "run"]
                self.assert_same_checkpoint("whole", "run", 6)
                named = [r["device"].split(" ")[0] for r in records(self.folder / "run/log.jsonl")
                         if r["event"] in ("start", "resume")]
                self.assertEqual(named, [name for _, name in parts])

    def test_bad_input(self):
        self.refuse(self.train_command("other", "--device", "tpu"), "--device", "tpu")
        self.refuse(self.train_command("other", "--digest-steps", "3"), "--digest-steps", "'3'")
        for name in ("cuda", "hip", "host"):
            done = self.run_program(*self.train_command("other", "--device", name, "--overwrite", steps=1, batch=1))
            if done.returncode != 0:
                would_do = "--device cpu needs no device|this program was built for (cpu and|the CPU alone)"
                self.assertRegex(done.stderr, rf"\Amini-llama: --device {name}: .*({would_do}).*\n\Z")
                self.assertEqual(done.returncode, 2)

    def test_what_a_kernel_does_not_take_is_named_with_what_would_do(self):
        on = ["plan", "--device", self.device(), "--recipe"]
        grain = '; multiples of 8, "accumulate": "fp32_fma_chain" or a CPU would do'
        self.refuse([*on, "bf16", "--head-dim", 130], "heads of 130; --head-dim of 128 or a CPU would do")
        if self.device() != "hip":
            adapters = ["--lora-rank", 7]
            for recipe, flags, named in (("bf16_tc", ["--sequence", 33, "--batch", 3],
                                          "q_proj.weight: #--batch * --sequence = 99"),
                                         ("mxfp4_tc", ["--vocab-size", 1001], "the output head: #--vocab-size = 1001"),
                                         ("bf16_tc", ["--hidden-size", 60, "--head-dim", 32],
                                          "q_proj.weight: #--hidden-size = 60"),
                                         ("bf16_tc", adapters, "'s adapter: #--lora-rank = 7")):
                self.refuse([*on, recipe, *flags], *named.split("#"), grain)
            self.refuse([*on, "bf16_tc", "--head-dim", 136],
                        "--head-dim of 128 or attention-fp32-chains-keys-ascending on a CPU would do")


class Divisions(OnDevice):
    def test_devices_that_divide_a_step_leave_the_bytes_of_the_cpu(self):
        device = self.device()
        self.write("healed.json", {"phases": [{"recipe": "mxfp4_tc"}, {"recipe": {
            "base": "fp8_tc", "fp8": {"update": "step", "reduce_amax": True}}, "at": 1, "scales": "seed"}]})
        self.write("rotated.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": {
            "base": "fp8_amd", "fp8": {"update": "step", "reduce_amax": True}}, "at": 1}]})
        more = {"steps": 3, "batch": 1, "accumulate": 4, "eval_windows": 1, "final_eval_windows": 3, "eval_every": 2}
        for recipe, base, divided, shards in (("bf16", [], [], ("moments", "gradients")),
                                              ("healed.json", [], [], ("gradients", "masters")),
                                              ("rotated.json", ["--seed-base"], ["--divide-frozen"],
                                               ("masters", "moments"))):
            with self.subTest(recipe=recipe):
                adapters = {"lora_rank": 8, "num_hidden_layers": 3} if base else {}
                options = {**more, "recipe": recipe, **adapters}
                self.train("whole", "--device", "cpu", "--overwrite", *base, **options)
                run = self.train_command("run", "--device", device, *base, *divided, **options)
                self.succeed(*run, "--overwrite", "--gpus", 4, "--shard", shards[0], "--stop-at", 1)
                self.succeed("train", "--resume", "run", "--device", device, "--gpus", 2, "--shard", shards[1],
                             "--stop-at", 2, *divided)
                self.succeed("train", "--resume", "run", "--device", device, "--gpus", 1)
                self.assert_same_checkpoint("whole", "run", 3)
                if recipe == "healed.json":  # what several devices have left, from the seed
                    self.assertIn(" are equal", self.succeed("replay", "run", "--steps", "0:3", "--device", "cpu"))
                losses = [[r["window_losses"] for r in records(self.folder / name / "log.jsonl", "end")][-1]
                          for name in ("whole", "run")]
                self.assertEqual(*losses)
        self.assertIn("rank 3: ", self.succeed("plan", "--device", device, "--gpus", 4, "--accumulate", 4))
        for flags, part in ((["--gpus", 3], "--gpus 3: must divide the 4 microbatches"),
                            (["--gpus", 2, "--ranks", 2], "--gpus 2: excludes --ranks")):
            self.refuse([*run, "--overwrite", *flags], part)
        self.refuse([*self.train_command("run", "--device", "cpu", "--gpus", 2)], "--gpus 2: are devices")


class Profiles(OnDevice):
    def test_a_profile_times_each_operation(self):
        for device in (self.device(), "cpu"):
            self.check_times(device)

    def check_times(self, device):
        out = self.run_program("profile", "--device", device, "--recipe", "fp8_amd", "--operations",
                               *as_flags({**SHAPE, "batch": 1, "sequence": 32}))
        self.assertEqual((out.returncode, out.stderr), (0, ""))
        head, classes, operations = out.stdout.split("\n\n")
        self.assertRegex(head, r"step \d+\.\d+ ms, \d+ tokens/s\n" +
                         r"without graphs \d+\.\d+ ms a step; " * (device != "cpu") + r"copy \d+ GB/s.*\nmemory ")
        self.assertIn("TFLOP/s   of BF16\n", classes)

        def rows(table):
            found = re.findall(r"^(\w[\w ]*?) +(\d+) +(\d+\.\d) +(\d+\.\d)% +\d+ +\d+\.\d%", table, re.M)
            return {name: (int(calls), float(us), float(share)) for name, calls, us, share in found}

        by_class, by_operation = rows(classes), rows(operations)
        self.assertTrue({"GEMM", "attention", "quantize", "optimizer"} <= set(by_class))
        self.assertTrue({"gemm", "attention_forward", "attention_backward", "adamw", "rope"} <= set(by_operation))
        for name in ("gemm", "attention_forward", "attention_backward", "adamw"):
            self.assertGreater(by_operation[name][1], 0)
        for table in (by_class, by_operation):
            self.assertAlmostEqual(sum(share for _, _, share in table.values()), 100, delta=0.1 * len(table))
        times = [sum(us for _, us, _ in table.values()) for table in (by_class, by_operation)]
        self.assertAlmostEqual(*times, delta=0.1 * (len(by_class) + len(by_operation)))
        self.assertEqual([us for _, us, _ in by_operation.values()],
                         sorted((us for _, us, _ in by_operation.values()), reverse=True))
        self.assertRegex(classes, r"gaps +\d+\.\d")

    def test_a_profile_counts_what_ranks_exchange(self):
        """Each rank sends all gradients but those of its part, then its part of the weights to all others."""
        on = ["--device", self.device(), "--recipe", "bf16", *as_flags({**SHAPE, "batch": 1, "sequence": 32})]
        arena = int(re.search(r"^gradients +(\d+) bytes", self.succeed("plan", *on), re.M)[1])
        # With five microbatches each, one rank has more operations and sums than the other.
        for micro, more in ((1, []), (1, ["--reduce", "library"]), (5, []), (3, ["--shard", "gradients", "--no-graphs"])):
            out = self.succeed("profile", *on, "--gpus", 2, "--accumulate", 2 * micro, *more)
            self.assertRegex(out, rf"\A2 x .*, {64 * micro} tokens a step, .*\nstep \d+\.\d+ ms, \d+ tokens/s.*\n"
                             "with time stamps")
            found = {name: [float(x) for x in numbers.split()] for name, numbers in re.findall(
                r"^(reduce|gather|small exchanges|sums and copies) +((?:\d+\.?\d* +)+)\d+\.\d%$", out, re.M)}
            for name in ("reduce", "gather", "small exchanges"):
                _, time, fastest, *_ = found[name]
                self.assertGreater(fastest, 0)
                self.assertGreaterEqual(time, fastest)
            if micro == 1:
                self.assertAlmostEqual(found["reduce"][3] + found["gather"][3], arena * 1e-6, delta=0.02)
            if self.device() == "host":  # where nothing overlaps
                self.assertEqual([row[-1] for row in found.values()], [0] * len(found))

    def test_a_profile_says_what_memory_it_takes(self):
        options = ["--recipe", "bf16", *as_flags({**SHAPE, "batch": 1, "sequence": 32})]
        on = ["profile", "--device", self.device(), *options]
        out = self.succeed(*on, "--memory-limit", "1GiB")
        planned, *in_use = map(float,
                               re.search(r"^memory (\d+\.\d) MiB on the device by plan(?:, (\d+\.\d) MiB in use on "
                                         r"it)?$", out, re.M)
                               .groups("inf"))
        table = self.succeed("plan", "--async-checkpoints", "off", "--statistics-every", 0, *on[1:])
        self.assertEqual(planned, float(re.search(r"^device .* (\S+) MiB$", table, re.M)[1]))
        self.assertGreater(in_use[0], planned)
        done = self.run_program(*on, "--memory-limit", "1KiB")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr,
                         r"\Amini-llama: --memory-limit: needs \d+ bytes, 1024 are allowed, by category:\nweights ")

    def test_a_profile_without_graphs_is_of_one_time(self):
        on = ["profile", "--device", self.device(), "--recipe", "bf16",
              *as_flags({**SHAPE, "batch": 1, "sequence": 32})]
        head = self.succeed(*on, "--no-graphs").split("\n\n")[0]
        self.assertRegex(head, r"tokens/s, without graphs\ncopy \d+ GB/s")
        self.assertNotIn("--wait-for-each", self.succeed("profile", "--help"))

    def test_a_profile_refuses_options_that_would_do_nothing(self):
        on = ["profile", "--recipe", "bf16", *as_flags({**SHAPE, "batch": 1, "sequence": 32})]
        for ranks in ([], ["--gpus", 2, "--accumulate", 2]):
            self.refuse([*on, *ranks, "--wait-for-each"], "mini-llama: --wait-for-each: a profile waits for")
        self.refuse([*on, "--gpus", 2, "--operations"], "excludes")
        for flag in (["--shard", "masters"], ["--reduce", "library"], ["--divide-frozen"]):
            self.refuse([*on, *flag], f"mini-llama: {flag[0]}: needs --gpus")


if __name__ == "__main__":
    mini_llama.main(__doc__)
