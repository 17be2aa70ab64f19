#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the mean cross-entropy, in nats, of a checkpoint under Hugging Face's LlamaForCausalLM in float64.

A third-party check of reference_llama.hpp and of this project's checkpoints. Tokens are the raw bytes of --data.
Window i takes the SEQ bytes from OFFSET + i*SEQ as tokens, and the SEQ bytes one byte later as targets. W windows
need W*SEQ + 1 bytes. Exits 77 (skipped) without torch or transformers.
"""

import argparse
import contextlib
import pathlib
import sys

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers import modeling_rope_utils
    from transformers.models.llama import modeling_llama
    from transformers.utils import logging
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


class DoubleTorch:
    """Replaces torch.float32 by float64. modeling_llama computes norms, softmax and angles in float32 for every
    model type, which would leave errors of 1e-7 in a float64 reference."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def everything_in_double():
    """A context for loading and evaluation only: transformers computes in FP64."""
    single = torch.Tensor.float
    modeling_llama.torch = modeling_rope_utils.torch = DoubleTorch()
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        modeling_llama.torch = modeling_rope_utils.torch = torch
        torch.Tensor.float = single


def load(checkpoint):
    for names in (("config.json",), ("model.safetensors", "model.safetensors.index.json")):
        if not any((checkpoint / name).is_file() for name in names):
            sys.exit(f"transformers_reference.py: {checkpoint / names[0]}: no such file")
    try:
        config = LlamaConfig.from_pretrained(checkpoint)
    except Exception as error:  # transformers and safetensors raise many types
        sys.exit(f"transformers_reference.py: {checkpoint / 'config.json'}: {error}")
    if config.vocab_size < 256:
        sys.exit(f"transformers_reference.py: {checkpoint / 'config.json'}: vocab_size {config.vocab_size} < 256")
    try:
        model, report = LlamaForCausalLM.from_pretrained(
            checkpoint, config=config, dtype=torch.float64, attn_implementation="eager", local_files_only=True,
            output_loading_info=True)
    except Exception as error:
        sys.exit(f"transformers_reference.py: {checkpoint / 'model.safetensors'}: {error}")
    problems = {kind: sorted(names) for kind, names in report.items() if names}
    if problems:  # transformers warns only, and continues with random numbers for missing tensors
        sys.exit(f"transformers_reference.py: {checkpoint / 'model.safetensors'}: does not fit config.json: {problems}")
    return model.eval()


def read_windows(path, offset, windows, seq):
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(windows * seq + 1)
    except OSError as error:
        sys.exit(f"transformers_reference.py: {path}: {error.strerror}")
    if len(data) < windows * seq + 1:
        sys.exit(f"transformers_reference.py: {path}: {windows} windows of {seq} at {offset} need "
                 f"{windows * seq + 1} bytes, there are {len(data)}")
    data = torch.tensor(list(data), dtype=torch.int64)
    return data[:-1].reshape(windows, seq), data[1:].reshape(windows, seq)


@everything_in_double()
def mean_loss(checkpoint, adapter, data, offset, windows, seq):
    """Loss in nats per token of the windows (see the top of this file). adapter: None, or a folder of PEFT's files."""
    tokens, targets = read_windows(data, offset, windows, seq)
    model = load(checkpoint)
    if adapter:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, adapter).double().eval()
    total = 0.0
    with torch.no_grad():
        for row, target in zip(tokens, targets):  # One window at a time, to limit the memory for logits.
            logits = model(input_ids=row[None]).logits[0]
            assert logits.dtype == torch.float64
            total += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
    return total / targets.numel()


def at_least(minimum):
    def parse(text):
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}")
        return value
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--adapter", type=pathlib.Path, metavar="DIR", help="PEFT's files, beside the checkpoint")
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--offset", type=at_least(0), default=0, metavar="N")
    parser.add_argument("--windows", type=at_least(1), default=1, metavar="W")
    parser.add_argument("--seq", type=at_least(1), required=True, metavar="T")
    args = parser.parse_args()

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    print(f"{mean_loss(args.checkpoint, args.adapter, args.data, args.offset, args.windows, args.seq):.17g}")


if __name__ == "__main__":
    main()
