# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of each preset for the same numbers."""
from __future__ import annotations

from typing import Any

from . import _core
from ._quantized import quantize


class Explanation(list):
    """Records of explain; prints as a table."""

    def __str__(self) -> str:
        names = ("preset", "scale_rule", "rotation", "scales", "sqnr_db", "codes")
        rows = [names] + [tuple(f"{r[n]:.2f}" if n == "sqnr_db" else str(r[n]) for n in names) for r in self]
        widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)


def explain(block: Any, *, format: str = "mxfp4", presets: list[str] | None = None, **options: Any) -> Explanation:
    """Quantizes `block` (one axis, whole blocks) under each preset and returns records with the bytes side by side.

    Keys: preset, scale_rule, policy, rotation, scales and codes (hexadecimal), values (FP32), sqnr_db. Without
    `presets`, all that are defined for the format. `options` are quantize's.
    """
    chosen = [r for r in _core.presets if presets is None or r["name"] in presets]
    unknown = set(presets or ()) - {r["name"] for r in chosen}
    if unknown:
        raise ValueError(f"presets: no {sorted(unknown)[0]!r}")
    records = Explanation()
    for preset in chosen:
        try:
            q = quantize(block, preset=preset["name"], format=format, **options)
        except ValueError as error:
            if presets is None and str(error).startswith("policy."):
                continue  # its bytes are no numbers of this scale format
            raise
        records.append({
            "preset": preset["name"], "scale_rule": options.get("scale_rule") or preset["scale_rule"],
            "policy": options.get("policy") or preset["policy"], "rotation": q.rotation[0],
            "scales": q.scales.tobytes().hex(" "), "codes": q.codes.tobytes().hex(), "values": q.dequantize(),
            "sqnr_db": q.sqnr(block)})
    return records
