#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""A run of mini-llama continues after signals, lost messages, failed devices, failed checkpoint writers and damaged
checkpoints. It ends with the bytes of an uninterrupted run.

usage: mini_llama_resume.py PROGRAM FAULTS [NAME...]   FAULTS: the library of faults.cpp
"""
import json
import os
import shutil
import signal
import subprocess

import mini_llama
from mini_llama import records, tree_of
from mini_llama_kill import Runs, step_record

FAULTS = ""


class Asynchronous(Runs):
    OPTIONS = {"steps": 12, "checkpoint_every": 4, "keep_checkpoints": 9, "eval_every": 50, "schedule": "fp8_amd",
               "batch": 1, "eval_windows": 1, "final_eval_windows": 1}

    def test_steps_go_on_while_a_checkpoint_is_written(self):
        """The checkpoint's first fsync waits until the next step is logged."""
        self.unbroken()
        has_host = self.run_program("plan", "--device", "host").returncode == 0
        for out, *more in (("on", "on"), ("off", "off"), *([("device", "on", "--device", "host")] if has_host else [])):
            code, _, said = self.with_faults(self.command(out, "--async-checkpoints", *more),
                                             **({} if out == "off" else {"FAULTS_HOLD": 12}))
            self.assertEqual((code, said), (0, ""))
            self.assert_like_unbroken(out)
            log = [r for r in records(self.folder / out / "log.jsonl") if r["event"] in ("step", "checkpoint")]
            at = {(r["event"], r["step"]): i for i, r in enumerate(log)}
            written = [r for r in log if r["event"] == "checkpoint"]
            self.assertEqual([r["step"] for r in written], [4, 8, 12])
            for r in written:
                if out == "off":
                    self.assertEqual(r["seconds"], r["wait_seconds"])
                    self.assertEqual(at["checkpoint", r["step"]], at["step", r["step"]] + 1)
                elif r["step"] != 12:
                    self.assertLess(at["step", r["step"] + 1], at["checkpoint", r["step"]])

    def test_a_failure_is_told_with_what_follows(self):
        """The disk is full when the run waits for the checkpoint: at the next one, at the end, after a signal."""
        for stop, options in ((12, {}), (5, {}), (4, {})):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            code, out, said = self.with_faults(self.command("run", "--stop-at", stop, **options), FAULTS_FULL_AT=1000,
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
        code, _, said = self.signalled(command, step_record(6), signal.SIGTERM, FAULTS_HOLD=5)
        self.assertEqual(code, 4, said)
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

    def test_without_threads(self):
        """Without a writer thread, checkpoints are written between steps."""
        self.unbroken()
        code, _, said = self.with_faults(self.command("run", "--async-checkpoints", "on"), FAULTS_THREADS=0)
        self.assertEqual((code, said), (0, ""))
        for record in records(self.folder / "run/log.jsonl", "checkpoint"):
            self.assertEqual(record["seconds"], record["wait_seconds"])
        self.assert_like_unbroken()
        # Of the CPU's two threads, and of two more that measure the roof.
        for started, more in ((1, ()), (3, ("--roof", "measure"))):
            code, out, said = self.with_faults(self.command("other", "--device", "cpu", "--threads", 3, *more),
                                               FAULTS_THREADS=started)
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(said, r"\Amini-llama: --threads: one cannot be started \([^\n]+\); fewer may do\n\Z")
            self.assertFalse((self.folder / "other").exists())

    def test_a_lost_device_leaves_the_last_checkpoint(self):
        """Failures at allocations and copies during loading, and at copies of the first steps, an evaluation and
        checkpoints."""
        self.unbroken()
        if self.run_program("plan", "--device", "host").returncode != 0:
            self.skipTest("no host mode")
        steps, loading = set(), set()
        command = self.command("run", "--device", "host")
        for copies in (3, 8, 15, 60, 120, 10 ** 6):
            code, out, said = self.with_faults(command, ROTOSCALE_HOST_LOST_AT=copies)
            if code == 0:
                break
            self.assertNotIn("out of memory", said)
            self.assertEqual((code, out), (5, ""), said)
            if "loaded" not in said:
                self.assert_memory_table(said, "the device failed after step ", "--resume run")
                end = records(self.folder / "run/log.jsonl")[-1]
                self.assertEqual((end["event"], end["status"]), ("end", "failed"))
                steps.add(end["step"])
            else:
                self.assert_memory_table(said, "the device failed while the model was loaded (", "no file is written")
                loading.add(copies)
        self.assertEqual(code, 0)
        self.assertGreater(len(steps), 1)
        self.assertGreater(len(loading), 0)
        self.assert_like_unbroken()


class Signals(Runs):
    STEPS = 100
    OPTIONS = {"steps": STEPS, "checkpoint_every": 70, "eval_every": 50, "schedule": "mxfp4_h16_heal", "max_epochs": 50}

    def interrupt(self, command, text, number):
        """Step at which the run ended, by a signal after a record with the text."""
        code, out, said = self.signalled(command, text, number)
        self.assertEqual((code, out), (4, ""), said)
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
            steps.append(self.interrupt(self.command("run", "--async-checkpoints", "off"), step_record(after), number))
            self.assertTrue(self.checkpoint("run", steps[-1]).exists())
        self.assertEqual(steps, [3, 30, 90])
        resumed = [r["step"] for r in records(self.folder / "run/log.jsonl", "resume")]
        self.assertEqual(resumed, steps[:-1])
        self.succeed("train", "--resume", "run")
        self.assert_like_unbroken()

    def test_before_an_evaluation(self):
        """At an early step, and at the last one."""
        long = {"steps": 6, "eval_every": 3, "checkpoint_every": 2}
        self.unbroken(**long)
        for step in (3, 6):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            self.assertIn(self.signalled(self.command(**long), step_record(step), signal.SIGTERM)[0], (0, 4))
            self.succeed(*self.command(**long))
            self.assert_like_unbroken()

    def test_a_second_one_ends_at_once(self):
        code, *_ = self.signalled(self.command(), step_record(3), signal.SIGTERM, signal.SIGINT)
        self.assertEqual(code, -signal.SIGINT)
        self.assertEqual(records(self.folder / "run/log.jsonl", "end"), [])

    def test_nohup(self):
        code, *_ = self.signalled(self.command(), step_record(3), signal.SIGHUP,
                                  preexec=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assertEqual(code, 0)

    def test_during_the_synthetic_warm_up(self):
        self.unbroken()
        command = self.train_command("run", "--synthetic-warmup", 1000000, **self.OPTIONS)
        self.assertEqual(self.interrupt(command, '{"event":"start"', signal.SIGTERM), 0)
        self.assertEqual(records(self.folder / "run/log.jsonl", "warm_up"), [])
        self.succeed("train", "--resume", "run", "--threads", 1)
        self.assert_like_unbroken()


class Streams(Runs):
    """Lost messages do not affect the run."""
    OPTIONS = {**Signals.OPTIONS, "schedule": "bf16"}

    def interrupt(self, command, **how):
        self.assertEqual(self.signalled(command, step_record(3), signal.SIGTERM, **how)[0], 4)
        self.assertEqual(records(self.folder / "run/log.jsonl")[-1]["status"], "interrupted")

    def test_closed_ones_take_no_file(self):
        """A new file must not get the descriptor of a closed stream, and so its messages."""
        self.unbroken()
        for streams in ((2,), (0, 1, 2), (1,)):
            with self.subTest(streams=streams):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                self.interrupt(self.command(), preexec=lambda: [os.close(stream) for stream in streams])
                self.succeed("train", "--resume", "run", "--threads", 1)
                self.assert_like_unbroken()
        done = subprocess.run([mini_llama.PROGRAM, "eval", "--checkpoint", "run", "--threads", "1"], cwd=self.folder,
                              stderr=subprocess.PIPE, text=True, timeout=60, preexec_fn=lambda: os.close(1))
        self.assertEqual((done.returncode, done.stderr), (2, "mini-llama: standard output: cannot write\n"))

    def without_a_reader(self, command):
        reader, writer = os.pipe()
        child = subprocess.Popen([mini_llama.PROGRAM, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                 stdout=writer, stderr=writer)
        os.close(reader)
        os.close(writer)
        return child

    def test_nobody_reads_the_messages(self):
        """As when `tee` in a pipe ends by the same Ctrl-C."""
        self.unbroken()
        reader, writer = os.pipe()
        os.close(reader)
        self.interrupt(self.command(), preexec=lambda: [os.dup2(writer, stream) for stream in (1, 2)])
        os.close(writer)
        self.succeed("train", "--resume", "run", "--threads", 1)
        self.assert_like_unbroken()
        # The last evaluation's line on standard output is lost; its record is not.
        self.assertEqual(self.without_a_reader(self.command("dead")).wait(timeout=60), 2)
        self.assert_like_unbroken("dead")
        self.assertEqual(self.without_a_reader(["sample", "--checkpoint", "run", "--threads", 1, "--tokens",
                                                1 << 24]).wait(timeout=60), 2)


class Resume(Runs):
    def test_auto_resume_asks_for_the_same_options(self):
        self.succeed(*self.command("run", "--stop-at", 3))
        for option, value in (("steps", 4), ("learning_rate", 1e-4), ("schedule", "bf16"), ("seed", 2)):
            flag = "--" + option.replace("_", "-")
            self.refuse(self.command(**{option: value}), flag, "the run in run", "--overwrite")
        self.refuse(self.command(steps=8), "--steps 8", "only a run that begins with --decay-steps")
        for steps in (6, 8):  # makes a finished run longer
            self.succeed(*self.command("longer", schedule="bf16", decay_steps=16, steps=steps))
        self.succeed(*self.command("unbroken", schedule="bf16", decay_steps=16, steps=8))
        self.assert_same_checkpoint("longer", "unbroken")
        self.succeed(*self.command("parts", decay_steps=16))  # its second phase starts at a fraction of the run
        self.refuse(self.command("parts", decay_steps=16, steps=8), "phases[1]", "; --resume parts --steps 8 keeps")
        self.refuse(self.command("run", "--overwrite"), "--auto-resume", "excludes --overwrite")
        self.write("text2.txt", (self.folder / "text.txt").read_text())
        self.refuse(self.command(data="text2.txt"), "--data")
        both = self.command("both", "--stop-at", 1)
        both.insert(both.index("--data") + 2, "text2.txt")
        self.succeed(*both)
        self.refuse(self.command("both"), "--data", "text2.txt", "the run in both")  # one of two files
        self.succeed(*self.command())
        before = tree_of(self.folder / "run/checkpoints")
        self.succeed(*self.command())  # a finished run is unchanged
        self.assertEqual(tree_of(self.folder / "run/checkpoints"), before)

    def test_a_damaged_checkpoint_points_to_the_one_before_it(self):
        self.unbroken()
        self.train("made", "--stop-at", 4, **self.OPTIONS)
        newest, older = self.checkpoint("run", 4), self.checkpoint("run", 2)
        for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"):
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            shutil.copytree(self.folder / "made", self.folder / "run")
            os.truncate(newest / name, 0 if name.endswith("json") else 100)
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
        self.assertTrue(self.refuse(["train", "--resume", older],
                                    "model.safetensors").endswith("there is no older checkpoint\n"))
        shutil.move(older, older.with_name("step-copy"))
        self.refuse(["train", "--resume", older.with_name("step-copy")], "step-copy", "--out")

    def test_a_checkpoint_outside_of_a_run(self):
        self.unbroken()
        shutil.copytree(self.checkpoint("whole", 4), self.folder / "far/away/step-000000004")
        self.refuse(["train", "--resume", "far/away/step-000000004"], "far/away/step-000000004: ", "--out")
        self.refuse(["train", "--resume", "far/away/step-000000004", "--out", "far/away/step-000000004"], "exists")
        self.succeed("train", "--resume", "far/away/step-000000004", "--out", "run", "--threads", 1)
        self.assertEqual(tree_of(self.checkpoint("run", 6)), tree_of(self.checkpoint("whole", 6)))
        self.assertEqual(sorted(p.name for p in (self.folder / "far").rglob("*") if p.is_dir()),
                         ["away", "step-000000004"])
        state = self.folder / "far/trainer_state.json"
        shutil.copy(self.checkpoint("whole", 4) / "trainer_state.json", state)
        self.refuse(["train", "--resume", "far"], "far/trainer_state.json", "step 4", "no tensors")
        # Links: to a checkpoint, and of the checkpoints folder to another disk.
        (self.folder / "whole/checkpoints").rename(self.folder / "elsewhere")
        (self.folder / "whole/checkpoints").symlink_to(self.folder / "elsewhere")
        (self.folder / "latest").symlink_to("whole/checkpoints/step-000000004")
        for start in ("latest", "whole/checkpoints/step-000000004"):
            self.refuse(["train", "--resume", start, "--out", "run"], "run/", "another run")


if __name__ == "__main__":
    mini_llama.main(__doc__, "FAULTS")
