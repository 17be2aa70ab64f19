# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Training data of mini-llama: token files of llm.c, records of prompt and answer, tokenizers, binary files. The
same tokens from any source give the same checkpoint.

usage: mini_llama_data.py PROGRAM [NAME...]
"""
import gzip
import json
import math
import shutil
import struct

import mini_llama
from mini_llama import ROOT, Scratch, generated_text, records, tree_of
from outputs import presets


def token_file(tokens, magic=20240520, version=1, width="H"):
    return struct.pack("<256i", magic, version, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}{width}",
                                                                                       *tokens)


class Data(Scratch):
    def test_recipes_are_listed(self):
        recipes, schedules = presets(ROOT)
        head, *lines = self.succeed("recipes").splitlines()
        between = lines.index("")
        self.assertEqual([line.split()[0] for line in [head, *lines[:between]]], ["recipe", *recipes])
        self.assertEqual([line.split()[0] for line in lines[between + 1:]], ["schedule", *schedules])
        for line in lines[:between]:
            self.assertGreater(len(line.split()), 5, f"{line}: has no note")
        self.refuse(["recipes", "mxfp4"], "unknown argument 'mxfp4'")

    def start(self, run):
        return records(self.folder / run / "log.jsonl", "start")[0]

    def assert_same_training(self, one, other):
        self.assert_same_tensors(one, other)
        for event, keys in (("step", ("loss", "grad_norm")), ("eval", ("val_loss",))):
            first, second = ([[r[key] for key in keys] for r in records(self.folder / run / "log.jsonl", event)]
                             for run in (one, other))
            self.assertEqual(first, second)

    def test_bytes_as_text_as_gzip_and_as_tokens(self):
        text = generated_text()
        (self.folder / "text.gz").write_bytes(gzip.compress(text))
        (self.folder / "narrow.bin").write_bytes(token_file(text))
        cut = len(text) // 3
        for i, part in enumerate((text[:cut], text[cut:])):
            (self.folder / f"wide{i}.bin").write_bytes(token_file(part, 20240801, 7, "I"))
        self.train("text")
        for out, data, kind in (("gzip", ["text.gz"], "text"), ("narrow", ["narrow.bin"], "tokens"),
                                ("wide", ["wide0.bin", "wide1.bin"], "tokens")):
            command = self.train_command(out, data=data[0])
            at = command.index("--data") + 2
            self.succeed(*command[:at], *data[1:], *command[at:])
            self.assertEqual(self.start(out)["data_kind"], kind)
            self.assertEqual(self.start(out)["train_tokens"], self.start("text")["train_tokens"])
            self.assert_same_training("text", out)
        for run, known in (("text", True), ("narrow", False)):
            for r in records(self.folder / run / "log.jsonl", "eval"):
                self.assertEqual(r["bits_per_byte"], r["val_loss"] / 0.6931471805599453 if known else None)

    def test_the_checkpoints_tokenizer_goes_on_where_the_given_one_has_gone(self):
        self.sentencepiece()
        self.train("whole", "--tokenizer", "t.model", vocab_size=300)
        self.train("made", "--tokenizer", "t.model", "--stop-at", 4, vocab_size=300)
        loss = json.loads(self.succeed("eval", "--checkpoint", "made"))["val_loss"]
        for content in (None, b"other", generated_text()):
            (self.folder / "t.model").unlink(missing_ok=True)
            if content is not None:
                (self.folder / "t.model").write_bytes(content)
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            shutil.copytree(self.folder / "made", self.folder / "run")
            self.assertEqual(json.loads(self.succeed("eval", "--checkpoint", "run"))["val_loss"], loss)
            self.succeed("train", "--resume", "run", "--threads", 1)
            self.assertEqual(tree_of(self.checkpoint("whole")), tree_of(self.checkpoint("run")))
        self.refuse(["train", "--resume", "made", "--tokenizer", "t.model"], "t.model")  # the named tokenizer is used
        own = "run/checkpoints/step-000000008/tokenizer.model"
        self.refuse([*self.train_command("run", "--tokenizer", own, vocab_size=300), "--overwrite"],
                    own + ": is in run", "--overwrite")

    def test_what_is_read_is_not_overwritten(self):
        self.train("run")
        self.refuse([*self.train_command("run", "--text-format", "bytes", data="run/log.jsonl"), "--overwrite"],
                    "run/log.jsonl: is in run", "--overwrite")
        shutil.copytree(self.checkpoint("run"), self.folder / "model")
        self.refuse([*self.train_command("model", "--init", "model"), "--overwrite"],
                    "model/config.json: would be written, and is an input")

    def test_tokenizer_as_option_and_as_token_file(self):
        self.sentencepiece()
        self.assertEqual(self.succeed("tokenizer", "encode", "--tokenizer", "t.model", "--data", "text.txt", "--out",
                                      "t.bin").split()[2], "tokens")
        self.train("pieces", "--tokenizer", "t.model", vocab_size=300)
        self.train("file", data="t.bin", vocab_size=300)
        self.train("both", "--tokenizer", "t.model", data="t.bin", vocab_size=300)
        self.assert_same_training("pieces", "file")
        bits = {run: [r["bits_per_byte"] for r in records(self.folder / run / "log.jsonl", "eval")]
                for run in ("pieces", "file", "both")}
        self.assertEqual(bits["file"], [None] * len(bits["file"]))
        self.assertEqual(bits["both"], bits["pieces"])
        for nats, b in zip((r["val_loss"] for r in records(self.folder / "both/log.jsonl", "eval")), bits["both"]):
            self.assertLess(b, nats / 0.6931471805599453)  # a token is at least one byte
            self.assertGreater(b, nats / 0.6931471805599453 / 16)
        said = json.loads(self.succeed("eval", "--checkpoint", "pieces", "--windows", 4))
        self.assertEqual(said["bits_per_byte"], bits["pieces"][-1])
        text = self.succeed("sample", "--checkpoint", "pieces", "--prompt", "the sea", "--tokens", 20)
        self.assertTrue(text.startswith("the sea"))
        self.refuse(["sample", "--checkpoint", "pieces", "--tokenizer", "text.txt"], "text.txt",
                    "not a SentencePiece model")

    def test_records(self):
        lines = [json.dumps({"prompt": f"{i} and {i % 7}: ", "answer": str(i % 7), "id": i}) for i in range(400)]
        (self.folder / "r.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        self.train("run", data="r.jsonl.gz", max_epochs=2)
        self.assertEqual(self.start("run")["data_kind"], "records")
        self.train("parts", "--stop-at", 4, data="r.jsonl.gz", max_epochs=2)
        self.succeed("train", "--resume", "parts")
        self.assert_same_checkpoint("run", "parts")
        (self.folder / "long.jsonl").write_text(lines[0] + "\n" + json.dumps({"text": "x" * 40}) + "\n")
        self.refuse(self.train_command("out", data="long.jsonl"), "long.jsonl: line 2", "--sequence")
        (self.folder / "cut.jsonl").write_text(lines[0] + '\n{"text": "x"\n')
        self.refuse(self.train_command("out", data="cut.jsonl"), "cut.jsonl: line 2, column 13: syntax error")

    def test_bits_per_byte_of_records_count_the_bytes_of_text(self):
        """Bits per byte: the nats of all targets, ends of records included, over ln 2 and the bytes of the answers.
        All records have one length, so that each evaluation scores as many of them as it has windows."""
        self.sentencepiece()
        for out, options, vocabulary in (("bytes", [], 256), ("pieces", ["--tokenizer", "t.model"], 300)):
            for answer in ("7", "q9"):  # no piece has two letters: one token per byte
                line = json.dumps({"prompt": "a", "answer": answer}) + "\n"
                self.write("r.jsonl", line * 400)
                run = f"{out}{len(answer)}"
                self.train(run, *options, data="r.jsonl", vocab_size=vocabulary, max_epochs=9)
                targets = len(answer) + 1
                for r in records(self.folder / run / "log.jsonl", "eval"):
                    self.assertAlmostEqual(r["bits_per_byte"], r["val_loss"] * targets / len(answer) / math.log(2),
                                           delta=1e-9)

    def test_what_is_refused(self):
        """windows_test, text_test, token_file_test and tokenizer_test have the other faults."""
        (self.folder / "wide.bin").write_bytes(token_file([300] * 4000))
        self.refuse(self.train_command("out", data="wide.bin"), "wide.bin", "301", "256", "--vocab-size")
        (self.folder / "binary").write_bytes(bytes(range(256)) * 64)
        self.refuse(self.train_command("out", data="binary"), "binary", "not text: a zero byte at offset 0")
        self.succeed(*self.train_command("out", "--text-format", "bytes", data="binary"))
        self.refuse(self.train_command("no", "--text-format", "byte"), "--text-format", "did you mean 'bytes'?")
        self.refuse(self.train_command("no", data="/dev/zero"), "/dev/zero", "a device, not a regular file")
        self.refuse(["tokenizer", "encode", "--data", "missing", "--out", "t.bin"], "missing", "No such file")
        self.refuse(["tokenizer", "train", "--data", "text.txt", "--vocab-size", 3, "--out", "m"], "--vocab-size")


if __name__ == "__main__":
    mini_llama.main(__doc__)
