# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""io/npy.hpp against NumPy, both ways. Files of NumPy are read, converted and written again, byte for byte equal,
and NumPy reads them. Skips (77) without NumPy; ROTOSCALE_ORACLE_PYTHON may name an interpreter that has it. Formats
of ml_dtypes are compared where it is installed.

usage: numpy_test.py NPY_TOOL
"""

import pathlib
import subprocess
import sys
import tempfile

import oracle

TYPES = "<f2 <f4 <f8 |u1 <u2 <u4 |i1 |V1 |V2".split()
SHAPES = [(), (1,), (7,), (0, 3), (3, 5), (2, 3, 4), (1, 2, 1, 3, 2)]
CODES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz",
         "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]


def save(np, path, array, version):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=(version, 0))


def same_values(np, got, expected):
    """Equal bits, except payloads of NaN."""
    got, expected = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    nan = np.isnan(expected)
    return (got.shape == expected.shape and got.dtype == np.float32 and (np.isnan(got) == nan).all() and
            (np.where(nan, 0, got.view("<u4")) == np.where(nan, 0, expected.view("<u4"))).all())


def all_bits(np, dtype, shape):
    """Arbitrary bits of that type, including NaN and Inf."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(size).integers(0, 256, size, dtype="u1")
    if size >= 16 and np.dtype(dtype).kind == "f":
        bits[:16] = np.frombuffer(np.array([np.nan, -np.inf, 0.1, -0.0] * 4, dtype).tobytes()[:16], "u1")
    return np.frombuffer(bits.tobytes(), dtype).reshape(shape)


def check_array(np, tool, folder, array, version):
    """Passes one array through the tool. Returns the number of comparisons."""
    source, out = folder / "in.npy", folder / "out.npy"
    save(np, source, array, version)
    tool("copy", str(version), source, out)
    assert out.read_bytes() == source.read_bytes(), "not NumPy's bytes"
    back = np.load(out)
    assert back.dtype == array.dtype and back.shape == array.shape and back.tobytes() == array.tobytes()
    compared = 2
    if array.dtype.kind != "V":
        tool("fp32", "-", source, out)
        with np.errstate(over="ignore", invalid="ignore"):
            assert same_values(np, np.load(out), array.astype("<f4")), "other values as FP32"
        compared += 1
    if array.ndim == 2 and not (array.flags.c_contiguous and array.flags.f_contiguous):  # else NumPy says C
        for order in "CF":
            tool("rewrite", order, source, out)
            save(np, folder / "expected.npy", np.asarray(array, order=order), 1)
            assert out.read_bytes() == (folder / "expected.npy").read_bytes(), f"order {order}"
            compared += 1
    return compared


def check_codes(np, tool, folder, ml_dtypes, name):
    """Every code of an ml_dtypes format, as FP32."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = {"float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}.get(name, 8 * dtype.itemsize)
    codes = np.arange(2**bits, dtype=f"u{dtype.itemsize}").reshape(-1, 4)
    for order in "CF":
        np.save(folder / "in.npy", np.asarray(codes.view(dtype), order=order))
        tool("fp32", name, folder / "in.npy", folder / "out.npy")
        assert same_values(np, np.load(folder / "out.npy"), codes.view(dtype).astype("<f4")), name


def compare(np, program):
    def tool(*arguments):
        run = subprocess.run([program, *arguments], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr

    compared = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for dtype in TYPES:
            for shape in SHAPES:
                array = all_bits(np, dtype, shape)
                for order in "CF" if len(shape) > 1 else "C":
                    for version in (1, 2, 3):
                        try:
                            compared += check_array(np, tool, folder, np.asarray(array, order=order), version)
                        except AssertionError as what:
                            sys.exit(f"{dtype} {shape} {order} version {version}: {what}")
        message = f"NumPy {np.__version__}: {compared} comparisons"
        try:
            import ml_dtypes
        except ImportError:
            print(message + "; no ml_dtypes")
            return 0
        for name in CODES:
            check_codes(np, tool, folder, ml_dtypes, name)
        print(f"{message}; ml_dtypes {ml_dtypes.__version__}: all codes of {len(CODES)} formats")
    return 0


if __name__ == "__main__":
    sys.exit(compare(oracle.require("numpy"), sys.argv[1]))
