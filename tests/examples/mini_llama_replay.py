#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""mini-llama's replay of runs: with faults in checkpoints and digests, of runs with rollbacks or resumes, and of
runs whose files have moved.

usage: mini_llama_replay.py PROGRAM [NAME...]
"""
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess

import mini_llama
from mini_llama import Scratch, records


class Replays(Scratch):
    def test_a_planted_fault_is_named(self):
        self.train("run", "--device", "cpu", "--digest-steps", "2:4", steps=4, checkpoint_every=2, schedule="mxfp4_h16")
        weights = self.folder / "run/checkpoints/step-000000004/model.safetensors"
        good = weights.read_bytes()
        bad = bytearray(good)
        for at in (-8, -4):  # lowest bits of the last two elements
            bad[at] ^= 1
        weights.write_bytes(bad)
        said = self.replay("--steps", "2:4", "--device", "cpu", code=1)
        found = re.search(r"step 4: model.safetensors: \S+: 2 of (\d+) elements differ, first element (\d+): (\S+), "
                          r"replayed (\S+)\n", said)
        self.assertEqual(int(found[1]) - 2, int(found[2]))
        self.assertNotEqual(found[3], found[4])
        self.assertEqual(said.count("\n"), 1)
        weights.write_bytes(good)
        digests = self.folder / "run/digests.jsonl"
        (choice, recorded), (_, lines) = self.digests(), self.digests()
        self.assertEqual(choice, {"version": 4, "digest_steps": "2:4"})
        self.assertEqual([(line["step"], line["skipped_steps"]) for line in lines], [(3, 0), (4, 0)])
        at = [name for name, _ in lines[1]["operations"]].index("attention_forward 2x32x2x32")
        lines[1]["operations"][at][1] = "0123456789abcdef"
        digests.write_text("".join(json.dumps(line) + "\n" for line in lines))
        said = self.replay("--steps", "2:4", "--device", "cpu", code=1)
        self.assertIn(f"step 4, operation {at + 1} (attention_forward 2x32x2x32): digest ", said)
        self.assertIn("the run's is 0123456789abcdef", said)
        self.assertTrue(any(o.startswith("quantize dy by columns mxfp4 ") for o, _ in lines[0]["operations"]))
        # The first version has no such field.
        for version, of in (({"version": 5}, "version 5 is of a later mini-llama"), ({}, "version 1 is of an")):
            line = {key: value for key, value in recorded[0].items() if key != "version"}
            digests.write_text(json.dumps({**line, **version}) + "\n")
            self.refuse(["replay", "run", "--steps", "2:4", "--device", "cpu"], f"digests.jsonl: {of}")
        # One operation more than the replay has.
        more = [{**recorded[0], "operations": [*recorded[0]["operations"], ["gemm 1x1", 16 * "0"]]}, recorded[1]]
        digests.write_text("".join(json.dumps(line) + "\n" for line in more))
        self.assertIn("(gemm 1x1): the run had it, the replay has not",
                      self.replay("--steps", "2:4", "--device", "cpu", code=1))
        digests.write_text("".join(json.dumps(line) + "\n" for line in recorded))
        # Other weights at the start: every later tensor differs, and the first operation is named.
        first = self.folder / "run/checkpoints/step-000000002/model.safetensors"
        bad = bytearray(first.read_bytes())
        bad[-2] ^= 0x40
        first.write_bytes(bad)
        self.assertIn("step 3, operation ", self.replay("--steps", "2:4", "--device", "cpu", code=1))

    def test_digests_that_are_missing_or_damaged(self):
        self.train("run", "--device", "cpu", "--digest-steps", "2:4", steps=4, checkpoint_every=2)
        digests, command = self.folder / "run/digests.jsonl", ["replay", "run", "--steps", "2:4"]
        text = digests.read_text()
        choice, *lines = text.splitlines(keepends=True)
        self.assertRegex(self.replay("--steps", "2:4"), r" are equal, and [1-9]\d* digests of 2 of 2 steps\n")
        for some, said in ((choice + lines[1], r"[1-9]\d* digests of 1 of 2 steps"),
                           (choice, "0 digests of 0 of 2 steps"), ("", "0 digests of 0 of 2 steps")):
            digests.write_text(some)
            self.assertRegex(self.replay("--steps", "2:4"), f" are equal, and {said}\n")
        digests.write_text(text[:len(choice) + 500])
        self.refuse(command, "run/digests.jsonl: line 2: ends in the middle of a record")
        step = json.loads(lines[0])
        for bad in ({"step": 4.5}, {"skipped_steps": 0.5}, {"operations": [["gemm 1x1", 16 * "g"]]}, {"operations": 3}):
            with self.subTest(bad):
                digests.write_text(choice + lines[1] + json.dumps({**step, **bad}) + "\n")
                self.refuse(command, "run/digests.jsonl: line 3: no record of a step's digests")

    def test_a_run_that_rolled_back_is_replayed(self):
        """Every attempt of a step is compared with its own digests, from any start of the replay."""
        done = self.run_program(*self.train_command(
            "run", "--device", "cpu", "--digest-steps", "0:16", steps=16, checkpoint_every=2, keep_checkpoints=20,
            learning_rate=0.1, max_loss_jump=0.2, on_divergence="rollback", max_rollbacks=9))
        self.assertEqual(done.returncode, 0, done.stderr)
        rollbacks = records(self.folder / "run/log.jsonl", "rollback")
        self.assertGreater(len(rollbacks), 0)
        _, lines = self.digests()
        self.assertEqual(len(lines), 16 + rollbacks[-1]["skipped_steps"])
        for first in range(0, 16, 2):
            with self.subTest(first):
                made = [r for r in rollbacks if first <= r["step"] < first + 2]
                attempts = 2 + sum(r["from_step"] - r["step"] for r in made)
                done = self.run_program("replay", "run", "--steps", f"{first}:{first + 2}", "--device", "cpu")
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertRegex(done.stdout, f" digests of {attempts} of {attempts} steps\n")

    def test_a_run_that_goes_on_keeps_its_digests(self):
        options = {"steps": 6, "checkpoint_every": 2}
        self.train("whole", "--device", "cpu", "--digest-steps", "1:6", **options)
        whole = (self.folder / "whole/digests.jsonl").read_text().splitlines()
        for more, added in ((), whole[4:]), (("--digest-steps", "4:5"), [whole[0].replace("1:6", "4:5"), whole[4]]):
            with self.subTest(more):
                self.train("run", "--device", "cpu", "--digest-steps", "1:6", "--stop-at", 4, "--overwrite", **options)
                self.succeed("train", "--resume", "run", *more)
                self.assertEqual((self.folder / "run/digests.jsonl").read_text().splitlines(), whole[:4] + added)
        # A new run has none of the old digests.
        self.train("run", "--device", "cpu", "--digest-steps", "3:6", "--overwrite", **options)
        self.assertEqual([line["step"] for line in self.digests()[1]], [4, 5, 6])
        (self.folder / "run/digests.jsonl").write_text('{"version": 4, "digest_steps": "6"}\n')
        self.refuse(["train", "--resume", "run"], "run/digests.jsonl: line 1: digest_steps: '6' is not A:B")

    def move(self, name):
        (self.folder / "moved").mkdir(exist_ok=True)
        (self.folder / name).rename(self.folder / "moved" / name)

    def test_files_that_have_moved_are_named_to_a_replay(self):
        self.sentencepiece()
        shape = {"tokenizer": "t.model", "vocab_size": 300, "steps": 4, "checkpoint_every": 2}
        self.train("base", **shape)
        self.train("given", "--init", "base", "--lora-rank", 4, **shape)
        adapters = "given/checkpoints/step-000000004"
        self.train("run", "--init", "base", "--adapter", adapters, **shape)
        self.train("plain", steps=4, checkpoint_every=2)
        command = ["replay", "run", "--steps", "0:4"]
        moved = []
        for name, flag, said in (("text.txt", "--data", "; --data says where it is now"),
                                 ("t.model", "--tokenizer", "; --tokenizer says where it is now"),
                                 ("base", "--init", "by --init"), ("given", "--adapter", "by --adapter")):
            with self.subTest(flag):
                self.assertIn(" are equal", self.succeed(*command, *moved))
                self.move(name)
                self.refuse([*command, *moved], name, said)
                moved += [flag, f"moved/{adapters if name == 'given' else name}"]
        for steps in ("0:4", "2:4"):
            self.assertIn(" are equal", self.succeed("replay", "run", "--steps", steps, *moved))
        (self.folder / "other.txt").write_bytes(mini_llama.generated_text(seed=2))
        for steps in ("0:4", "2:4"):
            self.refuse(["replay", "run", "--steps", steps, *moved[2:], "--data", "other.txt"],
                        "other.txt: not the text that")
        self.refuse([*command, *moved[:4], "--init", "plain", *moved[6:]], "plain")
        self.refuse(["train", "--resume", "run", *moved[2:]],
                    "text.txt: cannot open: No such file or directory; --data says")
        for flag in ("--tokenizer", "--init", "--adapter"):
            for command in (["replay", "plain", "--steps", "0:4"], ["train", "--resume", "plain"]):
                self.refuse([*command, "--data", moved[1], flag, "x"],
                            f"{flag} x: the run has none that could have moved")

    def replay_with(self, temporary, *arguments, **more):
        """A replay of the run, with its directory in `temporary`."""
        return subprocess.run([mini_llama.PROGRAM, "replay", "run", *arguments], cwd=self.folder,
                              stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120, env={**os.environ, "TMPDIR": str(temporary)}, **more)

    def test_a_replay_removes_its_own_directory_and_no_other(self):
        self.train("run", "--device", "cpu", steps=4, checkpoint_every=2)
        temporary = self.folder / "temporary"
        temporary.mkdir()
        # A predictable name must not matter.
        done = subprocess.run(["sh", "-c", 'mkdir "$TMPDIR/mini-llama-replay-$$" && exec "$0" replay run --steps 2:4',
                               mini_llama.PROGRAM], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "TMPDIR": str(temporary)})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(list(temporary.iterdir())), 1)
        shutil.rmtree(temporary)
        done = self.replay_with(temporary, "--steps", "2:4")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr,
                         f"mini-llama: TMPDIR: cannot create a directory in {temporary}: No such file or directory; "
                         "--keep names one for the replay's own run\n")
        # No space for a checkpoint.
        temporary.mkdir()
        done = self.replay_with(temporary, "--steps", "2:4",
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14)))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr,
                         rf"\Amini-llama: {temporary}/[^\n]+; a replay needs room for its checkpoint: TMPDIR or "
                         rf"--keep [^\n]+\n\Z")
        self.assertNotIn("--resume", done.stderr)
        self.assertEqual(list(temporary.iterdir()), [])

    def interrupted(self, steps, text, signal):
        """The line of a replay that gets a signal after writing the text, or after making a directory whose name
        contains it."""
        faults = os.environ.get("ROTOSCALE_FAULTS")
        if not faults:
            self.skipTest("no library of faults")
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        done = subprocess.run([mini_llama.PROGRAM, "replay", "run", "--steps", steps], cwd=self.folder,
                              capture_output=True, text=True, preexec_fn=self.expect_signals,
                              env={**os.environ, "TMPDIR": str(temporary), "LD_PRELOAD": faults,
                                                                   "FAULTS_SIGNAL_IN": text,
                                                                   "FAULTS_SIGNAL": str(int(signal))})
        self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
        self.assertEqual(list(temporary.iterdir()), [])
        return done.stderr

    def test_a_replay_that_ends_early_leaves_nothing_to_go_on_from(self):
        self.train("run", "--device", "cpu")
        for number in (signal.SIGINT, signal.SIGTERM):
            self.assertEqual(self.interrupted("0:8", '{"event":"step","step":3,', number),
                             f"mini-llama: bf16: {number.name} at step 3 of 8; nothing was compared\n")
            self.interrupted("0:8", "mini-llama-replay-", number)  # before it loads

    def test_a_replay_that_diverges(self):
        self.train("run", "--device", "cpu", "--digest-steps", "2:4", steps=4, checkpoint_every=2)
        first = self.folder / "run/checkpoints/step-000000002/model.safetensors"
        first.write_bytes(first.read_bytes()[:-4096] + 1024 * struct.pack("<f", 3e38))
        temporary = self.folder / "temporary"
        temporary.mkdir()
        done = self.replay_with(temporary, "--steps", "2:4")
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stdout, r"\Areplay: step 3, operation \d+ \([^\n]+\n\Z")
        self.assertRegex(done.stderr,
                         r"\Amini-llama: bf16: diverged at step 3 \([^\n]+\), as the run did not; nothing was "
                         r"compared\n\Z")
        self.assertEqual(list(temporary.iterdir()), [])

    def test_bad_input(self):
        self.train("run", "--device", "cpu", steps=4, checkpoint_every=2)
        self.refuse(["replay", "run", "--steps", "4:2"], "--steps", "'4:2' is not A:B")
        self.refuse(["replay", "run", "--steps", "0:3"], "step-000000003", "no such checkpoint")
        self.refuse(["replay", "run", "--steps", "1:4"], "step-000000001", "no such checkpoint")
        self.refuse(["replay", "nothing", "--steps", "0:2"], "nothing")
        self.refuse(["replay", "run", "--steps", "2:4", "--keep", "run"], "exists")


if __name__ == "__main__":
    mini_llama.main(__doc__)
