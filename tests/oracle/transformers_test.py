# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of mini-llama evaluated by Hugging Face transformers in float64 gives the loss that `mini-llama eval` gives
in FP32, and so do six models that transformers saved: BF16 and FP16, in shards, tied, with grouped heads, with Llama 3.1's
RoPE. Skips (77) where torch and transformers are missing; ROTOSCALE_ORACLE_PYTHON may name an interpreter that has
them.  usage: transformers_test.py MINI_LLAMA"""

import json
import os
import pathlib
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


def main():
    python = os.environ.get("ROTOSCALE_ORACLE_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True).returncode != 0:
        print("skipped: torch and transformers are not installed (ROTOSCALE_ORACLE_PYTHON)")
        return 77
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        # Generated text: bytes of a fixed linear congruence, letters only, so that there is something to learn.
        state, text = 1, bytearray()
        for _ in range(20 * (WINDOWS * SEQUENCE + 1)):
            state = (state * 1103515245 + 12345) % 2**31
            text.append(97 + (state >> 16) % 7 * (state >> 20) % 26)
        data = folder / "text"
        data.write_bytes(text)
        subprocess.run([program, "train", "--data", data, "--out", folder / "run", "--recipe", "fp32", "--steps", "20",
                        "--batch", "4", "--sequence", str(SEQUENCE), "--hidden-size", "64", "--intermediate-size", "96",
                        "--num-hidden-layers", "2", "--final-eval-windows", str(WINDOWS)], check=True,
                       stdout=subprocess.DEVNULL)
        checkpoint = next((folder / "run" / "checkpoints").iterdir())
        ours = json.loads(subprocess.run([program, "eval", "--checkpoint", checkpoint, "--windows", str(WINDOWS)],
                                         check=True, capture_output=True).stdout)
        compare(program, python, "ours", checkpoint, data, SEQUENCE, ours["val_loss"])
        for name, (dtype, shard, extra) in SAVED.items():
            saved = folder / name
            subprocess.run([python, "-c", SAVE, saved, dtype, shard, json.dumps(extra)], check=True, capture_output=True)
            ours = json.loads(subprocess.run([program, "eval", "--checkpoint", saved, "--recipe", "fp32", "--data", data,
                                              "--windows", str(WINDOWS)], check=True, capture_output=True).stdout)
            compare(program, python, name, saved, data, ours["sequence"], ours["val_loss"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
