# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Packing of codes, placements of bytes and the Hadamard rotation."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._arrays import as_bytes, readable
from ._quantized import sign_bytes


def pack(codes: Any, format: str) -> np.ndarray:
    """Packs codes, one per byte (uint8 or an ml_dtypes dtype), along the last axis: low bits first."""
    return _core.pack(as_bytes(codes), format)


def unpack(packed: Any, format: str, count: int | None = None) -> np.ndarray:
    """Inverse of pack: the first `count` codes of each row, one per byte. None: all that the bytes hold."""
    return _core.unpack(as_bytes(packed), format, count)


def swizzle(array: Any, placement: str, *, padding: int = 0, repeat: int = 1) -> np.ndarray:
    """Bytes of a matrix in the order of a placement (rotoscale.placements), shape (padded rows, padded columns).

    repeat: each row fills so many rows, as a scale of square blocks does.
    """
    return _core.place(as_bytes(array), placement, padding, repeat)


def unswizzle(array: Any, placement: str, shape: tuple[int, int], *, repeat: int = 1) -> np.ndarray:
    """Inverse of swizzle; `shape` is (rows, columns) of the matrix."""
    rows, columns = shape
    return _core.gather(as_bytes(array), placement, rows * repeat, columns, repeat)


def rotate(x: Any, points: int, *, signs: int = 0, run: int | None = None, inverse: bool = False) -> np.ndarray:
    """Rotates each `points` elements of the last axis of a float32 array by an orthonormal Hadamard matrix.

    signs: bit i negates element i of a run before the transform. run: elements that the signs span; None: points.
    """
    return _core.rotate(readable(x)[0], points, sign_bytes(signs), run, inverse)
