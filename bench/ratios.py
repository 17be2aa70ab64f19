#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Prints one table of ratios from the benchmarks' JSON. A ratio divides two medians of the same run. The spread is the
standard deviation of the numerator's repetitions over their mean.

usage: ratios.py FOLDER   with quantize.json, gemm.json and train.json in it
"""
import json
import sys
from pathlib import Path


def run_name(run):
    """Name without the suffix that Google Benchmark appends to runs timed by the clock."""
    return run["run_name"].removesuffix("/real_time")


def rates(path, counter):
    """Median and relative spread of a rate, by benchmark name."""
    runs = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]

    def aggregate(name):
        return {run_name(r): r[counter] for r in runs if r.get("aggregate_name") == name and counter in r}

    return aggregate("median"), aggregate("cv")


def gemm_roof(name):
    """Benchmark to divide by: Eigen's product, for models of units the FP32 GEMM, for two threads one thread."""
    arm, shape = name.split("/")
    if shape == "units-two":
        return f"{arm}/units"
    if shape == "units":
        return "fp32/units"
    return f"eigen/{shape}"


def main(folder):
    rows = []

    def add(file, counter, roof_of, what):
        rate, spread = rates(folder / f"{file}.json", counter)
        by_shape = (lambda name: (name.split("/")[1], name)) if file == "gemm" else None
        for name in sorted(rate, key=by_shape):
            roof = roof_of(name)
            if roof is not None and roof != name:
                rows.append((name, what + " " + roof, rate[name] / rate[roof], spread.get(name, 0.0)))

    add("quantize", "bytes_per_second", lambda name: "copy", "bytes/s against")
    add("gemm", "flops", gemm_roof, "FLOP/s against")
    add("train", "flops", lambda name: "linears/eigen" if name.startswith("linears/") else None, "FLOP/s against")
    for base in ("step/fp32", "step/bf16"):
        add("train", "tokens", lambda name: base if name.startswith("step/") else None, "tokens/s against")
    width = max(len(row[0]) for row in rows)
    base_width = max(len(row[1]) for row in rows)
    for name, base, ratio, spread in rows:
        value = f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}"
        print(f"{name:{width}}  {base:{base_width}}  {value:6}  spread {spread:.0%}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
