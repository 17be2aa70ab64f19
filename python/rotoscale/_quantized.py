# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Block-scaled tensors: quantize, dequantize and the object that quantize returns."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._arrays import as_numpy, device_operators, on_device
from ._check import FLAG, INTEGER, TEXT, expect, expect_optional, number, split_random, split_rotation

BLOCKS = {record["name"]: record for record in _core.block_formats}
_ROTATION_OF_PRESET = {record["name"]: record["rotation"] for record in _core.presets}


def core_rotation(rotation):
    """A rotation as the compiled module takes it."""
    points, signs = split_rotation(rotation)
    return _core.rotation(points, signs.to_bytes(32, "little"))


def _request(preset, format, source, scale_rule, rounding, rotation, axis, policy, random, random_count,
             encode_factor, square, scale_choice):
    """(the arguments of quantize as the compiled module takes them, rotation)."""
    expect(TEXT, preset=preset, format=format)
    expect_optional(TEXT, source=source, scale_rule=scale_rule, rounding=rounding, policy=policy,
                    scale_choice=scale_choice)
    expect(INTEGER, axis=axis, random_count=random_count)
    expect(FLAG, square=square)
    if isinstance(encode_factor, str) and encode_factor != "amax":
        raise ValueError(f"encode_factor: {encode_factor!r} is neither a number nor 'amax'")
    two_levels = isinstance(encode_factor, str)
    factor = None if two_levels or encode_factor is None else number("encode_factor", encode_factor)
    if (rounding == "stochastic" or scale_choice == "eden") and random is None:
        raise ValueError("random: stochastic rounding needs a seed or (seed, stream)")
    turned = None if rotation is None else core_rotation(rotation)
    made = _core.request(preset, format, source, scale_rule, rounding, turned, policy, *split_random(random),
                         random_count, factor, two_levels, square, axis, scale_choice)
    return made, split_rotation(rotation if rotation is not None else _ROTATION_OF_PRESET[preset])


_requests = {}
_ROW_MAJOR = ("row_major", "row_major")


