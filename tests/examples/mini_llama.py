#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Runs mini-llama as its users do, with a tiny model on generated text (words drawn at random: nothing is claimed about
language): exact resume, equal bytes on any number of threads, inputs and outputs, and every bad input with its exit
code, its one line on stderr and the files that it must leave alone.

usage: mini_llama.py PROGRAM [NAME...]   NAME: only the tests whose name contains one of these
"""
import fcntl
import gzip
import hashlib
import json
import math
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import unittest
from pathlib import Path

from safetensors_bytes import load

PROGRAM = ""
ROOT = Path(__file__).resolve().parents[2]
NO_GNUPLOT = shutil.which("gnuplot") is None
SHAPE = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64}
TRAIN = {"sequence": 32, "batch": 2, "eval_windows": 4, "final_eval_windows": 8, "eval_every": 4}
# In so small a model threads wait for one another, and for a core where others run tests as well.
THREADS = {"threads": 1}
MODEL_FILES = ["config.json", "generation_config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json"]
ADAPTER_FILES = ["adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json"]
WORDS = "the sea light of and stone river under north a word keeps".split()


def generated_text(words=8000, seed=1):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words)).encode()


def as_flags(options):
    return [part for key, value in options.items() for part in ("--" + key.replace("_", "-"), str(value))]


def tree_of(folder):
    """Every path below a folder with a digest of its bytes."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "directory"
            for p in sorted(Path(folder).rglob("*"))}


def records(log, event=None):
    lines = [json.loads(line) for line in Path(log).read_text().splitlines()]
    return [r for r in lines if event is None or r["event"] == event]


