# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers of PyTorch whose three GEMMs run under a recipe: emulated on the CPU, by kernels on a device.

    model = rotoscale.torch.convert(model, "mxfp4_h16")

The bits equal the C++ trainer's on both. The layers are custom operators, so torch.compile takes them.
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
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ROUNDING, _SIGNS = 1, 2  # purposes of random streams (docs/reference/layers.md)


def _stream(purpose, gemm, right, layer):
    return purpose << 56 | gemm << 52 | right << 48 | layer << 32


def _is_expanded(contract, q):
    """Does the contract's unit multiply these blocks as BF16 numbers?"""
    base = contract.split(":")[0]
    name = base.partition("@")[2] or _UNIT_OF_KERNEL.get(base) or base
    unit, block = _UNITS.get(name), BLOCKS[q.format]
    # Significands of a code and of its scale, whose product BF16 holds (expands_to_bf16 in nn/contracts.hpp).
    bits = sum(_MANTISSA[block[part]] + 1 for part in ("element", "scale")
               if _MANTISSA[block[part]] or part == "element")
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


class _CurrentScale:
    """The scale of a tensor from its own largest finite magnitude (nn::current_fp8_scale)."""

    def __init__(self, x, element):
        amax = np.abs(x[np.isfinite(x)]).max(initial=np.float32(0))
        with np.errstate(over="ignore"):
            scale = _LARGEST[element] / amax if amax else np.float32(1)
        self.scale = min(scale, np.finfo(np.float32).max)
        self.inverse = np.float32(1) / self.scale


_keys = itertools.count()
_layers = weakref.WeakValueDictionary()  # Gemms by their key


class Gemms:
    """The three GEMMs of one linear layer under a recipe, on float32 arrays: y = x·wᵀ, dx = dy·w, dw = dyᵀ·x.

    `layer` and `seed` name the random streams, `step` counts backward passes. They give stochastic rounding the words
    that the C++ trainer draws in that layer and step.
    """

    def __init__(self, recipe: str | dict, layer: int = 0, seed: int = 0):
        if isinstance(recipe, str) and recipe not in _RECIPES:
            raise ValueError(f"recipe: no {recipe!r}; rotoscale.recipes lists all")
        if not isinstance(recipe, str) and not (isinstance(recipe, dict) and _GEMMS.keys() <= recipe.keys()):
            raise TypeError(f"recipe: {recipe!r}, expected a name or a record of rotoscale.recipes")
        self.recipe = _RECIPES[recipe] if isinstance(recipe, str) else recipe
        self.layer, self.seed, self.step = layer, seed, 0
        # Elements along a contraction that are quantized together: sizes must be multiples of it.
        self.run = max([1, *(max(o["length"], o["rows"], o["rotation"]) for o in self.operand_recipes()
                             if "length" in o)])
        self.scaling = {}
        self._register()
        for tensor, element in self.fp8_tensors():
            self.scaling[tensor] = _Scaling(self.recipe["fp8"], element)

    def check_features(self, module):
        """Raises ValueError unless the features of `module` are whole runs."""
        for name in ("in_features", "out_features"):
            if getattr(module, name) % self.run:
                raise ValueError(
                    f"{name} {getattr(module, name)}: {self.recipe['name']} needs a multiple of {self.run}")

    def operand_recipes(self):
        """The recipes of all six operands."""
        return [self.recipe[gemm][side] for gemm in _GEMMS for side in ("left", "right")]

    def fp8_tensors(self):
        """(tensor, element) of each tensor that a GEMM reads in FP8 under delayed scaling."""
        found = {}
        for name, (_, *operands) in _GEMMS.items():
            for side, (tensor, _) in zip(("left", "right"), operands):
                own = self.recipe[name][side]
                element = _FP8.get(own["format"])
                if element is not None and own["scaling"] == "delayed":
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

    def backward(self, dy: np.ndarray, x: np.ndarray, w: np.ndarray, needs_dx: bool = True, needs_dw: bool = True):
        """(dx, dw), None for an unneeded one. Ends the step."""
        dx = self.input_gradient(dy, w) if needs_dx else None
        dw = self.weight_gradient(dy, x) if needs_dw else None
        self.end_backward(dy)
        return dx, dw

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
        if form in _FP8:
            codes, inverse = self._fp8(gemm, is_right, own, tensor, x)
            return _core.plain_operand(name, codes if axis else codes.T, _FP8[form], float(inverse))
        if own["source"] == "forward":
            x = _core.decode(_bf16(self._forward_values(tensor, x)), "bf16")
        q = self._blocks(gemm, is_right, own, axis, x)
        if _is_expanded(recipe["contract"], q):
            values = Quantized(q.codes, q.scales, q.format, square=q.square).dequantize()
            return _core.plain_operand(name, _bf16(values), "bf16", q.global_factor if q.global_factor != 1 else None)
        return _operand(name, q, None)

    def _random(self, gemm, is_right):
        return self.seed, _stream(_ROUNDING, gemm, is_right, self.layer) | self.step << 8 & 0xFFFFFFFF

    def _fp8(self, gemm, is_right, own, tensor, x):
        element, values = _FP8[own["format"]], _core.decode(_bf16(x), "bf16")
        scaling = self.scaling[tensor] if own["scaling"] == "delayed" else _CurrentScale(values, element)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = values * scaling.scale
        random = self._random(gemm, is_right)
        return _core.encode(scaled, element, own["rounding"], "saturate", *random, 32), scaling.inverse

    def _forward_values(self, tensor, x):
        is_w = tensor == "w"
        own = self.recipe["fprop"]["right" if is_w else "left"]
        if own["format"] not in _FP8:
            return self._blocks(0, is_w, own, -1, x).dequantize()
        codes, inverse = self._fp8(0, is_w, own, tensor, x)
        return _core.decode(codes, _FP8[own["format"]]) * np.float32(inverse)

    def _blocks(self, gemm, is_right, own, axis, x):
        if own["length"] != BLOCKS[own["format"]]["length"]:
            raise ValueError(f"recipe: {own['format']} in blocks of {own['length']} runs in the C++ trainer only")
        return quantize(x, format=own["format"], source="bf16", scale_rule=own["scale_rule"],
                        scale_choice=own["scale_choice"], rounding=own["rounding"], policy=own["policy"],
                        rotation=(own["rotation"], self._signs(gemm, own)), axis=axis,
                        random=self._random(gemm, is_right) if _draws_words(own) else None, square=own["rows"] > 1,
                        encode_factor="amax" if own["format"] == "nvfp4" else None)

    def _signs(self, gemm, own):
        words = 4 if own["rotation"] > 32 else 1
        if own["signs"] == "mask":
            return sum((own["mask"] << 16 | own["mask"]) << 32 * i for i in range(words))
        if own["signs"] == "none":
            return 0
        step = self.step + 1 & 0xFFFFFFFF if own["signs"] == "step" else 0
        stream = _stream(_SIGNS, gemm, 0, self.layer) | step
        return sum(_core.random_word(self.seed, stream, i) << 32 * i for i in range(words))


