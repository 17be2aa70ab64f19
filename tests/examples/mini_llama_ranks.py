#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of mini-llama, threads or processes, leave the bytes of one. A rank that fails ends all with one line, and the
run continues on any number of ranks.

usage: mini_llama_ranks.py PROGRAM FAULTS [--slow] [NAME...]
  FAULTS  the library of faults.cpp
  --slow  kills random ranks at random moments of 50 runs, and stops one
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import mini_llama
from mini_llama import records, tree_of
from mini_llama_kill import Runs, step_record, story

FAULTS = ""
SLOW = "--slow" in sys.argv
# Variables of launchers.
TORCHRUN = {"rank": "RANK", "size": "WORLD_SIZE", "local": "LOCAL_WORLD_SIZE"}
MPIRUN = {"rank": "OMPI_COMM_WORLD_RANK", "size": "OMPI_COMM_WORLD_SIZE", "local": "OMPI_COMM_WORLD_LOCAL_SIZE"}
SLURM = {"rank": "SLURM_PROCID", "size": "SLURM_NTASKS", "nodes": "SLURM_STEP_NUM_NODES"}


class OnRanks(Runs):
    OPTIONS = {"steps": 8, "checkpoint_every": 2, "keep_checkpoints": 9, "eval_every": 3, "batch": 1, "accumulate": 4,
               "average_decay": 0.9, "schedule": "ranks.json"}

    def setUp(self):
        super().setUp()
        self.write("ranks.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": {
            "base": "fp8_amd", "fp8": {"update": "step", "reduce_amax": True}}, "at": 3, "scales": "seed"}]})

    def processes(self, ranks, *more, out="run", launcher=TORCHRUN, place="meet", of_rank={}, variables={}, **options):
        """Starts ranks that are processes. `of_rank` has a rank's other command, options, program and faults."""
        started = []
        for rank in range(ranks):
            own = of_rank.get(rank, {})
            values = {"rank": rank, "size": ranks, "local": ranks, "nodes": 1}
            environment = {**os.environ, **{name: str(values[key]) for key, name in launcher.items()}, **variables,
                           **{name: str(value) for name, value in own.get("faults", {}).items()}}
            if "faults" in own:
                environment["LD_PRELOAD"] = str(FAULTS)
            command = own.get("command") or self.command(out, *more, **{**options, **own.get("options", {})})
            command = [*command, "--rendezvous", place]
            started.append(subprocess.Popen([own.get("program", mini_llama.PROGRAM), *map(str, command)],
                                            cwd=self.folder, env=environment, text=True, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                            preexec_fn=self.expect_signals))
            self.addCleanup(started[-1].kill)
        return started

    @staticmethod
    def outcomes(started):
        """Exit code and messages of each rank."""
        said = [process.communicate(timeout=120)[1] for process in started]
        return [(process.returncode, text) for process, text in zip(started, said)]

    def on_ranks(self, kind, ranks, *more, **options):
        """Exit codes and messages of a run on threads, a thread alone, or processes."""
        if kind == "processes":
            return self.outcomes(self.processes(ranks, *more, **options))
        done = self.run_program(*self.command(options.pop("out", "run"), "--ranks", ranks, *more, **options))
        return [(done.returncode, done.stderr)]


