#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""A run of mini-llama cannot be lost: killed at random moments, at every system call in turn, by signals, with the disk
full or a checkpoint damaged, it goes on and ends with the bytes of an unbroken run, and nothing temporary stays. What a
loss of power would leave is checked by the order of the system calls.

usage: mini_llama_kill.py PROGRAM FAULTS [--slow] [NAME...]
FAULTS is the library of faults.cpp; --slow: 200 random moments instead of 20, and every system call of a whole run.
"""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import mini_llama
from mini_llama import Scratch, records, tree_of

FAULTS = ""
SLOW = "--slow" in sys.argv
UNBROKEN = {}  # runs that were not interrupted, by their command
STORY = {"step": ("step", "loss", "lr", "grad_norm", "tokens", "recipe"), "eval": ("step", "val_loss"),
         "switch": ("step", "from", "to", "val_loss_before")}


def story(log):
    """What a log says happened, without clocks: records of later steps are void once the run goes on from an earlier one."""
    told = []
    for r in records(log):
        if r["event"] in ("resume", "rollback"):
            told = [t for t in told if t[1] <= r["step"]]
        elif r["event"] in STORY:
            told.append((r["event"],) + tuple(r[key] for key in STORY[r["event"]]))
    # An evaluation behind the last checkpoint is made again.
    return sorted(set(told), key=lambda t: (t[1], t[0] != "step", t[0]))


class Runs(Scratch):
    OPTIONS = {"steps": 6, "checkpoint_every": 2, "eval_every": 3, "schedule": "mxfp4_h16_heal"}

    def command(self, out="run", *more, **options):
        return self.train_command(out, "--auto-resume", *more, **{**self.OPTIONS, **options})

    def start(self, command, stderr=subprocess.PIPE, **environment):
        return subprocess.Popen([mini_llama.PROGRAM, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **environment},
                                preexec_fn=self.expect_signals)

    def start_with_faults(self, command, **faults):
        return self.start(command, LD_PRELOAD=FAULTS, **{key: str(value) for key, value in faults.items()})

    def start_lasting(self, command, milliseconds=100):
        """A run that takes seconds however fast its steps are: a busy machine is late to tell it something."""
        return self.start_with_faults(command, FAULTS_SLOW=milliseconds)

    def with_faults(self, command, **faults):
        done = self.start_with_faults(command, **faults)
        said = done.communicate(timeout=120)
        return done.returncode, *said

    def unbroken(self, **options):
        """Makes `whole`, or a copy of what another test made of the same command: the program's bytes are the same each time."""
        command = self.command("whole", **options)
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
        self.assertEqual(names, wanted)  # no temporary stays
        self.assertEqual(story(self.folder / out / "log.jsonl"), story(self.folder / "whole" / "log.jsonl"))
        ends = [records(self.folder / run / "log.jsonl", "end")[-1] for run in (out, "whole")]
        for key in ("status", "step", "tokens", "final_val_loss", "window_losses", "best_val_loss"):
            self.assertEqual(ends[0][key], ends[1][key])

    def assert_memory_table(self, said, *parts):
        """One line that holds every part, and the categories behind it."""
        line, *table = said.splitlines()
        for part in parts:
            self.assertIn(part, line)
        self.assertEqual([row.split()[0] for row in table],
                         ["weights", "masters", "gradients", "moments", "quantized", "adapters", "stash", "activations",
                          "workspace", "snapshot", "transfers", "device", "total"])

    def assert_little_is_lost(self, out="run"):
        """The last resume began at the newest checkpoint of which the log knew."""
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
        # The log's lines are alike: of them only those around the checkpoint.
        second = [i for i, (call, path, *_) in enumerate(calls) if path.startswith("run/checkpoints/.step-000000004")]
        # Behind the last one nothing is written that would mend what is missing.
        last = next(i for i, (call, _, to) in enumerate(calls) if call == "rename" and to == "run/checkpoints/step-000000006")
        some = [*range(1, 26), *range(second[0], second[-1] + 6), *range(last, min(last + 12, len(calls) + 1))]
        chosen = range(1, len(calls) + 1) if SLOW else some
        for number in chosen:
            with self.subTest(call=number, what=calls[number - 1]):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                code, *_ = self.with_faults(self.command(), FAULTS_KILL_AT=number)
                self.assertEqual(code, -signal.SIGKILL)
                self.succeed(*self.command())
                self.assert_like_unbroken()
                self.assert_little_is_lost()

    def test_at_random_moments(self):
        options = {"steps": 30, "checkpoint_every": 4, "eval_every": 5}
        begin = time.monotonic()
        self.unbroken(**options)
        length = time.monotonic() - begin
        draw = random.Random(7)
        for number in range(200 if SLOW else 20):
            with self.subTest(number=number):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                done = None
                while done != 0:
                    child = self.start(self.command(**options))
                    try:
                        child.communicate(timeout=draw.uniform(0.02, 0.9) * length)
                    except subprocess.TimeoutExpired:
                        child.kill()
                        child.communicate()
                    done = child.returncode
                    self.assertIn(done, (0, -signal.SIGKILL))
                self.assert_like_unbroken()
                self.assert_little_is_lost()

    def test_before_anything_is_written(self):
        """What the first calls leave is nothing, or a run that --resume and --auto-resume take up."""
        self.unbroken()
        self.trace()
        for number in range(1, 12):
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
        for number in range(1, 40 if SLOW else 20):
            shutil.rmtree(self.folder / "run")
            shutil.copytree(self.folder / "old", self.folder / "run")
            self.assertEqual(self.with_faults(again, FAULTS_KILL_AT=number)[0], -signal.SIGKILL)
            # Either run can be resumed, whichever is there, or neither is; nothing is a mixture.
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
        # Records up to each step's, behind which its checkpoint follows; more may be written meanwhile.
        before = {r["step"]: number for number, r in enumerate(records(self.folder / "traced/log.jsonl"), 1)
                  if r["event"] in ("step", "eval")}
        unwritten, unlisted = set(), set()  # files with data, directories with entries that are not on disk
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
        written, begin, end = 0, None, None  # of the second checkpoint, which is as long as the first
        for line in (self.folder / "trace").read_text().splitlines():
            call, path, more = line.split("\t")
            if call != "write":
                continue
            if path.startswith("traced/checkpoints/.step-000000004"):
                begin = written if begin is None else begin
                end = (begin if end is None else end) + int(more)
            written += int(more)
        draw = random.Random(3)
        # Steps go on meanwhile, and their log has clocks: to the byte only where the log's disk has room.
        size = end - begin
        chosen = [(at, "/checkpoints/") for at in (size, size + 1, 2 * size - 1, *(size + draw.randrange(size) for _ in range(3)))]
        for full_at, part in [*chosen, *((draw.randrange(begin, end), "") for _ in range(3))]:
            with self.subTest(full_at=full_at, part=part):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                code, _, said = self.with_faults(self.command(), FAULTS_FULL_AT=full_at, FAULTS_FULL_IN=part)
                self.check_full_disk(code, said)
                self.succeed(*self.command())
                self.assert_like_unbroken()

    def test_of_a_run_that_has_not_begun_nothing_stays(self):
        """Neither what it has written, nor directories that it has made; what was there stays. Without --auto-resume it can begin later."""
        self.train("parts", "--stop-at", 3, **self.OPTIONS)
        (self.folder / "empty").mkdir()
        self.train("old", "--stop-at", 1, **{**self.OPTIONS, "seed": 5})
        shutil.copytree(self.folder / "old", self.folder / "kept")
        new = self.train_command("a/b", "--csv", "--tensorboard", **self.OPTIONS)
        commands = {"a": new, "empty": ["train", "--out", "empty", *new[3:]], "old": ["train", "--out", "old", *new[3:], "--overwrite"],
                    "far": ["train", "--resume", "parts", "--out", "far/run", "--csv"]}
        before = tree_of(self.folder / "parts")
        for out, command in commands.items():
            code, _, said = self.with_faults(command, FAULTS_TRACE=self.folder / "trace")
            if code != 0 or not (self.folder / "trace").exists():
                self.skipTest(f"no library can be preloaded here: {said}")
            written = [int(more) for call, path, more in (line.split("\t") for line in (self.folder / "trace").read_text().splitlines())
                       if call == "write" and path.startswith(out + "/")]
            (self.folder / "trace").unlink()
            refused, said = 0, ""
            for first in range(len(written)):  # the write that does not fit, by half
                with self.subTest(out=out, first=first):
                    shutil.rmtree(self.folder / out, ignore_errors=True)
                    if out == "empty":
                        (self.folder / out).mkdir()
                    if out == "old":
                        shutil.copytree(self.folder / "kept", self.folder / out)
                    code, said_there, said = self.with_faults(command, FAULTS_FULL_AT=sum(written[:first]) + written[first] // 2)
                    self.assertEqual((code, said_there), (2, ""), said)
                    self.assertRegex(said, r"\Amini-llama: [^\n]*No space left on device[^\n]*\n\Z")
                    if "--resume" in said:
                        break
                    refused += 1
                    self.assertEqual((self.folder / out).exists(), out in ("empty", "old"))
                    self.assertEqual(list((self.folder / out).rglob("*")), [])
            self.assertGreater(refused, 3)
            self.assertIn("--resume", said)
            self.assertEqual(tree_of(self.folder / "parts"), before)

    def test_on_a_small_file_system(self):
        self.unbroken()
        size = sum(p.stat().st_size for p in self.checkpoint("whole", 6).iterdir())
        (self.folder / "run").mkdir()
        script = (f'mount -t tmpfs -o size={size * 17 // 10} none run || exit 77; "$@" 2>said; echo $? >code;'
                  'cp -r run full; mount -o remount,size=1g none run; "$@" || exit 1; cp -r run copy')
        try:
            done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", mini_llama.PROGRAM, *map(str, self.command())],
                                  cwd=self.folder, capture_output=True, text=True, timeout=120)
        except FileNotFoundError:
            self.skipTest("no unshare")
        if not (self.folder / "code").exists():
            self.skipTest(f"cannot mount: {done.stderr}")
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.folder / "run").rmdir()
        (self.folder / "full").rename(self.folder / "run")
        self.check_full_disk(int((self.folder / "code").read_text()), (self.folder / "said").read_text())
        self.assert_like_unbroken("copy")


