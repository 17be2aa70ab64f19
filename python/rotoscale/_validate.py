# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""A kernel's tensors against the bits of a model: rotoscale-validate on arrays."""
from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core
from ._arrays import as_numpy

_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8", "int8": "I8",
    "uint32": "U32", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn": "U8", "float6_e2m3fn": "U8",
    "float6_e3m2fn": "U8", "float4_e2m1fn_x2": "F4"}


class Findings(dict):
    """A report of validate or identify: its fields as keys and as attributes; prints as JSON."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{name}: this report has {', '.join(self)}") from None

    def __str__(self) -> str:
        return json.dumps(self, indent=2)


def _safetensors(tensors):
    """The bytes of a safetensors file. Codes of ml_dtypes are one per byte."""
    header, data = {}, []
    for name, tensor in tensors.items():
        array, dtype = as_numpy(tensor, name)
        if dtype not in _SAFETENSORS:
            raise TypeError(f"{name}: dtype {dtype} is none of {', '.join(_SAFETENSORS)}")
        shape = list(array.shape)
        if dtype == "float4_e2m1fn_x2":
            shape[-1] *= 2  # a file has the logical shape
        begin = sum(map(len, data))
        data.append(np.ascontiguousarray(array).tobytes())
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": shape, "data_offsets": [begin, begin + len(data[-1])]}
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _text(value):
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _report(dump, options, identify):
    options = {"quantizer" if name == "preset" else name: value for name, value in options.items()
               if value is not None and value is not False}
    pairs = [(name.replace("_", "-"), _text(value)) for name, value in options.items()]
    in_memory = isinstance(dump, Mapping)
    name, content = ("dump", _safetensors(dump)) if in_memory else (os.fspath(dump), b"")
    try:
        text = _core.validate_report(name, content, pairs, identify)
    except ValueError as error:
        message = re.sub(r" \(--list-models shows all\)|; --list-[a-z]+ shows all", "", str(error))
        message = re.sub(r"--([a-z][a-z-]*)", lambda m: m[1].replace("-", "_"), message)
        raise ValueError(re.sub(r"\bquantizer:", "preset:", message)) from None
    return json.loads(text, object_hook=Findings)


def validate(dump: Mapping[str, Any] | str | os.PathLike, *, preset: str | None = None, model: str | None = None,
             **options: Any) -> Findings:
    """Compares a kernel's result with its model, bit for bit, as rotoscale-validate does.

    dump     a safetensors file, or arrays by name
             a quantizer's: x (M, N), codes and scales, or codes_t and scales_t; optionally factor, amax, random
             a GEMM's: a (B, M, K), b (B, N, K), d (B, M, N); optionally c, bias, scale_a, scale_b, metadata_a
    preset   quantizer: a name in rotoscale.presets, or "fp8"
    model    GEMM: a name in rotoscale.models
    options  the program's others, with underscores: kernel, promotion, split_k, alpha, a_format, nan, scale_layout,
             format, rotation, scale_rule, rounding, source, nibbles, scale_placement, detail, ...

    Returns the fields of the program's --report: `identical` (or `accepted`), then counts and the first difference.
    Raises ValueError for tensors or options that the program refuses.
    """
    return _report(dump, {"preset": preset, "model": model, **options}, False)


def identify(dump: Mapping[str, Any] | str | os.PathLike, *, sample: int | None = None, **options: Any) -> Findings:
    """Ranks what may have made a dump: quantizers for x and codes, models of matrix units for a, b and d.

    sample   elements of a GEMM (20000) or runs of a quantizer's dump (512) that candidates are tried on
    options  as for validate; one that is given is not searched

    Returns `best` (None where nothing explains half), `candidates`, `tied`, `identical` and more. Raises as validate.
    """
    return _report(dump, {"sample": sample, **options}, True)