def main(usage, *others):
    """Runs the tests of the script that calls: its command line is PROGRAM, a path for each of `others`, which become global
    names of that script, and names of tests. What begins with -- is the script's own."""
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
    """Memory where there is enough of it, else what tempfile chooses: the runs sync every checkpoint, and hundreds of short ones
    wait for a disk five times as long as they compute. No test needs a disk: what a loss of power leaves is read from the calls."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30 else None


class Scratch(unittest.TestCase):
    """A directory of its own for each test; the program runs inside it."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="rotoscale-mini-llama-", dir=scratch_parent()))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "text.txt").write_bytes(generated_text())

    @staticmethod
    def expect_signals():
        """Whoever started the tests may ignore some, as nohup and a shell's background jobs do."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def run_program(self, *arguments, stdout=subprocess.PIPE):
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=120)

    def train_command(self, out, *more, data="text.txt", **options):
        flags = {**SHAPE, **TRAIN, **THREADS, "steps": 8, **options}
        if "--threads" in more:
            del flags["threads"]
        return ["train", "--out", out, "--data", data, *as_flags(flags), *more]

    def train(self, out, *more, **options):
        return self.succeed(*self.train_command(out, *more, **options))

    def succeed(self, *arguments):
        done = self.run_program(*arguments)
        # A report without plots is right where gnuplot is not installed.
        said = done.stderr.replace("gnuplot is not on PATH: plots skipped\n", "") if NO_GNUPLOT else done.stderr
        self.assertEqual((done.returncode, said), (0, ""))
        return done.stdout

    def replay(self, *arguments, code=0):
        """What a replay of `run` prints."""
        done = self.run_program("replay", "run", *arguments)
        self.assertEqual((done.returncode, done.stderr), (code, ""))
        return done.stdout

    def digests(self):
        """Of the run: what it has digests of, and those of its steps."""
        choice, *steps = [json.loads(line) for line in (self.folder / "run/digests.jsonl").read_text().splitlines()]
        return choice, steps

    def planned(self, *arguments):
        """What plan prints: bytes by category, and the two lines behind them."""
        *rows, checkpoints, parameters = self.succeed("plan", *arguments).splitlines()
        return {row.split()[0]: int(row.split()[1]) for row in rows}, checkpoints, parameters

    def refuse(self, arguments, *parts, code=2):
        """Exit code, one line that holds every part, and a folder whose files and bytes are as before."""
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
            except OSError:  # Linux's way of saying that the other side is closed
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
        # The two logs tell the same story, clocks left out.
        for event, keys in (("step", ("step", "loss", "lr", "grad_norm", "tokens", "recipe")),
                            ("eval", ("step", "val_loss")), ("switch", ("step", "from", "to", "reason", "scales", "val_loss_before", "val_loss_after")),
                            ("noise", ("step", "gradient_to_noise"))):
            stories = [[tuple(r[k] for k in keys) for r in records(self.folder / run / "log.jsonl", event)]
                       for run in ("whole", "parts")]
            self.assertEqual(stories[0], stories[1])
        ends = [records(self.folder / run / "log.jsonl", "end")[-1] for run in ("whole", "parts")]
        for key in ("status", "step", "tokens", "final_val_loss", "window_losses", "best_val_loss"):
            self.assertEqual(ends[0][key], ends[1][key])

    def test_bf16(self):
        self.check(4, schedule="bf16")

    def test_fp8(self):
        self.check(4, schedule="fp8_delayed")

    def test_fp8_accumulated(self):
        self.check(4, schedule="fp8_amd", accumulate=2)

    def test_stochastic_rounding_and_signs(self):
        operand = {"format": "mxfp4", "rounding": "stochastic", "rotation": {"points": 16, "signs": "step"}}
        self.write("sr.json", {"fprop": {"x": operand, "w": operand}, "dgrad": {"dy": operand, "w": operand},
                               "wgrad": {"dy": operand, "x": operand}})
        self.check(4, schedule="sr.json", accumulate=2)

    def test_dequantized_backward_beside_signs(self):
        self.write("again.json", {"base": "mxfp4_h16_step_signs", "backward_override": "dequantized"})
        self.check(4, schedule="again.json", accumulate=2)

    def test_scales_once_a_step(self):
        self.write("fp8.json", {"base": "fp8_amd", "fp8": {"update": "step"}})
        self.check(4, schedule="fp8.json", accumulate=2)

    def test_an_odd_step_without_evaluation(self):
        self.check(3, schedule="mxfp4_h16", eval_every=5)

    def check_heal(self, switch, **options):
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "fp8_delayed", "at": switch}]})
        self.check(4, schedule="heal.json", **options)

    def test_heal_before_the_stop(self):
        self.check_heal(3)

    def test_heal_at_the_stop(self):
        self.check_heal(4)

    def test_heal_behind_the_stop(self):
        self.check_heal(5)

    def test_heal_preset(self):
        self.check(4, schedule="mxfp4_h16_heal")

    def test_heal_accumulated(self):
        self.check_heal(4, accumulate=2)

    def check_trigger(self, trigger, switch, scales="reset", **options):
        """Stopped before the switch, at it and after it."""
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"},
                                            {"recipe": "fp8_amd", "trigger": trigger, "scales": scales}]})
        for stop in (switch - 1, switch, switch + 1):
            self.check(stop, schedule="heal.json", **options)
            seen = records(self.folder / "parts/log.jsonl", "switch")[-1]
            self.assertEqual((seen["step"], seen["reason"]["kind"]), (switch, trigger["kind"]))
            self.assertEqual(seen["reason"]["measurements"], trigger["patience"] + (trigger["kind"] == "plateau"))
            for run in ("whole", "parts"):
                shutil.rmtree(self.folder / run)

    def test_heal_at_a_plateau(self):
        # No loss falls by 10 nats: the first evaluation is the best, the next two show a plateau.
        self.check_trigger({"kind": "plateau", "patience": 2, "min_delta": 10}, 3, eval_every=1)

    def test_heal_by_gradient_noise(self):
        self.check_trigger({"kind": "gradient_noise", "patience": 2, "ratio": 1e9, "every": 2}, 4, scales="seed", accumulate=2)

    def test_heal_presets(self):
        for schedule in ("amd_lora", "heal_forward", "heal_backward", "heal_bf16", "heal_mxfp8", "heal_seeded",
                         "heal_repeated"):
            with self.subTest(schedule):
                self.check(5, schedule=schedule)
                for run in ("whole", "parts"):
                    shutil.rmtree(self.folder / run)

    def test_fp8_to_fp8_keeps_its_scales(self):
        """A switch to an equal recipe changes nothing, stopped at the switch or not."""
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

    def test_of_a_finished_run_changes_no_checkpoint(self):
        self.train("run")
        before = tree_of(self.folder / "run/checkpoints")
        self.succeed("train", "--resume", "run")
        self.assertEqual(tree_of(self.folder / "run/checkpoints"), before)

    def test_oldest_checkpoints_go(self):
        self.train("run", checkpoint_every=2, keep_checkpoints=2)
        self.assertEqual(sorted(p.name for p in (self.folder / "run/checkpoints").iterdir()),
                         ["step-000000006", "step-000000008"])


class Results(Scratch):
    def test_threads_change_no_bit(self):
        for schedule in ("bf16", "fp8_delayed", "mxfp4_h16_heal"):
            for threads in (1, 2, 4):
                self.train(f"{schedule}-{threads}", schedule=schedule, threads=threads, name="arm")
            for threads in (2, 4):
                self.assert_same_checkpoint(f"{schedule}-1", f"{schedule}-{threads}")

    def test_seed_and_recipe_change_bits(self):
        self.train("one")
        self.train("two", seed=2)
        self.train("three", schedule="mxfp4_h16")
        weights = {(self.checkpoint(run) / "model.safetensors").read_bytes() for run in ("one", "two", "three")}
        self.assertEqual(len(weights), 3)

    def test_gzip_and_directory_are_the_same_text(self):
        text = (self.folder / "text.txt").read_bytes()
        (self.folder / "text.gz").write_bytes(gzip.compress(text))
        (self.folder / "many").mkdir()
        cut = text.index(b" ", len(text) // 2)
        lines = [text[:cut] + b"\n", text[cut + 1:]]
        (self.folder / "many/a.txt").write_bytes(lines[0])
        (self.folder / "many/b.gz").write_bytes(gzip.compress(lines[1]))
        (self.folder / "many/.hidden").write_bytes(b"not read")
        (self.folder / "joined.txt").write_bytes(b"".join(lines))
        for out, data in (("plain", "text.txt"), ("gz", "text.gz"), ("joined", "joined.txt"), ("many", "many")):
            self.train(out, data=data)
        self.assert_same_tensors("plain", "gz")
        self.assert_same_tensors("joined", "many")
        several = [*self.train_command("several"), "--data", "many/a.txt", "many/b.gz"]
        several[several.index("--data"):several.index("--data") + 2] = []
        self.succeed(*several)
        self.assert_same_tensors("several", "many")

    def test_configuration_file_and_flags_over_it(self):
        self.write("run.json", {"name": "from file", "data": ["text.txt"], "schedule": "mxfp4", "model": SHAPE,
                                "train": {**TRAIN, "steps": 8, "seed": 3}})
        self.succeed("train", "--config", "run.json", "--out", "file")
        self.train("flags", schedule="mxfp4", seed=3, name="from file")
        self.assert_same_checkpoint("file", "flags")
        self.succeed("train", "--config", "run.json", "--out", "over", "--seed", 4, "--recipe", "bf16", "--name", "over")
        config = json.loads((self.folder / "over/config.json").read_text())
        self.assertEqual((config["train"]["seed"], config["schedule"], config["name"]), (4, "bf16", "over"))
        self.assertEqual(config["train"]["batch"], TRAIN["batch"])
        # The configuration that a run leaves behind makes the same run.
        self.succeed("train", "--config", "file/config.json", "--out", "again")
        self.assert_same_checkpoint("file", "again")

    def test_shape_from_a_hugging_face_config(self):
        self.train("flags")
        config = json.loads((self.checkpoint("flags") / "config.json").read_text())
        self.assertEqual(config["architectures"], ["LlamaForCausalLM"])
        self.assertEqual((config["model_type"], config["head_dim"]), ("llama", 32))
        self.write("hf.json", {**config, "transformers_version": "4.40.0", "use_cache": True, "bos_token_id": 1})
        self.succeed("train", "--out", "hf", "--data", "text.txt", "--model-config", "hf.json", "--steps", 8,
                     *as_flags(TRAIN))
        self.assert_same_checkpoint("flags", "hf")

    def test_recipe_file(self):
        self.train("preset", schedule="mxfp4", name="arm")
        effective = records(self.folder / "preset/log.jsonl", "start")[0]["schedule"][0]["recipe"]
        self.write("mine.json", effective)
        self.train("file", schedule="mine.json", name="arm")
        self.assert_same_tensors("preset", "file")

    def test_schedule_file_is_logged(self):
        self.write("heal.json", {"name": "late", "phases": [{"recipe": "mxfp4"}, {"recipe": "bf16", "at": 0.5}]})
        self.train("run", schedule="heal.json")
        start = records(self.folder / "run/log.jsonl", "start")[0]
        phases = [(p["from_step"], p["recipe"]["name"]) for p in start["schedule"]]
        self.assertEqual(phases, [(0, "mxfp4"), (4, "bf16")])
        steps = records(self.folder / "run/log.jsonl", "step")
        self.assertEqual([r["recipe"] for r in steps], ["mxfp4"] * 4 + ["bf16"] * 4)
        self.assertEqual(start["name"], "late")

    def test_a_switch_says_why_and_what_it_did(self):
        self.write("heal.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "fp8_amd", "at": 5}]})
        self.train("run", schedule="heal.json")
        switch, = records(self.folder / "run/log.jsonl", "switch")
        self.assertEqual((switch["step"], switch["from"], switch["to"]), (5, "mxfp4_h16", "fp8_amd"))
        self.assertEqual((switch["reason"], switch["scales"]), ({"kind": "step", "at": 5}, "reset"))
        # Both losses are of the weights behind step 5, on the same windows.
        self.train("before", "--stop-at", 5, schedule="mxfp4_h16")
        for recipe, loss in (("mxfp4_h16", "val_loss_before"), ("fp8_amd", "val_loss_after")):
            found = self.succeed("eval", "--checkpoint", self.checkpoint("before", 5), "--recipe", recipe, "--windows", 4)
            self.assertEqual(json.loads(found)["val_loss"], switch[loss])
        memory = switch["memory"]
        self.assertEqual((memory["quantized_between"], memory["streamed"]), (0, 0))  # the base trains
        self.assertEqual(memory["quantized_peak"], max(memory["quantized_before"], memory["quantized_after"]))

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
        # Measuring leaves no trace.
        self.write("plain.json", {"phases": [{"recipe": "mxfp4_h16"}, {"recipe": "bf16", "at": 7}]})
        self.train("plain", schedule="plain.json")
        self.assert_same_tensors("plain", "run")

    def test_eval_gives_the_logged_loss(self):
        for schedule in ("bf16", "fp8_delayed", "mxfp4_h16_heal", "mxfp4_h16_fixed_signs", "mxfp4_h16_step_signs",
                         "heal_forward"):
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
        # Another's model, of which no run says how long its sequences were.
        model = self.checkpoint("bf16")
        foreign = self.folder / "foreign"
        foreign.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(model / name, foreign)
        found = json.loads(self.succeed("eval", "--checkpoint", "foreign", "--data", "text.txt", "--recipe", "bf16"))
        self.assertEqual(found["sequence"], 64)
        self.assertNotEqual(other["val_loss"], records(self.folder / "bf16/log.jsonl", "eval")[-1]["val_loss"])

    def test_logits_of_every_token(self):
        """The loss that follows from them is the one that is said: of text, whose last pass is not full, and of records, whose
        prompts are masked and whose documents attend to themselves."""
        lines = [json.dumps({"prompt": "what follows %d? " % n, "answer": str(n + 1)}) for n in range(400)]
        self.write("r.jsonl", "\n".join(lines) + "\n")
        for data, more in (("text.txt", []), ("r.jsonl", ["document_starts"])):
            with self.subTest(data=data):
                self.train(data + "-run", data=data, batch=4, head_chunk=48)
                windows, sequence, vocabulary = 6, 32, SHAPE.get("vocab_size", 256)
                found = json.loads(self.succeed("eval", "--checkpoint", data + "-run", "--windows", windows, "--logits", "l.safetensors"))
                tensors = load(self.folder / "l.safetensors")
                self.assertEqual(list(tensors), ["tokens", "targets", *more, "logits"])
                self.assertEqual({name: (kind, shape) for name, (kind, shape, _) in tensors.items()},
                                 {**dict.fromkeys(["tokens", "targets", *more], ("I32", [windows, sequence])),
                                  "logits": ("F32", [windows, sequence, vocabulary])})
                tokens, targets = (struct.unpack(f"<{windows * sequence}i", tensors[name][2]) for name in ("tokens", "targets"))
                for t in range(windows * sequence - 1):
                    self.assertTrue(targets[t] in (-100, tokens[t + 1]) or t % sequence == sequence - 1)
                rows = list(struct.iter_unpack(f"<{vocabulary}f", tensors["logits"][2]))
                losses = [math.log(sum(math.exp(z - row[t]) for z in row)) for row, t in zip(rows, targets) if t != -100]
                self.assertEqual(len(losses) < len(targets), data == "r.jsonl")
                self.assertLess(abs(sum(losses) / len(losses) - found["val_loss"]), 1e-6)
        self.refuse(["eval", "--checkpoint", "text.txt-run", "--logits", "no/l.safetensors"], "no/l.safetensors")
        self.refuse(["eval", "--checkpoint", "text.txt-run", "--logits", "text.txt-run"], "text.txt-run: cannot write: is a directory")

    def test_it_learns(self):
        self.train("run", steps=60, learning_rate=0.01, batch=8, schedule="mxfp4_h16")
        losses = [r["val_loss"] for r in records(self.folder / "run/log.jsonl", "eval")]
        self.assertLess(losses[-1], 0.6 * losses[0])

    def test_a_folder_beside_checkpoints_is_none(self):
        self.train("run")
        said = [self.succeed("eval", "--checkpoint", "run"), self.succeed("sample", "--checkpoint", "run", "--tokens", 5)]
        for name in ("step-old", "step-0000000080", "step-99", "step-00000000x"):
            (self.folder / "run/checkpoints" / name).mkdir()
        self.assertEqual(said, [self.succeed("eval", "--checkpoint", "run"), self.succeed("sample", "--checkpoint", "run", "--tokens", 5)])

    def test_sample_is_reproducible(self):
        self.train("run", steps=40, learning_rate=0.01)
        command = ["sample", "--checkpoint", "run", "--tokens", 70, "--prompt", "the sea"]
        first = self.succeed(*command, "--seed", 5)
        self.assertTrue(first.startswith("the sea"))
        self.assertEqual(first, self.succeed(*command, "--seed", 5, "--threads", 1))
        self.assertNotEqual(first, self.succeed(*command, "--seed", 6))
        self.assertEqual(first, self.succeed(*command, "--seed", 5, "--no-cache"))
        for recipe in ("fp8_amd", "nvfp4"):  # nvfp4: no pass may continue
            text = self.succeed(*command, "--recipe", recipe)
            self.assertEqual(text, self.succeed(*command, "--recipe", recipe, "--no-cache"))
        greedy = self.succeed(*command, "--temperature", 0)
        self.assertEqual(greedy, self.succeed(*command, "--temperature", 1, "--top-k", 1))
        self.assertEqual(self.succeed("sample", "--checkpoint", "run", "--tokens", 0, "--prompt", "x"), "x\n")

    def test_report_reads_the_logs(self):
        for schedule in ("bf16", "mxfp4_h16_heal"):
            self.train(schedule, schedule=schedule)
        table = self.succeed("report", "bf16", "mxfp4_h16_heal/log.jsonl", "--out", "report")
        self.assertIn("mxfp4_h16_heal", table)
        summary = json.loads((self.folder / "report/summary.json").read_text())
        ends = {run: records(self.folder / run / "log.jsonl", "end")[0] for run in ("bf16", "mxfp4_h16_heal")}
        self.assertEqual({arm["name"]: arm["final_val_loss"] for arm in summary["arms"]},
                         {run: end["final_val_loss"] for run, end in ends.items()})
        self.assertIn("<html", (self.folder / "report/report.html").read_text())

    def test_report_of_a_resumed_run(self):
        self.train("parts", "--stop-at", 5, schedule="mxfp4_h16_heal")
        self.succeed("train", "--resume", "parts")
        self.train("whole", schedule="mxfp4_h16_heal")
        arms = {}
        for run in ("parts", "whole"):
            self.succeed("report", run, "--out", f"report-{run}")
            arm, = json.loads((self.folder / f"report-{run}/summary.json").read_text())["arms"]
            arms[run] = [arm[key] for key in ("name", "recipe", "final_val_loss", "best_val_loss", "tokens")]
        self.assertEqual(arms["parts"], arms["whole"])


class Warmup(Scratch):
    def test_synthetic_warmup_leaves_no_trace(self):
        """Random steps in FP8 before the run: the checkpoint's bytes are those of a run without them."""
        for schedule in ("mxfp4_h16", "fp8_delayed", "nvfp4"):
            self.train(f"plain-{schedule}", schedule=schedule, accumulate=2)
            self.train(f"warm-{schedule}", "--synthetic-warmup", 3, schedule=schedule, accumulate=2)
            self.assert_same_checkpoint(f"plain-{schedule}", f"warm-{schedule}")
            event, = records(self.folder / f"warm-{schedule}/log.jsonl", "warm_up")
            self.assertEqual((event["steps"], event["recipe"]), (3, "fp8_amd"))
        self.train("mxfp4", "--synthetic-warmup", 2, "--synthetic-recipe", "mxfp4_h16_sr", schedule="mxfp4_h16", accumulate=2)
        self.assert_same_tensors("plain-mxfp4_h16", "mxfp4")

    def test_the_pretraining_configuration(self):
        """AMD's hyper-parameters; the learning rate of a step does not depend on how long the run is."""
        file = ROOT / "examples/llama/configs/amd_llama31_8b.json"
        tiny = {**SHAPE, "accumulate": 2, "sequence": 32, "eval_windows": 1, "final_eval_windows": 1}
        rates = []
        for steps, config in ((5, "amd_llama31_8b"), (70, file)):  # by its name, and as the file that has the name
            self.succeed("train", "--config", config, "--data", "text.txt", "--out", f"run-{steps}", "--synthetic-warmup", 20,
                         "--synthetic-recipe", "fp8_delayed", "--steps", steps, "--max-epochs", 9, *as_flags(tiny))
            log = self.folder / f"run-{steps}/log.jsonl"
            rates.append([r["lr"] for r in records(log, "step")])
            self.assertEqual(records(log, "warm_up")[0]["steps"], 20)
        self.assertEqual(rates[0], rates[1][:5])
        self.assertEqual(rates[1][0], 8e-4 / 64)
        self.assertEqual(max(rates[1]), 8e-4)
        self.assertGreater(rates[1][-1], 0.999999 * 8e-4)  # the end of the cosine is 1.2 million steps away

    def test_what_a_synthetic_warmup_refuses(self):
        for more in ((), ("--synthetic-warmup", 0)):
            self.refuse(self.train_command("out", "--synthetic-recipe", "mxfp4", *more), "--synthetic-recipe: needs --synthetic-warmup")
        self.refuse(self.train_command("out", "--synthetic-warmup", -1), "--synthetic-warmup")
        self.refuse(self.train_command("out", "--synthetic-warmup", 1, "--synthetic-recipe", "fp8_amx"), "fp8_amx", "did you mean 'fp8_amd'?")
        self.refuse(self.train_command("out", "--synthetic-warmup", 1, "--synthetic-recipe", "mxfp4", batch=1, sequence=31),
                    "--synthetic-recipe: recipe mxfp4: --batch * --sequence: 31")
        self.train("run", "--stop-at", 2)
        self.refuse(["train", "--resume", "run", "--synthetic-warmup", 1], "--synthetic-warmup")