class Asynchronous(Runs):
    OPTIONS = {"steps": 12, "checkpoint_every": 4, "keep_checkpoints": 9, "eval_every": 50, "schedule": "fp8_amd", "batch": 1,
               "eval_windows": 1, "final_eval_windows": 1}

    def slow(self, out, *more, milliseconds=25, **options):
        code, _, said = self.with_faults(self.command(out, *more, **options), FAULTS_SLOW=milliseconds)
        self.assertEqual((code, said), (0, ""))
        return records(self.folder / out / "log.jsonl")

    def test_steps_go_on_while_a_checkpoint_is_written(self):
        self.unbroken()
        at = {}
        for out, *more in (("on", "on"), ("off", "off"), ("device", "on", "--device", "host")):
            if out == "device" and self.run_program("plan", "--device", "host").returncode != 0:
                continue
            log = self.slow(out, "--async-checkpoints", *more)
            self.assert_like_unbroken(out)
            told = [(r["event"], r["step"]) for r in log if r["event"] in ("step", "checkpoint")]
            at[out] = {name: i for i, name in enumerate(told)}
            written = [r for r in log if r["event"] == "checkpoint"]
            self.assertEqual([r["step"] for r in written], [4, 8, 12])
            for r in written:
                if out == "off":
                    self.assertEqual(r["seconds"], r["wait_seconds"])
                    self.assertEqual(at[out]["checkpoint", r["step"]], at[out]["step", r["step"]] + 1)
                    continue
                self.assertGreater(r["seconds"], 0.2)
                if r["step"] == 12:
                    continue
                self.assertLess(at[out]["step", r["step"] + 1], at[out]["checkpoint", r["step"]])

    def test_the_log_says_how_long_steps_waited(self):
        log = self.slow("run", milliseconds=5, batch=32, num_hidden_layers=4, steps=8, max_epochs=9)
        written = [r for r in log if r["event"] == "checkpoint"]
        self.assertEqual([r["step"] for r in written], [4, 8])
        first = written[0]
        between = [r["seconds"] for r in log if r["event"] == "step" and r["step"] in (4, 8)]
        if between[1] - between[0] < 1.5 * first["seconds"]:
            self.skipTest("steps are too short here, or files too slow")
        self.assertLess(first["wait_seconds"], first["seconds"] / 2)

    def test_a_failure_is_told_with_what_follows(self):
        """At the next checkpoint, at the end, by a signal: the disk is full whatever waits for the checkpoint."""
        for stop, options in ((12, {}), (5, {}), (4, {})):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            code, out, said = self.with_faults(self.command("run", "--stop-at", stop, **options), FAULTS_FULL_AT=1000, FAULTS_SLOW=20,
                                               FAULTS_FULL_IN="/checkpoints/")
            self.assertEqual((code, out), (2, ""), said)
            self.assertRegex(said, r"\Amini-llama: run/checkpoints/[^\n]*No space left on device; when that is mended: "
                                   r"mini-llama train --resume run\n\Z")
            self.assertEqual(list((self.folder / "run/checkpoints").iterdir()), [])
            self.assertEqual(records(self.folder / "run/log.jsonl", "checkpoint"), [])
            self.assertEqual(records(self.folder / "run/log.jsonl", "end"), [])

    def test_a_signal_waits(self):
        self.unbroken()
        command = self.command("run", **{**self.OPTIONS, "steps": 400, "checkpoint_every": 4, "max_epochs": 20})
        child = self.start_lasting(command)
        Signals.wait_for(self, child, 6)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 4, said)
        log = records(self.folder / "run/log.jsonl")
        saved = [r["step"] for r in log if r["event"] == "checkpoint"]
        self.assertEqual(saved, sorted({4, *saved, log[-1]["step"]}))
        self.assertEqual(log[-2]["event"], "checkpoint")
        for step in saved:
            self.assertTrue(self.checkpoint("run", step).exists())
        self.assertEqual([p for p in (self.folder / "run").rglob(".*")], [])