class Ranks(OnRanks):
    def change_ranks(self, *flags, of_ranks=(), **options):
        self.unbroken(*flags, **options)
        for kind, ranks, stop, shard, more in (("threads", 4, 2, "masters", {}),
                                               ("processes", 2, 4, "gradients", {"launcher": SLURM}),
                                               ("threads", 1, 6, "moments", {}),
                                               ("processes", 4, 8, "gradients", {"launcher": MPIRUN})):
            ended = self.on_ranks(kind, ranks, "--stop-at", stop, "--shard", shard, *flags, *of_ranks, **more,
                                  **options)
            self.assertEqual(ended, [(0, "")] * len(ended))
        self.assert_like_unbroken()
        self.assertEqual([r["ranks"] for r in records(self.folder / "run/log.jsonl", "resume")], [2, 1, 4])

    def test_any_number_of_ranks_leaves_the_bytes_of_one(self):
        self.change_ranks()

    def test_ranks_that_divide_a_frozen_base_leave_the_bytes_of_one(self):
        """More layers than buffers, windows that are no multiple of the ranks. The base heals from its parts."""
        self.change_ranks("--seed-base", of_ranks=["--divide-frozen"], lora_rank=4, lora_targets="q_proj,down_proj",
                          num_hidden_layers=3, final_eval_windows=5)
        switches = [r["memory"] for run in ("whole", "run") for r in records(self.folder / run / "log.jsonl", "switch")]
        self.assertEqual(len(switches), 2)
        self.assertLess(switches[1]["streamed"], 0.6 * switches[0]["streamed"])

    def test_triggers_rollbacks_and_statistics(self):
        """Ranks with divided masters observe no weights."""
        self.write("noise.json", {"phases": [{"recipe": "mxfp4_h16"}, {
            "recipe": {"base": "fp8_amd", "fp8": {"update": "step", "reduce_amax": True}}, "scales": "seed",
            "trigger": {"kind": "gradient_noise", "patience": 2, "ratio": 1e9, "every": 2}}]})
        options = {"schedule": "noise.json", "on_divergence": "rollback", "max_loss_jump": 0.2, "max_rollbacks": 3,
                   "learning_rate": 1, "warmup": 0.5, "steps": 20, "statistics_every": 2}
        self.assertEqual(self.run_program(*self.command("whole", **options)).returncode, 3)  # too many
        log = self.folder / "whole/log.jsonl"
        self.assertEqual({r["reason"]["kind"] for r in records(log, "switch")}, {"gradient_noise"})
        self.assertEqual(len(records(log, "rollback")), 3)
        for kind, ranks, shard in (("threads", 2, "gradients"), ("processes", 4, "moments")):
            ended = self.on_ranks(kind, ranks, "--shard", shard, out=shard, **options)
            self.assertEqual({code for code, _ in ended}, {3}, ended)
            for of in (lambda run: tree_of(run / "checkpoints"), lambda run: story(run / "log.jsonl")):
                self.assertEqual(of(self.folder / shard), of(self.folder / "whole"))
            seen = [[r for r in records(self.folder / run / "statistics.jsonl")
                     if shard == "moments" or r.get("tensor") != "w"] for run in (shard, "whole")]
            self.assertEqual(*seen)

    def added(self, ranks, shard, **options):
        """The last checkpoint of a run whose library adds."""
        out = f"{ranks} {shard} {options}"
        ended = self.on_ranks("threads", ranks, "--reduce", "library", "--shard", shard, out=out, steps=4, **options)
        self.assertEqual(ended, [(0, "")])
        start = records(self.folder / out / "log.jsonl", "start")[0]
        self.assertEqual(start["reduce"], "library: bits depend on ranks and --shard")
        return tree_of(self.folder / out / "checkpoints/step-000000004")

    def test_the_library_adds_ascending_ranks(self):
        """Two ranks leave the sums of the tree, unless they divide gradients of several microbatches."""
        self.unbroken(steps=4)
        tree = tree_of(self.folder / "whole/checkpoints/step-000000004")
        self.assertEqual([self.added(2, "moments"), self.added(2, "gradients")], [tree] * 2)
        four = self.added(4, "masters")
        self.assertEqual(self.added(4, "gradients"), four)
        self.assertNotEqual(four, tree)
        self.assertNotEqual(self.added(2, "moments", accumulate=8), self.added(2, "gradients", accumulate=8))

    def test_the_library_allows_scales_of_each_rank(self):
        """From one step to the next, of a microbatch or a step. Ranks have other data, so other maxima."""
        scaled = {}
        for update in ("micro_batch", "step"):
            for all_ranks in (False, True):
                fp8 = {"update": update, "reduce_amax": all_ranks, "history_length": 1}
                file = self.write(f"{update}-{all_ranks}.json", {"base": "fp8_amd", "name": "scaled", "fp8": fp8})
                scaled[file] = self.added(2, "masters", schedule=file)["model.safetensors"]
        self.assertEqual(len(set(scaled.values())), 4)

    def test_a_replay_refuses_steps_of_the_library(self):
        for flags in (["--stop-at", 2], ["--reduce", "library"]):
            self.assertEqual(self.on_ranks("threads", 2, *flags, steps=4), [(0, "")])
        self.assertIn(" are equal", self.succeed("replay", "run", "--steps", "0:2"))
        for steps in ("0:4", "2:4"):
            self.refuse(["replay", "run", "--steps", steps], "run: --reduce library added gradients of these steps")

    def test_a_signal_to_one_rank_stops_all(self):
        self.unbroken()
        code, _, said = self.signalled(self.command("run", "--ranks", 2), step_record(3), signal.SIGTERM)
        self.assertEqual(code, 4, said)
        self.assertIn("SIGTERM at step 3 of 8; to go on", said)
        # The other rank gets it while it writes its part of a checkpoint.
        faults = {"FAULTS_SIGNAL_IN": "/.step-000000004", "FAULTS_SIGNAL": int(signal.SIGTERM)}
        ended = self.on_ranks("processes", 2, of_rank={1: {"faults": faults}})
        self.assertEqual([code for code, _ in ended], [4, 4])
        self.assertIn("SIGTERM at step 4 of 8; to go on", ended[0][1])
        self.assertEqual(ended[1][1], "")
        self.assertEqual(self.on_ranks("threads", 4), [(0, "")])
        found, wanted = (tree_of(self.folder / run / "checkpoints/step-000000008") for run in ("run", "whole"))
        self.assertEqual(found, wanted)

    def test_refusals(self):
        for more, options, part in ((["--ranks", 3], {}, "--ranks 3: must divide the 4 microbatches"),
                                    (["--ranks", 2], {"schedule": "fp8_amd"}, '"update": "step"'),
                                    (["--ranks", 2, "--digest-steps", "0:1"], {}, "digests are of one rank"),
                                    (["--rendezvous", "meet"], {}, "--rendezvous: no launcher has set RANK")):
            self.refuse(self.command("run", *more, **options), part)

    def test_a_rank_that_cannot_write_ends_all_in_one_line(self):
        full = r"run/checkpoints/[^\n]*No space left on device[^\n]*\n\Z"
        for rank, at in ((0, 1000), (1, 50000)):  # when rank 0 makes the files, in the middle
            faults = {"FAULTS_FULL_AT": at, "FAULTS_FULL_IN": "/checkpoints/"}
            code, _, said = self.with_faults(self.command("run", "--ranks", 2), **faults)
            self.assertEqual((code, said.count("\n")), (2, 1), said)
            self.assertRegex(said, r"\Amini-llama: (rank 1 failed: )?" + full)
            ended = self.on_ranks("processes", 2, of_rank={rank: {"faults": {**faults, "FAULTS_FULL_AT": 1000}}})
            self.assertEqual([code for code, _ in ended], [2, 2])
            self.assertRegex(ended[rank][1], r"\Amini-llama: " + full)
            self.assertRegex(ended[1 - rank][1], rf"\Amini-llama: rank {rank} failed: " + full)
            self.assertEqual(list((self.folder / "run/checkpoints").iterdir()), [])

    def test_a_rank_killed_in_a_checkpoint_ends_all_in_one_line(self):
        self.unbroken()
        faults = {"FAULTS_SIGNAL_IN": "/.step-000000004", "FAULTS_SIGNAL": int(signal.SIGKILL)}
        for rank in (0, 1):
            ended = self.on_ranks("processes", 2, of_rank={rank: {"faults": faults}})
            self.assertEqual(ended[rank][0], -signal.SIGKILL)
            self.assertEqual(ended[1 - rank], (2, f"mini-llama: rank {rank} has ended\n"))
        self.assertEqual(self.on_ranks("threads", 4), [(0, "")])
        self.assert_like_unbroken()

    def test_ranks_name_what_differs(self):
        self.write("other.txt", mini_llama.generated_text(seed=2).decode())
        commit = re.search(r"\((.*)\)", self.succeed("--version")).group(1)
        program = self.folder / "other-build"
        with open(mini_llama.PROGRAM, "rb") as file:
            program.write_bytes(file.read().replace(commit.encode(), b"x" * len(commit)))
        program.chmod(0o700)
        for own, part in (({"options": {"data": "other.txt"}}, "rank 1 has data_fingerprint "),
                          ({"options": {"learning_rate": 0.5}}, "rank 1 has run/train/learning_rate 0.5, rank 0 has "),
                          ({"program": program}, f"rank 1 has commit {'x' * len(commit)}, rank 0 has commit {commit}")):
            for code, said in self.on_ranks("processes", 2, of_rank={1: own}):
                self.assertEqual((code, said.count("\n")), (2, 1), said)
                self.assertIn(part, said)
            self.assertFalse((self.folder / "run").exists())

    def test_a_run_goes_on_in_one_directory(self):
        """Other numbers of threads change nothing."""
        self.unbroken()
        self.assertEqual(self.on_ranks("processes", 2, "--stop-at", 4, of_rank={1: {"options": {"threads": 2}}}),
                         [(0, "")] * 2)
        shutil.copytree(self.folder / "run", self.folder / "copy")
        of_rank = {0: {"command": ["train", "--resume", "run"]},
                   1: {"command": ["train", "--resume", "copy", "--out", "new"]}}
        self.assertEqual(self.on_ranks("processes", 2, of_rank=of_rank), [
            (2, "mini-llama: rank 1 has --out of a new run, rank 0 has --out of the resumed run\n")] * 2)
        self.assertFalse((self.folder / "new").exists())
        of_rank[1] = of_rank[0]
        self.assertEqual(self.on_ranks("processes", 2, of_rank=of_rank), [(0, "")] * 2)
        self.assert_like_unbroken()

    def test_places_to_meet(self):
        """A file of an earlier start is ignored. The agent of torchrun may have MASTER_PORT itself."""
        self.write("meet", '{"start": "", "nonce": "old", "host": "", "addresses": ["127.0.0.1"], "port": 1}')
        self.assertEqual(self.on_ranks("processes", 2, steps=4), [(0, "")] * 2)
        self.assertFalse((self.folder / "meet").exists())
        agent = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(random.randrange(20000, 30000)),
                 "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": self.folder.name}
        self.assertEqual(self.on_ranks("processes", 2, out="agent", place="env", variables=agent, steps=4),
                         [(0, "")] * 2)
        self.refuse(self.command("late", "--rendezvous", "env"), "no launcher has set RANK")


