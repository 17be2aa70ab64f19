# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Custom operators of PyTorch: torch.ops.rotoscale.quantize, dequantize and gemm, on a device and on the CPU.

A tensor on a device is computed by librotoscale_device on PyTorch's current stream, a CPU tensor by the package. Both
give the same bytes. Fake tensors are registered, so the operators work under torch.compile.
"""
# No `from __future__ import annotations`: PyTorch reads the annotations as schemas.
import functools
from typing import Optional

import numpy as np
import torch

from . import _core, _device
from ._arrays import FORMAT_OF_DTYPE
from ._check import split_random, split_rotation
from ._quantized import BLOCKS, Quantized, core_rotation

_BITS = {record["name"]: record["bits"] for record in _core.formats}
_ELEMENTS = {"float32": "fp32", "float16": "fp16", "float64": "fp64", "uint8": "int8", **FORMAT_OF_DTYPE}
FACTOR_SCRATCH = 2048  # bytes, as in python/device/library.hpp


def as_tensor(x):
    """`x` as a tensor of PyTorch, without a copy. Other libraries lend theirs by DLPack."""
    if not isinstance(x, torch.Tensor):
        x = torch.from_dlpack(x)
    return x.detach()


def is_on_device(x):
    """Is a tensor computed by librotoscale_device?"""
    return x.device.type != "cpu" or _device.computes_cpu_tensors()


def library_for(name, x):
    """The library that computes on x's device."""
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: is on {x.device}, expected a CPU or CUDA tensor")
    found = _device.library()
    if found.device_type != x.device.type:
        raise ValueError(f"{name}: is on {x.device}, but {_device.NAME} was built with -Dgpu={found.mode}")
    return found


class place_of:
    """Where calls on x run: its device, which is the current one in the block, and PyTorch's stream there."""

    def __init__(self, x):
        self.device, self.switch = x.device, None

    def __enter__(self):
        if self.device.type == "cpu":
            return _device.Place(None, 0)
        if torch.cuda.current_device() != self.device.index:
            self.switch = torch.cuda.device(self.device)
            self.switch.__enter__()
        return _device.Place(torch.cuda.current_stream(self.device).cuda_stream, self.device.index)

    def __exit__(self, *error):
        if self.switch is not None:
            self.switch.__exit__(*error)


def element_name(dtype):
    """The format of a dtype's elements, or None."""
    return _ELEMENTS.get(str(dtype).removeprefix("torch."))


def element_of(name, x):
    """The format of x's elements."""
    found = element_name(x.dtype)
    if found is None:
        raise TypeError(f"{name}: dtype {x.dtype}")
    return found


def matrix(x, element):
    """A tensor with two axes as the library takes it."""
    return _device.Matrix(x.data_ptr(), x.shape[0], x.shape[1], x.stride(0), x.stride(1), element.encode())


def aligned(x, bytes=16):
    """`x`, or a copy that begins at a multiple of `bytes`."""
    return x if x.data_ptr() % bytes == 0 else x.clone()


def memory_for(x, bytes):
    """(tensor, address): memory on x's device that begins at a multiple of 256."""
    memory = torch.empty(bytes + 256, dtype=torch.uint8, device=x.device)
    return memory, (memory.data_ptr() + 255) // 256 * 256


