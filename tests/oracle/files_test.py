# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Exchanges model and token files with Hugging Face transformers and llm.c.

- Models saved by transformers have equal tensors and an equal config here: FP32, BF16, FP16, in shards, tied,
  with grouped heads, with Llama 3.1's RoPE.
- transformers loads what is written here with equal tensors.
- Token files written with numpy, as by llm.c's script, are rewritten byte for byte.

Skips (77) without torch, transformers or numpy. ROTOSCALE_ORACLE_PYTHON may name an interpreter that has them.

usage: files_test.py FILES_TOOL
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import oracle

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
# name: (dtype, config, max_shard_size)
MODELS = {
    "plain": ("float32", {}, "1GB"),
    "grouped": ("float32", {"num_key_value_heads": 2}, "1GB"),
    "tied": ("float32", {"tie_word_embeddings": True}, "1GB"),
    "bf16": ("bfloat16", {"num_key_value_heads": 1}, "1GB"),
    "fp16": ("float16", {}, "1GB"),
    "sharded": ("bfloat16", {"num_key_value_heads": 2, "rms_norm_eps": 1e-5}, "10KB"),
    "llama3": ("float32", {"rope_parameters": LLAMA3, "max_position_embeddings": 512}, "1GB"),
}


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def number_hash(words):
    value = 14695981039346656037
    for word in words:
        value = (value ^ int(word)) * 1099511628211 % 2**64
    return value


def check_tensors(tool, folder, state):
    import torch
    lines = [json.loads(line) for line in run(tool, "dump", folder).splitlines()]
    assert {line["name"] for line in lines} == set(state), f"{folder}: other names"
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    for line in lines:
        tensor = state[line["name"]]
        assert line["dtype"] == names[tensor.dtype], line
        assert line["shape"] == list(tensor.shape), line
        bits = tensor.float().contiguous().view(-1).view(torch.int32).numpy().astype("uint32")
        assert line["hash"] == number_hash(bits), f"{folder}: {line['name']}: other elements"


def check_config(tool, folder, config):
    from transformers import LlamaConfig
    written = json.loads(run(tool, "config", folder / "config.json"))
    again = LlamaConfig(**{key: value for key, value in written.items() if key != "torch_dtype"})
    for key in ("vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
                "head_dim "
                "max_position_embeddings rms_norm_eps rope_parameters tie_word_embeddings hidden_act attention_bias "
                "mlp_bias").split():
        if not hasattr(config, key):  # rope_parameters came with transformers 5
            continue
        assert getattr(again, key) == getattr(config,
                                              key), f"{folder}: {key}: {getattr(again, key)}, {getattr(config, key)}"


def check_models(tool, scratch):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name, (dtype, extra, shard) in MODELS.items():
        torch.manual_seed(1)
        config = LlamaConfig(**{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                                "num_attention_heads": 4, **extra})
        model = LlamaForCausalLM(config).to(getattr(torch, dtype))
        folder, copied = scratch / name, scratch / (name + "-copied")
        model.save_pretrained(folder, max_shard_size=shard)
        files = sorted(path.name for path in folder.glob("*.safetensors"))
        assert (len(files) > 1) == (name == "sharded"), files
        state = {key: value for key, value in model.state_dict().items()
                 if not (config.tie_word_embeddings and key == "lm_head.weight")}
        check_tensors(tool, folder, state)
        check_config(tool, folder, config)
        copied.mkdir()
        run(tool, "copy", folder, copied, 20000)
        assert len(list(copied.glob("model-*-of-*.safetensors"))) > 1
        (copied / "config.json").write_text(run(tool, "config", folder / "config.json"))
        original, loaded = (LlamaForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True)
                            for path in (folder, copied))
        for key, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[key]), f"{copied}: {key}"
        tokens = torch.arange(40)[None] % 64
        assert torch.equal(loaded(tokens).logits, original(tokens).logits), f"{copied}: other logits"
        print(f"{name}: {len(state)} tensors in {len(files)} file(s)")


def check_tokens(tool, scratch):
    import numpy as np
    rng = np.random.default_rng(1)
    for kind, magic, version, dtype, vocabulary in (("gpt-2", 20240520, 1, np.uint16, 50257),
                                                    ("llama-3", 20240801, 7, np.uint32, 128256)):
        tokens = rng.integers(0, vocabulary, 300001).astype(dtype)
        header = np.zeros(256, dtype=np.int32)
        header[:3] = magic, version, len(tokens)
        path, out = scratch / kind, scratch / (kind + "-out")
        path.write_bytes(header.tobytes() + tokens.tobytes())
        line = json.loads(run(tool, "tokens", path, out))
        assert line == {"kind": kind, "count": len(tokens), "hash": number_hash(tokens)}, line
        assert out.read_bytes() == path.read_bytes()
        print(f"{kind}: {len(tokens)} tokens")


def main():
    oracle.require("numpy", "torch", "transformers")
    with tempfile.TemporaryDirectory() as scratch:
        check_tokens(sys.argv[1], pathlib.Path(scratch))
        check_models(sys.argv[1], pathlib.Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
