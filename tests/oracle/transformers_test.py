# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of mini-llama against Hugging Face transformers in float64.

- The loss of a checkpoint equals `mini-llama eval` in FP32.
- So do the loss and all logits (`eval --logits`) of six models that transformers saved: BF16 and FP16, in shards,
  tied, with grouped heads, with Llama 3.1's RoPE.
- So do the logits of a GPT-2, which transformers saved, and of the checkpoint that one step writes.
- The gradient of each tensor in one step of `mini-llama train` equals transformers'.
- transformers loads the tokenizer of a written model, and it gives the tokens of `mini-llama tokenizer encode`.
- Under bf16_tc, on matrix cores or their model, gradients are within the error of BF16 rounding.

Skips (77) without torch, transformers or the device. ROTOSCALE_ORACLE_PYTHON may name an interpreter that has them.

usage: transformers_test.py MINI_LLAMA [DEVICE]   DEVICE: mini-llama's --device (default: cpu)
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import oracle

torch, transformers, safetensors = oracle.require("torch", "transformers", "safetensors.torch")

import llama  # noqa: E402  needs what is required above
from transformers_reference import everything_in_double, load  # noqa: E402

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
# FP32 against float64: about 100 roundings of 2^-24 per logit. Logits are at most 16 here.
LOGIT_BOUND = 1e-4
# The longest path through two layers and back has about 3000 additions in FP32: some 20 GEMMs of 64 to 128 terms and a
# softmax over 256. Their errors, at most 2^-24 of a sum each, are independent and add up as a root. The bound is three
# times that.
GRADIENT_BOUND = 3 * 3000**0.5 * 2.0**-24
# Operands and results of the 20 GEMMs are rounded to BF16 (eight significant bits): 60 roundings by at most 2^-8.
BF16_GRADIENT_BOUND = 3 * 60**0.5 * 2.0**-8
SAVED = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True},
    "bf16 in shards": {"dtype": "bfloat16", "shard": "50KB", "num_key_value_heads": 1},
    "fp16": {"dtype": "float16", "rms_norm_eps": 1e-5},
    "llama3": {"rope_parameters": LLAMA3},
}


def load_any(checkpoint):
    """A Llama, or a GPT-2, in float64."""
    if json.loads((checkpoint / "config.json").read_text())["model_type"] == "llama":
        return load(checkpoint)
    return transformers.GPT2LMHeadModel.from_pretrained(checkpoint, dtype=torch.float64, attn_implementation="eager",
                                                        local_files_only=True).eval()


@everything_in_double()
def compare_logits(name, checkpoint, file):
    ours = safetensors.load_file(file)
    with torch.no_grad():
        theirs = load_any(checkpoint)(input_ids=ours["tokens"].long()).logits
    assert ours["logits"].shape == theirs.shape and ours["logits"].numel() > 0
    distance = (ours["logits"].double() - theirs).abs().max().item()
    print(f"{name}: logits within {distance:.1e} of transformers'")
    assert distance < LOGIT_BOUND, "the logits differ"


@everything_in_double()
def gradient_distance(checkpoint, stepped, tokens):
    """Largest error of one step's gradients against float64, over all tensors, relative to the tensor's norm.
    Gradients are (1 - beta1)^-1 of the first moments after the step."""
    model = load_any(checkpoint)
    torch.nn.functional.cross_entropy(model(input_ids=tokens[None, :-1]).logits[0], tokens[1:]).backward()
    theirs = {name: p.grad for name, p in model.named_parameters()}
    moments = safetensors.load_file(stepped / "optimizer.safetensors")
    ours = {name.removeprefix("exp_avg."): m.double() / (1 - 0.9) for name,
            m in moments.items() if name.startswith("exp_avg.")}
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    return max(((ours[name] - g).norm() / g.norm()).item() for name, g in theirs.items())


def compare_gradients(program, name, checkpoint, text, folder, recipe="fp32", bound=GRADIENT_BOUND):
    stepped = program.train("--init", checkpoint, "--data", text, "--out", folder / f"{name}, one step", "--steps", 1,
                            "--batch", 2,
                            "--sequence", llama.SEQUENCE, "--clip", 0, "--beta1", 0.9, "--final-eval-windows", 1,
                            recipe=recipe)
    distance = gradient_distance(checkpoint, stepped, llama.first_window(text))
    print(f"{name}: gradients within {distance:.1e} of transformers'")
    assert distance < bound, "the gradients differ"
    return stepped