def _draws_words(own):
    return own["rounding"] == "stochastic" or own.get("scale_choice") == "eden"


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


class _Plan:
    """One GEMM of a layer for operands of known shapes and dtypes: a call without addresses, and its output."""

    def __init__(self, gemms, name, left, right, dtype, records, share, place):
        number, (left_name, left_axis), (right_name, right_axis) = _GEMMS[name]
        recipe, self.is_gradient = gemms.gemms.recipe, name == "wgrad"
        self.shape = left.shape[0 if left_axis else 1], right.shape[0 if right_axis else 1]
        self.dtype = dtype if recipe[name]["output"] == "bf16" and dtype == torch.bfloat16 else torch.float32
        columns, none = self.shape[1], _device.Scaling()
        out = _device.Matrix(None, *self.shape, columns, 1, _device.name(_ops.element_name(self.dtype)))
        self.call = _device.LinearCall(
            gemms.recipe, *(_ops.matrix(t, _ops.element_of("x", t)) for t in (left, right)),
            *(gemms.scaling[t].addresses(t in records) if t in gemms.scaling else none
              for t in (left_name, right_name)),
            gemms.gemms.layer, gemms.state.data_ptr(), number, self.is_gradient, out, share=share)
        gemms.library.call("plan_linear", self.call, place)

    def run(self, gemms, left, right, shared, place):
        # The trainer adds dw to a gradient, which makes a sum of -0 a +0.
        out = (torch.zeros if self.is_gradient else torch.empty)(self.shape, dtype=self.dtype, device=left.device)
        call = _device.LinearCall.from_buffer_copy(self.call)  # threads may share the plan
        memory, call.memory = _ops.memory_for(out, call.memory_bytes)
        call.shared = shared
        call.left.data, call.right.data, call.out.data = left.data_ptr(), right.data_ptr(), out.data_ptr()
        gemms.library.call("linear", call, place)
        return out


