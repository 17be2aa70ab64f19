# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Placements, packing, rotation, tables, explain and the command."""
import subprocess
import sys

import numpy as np
import pytest

import rotoscale

X = np.random.default_rng(5).standard_normal((256, 512)).astype(np.float32)


@pytest.mark.parametrize("placement", rotoscale.placements)
def test_to_a_placement_and_back(placement):
    for q in (rotoscale.quantize(X), rotoscale.quantize(X, format="nvfp4", preset="nvidia", encode_factor="amax"),
              rotoscale.quantize(X, square=True), rotoscale.quantize(X, axis=0)):
        scales = placement if placement != "aiter_data_16x16" else None
        codes = placement if "scale" not in placement else None
        placed = q.to(scales, codes=codes)
        assert placed.layout == (codes or "row_major", scales or "row_major")
        back = placed.to("row_major", codes="row_major")
        assert np.array_equal(back.codes, q.codes) and np.array_equal(back.scales, q.scales)
        assert np.array_equal(placed.dequantize(), q.dequantize())
        assert placed.sqnr(X) == q.sqnr(X) > 10


def test_nvidia_scales_as_torchao_orders_them():
    scales = np.arange(256 * 8, dtype=np.uint32).astype(np.uint8).reshape(256, 8)
    tiles = scales.reshape(2, 128, 2, 4).transpose(0, 2, 1, 3)
    expected = tiles.reshape(-1, 4, 32, 4).transpose(0, 2, 1, 3)
    assert rotoscale.swizzle(scales, "nvidia_scale_128x4").tobytes() == expected.tobytes()
    again = rotoscale.unswizzle(rotoscale.swizzle(scales[:100], "nvidia_scale_128x4"), "nvidia_scale_128x4", (100, 8))
    assert np.array_equal(again, scales[:100])


@pytest.mark.parametrize("format, bits", [("e2m1", 4), ("e3m2", 6), ("e4m3", 8)])
def test_pack_is_a_little_endian_bit_stream(format, bits):
    codes = np.random.default_rng(6).integers(0, 1 << bits, (3, 11), dtype=np.uint8)
    packed = rotoscale.pack(codes, format)
    for row, stored in zip(codes, packed):
        stream = sum(int(c) << (i * bits) for i, c in enumerate(row))
        assert stored.tobytes() == stream.to_bytes((11 * bits + 7) // 8, "little")
    assert np.array_equal(rotoscale.unpack(packed, format, 11), codes)


def test_rotation_is_orthonormal_and_undone():
    identity = np.eye(16, dtype=np.float32)
    h = rotoscale.rotate(identity, 16, signs=0b101)
    assert np.array_equal(h @ h.T, identity)
    assert np.array_equal(rotoscale.rotate(h, 16, signs=0b101, inverse=True), identity)
    assert rotoscale.quantize(X, rotation=(16, 5)).sqnr(X) > 10
    turned = rotoscale.quantize(X, rotation=16)
    assert np.array_equal(turned.dequantize(unrotate=False),
                          rotoscale.quantize(rotoscale.rotate(X, 16)).dequantize())


def test_global_factor():
    q = rotoscale.quantize(X, format="nvfp4", preset="nvidia", encode_factor="amax")
    assert q.global_factor == np.float32(1) / (np.float32(448 * 6) / np.abs(X).max())
    assert rotoscale.quantize(X, format="nvfp4", preset="nvidia", encode_factor=2.0).global_factor == 0.5


def test_tables_are_records():
    for table in (rotoscale.formats, rotoscale.block_formats, rotoscale.presets, rotoscale.models, rotoscale.contracts,
                  rotoscale.recipes):
        assert table and all(type(r) is dict and r.keys() == table[0].keys() for r in table)
    assert next(f for f in rotoscale.formats if f["name"] == "e4m3")["max"] == 448
    assert next(r for r in rotoscale.recipes if r["name"] == "mxfp4_h16")["dgrad"]["left"]["rotation"] == 16


def test_explain_has_the_bytes_of_quantize():
    block = X[0, :32]
    for format in ("mxfp4", "nvfp4"):
        records = rotoscale.explain(block, format=format)
        assert len(records) > 1 and str(records).count("\n") == len(records)
        for record in records:
            q = rotoscale.quantize(block, preset=record["preset"], format=format)
            assert record["codes"] == q.codes.tobytes().hex() and record["sqnr_db"] == q.sqnr(block)
    with pytest.raises(ValueError, match="presets: no 'x'"):
        rotoscale.explain(block, presets=["x"])


def run(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "rotoscale", *arguments], cwd=cwd, capture_output=True, text=True)


def test_the_command(tmp_path):
    np.save(tmp_path / "x.npy", X)
    done = run("quantize", "x.npy", "q.npz", "--preset", "te_rocm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run("dequantize", "q.npz", "y.npy", cwd=tmp_path).returncode == 0
    assert np.array_equal(np.load(tmp_path / "y.npy"), rotoscale.quantize(X, preset="te_rocm").dequantize())
    refused = run("quantize", "none.npy", "q.npz", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("rotoscale: ") and refused.stderr.count("\n") == 1
