# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Codes without scales, their packing, placements of bytes and the Hadamard rotation."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._check import FLAG, INTEGER, SIZE, TEXT, expect, expect_optional, split_random
from ._quantized import core_rotation


def encode(x: Any, format: str, *, rounding: str = "nearest_even", overflow: str = "saturate",
           random: int | tuple[int, int] = 0, random_count: int = 32) -> np.ndarray:
    """Codes of a format, one per element: uint8 or, above 8 bits, uint16 in the shape of x.

    x             FP32, FP64, BF16 or FP16 array of any shape
    format        name in rotoscale.formats, or e4m3ieee or e3m4ieee, of at most 16 bits
    overflow      saturate, to_inf or to_nan
    random        seed, or (seed, stream), of stochastic rounding
    random_count  random bits per element, 1 to 32

    Raises TypeError for a wrong dtype, ValueError for a wrong name or number.
    """
    expect(TEXT, format=format, rounding=rounding, overflow=overflow)
    expect(INTEGER, random_count=random_count)
    return _core.encode(x, format, rounding, overflow, *split_random(random), random_count)


def decode(codes: Any, format: str) -> np.ndarray:
    """float32 numbers of codes, in their shape.

    codes: one per element, in uint8, uint16 or a dtype of ml_dtypes or torch for that format. torch's float4_e2m1fn_x2
    has two per byte: (..., bytes) gives (..., 2 * bytes). Raises TypeError for another dtype, ValueError for a wrong
    name.
    """
    expect(TEXT, format=format)
    if _is_pair(codes) and format == "e2m1":
        codes = _core.unpack(codes, format, None)
    return _core.decode(codes, format)


def _is_pair(codes):
    return str(getattr(codes, "dtype", "")) == "torch.float4_e2m1fn_x2"


def pack(codes: Any, format: str) -> np.ndarray:
    """Packs codes (..., n), one per byte in uint8 or an ml_dtypes dtype, to uint8 (..., bytes): low bits first.

    Raises TypeError for a wrong dtype, ValueError for a code with more bits than the format.
    """
    expect(TEXT, format=format)
    if _is_pair(codes):
        raise TypeError("codes: float4_e2m1fn_x2 is packed")
    return _core.pack(codes, format)


def unpack(packed: Any, format: str, count: int | None = None) -> np.ndarray:
    """Inverse of pack: uint8 (..., count), the first `count` codes of each row. None: all that the bytes hold.

    Raises ValueError if the bytes hold fewer codes.
    """
    expect(TEXT, format=format)
    expect_optional(SIZE, count=count)
    return _core.unpack(packed, format, count)


def swizzle(array: Any, placement: str, *, padding: int = 0, repeat: int = 1) -> np.ndarray:
    """Bytes of a uint8 matrix in the order of a placement, as uint8 (padded rows, padded columns).

    placement: name in rotoscale.placements. padding: byte of the padding. repeat: each row fills so many rows, as a
    scale of square blocks does. Raises TypeError for a wrong dtype, ValueError for extents that the placement lacks.
    """
    expect(TEXT, placement=placement)
    expect(INTEGER, padding=padding, repeat=repeat)
    if not 0 <= padding < 256:
        raise ValueError(f"padding: {padding!r} is no byte")
    return _core.place(array, placement, padding, repeat)


def unswizzle(array: Any, placement: str, shape: tuple[int, int], *, repeat: int = 1) -> np.ndarray:
    """Inverse of swizzle: uint8 of `shape`, (rows, columns). Raises ValueError if the array has another size."""
    expect(TEXT, placement=placement)
    expect(INTEGER, repeat=repeat)
    if not isinstance(shape, (tuple, list)) or len(shape) != 2:
        raise ValueError(f"shape: {shape!r}, expected (rows, columns)")
    rows, columns = shape
    expect(SIZE, **{"shape: rows": rows, "shape: columns": columns})
    expect(SIZE, **{"shape: rows * repeat": rows * repeat})
    return _core.gather(array, placement, rows * repeat, columns, repeat)


def rotate(x: Any, points: int, *, signs: int = 0, run: int | None = None, inverse: bool = False) -> np.ndarray:
    """Rotates each `points` elements of the last axis by an orthonormal Hadamard matrix: float32 in the shape of x.

    x       float32 (..., n), n a multiple of the run
    points  a power of two, 2 to 256
    signs   bit i negates element i of a run before the transform
    run     elements that the signs span; None: points

    Raises TypeError for a wrong dtype, ValueError for other extents.
    """
    expect(INTEGER, points=points)
    expect_optional(INTEGER, run=run)
    expect(FLAG, inverse=inverse)
    return _core.rotate(x, core_rotation((points, signs)), run, inverse)