def _shapes(x_shape, format, axis, square):
    """(codes, scales) of the result of quantize."""
    block = BLOCKS.get(format)
    if block is None:
        raise ValueError(f"format: no {format!r}; known are {', '.join(BLOCKS)}")
    if axis not in (-1, len(x_shape) - 1) and (len(x_shape) != 2 or axis not in (0, -2)):
        raise ValueError(f"axis: {axis} is neither the last axis nor axis 0 of a matrix (x has {len(x_shape)} axes)")
    is_column = axis not in (-1, len(x_shape) - 1)
    if square and len(x_shape) != 2:
        raise ValueError(f"x of shape {tuple(x_shape)}: square blocks needs two axes")
    leading, k = ((x_shape[1],), x_shape[0]) if is_column else (tuple(x_shape[:-1]), x_shape[-1])
    codes = (*leading, k * _BITS[block["element"]] // 8)
    return codes, ((leading[0] // block["length"],) if square else leading) + (k // block["length"],), is_column


def quantize_on_device(x, *, preset, format, source, scale_rule, rounding, policy, points, signs, axis, seed, stream,
                       random_count, encode_factor, square, scale_choice):
    """(codes, scales, factor): the launcher of one tensor. encode_factor 0.0 takes the factor, a tensor, from amax."""
    library = library_for("x", x)
    codes_shape, scales_shape, is_column = _shapes(x.shape, format, axis, square)
    if signs >> 32:
        raise ValueError("rotation: a device takes signs of at most 32 bits")
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if encode_factor == 0.0 and rows.dtype == torch.float16:
        rows = rows.float()
    new = functools.partial(torch.empty, dtype=torch.uint8, device=x.device)
    codes, scales = new(codes_shape), new(scales_shape)
    factor, scratch = None, None
    if encode_factor == 0.0:
        factor, scratch = torch.empty((), dtype=torch.float32, device=x.device), new(FACTOR_SCRATCH)
    name = _device.name
    call = _device.QuantizeCall(
        matrix(rows, element_of("x", rows)), name(preset), name(format), name(source), name(scale_rule),
        name(scale_choice), name(rounding), name(policy), seed, stream, random_count, points, signs, encode_factor,
        square, is_column, codes.data_ptr(), scales.data_ptr(), factor.data_ptr() if factor is not None else None,
        scratch.data_ptr() if scratch is not None else None)
    with place_of(x) as place:
        library.call("quantize", call, place)
    return codes, scales, factor


@torch.library.custom_op("rotoscale::quantize", mutates_args=())
def quantize(x: torch.Tensor, *, preset: str = "ocp", format: str = "mxfp4", source: Optional[str] = None,
             scale_rule: Optional[str] = None, rounding: Optional[str] = None, policy: Optional[str] = None,
             rotation: Optional[int] = None, signs: int = 0, axis: int = -1, seed: int = 0, stream: int = 0,
             random_count: int = 32, encode_factor: float = 1.0,
             square: bool = False,
             scale_choice: Optional[str] = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes, scales, factor) of rotoscale.quantize. encode_factor 0.0 takes it from amax; `factor` is its inverse."""
    if is_on_device(x):
        codes, scales, factor = quantize_on_device(
            x.detach(), preset=preset, format=format, source=source, scale_rule=scale_rule, rounding=rounding,
            policy=policy, points=-1 if rotation is None else rotation, signs=signs, axis=axis, seed=seed,
            stream=stream, random_count=random_count, encode_factor=encode_factor, square=square,
            scale_choice=scale_choice)
        if factor is None:
            factor = torch.full((), 1.0 / encode_factor, dtype=torch.float32, device=x.device)
        return codes, scales, factor
    turned = None if rotation is None else core_rotation((rotation, signs))
    request = _core.request(preset, format, source, scale_rule, rounding, turned, policy, seed, stream, random_count,
                            encode_factor if encode_factor not in (0.0, 1.0) else None, encode_factor == 0.0, square,
                            axis, scale_choice)
    codes, scales, factor, _, _ = _core.quantize(x.detach(), request)
    return torch.from_numpy(codes), torch.from_numpy(scales), torch.tensor(factor, dtype=torch.float32)


@quantize.register_fake
def _(x, *, format="mxfp4", axis=-1, square=False, **options):
    codes, scales, _ = _shapes(x.shape, format, axis, square)
    return (x.new_empty(codes, dtype=torch.uint8), x.new_empty(scales, dtype=torch.uint8),
            x.new_empty((), dtype=torch.float32))


@torch.library.custom_op("rotoscale::dequantize", mutates_args=())
def dequantize(codes: torch.Tensor, scales: torch.Tensor, factor: Optional[torch.Tensor] = None, *,
               format: str = "mxfp4", square: bool = False) -> torch.Tensor:
    """FP32 numbers of row-major codes and scales, times the factor. A rotation is left in."""
    if not is_on_device(codes):
        values = _core.dequantize(codes, scales, format, square, 1.0 if factor is None else float(factor),
                                  core_rotation(0))
        return torch.from_numpy(values)
    library = library_for("codes", codes)
    operand = _operand("codes", codes, scales, factor, format, square)
    k = codes.shape[-1] * 8 // _BITS[BLOCKS[format]["element"]]
    values = torch.empty((*codes.shape[:-1], k), dtype=torch.float32, device=codes.device)
    with place_of(codes) as place:
        library.call("dequantize", operand[0], 0, values.data_ptr(), place)
    return values


@dequantize.register_fake
def _(codes, scales, factor=None, *, format="mxfp4", square=False):
    k = codes.shape[-1] * 8 // _BITS[BLOCKS[format]["element"]]
    return codes.new_empty((*codes.shape[:-1], k), dtype=torch.float32)


def _operand(name, codes, scales, factor, format, square):
    """(operand, tensors that must outlive the call)."""
    if codes.dim() != 2 and scales is None:
        raise ValueError(f"{name}: has shape {tuple(codes.shape)}, expected two axes")
    rows = codes.reshape(-1, codes.shape[-1])
    if scales is not None:
        rows, scales = aligned(rows.contiguous()), scales.contiguous()
    element = "int8" if scales is not None else format or element_of(name, codes)
    if factor is not None:
        factor = factor.to(device=codes.device, dtype=torch.float32)
    return _device.Operand(matrix(rows, element), _device.name(format) if scales is not None else None,
                           None if scales is None else scales.data_ptr(),
                           None if factor is None else factor.data_ptr(), square), (rows, scales, factor)


@torch.library.custom_op("rotoscale::gemm", mutates_args=())
def gemm(a: torch.Tensor, b: torch.Tensor, a_scales: Optional[torch.Tensor] = None,
         b_scales: Optional[torch.Tensor] = None, a_factor: Optional[torch.Tensor] = None,
         b_factor: Optional[torch.Tensor] = None, c: Optional[torch.Tensor] = None, *,
         contract: str = "fp32_fma_chain", output: str = "fp32", alpha: float = 1.0, format_a: Optional[str] = None,
         format_b: Optional[str] = None, a_square: bool = False, b_square: bool = False) -> torch.Tensor:
    """alpha · a · bᵀ (+ c) as float32 (M, N). With scales, a and b are codes and their formats are block formats."""
    if not is_on_device(a):
        operands = [_cpu_operand(name, *rest) for name, *rest in (("a", a, a_scales, a_factor, format_a, a_square),
                                                                  ("b", b, b_scales, b_factor, format_b, b_square))]
        return torch.from_numpy(_core.gemm(*operands, contract, None if c is None else c.numpy(), output, alpha))
    library = library_for("a", a)
    left, keep_left = _operand("a", a, a_scales, a_factor, format_a, a_square)
    right, keep_right = _operand("b", b, b_scales, b_factor, format_b, b_square)
    shape = (left.codes.rows, right.codes.rows)
    if c is not None and (c.shape != shape or c.dtype != torch.float32):
        raise ValueError(f"c of shape {tuple(c.shape)}, {c.dtype}: expected float32 {shape}")
    if 0 in shape:
        return torch.empty(shape, dtype=torch.float32, device=a.device)
    out = torch.empty(shape, dtype=torch.float32, device=a.device) if c is None else c.contiguous().clone()
    call = _device.GemmCall(left, right, contract.encode(), output.encode(), out.data_ptr(), alpha, c is not None)
    with place_of(a) as place:
        library.call("plan_gemm", call, place)
        memory, call.workspace = memory_for(a, call.workspace_bytes)
        library.call("gemm", call, place)
    return out


@gemm.register_fake
def _(a, b, *tensors, **options):
    return a.new_empty((a.shape[0], b.shape[0]), dtype=torch.float32)


def _cpu_operand(name, codes, scales, factor, format, square):
    factor = 1.0 if factor is None else float(factor)
    if scales is None:
        return _core.plain_operand(name, codes, format, factor if factor != 1.0 else None)
    k = scales.shape[-1] * BLOCKS[format]["length"]
    return _core.block_operand(name, codes, scales, format, square, codes.shape[0], k, "row_major", "row_major", factor)


def quantize_tensor(x, preset, format, source, scale_rule, rounding, rotation, axis, policy, random, random_count,
                    encode_factor, square, scale_choice):
    """(codes, scales, global factor, shape, axis) of rotoscale.quantize for an array on a device."""
    x = as_tensor(x)
    points, signs = (-1, 0) if rotation is None else split_rotation(rotation)
    seed, stream = split_random(random)
    given = 0.0 if encode_factor == "amax" else 1.0 if encode_factor is None else encode_factor
    codes, scales, factor = quantize_on_device(
        x, preset=preset, format=format, source=source, scale_rule=scale_rule, rounding=rounding, policy=policy,
        points=points, signs=signs, axis=axis, seed=seed, stream=stream, random_count=random_count,
        encode_factor=given, square=square, scale_choice=scale_choice)
    if factor is None:
        factor = float(np.float32(1) / np.float32(given))
    return codes, scales, factor, tuple(x.shape), -1 if axis in (-1, x.dim() - 1) else 0


def gemm_of(name, x, format):
    """(tensor, scales, factor, format, square) of an operand of rotoscale.gemm."""
    if not isinstance(x, Quantized):
        return as_tensor(x), None, None, format, False
    if x.layout != ("row_major", "row_major"):
        raise ValueError(f"{name}: a device takes codes and scales in row_major, not {x.layout}")
    codes, scales, factor = as_tensor(x.codes), as_tensor(x.scales), x.global_factor
    if hasattr(factor, "__dlpack__"):
        factor = as_tensor(factor)
    else:
        factor = None if factor == 1.0 else torch.tensor(factor, dtype=torch.float32, device=codes.device)
    return (codes.reshape(-1, codes.shape[-1]), scales.reshape(-1, scales.shape[-1]), factor, x.format, x.square)
