#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Results of ml_dtypes, torch with torchao, microxcaling and gfloat for the cases of tests/issues.json.

usage: libraries.py [--write]   prints the table, or writes it to docs/reference/libraries.md

Needs the packages and a checkout of microsoft/microxcaling on PYTHONPATH. A cell is "yes" if all cases that the library
offers have the bits of tests/issues.json, else the first result that differs; "-" where it offers none of them.
"""
import json
import sys
from pathlib import Path

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import torch
from mx import elemwise_ops, mx_ops
from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"e2m1": "float4_e2m1fn", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz",
          "e8m0": "float8_e8m0fnu"}
LENGTH = {"nvfp4": 16}
RULES = {"ocp": "floor", "torchao_floor": "floor", "torchao_even": "even", "torchao_ceil": "ceil",
         "torchao_rceil": "rceil", "aiter_even": "even", "aiter_round_up": "rceil"}
MODES = {"nearest_even": "TiesToEven", "up": "TowardPositive"}


def fp32(words):
    return np.array([int(w, 16) for w in words], np.uint32).view(np.float32)


def hexadecimal(codes, digits=2):
    return [f"{int(c):0{digits}x}" for c in codes]


def words(values):
    return ["nan" if np.isnan(v) else v.tobytes()[::-1].hex() for v in np.asarray(values, np.float32)]


def block(case):
    x = np.zeros(LENGTH.get(case["format"], 32), np.float32)
    x[:len(case["x"])] = fp32(case["x"])
    return x


def is_plain(case):
    return not {"source", "random"} & case.keys()


class MlDtypes:
    name = "ml_dtypes"

    def encode(self, case):
        if case["rounding"] != "nearest_even":
            return None  # no modes
        with np.errstate(all="ignore"):
            codes = fp32(case["x"]).astype(getattr(ml_dtypes, DTYPES[case["format"]])).view(np.uint8)
        return hexadecimal(codes)

    def decode(self, case):
        codes = np.array([int(c, 16) for c in case["codes"]], np.uint8)
        return words(codes.view(getattr(ml_dtypes, DTYPES[case["format"]])).astype(np.float32))


class Torchao:
    name = "torch, torchao"

    def encode(self, case):
        if case["rounding"] != "nearest_even":
            return None
        x = torch.from_numpy(fp32(case["x"]))
        return hexadecimal(x.to(getattr(torch, DTYPES[case["format"]])).view(torch.uint8).numpy())

    def decode(self, case):
        dtype = getattr(torch, DTYPES[case["format"]], None)
        if dtype is None:
            return None
        codes = torch.tensor([int(c, 16) for c in case["codes"]], dtype=torch.uint8)
        return words(codes.view(dtype).float().numpy())

    def quantize(self, case):
        x = torch.from_numpy(block(case))[None]
        if case["format"] == "nvfp4":
            if case["preset"] == "nvidia":
                return None  # another library's scales
            scales, codes = nvfp4_tensor.nvfp4_quantize(x, 16)
        else:
            names = {"mxfp4": torch.float4_e2m1fn_x2, "mxfp6_e2m3": "fp6_e2m3", "mxfp8_e4m3": torch.float8_e4m3fn,
                     "mxfp8_e5m2": torch.float8_e5m2}
            rule = RULES.get(case["preset"])
            if rule is None or not is_plain(case):
                return None
            mode = mx_tensor.ScaleCalculationMode[rule.upper()]
            scales, codes = mx_tensor.to_mx(x, names[case["format"]], 32, mode)
        codes = codes.view(torch.uint8).numpy().ravel()
        if case["format"] in ("mxfp4", "nvfp4"):
            codes = np.stack([codes & 15, codes >> 4], -1).ravel()
        digits = len(case["codes"][0])
        return hexadecimal(scales.view(torch.uint8).numpy().ravel()) + hexadecimal(codes[:len(case["codes"])], digits)

    def dequantize(self, case):
        code, scale = int(case["codes"][0], 16), int(case["scale"], 16)
        if case["format"] == "mxfp4":
            dtype, data = torch.float4_e2m1fn_x2, torch.tensor([[code] + [0] * 15], dtype=torch.uint8)
        else:
            dtype, data = torch.float8_e4m3fn, torch.tensor([[code] + [0] * 31], dtype=torch.uint8)
        scales = torch.tensor([[scale]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
        data = data if dtype == torch.float4_e2m1fn_x2 else data.view(dtype)
        return words(mx_tensor.to_dtype(data, scales, dtype, 32, torch.float32).numpy().ravel()[:1])


class Microxcaling:
    """Has values, no codes."""

    name = "microxcaling"

    def encode(self, case):
        if case["format"] not in ("e4m3", "e5m2") or case["rounding"] != "nearest_even":
            return None
        kind = {"e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2"}[case["format"]]
        x = torch.from_numpy(fp32(case["x"]))
        out = elemwise_ops._quantize_elemwise(x, kind, round="even", saturate_normals=case["overflow"] == "saturate")
        with np.errstate(all="ignore"):
            return hexadecimal(out.numpy().astype(getattr(ml_dtypes, DTYPES[case["format"]])).view(np.uint8))

    def quantize(self, case):
        kinds = {"mxfp4": "fp4_e2m1", "mxfp6_e2m3": "fp6_e2m3", "mxfp8_e4m3": "fp8_e4m3", "mxfp8_e5m2": "fp8_e5m2"}
        if RULES.get(case["preset"]) != "floor" or case["format"] not in kinds or not is_plain(case):
            return None
        x = torch.from_numpy(block(case))[None]
        out = mx_ops._quantize_mx(x, 8, kinds[case["format"]], axes=[-1], block_size=32, round="even").numpy().ravel()
        scale = np.float64(2.0) ** (int(case["scale"], 16) - 127)
        element = getattr(ml_dtypes, {"mxfp4": "float4_e2m1fn", "mxfp6_e2m3": "float6_e2m3fn",
                                      "mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2"}[case["format"]])
        codes = (out / scale).astype(np.float32).astype(element).view(np.uint8)
        return [case["scale"]] + hexadecimal(codes[:len(case["codes"])], len(case["codes"][0]))


class Gfloat:
    name = "gfloat"

    def encode(self, case):
        f = getattr(gfloat.formats, "format_info_ocp_" + case["format"], None)
        if f is None:
            return None
        mode = gfloat.RoundMode[MODES[case["rounding"]]]
        x = fp32(case["x"]).astype(np.float64)
        rounded = gfloat.round_ndarray(f, x, mode, case["overflow"] == "saturate")
        return hexadecimal(gfloat.encode_ndarray(f, rounded))

    def decode(self, case):
        f = getattr(gfloat.formats, "format_info_ocp_" + case["format"], None)
        if f is None:
            return None
        return words(gfloat.decode_ndarray(f, np.array([int(c, 16) for c in case["codes"]], np.int64)))

    def quantize(self, case):
        f = getattr(gfloat.formats, "format_info_" + case["format"].replace("mxfp4", "mxfp4_e2m1"), None)
        if f is None or RULES.get(case["preset"]) != "floor" or not is_plain(case):
            return None
        x = block(case).astype(np.float64)
        scale = gfloat.compute_scale_amax(f.etype.emax, x)
        found = list(gfloat.encode_block(f, scale, x / scale, gfloat.RoundMode.TiesToEven))
        return hexadecimal(found[:1]) + hexadecimal(found[1:1 + len(case["codes"])], len(case["codes"][0]))

    def dequantize(self, case):
        f = getattr(gfloat.formats, "format_info_" + case["format"].replace("mxfp4", "mxfp4_e2m1"))
        codes = [int(case["scale"], 16), int(case["codes"][0], 16)] + [0] * 31
        return words(list(gfloat.decode_block(f, codes))[:1])


def expected(case):
    if case["do"] == "quantize":
        return [case["scale"], *case["codes"]]
    return case["values" if case["do"] in ("decode", "dequantize") else "codes"]


def is_equal(found, wanted, case):
    nan = {"7f", "ff"} if case["do"] == "encode" and case["format"] == "e4m3" else {None}
    return found == wanted or {found, wanted} <= nan  # a NaN's sign is open


def cell(library, issue):
    tried = 0
    for case in issue["cases"]:
        call = getattr(library, case["do"], None)
        try:
            found = call(case) if call else None
        except (KeyError, NotImplementedError, RuntimeError, TypeError, AssertionError):
            found = None
        if found is None:
            continue
        tried += 1
        for have, want in zip(found, expected(case), strict=True):
            if not is_equal(have, want, case):
                return f"{have}/{want}"
    return "yes" if tried else "-"


def table():
    issues = json.loads((ROOT / "tests/issues.json").read_text(encoding="utf-8"))
    libraries = [MlDtypes(), Torchao(), Microxcaling(), Gfloat()]
    yield "| | report | " + " | ".join(library.name for library in libraries) + " |"
    yield "|---" * (2 + len(libraries)) + "|"
    for issue in issues:
        name = issue["link"].split("/")[4].replace("TransformerEngine", "TE")
        cells = [cell(library, issue) for library in libraries]
        if not set(cells) <= {"yes", "-"}:
            yield "| " + " | ".join([str(issue["number"]), f"[{name}]({issue['link']})", *cells]) + " |"


def main():
    text = "\n".join(table()) + "\n"
    if sys.argv[1:] != ["--write"]:
        print(text, end="")
        return
    page = ROOT / "docs/reference/libraries.md"
    before = page.read_text(encoding="utf-8").partition("| | report")[0]
    page.write_text(before + text, encoding="utf-8")


if __name__ == "__main__":
    main()
