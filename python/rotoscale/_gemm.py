# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Emulated GEMMs."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._arrays import device_operators, on_device, readable
from ._check import TEXT, expect, expect_optional, number
from ._quantized import Quantized


def _operand(name, x, format):
    if isinstance(x, Quantized):
        return _core.block_operand(name, x.codes, x.scales, x.format, x.square, x.rows, x.k, *x.layout,
                                   number("global_factor", x.global_factor))
    array, element = readable(x)
    if format is not None and element not in (None, format):
        raise TypeError(f"{name}: its dtype holds codes of {element}, not {format}")
    if format is None and element in ("e2m1", "e2m3", "e3m2") and str(x.dtype) != "torch.float4_e2m1fn_x2":
        array = _core.pack(array, element)  # ml_dtypes has one code per byte
    return _core.plain_operand(name, array, format or element, None)


def _on_device(a, b, contract, c, output, alpha, format_a, format_b):
    operators = device_operators()
    a, a_scales, a_factor, format_a, a_square = operators.gemm_of("a", a, format_a)
    b, b_scales, b_factor, format_b, b_square = operators.gemm_of("b", b, format_b)
    return operators.gemm(a, b, a_scales, b_scales, a_factor, b_factor, None if c is None else operators.as_tensor(c),
                          contract=contract, output=output, alpha=alpha, format_a=format_a, format_b=format_b,
                          a_square=a_square, b_square=b_square)


def gemm(a: Quantized | Any, b: Quantized | Any, *, contract: str = "fp32_fma_chain", c: np.ndarray | None = None,
         output: str = "fp32", alpha: float = 1.0, format_a: str | None = None,
         format_b: str | None = None) -> np.ndarray:
    """alpha · a · bᵀ (+ c) as float32 (M, N), with every bit that the contract states.

    a, b      Quantized, or matrices (M, k) and (N, k) of FP32, BF16, FP16 or FP8; codes in uint8 need format_a,
              format_b and are packed along k
    contract  a unit of rotoscale.models, a kernel of rotoscale.contracts, KERNEL@UNIT, or a contract of a recipe
              with its settings, such as "fp32_blockwise" or "hopper-wgmma-fp8-f32:promotion=128"
    c         float32 (M, N), added where the contract says
    output    fp32, bf16 or fp16: the format that results are rounded to

    Operands on a CUDA device are multiplied there under a contract of recipes; the result is a tensor there.

    Raises TypeError for a wrong dtype, ValueError where the unit does not multiply these operands.
    """
    expect(TEXT, contract=contract, output=output)
    alpha = number("alpha", alpha)
    expect_optional(TEXT, format_a=format_a, format_b=format_b)
    if on_device(a.codes if isinstance(a, Quantized) else a):
        return _on_device(a, b, contract, c, output, alpha, format_a, format_b)
    return _core.gemm(_operand("a", a, format_a), _operand("b", b, format_b), contract, c, output, alpha)
