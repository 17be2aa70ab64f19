# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes through Python equal the C++ reference's: every preset, format, rounding and axis; every matrix unit."""
import io

import numpy as np

import rotoscale

INTEGER_OF_BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def numbers(rows, columns):
    """FP32 numbers of all magnitudes, with blocks of zeros, ties, subnormals, NaN and Inf."""
    random = np.random.default_rng(1)
    x = (random.standard_normal((rows, columns)) * 2.0 ** random.integers(-20, 20, (rows, 1))).astype(np.float32)
    x[0] = np.float32(0)
    x[1] = random.integers(-16, 17, columns).astype(np.float32) / 4
    x[2] = random.integers(0, 1 << 32, columns, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[3, ::7] = np.nan
    x[4, ::9] = -np.inf
    x[5] = np.float32(2.0 ** -149) * random.integers(0, 99, columns)
    x[6, :32] = np.nan
    x[7] = np.float32(3.4e38)
    return x


def test_quantize_equals_the_reference(oracle):
    x = numbers(64, 96)
    expected = io.BytesIO(oracle("quantize", *x.shape, data=x.tobytes()))
    cases = 0
    for preset in rotoscale.presets:
        for block in rotoscale.block_formats:
            for rounding in rotoscale.roundings:
                for axis in (-1, 0):
                    what = (preset["name"], block["name"], rounding, axis)
                    is_defined = expected.read(1) == b"\1"
                    try:
                        q = rotoscale.quantize(x, preset=preset["name"], format=block["name"], rounding=rounding,
                                               axis=axis, random=(42, 7))
                    except ValueError as error:
                        assert not is_defined, (what, error)
                        continue
                    assert is_defined, what
                    assert q.codes.tobytes() == expected.read(q.codes.nbytes), what
                    assert q.scales.tobytes() == expected.read(q.scales.nbytes), what
                    cases += 1
    assert expected.read() == b"" and cases > 1000


def test_gemm_equals_the_reference_on_every_unit(oracle):
    m, n, k = 3, 5, 128
    data = np.random.default_rng(2).integers(0, 256, ((m + n), 8 * k), dtype=np.uint8)
    expected = io.BytesIO(oracle("gemm", m, n, k, data=data.tobytes()))
    bits = {f["name"]: f["bits"] for f in rotoscale.formats}
    cases = 0
    for unit in rotoscale.models:
        if unit["name"].endswith("fp64-f64") or unit["name"] == "fp64-fma-chain":
            continue
        for name in unit["operands"]:
            if name == "tf32":  # its codes have 19 bits
                continue
            stored = next(b for b in (4, 6, 8, 16, 32, 64) if b >= bits[name])
            rows = data[:, :k * stored // 8]
            if stored > 8:
                rows = np.ascontiguousarray(rows).view(INTEGER_OF_BITS[stored])
            a, b = rows[:m], rows[m:]
            is_defined = expected.read(1) == b"\1"
            try:
                c = rotoscale.gemm(a, b, contract=unit["name"], format_a=name, format_b=name)
            except ValueError as error:
                assert not is_defined, (unit["name"], name, error)
                continue
            assert is_defined and c.tobytes() == expected.read(c.nbytes), (unit["name"], name)
            cases += 1
    assert expected.read() == b"" and cases > 80


def test_gemm_of_blocks_equals_the_gemm_of_their_numbers():
    random = np.random.default_rng(3)
    x, w = (random.integers(-6, 7, (n, 64)).astype(np.float32) for n in (8, 16))
    a, b = (rotoscale.quantize(t, format="mxfp8_e4m3", scale_rule="floor") for t in (x, w))
    assert np.array_equal(a.dequantize(), x)
    for left in (a, a.to("nvidia_scale_128x4"), a.to(codes="aiter_data_16x16") if x.shape[0] % 16 == 0 else a):
        assert np.array_equal(rotoscale.gemm(left, b, contract="exact"), x @ w.T)
    assert np.array_equal(rotoscale.gemm(x, w, contract="exact", c=np.ones((8, 16), np.float32)), x @ w.T + 1)
