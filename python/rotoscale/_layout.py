# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Codes without scales, their packing, placements of bytes and the Hadamard rotation."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._quantized import sign_bytes


def encode(x: Any, format: str, *, rounding: str = "nearest_even", overflow: str = "saturate",
           random: int | tuple[int, int] = 0, random_count: int = 32) -> np.ndarray:
    """Codes of a format of at most 16 bits, one per element, in uint8 or uint16.

    overflow: saturate, to_inf or to_nan. random: seed, or (seed, stream), of stochastic rounding.
    """
    seed, stream = random if isinstance(random, tuple) else (random, 0)
    return _core.encode(x, format, rounding, overflow, seed, stream, random_count)


def decode(codes: Any, format: str) -> np.ndarray:
    """FP32 numbers of codes, one per element."""
    return _core.decode(codes, format)


def pack(codes: Any, format: str) -> np.ndarray:
    """Packs codes, one per byte (uint8 or an ml_dtypes dtype), along the last axis: low bits first."""
    return _core.pack(codes, format)


def unpack(packed: Any, format: str, count: int | None = None) -> np.ndarray:
    """Inverse of pack: the first `count` codes of each row, one per byte. None: all that the bytes hold."""
    return _core.unpack(packed, format, count)


def swizzle(array: Any, placement: str, *, padding: int = 0, repeat: int = 1) -> np.ndarray:
    """Bytes of a matrix in the order of a placement (rotoscale.placements), shape (padded rows, padded columns).

    repeat: each row fills so many rows, as a scale of square blocks does.
    """
    return _core.place(array, placement, padding, repeat)


def unswizzle(array: Any, placement: str, shape: tuple[int, int], *, repeat: int = 1) -> np.ndarray:
    """Inverse of swizzle; `shape` is (rows, columns) of the matrix."""
    rows, columns = shape
    return _core.gather(array, placement, rows * repeat, columns, repeat)


def rotate(x: Any, points: int, *, signs: int = 0, run: int | None = None, inverse: bool = False) -> np.ndarray:
    """Rotates each `points` elements of the last axis of a float32 array by an orthonormal Hadamard matrix.

    signs: bit i negates element i of a run before the transform. run: elements that the signs span; None: points.
    """
    return _core.rotate(x, points, sign_bytes(signs), run, inverse)