def documented_events():
    """Keys by event, in order, and those that may be absent: the table of docs/reference/logs.md."""
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
        self.train("run", "--stop-at", 4, "--synthetic-warmup", 1, schedule="heal.json", accumulate=2)
        self.succeed("train", "--resume", "run")
        unstable = {"steps": 40, "checkpoint_every": 3, "learning_rate": 0.2, "warmup": 0.5, "batch": 1, "max_loss_jump": 0.1}
        done = self.run_program(*self.train_command("unstable", on_divergence="rollback", max_rollbacks=1, **unstable))
        self.assertIn(done.returncode, (0, 3), done.stderr)
        seen = records(self.folder / "run/log.jsonl") + records(self.folder / "unstable/log.jsonl")
        for record in seen:
            wanted = [key for key in keys[record["event"]] if key in record or key not in optional]
            self.assertEqual(list(record), wanted)
        self.assertEqual({r["event"] for r in seen}, set(keys))
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

    def test_evaluation_and_tokenizing_get_one_too(self):
        self.train("run")
        commands = [(["eval", "--checkpoint", "run"], "evaluating"),
                    (["tokenizer", "encode", "--data", "text.txt", "--out", "t.bin"], "encoding")]
        model = ["tokenizer", "train", "--data", "text.txt", "--vocab-size", 300, "--out", "t.model"]
        if "built without SentencePiece" not in self.run_program(*model).stderr:
            commands.append((model, "reading text for pieces"))
        for command, what in commands:
            self.assertEqual(self.run_program(*command).stderr, "")
            code, shown = self.on_a_terminal(command)
            self.assertEqual((code, shown.count("\n")), (0, 1))
            self.assertRegex(shown, rf"\r[^\r\n]*{what} \d+ %")
            if command == model:
                self.assertRegex(shown, r"%[^\n]*\r[^\r\n]*training pieces")
                self.write_bytes_without_lines("long.txt")
                code, shown = self.on_a_terminal(["tokenizer", "encode", "--tokenizer", "t.model", "--data", "long.txt", "--out", "l.bin"])
                self.assertEqual((code, shown.count("\n")), (0, 1))
                self.assertRegex(shown, r"encoding [1-9]\d* %")
                code, shown = self.on_a_terminal(self.train_command("pieces", "--tokenizer", "t.model", vocab_size=300))
                self.assertEqual((code, shown.count("\n")), (0, 1))
                self.assertRegex(shown, r"\A\rbf16  tokenizing 0 %")

    def test_weights_that_are_read_get_one(self):
        self.train("run")
        code, shown = self.on_a_terminal(self.train_command("on", "--init", "run"))
        self.assertEqual((code, shown.count("\n")), (0, 1))
        self.assertRegex(shown, r"\A\rbf16  reading weights 0 %[^\n]*reading weights 100 %[^\n]*step 8/8")
        code, shown = self.on_a_terminal(["eval", "--checkpoint", "run"])
        self.assertEqual((code, shown.count("\n")), (0, 1))
        self.assertRegex(shown, r"\A\rrun  reading weights 0 %[^\n]*reading weights 100 %[^\n]*evaluating 0 %")
        code, shown = self.on_a_terminal(["sample", "--checkpoint", "run", "--tokens", 4])
        self.assertEqual((code, shown.count("\n")), (0, 1))
        self.assertRegex(shown, r"reading weights 100 %[^\n]*\n\Z")

    def write_bytes_without_lines(self, name):
        """Of five MiB: more than two parts of what is encoded at once."""
        (self.folder / name).write_bytes((generated_text() + b" ") * (5 * 2**20 // len(generated_text())))

    def test_the_line_fits_the_terminal(self):
        for columns in (12, 24, 40, 60):
            code, shown = self.on_a_terminal(self.train_command(f"run{columns}", name="a name of some length"), columns)
            self.assertEqual((code, shown.count("\n")), (0, 1))
            for line in shown.rstrip("\r\n").split("\r"):
                self.assertLess(len(line), columns)
            self.assertIn("step 8/8", shown)
            self.assertEqual("ETA" in shown and "loss" in shown, columns >= 40)
            self.assertEqual("a name" in shown, columns >= 60)

    def test_terminal_line_ends_before_a_message(self):
        code, shown = self.on_a_terminal(self.train_command("run", "--stop-at", 4))
        self.assertEqual((code, shown.count("\n"), shown[-1]), (0, 1, "\n"))
        code, shown = self.on_a_terminal(self.train_command("wild", learning_rate=1e30))
        self.assertEqual((code, shown.count("\n")), (3, 2))
        self.assertRegex(shown, r"\nmini-llama: bf16: diverged at step \d+ [^\r\n]*\r\n\Z")


class Diverged(Scratch):
    def check(self, kept, **options):
        done = self.run_program(*self.train_command("run", steps=30, **options))
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"\Amini-llama: bf16: diverged at step \d+ \([^\n]*\); log and last checkpoint are "
                                      r"kept in run\n\Z")
        end = records(self.folder / "run/log.jsonl")[-1]
        self.assertEqual((end["event"], end["status"]), ("end", "diverged"))
        checkpoints = self.folder / "run/checkpoints"
        self.assertEqual(sorted(p.name for p in checkpoints.iterdir()) if checkpoints.exists() else [], kept)

    def test_at_once(self):
        self.check([], learning_rate=1e30)

    def test_a_folder_whose_name_has_two_lines(self):
        done = self.run_program(*self.train_command("two\nlines", steps=30, learning_rate=1e30))
        self.assertEqual((done.returncode, done.stderr.count("\n")), (3, 1), done.stderr)
        self.assertTrue(done.stderr.endswith("kept in two\\x0alines\n"), done.stderr)

    def test_checkpoints_of_overflown_weights_are_not_written(self):
        for rate in (1e10, 1e20, 1e30):
            self.check([], learning_rate=rate, checkpoint_every=1, eval_every=30)
            shutil.rmtree(self.folder / "run")

    def test_in_the_last_step(self):
        done = self.run_program(*self.train_command("run", steps=1, learning_rate=1e30))
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertEqual(records(self.folder / "run/log.jsonl")[-1]["status"], "diverged")
        self.assertFalse((self.folder / "run/checkpoints").exists())

    def test_last_good_checkpoint_is_kept_and_loads(self):
        """The first steps of a long warm-up are harmless; a rate of 1e30 leaves no later one."""
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


class BadArguments(Scratch):
    def test_unknown_names(self):
        command = self.train_command("out")
        self.refuse([*command, "--learning-rte", 1], "--learning-rte", "did you mean '--learning-rate'?")
        self.refuse(["trian"], "trian", "did you mean 'train'?")
        self.refuse(["eval", "--checkpont", "x"], "checkpoint")
        self.refuse([], "subcommand")
        for recipe in ("--recipe", "--schedule"):
            self.refuse([*command, recipe, "mxfp4_h61"], "mxfp4_h61", "did you mean 'mxfp4_h16'?")
            self.refuse([*command, recipe, "mxfp4_h16_hael"], "mxfp4_h16_hael", "did you mean 'mxfp4_h16_heal'?")

    def test_missing_out_and_data(self):
        command = self.train_command("out")
        self.refuse(command[:1] + command[3:], "--out", "is required")
        self.refuse(command[:3] + command[5:], "--data", "no text given")

    def test_negative_wrong_and_unheard_of_numbers(self):
        for flag, value in (("--steps", "-5"), ("--steps", "0"), ("--steps", "ten"), ("--steps", "1.5"),
                            ("--batch", "-1"),
                            ("--batch", "99999999999"), ("--batch", ""), ("--sequence", "0"), ("--accumulate", "0"),
                            ("--learning-rate", "-1"), ("--learning-rate", "nan"), ("--learning-rate", "inf"),
                            ("--learning-rate", "fast"), ("--warmup", "1.5"), ("--clip", "nan"), ("--beta1", "1"),
                            ("--epsilon", "-1e-8"), ("--validation", "0"), ("--validation", "nan"), ("--seed", "-1"),
                            ("--max-epochs", "0"), ("--eval-every", "0"), ("--keep-checkpoints", "0"),
                            ("--weight-decay", "inf"), ("--hidden-size", "-32"), ("--hidden-size", "0"),
                            ("--num-attention-heads", "0"), ("--num-key-value-heads", "3"), ("--head-dim", "-2"),
                            ("--head-dim", "3"), ("--vocab-size", "100"), ("--rms-norm-eps", "nan"),
                            ("--rms-norm-eps", "inf"), ("--rope-theta", "0"), ("--rope-theta", "inf"),
                            ("--initializer-range", "-1"), ("--stop-at", "-4"), ("--stop-at", "0"), ("--threads", "-1"),
                            ("--threads", "1000000")):
            with self.subTest(flag=flag, value=value):
                self.refuse([*self.train_command("out"), flag, value], flag[2:].replace("-", "_").split("_")[-1])

    def test_flags_where_flags_were_given(self):
        """And keys where a file was."""
        said = self.refuse(self.train_command("out", num_key_value_heads=3), "--num-key-value-heads: 3 does not divide --num-attention-heads")
        self.assertNotIn("_", said)
        self.refuse(self.train_command("out", learning_rate=-1), "--learning-rate: -1 is not between 0 and 1e+30\n")
        self.write("c.json", {"model": {"num_key_value_heads": 3}})
        self.refuse(["train", "--out", "out", "--data", "text.txt", "--config", "c.json"],
                    "c.json: model.num_key_value_heads: 3 does not divide num_attention_heads")

    def test_sequence_beyond_the_model(self):
        self.refuse(self.train_command("out", sequence=96), "--sequence: 96")

    def test_dimension_that_is_no_multiple_of_32(self):
        for key, value in (("hidden_size", 48), ("intermediate_size", 80), ("head_dim", 24)):
            self.refuse(self.train_command("out", schedule="mxfp4", **{key: value}), "mxfp4", "--" + key.replace("_", "-"), "multiple of 32")
        self.refuse(self.train_command("out", schedule="mxfp4_h16_heal", batch=1, sequence=31), "--batch * --sequence: 31")
        self.train("bf16", hidden_size=48, intermediate_size=80, head_dim=24)
        self.refuse(["eval", "--checkpoint", "bf16", "--recipe", "mxfp4"], "config.json", "hidden_size: 48")
        self.refuse(["sample", "--checkpoint", "bf16", "--recipe", "mxfp4"], "config.json", "hidden_size: 48")

    def test_eval_and_sample_arguments(self):
        self.train("run")
        for command in (["eval", "--windows", "-1"], ["eval", "--threads", "-2"], ["eval", "--recipe", "fp9"],
                        ["sample", "--tokens", "-1"], ["sample", "--temperature", "-1"], ["sample", "--temperature", "nan"],
                        ["sample", "--top-k", "33554432"], ["sample", "--seed", "x"]):
            self.refuse([command[0], "--checkpoint", "run", *command[1:]], command[1].strip("-").split("-")[0])
        self.refuse(["eval"], "--checkpoint")
        self.refuse(["eval", "--checkpoint", "nowhere"], "nowhere")
        self.refuse(["report", "nowhere", "--out", "report"], "nowhere")


class BadFiles(Scratch):
    def test_configuration(self):
        base = {"data": ["text.txt"], "model": SHAPE, "train": {**TRAIN, "steps": 8}}

        def bad(changes, *parts):
            config = json.loads(json.dumps(base))
            for path, value in changes.items():
                at = config
                *parents, key = path.split(".")
                for parent in parents:
                    at = at[parent]
                at[key] = value
            self.write("bad.json", config)
            self.refuse(["train", "--config", "bad.json", "--out", "out"], "bad.json", *parts)

        bad({"train.learning_rat": 1}, "train.learning_rat", "did you mean 'learning_rate'?")
        bad({"modle": {}}, "modle", "did you mean 'model'?")
        bad({"model.hiden_size": 32}, "model.hiden_size", "did you mean 'hidden_size'?")
        bad({"train.steps": "8"}, "train.steps", "expected an integer, found a string")
        bad({"train.steps": 1.5}, "train.steps", "expected an integer")
        bad({"train.steps": -8}, "train.steps")
        bad({"train.steps": None}, "train.steps", "found null")
        bad({"train.seed": -1}, "train.seed", "out of range")
        bad({"train.batch": 5000000000}, "train.batch", "out of range")
        bad({"train.clip": True}, "train.clip", "expected a number")
        bad({"model.tie_word_embeddings": 1}, "model.tie_word_embeddings", "expected true or false")
        bad({"model.rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type", "yarn")
        bad({"model.rope_scaling": {"factor": 0}}, "rope_scaling.factor")
        bad({"data": "text.txt"}, "data", "expected an array")
        bad({"train": []}, "train", "expected an object")
        for text, part in (('{"train": {"learning_rate": NaN}}', "line 1"), ('{"train": {"steps": 8', "line 1"), ("", "line 1"),
                           ('{"train": {"steps": 8, "steps": 9}}', "given twice"), ("[]", "expected an object")):
            self.write("bad.json", text)
            self.refuse(["train", "--config", "bad.json", "--out", "out"], "bad.json", part)
        self.refuse(["train", "--config", "missing.json", "--out", "out"], "missing.json")

    def test_model_configuration_of_another_architecture(self):
        for changes, part in (({"model_type": "mistral"}, "model_type"), ({"hidden_act": "gelu"}, "hidden_act"),
                              ({"attention_bias": True}, "attention_bias"), ({"sliding_window": 4}, "sliding_window")):
            self.write("hf.json", {**SHAPE, **changes})
            self.refuse(["train", "--out", "out", "--data", "text.txt", "--model-config", "hf.json"], "hf.json", part)

    def test_steps_beyond_any_text(self):
        self.refuse(self.train_command("out", batch=999968, accumulate=256, steps=999999999), "--steps",
                    "8191737")

    def test_text(self):
        (self.folder / "empty.txt").write_bytes(b"")
        (self.folder / "short.txt").write_bytes(b"x" * 40)
        (self.folder / "little.txt").write_bytes(generated_text(400))
        packed = gzip.compress(generated_text())
        (self.folder / "cut.gz").write_bytes(packed[:len(packed) // 2])
        (self.folder / "bent.gz").write_bytes(packed[:60] + bytes([packed[60] ^ 0xFF]) + packed[61:])
        (self.folder / "sum.gz").write_bytes(packed[:-8] + b"\0" * 8)
        (self.folder / "hollow").mkdir()
        for name, part in (("missing.txt", "No such file"), ("empty.txt", "empty"), ("short.txt", "too short"),
                           ("cut.gz", "truncated gzip file"), ("bent.gz", "corrupt gzip file"), ("sum.gz", "corrupt gzip file"),
                           ("hollow", "no text"), ("text.txt/below", "text.txt/below")):
            self.refuse(self.train_command("out", data=name), name, part)
        self.refuse(self.train_command("out", data="little.txt", steps=1000), "little.txt", "too short", "1000 steps",
                    "--max-epochs")
        self.succeed(*self.train_command("out", data="little.txt", steps=100, max_epochs=20, validation=0.2))

    def test_recipe_and_schedule_files(self):
        h16 = {"format": "mxfp4", "rotation": {"points": 16}}
        bf16 = {"format": "bf16", "rotation": {"points": 16}}
        for content, *parts in (
                ({"fprop": {"x": h16, "w": {"format": "mxfp4"}}}, "fprop", "same rotation"),
                ({"fprop": {"x": bf16, "w": bf16}}, "fprop.x.rotation", "needs a format with blocks"),
                ({"base": "mxfp4", "fprop": {"x": {"block": {"length": 48}}}}, "fprop.x.block.length", "16 or 32"),
                ({"base": "mxfp4", "fprop": {"x": {"block": {"scale": "ue4m3"}}}}, "fprop.x.block.scale", "e8m0"),
                ({"base": "nvfp4", "wgrad": {"x": {"policy": "te_rocm"}}}, "wgrad.x.policy", "te_rocm"),
                ({"base": "mxfp8", "backward_override": "high_precison"}, "backward_override", "did you mean 'high_precision'?"),
                ({"base": "mxfp4_h16", "dgrad": {"accumulate": "hopper-sparse-fp16-f32"}}, "dgrad.accumulate", "pruned A", "would do"),
                ({"base": "mxfp4_h16", "fprop": {"accumulate": "fp64-fma-chain"}}, "fprop.accumulate", "FP64 only", "'exact'"),
                ({"wgrad": {"accumulate": "hopper-wgmma-fp8-f32"}}, "wgrad.accumulate", "does not take wgrad.dy (bf16)",
                 "hopper-wgmma-fp16-f32"),
                ({"fp8": {"update": "steps"}}, "fp8.update", "did you mean 'step'?"),
                ({"base": "mxfp4_h61"}, "base", "did you mean 'mxfp4_h16'?"),
                ({"head": {"fprop": {"x": {"format": "mxfp4"}}, "dgrad": {"accumulate": "fp32_blockwise"}}}, "head.dgrad.accumulate"),
                ({"dgrad": {"accumulate": "fp32_blockwise"}}, "dgrad", "fp32_blockwise"),
                ({"wgrad": {"output": "mxfp4"}}, "wgrad", "output"),
                ({"wgrad": {"w": {}}}, "wgrad.w", "did you mean"),
                ({"fprop": {"x": {"format": "mxfp5"}}}, "fprop.x.format", "did you mean 'mxfp4'?"),
                ({"fp8": {"history_length": 0}}, "fp8.history_length"),
                ({"fp8": {"history_length": -3}}, "fp8.history_length"),
                ({"bf16_first_layers": -1}, "bf16_first_layers"),
                ({"bf16_first_layer": 1}, "did you mean 'bf16_first_layers'?")):
            self.write("recipe.json", content)
            self.write("arm.json", {"phases": [{"recipe": "recipe.json"}]})
            self.refuse(self.train_command("out", schedule="arm.json"), "recipe.json", *parts)
            self.refuse(self.train_command("out", schedule="recipe.json"), "recipe.json", *parts)
        self.write("recipe.json", {"activations": "bf16"})
        for content, *parts in (({"phases": []}, "phases", "empty"),
                                ({"phases": [{"recipe": "bf16", "at": 2}]}, "phases[0].at", "start at 0"),
                                ({"phases": [{"recipe": "bf16"}, {"recipe": "mxfp4", "at": -1}]}, "phases[1].at", "negative"),
                                ({"phases": [{"recipe": "bf16"}, {"recipe": "mxfp4", "at": 0.01}]}, "phases[1].at", "after"),
                                ({"phases": [{"recipe": "bf16"}, {"recipe": "mxfp4", "at": 9}]}, "phases[1].at", "before the end"),
                                ({"phases": [{"recipe": "bf16"}, {"recipe": "mxfp4", "at": 8}]}, "phases[1].at", "before the end"),
                                ({"phases": [{"recipe": "mxfp4"}, {"recipe": "bf16", "trigger": {"patience": 2}}]},
                                 "arm.json: phases[1].trigger.patience", "never fires"),
                                ({"phases": [{"recipe": "mxfp4"}, {"recipe": "bf16", "trigger": {"kind": "never"}}]},
                                 "phases[1].trigger.kind", "did you mean"),
                                ({"phases": [{"recipe": "bf16"}, {"recipe": "fp32", "trigger": {"kind": "gradient_noise", "every": 1}}]},
                                 "phases[1].trigger.kind", "no quantization noise"),
                                ({"phases": [{"recipe": "mxfp4", "cap": 3}, {"recipe": "bf16", "at": 4}]}, "phases[0].cap"),
                                ({"phases": [{"recipe": "nvfp5"}]}, "arm.json: phases[0].recipe: 'nvfp5'", "did you mean 'nvfp4'?"),
                                ({"phases": [{"recipe": "mxfp4"}, {"recipe": "recipe.json", "at": 4, "gemms": "forward"}]},
                                 "arm.json: phases[1].gemms: recipe recipe has another activations"),
                                ({"phases": [{"recipes": "bf16"}]}, "phases[0].recipes", "did you mean 'recipe'?")):
            self.write("arm.json", content)
            self.refuse(self.train_command("out", schedule="arm.json"), *parts)
        # A later phase is looked at before the first step.
        self.write("recipe.json", {"bf16_first_layer": 1})
        for later, shape, *parts in (("mxfp4", {"hidden_size": 48}, "arm.json: phases[1].recipe: recipe mxfp4: --hidden-size: 48", "fprop.x"),
                                     ("recipe.json", {}, "recipe.json", "did you mean")):
            self.write("arm.json", {"phases": [{"recipe": "bf16"}, {"recipe": later, "at": 4}]})
            self.refuse(self.train_command("out", schedule="arm.json", **shape), *parts)
        self.refuse(self.train_command("out", schedule="heal_gradient_noise"), "heal_gradient_noise: phases[1].trigger", "never fires")
        self.refuse(self.train_command("out", schedule="heal_plateau"), "heal_plateau: phases[1].trigger.patience", "never fires")

    def test_triggers_by_the_evaluations_that_there_are(self):
        """By sequences, as MLPerf's rules have them: eval_every says nothing then."""
        self.write("heal.json", {"phases": [{"recipe": "mxfp4"}, {"recipe": "bf16", "trigger": {"patience": 1, "min_delta": 10}}]})
        self.train("run", schedule="heal.json", eval_every=1000, eval_every_samples=6)  # two a step: behind 3 and 6
        self.assertEqual([r["step"] for r in records(self.folder / "run/log.jsonl", "switch")], [6])
        self.refuse(self.train_command("out", schedule="heal.json", eval_every=1, eval_every_samples=8),
                    "heal.json: phases[1].trigger.patience: never fires", "8 sequences (2 a step)", "end at step 8")
        lora = {"mlperf": "llama2_70b_lora", "eval_every_samples": 2, "eval_windows": 4, "final_eval_windows": 4}
        self.train("left-out", schedule="heal.json", **lora)  # the first two are left out
        self.assertEqual([r["step"] for r in records(self.folder / "left-out/log.jsonl", "switch")], [4])
        self.refuse(self.train_command("out", schedule="heal.json", **{**lora, "steps": 4}), "the first 2 times left out")

    def test_names_are_refused_by_their_flag_or_field(self):
        self.refuse(self.train_command("out", schedule="nop"), "mini-llama: --schedule: 'nop' is neither")
        self.refuse(self.train_command("out", recipe="nop"), "mini-llama: --recipe: 'nop' is neither")
        self.write("c.json", {"schedule": "nop"})
        self.refuse(self.train_command("out", config="c.json"), "mini-llama: c.json: schedule: 'nop' is neither")

    def test_numbers_that_no_64_bits_hold(self):
        for flag, value in (("steps", 10**20), ("steps", 2**63), ("steps", -10**20), ("seed", 2**64), ("memory-limit", 10**20),
                            ("memory-limit", "99999999999GiB"), ("stop-at", 10**20), ("eval-every", 10**20), ("threads", 10**20)):
            self.refuse([*self.train_command("out"), f"--{flag}={value}"], f"--{flag}")
        self.refuse([*self.train_command("out"), f"--batch={10**11}"], "--batch")
        self.refuse([*self.train_command("out"), "--memory-limit=-1"], "--memory-limit", "negative")
        self.succeed(*self.train_command("out", seed=2**64 - 1, steps=1))
        self.refuse(["sample", "--checkpoint", "out", "--seed", 2**64], "--seed", "out of range")

    def test_triggers_without_noise(self):
        trigger = {"kind": "gradient_noise", "patience": 1, "every": 1}
        self.write("ends.json", {"base": "mxfp4", "bf16_last_layers": 1})
        self.write("wgrad.json", {"wgrad": {"dy": {"format": "mxfp8_e4m3"}}})
        self.write("dgrad.json", {"dgrad": {"dy": {"format": "mxfp8_e4m3"}}})
        self.write("head.json", {"head": {"fprop": {"x": {"format": "mxfp8_e4m3"}}}})
        self.train("base", schedule="bf16")
        for recipe, refused, more in (("ends.json", True, ()), ("wgrad.json", False, ()), ("head.json", False, ()),
                                      ("wgrad.json", True, ("--init", "base", "--lora-rank", 2)),
                                      ("dgrad.json", True, ("--init", "base", "--lora-targets", "down_proj")),
                                      ("dgrad.json", False, ("--init", "base", "--lora-targets", "down_proj,up_proj"))):
            self.write("heal.json", {"phases": [{"recipe": recipe}, {"recipe": "bf16", "trigger": {**trigger, "ratio": 1e9}}]})
            command = self.train_command("out", "--overwrite", *more, schedule="heal.json")
            if refused:
                self.refuse(command, "heal.json: phases[1].trigger.kind: never fires", "quantiz")
            else:
                self.succeed(*command)
                self.assertEqual([r["step"] for r in records(self.folder / "out/log.jsonl", "switch")], [1])


class BadCheckpoints(Scratch):
    def damaged(self, name, content):
        """A copy of the run whose checkpoint has one file of other bytes (None: without it)."""
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        shutil.copytree(self.folder / "run", self.folder / "copy")
        path = self.checkpoint("copy", 4) / name
        path.unlink() if content is None else path.write_bytes(content)

    def test_truncated(self):
        self.train("run", "--stop-at", 4)
        for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"):
            whole = (self.checkpoint("run", 4) / name).read_bytes()
            for size in (0, 7, 8, len(whole) // 2, len(whole) - 2):
                self.damaged(name, whole[:size])
                self.refuse(["train", "--resume", "copy"], name)
                if name != "optimizer.safetensors":
                    self.refuse(["eval", "--checkpoint", "copy"], name)
                    self.refuse(["sample", "--checkpoint", "copy"], name)
            if name != "config.json":
                self.damaged(name, whole + b"x")
                self.refuse(["train", "--resume", "copy"], name)

    def test_missing_files(self):
        self.train("run", "--stop-at", 4)
        for name in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
            self.damaged(name, None)
            self.refuse(["train", "--resume", "copy"], name)
        self.refuse(["train", "--resume", "nowhere"], "nowhere")
        for command in (["train", "--resume", "text.txt"], ["replay", "text.txt", "--steps", "0:1"], ["eval", "--checkpoint", "text.txt"]):
            self.refuse(command, "text.txt: not a directory, as checkpoints and runs are")
        self.write("hollow/keep", "")
        self.refuse(["train", "--resume", "hollow"], "hollow", "checkpoints")

    def safetensors(self, path):
        data = path.read_bytes()
        length, = struct.unpack("<Q", data[:8])
        return json.loads(data[8:8 + length]), data[8 + length:]

    def pack(self, header, data):
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    def test_foreign(self):
        self.train("run", "--stop-at", 4)
        for content in (b"GGUF\3\0\0\0" + bytes(100), b"PK\3\4" + bytes(100), generated_text(50)):
            self.damaged("model.safetensors", content)
            self.refuse(["train", "--resume", "copy"], "model.safetensors")
        header, data = self.safetensors(self.checkpoint("run", 4) / "model.safetensors")
        norm = "model.norm.weight"
        for change, part in (({**header[norm], "dtype": "I32"}, "expected F32, BF16 or F16, found I32"),
                             ({**header[norm], "shape": [4, 8]}, "shape")):
            self.damaged("model.safetensors", self.pack({**header, norm: change}, data))
            self.refuse(["train", "--resume", "copy"], "model.safetensors", norm, part)
            self.refuse(["eval", "--checkpoint", "copy"], "model.safetensors", norm, part)
        renamed = {("transformer.norm.weight" if key == norm else key): value for key, value in header.items()}
        self.damaged("model.safetensors", self.pack(renamed, data))
        self.refuse(["train", "--resume", "copy"], "model.safetensors", "transformer.norm.weight", "no such parameter")

    def test_state_that_no_run_leaves(self):
        self.train("run", "--stop-at", 4)
        state = json.loads((self.checkpoint("run", 4) / "trainer_state.json").read_text())

        def bad(change, *parts):
            changed = json.loads(json.dumps(state))
            change(changed)
            self.damaged("trainer_state.json", json.dumps(changed).encode())
            self.refuse(["train", "--resume", "copy"], "trainer_state.json", *parts)

        bad(lambda s: s.update(step=99), "not the state")
        bad(lambda s: s.update(phases=[]), "not the state")
        bad(lambda s: s["run"]["train"].update(batch=0), "train.batch")
        bad(lambda s: s["phases"][0].update(from_step=3), "phases[0]")
        bad(lambda s: s["phases"][0]["recipe"]["fp8"].update(history_length=0), "phases[0]", "history_length")
        bad(lambda s: s.update(stepp=4), "stepp", "did you mean 'step'?")
        bad(lambda s: s.update(phase=1), "phase")
        bad(lambda s: s.update(phase_start=5), "phase_start")
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
        for flag, value in (("--steps", 16), ("--learning-rate", 0.1), ("--recipe", "mxfp4"), ("--schedule", "mxfp4"),
                            ("--seed", 2), ("--accumulate", 2), ("--hidden-size", 64), ("--config", "x.json"),
                            ("--model-config", "x.json")):
            self.write("x.json", SHAPE if flag == "--model-config" else {})
            self.refuse(["train", "--resume", "run", flag, value], flag, "cannot be changed")
            self.refuse(["train", "--resume", "run", f"{flag}={value}"], flag, "cannot be changed")
        self.refuse(["train", "--resume", "run", "--overwrite"], "--overwrite", "cannot be changed")
        self.refuse(["train", "--resume", "run", "--tie-word-embeddings"], "--tie-word-embeddings", "cannot be changed")

    def test_checkpoint_of_another_vocabulary(self):
        self.train("run", "--stop-at", 4)
        config = json.loads((self.checkpoint("run", 4) / "config.json").read_text())
        (self.checkpoint("run", 4) / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
        self.refuse(["eval", "--checkpoint", "run"], "config.json: vocab_size is not that of trainer_state.json")
        (self.checkpoint("run", 4) / "trainer_state.json").unlink()  # as another's model
        self.refuse(["eval", "--checkpoint", "run", "--data", "text.txt"], "text.txt", "--vocab-size")


class Memory(Scratch):
    def plan(self, *more, **options):
        plan, checkpoints, _ = self.planned(*as_flags({**SHAPE, **TRAIN, **THREADS, "steps": 8, **options}), *more)
        self.assertEqual(checkpoints.split()[:2], ["checkpoints", "asynchronous:" if plan["snapshot"] else "synchronous:"])
        return plan

    def test_the_plan_is_what_a_run_takes(self):
        for schedule in ("fp32", "bf16", "mxfp4_h16_heal"):
            plan = self.plan(schedule=schedule)
            self.assertEqual(list(plan), ["weights", "masters", "gradients", "moments", "quantized", "adapters", "stash",
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
        """Their parameters, as published where a model is. A plan allocates nothing (session_memory_test)."""
        own_head = {"llama_124m": 162220800, "llama_1b": 1498482688}  # as the training benchmark has them
        for name, count in (("llama_124m", 123587328), ("llama_1b", 1235814400), ("llama_3b", 3212749824), ("llama_8b", 8030261248)):
            file = json.loads((ROOT / f"examples/llama/configs/{name}.json").read_text(encoding="utf-8"))
            self.assertEqual(file["name"], name)
            for more, wanted in (((), count), (("--no-tie-word-embeddings",), own_head.get(name))):
                if wanted is None:
                    continue
                plan, _, parameters = self.planned("--config", name, "--recipe", "bf16", "--threads", 1, *more)
                self.assertEqual(parameters, f"parameters   {wanted}, {wanted} of them train")
                self.assertGreater(plan["total"], 18 * wanted)  # master, gradient, two moments, a BF16 operand
            self.succeed("plan", "--config", name, "--recipe", "mxfp4_h16", "--threads", 1)
        # Another vocabulary, another context: whatever a flag says.
        *_, parameters = self.planned("--config", "llama_124m", "--vocab-size", 256, "--threads", 1)
        self.assertEqual(parameters, f"parameters   {84953856 + 256 * 768}, {84953856 + 256 * 768} of them train")
        self.refuse(["plan", "--config", "llama_7b"], "llama_7b", "did you mean 'llama_")

    def test_the_time_of_a_plan_does_not_grow_with_tokens(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        self.succeed("plan", "--data", "text.txt", "--batch", 1000000, "--steps", 2)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 5)  # a minute, if each token is met

    def test_the_plan_covers_a_synthetic_warm_up(self):
        plain = self.plan(schedule="mxfp4_h16")
        for recipe in ("bf16", "fp32"):
            flags = ["--synthetic-warmup", 2, "--synthetic-recipe", recipe]
            plan = self.plan(*flags, schedule="mxfp4_h16")
            self.assertGreater(plan["total"], plain["total"])
            self.train(recipe, *flags, schedule="mxfp4_h16")
            memory = records(self.folder / recipe / "log.jsonl", "start")[0]["memory"]
            self.assertEqual({name: entry["peak"] for name, entry in memory.items()}, plan)
        self.refuse(["plan", *as_flags({**SHAPE, **TRAIN}), "--synthetic-recipe", "bf16"], "--synthetic-recipe", "--synthetic-warmup")
        self.refuse(["plan", *as_flags({**SHAPE, **TRAIN}), "--synthetic-warmup", 1, "--synthetic-recipe", "nothing"], "--synthetic-recipe", "nothing")

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

    def test_a_plan_that_does_not_fit_says_so(self):
        total = self.plan(schedule="bf16")["total"]
        command = ["plan", *as_flags({**SHAPE, **TRAIN}), "--recipe", "bf16", "--memory-limit"]
        needed = int(re.search(r"^total +(\d+)", self.succeed(*command, total * 4, "--async-checkpoints", "off"), re.M)[1])
        done = self.run_program(*command, "1KiB")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, rf"(?m)^total +{needed} bytes")
        self.assertEqual(done.stderr, f"mini-llama: --memory-limit: needs {needed} bytes, 1024 are allowed\n")

    def test_a_plan_of_adapters_needs_no_weights(self):
        *_, parameters = self.planned("--config", "llama_8b", "--lora-rank", 16, "--recipe", "mxfp4_tc", "--device", "cpu")
        self.assertEqual(parameters, "parameters   8039698432, 9437184 of them train")
        self.refuse(self.train_command("out", "--lora-rank", 4), "--init: is missing")

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
        done = self.run_program(*self.train_command("out", "--memory-limit", plan["total"] - 1, "--async-checkpoints", "on", **some))
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1].split()[1]), (2, str(plan["total"])))
        self.refuse(self.train_command("out", "--async-checkpoints", "never"), "--async-checkpoints", "never")

    def test_activations_in_bf16_take_less(self):
        self.write("narrow.json", {"activations": "bf16"})
        wide, narrow = self.plan(schedule="fp32"), self.plan(schedule="narrow.json")
        self.assertLess(narrow["activations"], 0.6 * wide["activations"])

    def test_contracts_are_logged(self):
        self.write("unit.json", {"fprop": {"accumulate": "cublas-fp16:split_k=2"}})
        self.train("run", schedule="unit.json", steps=2)
        contracts = records(self.folder / "run/log.jsonl", "start")[0]["contracts"]
        self.assertEqual((contracts["fprop"], contracts["dgrad"]), ("cublas-fp16:split_k=2", "fp32_fma_chain"))
        for operation in ("attention", "rmsnorm", "adamw", "squares"):
            self.assertIn(operation, contracts)
        self.assertFalse([name for name in contracts if name.startswith(("bf16_layers", "adapters"))])
        self.write("wrong.json", {"fprop": {"accumulate": "cublas"}})
        self.refuse(self.train_command("out", schedule="wrong.json"), "wrong.json", "accumulate", "'cublas'")

    def test_contracts_of_bf16_layers_are_logged_and_those_of_adapters_checked(self):
        self.write("named.json", {"bf16_first_layers": 1, "bf16_layers": {"dgrad": {"accumulate": "cublas-fp16"}}})
        self.train("run", schedule="named.json", steps=2)
        contracts = records(self.folder / "run/log.jsonl", "start")[0]["contracts"]
        self.assertEqual([contracts["bf16_layers_" + gemm] for gemm in ("fprop", "dgrad", "wgrad")],
                         ["fp32_fma_chain", "cublas-fp16", "fp32_fma_chain"])
        for field in ("bf16_layers", "adapters"):
            for gemm, wrong, said in (("dgrad", "cublas", "is no contract; did you mean 'cublas-fp16'?"), ("fprop", "fp32_blockwise", "mxfp4"),
                                      ("wgrad", "", "is no contract"), ("wgrad", "hopper-wgmma-fp8-f32", "bf16"),
                                      ("fprop", "cublas-fp16:split_k=0", "is no contract")):
                self.write("wrong.json", {field: {gemm: {"accumulate": wrong}}})
                self.refuse(self.train_command("out", schedule="wrong.json"), "wrong.json", f"{field}.{gemm}.accumulate", said)
            for wrong in ({"fprop": "cublas-fp16"}, {"fprop": {"format": "bf16"}}, {"forward": {}}, [], "cublas-fp16", 1):
                self.write("wrong.json", {field: wrong})
                self.refuse(self.train_command("out", schedule="wrong.json"), "wrong.json", field)


class Limits(Scratch):
    """The largest of each that is taken, and the next one; `plan` takes no memory."""

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

    def test_the_deepest_model_trains(self):
        self.train("deep", "--no-tie-word-embeddings", num_hidden_layers=4000, hidden_size=2, num_attention_heads=1, head_dim=2,
                   intermediate_size=2, sequence=8, batch=1, steps=1, eval_windows=1, final_eval_windows=1, checkpoint_every=0,
                   statistics_every=0)

    def test_a_size_that_the_tensors_do_not_have_asks_for_no_memory(self):
        self.train("run")
        path = self.checkpoint("run") / "config.json"
        config = json.loads(path.read_text())
        # More than any machine has, were it believed.
        path.write_text(json.dumps({**config, "hidden_size": 1 << 24, "intermediate_size": 1 << 24}))
        commands = (["eval", "--checkpoint", "run", "--data", "text.txt"], ["sample", "--checkpoint", "run"],
                    ["train", "--out", "new", "--data", "text.txt", "--init", "run", "--sequence", 32, "--batch", 2, "--steps", 2])
        for command in (*commands, ["train", "--resume", "run"]):
            self.refuse(command, "config.json: hidden_size is not that of trainer_state.json")
        (path.parent / "trainer_state.json").unlink()  # as another's model
        for command in commands:
            self.refuse(command, "its shape 256 x 32 is not the model's 256 x 16777216")

    def test_a_file_larger_than_the_memory(self):
        with open(self.folder / "holes", "wb") as file:
            file.truncate(1 << 40)
        # Not by refuse(), which reads every file.
        for command in (self.train_command("out", data="holes"), ["tokenizer", "encode", "--data", "holes", "--out", "t.bin"],
                        ["report", "holes", "--out", "page"]):
            done = self.run_program(*command)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr, r"\Amini-llama: holes: cannot read: 1099511627776 bytes are more than \d+, half of "
                                          r"this machine's memory\n\Z")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["holes", "text.txt"])


class Schedule(Scratch):
    def rates(self, out, **options):
        self.train(out, learning_rate=1, final_learning_rate=0.25, steps=8, **options)
        return [r["lr"] for r in records(self.folder / out / "log.jsonl", "step")]

    def test_warm_up_in_steps_and_decay_longer_than_the_run(self):
        self.assertEqual(self.rates("steps", warmup=4)[:4], [0.25, 0.5, 0.75, 1.0])
        self.assertEqual(self.rates("fraction", warmup=0.5), self.rates("same", warmup=4))
        # The first half of a decay over 16 steps, or one that ends early and then stays.
        longer, ended = self.rates("longer", warmup=0, decay_steps=16), self.rates("ended", warmup=0, decay_steps=4)
        self.assertGreater(longer[-1], 0.625)
        self.assertEqual(ended[4:], [0.25] * 4)

    def test_stop_at_a_target(self):
        self.train("run", steps=40, eval_every=5, learning_rate=0.01, target_loss=5.0)
        end = records(self.folder / "run/log.jsonl", "end")[0]
        evaluations = records(self.folder / "run/log.jsonl", "eval")
        self.assertEqual(end["status"], "target")
        self.assertLessEqual(evaluations[-1]["val_loss"], 5.0)
        self.assertTrue(all(r["val_loss"] > 5.0 for r in evaluations[:-1]))
        self.assertTrue(self.checkpoint("run", end["step"]).exists())


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
        # A path below a regular file cannot be made by anyone, root included.
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

    def test_checkpoints_cannot_be_written(self):
        self.train("run", "--stop-at", 4)
        self.write("other/checkpoints", "in the way")
        done = self.run_program("train", "--resume", "run", "--out", "other")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Amini-llama: other/checkpoints[^\n]*\n\Z")
        self.assertEqual((self.folder / "other/checkpoints").read_text(), "in the way")

    def test_files_that_are_no_run_are_left_alone(self):
        self.train("run", "--stop-at", 4)
        for name in ("config.json", "checkpoints/weights", "checkpoints", "trainer_state.json", "statistics.jsonl", "digests.jsonl", "metrics.csv",
                     "mlperf.log", "tensorboard/events", "tensorboard", "log.jsonl"):
            with self.subTest(name):
                self.write(f"mine/{name}", "precious")
                named, start = f"mini-llama: mine/{name.split('/')[0]}: exists", name == "trainer_state.json"
                for more in ([], ["--csv", "--tensorboard"], ["--auto-resume"][:not start]):
                    said = self.refuse(self.train_command("mine", *more), named, "--overwrite")
                    self.assertEqual(said.endswith(", and mine holds no run: --overwrite removes it, another --out leaves it alone\n"), not start, said)
                said = self.refuse(["train", "--resume", "run", "--out", "mine", "--csv"], named)
                self.assertEqual(said.endswith(", and mine holds no run: another --out leaves it alone\n"), not start, said)
                self.train("mine", "--overwrite", "--csv", "--tensorboard")
                shutil.rmtree(self.folder / "mine")

    def test_files_beside_those_of_a_run_stay(self):
        for name in ("notes.txt", "checkpoints/.hidden"):
            self.write(f"mine/{name}", "precious")
        for name in ("metrics.csv", "statistics.jsonl", "log.jsonl", "config.json"):
            self.write(f"mine/{name}", "")
        self.train("mine", "--csv")
        for name in ("notes.txt", "checkpoints/.hidden"):
            self.assertEqual((self.folder / "mine" / name).read_text(), "precious")
        self.assertGreater((self.folder / "mine/metrics.csv").stat().st_size, 0)


if __name__ == "__main__":
    main(__doc__)
