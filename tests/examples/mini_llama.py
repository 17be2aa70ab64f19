#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs mini-llama as its users do, with a tiny model on generated text of random words: exact resume, equal bytes on
any number of threads, inputs, logs and outputs. Other scripts use its `Scratch`.

usage: mini_llama.py PROGRAM [NAME...]   NAME: only tests whose name contains one of these
"""
import fcntl
import hashlib
import json
import math
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import unittest
from pathlib import Path

from outputs import presets
from safetensors_bytes import load

PROGRAM = ""
ROOT = Path(__file__).resolve().parents[2]
NO_PLOTS = "gnuplot is not on PATH: plots skipped\n"  # plots take seconds; report_test.cpp makes them
SHAPE = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64}
TRAIN = {"sequence": 32, "batch": 2, "eval_windows": 4, "final_eval_windows": 8, "eval_every": 4}
# In so small a model threads mostly wait, for each other and for a core.
THREADS = {"threads": 1}
MODEL_FILES = ["config.json", "generation_config.json", "model.safetensors", "optimizer.safetensors",
               "trainer_state.json"]
ADAPTER_FILES = ["adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json"]
WORDS = "the sea light of and stone river under north a word keeps".split()


def generated_text(words=8000, seed=1):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words)).encode()


def as_flags(options):
    return [part for key, value in options.items() for part in ("--" + key.replace("_", "-"), str(value))]


def tree_of(folder):
    """Every path below a folder, with a digest of its bytes."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "directory"
            for p in sorted(Path(folder).rglob("*"))}


def records(log, event=None):
    lines = [json.loads(line) for line in Path(log).read_text().splitlines()]
    return [r for r in lines if event is None or r["event"] == event]


def main(usage, *others):
    """Runs the tests of the calling script: PROGRAM [OTHER...] [NAME...]. `others` name the paths after PROGRAM,
    which become global names of the script. Words that begin with -- are for the script."""
    global PROGRAM
    paths = [Path(path).resolve() for path in sys.argv[1:2 + len(others)]]
    if len(paths) < 1 + len(others):
        sys.exit(usage)
    PROGRAM = str(paths[0])
    for name, path in zip(others, paths[1:]):
        setattr(sys.modules["__main__"], name, path)
    select = [word for name in sys.argv[2 + len(others):] if not name.startswith("--") for word in ("-k", name)]
    unittest.main(argv=sys.argv[:1] + select, verbosity=1)


def scratch_parent():
    """A folder in memory if there is one, else tempfile's default. Runs sync every checkpoint, and short runs would
    spend five times as long on the disk as on computation. No test needs a disk: power loss is checked by the traced
    calls."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30 else None


class Scratch(unittest.TestCase):
    """Each test has a directory, in which the program runs."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="rotoscale-mini-llama-", dir=scratch_parent()))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "text.txt").write_bytes(generated_text())

    @staticmethod
    def expect_signals():
        """Resets signals that the caller may ignore, as nohup and a shell's background jobs do."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def run_program(self, *arguments, stdout=subprocess.PIPE):
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=120,
                              env={**os.environ, "PATH": ""})

    def train_command(self, out, *more, data="text.txt", **options):
        flags = {**SHAPE, **TRAIN, **THREADS, "steps": 8, **options}
        if "--threads" in more:
            del flags["threads"]
        return ["train", "--out", out, "--data", data, *as_flags(flags), *more]

    def train(self, out, *more, **options):
        return self.succeed(*self.train_command(out, *more, **options))

    def succeed(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual((done.returncode, done.stderr.replace(NO_PLOTS, "")), (0, ""))
        return done.stdout

    def replay(self, *arguments, code=0):
        """Output of a replay of `run`."""
        done = self.run_program("replay", "run", *arguments)
        self.assertEqual((done.returncode, done.stderr), (code, ""))
        return done.stdout

    def digests(self):
        """The run's digests: the choice of tensors, and the digests of its steps."""
        choice, *steps = [json.loads(line) for line in (self.folder / "run/digests.jsonl").read_text().splitlines()]
        return choice, steps

    def planned(self, *arguments):
        """Output of plan: bytes by category, and the two lines after them."""
        *rows, checkpoints, parameters = self.succeed("plan", *arguments).splitlines()
        return {row.split()[0]: int(row.split()[1]) for row in rows}, checkpoints, parameters

    def sentencepiece(self, vocabulary=300):
        done = self.run_program("tokenizer", "train", "--data", "text.txt", "--vocab-size", vocabulary, "--out",
                                "t.model")
        if "built without SentencePiece" in done.stderr:
            self.skipTest("no SentencePiece")
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", f"t.model: {vocabulary} pieces\n"))

    def refuse(self, arguments, *parts, code=2):
        """Expects the exit code, one line that contains every part, and unchanged files."""
        before = tree_of(self.folder)
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Amini-llama: [^\n]+\n\Z")
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertEqual(tree_of(self.folder), before)
        return done.stderr

    def on_a_terminal(self, command, columns=80):
        try:
            master, slave = pty.openpty()
        except OSError as error:  # a bare chroot has no /dev/pts
            self.skipTest(f"no pseudo-terminal here: {error}")
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 25, columns, 0, 0))
        with subprocess.Popen([PROGRAM, *map(str, command)], cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=slave) as child:
            os.close(slave)
            shown = b""
            try:
                while part := os.read(master, 4096):
                    shown += part
            except OSError:  # Linux reports the closed side as an error.
                pass
            child.communicate(timeout=60)
        os.close(master)
        return child.returncode, shown.decode()

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return name

    def checkpoint(self, out, step=8):
        return self.folder / out / "checkpoints" / f"step-{step:09d}"

    def assert_same_checkpoint(self, one, other, step=8):
        first = tree_of(self.checkpoint(one, step))
        self.assertEqual(sorted(first), ADAPTER_FILES if "adapter_config.json" in first else MODEL_FILES)
        self.assertEqual(first, tree_of(self.checkpoint(other, step)))

    def assert_same_tensors(self, one, other):
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual((self.checkpoint(one) / name).read_bytes(), (self.checkpoint(other) / name).read_bytes())


