# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""validate and identify on arrays, on files and from the command."""
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import rotoscale
from rotoscale._validate import _safetensors

X = np.random.default_rng(7).standard_normal((64, 128)).astype(np.float32)


def dump_of(**options):
    q = rotoscale.quantize(X, **options)
    return {"x": X, "codes": q.codes, "scales": q.scales}


def gemm_dump(contract="hopper-mma-fp16-f32"):
    a, b = X.astype(np.float16)[None, :32], X.astype(np.float16)[None, 32:48]
    return {"a": a, "b": b, "d": rotoscale.gemm(a[0], b[0], contract=contract)[None]}


@pytest.mark.parametrize("preset", ["ocp", "te_rocm", "torchao_even"])
def test_a_quantizer_dump(preset):
    dump = dump_of(preset=preset)
    assert rotoscale.validate(dump, preset=preset, format="mxfp4").identical
    dump["codes"] = dump["codes"].copy()
    dump["codes"][3, 5] ^= 1
    found = rotoscale.validate(dump, preset=preset, format="mxfp4")
    assert not found.identical and found.codes.codes_different == 1 and found.codes.first
    assert found.quantizer == preset and json.loads(str(found)) == found


def test_identify_names_options_that_validate_takes():
    dump = dump_of(preset="te_rocm")
    best = rotoscale.identify(dump, format="mxfp4", sample=64).best
    assert best.rotation == 16 and best.scale_rule == "even"
    options = {name: best[name] for name in ("rotation", "rounding", "scale_rule", "policy", "source")}
    assert rotoscale.validate(dump, preset=best.quantizer, format="mxfp4", **options).identical


def test_nibbles_and_placements():
    q = rotoscale.quantize(X).to("nvidia_scale_128x4")
    dump = {"x": X, "codes": q.codes >> 4 | q.codes << 4, "scales": q.scales}
    assert rotoscale.validate(dump, preset="ocp", format="mxfp4", nibbles="high",
                              scale_placement="nvidia_scale_128x4").identical


def test_a_gemm():
    dump = gemm_dump()
    assert rotoscale.validate(dump, model="hopper-mma-fp16-f32").identical
    assert not rotoscale.validate(dump, model="volta-mma-fp16-f32").identical
    found = rotoscale.identify(dump)
    assert found.identical and "hopper-mma-fp16-f32" in [c.model for c in found.candidates[:found.tied]]


def test_narrow_dtypes_are_tensors():
    a = X[:32].astype(ml_dtypes.float8_e4m3fn)
    dump = {"a": a[None], "b": a[None, :16], "d": rotoscale.gemm(a, a[:16], contract="hopper-wgmma-fp8-f32")[None]}
    assert rotoscale.validate(dump, model="hopper-wgmma-fp8-f32").identical


@pytest.mark.parametrize("call, error, says", [
    (lambda: rotoscale.validate(dump_of(), format="mxfp4"), ValueError, "preset: needed"),
    (lambda: rotoscale.validate(dump_of(), preset="ocq", format="mxfp4"), ValueError, "'ocq'"),
    (lambda: rotoscale.validate(dump_of(), preset="ocp", scale_role="even"), ValueError, "scale_role: is no option"),
    (lambda: rotoscale.validate(dump_of(), preset="ocp", format="mxfp4", alpha=2), ValueError, "alpha: is for GEMMs"),
    (lambda: rotoscale.validate(dump_of(), preset="ocp", format="mxfp4", nibbles="both"), ValueError, "low, high"),
    (lambda: rotoscale.validate(gemm_dump(), model="hopper"), ValueError, "no model 'hopper'"),
    (lambda: rotoscale.validate({"x": X, "codes": X}, preset="ocp"), ValueError, "codes"),
    (lambda: rotoscale.validate({"x": X.astype(np.int64)}, preset="ocp"), TypeError, "x: dtype int64"),
    (lambda: rotoscale.validate("none.safetensors", preset="ocp"), ValueError, "none.safetensors"),
])
def test_refusals(call, error, says):
    with pytest.raises(error) as caught:
        call()
    assert says in str(caught.value) and "--" not in str(caught.value)


def test_the_command(tmp_path):
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "rotoscale", *arguments], cwd=tmp_path, capture_output=True,
                              text=True)

    dump = dump_of(preset="te_rocm")
    (tmp_path / "dump.safetensors").write_bytes(_safetensors(dump))
    done = run("validate", "dump.safetensors", "--quantizer", "te_rocm", "--format", "mxfp4")
    expected = {**rotoscale.validate(dump, preset="te_rocm", format="mxfp4"), "input": "dump.safetensors"}
    assert done.returncode == 0 and json.loads(done.stdout) == expected
    assert run("validate", "dump.safetensors", "--quantizer", "ocp", "--format=mxfp4").returncode == 1
    assert json.loads(run("identify", "dump.safetensors", "--format", "mxfp4").stdout)["identical"]
    refused = run("validate", "dump.safetensors", "--quantizer")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
