#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""A run of mini-llama survives kills at system calls, signals, a full disk and damaged checkpoints. It continues,
ends with the bytes of an uninterrupted run, and leaves no temporary files. Power loss is checked by the order of
system calls.

usage: mini_llama_kill.py PROGRAM FAULTS [--slow] [NAME...]
  FAULTS  the library of faults.cpp
  --slow  kills at every system call of a whole run
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import unittest

import mini_llama
from mini_llama import Scratch, records, tree_of

FAULTS = ""
SLOW = "--slow" in sys.argv
UNBROKEN = {}  # uninterrupted runs, by command
STORY = {"step": ("step", "loss", "lr", "grad_norm", "tokens", "recipe"), "eval": ("step", "val_loss"),
         "switch": ("step", "from", "to", "val_loss_before")}


def story(log):
    """A log's records without clocks. Records after the step from which a run continued are void."""
    told = []
    for r in records(log):
        if r["event"] in ("resume", "rollback"):
            told = [t for t in told if t[1] <= r["step"]]
        elif r["event"] in STORY:
            told.append((r["event"],) + tuple(r[key] for key in STORY[r["event"]]))
    # The evaluation after the last checkpoint is repeated.
    return sorted(set(told), key=lambda t: (t[1], t[0] != "step", t[0]))


def step_record(step):
    return f'{{"event":"step","step":{step},'


