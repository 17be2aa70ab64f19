# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Logs as records: voided records are left out, studies have numbers."""
import json

import pytest

import rotoscale


@pytest.mark.parametrize("name, text, says", [
    ("log.jsonl", '{"event": "start"}\n{"eve\n', "log.jsonl:2 is no record"),
    ("log.jsonl", "3\n", "log.jsonl:1 is no record"),
    ("log.jsonl", '{"event": "start"}\n{"event": "resume"}\n', "log.jsonl:2 is no record: KeyError"),
    ("runs.csv", "arm,seed\nmxfp4\n", "row 1 has another number of cells"),
    ("runs.csv", "arm,seed\nmxfp4,1,2\n", "row 1 has another number of cells")])
def test_a_broken_file_is_named(tmp_path, name, text, says):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"path: .*{says}"):
        rotoscale.runs(tmp_path)


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


def step(n, loss):
    return {"event": "step", "step": n, "loss": loss}


def test_runs(tmp_path):
    with pytest.raises(ValueError, match="path: .* has no log.jsonl"):
        rotoscale.runs(tmp_path)
    write(tmp_path / "a/log.jsonl",
          [{"event": "start", "seed": 1}, step(1, 5.0), step(2, 4.0), {"event": "eval", "step": 2, "val_loss": 4.5},
           step(3, 9.0), {"event": "resume", "step": 2}, step(3, 3.0), {"event": "end", "status": "ok", "step": 3}])
    write(tmp_path / "a/statistics.jsonl", [{"event": "operand", "step": 1, "sqnr_db": 20.5}])
    write(tmp_path / "b/log.jsonl", [{"event": "start", "seed": 2}, step(1, None)])
    with (tmp_path / "b/log.jsonl").open("a", encoding="utf-8") as log:
        log.write('{"event": "end", "reason": "\u2028"}\n{"event": "st')  # being written
    (tmp_path / "runs.csv").write_text("arm,seed,loss\nmxfp4,1,2.5\n", encoding="utf-8")
    found = rotoscale.runs(tmp_path)
    a = str(tmp_path / "a")
    assert [(r["step"], r["loss"]) for r in found.steps if r["run"] == a] == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert [r["seed"] for r in found.starts] == [1, 2] and found.evaluations[0]["val_loss"] == 4.5
    assert [r["event"] for r in found.events] == ["resume", "end", "end"]
    assert found.statistics == [{"run": a, "event": "operand", "step": 1, "sqnr_db": 20.5}]
    assert found.studies == [{"run": str(tmp_path), "arm": "mxfp4", "seed": 1, "loss": 2.5}]
    assert repr(rotoscale.runs(tmp_path / "b")) == (
        "Runs(1 starts, 1 steps, 0 evaluations, 1 events, 0 statistics, 0 studies)")