class DeviceGemms:
    """The three GEMMs of one linear layer under a recipe, on tensors of one device. Steps are as in `gemms`."""

    def __init__(self, gemms, device):
        self.gemms = weakref.proxy(gemms)
        self.library = _ops.library_for("x", torch.empty(0, device=device))
        self.recipe = _device.recipe(gemms.recipe)
        weakref.finalize(self, self.library.free_recipe, self.recipe)
        self.scaling = {tensor: _DeviceScaling(gemms.recipe["fp8"], element, device)
                        for tensor, element in gemms.fp8_tensors()}
        self.is_drawn = any(_draws_words(o) or o.get("signs") in ("layer", "step") for o in gemms.operand_recipes())
        self.state, self.written = torch.zeros(4096, dtype=torch.uint8, device=device), None
        self.plans = {}

    def forward(self, x, w, training):
        """y (tokens, out) of x (tokens, in) and w (out, in). `training` records maxima of FP8 tensors."""
        with _ops.place_of(x) as place:
            self._write_state(place)
            x, w, dtype, records = self._source(x), self._source(w), x.dtype, ("w", "x") if training else ("w",)
            return self._plan("fprop", x, w, dtype, records, _device.SHARE_NONE, place).run(self, x, w, None, place)

    def backward(self, dy, x, w, needs_dx, needs_dw):
        """(dx (tokens, in), dw (out, in)) of dy (tokens, out), x and w; None for an unneeded one. Ends a step: maxima
        become scales, and the next step draws other random words."""
        dx = dw = shared = None
        makes, uses = (_device.SHARE_MAKE, _device.SHARE_USE) if needs_dx and needs_dw else (_device.SHARE_NONE,) * 2
        with _ops.place_of(dy) as place:
            self._write_state(place)
            source = self._source(dy)
            if needs_dx:
                w = self._source(w)
                plan = self._plan("dgrad", source, w, dy.dtype, ("dy",), makes, place)
                memory, shared = _ops.memory_for(source, plan.call.shared_bytes)
                dx = plan.run(self, source, w, shared, place)
            if needs_dw:
                x = self._source(x)
                plan = self._plan("wgrad", source, x, torch.float32, ("dy",), uses, place)
                dw = plan.run(self, source, x, shared, place)
            for scaling in self.scaling.values():
                scaling.update(self.library, place)
        self.gemms.step += 1
        return dx, dw

    def _plan(self, name, left, right, dtype, records, share, place):
        key = (name, left.shape, right.shape, left.dtype, right.dtype, records, share)
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = _Plan(self, name, left, right, dtype, records, share, place)
        return plan

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


def _as(t, dtype):
    return t if t.dtype == dtype else t.to(dtype)


def _linear(x, w, bias, key, training):
    """y (tokens, out) of x (tokens, in) and w (out, in) by the Gemms of that key, plus the bias (out)."""
    gemms = _layers[key]
    if x.numel() == 0:
        return x.new_zeros((x.shape[0], w.shape[0]))
    if _ops.is_on_device(x):
        y = _as(gemms.on_device(x.device).forward(x, w, training), x.dtype)
    else:
        y = _as(torch.from_numpy(gemms.forward(_array(x), _array(w), training)), x.dtype)
    return y if bias is None else y.add_(_as(bias, y.dtype))


def _linear_backward(dy, x, w, key, needs_dx, needs_dw, needs_db):
    """(dx, dw, db), of which an unneeded one is empty. Ends the layer's step.

    db is summed here, not by the caller's graph: compilers sum in another order than PyTorch.
    """
    gemms = _layers[key]
    if x.numel() == 0:
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
    elif _ops.is_on_device(x):
        dx, dw = gemms.on_device(x.device).backward(dy, x, w, needs_dx, needs_dw)
    else:
        dx, dw = (None if t is None else torch.from_numpy(t)
                  for t in gemms.backward(*(_array(t) for t in (dy, x, w)), needs_dx, needs_dw))
    return (_as(dx, x.dtype) if needs_dx else x.new_empty(0), _as(dw, w.dtype) if needs_dw else w.new_empty(0),
            dy.sum(0) if needs_db else dy.new_empty(0))


# torch.library.custom_op is simpler, but takes 0.1 ms longer per call.
torch.library.define("rotoscale::linear", "(Tensor x, Tensor w, Tensor? bias, int key, bool training) -> Tensor")
torch.library.define("rotoscale::linear_backward", "(Tensor dy, Tensor x, Tensor w, int key, bool needs_dx, "
                     "bool needs_dw, bool needs_db) -> (Tensor, Tensor, Tensor)")
torch.library.impl("rotoscale::linear", "default", _linear)
torch.library.impl("rotoscale::linear_backward", "default", _linear_backward)


@torch.library.register_fake("rotoscale::linear")
def _(x, w, bias, key, training):
    return x.new_empty((x.shape[0], w.shape[0]))


@torch.library.register_fake("rotoscale::linear_backward")
def _(dy, x, w, key, needs_dx, needs_dw, needs_db):
    return (x.new_empty(x.shape if needs_dx else (0,)), w.new_empty(w.shape if needs_dw else (0,)),
            dy.new_empty((dy.shape[1] if needs_db else 0,)))