class Runs(Scratch):
    OPTIONS = {"steps": 6, "checkpoint_every": 2, "eval_every": 3, "schedule": "mxfp4_h16_heal"}

    def command(self, out="run", *more, **options):
        return self.train_command(out, "--auto-resume", *more, **{**self.OPTIONS, **options})

    def with_faults(self, command, preexec=lambda: None, **environment):
        """Exit code, standard output and standard error under faults.cpp (FAULTS_...), and with other variables."""

        def prepare():
            self.expect_signals()
            preexec()
        done = subprocess.run([mini_llama.PROGRAM, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120, preexec_fn=prepare,
                              env={**os.environ, "LD_PRELOAD": str(sys.modules["__main__"].FAULTS),
                                   **{key: str(value) for key, value in environment.items()}})
        return done.returncode, done.stdout, done.stderr

    def signalled(self, command, text, *signals, **more):
        """A run that gets signals after writing a record that contains the text."""
        return self.with_faults(command, FAULTS_SIGNAL_IN=text,
                                FAULTS_SIGNAL=" ".join(str(int(number)) for number in signals), **more)

    def unbroken(self, *more, **options):
        """Makes `whole`, or copies the result of the same command in another test: the program's bytes are
        reproducible."""
        command = self.command("whole", *more, **options)
        made = UNBROKEN.setdefault(str(command), self.folder.parent / f"{self.folder.name}-unbroken")
        if not made.exists():
            self.succeed(*command)
            shutil.copytree(self.folder / "whole", made)
            unittest.addModuleCleanup(shutil.rmtree, made)
        else:
            shutil.copytree(made, self.folder / "whole")

    def assert_like_unbroken(self, out="run"):
        found, expected = (tree_of(self.folder / run / "checkpoints") for run in (out, "whole"))
        self.assertEqual(found, expected)
        names = sorted(str(p.relative_to(self.folder / out)) for p in (self.folder / out).rglob("*"))
        wanted = sorted(str(p.relative_to(self.folder / "whole")) for p in (self.folder / "whole").rglob("*"))
        self.assertEqual(names, wanted)  # no temporary files
        self.assertEqual(story(self.folder / out / "log.jsonl"), story(self.folder / "whole" / "log.jsonl"))
        ends = [records(self.folder / run / "log.jsonl", "end")[-1] for run in (out, "whole")]
        for key in ("status", "step", "tokens", "final_val_loss", "window_losses", "best_val_loss"):
            self.assertEqual(ends[0][key], ends[1][key])

    def assert_memory_table(self, said, *parts):
        """Expects one line that contains every part, followed by the categories."""
        line, *table = said.splitlines()
        for part in parts:
            self.assertIn(part, line)
        self.assertEqual([row.split()[0] for row in table],
                         ["weights", "masters", "gradients", "moments", "quantized", "adapters", "stash", "activations",
                          "workspace", "snapshot", "transfers", "device", "total"])

    def assert_little_is_lost(self, out="run"):
        """The last resume started at the newest checkpoint in the log."""
        seen = records(self.folder / out / "log.jsonl")
        last = max((i for i, r in enumerate(seen) if r["event"] == "resume"), default=None)
        if last is not None:
            known = [r["step"] for r in seen[:last] if r["event"] == "checkpoint"]
            self.assertGreaterEqual(seen[last]["step"], max(known, default=0))


class Kill(Runs):
    def trace(self):
        code, _, said = self.with_faults(self.command("traced"), FAULTS_TRACE=self.folder / "trace")
        if code != 0 or not (self.folder / "trace").exists():
            self.skipTest(f"no library can be preloaded here: {said}")
        lines = (self.folder / "trace").read_text().replace("traced", "run").splitlines()
        return [line.split("\t") for line in lines]

    def test_at_every_call(self):
        self.unbroken()
        calls = self.trace()
        # The log's lines are similar: keeps only those around the checkpoint.
        second = [i for i, (call, path, *_) in enumerate(calls) if path.startswith("run/checkpoints/.step-000000004")]
        # Nothing that is written after the last one could repair a fault.
        last = next(i for i,
                    (call, _, to) in enumerate(calls) if call == "rename" and to == "run/checkpoints/step-000000006")
        some = [*range(1, 26), *range(second[0], second[-1] + 6), *range(last, min(last + 12, len(calls) + 1))][::8]
        chosen = range(1, len(calls) + 1) if SLOW else some
        for number in chosen:
            with self.subTest(call=number, what=calls[number - 1]):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                code, *_ = self.with_faults(self.command(), FAULTS_KILL_AT=number)
                self.assertEqual(code, -signal.SIGKILL)
                self.succeed(*self.command())
                self.assert_like_unbroken()
                self.assert_little_is_lost()

    def test_before_anything_is_written(self):
        """The first calls leave nothing, or a run that --resume and --auto-resume continue."""
        self.unbroken()
        self.trace()
        for number in range(1, 12) if SLOW else (1, 4, 7, 11):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            self.with_faults(self.command(), FAULTS_KILL_AT=number)
            if (self.folder / "run/trainer_state.json").exists():
                self.succeed("train", "--resume", "run")
            else:
                self.train("run", **self.OPTIONS)
            self.assert_like_unbroken()

    def test_overwriting(self):
        self.unbroken()
        old = {**self.OPTIONS, "seed": 5}
        self.train("run", **old)
        shutil.copytree(self.folder / "run", self.folder / "old")
        again = self.train_command("run", "--overwrite", **self.OPTIONS)
        for number in range(1, 40) if SLOW else range(1, 20, 4):
            shutil.rmtree(self.folder / "run")
            shutil.copytree(self.folder / "old", self.folder / "run")
            self.assertEqual(self.with_faults(again, FAULTS_KILL_AT=number)[0], -signal.SIGKILL)
            # Either run, old or new, can be resumed, or neither exists. No mixture exists.
            if (self.folder / "run/trainer_state.json").exists():
                self.succeed("train", "--resume", "run")
            else:
                self.succeed(*again)
            seed = json.loads((self.folder / "run/config.json").read_text())["train"]["seed"]
            expected = "old" if seed == 5 else "whole"
            self.assertEqual(tree_of(self.folder / "run/checkpoints"), tree_of(self.folder / expected / "checkpoints"))

    def test_order_of_writes_through_a_loss_of_power(self):
        calls = self.trace()
        parent = os.path.dirname
        # Records up to each step's, after which its checkpoint follows. More may be written meanwhile.
        before = {r["step"]: number for number, r in enumerate(records(self.folder / "traced/log.jsonl"), 1)
                  if r["event"] in ("step", "eval")}
        unwritten, unlisted = set(), set()  # files with data, and directories with entries, that are not on disk
        renamed, logged, flushed = 0, 0, 0
        for call, path, more in calls:
            if path == "run/log.jsonl":
                logged += call == "write"
                flushed = logged if call == "fsync" else flushed
            if call in ("write", "truncate"):
                unwritten.add(path)
            elif call in ("create", "mkdir"):
                unlisted.add(parent(path))
            elif call == "fsync":
                unwritten.discard(path)
                unlisted.discard(path)
            elif call in ("rename", "exchange"):
                renamed += 1
                below = [p for p in unwritten | unlisted if p == path or p.startswith(path + "/")]
                self.assertEqual(below, [], f"not on disk when it was renamed to {more}")
                if more.startswith("run/checkpoints/step-") and "/" not in more[len("run/checkpoints/"):]:
                    self.assertGreaterEqual(flushed, before[int(more[-9:])], "the log behind a checkpoint")
                    self.assertNotIn("run", unlisted, "the directory of checkpoints itself")
                unlisted |= {parent(path), parent(more)}
            elif call == "remove" and "/step-" in path and ".tmp-" not in path:
                self.assertNotIn("run/checkpoints", unlisted, "an older checkpoint goes when the newer one is on disk")
        self.assertGreater(renamed, 10)
        # Evaluations and checkpoints follow the state that they need.
        order = [path for call, path, more in calls if call == "rename" for path in [more]]
        self.assertEqual(order[0], "run/trainer_state.json")


class Full(Runs):
    def check_full_disk(self, code, said):
        self.assertEqual(code, 2)
        self.assertIn("No space left on device", said)
        self.assertRegex(said, r"\Amini-llama: [^\n]*; when that is mended: mini-llama train --resume run\n\Z")
        self.assertEqual([p for p in (self.folder / "run").rglob(".*")], [])
        self.assertTrue(self.checkpoint("run", 2).exists())

    def test_during_the_second_checkpoint(self):
        self.unbroken()
        code, *_ = self.with_faults(self.command("traced"), FAULTS_TRACE=self.folder / "trace")
        if code != 0 or not (self.folder / "trace").exists():
            self.skipTest("no library can be preloaded here")
        written, begin, end = 0, None, None  # of the second checkpoint, which has the length of the first
        for line in (self.folder / "trace").read_text().splitlines():
            call, path, more = line.split("\t")
            if call != "write":
                continue
            if path.startswith("traced/checkpoints/.step-000000004"):
                begin = written if begin is None else begin
                end = (begin if end is None else end) + int(more)
            written += int(more)
        draw = random.Random(3)
        # Steps continue meanwhile, and their log has clocks. Bytes are exact only where the log's disk has room.
        size = end - begin
        chosen = [(at, "/checkpoints/") for at in (size, size + 1, 2 * size - 1, size + draw.randrange(size))]
        for full_at, part in [*chosen, (draw.randrange(begin, end), "")]:
            with self.subTest(full_at=full_at, part=part):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                code, _, said = self.with_faults(self.command(), FAULTS_FULL_AT=full_at, FAULTS_FULL_IN=part)
                self.check_full_disk(code, said)
                self.succeed(*self.command())
                self.assert_like_unbroken()


class Rollback(Runs):
    """Loss jumps, forced by too high a learning rate."""
    OPTIONS = {"steps": 40, "checkpoint_every": 3, "eval_every": 20, "learning_rate": 0.2, "warmup": 0.5,
               "schedule": "bf16", "on_divergence": "rollback", "max_loss_jump": 0.2, "max_rollbacks": 50, "batch": 1}

    def test_skips_the_data_and_is_recorded(self):
        done = self.run_program(*self.command())
        self.assertEqual(done.returncode, 0, done.stderr)
        back = records(self.folder / "run/log.jsonl", "rollback")
        self.assertGreater(len(back), 0)
        self.assertEqual(done.stderr.count("\n"), len(back))
        skipped = 0
        for number, r in enumerate(back, 1):
            skipped += r["from_step"] - r["step"]
            self.assertEqual((r["skipped_steps"], r["rollbacks"], r["step"] % 3), (skipped, number, 0))
            self.assertRegex(r["reason"], r"loss [0-9.]+ after a mean of [0-9.]+")
        state = json.loads((self.checkpoint("run", 40) / "trainer_state.json").read_text())
        self.assertEqual((state["skipped_steps"], state["rollbacks"]), (skipped, len(back)))
        self.succeed("report", "run", "--out", "report")

    def test_killed_it_rolls_back_in_the_same_way(self):
        self.assertEqual(self.run_program(*self.command("whole")).returncode, 0)
        for number in (100, 280):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            if self.with_faults(self.command(), FAULTS_KILL_AT=number)[0] == 0:
                self.skipTest("no library can be preloaded here")
            self.assertEqual(self.run_program(*self.command()).returncode, 0)
            self.assertEqual(tree_of(self.folder / "run/checkpoints"), tree_of(self.folder / "whole/checkpoints"))

    def test_an_extra_checkpoint_is_not_gone_back_to(self):
        self.assertEqual(self.run_program(*self.command("whole")).returncode, 0)
        back = records(self.folder / "whole/log.jsonl", "rollback")
        between = sorted({r["from_step"] - 1 for r in back if r["from_step"] - 1 > r["step"]})
        self.assertGreater(len(between), 0)
        for stop in between[:2]:
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            self.assertEqual(self.run_program(*self.command("run", "--stop-at", stop)).returncode, 0)
            self.assertEqual(self.run_program(*self.command()).returncode, 0)
            self.assertEqual(tree_of(self.folder / "run/checkpoints"), tree_of(self.folder / "whole/checkpoints"))

    def test_weights_go_back_too(self):
        """With identical data everywhere, a rollback is followed by the same steps."""
        (self.folder / "even.txt").write_bytes(b"the same words in every window.\n" * 4000)  # 32 bytes
        done = self.run_program(*self.command(data="even.txt", max_loss_jump=1e-7, max_rollbacks=2))
        self.assertEqual(done.returncode, 3, done.stderr)
        first, second = ((r["step"], r["from_step"], r["reason"])
                         for r in records(self.folder / "run/log.jsonl", "rollback"))
        self.assertEqual(first, second)

    def test_stops_where_there_is_nothing_to_go_back_to(self):
        for options in ({"on_divergence": "stop"}, {"max_rollbacks": 0}, {"max_loss_jump": 1e-7, "max_rollbacks": 2}):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            done = self.run_program(*self.command(**options))
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(records(self.folder / "run/log.jsonl")[-1]["status"], "diverged")
            self.assertEqual(len(records(self.folder / "run/log.jsonl", "rollback")),
                             options.get("max_loss_jump", 0) and 2)
        self.refuse(self.command("other", on_divergence="rolback"), "--on-divergence", "stop, rollback")


if __name__ == "__main__":
    mini_llama.main(__doc__, "FAULTS")
