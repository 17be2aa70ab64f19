# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Bad values of every flag. The message is one line that names the flag, or the given file, and the reason. A value
from a file is named by its key; a value from a flag never is.

usage: mini_llama_flags.py PROGRAM [NAME...]
"""
import json
import re

import mini_llama
from mini_llama import SHAPE, TRAIN, Scratch, as_flags

# Flags that accept any text, or any file name (an error can be in the file alone).
ANY_TEXT = {"--name", "--title", "--prompt", "--baseline", "--out", "--keep", "--logits", "--ignore-config-key"}
# Flags with a file name or one of several names: messages name the value.
NAMES = {"--config", "--model-config", "--data", "--tokenizer", "--init", "--adapter", "--checkpoint", "--resume",
         "--base", "--keep", "--accept"}
NEEDED = {"eval": ["--checkpoint", "run"], "sample": ["--checkpoint", "run"], "replay": ["run", "--steps", "0:1"],
          "report": ["run", "--out", "r"], "study": ["study.json", "--out", "s"],
          "merge": ["--base", "run", "--adapter", "run", "--out", "m"],
          "tokenizer train": ["--data", "text.txt", "--out", "t"],
          "tokenizer encode": ["--data", "text.txt", "--out", "t"]}
COMMANDS = ["train", "plan", "profile", *NEEDED]
WHOLE = ("ten", "1.5", "99999999999999999999")
REAL = ("fast", "nan")
# Tested elsewhere, or unused by these commands.
ELSEWHERE = {("merge", "--base"), *((command, flag) for command in ("plan", "profile")
                                    for flag in ("--data", "--text-format", "--tokenizer"))}


class Flags(Scratch):
    def options(self, command):
        """{flag: its type in --help; None for a switch}"""
        found = {}
        for line in self.succeed(*command.split(), "--help").splitlines():
            if match := re.match(r" +(?:-\w,)?(--[\w-]+)(?:,!?--[\w-]+)?(\{\w+\})?(?: +([A-Z]+\b\S*))?", line):
                found[match[1]] = match[3]
        del found["--help"]
        return found

    def command(self, command, flag):
        words = command.split()
        if flag == "--resume":
            return words
        if command in NEEDED:
            given = NEEDED[command]
            at = given.index(flag) if flag in given else len(given)
            return [*words, *given[:at], *given[at + 2:]]
        shape = {key: value for key,
                 value in {**SHAPE, **TRAIN, "steps": 8}.items() if flag != "--" + key.replace("_", "-")}
        if command == "profile":  # profile evaluates nothing
            shape = {key: value for key, value in shape.items() if "eval" not in key}
        outputs = [] if command != "train" else [x for given in (("--out", "out"), ("--data", "text.txt"))
                                                 if given[0] != flag for x in given]
        return [*words, *outputs, *as_flags(shape)]

    def check(self, arguments, named, keys):
        said = self.refuse(arguments)
        if "built without SentencePiece" in said:
            return
        text = said.removeprefix("mini-llama: ").removeprefix("arguments: ").strip()
        self.assertIn(named, text)
        self.assertIsNone(re.search(keys, text), text)
        reason = text.rsplit(named, 1)[-1].strip(" :'")
        self.assertGreater(len(reason), 8, text)
        self.assertNotIn("Could not", text)

    def test_every_flag(self):
        keys = r"\b(" + "|".join(flag[2:].replace("-", "_") for flag in self.options("train")
                                 if "-" in flag[2:]) + r")\b"
        checked = 0
        self.train("run", steps=1)
        self.write("study.json", {"arms": [{"name": "bf16"}], "options": {"data": ["text.txt"]}})
        for command in COMMANDS:
            for flag, kind in self.options(command).items():
                if kind is None or flag in ANY_TEXT or (command, flag) in ELSEWHERE:
                    continue
                values = (WHOLE if kind.startswith(("INT", "UINT")) else REAL if kind.startswith("FLOAT")
                          else ("no-such",))
                for value in values if command in ("train", *NEEDED) else values[:1]:
                    with self.subTest(command=command, flag=flag, value=value):
                        named = value if flag in NAMES else flag
                        self.check([*self.command(command, flag), flag, value], named, keys)
                        checked += 1
        self.assertGreater(checked, 200)

    def test_what_does_not_fit_a_recipe(self):
        """Names the recipe's flag, and the flags of sizes that its blocks do not divide. All sizes: recipe_fit_test."""
        for given, *parts in (({"recipe": "mxfp4", "hidden_size": 48},
                               "mini-llama: --recipe: recipe mxfp4: --hidden-size: 48 is not a multiple of 32"),
                              ({"recipe": "mxfp4_h16_heal", "batch": 1, "sequence": 31},
                               "--recipe mxfp4_h16_heal: phases[0].recipe: recipe mxfp4_h16: --batch * --sequence: 31"),
                              ({"schedule": "mxfp4_h16_heal", "steps": 1},
                               "mini-llama: --schedule mxfp4_h16_heal: phases[1].at: step 1"),
                              ({"recipe": "heal_plateau"},
                               "mini-llama: --recipe heal_plateau: phases[1].trigger.patience: never fires"),
                              ({"num_key_value_heads": 3},
                               "--num-key-value-heads: 3 does not divide --num-attention-heads"),
                              ({"sequence": 96}, "mini-llama: --sequence: 96 is longer than the model's 64 positions "
                               "(--max-position-embeddings)"),
                              ({"validation": 0.0001}, "text.txt: too short", "--validation"),
                              ({"vocab_size": 96}, "text.txt", "--vocab-size")):
            with self.subTest(given=given):
                self.assertNotRegex(self.refuse(self.train_command("out", **given), *parts),
                                    r"arguments|[a-z]_(size|dim)")

    def test_what_would_do_nothing(self):
        """Options that contradict each other, wait for a step beyond the end, or mean nothing to the command."""
        for flag in ("--data", "--init", "--resume", "--recipe", "--config"):
            self.refuse(["train", "--out", "out", flag, ""], f"mini-llama: {flag}: is empty")
        self.refuse(["train", "--out", "", "--data", "text.txt"], "mini-llama: --out: is empty")
        self.refuse(["report", "", "--out", "report"], "mini-llama: logs: is empty")
        self.refuse(self.train_command("out", "--recipe", "bf16", "--schedule", "mxfp4"),
                    "--recipe: is another name of --schedule")
        self.refuse(self.train_command("out", "--digest-steps", "8:9"), "--digest-steps: 8:9: the run has 8 steps")
        self.refuse(self.train_command("out", "--stop-at", 9), "--stop-at: 9: the run has 8 steps")
        for flag in ("--data", "--eval-every", "--checkpoint-every", "--on-divergence", "--name"):
            self.refuse(["profile", flag, "3"], f"unknown argument '{flag}'")

    def test_a_shape_that_is_not_that_of_given_weights(self):
        """The message says which of the two to leave out. Values that no weight depends on may differ."""
        self.train("run", steps=2, checkpoint_every=1)
        self.write("hf.json", {**SHAPE, "hidden_size": 64})
        new = ["train", "--out", "out", "--data", "text.txt", *as_flags({**TRAIN, "steps": 2}), "--threads", 1]
        for key, value in (("hidden_size", 64), ("num_hidden_layers", 2), ("num_attention_heads", 0), ("head_dim", 64)):
            flag = "--" + key.replace("_", "-")
            with self.subTest(flag=flag):
                for command in (new, ["plan"]):
                    said = self.refuse([*command, "--init", "run", flag, value])
                    self.assertEqual(said, f"mini-llama: {flag}: {value} contradicts --init run, whose model has "
                                     f"{SHAPE[key]}: leave out {flag}\n")
        self.assertEqual(self.refuse([*new, "--init", "run", "--tie-word-embeddings"]),
                         "mini-llama: --tie-word-embeddings: true contradicts --init run, whose model has false: "
                         "leave out --tie-word-embeddings\n")
        self.refuse([*new, "--init", "run", "--model-config", "hf.json"],
                    "mini-llama: hidden_size (hf.json): 64 contradicts --init run, whose model has 32: leave out "
                    "--model-config\n")
        self.write("c.json", {"init": "run"})
        self.refuse([*new, "--config", "c.json", "--hidden-size", 64],
                    "--hidden-size: 64 contradicts init (c.json) run, ")
        self.succeed(*new, "--init", "run",
                     *as_flags({**SHAPE, "max_position_embeddings": 128, "rms_norm_eps": 1e-4, "rope_theta": 5e4}))

    def test_a_configuration_whose_model_is_not_that_of_given_weights(self):
        """Values in a file are binding. The model of a built-in configuration is a default."""
        self.train("run", steps=2)
        new = ["train", "--out", "out", "--data", "text.txt", *as_flags({**TRAIN, "steps": 2}), "--threads", 1]
        for init, more in (("init (c.json)", []), ("--init", ["--init", "run"])):
            self.write("c.json", {"model": {**SHAPE, "hidden_size": 64}, **({} if more else {"init": "run"})})
            for command in (new, ["plan"]):
                self.assertEqual(self.refuse([*command, "--config", "c.json", *more]),
                                 f"mini-llama: model.hidden_size (c.json): 64 contradicts {init} run, whose model has "
                                 f"{SHAPE['hidden_size']}: leave it out\n")
        # Values that no weight depends on may be in the file, as in flags: a run's config.json makes the same run.
        self.write("c.json", {"model": {"max_position_embeddings": 128, "rope_theta": 5e4}, "init": "run"})
        self.succeed(*new, "--config", "c.json")
        model = json.loads((self.folder / "out/config.json").read_text())["model"]
        self.assertEqual((model["hidden_size"], model["max_position_embeddings"], model["rope_theta"]), (32, 128, 5e4))
        self.succeed("train", "--out", "again", "--config", "out/config.json", "--threads", 1)
        self.assert_same_checkpoint("out", "again", 2)
        for name in ("amd_llama31_8b", "llama_124m"):
            self.succeed(*new, "--config", name, "--init", "run", "--head-chunk", 64, "--overwrite")
            self.assertEqual(json.loads((self.folder / "out/config.json").read_text())["model"]["hidden_size"], 32)

    def test_a_configuration_of_another_kind(self):
        self.write("hf.json", {"architectures": ["LlamaForCausalLM"], "hidden_size": 64})
        self.refuse(["plan", "--config", "hf.json"], "hf.json: ", "--model-config")
        for name in ("amd_lora", "bf16"):
            self.refuse(["plan", "--config", name], f"--config {name}: ", f"--recipe {name}")

    def test_files(self):
        """A value from a file is named by its key, also with flags present. A value that a flag overrides is named
        by the flag."""
        shape = {**SHAPE, "hidden_size": 48}
        self.write("c.json", {"model": shape, "train": {**TRAIN, "steps": 8, "learning_rate": -1}, "schedule": "mxfp4",
                              "data": ["text.txt"]})
        train = ["train", "--out", "out", "--config", "c.json"]
        self.refuse(train, "mini-llama: c.json: train.learning_rate: -1 is not between")
        self.refuse([*train, "--learning-rate", -2], "mini-llama: --learning-rate: -2 is not between")
        rate = ["--learning-rate", 0.1]
        self.refuse([*train, *rate],
                    "mini-llama: c.json: schedule: recipe mxfp4: model.hidden_size (c.json): 48 is not")
        self.refuse([*train, *rate, "--hidden-size", 80],
                    "mini-llama: c.json: schedule: recipe mxfp4: --hidden-size: 80 is not")
        self.refuse([*train, *rate, "--recipe", "mxfp4"],
                    "mini-llama: --recipe: recipe mxfp4: model.hidden_size (c.json): 48 is not")
        self.refuse([*train, *rate, "--schedule", "mxfp9"], "mini-llama: --schedule: 'mxfp9' is neither")
        self.refuse([*train, *rate, "--max-epochs", 0], "mini-llama: --max-epochs: 0 is not")
        self.refuse([*train, *rate, "--hidden-size", 64, "--batch", 1, "--sequence", 31, "--recipe", "mxfp4"],
                    "recipe mxfp4: --batch * --sequence: 31")
        self.refuse([*train, *rate, "--hidden-size", 64, "--sequence", 31, "--recipe", "mxfp4"],
                    "recipe mxfp4: train.batch (c.json) * --sequence: 62")
        self.write("hf.json", {**shape, "num_key_value_heads": 3})
        self.refuse(self.command("train", "")[:5] + ["--model-config", "hf.json"],
                    "mini-llama: hf.json: num_key_value_heads: 3 does not divide num_attention_heads 2")
        self.write("hf.json", shape)
        self.refuse(self.command("train", "")[:5] +
                    ["--model-config", "hf.json", "--recipe", "mxfp4", "--sequence", 32],
                    "mini-llama: --recipe: recipe mxfp4: hidden_size (hf.json): 48")


if __name__ == "__main__":
    mini_llama.main(__doc__)
