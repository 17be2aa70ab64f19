#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Turns the benchmarks' JSON into one table of ratios, each between two medians of the same run.

usage: ratios.py FOLDER   with quantize.json, gemm.json and train.json in it
"""
import json
import sys
from pathlib import Path


def medians(path, counter):
    """Median of a rate by benchmark name, and its largest relative spread (standard deviation / mean)."""
    runs = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    rate = {r["run_name"]: r[counter] for r in runs if r.get("aggregate_name") == "median" and counter in r}
    spread = max((r[counter] for r in runs if r.get("aggregate_name") == "cv" and counter in r), default=0.0)
    return rate, spread


def gemm_roof(name):
    """Eigen's product of the same shape; for models of units this library's FP32 GEMM; for two threads one."""
    arm, shape = name.split("/")[:2]
    if shape == "units-two":
        return f"{arm}/units/real_time"
    if shape == "units":
        return "fp32/units/real_time"
    return f"eigen/{shape}"


def main(folder):
    rows, spreads = [], []

    def add(file, counter, roof_of, what):
        rate, spread = medians(folder / f"{file}.json", counter)
        spreads.append(f"{file} {spread:.0%}")
        for name, value in sorted(rate.items(), key=lambda item: (item[0].split("/")[1], item[0]) if file == "gemm" else item):
            roof = roof_of(name)
            if roof is not None and roof != name:
                rows.append((name, what + " " + roof, value / rate[roof]))

    add("quantize", "bytes_per_second", lambda name: "copy", "bytes/s against")
    add("gemm", "flops", gemm_roof, "FLOP/s against")
    add("train", "flops", lambda name: "linears/eigen" if name.startswith("linears/") else None, "FLOP/s against")
    for base in ("step/fp32", "step/bf16"):
        add("train", "tokens", lambda name: base if name.startswith("step/") else None, "tokens/s against")
    width = max(len(name) for name, _, _ in rows)
    base_width = max(len(base) for _, base, _ in rows)
    for name, base, ratio in rows:
        print(f"{name:{width}}  {base:{base_width}}  {ratio:.2f}" if ratio >= 0.1 else f"{name:{width}}  {base:{base_width}}  {ratio:.4f}")
    print("largest spread between repetitions: " + ", ".join(dict.fromkeys(spreads)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