class Resume(Scratch):
    def check(self, stop, **options):
        self.train("whole", **options)
        self.train("parts", "--stop-at", stop, **options)
        self.assertFalse(self.checkpoint("parts").exists())
        self.assertEqual(records(self.folder / "parts/log.jsonl")[-1]["status"], "stopped")
        self.succeed("train", "--resume", "parts")
        self.assert_same_checkpoint("whole", "parts")
        # Both logs have the same records, except for clocks.
        for event, keys in (("step", ("step", "loss", "lr", "grad_norm", "tokens", "recipe")),
                            ("eval", ("step", "val_loss")), ("switch", ("step", "from", "to", "reason", "scales",
                                                                        "val_loss_before", "val_loss_after")),
                            ("noise", ("step", "gradient_to_noise"))):
            stories = [[tuple(r[k] for k in keys) for r in records(self.folder / run / "log.jsonl", event)]
                       for run in ("whole", "parts")]
            self.assertEqual(stories[0], stories[1])
        ends = [records(self.folder / run / "log.jsonl", "end")[-1] for run in ("whole", "parts")]
        for key in ("status", "step", "tokens", "final_val_loss", "window_losses", "best_val_loss"):
            self.assertEqual(ends[0][key], ends[1][key])

    def check_trigger(self, trigger, switch, scales="reset", **options):
        """A run stopped before, at, and after the switch."""
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"},
                                            {"recipe": "fp8_amd", "trigger": trigger, "scales": scales}]})
        for stop in (switch - 1, switch):
            self.check(stop, schedule="heal.json", **options)
            seen = records(self.folder / "parts/log.jsonl", "switch")[-1]
            self.assertEqual((seen["step"], seen["reason"]["kind"]), (switch, trigger["kind"]))
            self.assertEqual(seen["reason"]["measurements"], trigger["patience"] + (trigger["kind"] == "plateau"))
            for run in ("whole", "parts"):
                shutil.rmtree(self.folder / run)

    def test_heal_at_a_plateau(self):
        # No loss falls by 10 nats, so the first evaluation is the best and the next two are a plateau.
        self.check_trigger({"kind": "plateau", "patience": 2, "min_delta": 10}, 3, eval_every=1)

    def test_heal_by_gradient_noise(self):
        self.check_trigger({"kind": "gradient_noise", "patience": 2, "ratio": 1e9, "every": 2}, 4, scales="seed",
                           accumulate=2)

    def test_heal_presets(self):
        for schedule in ("heal_backward", "heal_repeated"):
            with self.subTest(schedule):
                self.check(5, schedule=schedule)
                for run in ("whole", "parts"):
                    shutil.rmtree(self.folder / run)

    def test_fp8_to_fp8_keeps_its_scales(self):
        """A switch to an equal recipe changes nothing, also when the run stops at the switch."""
        self.write("same.json", {"phases": [{"recipe": "fp8_delayed"}, {"recipe": "fp8_delayed", "at": 4}]})
        self.check(4, schedule="same.json", name="arm")
        self.train("plain", schedule="fp8_delayed", name="arm")
        self.assert_same_tensors("plain", "whole")

    def test_from_an_older_checkpoint_and_moved_text(self):
        self.train("whole", checkpoint_every=2, keep_checkpoints=9)
        shutil.copytree(self.folder / "whole", self.folder / "parts")
        shutil.rmtree(self.checkpoint("parts", 8))
        shutil.rmtree(self.checkpoint("parts", 6))
        shutil.copy(self.folder / "text.txt", self.folder / "moved.txt")
        (self.folder / "text.txt").unlink()
        self.succeed("train", "--resume", self.checkpoint("parts", 4), "--data", "moved.txt", "--threads", 1)
        self.assert_same_tensors("parts", "whole")

    def test_oldest_checkpoints_go(self):
        self.train("run", checkpoint_every=2, keep_checkpoints=2)
        self.assertEqual(sorted(p.name for p in (self.folder / "run/checkpoints").iterdir()),
                         ["step-000000006", "step-000000008"])


