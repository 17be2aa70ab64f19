# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Logs of mini-llama as records."""
from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass
class Runs:
    """What runs left, as lists of records that pandas.DataFrame takes. Each has `run`, the path of its directory.

    starts       a record per run: options, effective schedule, device, commit
    steps        loss, learning rate, gradient norm, tokens, seconds
    evaluations  validation losses
    events       switches, checkpoints, noise, resumes, roll-backs, ends
    statistics   quantization errors by layer, tensor and GEMM
    studies      rows of runs.csv files
    """

    starts: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    evaluations: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    statistics: list[Record] = field(default_factory=list)
    studies: list[Record] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Runs({', '.join(f'{len(rows)} {name}' for name, rows in vars(self).items())})"


def _valid(file):
    """The records of a log. A resume or roll-back with step N voids earlier records of later steps."""
    records = []
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # a line that is being written
        record = json.loads(line)
        if record.get("event") in ("resume", "rollback"):
            records = [r for r in records if r.get("step", 0) <= record["step"] or r["event"] == "start"]
        records.append(record)
    return records


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def runs(path: str | os.PathLike) -> Runs:
    """Reads the run in the directory `path`, or all runs and studies under it. Raises ValueError if there is none."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: {path!r}, expected a path")
    top, found = Path(path), Runs()
    logs, studies = sorted(top.rglob("log.jsonl")), sorted(top.rglob("runs.csv"))
    if not logs and not studies:
        raise ValueError(f"path: {top} has no log.jsonl and no runs.csv")
    lists = {"start": found.starts, "step": found.steps, "eval": found.evaluations}
    for log in logs:
        run = str(log.parent)
        for record in _valid(log):
            lists.get(record.get("event"), found.events).append({"run": run, **record})
        statistics = log.with_name("statistics.jsonl")
        if statistics.exists():
            found.statistics += [{"run": run, **record} for record in _valid(statistics)
                                 if record["event"] not in ("start", "resume")]
    for study in studies:
        with study.open(encoding="utf-8", newline="") as rows:
            found.studies += [{"run": str(study.parent), **{k: _number(v) for k, v in row.items()}}
                              for row in csv.DictReader(rows)]
    return found