class Quantized:
    """A block-scaled tensor. Codes and scales are NumPy arrays, or tensors on the device of the source.

    codes          uint8 (..., bytes): packed codes along the contraction axis, low nibble first
    scales         uint8 (..., k / block length): one byte per block
    global_factor  FP32 factor of the whole tensor: 1, or 1 / encode_factor
    format         name in rotoscale.block_formats
    shape          shape of the source
    axis           -1, or 0 where blocks run along columns; the bytes are then the transpose's
    square         does one scale serve a square of elements?
    rotation       (points, signs) of the rotation before amax was taken; (0, 0): none
    layout         (placement of codes, placement of scales)
    """

    __slots__ = ("codes", "scales", "global_factor", "format", "shape", "axis", "square", "rotation", "layout")

    def __init__(self, codes: np.ndarray, scales: np.ndarray, format: str = "mxfp4", *,
                 shape: tuple[int, ...] | None = None, axis: int = -1, global_factor: float = 1.0,
                 square: bool = False, rotation: int | tuple[int, int] | None = None,
                 layout: tuple[str, str] = _ROW_MAJOR):
        self.codes = codes
        self.scales = scales
        self.global_factor = global_factor
        self.format = format
        self.axis = axis
        self.square = square
        self.rotation = split_rotation(rotation)
        self.layout = layout
        if shape is None:
            if layout != _ROW_MAJOR:
                raise ValueError("shape: needed for bytes in another placement than row_major")
            stored = (*codes.shape[:-1], scales.shape[-1] * _block(format)["length"])
            shape = stored[::-1] if axis == 0 else stored
        self.shape = tuple(shape)

    def __repr__(self) -> str:
        return f"Quantized({self.format}, shape={self.shape}, axis={self.axis}, layout={self.layout})"

    @property
    def rows(self) -> int:
        """Rows of the stored matrix: all axes but the contraction axis."""
        if self.axis == 0:
            return self.shape[1]
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    @property
    def k(self) -> int:
        """Elements along the contraction axis."""
        return self.shape[0] if self.axis == 0 else self.shape[-1]

    def to(self, placement: str | None = None, *, codes: str | None = None) -> Quantized:
        """The same tensor with its scales in `placement` and its codes in placement `codes`; None keeps them.

        Bytes in another placement than row_major have shape (padded rows, padded columns). Padding is the scale 1
        or code 0.
        """
        expect_optional(TEXT, placement=placement, codes=codes)
        if on_device(self.codes):
            return self._moved(self.cpu().to(placement, codes=codes))
        scales = self.layout[1] if placement is None else placement
        codes = self.layout[0] if codes is None else codes
        plain = self._row_major()
        new_codes, new_scales = plain.codes, plain.scales
        if codes != "row_major":
            new_codes = _core.place(new_codes, codes, 0, 1)
        if scales != "row_major":
            block = _block(self.format)
            new_scales = _core.place(new_scales, scales, block["unit_scale"], block["length"] if self.square else 1)
        return self._with(new_codes, new_scales, (codes, scales))

    def dequantize(self, unrotate: bool = True) -> np.ndarray:
        """The tensor as FP32, in the source's shape.

        unrotate=False leaves the rotation in, which a GEMM of two rotated operands cancels. A rotation is undone on the
        CPU, for every device.
        """
        if on_device(self.codes):
            return self._dequantize_on_device(unrotate and self.rotation[0] != 0)
        plain = self._row_major()
        rotation = self.rotation if unrotate else (0, 0)
        return dequantize(plain.codes, plain.scales, format=self.format, axis=self.axis, square=self.square,
                          global_factor=float(self.global_factor), rotation=rotation)

    def sqnr(self, x: Any) -> float:
        """Signal-to-quantization-noise ratio against the source `x`, in dB: inf where nothing was lost."""
        if on_device(self.codes):
            return self.cpu().sqnr(device_operators().as_tensor(x).cpu())
        return _core.sqnr(x, self.dequantize())

    def cpu(self) -> Quantized:
        """The same tensor in NumPy arrays."""
        if isinstance(self.codes, np.ndarray):
            return self
        moved = self._with(as_numpy(self.codes)[0], as_numpy(self.scales)[0], self.layout)
        moved.global_factor = float(self.global_factor)
        return moved

    def _moved(self, plain):
        """`plain`, of NumPy arrays, on this one's device."""
        import torch
        device = device_operators().as_tensor(self.codes).device
        return self._with(*(torch.from_numpy(a).to(device) for a in (plain.codes, plain.scales)), plain.layout)

    def _dequantize_on_device(self, unrotate):
        import torch
        operators = device_operators()
        if unrotate or self.layout != _ROW_MAJOR:
            return torch.from_numpy(self.cpu().dequantize(unrotate)).to(operators.as_tensor(self.codes).device)
        codes, scales, factor, format, square = operators.gemm_of("codes", self, None)
        values = operators.dequantize(codes, scales, factor, format=format, square=square)
        values = values.reshape(*self.codes.shape[:-1], values.shape[-1])
        return values.T if self.axis == 0 else values

    def _row_major(self):
        if self.layout == _ROW_MAJOR:
            return self
        codes, scales = self.codes, self.scales
        columns = self.k // _block(self.format)["length"]
        if self.layout[0] != "row_major":
            codes = _core.gather(codes, self.layout[0], self.rows, _core.packed_bytes(self.format, self.k), 1)
            if self.axis != 0:
                codes = codes.reshape(*self.shape[:-1], codes.shape[-1])
        if self.layout[1] != "row_major":
            repeat = _block(self.format)["length"] if self.square else 1
            scales = _core.gather(scales, self.layout[1], self.rows, columns, repeat)
            if self.axis != 0 and not self.square:
                scales = scales.reshape(*self.shape[:-1], columns)
        return self._with(codes, scales, _ROW_MAJOR)

    def _with(self, codes, scales, layout):
        return Quantized(codes, scales, self.format, shape=self.shape, axis=self.axis, square=self.square,
                         global_factor=self.global_factor, rotation=self.rotation, layout=layout)


