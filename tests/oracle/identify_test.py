# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale-validate --identify on dumps of third-party quantizers, from BF16 and F32 sources.

torchao       four scale modes for FP4 and FP8, one-level NVFP4
ml_dtypes     casts under scales computed with NumPy's frexp
microxcaling  FP4 and FP8, halves away and to even, if a checkout is on PYTHONPATH

The preset named after the quantizer must explain each dump completely. No other arithmetic that the input
distinguishes may do so. Skips (77) without numpy, ml_dtypes, torch and torchao.

usage: identify_test.py VALIDATE
"""

import importlib
import pathlib
import re
import subprocess
import sys
import tempfile

import oracle

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
from safetensors_bytes import write_safetensors  # noqa: E402


def source(np, dtype):
    """FP32 bits of numbers whose blocks have an amax at each rule's limits, and of ties. The tests of each library
    cover the ends of the range."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((96, 256)) * np.exp2(rng.integers(-20, 21, (96, 1)))
    x[32:64] = rng.integers(-24, 25, (32, 256)) * np.exp2(rng.integers(-6, 7, (32, 1)) - 2.0)
    x[64:, ::32] = rng.choice([1.0, 1.5, 1.75, 1.9921875, 1.7421875], (32, 8)) * 4
    x[64:] = np.clip(x[64:], -8, 8)
    x[0, :32] = 0
    bits = x.astype(np.float32).view(np.uint32)
    return bits if dtype == "F32" else bits >> 16 << 16


class Validator:
    def __init__(self, program, folder):
        self.program, self.path = program, folder / "dump.safetensors"

    def explains(self, name, tensors, *options):
        """Changes from the wanted preset, as the first line names them. The preset must explain the whole dump."""
        write_safetensors(self.path, tensors)
        done = subprocess.run([self.program, "--identify", "--input", self.path, *options], capture_output=True,
                              text=True)
        lines = re.findall(r"^  (\d+)  (.*)$", done.stdout, re.M)
        ok = done.returncode == 0 and name in re.split(" = ", lines[0][1])
        print(f"{name}: {lines[0][0] + ' explained by ' + lines[0][1] if lines else done.stderr}"
              f"{'' if ok else ' - WRONG'}")
        return ok


def tensors_of(x, rows, cols, codes, scales, scale_dtype="U8", codes_dtype="U8"):
    wide = (x & 0xFFFF).any()
    return {"x": ("F32" if wide else "BF16", [rows, cols],
                  x.astype("<u4").tobytes() if wide else (x >> 16).astype("<u2").tobytes()),
            "codes": (codes_dtype, list(codes.shape), codes.tobytes()),
            "scales": (scale_dtype, list(scales.shape), scales.tobytes())}


def torchao_dumps(np, torch, x, values, validator):
    mx_tensor = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    nvfp4_tensor = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    for mode in ("floor", "ceil", "even", "rceil"):
        for dtype, codes_dtype in ((torch.float4_e2m1fn_x2, "U8"), (torch.float8_e4m3fn, "F8_E4M3")):
            scales, codes = mx_tensor.to_mx(torch.from_numpy(values), dtype, 32,
                                            mx_tensor.ScaleCalculationMode[mode.upper()])
            codes = codes.view(torch.uint8).numpy()
            scales = scales.view(torch.uint8).numpy().reshape(values.shape[0], -1)
            yield validator.explains(f"torchao_{mode}",
                                     tensors_of(x, *values.shape, codes, scales, codes_dtype=codes_dtype))
    scales, codes = nvfp4_tensor.nvfp4_quantize(torch.from_numpy(values), 16)
    tensors = tensors_of(x, *values.shape, codes.view(torch.uint8).numpy(),
                         scales.view(torch.uint8).numpy().reshape(values.shape[0], -1), "F8_E4M3")
    tensors["factor"] = ("F32", [1], np.float32(1).tobytes())
    yield validator.explains("torchao_nvfp4", tensors)


def ml_dtypes_dumps(np, ml_dtypes, x, values, validator):
    """OCP's procedure in plain NumPy, one byte per code."""
    blocks = values.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1)
    for name, element, emax in (("mxfp4", ml_dtypes.float4_e2m1fn, 2), ("mxfp8_e5m2", ml_dtypes.float8_e5m2, 15)):
        exponent = np.where(amax == 0, -127, np.frexp(amax)[1] - 1 - emax)
        scaled = np.ldexp(blocks, -exponent[:, None])
        largest = float(ml_dtypes.finfo(element).max)
        codes = np.clip(scaled, -largest, largest).astype(element).view(np.uint8).reshape(values.shape)
        scales = (exponent + 127).astype(np.uint8).reshape(values.shape[0], -1)
        yield validator.explains("ocp", tensors_of(x, *values.shape, codes, scales), "--format", name)


def microxcaling_dumps(np, torch, x, values, validator):
    try:
        mx_ops = importlib.import_module("mx.mx_ops")
    except ImportError:
        print("skipped: no microxcaling on PYTHONPATH")
        return
    # microxcaling returns values. Codes are the values under the floor rule's scales, which each element holds exactly.
    # Halves round away from zero by default.
    ml_dtypes = importlib.import_module("ml_dtypes")
    amax = np.abs(values.reshape(-1, 32)).max(axis=1)
    for name, theirs, element, emax in (("mxfp4", "fp4_e2m1", ml_dtypes.float4_e2m1fn, 2),
                                        ("mxfp8_e4m3", "fp8_e4m3", ml_dtypes.float8_e4m3fn, 8),
                                        ("mxfp8_e5m2", "fp8_e5m2", ml_dtypes.float8_e5m2, 15)):
        exponent = np.where(amax == 0, -127, np.frexp(amax)[1] - 1 - emax)
        scales = (exponent + 127).astype(np.uint8).reshape(values.shape[0], -1)
        for rounding, preset in (("nearest", "ocp, but rounding nearest_away"), ("even", "ocp")):
            out = mx_ops._quantize_mx(torch.from_numpy(values), 8, theirs, axes=[-1], block_size=32,
                                      round=rounding).numpy()
            scaled = np.ldexp(out.reshape(-1, 32), -exponent[:, None])
            codes = scaled.astype(element)
            assert (codes.astype(np.float32) == scaled).all(), f"microxcaling's {theirs} is no number of {name}"
            tensors = tensors_of(x, *values.shape, codes.view(np.uint8).reshape(values.shape), scales)
            yield validator.explains(preset, tensors, "--format", name, "--quantizer", "ocp")


def main():
    np, ml_dtypes, torch = oracle.require("numpy", "ml_dtypes", "torch")
    oracle.require("torchao")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        validator = Validator(sys.argv[1], pathlib.Path(folder))
        for dtype in ("BF16", "F32"):
            x = source(np, dtype)
            values = x.view(np.float32)
            results += [*torchao_dumps(np, torch, x, values, validator),
                        *ml_dtypes_dumps(np, ml_dtypes, x, values, validator),
                        *microxcaling_dumps(np, torch, x, values, validator)]
    print(f"{len(results)} dumps, {results.count(False)} not identified")
    return 1 if results.count(False) else 0


if __name__ == "__main__":
    sys.exit(main())
