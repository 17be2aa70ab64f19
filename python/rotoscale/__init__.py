# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Microscaling numerics with every bit stated: block quantization, placements and GEMMs on models of matrix units.

Tables, as lists of records: formats, block_formats, presets, models, contracts, recipes. Lists of names: scale_rules,
scale_choices, roundings, policies, placements.
"""
from ._core import (__version__, block_formats, contracts, formats, instruction_set, models, placements, policies,
                    presets, recipes, roundings, scale_choices, scale_rules, set_threads)
from ._explain import explain
from ._gemm import gemm
from ._layout import decode, encode, pack, rotate, swizzle, unpack, unswizzle
from ._quantized import Quantized, dequantize, quantize
from ._runs import Runs, runs
from ._validate import Findings, identify, validate

__all__ = ["Findings", "Quantized", "Runs", "__version__", "block_formats", "contracts", "decode", "dequantize",
           "encode", "explain", "formats", "gemm", "identify", "instruction_set", "models", "pack", "placements",
           "policies", "presets", "quantize", "recipes", "rotate", "roundings", "runs", "scale_choices", "scale_rules",
           "set_threads", "swizzle", "unpack", "unswizzle", "validate"]
