#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times training steps on a device, by mini-llama and by PyTorch's torch.compile.

usage: train.py MINI_LLAMA [--shapes llama_124m,llama_1b] [--recipes bf16_tc,fp8_tc,mxfp4_tc] [--device cuda]
                [--no-peer]
  Shapes are configurations by name, Llamas without tied embeddings, or gpt2_124m with them. Recipes are presets. Both
  sides train on random tokens and report the median of 10 step times. The host is at least a step ahead on both sides,
  so steps follow each other. The peer is the same model in PyTorch: BF16 autocast over FP32 weights, SDPA, fused AdamW,
  clipped norm. Its residual stream is FP32; that of the `_tc` recipes is BF16. Its RoPE frequencies are not scaled. It
  runs in a separate process. Prints a Markdown table. The output of `profile` goes to standard error.
  Exit status: 1 if a run fails, 2 for bad usage.
"""
import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[2] / "examples/llama/configs"
CLASSES = ("GEMM", "attention", "norm and activation", "quantize", "loss", "optimizer", "copies", "other", "gaps")
STEPS, WARM = 10, 4
OWN_HEAD = ("--no-tie-word-embeddings",)  # like the peer


def fail(message, status):
    print(f"train.py: {message}", file=sys.stderr)
    sys.exit(status)


def ours(program, shape, recipe, device):
    """Tokens/s, ms a step and ms by class of kernel."""
    head = [] if shape.startswith("gpt2") else OWN_HEAD
    run = subprocess.run([program, "profile", "--config", shape, *head, "--recipe", recipe, "--device", device],
                         stdout=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(run.stdout)
    step = re.search(r"^step ([\d.]+) ms, (\d+) tokens/s", run.stdout, re.M)
    if run.returncode != 0 or step is None:
        fail(f"{shape}, {recipe}: {program} ended with {run.returncode}", 1)
    parts = []
    for name in CLASSES:
        found = re.search(rf"^{re.escape(name)} +(?:\d+ +)?([\d.]+)", run.stdout, re.M)
        parts.append(f"{float(found.group(1)) / 1e3:.1f}" if found else "")
    return [int(step.group(2)), f"{float(step.group(1)):.1f}", *parts]


def llama(torch):
    """The peer's model."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, m):
            super().__init__()
            d, f = m["hidden_size"], m["intermediate_size"]
            self.heads, self.kv = m["num_attention_heads"], m["num_key_value_heads"]
            self.dim = d // self.heads
            self.norms = nn.ModuleList([nn.RMSNorm(d), nn.RMSNorm(d)])
            self.qkv = nn.Linear(d, (self.heads + 2 * self.kv) * self.dim, bias=False)
            self.out = nn.Linear(d, d, bias=False)
            self.gate_up, self.down = nn.Linear(d, 2 * f, bias=False), nn.Linear(f, d, bias=False)

        def forward(self, x, cosine, sine):
            batch, seq, d = x.shape
            qkv = self.qkv(self.norms[0](x)).split([self.heads * self.dim, self.kv * self.dim, self.kv * self.dim], -1)
            q, k, v = (t.view(batch, seq, -1, self.dim).transpose(1, 2) for t in qkv)

            def rotate(t):
                a, b = t.chunk(2, -1)
                return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(t.dtype)
            y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True,
                                                        enable_gqa=self.heads != self.kv)
            x = x + self.out(y.transpose(1, 2).reshape(batch, seq, d))
            gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
            return x + self.down(functional.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self, m, seq):
            super().__init__()
            d = m["hidden_size"]
            self.embedding, self.norm = nn.Embedding(m["vocab_size"], d), nn.RMSNorm(d)
            self.layers = nn.ModuleList(Block(m) for _ in range(m["num_hidden_layers"]))
            self.head = nn.Linear(d, m["vocab_size"], bias=False)
            dim = d // m["num_attention_heads"]
            angles = torch.outer(torch.arange(seq).float(), m["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim))
            self.register_buffer("cosine", angles.cos())
            self.register_buffer("sine", angles.sin())

        def forward(self, tokens, targets):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x, self.cosine, self.sine)
            return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())

    return Llama


