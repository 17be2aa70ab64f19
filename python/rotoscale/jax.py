# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""The package's functions as XLA custom calls: they work under jax.jit, with the bytes of the package.

Needs JAX 0.6 or newer. A CUDA device needs librotoscale_device. jax.vmap computes one element after another. The
functions have no derivative: use jax.custom_vjp.
"""
from __future__ import annotations

from typing import Any

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np

from . import _core, _device, _quantized
from ._check import split_random, split_rotation
from ._quantized import BLOCKS, Quantized


def _register():
    """Registers the CPU's calls, and librotoscale_device's if it is there. Returns XLA's names of platforms."""
    targets = {"cpu": _core.xla_targets}
    try:
        library = _device.library()
    except RuntimeError:
        library = None
    if library is not None and (library.mode != "host" or _device.computes_cpu_tensors()):
        platform = {"host": "cpu", "cuda": "CUDA", "hip": "ROCM"}[library.mode]
        targets[platform] = {name: jax.ffi.pycapsule(library.xla_target(name)) for name in _core.xla_targets}
    for platform, functions in targets.items():
        for name, capsule in functions.items():
            jax.ffi.register_ffi_target(name, capsule, platform=platform)
    return set(targets)


_PLATFORMS = _register()
_SOURCES = ("float32", "bfloat16", "float16", "float64")
_OPERANDS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
             "float8_e4m3b11fnuz")


def _flatten(q):
    return (q.codes, q.scales, q.global_factor), (q.format, q.shape, q.axis, q.square, q.rotation, q.layout)


def _unflatten(options, leaves):
    q = Quantized.__new__(Quantized)
    q.codes, q.scales, q.global_factor = leaves
    q.format, q.shape, q.axis, q.square, q.rotation, q.layout = options
    return q


jax.tree_util.register_pytree_node(Quantized, _flatten, _unflatten)


def _call(target, results, *arguments, **attributes):
    return jax.ffi.ffi_call(target, results, vmap_method="sequential")(*arguments, **attributes)


def _array(name, x, dtypes):
    x = jnp.asarray(x)
    if _PLATFORMS == {"cpu"} and not isinstance(x, jax.core.Tracer) and x.device.platform != "cpu":
        raise ValueError(f"{name}: is on {x.device}, expected the CPU: {_device.MISSING}")
    if x.dtype.name not in dtypes:
        raise TypeError(f"{name}: dtype {x.dtype}, expected one of {', '.join(dtypes)}")
    return x


def _plain(name, q):
    """Refuses bytes that the custom calls do not read."""
    if not isinstance(q, Quantized):
        raise TypeError(f"{name}: {type(q).__name__}, expected a Quantized")
    if q.layout != ("row_major", "row_major"):
        raise ValueError(f"{name}: codes and scales must be in row_major, not {q.layout}")
    return jnp.asarray(q.codes), jnp.asarray(q.scales), jnp.float32(q.global_factor)


def _rotation(rotation):
    points, signs = (-1, 0) if rotation is None else split_rotation(rotation)
    return {"points": np.int32(points), "signs": f"{signs:064x}"}


def _random_words(random):
    """(words for the call, random numbers for a request of the package) of an integer, a pair, or an array of words."""
    if hasattr(random, "dtype"):
        words = jnp.asarray(random)
        if jnp.issubdtype(words.dtype, jax.dtypes.prng_key):
            words = jax.random.key_data(words)
        if words.dtype != jnp.uint32 or words.shape not in ((2,), (4,)):
            raise TypeError(f"random: {words.dtype} {words.shape}, expected uint32 of shape (2,) or (4,), or a key")
        return jnp.pad(words, (0, 4 - words.size)), 0
    return jnp.asarray(np.array(split_random(random), "<u8").view("<u4")), random