@unittest.skipUnless(SLOW, "slow")
class Random(OnRanks):
    OPTIONS = {**OnRanks.OPTIONS, "steps": 40, "checkpoint_every": 3}

    def test_kills_at_random_moments(self):
        self.unbroken()
        started = time.monotonic()
        self.assertEqual(self.on_ranks("processes", 4, out="timed"), [(0, "")] * 4)
        longest = time.monotonic() - started
        draw, kills = random.Random(3), 0
        while kills < 50:
            ranks = draw.choice((2, 4))
            victim = draw.randrange(ranks)
            processes = self.processes(ranks, "--timeout", 20)  # a rank that dies before it connects is missed
            time.sleep(draw.uniform(0, longest))
            processes[victim].kill()
            killed = time.monotonic()
            ended = self.outcomes(processes)
            self.assertLess(time.monotonic() - killed, 30)
            if ended[victim][0] == 0:
                shutil.rmtree(self.folder / "run")  # it was complete
                continue
            kills += 1
            for rank, (code, said) in enumerate(ended):
                if rank != victim and code != 0:  # the others may have ended
                    self.assertEqual((code, said.count("\n")), (2, 1), said)
                    self.assertRegex(said, f"rank {victim} (has ended|did not come to the start|cannot be reached)")
            if draw.random() < 0.3:
                kind = draw.choice(("processes", "threads"))
                ended = self.on_ranks(kind, draw.choice((2, 4)))
                self.assertEqual(ended, [(0, "")] * len(ended))
                self.assert_like_unbroken()
                shutil.rmtree(self.folder / "run")

    def test_a_stopped_rank_is_named(self):
        for stopped in (0, 2, 3):
            processes = self.processes(4, "--timeout", 3, steps=3000, max_epochs=99)
            log = self.folder / "run/log.jsonl"
            while not log.exists() or step_record(3) not in log.read_text():
                self.assertIsNone(processes[0].poll())
                time.sleep(0.05)
            processes[stopped].send_signal(signal.SIGSTOP)
            others = self.outcomes(processes[:stopped] + processes[stopped + 1:])
            processes[stopped].send_signal(signal.SIGCONT)
            for code, said in others:
                self.assertEqual(code, 2)
                self.assertRegex(said, rf"\Amini-llama: rank {stopped} did not come to \w+ within 3000 ms\n\Z")
            # It may miss a file that the others have removed.
            self.assertEqual([(code, said.count("\n")) for code, said in self.outcomes([processes[stopped]])], [(2, 1)])
            shutil.rmtree(self.folder / "run")


if __name__ == "__main__":
    mini_llama.main(__doc__, "FAULTS")