def _save(ctx, inputs, output):
    x, w, bias, ctx.key, _ = inputs
    ctx.gemms = _layers.get(ctx.key)  # the layer may be gone, or have another recipe, before the backward pass
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, w)


def _gradients(ctx, dy, backward):
    x, w = ctx.saved_tensors
    needs = ctx.needs_input_grad[:3]
    dx, dw, db = backward(dy, x, w, ctx.key, *needs)
    return dx if needs[0] else None, dw if needs[1] else None, _as(db, ctx.bias_dtype) if needs[2] else None, None, None


torch.library.register_autograd(
    "rotoscale::linear", lambda ctx, dy: _gradients(ctx, dy, torch.ops.rotoscale.linear_backward), setup_context=_save)


class _EagerLinear(torch.autograd.Function):
    """The operator without PyTorch's dispatcher, whose Python parts take longer than a launch."""

    @staticmethod
    def forward(ctx, *inputs):
        _save(ctx, inputs, None)
        return _linear(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        return _gradients(ctx, dy, _linear_backward)


class Linear(torch.nn.Linear):
    """torch.nn.Linear whose GEMMs run under a recipe, on the device of its tensors.

    recipe       a name in rotoscale.recipes, or such a record
    layer, seed  name the random streams of stochastic rounding and of signs

    in_features and out_features must be multiples of the blocks and of the rotation, else ValueError. Tokens are padded
    with zeros. PyTorch adds the bias and sums its gradient. A backward pass is a step of delayed scaling and of random
    streams.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None,
                 *, recipe: str | dict = "mxfp4_h16", layer: int = 0, seed: int = 0):
        super().__init__(in_features, out_features, bias, device, dtype)
        self.set_recipe(recipe, layer, seed)

    def set_recipe(self, recipe: str | dict, layer: int | None = None, seed: int | None = None) -> None:
        """Switches to a recipe. FP8 scales are reset, the step count continues."""
        before = getattr(self, "gemms", Gemms("fp32"))
        gemms = Gemms(recipe, before.layer if layer is None else layer, before.seed if seed is None else seed)
        gemms.step = before.step
        gemms.check_features(self)
        self.gemms = gemms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y (..., out_features) of x (..., in_features), in x's dtype: float32, bfloat16, float16 or float64.

        Raises TypeError for another dtype, ValueError for another last axis or for a recipe without kernels on x's
        device.
        """
        if x.dtype not in _DTYPES:
            raise TypeError(f"x: dtype {x.dtype}, expected float32, bfloat16, float16 or float64")
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"x of shape {tuple(x.shape)}: the last axis must have {self.in_features} elements")
        rows = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        tokens, run = rows.shape[0], self.gemms.run
        if tokens % run:
            rows = torch.nn.functional.pad(rows, (0, 0, 0, run - tokens % run))
        is_plain = (type(x) is torch.Tensor and type(self.weight) is torch.nn.Parameter
                    and not torch.compiler.is_compiling())
        linear = _EagerLinear.apply if is_plain else torch.ops.rotoscale.linear
        y = linear(rows, self.weight, self.bias, self.gemms.key, self.training and torch.is_grad_enabled())
        if tokens % run:
            y = y[:tokens]
        return y if x.dim() == 2 else y.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.gemms.recipe['name']}"


def convert(model: torch.nn.Module, recipe: str | dict = "mxfp4_h16", *, skip: str | Iterable[str] = (),
            seed: int = 0) -> torch.nn.Module:
    """Replaces the torch.nn.Linear modules of `model` in place by Linear with the same parameters; returns the model.

    recipe  a name in rotoscale.recipes, or such a record
    skip    a name, or names, of modules to leave as they are, such as "lm_head"; their parts are left as well
    seed    of stochastic rounding and of signs

    Layers are numbered in the order of model.named_modules(). A model that has been converted switches to the recipe,
    as healing does: convert(model, "fp8_amd") after some steps. Raises ValueError naming a module whose features are
    not multiples of the recipe's blocks, and leaves the model as it was.
    """
    skipped, gemms = (skip,) if isinstance(skip, str) else tuple(skip), Gemms(recipe)
    found = [(name, module) for name, module in model.named_modules()
             if type(module) in (torch.nn.Linear, Linear)
             and not any(name == s or name.startswith(s + ".") for s in skipped)]
    for name, module in found:
        try:
            gemms.check_features(module)
        except ValueError as error:
            raise ValueError(f"{name or 'model'}: {error}; leave it with skip") from None
    for layer, (_, module) in enumerate(found):
        module.__class__ = Linear
        module.set_recipe(recipe, layer, seed)
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # its fused kernel of evaluation calls no layers
    return model