def _block(format):
    try:
        return BLOCKS[format]
    except KeyError:
        raise ValueError(f"format: no {format!r}; known are {', '.join(BLOCKS)}") from None


def quantize(x: Any, *, preset: str = "ocp", format: str = "mxfp4", source: str | None = None,
             scale_rule: str | None = None, rounding: str | None = None,
             rotation: int | tuple[int, int] | None = None, axis: int = -1, policy: str | None = None,
             random: int | tuple[int, int] | None = None, random_count: int = 32,
             encode_factor: float | str | None = None, square: bool = False,
             scale_choice: str | None = None) -> Quantized:
    """Quantizes an array to blocks with shared scales and returns a Quantized.

    x             FP32, FP64, BF16 or FP16 (..., k) of any strides: NumPy, ml_dtypes, or a tensor through DLPack. A
                  tensor on a CUDA device (not FP64) is quantized there, by librotoscale_device on PyTorch's stream
    preset        options of a shipped quantizer, a name in rotoscale.presets; the arguments below replace single ones
    format        name in rotoscale.block_formats
    source        format that elements are rounded to first
    scale_rule    floor, ceil, even or rceil (E8M0 scales)
    rounding      of elements, a name in rotoscale.roundings
    rotation      points of a Hadamard rotation, 0 for none, or (points, mask of signs)
    axis          contraction axis: the last one, or 0 for a matrix, whose bytes are then the transpose's
    policy        blocks of zeros, with NaN or with Inf: a name in rotoscale.policies
    random        seed, or (seed, stream), of stochastic rounding
    random_count  random bits per element, 1 to 32
    encode_factor NVFP4: factor of the whole tensor, or "amax" to take it from the tensor
    square        one scale for a square of elements (length x length)
    scale_choice  NVFP4: a block's amax becomes: amax (6), four_over_six (6 or 4), headroom (6 * 16/17),
                  eden (MS-EDEN, which draws words for the scales)

    Raises TypeError for a wrong dtype, ValueError for a wrong name, shape, stride, device or number.
    """
    key = (preset, format, source, scale_rule, rounding, rotation, axis, policy, random, random_count, encode_factor,
           square, scale_choice)
    try:
        request = _requests[key]
    except TypeError:  # lists are no keys
        request = _request(*key)
    except KeyError:
        request = _request(*key)
        if len(_requests) == 256:
            _requests.clear()
        _requests[key] = request
    q = Quantized.__new__(Quantized)
    options, q.rotation = request
    if on_device(x):
        q.codes, q.scales, q.global_factor, q.shape, q.axis = device_operators().quantize_tensor(x, *key)
        q.format, q.square, q.layout = format, square, _ROW_MAJOR
        return q
    q.codes, q.scales, q.global_factor, q.shape, q.axis = _core.quantize(x, options)
    q.format = format
    q.square = square
    q.layout = _ROW_MAJOR
    return q


def dequantize(codes: Any, scales: Any, *, format: str = "mxfp4", axis: int = -1, square: bool = False,
               global_factor: float = 1.0, rotation: int | tuple[int, int] = 0) -> np.ndarray:
    """float32 (..., k) of row-major codes, uint8 (..., bytes), and scales, uint8 (..., k / block length).

    Numbers are multiplied by global_factor, and the rotation is undone. axis=0 returns the transpose: the source of
    a tensor that was quantized along axis 0. Raises TypeError for a wrong dtype, ValueError for contradicting shapes.
    """
    expect(TEXT, format=format)
    expect(FLAG, square=square)
    factor = number("global_factor", global_factor)
    values = _core.dequantize(codes, scales, format, square, factor, core_rotation(rotation))
    if axis not in (-1, 0, values.ndim - 1):
        raise ValueError(f"axis: {axis!r} is neither -1 nor 0")
    return values.T if axis == 0 and values.ndim == 2 else values
