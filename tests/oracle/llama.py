# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Shared code of the oracles for mini-llama's checkpoints: the program, a text, small models saved by transformers,
and comparison of losses. The process that compares imports Python's packages once, since that takes seconds."""

import json
import pathlib
import subprocess
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from transformers_reference import mean_loss

SEQUENCE, WINDOWS = 64, 8
HELD_OUT_SHARE = 0.05
# FP32 against float64: about 100 roundings of 2^-24 per logit, averaged over 512 tokens.
LOSS_BOUND = 1e-6

# The models are too small for several threads.
torch.set_num_threads(1)
logging.disable_progress_bar()
logging.set_verbosity_error()


def write_text(path):
    """Generated text: a fixed linear congruence over letters, so that a model can learn it."""
    state, text = 1, bytearray()
    for _ in range(20 * (WINDOWS * SEQUENCE + 1)):
        state = (state * 1103515245 + 12345) % 2**31
        text.append(97 + (state >> 16) % 7 * (state >> 20) % 26)
    path.write_bytes(text)
    return path


def write_periodic(path, text):
    """All windows are equal, so their order does not matter."""
    path.write_bytes(text.read_bytes()[:SEQUENCE] * 400)
    return path


def first_window(path):
    return torch.tensor(list(path.read_bytes()[: SEQUENCE + 1]))


def save_model(folder, dtype="float32", shard="1GB", **options):
    """A model with random weights."""
    torch.manual_seed(1)
    config = LlamaConfig(**{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                            "num_attention_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.2,
                            **options})
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def save_gpt2(folder):
    """A GPT-2 with random weights, gains and biases."""
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=256, n_embd=64, n_layer=2, n_head=4,
                                       initializer_range=0.2))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)


class Program:
    """mini-llama on one device."""

    def __init__(self, path, device="cpu"):
        self.path, self.device = path, device

    def run(self, *command):
        """Returns its output. On failure, prints its messages and raises CalledProcessError."""
        done = subprocess.run([self.path, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.stderr.write(done.stderr)
        done.check_returncode()
        return done.stdout

    def train(self, *options, recipe="fp32"):
        """Trains into the folder after --out and returns the checkpoint."""
        self.run("train", "--device", self.device, "--threads", 1, "--recipe", recipe, *options)
        out = pathlib.Path(options[options.index("--out") + 1])
        return next((out / "checkpoints").iterdir())

    def is_there(self):
        """Does the machine have the device?"""
        return subprocess.run([self.path, "plan", "--device", self.device], capture_output=True,
                              check=False).returncode == 0

    def eval(self, *options):
        return json.loads(self.run("eval", "--device", self.device, "--threads", 1, "--windows", WINDOWS, *options))


def compare_losses(name, ours, checkpoint, adapter, data):
    """Compares `ours`, the loss of all held-out windows of `data`, with the loss of transformers, and returns the
    latter."""
    size = data.stat().st_size
    held_out = round(size * HELD_OUT_SHARE)
    windows = (held_out - 1) // ours["sequence"]
    assert 0 < windows <= WINDOWS
    theirs = mean_loss(checkpoint, adapter, data, size - held_out, windows, ours["sequence"])
    difference = abs(ours["val_loss"] - theirs)
    print(f"{name}: ours {ours['val_loss']}, theirs {theirs}, difference {difference:.1e}")
    assert difference < LOSS_BOUND, "the losses differ"
    return theirs
