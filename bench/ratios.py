#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Turns the benchmarks' JSON into one table of ratios, each between two medians of the same run, with the spread of
its numerator's repetitions (standard deviation over mean).

usage: ratios.py FOLDER   with quantize.json, gemm.json and train.json in it
"""
import json
import sys
from pathlib import Path


def rates(path, counter):
    """Median and relative spread of a rate by benchmark name."""
    runs = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]

    def aggregate(name):
        return {r["run_name"]: r[counter] for r in runs if r.get("aggregate_name") == name and counter in r}

    return aggregate("median"), aggregate("cv")


def gemm_roof(name):
    """Eigen's product of the same shape; for models of units this library's FP32 GEMM; for two threads one."""
    arm, shape = name.split("/")[:2]
    if shape == "units-two":
        return f"{arm}/units/real_time"
    if shape == "units":
        return "fp32/units/real_time"
    return f"eigen/{shape}"


def main(folder):
    rows = []

    def add(file, counter, roof_of, what):
        rate, spread = rates(folder / f"{file}.json", counter)
        for name, value in sorted(rate.items(), key=lambda item: (item[0].split("/")[1], item[0]) if file == "gemm" else item):
            roof = roof_of(name)
            if roof is not None and roof != name:
                rows.append((name, what + " " + roof, value / rate[roof], spread.get(name, 0.0)))

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
