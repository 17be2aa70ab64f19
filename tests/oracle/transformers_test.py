# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of mini-llama evaluated by Hugging Face transformers in float64 gives the loss that `mini-llama eval` gives
in FP32, and so do six models that transformers saved: BF16 and FP16, in shards, tied, with grouped heads, with Llama 3.1's
RoPE. So do all logits of their windows (`eval --logits`). The gradient of each tensor that one step of `mini-llama train` makes is that of
transformers in float64 as well. The tokenizer of a written model, loaded by transformers, gives a text the tokens that `mini-llama tokenizer
encode` gives. Skips (77) where torch and transformers are missing; ROTOSCALE_ORACLE_PYTHON may name an interpreter that has them.

usage: transformers_test.py MINI_LLAMA [DEVICE]   DEVICE: mini-llama's --device, cpu unless told otherwise"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

SEQUENCE, WINDOWS = 64, 8
HERE = pathlib.Path(__file__).parent
# Run by the interpreter that has transformers: saves a model with random weights.
SAVE = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
folder, dtype, shard, extra = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
torch.manual_seed(1)
config = LlamaConfig(**{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                        "num_attention_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.2, **extra})
LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
"""
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
# The distance of one step's gradients, which are (1 - beta1)^-1 of the first moments that it leaves, from those in float64: the largest
# of all tensors, each as a share of the tensor's own norm.
GRADIENTS = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers_reference import compute_everything_in_double, load
checkpoint, run, text, sequence = sys.argv[1:]
compute_everything_in_double()
model = load(Path(checkpoint))
tokens = torch.tensor(list(open(text, "rb").read(int(sequence) + 1)))
torch.nn.functional.cross_entropy(model(input_ids=tokens[None, :-1]).logits[0], tokens[1:]).backward()
theirs = {name: p.grad for name, p in model.named_parameters()}
moments = load_file(run + "/optimizer.safetensors")
ours = {name.removeprefix("exp_avg."): m.double() / (1 - 0.9) for name, m in moments.items() if name.startswith("exp_avg.")}
assert set(ours) == set(theirs), set(ours) ^ set(theirs)
print(max(((ours[name] - g).norm() / g.norm()).item() for name, g in theirs.items()))
"""
# The largest difference of a logit.
LOGITS = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers_reference import compute_everything_in_double, load
checkpoint, file = sys.argv[1:]
compute_everything_in_double()
ours = load_file(file)
with torch.no_grad():
    theirs = load(Path(checkpoint))(input_ids=ours["tokens"].long()).logits
assert ours["logits"].shape == theirs.shape and ours["logits"].numel() > 0
print((ours["logits"].double() - theirs).abs().max().item())
"""
# FP32 against float64: 100 or so roundings of 2^-24 on the way to a logit, which are at most 16 here.
LOGIT_BOUND = 1e-4
# The tokens of a text's lines by the tokenizer that transformers makes of a model's directory.
TOKENS = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
text = open(sys.argv[2], encoding="utf-8").read()
print(json.dumps([tokenizer.eos_token_id, tokenizer.encode(text), tokenizer.decode(tokenizer.encode(text)) == text]))
"""
# On the longest way through two layers and back, some 20 GEMMs of 64 to 128 terms and a softmax over 256, there are about 3000 additions
# in FP32. Their errors, of at most 2^-24 of a sum each, are independent and add up as a root; three times that.
GRADIENT_BOUND = 3 * 3000**0.5 * 2.0**-24
SAVED = {
    "plain": ("float32", "1GB", {}),
    "grouped": ("float32", "1GB", {"num_key_value_heads": 2}),
    "tied": ("float32", "1GB", {"tie_word_embeddings": True}),
    "bf16 in shards": ("bfloat16", "50KB", {"num_key_value_heads": 1}),
    "fp16": ("float16", "1GB", {"rms_norm_eps": 1e-5}),
    "llama3": ("float32", "1GB", {"rope_parameters": LLAMA3}),
}


def compare(program, python, name, checkpoint, data, sequence, ours):
    """`ours` is the loss over all held-out windows."""
    size = data.stat().st_size
    held_out = round(size * 0.05)
    windows = (held_out - 1) // sequence
    assert 0 < windows <= WINDOWS
    theirs = subprocess.run([python, HERE / "transformers_reference.py", "--checkpoint", checkpoint, "--data", data,
                             "--offset", str(size - held_out), "--windows", str(windows), "--seq", str(sequence)],
                            check=True, capture_output=True, text=True).stdout.split()[-1]
    difference = abs(ours - float(theirs))
    print(f"{name}: ours {ours}, transformers {theirs}, difference {difference:.1e}")
    # FP32 against float64: about 100 roundings of 2^-24 on the way to a logit, averaged over 512 tokens.
    assert difference < 1e-6, "the losses differ"


def run(python, script, *arguments):
    return subprocess.run([python, "-c", script, *arguments], check=True, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(HERE)}).stdout.split("\n")[-2]


def evaluate(program, *options, logits):
    return json.loads(subprocess.run([program, "eval", *options, "--logits", logits, "--windows", str(WINDOWS)], check=True,
                                     capture_output=True).stdout)


def compare_logits(python, name, checkpoint, file):
    distance = float(run(python, LOGITS, checkpoint, file))
    print(f"{name}: logits within {distance:.1e} of transformers'")
    assert distance < LOGIT_BOUND, "the logits differ"


def compare_tokenizers(program, python, folder):
    """A model with a vocabulary of pieces, written, loaded by transformers."""
    text, model, tokens = folder / "lines.txt", folder / "pieces.model", folder / "tokens.bin"
    text.write_text("".join(f"In line {n} of these, {n * n} is the square of {n}; caf\u00e9 costs {n} \u20ac.\n" for n in range(3000)), encoding="utf-8")
    made = subprocess.run([program, "tokenizer", "train", "--data", text, "--vocab-size", "400", "--out", model], capture_output=True, text=True)
    if "built without SentencePiece" in made.stderr:
        return print("tokenizer: not compared, built without SentencePiece")
    assert made.returncode == 0, made.stderr
    subprocess.run([program, "train", "--data", text, "--tokenizer", model, "--vocab-size", "400", "--out", folder / "pieces", "--steps", "1",
                    "--batch", "2", "--sequence", "32", "--hidden-size", "32", "--intermediate-size", "64", "--final-eval-windows", "1"],
                   check=True, stdout=subprocess.DEVNULL)
    sample = folder / "sample.txt"
    sample.write_text("In line 7 of these, 49 is the square of 7; unseen words \u4e2d too.\n", encoding="utf-8")
    subprocess.run([program, "tokenizer", "encode", "--data", sample, "--tokenizer", model, "--out", tokens], check=True,
                   stdout=subprocess.DEVNULL)
    ours = [token for (token,) in struct.iter_unpack("<H", tokens.read_bytes()[1024:])]
    end, theirs, same = json.loads(run(python, TOKENS, next((folder / "pieces" / "checkpoints").iterdir()), sample))
    print(f"tokenizer: {len(theirs)} tokens")
    assert [t for t in ours if t != end] == theirs and same, (end, ours, theirs)


def compare_gradients(program, python, name, checkpoint, text, folder, *device):
    """Every window of this text is the same, so it does not matter which ones a step takes."""
    out = folder / f"{name}, one step"
    subprocess.run([program, "train", *device, "--init", checkpoint, "--data", text, "--out", out, "--recipe", "fp32", "--steps", "1",
                    "--batch", "2", "--sequence", str(SEQUENCE), "--clip", "0", "--beta1", "0.9", "--final-eval-windows", "1"],
                   check=True, stdout=subprocess.DEVNULL)
    distance = float(run(python, GRADIENTS, checkpoint, next((out / "checkpoints").iterdir()), text, str(SEQUENCE)))
    print(f"{name}: gradients within {distance:.1e} of transformers'")
    assert distance < GRADIENT_BOUND, "the gradients differ"


def main():
    python = os.environ.get("ROTOSCALE_ORACLE_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True).returncode != 0:
        print("skipped: torch and transformers are not installed (ROTOSCALE_ORACLE_PYTHON)")
        return 77
    program, device = sys.argv[1], ["--device", *(sys.argv[2:] or ["cpu"])]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        # Generated text: bytes of a fixed linear congruence, letters only, so that there is something to learn.
        state, text = 1, bytearray()
        for _ in range(20 * (WINDOWS * SEQUENCE + 1)):
            state = (state * 1103515245 + 12345) % 2**31
            text.append(97 + (state >> 16) % 7 * (state >> 20) % 26)
        data, periodic = folder / "text", folder / "periodic"
        data.write_bytes(text)
        periodic.write_bytes(text[:SEQUENCE] * 400)
        subprocess.run([program, "train", *device, "--data", data, "--out", folder / "run", "--recipe", "fp32", "--steps", "20",
                        "--batch", "4", "--sequence", str(SEQUENCE), "--hidden-size", "64", "--intermediate-size", "96",
                        "--num-hidden-layers", "2", "--final-eval-windows", str(WINDOWS)], check=True,
                       stdout=subprocess.DEVNULL)
        compare_tokenizers(program, python, folder)
        checkpoint = next((folder / "run" / "checkpoints").iterdir())
        ours = evaluate(program, *device, "--checkpoint", checkpoint, logits=folder / "ours.safetensors")
        compare(program, python, "ours", checkpoint, data, SEQUENCE, ours["val_loss"])
        compare_logits(python, "ours", checkpoint, folder / "ours.safetensors")
        for name, (dtype, shard, extra) in SAVED.items():
            saved = folder / name
            subprocess.run([python, "-c", SAVE, saved, dtype, shard, json.dumps(extra)], check=True, capture_output=True)
            ours = evaluate(program, *device, "--checkpoint", saved, "--recipe", "fp32", "--data", data, logits=folder / f"{name}.safetensors")
            compare(program, python, name, saved, data, ours["sequence"], ours["val_loss"])
            compare_logits(python, name, saved, folder / f"{name}.safetensors")
            compare_gradients(program, python, name, saved, periodic, folder, *device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
