# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers of PyTorch whose three GEMMs run under a recipe: emulated on the CPU, by kernels on a device.

    model = rotoscale.torch.convert(model, "mxfp4_h16")

The bits are those of the C++ trainer on both. The layers are custom operators, so torch.compile takes them.
"""
import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from . import _core, _device, _ops
from ._gemm import _operand
from ._quantized import BLOCKS, Quantized, quantize

_RECIPES = {record["name"]: record for record in _core.recipes}
_UNITS = {record["name"]: record for record in _core.models}
_UNIT_OF_KERNEL = {record["name"]: record["unit"] for record in _core.contracts}
_MANTISSA = {record["name"]: record["mantissa_bits"] for record in _core.formats}
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
    unit, block = _UNITS.get(name), BLOCKS[q.format]
    # Significands of a code and of its scale, whose product BF16 holds (expands_to_bf16 in nn/contracts.hpp).
    bits = sum(_MANTISSA[block[part]] + 1 for part in ("element", "scale") if _MANTISSA[block[part]] or part == "element")
    return (unit is not None and unit["block"] == 0 and "bf16" in unit["operands"] and bits <= 8
            and block["element"] not in unit["operands"])


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


_keys = itertools.count()
_layers = weakref.WeakValueDictionary()  # Gemms by their key


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
        self._register()
        for tensor, element in self.fp8_tensors():
            self.scaling[tensor] = _Scaling(self.recipe["fp8"], element)

    def operand_recipes(self):
        """The recipes of all six operands."""
        return [self.recipe[gemm][side] for gemm in _GEMMS for side in ("left", "right")]

    def fp8_tensors(self):
        """(tensor, element) of each tensor that a GEMM reads in FP8."""
        found = {}
        for name, (_, *operands) in _GEMMS.items():
            for side, (tensor, _) in zip(("left", "right"), operands):
                element = _FP8.get(self.recipe[name][side]["format"])
                if element is not None:
                    found.setdefault(tensor, element)
        return found.items()

    def _register(self):
        """Gives the operators of torch.ops.rotoscale a number for these GEMMs."""
        self.key, self._on_device = next(_keys), {}
        _layers[self.key] = self

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name not in ("key", "_on_device")}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._register()

    def on_device(self, device):
        """These GEMMs by kernels of `device`."""
        if device not in self._on_device:
            self._on_device[device] = DeviceGemms(self, device)
        return self._on_device[device]

    def run_length(self) -> int:
        """Elements along a contraction that are quantized together: sizes must be multiples of it."""
        return max([1, *(max(o["length"], o["rows"], o["rotation"]) for o in self.operand_recipes() if "length" in o)])

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
            return _core.plain_operand(name, _bf16(values), "bf16", q.global_factor if q.global_factor != 1 else None)
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


class _DeviceScaling:
    """Delayed scaling of one tensor in device memory: scale, inverse, amax, largest, history."""

    def __init__(self, rule, element, device):
        self.rule = rule
        self.words = torch.zeros(4 + rule["history_length"], dtype=torch.float32, device=device)
        self.words[:2] = 1
        self.words[3] = float(_LARGEST[element])

    def addresses(self, records):
        at = self.words.data_ptr()
        return _device.Scaling(at, at + 4, at + 8 if records else None)

    def update(self, library, place):
        library.call("update_scaling", self.words.data_ptr(), self.rule["history_length"],
                     self.rule["algorithm"].encode(), self.rule["margin"], place)

    @property
    def scale(self):
        return self.words[0].item()


class DeviceGemms:
    """The three GEMMs of one linear layer under a recipe, on tensors of one device. Steps are those of `gemms`."""

    def __init__(self, gemms, device):
        self.gemms = weakref.proxy(gemms)
        self.library = _ops.library_for("x", torch.empty(0, device=device))
        self.recipe = _device.recipe(gemms.recipe)
        weakref.finalize(self, self.library.free_recipe, self.recipe)
        self.scaling = {tensor: _DeviceScaling(gemms.recipe["fp8"], element, device)
                        for tensor, element in gemms.fp8_tensors()}
        self.is_drawn = any(o["rounding"] == "stochastic" or o.get("signs") in ("layer", "step")
                            for o in gemms.operand_recipes())
        self.state, self.written = torch.zeros(256, dtype=torch.uint8, device=device), None
        self.memory_bytes = {}

    def forward(self, x, w, training):
        """y (tokens, out) of x (tokens, in) and w (out, in). `training` records maxima of FP8 tensors."""
        return self._multiply("fprop", {"x": x, "w": w}, x.dtype, {"w": True, "x": training})

    def input_gradient(self, dy, w):
        """dx (tokens, in) of dy (tokens, out) and w (out, in)."""
        return self._multiply("dgrad", {"dy": dy, "w": w}, dy.dtype, {"dy": True})

    def weight_gradient(self, dy, x):
        """dw (out, in) of dy (tokens, out) and x (tokens, in)."""
        return self._multiply("wgrad", {"dy": dy, "x": x}, torch.float32, {"dy": True})

    def end_backward(self, dy):
        """Ends a step: maxima become scales, and the next step draws other random words."""
        with _ops.place_of(dy) as place:
            for scaling in self.scaling.values():
                scaling.update(self.library, place)
        self.gemms.step += 1

    def _multiply(self, name, tensors, dtype, records):
        number, (left, left_axis), (right, right_axis) = _GEMMS[name]
        tensors = {key: self._source(t) for key, t in tensors.items()}
        rows, cols = (tensors[t].shape[0 if axis else 1] for t, axis in ((left, left_axis), (right, right_axis)))
        device = tensors[left].device
        # The trainer adds dw to a gradient, which makes a sum of -0 a +0.
        is_gradient = name == "wgrad"
        stored = dtype if self.gemms.recipe[name]["output"] == "bf16" and dtype == torch.bfloat16 else torch.float32
        out = (torch.zeros if is_gradient else torch.empty)((rows, cols), dtype=stored, device=device)
        none = _device.Scaling()
        call = _device.LinearCall(
            self.recipe, *(_ops.matrix(tensors[t], _ops.element_of(t, tensors[t])) for t in (left, right)),
            *(self.scaling[t].addresses(records.get(t, False)) if t in self.scaling else none for t in (left, right)),
            self.gemms.layer, self.state.data_ptr(), number, is_gradient, _ops.matrix(out, _ops.element_of("y", out)))
        with _ops.place_of(out) as place:
            self._write_state(place)
            key = (name, rows, cols, tensors[left].shape, tensors[left].dtype, tensors[right].dtype)
            if key not in self.memory_bytes:
                self.library.call("plan_linear", call, place)
                self.memory_bytes[key] = call.memory_bytes
            call.memory_bytes = self.memory_bytes[key]
            memory, call.memory = _ops.memory_for(out, call.memory_bytes)
            self.library.call("linear", call, place)
        return out

    def _write_state(self, place):
        now = (self.gemms.seed, self.gemms.step)
        if self.is_drawn and self.written != now:
            self.library.call("write_state", self.state.data_ptr(), *now, place)
            self.written = now

    @staticmethod
    def _source(t):
        if t.dtype not in (torch.float32, torch.bfloat16):
            t = t.float()
        return _ops.aligned(t.contiguous())


# torch.library.custom_op is simpler, but takes 0.1 ms longer per call.
torch.library.define("rotoscale::linear", "(Tensor x, Tensor w, int key, bool training) -> Tensor")
torch.library.define("rotoscale::linear_backward", "(Tensor dy, Tensor x, Tensor w, int key, bool needs_dx, "
                     "bool needs_dw) -> (Tensor, Tensor)")


@torch.library.impl("rotoscale::linear", "default")
def _linear(x, w, key, training):
    """y (tokens, out) of x (tokens, in) and w (out, in) by the Gemms of that key."""
    gemms = _layers[key]
    if x.numel() == 0:
        return x.new_zeros((x.shape[0], w.shape[0]))
    if _ops.is_on_device(x):
        return gemms.on_device(x.device).forward(x, w, training).to(x.dtype)
    return torch.from_numpy(gemms.forward(_array(x), _array(w), training)).to(x.dtype)


@torch.library.register_fake("rotoscale::linear")
def _(x, w, key, training):
    return x.new_empty((x.shape[0], w.shape[0]))


@torch.library.impl("rotoscale::linear_backward", "default")
def _linear_backward(dy, x, w, key, needs_dx, needs_dw):
    """(dx, dw), of which an unneeded one is empty. Ends the layer's step."""
    gemms, dx, dw = _layers[key], x.new_empty(0), w.new_empty(0)
    if x.numel() == 0:
        return torch.zeros_like(x) if needs_dx else dx, torch.zeros_like(w) if needs_dw else dw
    on_device = _ops.is_on_device(x)
    if on_device:
        gemms = gemms.on_device(x.device)
    else:
        dy, x, w = (_array(t) for t in (dy, x, w))
    made = (lambda t: t) if on_device else torch.from_numpy
    if needs_dx:
        dx = made(gemms.input_gradient(dy, w)).to(dx.dtype)
    if needs_dw:
        dw = made(gemms.weight_gradient(dy, x)).to(dw.dtype)
    gemms.end_backward(dy)
    return dx, dw


@torch.library.register_fake("rotoscale::linear_backward")
def _(dy, x, w, key, needs_dx, needs_dw):
    return (x.new_empty(x.shape if needs_dx else (0,)), w.new_empty(w.shape if needs_dw else (0,)))


def _save(ctx, inputs, output):
    x, w, ctx.key, _ = inputs
    ctx.save_for_backward(x, w)


def _differentiate(ctx, dy):
    x, w = ctx.saved_tensors
    needs_dx, needs_dw = ctx.needs_input_grad[:2]
    dx, dw = torch.ops.rotoscale.linear_backward(dy, x, w, ctx.key, needs_dx, needs_dw)
    return dx if needs_dx else None, dw if needs_dw else None, None, None


torch.library.register_autograd("rotoscale::linear", _differentiate, setup_context=_save)


class Linear(torch.nn.Linear):
    """torch.nn.Linear whose GEMMs run under a recipe, on the device of its tensors.

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
        y = torch.ops.rotoscale.linear(rows, self.weight, self.gemms.key, self.training and torch.is_grad_enabled())
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
