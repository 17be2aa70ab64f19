# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers of PyTorch whose three GEMMs run under a recipe, emulated on the CPU bit for bit.

    model = rotoscale.torch.convert(model, "mxfp4_h16")
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from . import _core
from ._gemm import _operand
from ._quantized import Quantized, quantize

_RECIPES = {record["name"]: record for record in _core.recipes}
_UNITS = {record["name"]: record for record in _core.models}
_UNIT_OF_KERNEL = {record["name"]: record["unit"] for record in _core.contracts}
_BLOCKS = {record["name"]: record for record in _core.block_formats}
_FP8 = {"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}
_LARGEST = {"e4m3": np.float32(448), "e5m2": np.float32(57344)}
# GEMM: its number in random streams, its operands (tensor, axis of the contraction in it).
_GEMMS = {"fprop": (0, ("x", -1), ("w", -1)), "dgrad": (1, ("dy", -1), ("w", 0)), "wgrad": (2, ("dy", 0), ("x", 0))}
_ROUNDING, _SIGNS = 1, 2  # purposes of random streams (docs/reference/layers.md)


def _stream(purpose, gemm, right, layer):
    return purpose << 56 | gemm << 52 | right << 48 | layer << 32


def _is_expanded(contract, q):
    """Does the contract's unit multiply these blocks as BF16 numbers?"""
    base = contract.split(":")[0]
    name = base.partition("@")[2] or _UNIT_OF_KERNEL.get(base) or base
    unit, block = _UNITS.get(name), _BLOCKS[q.format]
    return (unit is not None and unit["block"] == 0 and "bf16" in unit["operands"] and block["scale"] == "e8m0"
            and block["element"] in ("e2m1", "e4m3", "e5m2") and block["element"] not in unit["operands"])


class _Scaling:
    """Delayed scaling of one tensor, as Transformer Engine's: a scale from the history of its maxima."""

    def __init__(self, rule, element):
        self.rule, self.largest = rule, _LARGEST[element]
        self.scale = self.inverse = np.float32(1)
        self.history, self.amax = np.zeros(rule["history_length"], np.float32), np.float32(0)

    def record(self, x):
        magnitude = np.abs(x[np.isfinite(x)])
        if magnitude.size:
            self.amax = max(self.amax, magnitude.max())

    def update(self):
        self.history = np.concatenate([[self.amax], self.history[:-1]]).astype(np.float32)
        self.amax = np.float32(0)
        amax = self.history.max() if self.rule["algorithm"] == "max" else self.history[0]
        if amax > 0 and np.isfinite(amax):
            with np.errstate(over="ignore"):
                scale = self.largest / amax * np.float32(2.0 ** -self.rule["margin"])
            self.scale = scale if np.isfinite(scale) else np.finfo(np.float32).max
            self.inverse = np.float32(1) / self.scale


class Gemms:
    """The three GEMMs of one linear layer under a recipe, on float32 arrays: y = x·wᵀ, dx = dy·w, dw = dyᵀ·x.

    `layer` and `seed` name the random streams, `step` counts backward passes: they give stochastic rounding the words
    that the C++ trainer draws in that layer and step.
    """

    def __init__(self, recipe: str | dict, layer: int = 0, seed: int = 0):
        if isinstance(recipe, str) and recipe not in _RECIPES:
            raise ValueError(f"recipe: no {recipe!r}; rotoscale.recipes lists all")
        self.recipe = _RECIPES[recipe] if isinstance(recipe, str) else recipe
        self.layer, self.seed, self.step = layer, seed, 0
        self.scaling = {}
        for name, (_, *operands) in _GEMMS.items():
            for side, (tensor, _) in zip(("left", "right"), operands):
                element = _FP8.get(self.recipe[name][side]["format"])
                if element is not None:
                    self.scaling.setdefault(tensor, _Scaling(self.recipe["fp8"], element))

    def run_length(self) -> int:
        """Elements along a contraction that are quantized together: sizes must be multiples of it."""
        operands = [self.recipe[gemm][side] for gemm in _GEMMS for side in ("left", "right")]
        return max([1, *(max(o["length"], o["rows"], o["rotation"]) for o in operands if "length" in o)])

    def forward(self, x: np.ndarray, w: np.ndarray, training: bool = True) -> np.ndarray:
        """y (tokens, out) of x (tokens, in) and w (out, in). `training` records maxima of FP8 tensors."""
        if training:
            self._record("x", x)
        self._record("w", w)
        return self._multiply("fprop", x=x, w=w)

    def input_gradient(self, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
        """dx (tokens, in) of dy (tokens, out) and w (out, in)."""
        return self._multiply("dgrad", dy=dy, w=w)

    def weight_gradient(self, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        """dw (out, in) of dy (tokens, out) and x (tokens, in)."""
        return self._multiply("wgrad", dy=dy, x=x)

    def end_backward(self, dy: np.ndarray) -> None:
        """Ends a step: maxima become scales, and the next step draws other random words."""
        self._record("dy", dy)
        for scaling in self.scaling.values():
            scaling.update()
        self.step += 1

    def _record(self, tensor, x):
        if tensor in self.scaling:
            self.scaling[tensor].record(_core.decode(_bf16(x), "bf16"))

    def _multiply(self, name, **tensors):
        number, left, right = _GEMMS[name]
        recipe = self.recipe[name]
        operands = [self._operand(number, is_right, recipe, *where, tensors[where[0]])
                    for is_right, where in enumerate((left, right))]
        # The trainer adds dw to a gradient, which makes a sum of -0 a +0.
        zeros = (np.zeros((tensors["dy"].shape[1], tensors["x"].shape[1]), np.float32) if name == "wgrad" else None)
        return _core.gemm(*operands, recipe["contract"], zeros, recipe["output"], 1.0)

    def _operand(self, gemm, is_right, recipe, tensor, axis, x):
        own, name = recipe["right" if is_right else "left"], "b" if is_right else "a"
        form = own["format"]
        if form == "fp32":
            return _core.plain_operand(name, x if axis else x.T, None, None)
        if form == "bf16":
            codes = _bf16(x)
            return _core.plain_operand(name, codes if axis else codes.T, "bf16", None)
        random = (self.seed, _stream(_ROUNDING, gemm, is_right, self.layer) | self.step << 8 & 0xFFFFFFFF)
        if form in _FP8:
            scaling = self.scaling[tensor]
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = _core.decode(_bf16(x), "bf16") * scaling.scale
            codes = _core.encode(scaled, _FP8[form], own["rounding"], "saturate", *random, 32)
            return _core.plain_operand(name, codes if axis else codes.T, _FP8[form], float(scaling.inverse))
        q = quantize(x, format=form, source="bf16", scale_rule=own["scale_rule"], rounding=own["rounding"],
                     policy=own["policy"], rotation=(own["rotation"], self._signs(gemm, own)), axis=axis,
                     random=random if own["rounding"] == "stochastic" else None, square=own["rows"] > 1,
                     encode_factor="amax" if form == "nvfp4" else None)
        if _is_expanded(recipe["contract"], q):
            values = Quantized(q.codes, q.scales, q.format, square=q.square).dequantize()
            return _core.plain_operand(name, _bf16(values), "bf16", None)
        return _operand(name, q, None)

    def _signs(self, gemm, own):
        if own["signs"] == "mask":
            return own["mask"] << 16 | own["mask"]
        if own["signs"] == "none":
            return 0
        step = self.step + 1 & 0xFFFFFFFF if own["signs"] == "step" else 0
        return _core.random_word(self.seed, _stream(_SIGNS, gemm, 0, self.layer) | step, 0)


def _bf16(x):
    return _core.encode(x, "bf16", "nearest_even", "to_inf", 0, 0, 32)


def _array(t):
    return t.detach().to("cpu", torch.float32).contiguous().numpy()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, gemms, training):
        ctx.save_for_backward(x, w)
        ctx.gemms = gemms
        return torch.from_numpy(gemms.forward(_array(x), _array(w), training)).to(x.device, x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        gemms, gradient = ctx.gemms, _array(dy)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = torch.from_numpy(gemms.input_gradient(gradient, _array(w))).to(x.device, x.dtype)
        if ctx.needs_input_grad[1]:
            dw = torch.from_numpy(gemms.weight_gradient(gradient, _array(x))).to(w.device, w.dtype)
        gemms.end_backward(gradient)
        return dx, dw, None, None


class Linear(torch.nn.Linear):
    """torch.nn.Linear whose GEMMs run under a recipe, on the CPU whatever device the tensors are on.

    recipe       a name in rotoscale.recipes, or such a record
    layer, seed  name the random streams of stochastic rounding and of signs

    in_features and out_features must be multiples of the blocks and of the rotation. Tokens are padded with zeros.
    The bias is added by PyTorch. A backward pass is a step of delayed scaling and of random streams.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None,
                 *, recipe: str | dict = "mxfp4_h16", layer: int = 0, seed: int = 0):
        super().__init__(in_features, out_features, bias, device, dtype)
        self.set_recipe(recipe, layer, seed)

    def set_recipe(self, recipe: str | dict, layer: int | None = None, seed: int | None = None) -> None:
        """Switches to a recipe. FP8 scales start anew, steps go on."""
        before = getattr(self, "gemms", Gemms("fp32"))
        self.gemms = Gemms(recipe, before.layer if layer is None else layer, before.seed if seed is None else seed)
        self.gemms.step = before.step
        run = self.gemms.run_length()
        for name in ("in_features", "out_features"):
            if getattr(self, name) % run:
                raise ValueError(f"{name} {getattr(self, name)}: {self.gemms.recipe['name']} needs a multiple of {run}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        tokens, run = rows.shape[0], self.gemms.run_length()
        if tokens % run:
            rows = torch.nn.functional.pad(rows, (0, 0, 0, run - tokens % run))
        y = _Product.apply(rows, self.weight, self.gemms, self.training and torch.is_grad_enabled())
        y = y[:tokens].reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.gemms.recipe['name']}"


def convert(model: torch.nn.Module, recipe: str | dict = "mxfp4_h16", *, skip: Iterable[str] = (),
            seed: int = 0) -> torch.nn.Module:
    """Replaces the torch.nn.Linear modules of `model` in place by Linear with the same parameters; returns the model.

    skip  names of modules to leave as they are, such as "lm_head"; their parts are left as well

    Layers are numbered in the order of model.named_modules(). A model that has been converted switches to the recipe,
    as healing does: convert(model, "fp8_amd") after some steps. Raises ValueError naming a module whose features are
    not multiples of the recipe's blocks.
    """
    skipped = tuple(skip)
    found = [(name, module) for name, module in model.named_modules()
             if type(module) in (torch.nn.Linear, Linear)
             and not any(name == s or name.startswith(s + ".") for s in skipped)]
    for layer, (name, module) in enumerate(found):
        is_new = type(module) is torch.nn.Linear
        try:
            if is_new:
                module.__class__ = Linear
            module.set_recipe(recipe, layer, seed)
        except ValueError as error:
            if is_new:
                module.__class__ = torch.nn.Linear
            raise ValueError(f"{name or 'model'}: {error}; leave it with skip") from None
    return model