def gpt2(torch):
    """The peer's GPT-2."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, m):
            super().__init__()
            d, self.heads = m["n_embd"], m["n_head"]
            self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            batch, seq, d = x.shape
            q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2)
                       for t in self.qkv(self.norms[0](x)).chunk(3, -1))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, seq, d))
            return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self, m, seq):
            super().__init__()
            d = m["n_embd"]
            self.embedding, self.positions = nn.Embedding(m["vocab_size"], d), nn.Embedding(seq, d)
            self.layers = nn.ModuleList(Block(m) for _ in range(m["n_layer"]))
            self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, m["vocab_size"], bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens, targets):
            x = self.embedding(tokens) + self.positions.weight
            for layer in self.layers:
                x = layer(x)
            return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())

    return Gpt2


def run_peer(shape):
    """Prints tokens/s, seconds a step and GiB of torch.compile's training, as JSON."""
    import torch
    config = json.loads((CONFIGS / f"{shape}.json").read_text(encoding="utf-8"))
    batch, seq = config["train"]["batch"], config["train"]["sequence"]
    kind, own = (gpt2, config["gpt2"]) if "gpt2" in config else (llama, config["model"])
    vocabulary = own["vocab_size"]
    torch.manual_seed(1)
    model = kind(torch)(own, seq).to("cuda")
    optimizer, compiled = torch.optim.AdamW(model.parameters(), 1e-4, fused=True), torch.compile(model)
    ends = []
    for step in range(WARM + STEPS):
        tokens, targets = (torch.randint(0, vocabulary, (batch, seq), device="cuda") for _ in range(2))
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()
    torch.cuda.synchronize()
    seconds = statistics.median(a.elapsed_time(b) for a, b in zip(ends[WARM - 1:], ends[WARM:])) * 1e-3
    print(json.dumps([round(batch * seq / seconds), seconds * 1e3, torch.cuda.max_memory_allocated() / 2**30]))


def peer(shape):
    """Tokens/s, ms a step and peak GiB of torch.compile."""
    command = [sys.executable, __file__, "--run-peer", shape]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        fail(f"{shape}: PyTorch ended with {run.returncode}", 1)
    return json.loads(run.stdout.splitlines()[-1])


def options_of(arguments):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.error = lambda message: fail(message + "; see the head of this file", 2)
    parser.add_argument("program")
    parser.add_argument("--shapes", default="llama_124m,llama_1b", type=lambda text: text.split(","))
    parser.add_argument("--recipes", default="bf16_tc,fp8_tc,mxfp4_tc", type=lambda text: text.split(","))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args(arguments)
    for shape in options.shapes:
        path = CONFIGS / f"{shape}.json"
        if not path.exists() or not {"model", "gpt2"} & set(json.loads(path.read_text(encoding="utf-8"))):
            fail(f"examples/llama/configs has no shape {shape}", 2)
    if shutil.which(options.program) is None:
        fail(f"{options.program} is no program", 2)
    find_torch = [sys.executable, "-c", "import torch"]
    if not options.no_peer and subprocess.run(find_torch, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        fail("the peer needs PyTorch; --no-peer leaves it out", 2)
    return options


def main():
    if sys.argv[1:2] == ["--run-peer"]:
        return run_peer(sys.argv[2])
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    options = options_of(sys.argv[1:])
    print("| shape | recipe | tokens/s | of torch.compile | step, ms | " + " | ".join(CLASSES) + " |")
    print("|---" * (5 + len(CLASSES)) + "|", flush=True)
    for shape in options.shapes:
        reference = None
        if not options.no_peer:
            reference, milliseconds, memory = peer(shape)
            print(f"| {shape} | torch.compile, BF16; {memory:.0f} GiB | {reference} | 1.00 | {milliseconds:.1f} |" +
                  " |" * len(CLASSES), flush=True)
        for recipe in options.recipes:
            rate, *rest = ours(options.program, shape, recipe, options.device)
            ratio = f"{rate / reference:.2f}" if reference else ""
            print(f"| {shape} | {recipe} | {rate} | {ratio} | " + " | ".join(rest) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