class Results(Scratch):
    def test_threads_change_no_bit(self):
        """One schedule: model_test has every preset."""
        for threads in (1, 3):
            self.train(f"run-{threads}", schedule="mxfp4_h16_heal", threads=threads)
        self.assert_same_checkpoint("run-1", "run-3")

    def test_configuration_file_and_flags_over_it(self):
        self.write("run.json", {"name": "from file", "data": ["text.txt"], "schedule": "mxfp4", "model": SHAPE,
                                "train": {**TRAIN, "steps": 8, "seed": 3}})
        self.succeed("train", "--config", "run.json", "--out", "file")
        self.train("flags", schedule="mxfp4", seed=3, name="from file")
        self.assert_same_checkpoint("file", "flags")
        self.succeed("train", "--config", "run.json", "--out", "over", "--seed", 4, "--recipe", "bf16", "--name",
                     "over")
        config = json.loads((self.folder / "over/config.json").read_text())
        self.assertEqual((config["train"]["seed"], config["schedule"], config["name"]), (4, "bf16", "over"))
        self.assertEqual(config["train"]["batch"], TRAIN["batch"])
        # The config.json of a run makes the same run.
        self.succeed("train", "--config", "file/config.json", "--out", "again")
        self.assert_same_checkpoint("file", "again")

    def test_a_switch_says_why_and_what_it_did(self):
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "fp8_amd", "at": 5}]})
        self.train("run", schedule="heal.json")
        switch, = records(self.folder / "run/log.jsonl", "switch")
        self.assertEqual((switch["step"], switch["from"], switch["to"]), (5, "mxfp4_h16", "fp8_amd"))
        self.assertEqual((switch["reason"], switch["scales"]), ({"kind": "step", "at": 5}, "reset"))
        # Both losses are of the weights after step 5, on the same windows.
        self.train("before", "--stop-at", 5, schedule="mxfp4_h16")
        for recipe, loss in (("mxfp4_h16", "val_loss_before"), ("fp8_amd", "val_loss_after")):
            found = self.succeed("eval", "--checkpoint", self.checkpoint("before", 5), "--recipe", recipe, "--windows",
                                 4)
            self.assertEqual(json.loads(found)["val_loss"], switch[loss])
        memory = switch["memory"]
        self.assertEqual((memory["quantized_between"], memory["streamed"]), (0, 0))  # the base trains
        self.assertEqual(memory["quantized_peak"], max(memory["quantized_before"], memory["quantized_after"]))

    def test_every_schedule_trains_through_its_switches(self):
        for schedule in presets(ROOT)[1]:
            with self.subTest(schedule):
                self.train("run", "--overwrite", schedule=schedule, steps=160, learning_rate=0.01, eval_every=20)
                log = self.folder / "run/log.jsonl"
                switches, (end,) = records(log, "switch"), records(log, "end")
                untriggered = [p for p in records(log, "start")[0]["schedule"][1:] if p["trigger"] is None]
                self.assertGreaterEqual(len(switches), len(untriggered))
                for switch in switches:  # the weights are the same
                    self.assertLess(abs(switch["val_loss_after"] - switch["val_loss_before"]), 0.05)
                self.assertEqual(end["status"], "ok")
                self.assertLess(end["final_val_loss"], 2)  # untrained: 5.5

    def test_the_last_phase_ends_at_its_cap(self):
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "fp8_amd", "at": 3, "cap": 2}]})
        self.train("run", schedule="heal.json")
        end = records(self.folder / "run/log.jsonl", "end")[0]
        self.assertEqual((end["status"], end["step"]), ("ok", 5))
        self.assertEqual(records(self.folder / "run/log.jsonl", "eval")[-1]["step"], 5)
        before = tree_of(self.folder / "run/checkpoints")
        self.succeed("train", "--resume", "run")
        self.assertEqual(tree_of(self.folder / "run/checkpoints"), before)

    def test_a_trigger_waits_for_what_it_observes(self):
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "bf16", "at": 7, "trigger": {
            "kind": "gradient_noise", "patience": 1, "ratio": 1e-9, "every": 2}}]})
        self.train("run", schedule="heal.json")
        switch, = records(self.folder / "run/log.jsonl", "switch")
        self.assertEqual((switch["step"], switch["reason"]), (7, {"kind": "step", "at": 7}))
        noise = records(self.folder / "run/log.jsonl", "noise")
        self.assertEqual([r["step"] for r in noise], [2, 4, 6])
        for r in noise:
            self.assertTrue(0.5 < r["gradient_to_noise"] < 50)
        # Measuring does not change the run.
        self.write("plain.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "bf16", "at": 7}]})
        self.train("plain", schedule="plain.json")
        self.assert_same_tensors("plain", "run")

    def test_eval_gives_the_logged_loss(self):
        for schedule in ("bf16", "fp8_delayed", "mxfp4_h16_heal", "mxfp4_h16_step_signs"):
            self.train(schedule, schedule=schedule)
            end = records(self.folder / schedule / "log.jsonl", "end")[0]
            for path in (schedule, self.checkpoint(schedule)):
                found = json.loads(self.succeed("eval", "--checkpoint", path, "--threads", 1))
                self.assertEqual((found["val_loss"], found["step"]), (end["final_val_loss"], 8))
        other = json.loads(self.succeed("eval", "--checkpoint", "bf16", "--recipe", "mxfp4", "--windows", 4))
        self.assertEqual((other["recipe"], other["windows"], other["sequence"]), ("mxfp4", 4, 32))
        longer = json.loads(self.succeed("eval", "--checkpoint", "bf16", "--sequence", 64, "--windows", 4))
        self.assertEqual(longer["sequence"], SHAPE["max_position_embeddings"])
        self.refuse(["eval", "--checkpoint", "bf16", "--sequence", 65], "--sequence", "64 positions")
        # Another program's model, without a run that states its sequence length.
        model = self.checkpoint("bf16")
        foreign = self.folder / "foreign"
        foreign.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(model / name, foreign)
        found = json.loads(self.succeed("eval", "--checkpoint", "foreign", "--data", "text.txt", "--recipe", "bf16"))
        self.assertEqual(found["sequence"], 64)
        self.assertNotEqual(other["val_loss"], records(self.folder / "bf16/log.jsonl", "eval")[-1]["val_loss"])

    def test_logits_of_every_token(self):
        """The printed loss equals the loss computed from the logits. Text: the last pass is not full. Records:
        prompts are masked, and attention stays within a document."""
        lines = [json.dumps({"prompt": "what follows %d? " % n, "answer": str(n + 1)}) for n in range(400)]
        self.write("r.jsonl", "\n".join(lines) + "\n")
        for data, more in (("text.txt", []), ("r.jsonl", ["document_starts"])):
            with self.subTest(data=data):
                self.train(data + "-run", data=data, batch=4, head_chunk=48)
                windows, sequence, vocabulary = 6, 32, SHAPE.get("vocab_size", 256)
                found = json.loads(self.succeed("eval", "--checkpoint", data + "-run", "--windows", windows, "--logits",
                                                "l.safetensors"))
                tensors = load(self.folder / "l.safetensors")
                self.assertEqual(list(tensors), ["tokens", "targets", *more, "logits"])
                self.assertEqual({name: (kind, shape) for name, (kind, shape, _) in tensors.items()},
                                 {**dict.fromkeys(["tokens", "targets", *more], ("I32", [windows, sequence])),
                                  "logits": ("F32", [windows, sequence, vocabulary])})
                tokens, targets = (struct.unpack(f"<{windows * sequence}i", tensors[name][2])
                                   for name in ("tokens", "targets"))
                for t in range(windows * sequence - 1):
                    self.assertTrue(targets[t] in (-100, tokens[t + 1]) or t % sequence == sequence - 1)
                rows = list(struct.iter_unpack(f"<{vocabulary}f", tensors["logits"][2]))
                losses = [math.log(sum(math.exp(z - row[t]) for z in row)) for row,
                          t in zip(rows, targets) if t != -100]
                self.assertEqual(len(losses) < len(targets), data == "r.jsonl")
                self.assertLess(abs(sum(losses) / len(losses) - found["val_loss"]), 1e-6)
        self.refuse(["eval", "--checkpoint", "text.txt-run", "--logits", "no/l.safetensors"], "no/l.safetensors")
        self.refuse(["eval", "--checkpoint", "text.txt-run", "--logits", "text.txt-run"],
                    "text.txt-run: cannot write: is a directory")

    def test_sample_is_reproducible(self):
        self.train("run", steps=40, learning_rate=0.01)
        command = ["sample", "--checkpoint", "run", "--tokens", 70, "--prompt", "the sea"]
        first = self.succeed(*command, "--seed", 5)
        self.assertTrue(first.startswith("the sea"))
        self.assertEqual(first, self.succeed(*command, "--seed", 5, "--threads", 1))
        self.assertNotEqual(first, self.succeed(*command, "--seed", 6))
        self.assertEqual(first, self.succeed(*command, "--seed", 5, "--no-cache"))
        greedy = self.succeed(*command, "--temperature", 0)
        self.assertEqual(greedy, self.succeed(*command, "--temperature", 1, "--top-k", 1))
        self.assertEqual(self.succeed("sample", "--checkpoint", "run", "--tokens", 0, "--prompt", "x"), "x\n")


class Warmup(Scratch):
    def test_the_pretraining_configuration(self):
        """AMD's hyperparameters. The learning rate of a step does not depend on the run's length."""
        file = ROOT / "examples/llama/configs/amd_llama31_8b.json"
        tiny = {**SHAPE, "accumulate": 2, "sequence": 32, "eval_windows": 1, "final_eval_windows": 1}
        rates = []
        for steps, config in ((5, "amd_llama31_8b"), (70, file)):  # by name, and as the file of that name
            self.succeed("train", "--config", config, "--data", "text.txt", "--out", f"run-{steps}",
                         "--synthetic-warmup", 20,
                         "--synthetic-recipe", "fp8_delayed", "--steps", steps, "--max-epochs", 9, *as_flags(tiny))
            log = self.folder / f"run-{steps}/log.jsonl"
            rates.append([r["lr"] for r in records(log, "step")])
            self.assertEqual(records(log, "warm_up")[0]["steps"], 20)
        self.assertEqual(rates[0], rates[1][:5])
        self.assertEqual(rates[1][0], 8e-4 / 64)
        self.assertEqual(max(rates[1]), 8e-4)
        self.assertGreater(rates[1][-1], 0.999999 * 8e-4)  # the cosine ends after 1.2 million steps


def documented_events():
    """Required keys and optional keys by event, in order: the table of docs/reference/logs.md."""
    text = (ROOT / "docs/reference/logs.md").read_text()
    table = text[text.index("## log.jsonl"):text.index("**Model FLOPs**")]
    keys, optional, event = {}, set(), None
    for named, cell in re.findall(r"^\| (?:`(\w+)` )?\| (.*) \|$", table, re.M):
        event = named or event  # a row without a name continues the one above
        fields = re.findall(r"`(\w+)`(?: \(([^)]*)\))?", cell)
        keys.setdefault(event, ["event"]).extend(name for name, _ in fields)
        optional |= {name for name, about in fields if "absent" in about}
    return keys, optional


class Log(Scratch):
    def test_keys_are_those_of_the_documentation(self):
        keys, optional = documented_events()
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "fp8_delayed", "at": 5, "trigger": {
            "kind": "gradient_noise", "every": 1}}]})
        self.train("run", "--stop-at", 4, "--synthetic-warmup", 1, "--ignore-config-key", "odd", schedule="heal.json",
                   accumulate=2, average_decay=0.5)
        self.succeed("train", "--resume", "run")
        unstable = {"steps": 40, "checkpoint_every": 3, "learning_rate": 0.2, "warmup": 0.5, "batch": 1,
                    "max_loss_jump": 0.1}
        done = self.run_program(*self.train_command("unstable", on_divergence="rollback", max_rollbacks=1, **unstable))
        self.assertIn(done.returncode, (0, 3), done.stderr)
        self.train("summed", "--ranks", 2, "--reduce", "library", steps=2, accumulate=2)
        seen = [r for run in ("run", "unstable", "summed") for r in records(self.folder / run / "log.jsonl")]
        for record in seen:
            wanted = [key for key in keys[record["event"]] if key in record or key not in optional]
            self.assertEqual(list(record), [*wanted, "time"])
        self.assertEqual({r["event"] for r in seen}, set(keys))
        self.assertEqual(records(self.folder / "run/log.jsonl", "warm_up")[0]["recipe"], "fp8_amd")  # the default
        for key in optional:
            self.assertTrue(any(key in r for r in seen))
        steps = records(self.folder / "run/log.jsonl", "step")
        self.assertEqual([(r["step"], r["tokens"]) for r in steps], [(n, n * 2 * 2 * 32) for n in range(1, 9)])
        seconds = [r["seconds"] for r in steps]
        self.assertEqual(seconds, sorted(seconds))

    def test_pipe_gets_no_progress(self):
        done = self.run_program(*self.train_command("run"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\Abf16: 8 steps, validation loss [0-9.]+ nats/byte \([0-9.]+ bits\)\n\Z")

    def test_terminal_gets_a_progress_line(self):
        code, shown = self.on_a_terminal(self.train_command("run"))
        self.assertEqual(code, 0)
        lines = re.findall(r"\rbf16  step (\d+)/8  loss [0-9.]+  ETA \d+:\d\d  \d+ tokens/s", shown)
        self.assertEqual(lines[-1:], ["8"])
        self.assertIn("evaluating", shown)
        self.assertEqual(shown.count("\n"), 1)
        self.assertTrue(shown.endswith("\n"))
        code, shown = self.on_a_terminal(self.train_command("quiet", "--no-progress"))
        self.assertEqual((code, shown), (0, ""))

    def test_the_line_fits_the_terminal(self):
        for columns in (12, 40, 60):
            code, shown = self.on_a_terminal(self.train_command(f"run{columns}", name="a name of some length"), columns)
            self.assertEqual((code, shown.count("\n")), (0, 1))
            for line in shown.rstrip("\r\n").split("\r"):
                self.assertLess(len(line), columns)
            self.assertIn("step 8/8", shown)
            self.assertEqual("ETA" in shown and "loss" in shown, columns >= 40)
            self.assertEqual("a name" in shown, columns >= 60)


class Diverged(Scratch):
    def test_in_the_last_step(self):
        done = self.run_program(*self.train_command("run", steps=1, learning_rate=1e30))
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"\Amini-llama: bf16: diverged at step 1 \([^\n]*\); log and last checkpoint are "
                         r"kept in run\n\Z")
        self.assertEqual(records(self.folder / "run/log.jsonl")[-1]["status"], "diverged")
        self.assertFalse((self.folder / "run/checkpoints").exists())

    def test_last_good_checkpoint_is_kept_and_loads(self):
        """The first steps of a long warm-up are harmless; at a rate of 1e30 every later step diverges."""
        self.train("good", "--stop-at", 2, steps=30, checkpoint_every=1)
        good = tree_of(self.checkpoint("good", 2))
        state = self.checkpoint("good", 2) / "trainer_state.json"
        changed = json.loads(state.read_text())
        changed["run"]["train"]["learning_rate"] = 1e30
        state.write_text(json.dumps(changed))
        done = self.run_program("train", "--resume", "good")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(records(self.folder / "good/log.jsonl")[-1]["status"], "diverged")
        kept = sorted(p.name for p in (self.folder / "good/checkpoints").iterdir())
        self.assertEqual(kept, ["step-000000001", "step-000000002"])
        found = tree_of(self.checkpoint("good", 2))
        self.assertEqual(found["model.safetensors"], good["model.safetensors"])
        self.assertEqual(json.loads(self.succeed("eval", "--checkpoint", "good"))["step"], 2)
        self.succeed("report", "good", "--out", "report")


class Schedule(Scratch):
    def rates(self, out, **options):
        self.train(out, learning_rate=1, final_learning_rate=0.25, steps=8, **options)
        return [r["lr"] for r in records(self.folder / out / "log.jsonl", "step")]

    def test_warm_up_in_steps_and_decay_longer_than_the_run(self):
        self.assertEqual(self.rates("steps", warmup=4)[:4], [0.25, 0.5, 0.75, 1.0])
        self.assertEqual(self.rates("fraction", warmup=0.5), self.rates("same", warmup=4))
        # The first half of a decay over 16 steps; a decay that ends early and then stays.
        longer, ended = self.rates("longer", warmup=0, decay_steps=16), self.rates("ended", warmup=0, decay_steps=4)
        self.assertGreater(longer[-1], 0.625)
        self.assertEqual(ended[4:], [0.25] * 4)


class Output(Scratch):
    def test_an_existing_run_is_left_alone(self):
        self.train("run")
        self.refuse(self.train_command("run"), "run/checkpoints", "--resume", "--overwrite")
        self.train("run", "--overwrite", seed=2)
        self.train("fresh", seed=2)
        self.assert_same_checkpoint("run", "fresh")
        self.assertEqual(len(records(self.folder / "run/log.jsonl", "start")), 1)

    def test_a_run_is_not_resumed_into_another_one(self):
        self.train("run")
        self.train("other", seed=2)
        self.refuse(["train", "--resume", "run", "--out", "other"], "other/checkpoints", "another run")

    def test_a_failed_start_overwrites_nothing(self):
        self.train("run")
        self.refuse([*self.train_command("run", data="missing.txt"), "--overwrite"], "missing.txt")
        self.refuse([*self.train_command("run", steps=10**6), "--overwrite"], "too short")

    def test_unwritable(self):
        # No user can create a path below a regular file, not even root.
        self.refuse(self.train_command("text.txt/out"), "text.txt")
        self.refuse(self.train_command("text.txt"), "text.txt")
        self.train("run")
        for out in ("text.txt/report", "text.txt"):
            self.refuse(["report", "run", "--out", out], "text.txt")

    @unittest.skipUnless(Path("/dev/full").exists(), "no /dev/full")
    def test_full_disk(self):
        self.train("run", "--stop-at", 4)
        with open("/dev/full", "w") as full:
            for command in (["eval", "--checkpoint", "run"], ["sample", "--checkpoint", "run"]):
                done = self.run_program(*command, stdout=full)
                self.assertEqual((done.returncode, done.stderr), (2, "mini-llama: standard output: cannot write\n"))
        (self.folder / "full").mkdir()
        (self.folder / "full/log.jsonl").symlink_to("/dev/full")
        self.refuse([*self.train_command("full"), "--overwrite"], "full/log.jsonl", "No space left")

    def test_files_that_are_no_run_are_left_alone(self):
        self.train("run", "--stop-at", 4)
        for name in ("config.json", "checkpoints/weights", "trainer_state.json", "tensorboard"):
            with self.subTest(name):
                self.write(f"mine/{name}", "precious")
                named, start = f"mini-llama: mine/{name.split('/')[0]}: exists", name == "trainer_state.json"
                for more in ([], ["--tensorboard"], ["--auto-resume"][:not start]):
                    said = self.refuse(self.train_command("mine", *more), named, "--overwrite")
                    self.assertEqual(said.endswith(", and mine holds no run: --overwrite removes it, another --out "
                                                   "leaves it alone\n"), not start, said)
                said = self.refuse(["train", "--resume", "run", "--out", "mine"], named)
                self.assertEqual(said.endswith(", and mine holds no run: another --out leaves it alone\n"), not start,
                                 said)
                self.train("mine", "--overwrite", "--tensorboard")
                shutil.rmtree(self.folder / "mine")

    def test_files_beside_those_of_a_run_stay(self):
        for name in ("notes.txt", "checkpoints/.hidden"):
            self.write(f"mine/{name}", "precious")
        for name in ("statistics.jsonl", "log.jsonl", "config.json"):
            self.write(f"mine/{name}", "")
        self.train("mine")
        for name in ("notes.txt", "checkpoints/.hidden"):
            self.assertEqual((self.folder / "mine" / name).read_text(), "precious")


if __name__ == "__main__":
    main(__doc__)