def quantize(x: Any, *, preset: str = "ocp", format: str = "mxfp4", source: str | None = None,
             scale_rule: str | None = None, rounding: str | None = None,
             rotation: int | tuple[int, int] | None = None, axis: int = -1, policy: str | None = None,
             random: Any = None, random_count: int = 32, encode_factor: float | str | None = None,
             square: bool = False, scale_choice: str | None = None) -> Quantized:
    """rotoscale.quantize of an array of JAX, float32, bfloat16, float16 or float64 (..., k).

    Returns a Quantized, which is a pytree of three arrays: codes and scales, uint8, and global_factor, float32 ().
    `random` may also be a key of jax.random, or uint32 of shape (2,) or (4,): seed and stream, low words first. The
    other arguments are as for rotoscale.quantize, and static. Raises the same errors while JAX traces.
    """
    x = _array("x", x, _SOURCES)
    words, seeds = _random_words(random)
    request, turned = _quantized._request(preset, format, source, scale_rule, rounding, rotation, axis, policy, seeds,
                                          random_count, encode_factor, square, scale_choice)
    codes, scales, along = _core.shapes(request, x.shape)
    two_levels = encode_factor == "amax"
    results = [jax.ShapeDtypeStruct(codes, jnp.uint8), jax.ShapeDtypeStruct(scales, jnp.uint8),
               jax.ShapeDtypeStruct((), jnp.float32)]
    codes, scales, factor = _call(
        "rotoscale_quantize", results, x, words, preset=preset, format=format, source=source or "",
        scale_rule=scale_rule or "", rounding=rounding or "", policy=policy or "",
        scale_choice=scale_choice or "", **_rotation(rotation),
        random_count=np.int32(random_count), two_levels=np.bool_(two_levels), square=np.bool_(square),
        encode_factor=np.float32(0 if two_levels or encode_factor is None else encode_factor), axis=np.int32(axis))
    return _unflatten((format, x.shape, along, square, turned, ("row_major", "row_major")), (codes, scales, factor))


def dequantize(q: Quantized, unrotate: bool = True) -> jax.Array:
    """q.dequantize(unrotate) as an array of JAX: float32 in the source's shape. q must be in row_major.

    A device leaves a rotation in: XLA reports unrotate.
    """
    codes, scales, factor = _plain("q", q)
    k = scales.shape[-1] * BLOCKS[q.format]["length"]
    values = _call("rotoscale_dequantize", jax.ShapeDtypeStruct((*codes.shape[:-1], k), jnp.float32), codes, scales,
                   factor, format=q.format, square=np.bool_(q.square), **_rotation(q.rotation if unrotate else 0))
    return values.T if q.axis == 0 else values


def gemm(a: Quantized | Any, b: Quantized | Any, *, contract: str = "fp32_fma_chain", c: Any = None,
         output: str = "fp32", alpha: float = 1.0) -> jax.Array:
    """rotoscale.gemm as an array of JAX: alpha · a · bᵀ (+ c), float32 (M, N).

    a, b  Quantized of two axes, or matrices (M, k) and (N, k) of float32, bfloat16, float16 or FP8
    c     float32 (M, N)

    Raises TypeError for another dtype, ValueError for other shapes. XLA reports a contract that does not multiply these
    operands when the call runs.
    """
    arguments, attributes, rows = [], {}, []
    for name, x in (("a", a), ("b", b)):
        is_blocks = isinstance(x, Quantized)
        parts = _plain(name, x) if is_blocks else (_array(name, x, _OPERANDS),)
        if parts[0].ndim != 2:
            raise ValueError(f"{name}: has shape {parts[0].shape}, expected two axes")
        arguments += parts
        rows.append(parts[0].shape[0])
        attributes |= {f"{name}_format": x.format if is_blocks else "",
                       f"{name}_square": np.bool_(is_blocks and x.square)}
    if c is not None:
        arguments.append(_array("c", c, ("float32",)))
        if arguments[-1].shape != tuple(rows):
            raise ValueError(f"c of shape {arguments[-1].shape}: a and b give {tuple(rows)}")
    return _call("rotoscale_gemm", jax.ShapeDtypeStruct(tuple(rows), jnp.float32), *arguments, contract=contract,
                 output=output, alpha=np.float32(alpha), **attributes)