class Device(Runs):
    OPTIONS = {"steps": 6, "checkpoint_every": 2, "eval_every": 3, "schedule": "fp8_amd", "batch": 1, "sequence": 32,
               "eval_windows": 1, "final_eval_windows": 1}

    def test_without_memory_nothing_is_lost(self):
        self.unbroken()
        has_host = self.run_program("plan", "--device", "host").returncode == 0
        for device in ("cpu", "host") if has_host else ("cpu",):
            with self.subTest(device=device):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                on = ("--device", device)
                code, out, said = self.with_faults(self.command("run", *on), FAULTS_MEMORY=1 << 12)
                self.assertEqual((code, out), (5, ""), said)
                self.assert_memory_table(said, "mini-llama: out of memory at ", " bytes for ")
                self.assertFalse((self.folder / "run").exists())
                self.succeed(*self.command("run", *on, "--stop-at", 3))
                before = tree_of(self.folder / "run")
                code, out, said = self.with_faults(self.command("run", *on), FAULTS_MEMORY=1 << 12)
                self.assertEqual((code, out), (5, ""), said)
                self.assertEqual(tree_of(self.folder / "run"), before)
                self.succeed(*self.command("run", *on))
                self.assert_like_unbroken()

    def test_without_memory_in_a_step_the_run_can_go_on(self):
        self.unbroken()
        code, out, said = self.with_faults(self.command("run", "--device", "cpu"), FAULTS_HEAP_AT=12)
        self.assertEqual((code, out), (5, ""), said)
        self.assert_memory_table(said, "mini-llama: fp8_amd: out of memory behind step ", "--resume run; its memory, by category:")
        end = records(self.folder / "run/log.jsonl")[-1]
        self.assertEqual((end["event"], end["status"]), ("end", "failed"))
        self.succeed("train", "--resume", "run")
        self.assert_like_unbroken()

    def test_without_memory_for_an_operation_of_host_mode(self):
        """Its threads' stacks are no arena."""
        if self.run_program("plan", "--device", "host").returncode != 0:
            self.skipTest("no host mode")
        commands = (self.command("run", "--device", "host"), ["eval", "--checkpoint", "whole", "--device", "host"])
        self.unbroken()
        seen = set()
        for limit in range(60 << 20, 140 << 20, 10 << 20):
            def limited(command):
                return subprocess.run([mini_llama.PROGRAM, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                                      text=True, timeout=120, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            if limited(["--version"]).returncode != 0:
                continue  # a sanitizer's memory
            for i, command in enumerate(commands):
                done = limited(command)
                if done.returncode == 0:
                    continue
                self.assertEqual((done.returncode, done.stdout), (5, ""), done.stderr)
                if ": out of memory)" in done.stderr:
                    self.assert_memory_table(done.stderr, "the device failed ")
                    seen.add(i)
        if not seen:
            self.skipTest("no such limit is met by an operation here")
        self.assertEqual(seen, {0, 1})

    def test_without_threads(self):
        """A checkpoint is then written between steps."""
        self.unbroken()
        code, _, said = self.with_faults(self.command("run", "--async-checkpoints", "on"), FAULTS_THREADS=0)
        self.assertEqual((code, said), (0, ""))
        for record in records(self.folder / "run/log.jsonl", "checkpoint"):
            self.assertEqual(record["seconds"], record["wait_seconds"])
        self.assert_like_unbroken()
        # Of the CPU's own two, and of two more that measure the roof.
        for started, more in ((1, ()), (3, ("--roof", "measure"))):
            code, out, said = self.with_faults(self.command("other", "--device", "cpu", "--threads", 3, *more), FAULTS_THREADS=started)
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(said, r"\Amini-llama: --threads: one cannot be started \([^\n]+\); fewer may do\n\Z")
            self.assertFalse((self.folder / "other").exists())

    def test_a_lost_device_leaves_the_last_checkpoint(self):
        """At allocations and copies while weights are loaded, at copies of the first steps, of an evaluation and of checkpoints."""
        self.unbroken()
        if self.run_program("plan", "--device", "host").returncode != 0:
            self.skipTest("no host mode")
        steps, loading = set(), set()
        command = self.command("run", "--device", "host")
        for copies in (*range(3, 16), 40, 60, 80, 100, 120, 10 ** 6):
            child = self.start(command, ROTOSCALE_HOST_LOST_AT=str(copies))
            out, said = child.communicate(timeout=120)
            if child.returncode == 0:
                break
            self.assertNotIn("out of memory", said)
            self.assertEqual((child.returncode, out), (5, ""), said)
            if "loaded" not in said:
                self.assert_memory_table(said, "the device failed behind step ", "--resume run")
                end = records(self.folder / "run/log.jsonl")[-1]
                self.assertEqual((end["event"], end["status"]), ("end", "failed"))
                steps.add(end["step"])
            else:
                self.assert_memory_table(said, "the device failed while the model was loaded (", "no file is written")
                loading.add(copies)
        self.assertEqual(child.returncode, 0)
        self.assertGreater(len(steps), 1)
        self.assertGreater(len(loading), 0)
        self.assert_like_unbroken()


class Signals(Runs):
    # Many more steps than are waited for: a busy machine may send a signal seconds after it was due.
    STEPS = 2000
    OPTIONS = {"steps": STEPS, "checkpoint_every": 700, "eval_every": 500, "schedule": "mxfp4_h16_heal",
               "max_epochs": 50}

    def wait_for(self, child, step, event="step"):
        log, limit = self.folder / "run/log.jsonl", time.monotonic() + 60
        while child.poll() is None and time.monotonic() < limit:
            text = log.read_text() if log.exists() else ""
            if text.count(f'{{"event":"{event}"') >= step:
                return
            time.sleep(0.002)
        self.fail("the run was over too early" if child.poll() is not None else "the run hangs")

    def interrupt(self, child, number):
        child.send_signal(number)
        out, said = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out), (4, ""), said)
        match = mini_llama.re.fullmatch(r"mini-llama: mxfp4_h16_heal: (SIG[A-Z]+) at step (\d+) of "
                                        rf"{self.STEPS}; to go on: mini-llama train --resume run\n", said)
        self.assertTrue(match, said)
        self.assertEqual(match[1], signal.Signals(number).name)
        end = records(self.folder / "run/log.jsonl")[-1]
        self.assertEqual((end["event"], end["status"], end["step"]), ("end", "interrupted", int(match[2])))
        return int(match[2])

    def test_each_leaves_a_checkpoint_and_nothing_is_lost(self):
        self.unbroken()
        steps = []
        for after, number in ((3, signal.SIGTERM), (30, signal.SIGINT), (90, signal.SIGHUP)):
            child = self.start_lasting(self.command("run", "--async-checkpoints", "off"))
            self.wait_for(child, after)
            steps.append(self.interrupt(child, number))
            self.assertTrue(self.checkpoint("run", steps[-1]).exists())
        resumed = [r["step"] for r in records(self.folder / "run/log.jsonl", "resume")]
        self.assertEqual(resumed, steps[:-1])
        self.succeed("train", "--resume", "run")
        self.assert_like_unbroken()

    def test_during_an_evaluation(self):
        long = {"steps": 6, "eval_windows": 120, "final_eval_windows": 120, "eval_every": 3, "batch": 1, "sequence": 64,
                "checkpoint_every": 2, "num_hidden_layers": 4}
        self.unbroken(**long)
        draw = random.Random(5)
        for _ in range(6):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            child = self.start(self.command(**long))
            self.wait_for(child, draw.randrange(1, 7))
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=60)
            self.assertIn(child.returncode, (0, 4))
            self.succeed(*self.command(**long))
            self.assert_like_unbroken()

    def test_a_second_one_ends_at_once(self):
        heavy = {"batch": 128, "sequence": 64, "num_hidden_layers": 24, "hidden_size": 64, "intermediate_size": 256,
                 "eval_windows": 1, "steps": 10, "max_epochs": 100}
        child = self.start(self.train_command("run", **heavy))
        self.wait_for(child, 1, "eval")
        time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        if child.poll() is not None:
            self.skipTest("a step is too short here")
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, -signal.SIGINT)
        self.assertLess(time.monotonic() - begin, 2)

    def test_nohup(self):
        command = [mini_llama.PROGRAM, *map(str, self.command())]
        child = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for(child, 3)
        child.send_signal(signal.SIGHUP)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0)

    def test_during_the_synthetic_warm_up(self):
        self.unbroken()
        log = self.folder / "run/log.jsonl"
        child = self.start(self.train_command("run", "--synthetic-warmup", 1000000, **self.OPTIONS))
        self.addCleanup(child.kill)
        self.wait_for(child, 1, "start")
        self.assertEqual(self.interrupt(child, signal.SIGTERM), 0)
        self.assertEqual(records(log, "warm_up"), [])
        self.succeed("train", "--resume", "run", "--threads", 1)
        self.assert_like_unbroken()


