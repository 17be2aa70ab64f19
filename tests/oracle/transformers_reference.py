# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Mean cross-entropy, in nats, of a checkpoint under Hugging Face's LlamaForCausalLM in float64: a third-party check
of reference_llama.hpp and of this project's checkpoints."""

import contextlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import modeling_rope_utils
from transformers.models.llama import modeling_llama


class DoubleTorch:
    """Replaces torch.float32 by float64. For every model type modeling_llama computes norms, softmax and angles in
    float32. This would leave errors of 1e-7 in a float64 reference."""

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
    config = LlamaConfig.from_pretrained(checkpoint)
    model, report = LlamaForCausalLM.from_pretrained(
        checkpoint, config=config, dtype=torch.float64, attn_implementation="eager", local_files_only=True,
        output_loading_info=True)
    problems = {kind: sorted(names) for kind, names in report.items() if names}
    # transformers warns only, and continues with random numbers for missing tensors
    assert not problems, f"{checkpoint}: does not fit config.json: {problems}"
    return model.eval()


def read_windows(path, offset, windows, seq):
    """Tokens are raw bytes. Window i has the bytes from OFFSET + i * SEQ, and the same one byte later as targets."""
    data = path.read_bytes()[offset:offset + windows * seq + 1]
    assert len(data) == windows * seq + 1, f"{path}: too short"
    data = torch.tensor(list(data), dtype=torch.int64)
    return data[:-1].reshape(windows, seq), data[1:].reshape(windows, seq)


@everything_in_double()
def mean_loss(checkpoint, adapter, data, offset, windows, seq):
    """Loss in nats per token of the windows of read_windows. adapter: None, or a folder of PEFT's files."""
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