def compare_gpt2(program, folder, data, periodic):
    """A GPT-2 of transformers, and the one after a step in transformers."""
    saved, logits = folder / "gpt2", folder / "gpt2.safetensors"
    llama.save_gpt2(saved)
    for name in ("gpt2", "gpt2 after a step"):
        program.eval("--checkpoint", saved, "--recipe", "fp32", "--data", data, "--sequence", llama.SEQUENCE,
                     "--logits",
                     logits)
        compare_logits(name, saved, logits)
        if name == "gpt2":
            saved = compare_gradients(program, name, saved, periodic, folder)


def compare_tokenizers(program, folder):
    """transformers loads a written model with a SentencePiece tokenizer."""
    text, model, tokens = folder / "lines.txt", folder / "pieces.model", folder / "tokens.bin"
    text.write_text("".join(f"In line {n} of these, {n * n} is the square of {n}; caf\u00e9 costs {n} \u20ac.\n"
                            for n in range(3000)), encoding="utf-8")
    lacks = oracle.missing("sentencepiece", "google.protobuf")  # transformers needs them for tokenizer.model
    if lacks:
        return print(f"tokenizer: not compared, {lacks} is not installed")
    try:
        program.run("tokenizer", "train", "--data", text, "--vocab-size", 400, "--out", model)
    except subprocess.CalledProcessError as failed:
        if "built without SentencePiece" not in failed.stderr:
            raise
        return print("tokenizer: not compared, built without SentencePiece")
    checkpoint = program.train("--data", text, "--tokenizer", model, "--vocab-size", 400, "--out", folder / "pieces",
                               "--steps", 1,
                               "--batch", 2, "--sequence", 32, "--hidden-size", 32, "--intermediate-size", 64,
                               "--final-eval-windows", 1)
    sample = folder / "sample.txt"
    line = "In line 7 of these, 49 is the square of 7; unseen words \u4e2d too.\n"
    sample.write_text(line, encoding="utf-8")
    program.run("tokenizer", "encode", "--data", sample, "--tokenizer", model, "--out", tokens)
    ours = [token for (token,) in struct.iter_unpack("<H", tokens.read_bytes()[1024:])]
    loaded = transformers.AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    theirs = loaded.encode(line)
    print(f"tokenizer: {len(theirs)} tokens")
    assert [t for t in ours if t != loaded.eos_token_id] == theirs, (loaded.eos_token_id, ours, theirs)
    assert loaded.decode(theirs) == line, loaded.decode(theirs)


def main():
    program = llama.Program(*sys.argv[1:])
    if not program.is_there():
        print(f"skipped: no device ({program.device})")
        sys.exit(oracle.SKIPPED)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        data = llama.write_text(folder / "text")
        periodic = llama.write_periodic(folder / "periodic", data)
        checkpoint = program.train("--data", data, "--out", folder / "run", "--steps", 20, "--batch", 4, "--sequence",
                                   llama.SEQUENCE,
                                   "--hidden-size", 64, "--intermediate-size", 96, "--num-hidden-layers", 2,
                                   "--final-eval-windows", llama.WINDOWS)
        compare_tokenizers(program, folder)
        logits = folder / "ours.safetensors"
        llama.compare_losses("ours", program.eval("--checkpoint", checkpoint, "--logits", logits), checkpoint, None,
                             data)
        compare_logits("ours", checkpoint, logits)
        for name, options in SAVED.items():
            saved, logits = folder / name, folder / f"{name}.safetensors"
            llama.save_model(saved, **options)
            ours = program.eval("--checkpoint", saved, "--recipe", "fp32", "--data", data, "--logits", logits)
            llama.compare_losses(name, ours, saved, None, data)
            compare_logits(name, saved, logits)
            compare_gradients(program, name, saved, periodic, folder)
        compare_gpt2(program, folder, data, periodic)
        if program.device != "hip":  # HIP devices have other recipes
            saved = folder / "bf16_tc"
            llama.save_model(saved, num_attention_heads=2,
                             num_key_value_heads=1)  # heads of 32, the minimum of tiled attention
            compare_gradients(program, "bf16_tc", saved, periodic, folder, "bf16_tc", BF16_GRADIENT_BOUND)


if __name__ == "__main__":
    main()