class Streams(Runs):
    """What becomes of messages is not what becomes of the run."""
    OPTIONS = {**Signals.OPTIONS, "schedule": "bf16"}

    def interrupt(self, child):
        Signals.wait_for(self, child, 3)
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(timeout=60), 4)
        self.assertEqual(records(self.folder / "run/log.jsonl")[-1]["status"], "interrupted")

    def test_closed_ones_take_no_file(self):
        """A file would get the number of a closed stream, and its messages."""
        self.unbroken()
        command = [mini_llama.PROGRAM, *map(str, self.command())]
        for streams in ((2,), (0, 1, 2), (1,)):
            with self.subTest(streams=streams):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                self.interrupt(subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL,
                                                preexec_fn=lambda: [os.close(stream) for stream in streams]))
                self.succeed("train", "--resume", "run", "--threads", 1)
                self.assert_like_unbroken()
        done = subprocess.run([mini_llama.PROGRAM, "eval", "--checkpoint", "run", "--threads", "1"], cwd=self.folder, stderr=subprocess.PIPE,
                              text=True, timeout=60, preexec_fn=lambda: os.close(1))
        self.assertEqual((done.returncode, done.stderr), (2, "mini-llama: standard output: cannot write\n"))

    def without_a_reader(self, command):
        reader, writer = os.pipe()
        child = subprocess.Popen([mini_llama.PROGRAM, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                 stdout=writer, stderr=writer)
        os.close(reader)
        os.close(writer)
        return child

    def test_nobody_reads_the_messages(self):
        """As when `tee` behind a pipe ends by the same Ctrl-C."""
        self.unbroken()
        self.interrupt(self.without_a_reader(self.command()))
        self.succeed("train", "--resume", "run", "--threads", 1)
        self.assert_like_unbroken()
        # The last evaluation's line on standard output is lost, its record is not.
        self.assertEqual(self.without_a_reader(self.command("dead")).wait(timeout=60), 2)
        self.assert_like_unbroken("dead")
        self.assertEqual(self.without_a_reader(["sample", "--checkpoint", "run", "--threads", 1, "--tokens", 1 << 24]).wait(timeout=60), 2)

    def test_a_rollback_that_nobody_hears_of(self):
        command = self.train_command("run", **Rollback.OPTIONS)
        self.assertEqual(self.without_a_reader(command).wait(timeout=60), 2)  # standard output's line is lost
        self.assertGreater(len(records(self.folder / "run/log.jsonl", "rollback")), 0)
        self.assertEqual(records(self.folder / "run/log.jsonl")[-1]["status"], "ok")

    def test_a_limit_of_files(self):
        self.unbroken()
        limit = (self.checkpoint("whole", self.OPTIONS["steps"]) / "model.safetensors").stat().st_size - 1
        done = subprocess.run([mini_llama.PROGRAM, *map(str, self.command())], cwd=self.folder, capture_output=True, text=True,
                              timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Amini-llama: [^\n]*File too large; when that is mended: mini-llama train --resume run\n\Z")
        self.succeed("train", "--resume", "run", "--threads", 1)
        self.assert_like_unbroken()


class Resume(Runs):
    def test_another_process_has_the_run(self):
        child = self.start_lasting(self.command(steps=2000, max_epochs=9))
        try:
            Signals.wait_for(self, child, 1)
            done = self.run_program(*self.command(steps=2000, max_epochs=9))
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn("log.jsonl: cannot write: another process is writing it", done.stderr)
        finally:
            child.kill()
            child.communicate()

    def test_a_log_that_is_a_pipe(self):
        self.train("run", "--stop-at", 4)
        (self.folder / "run/log.jsonl").unlink()
        os.mkfifo(self.folder / "run/log.jsonl")
        before = tree_of(self.folder / "run/checkpoints")
        done = self.run_program("train", "--resume", "run")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("log.jsonl: cannot read: a pipe, not a regular file", done.stderr)
        self.assertEqual(tree_of(self.folder / "run/checkpoints"), before)

    def test_auto_resume_asks_for_the_same_options(self):
        self.succeed(*self.command("run", "--stop-at", 3))
        for option, value in (("steps", 8), ("learning_rate", 1e-4), ("schedule", "bf16"), ("seed", 2)):
            flag = "--" + option.replace("_", "-")
            self.refuse(self.command(**{option: value}), flag, "the run in run", "--overwrite")
        self.refuse(self.command("run", "--overwrite"), "--auto-resume", "excludes --overwrite")
        self.write("text2.txt", (self.folder / "text.txt").read_text())
        self.refuse(self.command(data="text2.txt"), "--data")
        both = self.command("both", "--stop-at", 1)
        both.insert(both.index("--data") + 2, "text2.txt")
        self.succeed(*both)
        self.refuse(self.command("both"), "--data", "text2.txt", "the run in both")  # one file of two
        self.succeed(*self.command())
        before = tree_of(self.folder / "run/checkpoints")
        self.succeed(*self.command())  # a finished run stays as it is
        self.assertEqual(tree_of(self.folder / "run/checkpoints"), before)

    def test_a_damaged_checkpoint_points_to_the_one_before_it(self):
        self.unbroken()
        self.train("made", "--stop-at", 4, **self.OPTIONS)
        newest, older = self.checkpoint("run", 4), self.checkpoint("run", 2)
        for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"):
            for size in (0, 100):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                shutil.copytree(self.folder / "made", self.folder / "run")
                os.truncate(newest / name, size)
                said = self.refuse(["train", "--resume", "run"], name, "; the one before it: --resume ")
                self.assertEqual(said.split("--resume ")[1].strip(), str(older.relative_to(self.folder)))
                done = self.run_program(*self.command())
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, r"\Amini-llama: [^\n]*; going on from [^\n]*step-000000002\n\Z")
                self.assert_like_unbroken()
        shutil.rmtree(self.folder / "run")
        shutil.copytree(self.folder / "made", self.folder / "run")
        state = json.loads((newest / "config.json").read_text())
        (newest / "config.json").write_text(json.dumps({**state, "rms_norm_eps": 0.5}))
        self.refuse(["train", "--resume", "run"], "config.json", "rms_norm_eps", "is not that of trainer_state.json")
        for path in (newest, older):
            os.truncate(path / "model.safetensors", 9)
        begins = "there is no older checkpoint: --auto-resume, with the run's options, begins again\n"
        for start in (older, newest):
            self.assertEqual(self.refuse(["train", "--resume", start]).endswith(begins), start == older)
        shutil.rmtree(newest)
        self.assertTrue(self.refuse(["train", "--resume", "run"], "model.safetensors").endswith(begins))
        (self.folder / "run/trainer_state.json").unlink()
        self.assertTrue(self.refuse(["train", "--resume", older], "model.safetensors").endswith("there is no older checkpoint\n"))
        shutil.move(older, older.with_name("step-copy"))
        self.refuse(["train", "--resume", older.with_name("step-copy")], "step-copy", "--out")

    def test_whoever_reads_a_damaged_checkpoint_points_to_the_one_before_it(self):
        self.train("made", "--stop-at", 4, **self.OPTIONS)
        newest, older = self.checkpoint("run", 4), "run/checkpoints/step-000000002"
        commands = {"--checkpoint": [["eval", "--checkpoint", "run"], ["sample", "--checkpoint", newest.relative_to(self.folder)]],
                    "--init": [self.train_command("new", "--init", "run"),
                               self.train_command("new", "--init", "run", "--lora-rank", 4)],
                    "": [["replay", "run", "--steps", "2:4"]]}
        damages = {"model.safetensors": lambda p: os.truncate(p, p.stat().st_size - 1), "config.json": lambda p: os.truncate(p, 20),
                   "trainer_state.json": lambda p: os.truncate(p, 20)}
        for key, value in (("rms_norm_eps", 0.5), ("rope_theta", 1e6), ("max_position_embeddings", 96)):
            damages["config.json " + key] = lambda p, new={key: value}: p.write_text(json.dumps({**json.loads(p.read_text()), **new}))
        for what, damage in damages.items():
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            shutil.copytree(self.folder / "made", self.folder / "run")
            damage(newest / what.split()[0])
            for flag, each in commands.items():
                for command in each:
                    with self.subTest(what=what, command=command):
                        said = self.refuse(command, *what.split(), "; the one before it: " + (flag and flag + " "))
                        self.assertTrue(said.strip().endswith(older), said)

    def test_the_configuration_of_adapters(self):
        self.train("base", "--stop-at", 2, **self.OPTIONS)
        self.train("made", "--init", "base", "--lora-rank", 4, "--stop-at", 4, **self.OPTIONS)
        newest = self.checkpoint("run", 4)
        for key, value in ((None, None), ("r", 8), ("lora_alpha", 5), ("lora_dropout", 0.5), ("use_rslora", True),
                           ("peft_type", "IA3"), ("target_modules", ["q_proj"])):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            shutil.copytree(self.folder / "made", self.folder / "run")
            path = newest / "adapter_config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), key: value}) if key else "{")
            named = "lora_alpha" if key == "use_rslora" else key or ""
            for command, flag in ((["train", "--resume", "run"], "--resume"), (["eval", "--checkpoint", "run"], "--checkpoint"),
                                  (["eval", "--checkpoint", "base", "--adapter", "run"], "--adapter")):
                with self.subTest(key=key, command=command):
                    said = self.refuse(command, "step-000000004/adapter_config.json", named, f"; the one before it: {flag} ")
                    self.assertTrue(said.strip().endswith("run/checkpoints/step-000000002"), said)

    def test_a_checkpoint_without_its_files_is_none_that_begins_again(self):
        self.train("made", "--stop-at", 4, **self.OPTIONS)
        newest, older = self.checkpoint("run", 4), self.checkpoint("run", 2)
        tensors = ["model.safetensors", "optimizer.safetensors"]
        everything = sorted(p.name for p in self.checkpoint("made", 4).iterdir())
        for missing in (tensors[:1], tensors[1:], tensors, [n for n in everything if n != "trainer_state.json"], everything):
            with self.subTest(missing=missing):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                shutil.copytree(self.folder / "made", self.folder / "run")
                for name in missing:
                    (newest / name).unlink()
                for start in ("run", newest, f"{newest}/", newest.relative_to(self.folder)):
                    said = self.refuse(["train", "--resume", start], "step-000000004/", "; the one before it: --resume ")
                    self.assertTrue(said.strip().endswith(str(older.relative_to(self.folder))), said)

    def test_a_checkpoint_outside_of_a_run(self):
        self.unbroken()
        shutil.copytree(self.checkpoint("whole", 4), self.folder / "far/away/step-000000004")
        self.refuse(["train", "--resume", "far/away/step-000000004"], "far/away/step-000000004: ", "--out")
        self.refuse(["train", "--resume", "far/away/step-000000004", "--out", "far/away/step-000000004"], "exists")
        self.succeed("train", "--resume", "far/away/step-000000004", "--out", "run", "--threads", 1)
        self.assertEqual(tree_of(self.checkpoint("run", 6)), tree_of(self.checkpoint("whole", 6)))
        self.assertEqual(sorted(p.name for p in (self.folder / "far").rglob("*") if p.is_dir()), ["away", "step-000000004"])
        state = self.folder / "far/trainer_state.json"
        shutil.copy(self.checkpoint("whole", 4) / "trainer_state.json", state)
        self.refuse(["train", "--resume", "far"], "far/trainer_state.json", "step 4", "no tensors")
        # Links: to a checkpoint, and of all checkpoints to another disk.
        (self.folder / "whole/checkpoints").rename(self.folder / "elsewhere")
        (self.folder / "whole/checkpoints").symlink_to(self.folder / "elsewhere")
        (self.folder / "latest").symlink_to("whole/checkpoints/step-000000004")
        for start in ("latest", "whole/checkpoints/step-000000004"):
            self.refuse(["train", "--resume", start, "--out", "run"], "run/", "another run")

    def test_without_a_checkpoint_it_begins_again(self):
        self.unbroken(checkpoint_every=0)
        options = {**self.OPTIONS, "checkpoint_every": 0}
        self.train("run", **options)
        shutil.rmtree(self.folder / "run/checkpoints")
        log = self.folder / "run/log.jsonl"
        log.write_text("".join(log.read_text().splitlines(True)[:5]))
        self.succeed("train", "--resume", "run")
        self.assert_like_unbroken()

    def test_into_another_directory(self):
        self.unbroken()
        self.train("parts", "--stop-at", 3, **self.OPTIONS)
        resume = ["train", "--resume", "parts", "--out", "run"]
        for number in (1, 4, 20, 50, 80, 110):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            self.with_faults(resume, FAULTS_KILL_AT=number)
            begun = self.checkpoint("run", 3).exists() or self.checkpoint("run", 6).exists()
            self.succeed(*(["train", "--resume", "run"] if begun else resume))
            self.assertEqual(tree_of(self.checkpoint("run", 6)), tree_of(self.checkpoint("whole", 6)))
            self.assertEqual(list((self.folder / "run").rglob(".*")), [])
        self.succeed("report", "run", "--out", "report")


class Rollback(Runs):
    """Loss jumps, forced by a rate that is too high."""
    OPTIONS = {"steps": 40, "checkpoint_every": 3, "eval_every": 20, "learning_rate": 0.2, "warmup": 0.5, "schedule": "bf16",
               "on_divergence": "rollback", "max_loss_jump": 0.2, "max_rollbacks": 50, "batch": 1}

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
        for number in range(100, 400, 60):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            if self.with_faults(self.command(), FAULTS_KILL_AT=number)[0] == 0:
                self.skipTest("no library can be preloaded here")
            self.assertEqual(self.run_program(*self.command()).returncode, 0)
            self.assertEqual(tree_of(self.folder / "run/checkpoints"), tree_of(self.folder / "whole/checkpoints"))

    def test_without_memory_for_a_queue(self):
        """The device's own, one of the model's, and one of the model's that is made again."""
        if self.run_program("plan", "--device", "host").returncode != 0:
            self.skipTest("no host mode")
        self.assertEqual(self.run_program(*self.command("whole")).returncode, 0)
        seen, log = set(), self.folder / "run/log.jsonl"
        for number in range(1, 40):
            code, out, said = self.with_faults(self.command("run", "--device", "host"), FAULTS_SMALL_AT=number)
            self.assertEqual((code, out), (5, ""), said)
            if log.exists():
                self.assertIn("rollback", [r["event"] for r in records(log)])
                self.assertEqual(records(log)[-1]["status"], "failed")
                self.assert_memory_table(said[said.index("mini-llama: bf16: the device failed behind step "):],
                                         "(make_queue: out of memory)", "--resume run; its memory, by category:")
                seen.add("rollback")
                break
            if "loaded" in said:
                self.assert_memory_table(said, "the device failed while the model was loaded (make_queue: out of memory); no file")
                seen.add("model")
            else:
                self.assertEqual(said, "mini-llama: --device host: out of memory; --device cpu needs no device\n")
                seen.add("device")
        self.assertEqual(seen, {"device", "model", "rollback"})
        self.assertEqual(self.run_program("train", "--resume", "run").returncode, 0)
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
        """Where all data are alike, what follows a rollback is what it took back."""
        (self.folder / "even.txt").write_bytes(b"the same words in every window.\n" * 4000)  # of 32 bytes
        done = self.run_program(*self.command(data="even.txt", max_loss_jump=1e-7, max_rollbacks=2))
        self.assertEqual(done.returncode, 3, done.stderr)
        first, second = ((r["step"], r["from_step"], r["reason"]) for r in records(self.folder / "run/log.jsonl", "rollback"))
        self.assertEqual(first, second)

    def test_stops_where_there_is_nothing_to_go_back_to(self):
        for options in ({"on_divergence": "stop"}, {"max_rollbacks": 0}, {"max_loss_jump": 1e-7, "max_rollbacks": 2}):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            done = self.run_program(*self.command(**options))
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(records(self.folder / "run/log.jsonl")[-1]["status"], "diverged")
            self.assertEqual(len(records(self.folder / "run/log.jsonl", "rollback")), options.get("max_loss_jump", 0) and 2)
        self.refuse(self.command("other", on_divergence="rolback"), "--on-divergence", "stop, rollback")


if __name__ == "__main__":
    mini_llama.main(__doc__, "FAULTS")
