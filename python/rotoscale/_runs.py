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
    """Logs of runs, as lists of records for pandas.DataFrame. Each has `run`, the path of its directory.

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
    """The records of a log. A resume or roll-back with step N voids earlier records of later steps.

    Raises ValueError that names the line of what is no record.
    """
    records = []
    lines = file.read_bytes().split(b"\n")[:-1]  # the last one is being written
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if record["event"] in ("resume", "rollback"):
                records = [r for r in records if r.get("step", 0) <= record["step"] or r["event"] == "start"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"path: {file}:{number} is no record: {error!r}") from None
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
    """Reads the run in the directory `path`, or all runs and studies under it.

    Raises ValueError if there is none, or for a line that is no record.
    """
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
            lists.get(record["event"], found.events).append({"run": run, **record})
        statistics = log.with_name("statistics.jsonl")
        if statistics.exists():
            found.statistics += [{"run": run, **record} for record in _valid(statistics)
                                 if record["event"] not in ("start", "resume")]
    for study in studies:
        with study.open(encoding="utf-8", newline="") as rows:
            for line, row in enumerate(csv.DictReader(rows), 1):
                if None in row or None in row.values():
                    raise ValueError(f"path: {study}: row {line} has another number of cells than the header")
                found.studies.append({"run": str(study.parent), **{k: _number(v) for k, v in row.items()}})
    return found
