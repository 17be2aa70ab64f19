# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""tests/issues.json: cases that users of other libraries reported, with the bits that this one gives."""
import json
from pathlib import Path

import numpy as np
import pytest

import rotoscale
from rotoscale._validate import _safetensors

ISSUES = json.loads((Path(__file__).resolve().parents[2] / "tests/issues.json").read_text(encoding="utf-8"))
LENGTH = {b["name"]: b["length"] for b in rotoscale.block_formats}
ELEMENT = {b["name"]: b["element"] for b in rotoscale.block_formats}


def fp32(words):
    return np.array([int(w, 16) for w in words], np.uint32).view(np.float32)


def codes_of(case, name="codes"):
    return np.array([int(c, 16) for c in case[name]], np.uint8)


def block(case):
    x = np.zeros(LENGTH[case["format"]], np.float32)
    values = fp32(case["x"])
    x[:values.size] = values
    return x


def assert_values(found, expected):
    for value, word in zip(found, expected, strict=True):
        assert np.isnan(value) if word == "nan" else value.tobytes() == fp32([word]).tobytes()


def quantized(case, **options):
    named = {k: case[k] for k in ("preset", "format", "source", "rounding") if k in case}
    return rotoscale.quantize(block(case), **named, **options)


def encode(case):
    found = rotoscale.encode(fp32(case["x"]), case["format"], rounding=case["rounding"], overflow=case["overflow"])
    assert found.tolist() == codes_of(case).tolist()


def decode(case):
    assert_values(rotoscale.decode(codes_of(case), case["format"]), case["values"])


def round_trip(case):
    codes = np.arange(256, dtype=np.uint8)
    values = rotoscale.decode(codes, case["format"])
    finite = ~np.isnan(values)
    assert (rotoscale.encode(values, case["format"])[finite] == codes[finite]).all()


def quantize(case):
    q = quantized(case, random=tuple(case["random"]) if "random" in case else None)
    codes = rotoscale.unpack(q.codes, ELEMENT[case["format"]])
    assert q.scales.tobytes().hex() == case["scale"] and codes[:len(case["codes"])].tolist() == codes_of(case).tolist()


def dequantize(case):
    codes = np.zeros(LENGTH[case["format"]], np.uint8)
    codes[:len(case["codes"])] = codes_of(case)
    packed = rotoscale.pack(codes, ELEMENT[case["format"]])
    values = rotoscale.dequantize(packed, np.array([int(case["scale"], 16)], np.uint8), format=case["format"])
    assert_values(values[:len(case["values"])], case["values"])


def dot(case):
    k = case["k"]
    a = np.full((1, k), int(case["a"], 16), np.uint16)
    scales = np.full((1, k // LENGTH[case["b_format"]]), int(case["b_scale"], 16), np.uint8)
    b = rotoscale.Quantized(np.full((1, k), int(case["b"], 16), np.uint8), scales, case["b_format"])
    found = rotoscale.gemm(a, b, contract=case["contract"], format_a=case["a_format"])
    assert_values(found.ravel(), [case["value"]])


def dump_of(case):
    x = fp32(case["x"])[None]
    dump = {"x": x, "codes": np.frombuffer(bytes.fromhex(case["codes"]), np.uint8)[None]}
    for name in ("scales", "factor"):
        if name in case:
            is_bytes = name == "scales"
            dump[name] = np.frombuffer(bytes.fromhex(case[name]), np.uint8)[None] if is_bytes else fp32([case[name]])
    return dump


def validate(case, tmp_path):
    content = _safetensors(dump_of(case))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    for name in ("codes", "scales"):
        if case.get(name + "_dtype", "U8") != "U8":
            header[name]["dtype"] = case[name + "_dtype"]
            header[name]["shape"][1] *= 2 if case[name + "_dtype"] == "F4" else 1
    text = json.dumps(header).encode()
    path = tmp_path / "dump.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size:])
    assert rotoscale.validate(path, **case["options"]).identical == case["identical"]


def refuse_file(case, tmp_path):
    text = json.dumps(case["header"]).encode()
    path = tmp_path / "file.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(case["bytes"]))
    with pytest.raises(ValueError, match="'t'"):
        rotoscale.identify(path)


def refuse_quantize(case):
    with pytest.raises(ValueError, match="not a multiple"):
        rotoscale.quantize(np.ones((case["rows"], case["columns"]), np.float32), format=case["format"])


def refuse_dtype(case):
    with pytest.raises(TypeError, match="codes"):
        rotoscale.decode(np.zeros(4, case["dtype"]), "e4m3")


def unlike(case):
    first, second = (quantized(case, rounding="stochastic", random=tuple(r)) for r in case["random"])
    assert first.codes.tobytes() != second.codes.tobytes()


def again(case):
    q = quantized(case)
    same = rotoscale.quantize(q.dequantize(), preset=case["preset"], format=case["format"])
    assert same.codes.tobytes() == q.codes.tobytes() and same.scales.tobytes() == q.scales.tobytes()


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: str(issue["number"]))
def test_issue(issue, tmp_path):
    for case in issue["cases"]:
        check = globals()[case["do"]]
        check(case, tmp_path) if check in (validate, refuse_file) else check(case)


def test_all_are_there():
    assert [issue["number"] for issue in ISSUES] == list(range(1, 37))
