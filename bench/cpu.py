#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times GEMMs on one core, quantizers and training steps on two, against Eigen, a copy and PyTorch in the same run.

usage: cpu.py BUILD [--parts gemm,quantize,demo,wide] [--threads 2] [--rounds 3]
  BUILD has bench/gemm_bench, bench/quantize_bench and examples/llama/mini-llama.
  - gemm: medians of 5, FLOP/s against Eigen's FP32 product. Operands are quantized before; packing is timed.
  - quantize: bytes/s of two threads against a copy.
  - demo, wide: tokens/s of steps of examples/demo.sh's model, and of one of width 512 on 4 x 256 tokens. The peer is
    the same model in PyTorch, eager, with and without BF16 autocast. Arms take turns; a rate is the median of rounds.
  AMX is switched off by ROTOSCALE_AMX=0. Prints a Markdown table. Exit status: 1 if a run fails, 2 for bad usage.
"""
import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = {"demo": (256, 128, 352, 4, 4, 2, 16, 128), "wide": (256, 512, 1408, 4, 8, 4, 4, 256)}
NAMES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "batch", "sequence")
ARMS = (("fp32", None), ("bf16", None), ("bf16", "cpu"), ("mxfp4_h16", None), ("mxfp4_h16", "cpu"))
PEERS = ("PyTorch FP32", "PyTorch BF16")
STEPS, WARM = 5, 2


def run(command, **environment):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, **environment})
    if done.returncode != 0:
        print(f"cpu.py: {command[0]} ended with {done.returncode}", file=sys.stderr)
        sys.exit(1)
    return done.stdout


def median_rates(program, pattern, counter, **environment):
    """Median of a rate by benchmark."""
    out = run([program, f"--benchmark_filter={pattern}", "--benchmark_format=json", "--benchmark_repetitions=5",
               "--benchmark_min_time=0.03", "--benchmark_enable_random_interleaving=true"], **environment)
    rates = {}
    for r in json.loads(out)["benchmarks"]:
        if r["run_type"] == "iteration":
            rates.setdefault(r["run_name"], []).append(r[counter])
    return {name: statistics.median(values) for name, values in rates.items()}


def gemm_rows(program):
    for label, environment in (("", {}), (", without AMX", {"ROTOSCALE_AMX": "0"})):
        rates = median_rates(program, "^(eigen|fp32|mxfp4|bf16_amx)/[^u]", "flops", **environment)
        for name, rate in sorted(rates.items()):
            arm, shape = name.split("/")
            if arm != "eigen":
                roof = rates["eigen/" + shape]
                yield f"GEMM {arm}, {shape}{label}", f"{rate / 1e9:.0f} GFLOP/s", f"{rate / roof:.2f}", ""


def quantize_rows(program):
    rates = median_rates(program, "^(copy|from_.*h16|both)", "bytes_per_second")
    roof = rates.pop("copy/real_time")
    for name, rate in sorted(rates.items()):
        yield f"quantize, {name.removesuffix('/real_time')}", f"{rate / 2**30:.1f} GiB/s", f"{rate / roof:.2f}", ""


def own_rate(program, shape, recipe, contracts, options, folder):
    flags = [text for name, value in zip(NAMES, SHAPES[shape]) for text in ("--" + name.replace("_", "-"), str(value))]
    run([program, "train", "--device", "cpu", "--threads", str(options.threads), "--recipe", recipe, *flags,
         "--steps", str(WARM + STEPS), "--data", folder / "data", "--out", folder / "run", "--overwrite",
         "--eval-windows", "1", "--final-eval-windows", "1", *(["--contracts", contracts] if contracts else [])])
    steps = [line for line in map(json.loads, (folder / "run/log.jsonl").open()) if line["event"] == "step"]
    return statistics.median(line["tokens_per_s"] for line in steps[WARM:])


def run_peer(shape, kind, threads):
    """Prints tokens/s of PyTorch."""
    import torch
    spec = importlib.util.spec_from_file_location("peer", Path(__file__).resolve().parent / "gpu/train.py")
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    own = {"rope_theta": 10000.0, **dict(zip(NAMES, SHAPES[shape]))}
    batch, seq = own["batch"], own["sequence"]
    model = peer.llama(torch)(own, seq)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    times = []
    for _ in range(WARM + STEPS):
        tokens, targets = (torch.randint(0, own["vocab_size"], (batch, seq)) for _ in range(2))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "BF16"):
            loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
    print(batch * seq / statistics.median(times[WARM:]))


def step_rows(program, shape, options, folder):
    rates = {}
    for _ in range(options.rounds):
        for name in PEERS:
            command = [sys.executable, __file__, "--run-peer", shape, name.split()[1], str(options.threads)]
            rates.setdefault(name, []).append(float(run(command).split()[-1]))
        for recipe, contracts in ARMS:
            name = recipe + (f" under `{contracts}`" if contracts else "")
            rates.setdefault(name, []).append(own_rate(program, shape, recipe, contracts, options, folder))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        yield (f"{shape} step, {name}", f"{rate:.0f} tokens/s",
               *(f"{rate / medians[peer]:.2f}" for peer in PEERS))


def main():
    if sys.argv[1:2] == ["--run-peer"]:
        return run_peer(*sys.argv[2:])
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("build", type=Path)
    parser.add_argument("--parts", default="gemm,quantize,demo,wide", type=lambda text: text.split(","))
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args()
    print("| what | rate | of Eigen, copy, PyTorch FP32 | of PyTorch BF16 |\n|---|---|---|---|", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="cpu-"))
    (folder / "data").write_text(" ".join(map(str, range(200000))), encoding="utf-8")
    for part in options.parts:
        if part in ("gemm", "quantize"):
            rows = {"gemm": gemm_rows, "quantize": quantize_rows}[part](options.build / f"bench/{part}_bench")
        else:
            rows = step_rows(options.build / "examples/llama/mini-llama", part, options, folder)
        for row in rows:
            print("| " + " | ".join(row) + " |", flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
