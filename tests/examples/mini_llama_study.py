#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Studies of a few steps: one that was stopped twice has the bytes of an unbroken one, also with a fork. Failed runs,
acceptance, refusals.

usage: mini_llama_study.py PROGRAM [NAME...]
"""
import json

import mini_llama
from mini_llama import NO_PLOTS, SHAPE, TRAIN, Scratch, records, tree_of

OPTIONS = {"data": ["text.txt"], "model": SHAPE,
           "train": {**TRAIN, "steps": 8, "checkpoint_every": 4, "keep_checkpoints": 3}}
# Files of a fork and of a run from the first step that must be equal, byte for byte.
HEALED = {"phases": [{"recipe": "mxfp4", "at": 0}, {"recipe": "bf16", "at": 5}]}
STUDY = {"name": "tiny", "seeds": 2, "baseline": "bf16", "options": OPTIONS,
         "arms": [{"name": "mxfp4"}, {"name": "bf16"}]}
TABLES = ["runs.csv", "study.csv", "pairs.csv", "intervals.csv", "results.json"]


class Study(Scratch):
    def study(self, *arguments, code=0):
        done = self.run_program("study", "--device", "cpu", *arguments)
        self.assertEqual((done.returncode, done.stderr.replace(NO_PLOTS, "")), (code, ""), done.stdout)
        return done.stdout

    def assert_same_study(self, one, other, arms):
        for arm in arms:
            for seed in (1, 2):
                self.assert_same_checkpoint(f"{one}/runs/{arm}-{seed}", f"{other}/runs/{arm}-{seed}")
        for name in TABLES:
            self.assertEqual(*[(self.folder / study / "report" / name).read_bytes() for study in (one, other)], name)

    def test_a_stopped_study_equals_an_unbroken_one(self):
        self.write("study.json", STUDY)
        said = self.study("study.json", "--out", "whole", "--jobs", 2)
        self.assertIn("2 arms x 2 seeds = 4 runs", said)
        self.assertIn("2 at once on cpu", said)
        # Ends after its first run.
        said = self.study("study.json", "--out", "parts", "--jobs", 1, "--stop-after", 1)
        self.assertIn("3 runs are left: mini-llama study --resume parts", said)
        # The second run ends in its middle, as after a signal.
        self.succeed("train", "--config", "parts/arms/bf16.json", "--seed", 1, "--out", "parts/runs/bf16-1",
                     "--auto-resume", "--device", "cpu", "--threads", 1, "--stop-at", 5)
        self.assertEqual(records(self.folder / "parts/runs/bf16-1/log.jsonl")[-1]["status"], "stopped")
        said = self.study("--resume", "parts")
        self.assertIn("4 runs, 2,048 tokens; 3 runs, 1,536 tokens are left", said)
        self.assertIn("measured here", said)
        self.assert_same_study("whole", "parts", ("mxfp4", "bf16"))
        # More seeds later. Runs that are there stay as they are.
        before = tree_of(self.folder / "parts/runs/bf16-1")
        self.study("--resume", "parts", "--seeds", 3)
        self.assertEqual(before, tree_of(self.folder / "parts/runs/bf16-1"))
        self.assertIn("bf16,3,ok,end,8,", (self.folder / "parts/report/runs.csv").read_text())
        self.assertEqual(self.study("--resume", "parts", "--accept", "whole/report/results.json").count(": agrees"), 2)

    def test_a_fork_equals_a_run_from_the_first_step(self):
        for name, fork in (("forked", {"fork": {"arm": "mxfp4", "step": 4}}), ("whole", {})):
            arms = [{"name": "mxfp4"}, {"name": "bf16"}, {"name": "healed", "schedule": HEALED, **fork}]
            self.write("study.json", {**STUDY, "seeds": 2, "arms": arms})
            self.study("study.json", "--out", name)
        first = records(self.folder / "forked/runs/healed-1/log.jsonl", "step")[0]
        self.assertEqual(first["step"], 5)
        self.assertFalse(any((self.folder / "forked/forks").iterdir()))
        for seed in (1, 2):
            for name in ("model.safetensors", "optimizer.safetensors"):
                self.assertEqual(*[(self.checkpoint(f"{study}/runs/healed-{seed}") / name).read_bytes()
                                   for study in ("forked", "whole")])
        for name in TABLES[:-1]:
            self.assertEqual(*[(self.folder / study / "report" / name).read_bytes() for study in ("forked", "whole")])

    def test_lost_runs_are_results(self):
        """A run that diverges is done; one that fails is tried again."""
        self.write("study.json", {**STUDY, "seeds": 1, "arms": [
            {"name": "bf16"}, {"name": "wild", "schedule": "bf16", "options": {"train": {"learning_rate": 1e30}}},
            {"name": "lost", "schedule": "bf16", "options": {"tokenizer": "missing.model"}}]})
        said = self.study("study.json", "--out", "s")
        self.assertIn("wild seed 1: exit code 3: wild: diverged at step", said)
        self.assertIn("lost seed 1: exit code 2: ", said)
        self.assertIn("1 runs are left", said)
        runs = (self.folder / "s/report/runs.csv").read_text()
        self.assertRegex(runs, r'wild,1,diverged,end,\d+,\d+,,"?wild: diverged at step')
        self.assertRegex(runs, r"lost,1,failed,end,0,0,,.*missing\.model")
        self.assertIn("3 runs, ", said)
        said = self.study("--resume", "s")
        self.assertNotIn("wild seed 1: exit code", said)
        self.assertEqual(said.count("lost seed 1: exit code 2"), 1)

    def test_the_studies_of_this_tree(self):
        """Every arm's recipe, options and fork are accepted. Nothing is written."""
        self.train("e6/runs/bf16-1", recipe="bf16")  # E7 adapts a run of E6
        for path in sorted((mini_llama.ROOT / "examples/studies").glob("*.json")):
            study = json.loads(path.read_text())
            if "init" in study["options"]:
                study["options"].update(model=SHAPE, train=TRAIN)
            self.write(path.name, study)
            before = tree_of(self.folder)
            said = self.study(path.name, "--out", "s", "--data", "text.txt", "--budget")
            self.assertRegex(said, r" arms x \d+ seeds = \d+ runs, [\d,]+ tokens")
            self.assertEqual(before, tree_of(self.folder))

    def test_refusals(self):
        def refuse(change, *parts, arguments=("study.json", "--out", "s")):
            self.write("study.json", {**STUDY, "baseline": "", **change})
            self.refuse(["study", "--device", "cpu", *arguments], *parts)
        refuse({"arms": [{"name": "no_such"}]}, "study.json: no_such", "'no_such' is neither a preset nor a file")
        refuse({"options": {}}, "options.data: missing")
        refuse({"arms": [{"name": "bf16", "options": {"train": {"batch": 0}}}]}, "study.json: bf16", "train.batch")
        refuse({"arms": [{"name": "bf16", "options": {"batch": 1}}]}, "unknown key")
        fork = {"name": "f", "fork": {"arm": "mxfp4", "step": 4}}
        refuse({"arms": [{"name": "mxfp4"}, {**fork, "schedule": "bf16"}]},
               "f.fork: differs from mxfp4 before step 4: phases[0].recipe")
        late = {"arm": "mxfp4", "step": 5}
        refuse({"arms": [{"name": "mxfp4"}, {**fork, "fork": late, "schedule": HEALED}]},
               "the run of mxfp4 keeps no checkpoint of step 5")
        refuse({}, "needs either --out or --resume", arguments=("study.json",))
        refuse({}, "no study.json there", arguments=("--resume", "s"))
        self.write("full/file", "text")
        refuse({}, "is not an empty directory", arguments=("study.json", "--out", "full"))
        self.study("study.json", "--out", "s", "--stop-after", 1)
        refuse({}, "has a study already")
        refuse({"options": {**OPTIONS, "data": ["other.txt"]}}, "mxfp4: is not the arm whose runs are in s",
               arguments=("study.json", "--resume", "s"))
        self.write("results.json", {"schema": 0})
        refuse({}, "results.json: not the results.json of a study of this version",
               arguments=("--resume", "s", "--accept", "results.json"))


if __name__ == "__main__":
    mini_llama.main(__doc__)
