# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX on the CPU, in and out, and custom calls under jit. Skips without JAX."""
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import rotoscale
from rotoscale import _device
from rotoscale._arrays import FORMAT_OF_DTYPE

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import rotoscale.jax  # noqa: E402

from conftest import ROOT  # noqa: E402

IS_HOST = _device.computes_cpu_tensors()  # a library of host mode makes the device's calls on the CPU
DEVICES = jax.devices("cpu")[:1] + [d for d in jax.devices()[:1] if d.platform != "cpu"]
jax.config.update("jax_default_device", jax.devices("cpu")[0])
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_array_is_its_numpy_array(dtype):
    x = jnp.asarray(X).astype(dtype)
    q, expected = rotoscale.quantize(x, preset="te_rocm"), rotoscale.quantize(np.asarray(x), preset="te_rocm")
    assert np.array_equal(q.codes, expected.codes) and np.array_equal(q.scales, expected.scales)
    assert q.sqnr(x) == expected.sqnr(np.asarray(x))
    assert np.array_equal(rotoscale.gemm(x, x, contract="exact"), rotoscale.gemm(np.asarray(x), x, contract="exact"))


@pytest.mark.parametrize("dtype", [name for name in FORMAT_OF_DTYPE if hasattr(jnp, name) and "float6" not in name])
def test_codes_keep_their_dtype(dtype):
    codes = jnp.asarray(X).astype(dtype)
    decoded = rotoscale.decode(codes, FORMAT_OF_DTYPE[dtype])
    assert np.array_equal(decoded, np.asarray(codes.astype(jnp.float32)), equal_nan=True)


def test_results_go_back():
    q = rotoscale.quantize(jnp.asarray(X))
    assert np.array_equal(jnp.from_dlpack(q.codes), q.codes)
    assert np.array_equal(jnp.asarray(q.dequantize()), q.dequantize())


def test_a_callback_under_jit():
    @jax.jit
    def fake_quantized(x):
        out = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        return jax.pure_callback(lambda x: rotoscale.quantize(x).dequantize(), out, x) * 2

    assert np.array_equal(fake_quantized(X), rotoscale.quantize(X).dequantize() * 2)


def same(q, expected):
    return (np.array_equal(q.codes, expected.codes) and np.array_equal(q.scales, expected.scales)
            and float(q.global_factor) == expected.global_factor and q.shape == expected.shape
            and (q.format, q.axis, q.square, q.rotation) == (expected.format, expected.axis, expected.square,
                                                             expected.rotation)
            and np.array_equal(q.cpu().dequantize(), expected.dequantize(), equal_nan=True))


OPTIONS = [{}, {"preset": "te_rocm"}, {"axis": 0, "rotation": (16, 0x1234)}, {"format": "mxfp8_e4m3", "square": True},
           {"format": "nvfp4", "encode_factor": "amax"}, {"format": "nvfp4", "encode_factor": 3.0},
           {"scale_rule": "ceil", "policy": "te_rocm", "source": "bf16", "rounding": "toward_zero"},
           {"rounding": "stochastic", "random": (1 << 40, 7), "random_count": 16}]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_custom_call_has_the_bytes_of_the_package(device, options, dtype):
    if device.platform != "cpu" and rotoscale.jax._PLATFORMS == {"cpu"}:
        pytest.skip("no librotoscale_device")
    by_kernels = IS_HOST or device.platform != "cpu"
    if by_kernels and dtype == "float16" and "amax" in options.values():
        pytest.skip("a device takes the factor of float32 and bfloat16")
    with jax.default_device(device):
        check_custom_calls(options, dtype, by_kernels)


def check_custom_calls(options, dtype, by_kernels):
    x = np.resize(X, (32, 64))
    x[1] *= np.float32(2.0 ** -128)  # subnormal, which XLA's own arithmetic flushes
    x = jnp.asarray(x.astype(dtype))
    expected = rotoscale.quantize(np.asarray(x), **options)
    for call in (rotoscale.jax.quantize, jax.jit(rotoscale.jax.quantize, static_argnames=list(options))):
        q = call(x, **options)
        assert isinstance(q.codes, jax.Array) and same(q, expected)
    for unrotate in (False, not by_kernels or q.rotation[0] == 0):
        values = jax.jit(rotoscale.jax.dequantize, static_argnums=1)(q, unrotate)
        assert np.array_equal(values, expected.dequantize(unrotate))
    if q.axis == -1:
        contract = "fp32_fma_chain" if by_kernels else "exact"
        product = jax.jit(lambda q: rotoscale.jax.gemm(q, q, contract=contract, c=jnp.ones((32, 32))))(q)
        assert np.array_equal(product, rotoscale.gemm(expected, expected, contract=contract, c=np.ones((32, 32), "f4")))


def test_custom_calls_under_transformations():
    x = jnp.asarray(X)
    mapped = jax.vmap(lambda row: rotoscale.jax.quantize(row[None]).codes[0])(x)
    assert np.array_equal(mapped, rotoscale.quantize(X).codes)
    key = jax.random.key(5)
    seed = int.from_bytes(np.asarray(jax.random.key_data(key)).tobytes(), "little")
    drawn = jax.jit(lambda key: rotoscale.jax.quantize(x, rounding="stochastic", random=key).codes)(key)
    assert np.array_equal(drawn, rotoscale.quantize(X, rounding="stochastic", random=seed).codes)
    e4m3, contract = x.astype(jnp.float8_e4m3fn), "fp32_fma_chain" if IS_HOST else "hopper-wgmma-fp8-f32"
    assert np.array_equal(rotoscale.jax.gemm(e4m3, e4m3, contract=contract),
                          rotoscale.gemm(e4m3, e4m3, contract=contract))


@pytest.mark.parametrize("call, error, says", [
    (lambda x: rotoscale.jax.quantize(x.astype(jnp.int32)), TypeError, "x: dtype int32"),
    (lambda x: rotoscale.jax.quantize(x[:, :33]), ValueError, "33 is not a multiple"),
    (lambda x: rotoscale.jax.quantize(x, preset="te_rock"), ValueError, "preset: no 'te_rock'"),
    (lambda x: rotoscale.jax.quantize(x, random=x), TypeError, "random: float32"),
    (lambda x: rotoscale.jax.dequantize(x), TypeError, "q: "),
    (lambda x: rotoscale.jax.dequantize(rotoscale.quantize(X).to("nvidia_scale_128x4")), ValueError, "q: codes and"),
    (lambda x: rotoscale.jax.gemm(x, x, c=x), ValueError, "c of shape (4, 64)"),
    (lambda x: rotoscale.jax.gemm(x, x, contract="exat").block_until_ready(), Exception, "contract: no 'exat'"),
])
def test_custom_calls_name_the_argument(call, error, says):
    with pytest.raises(error) as caught:
        call(jnp.asarray(X))
    assert says in str(caught.value)


FIELDS = """extension.type InternalExtension.type, buffer.dtype Buffer.dtype, buffer.data Buffer.data,
    buffer.rank Buffer.rank, buffer.dims Buffer.dims, scalar.value Scalar.value, byte_span.data ByteSpan.ptr,
    byte_span.size ByteSpan.len, buffers.size Args.size, buffers.items Args.args, buffers.items Rets.rets,
    attributes.types Attrs.types, attributes.names Attrs.names, attributes.items Attrs.attrs,
    stream_arguments.stream Stream_Get_Args.stream, allocate_arguments.data DeviceMemory_Allocate_Args.data,
    free_arguments.data DeviceMemory_Free_Args.data, api.get_stream Api.XLA_FFI_Stream_Get,
    api.allocate Api.XLA_FFI_DeviceMemory_Allocate, api.free Api.XLA_FFI_DeviceMemory_Free,
    api_version.minor Api_Version.minor_version, error_arguments.message Error_Create_Args.message,
    error_arguments.code Error_Create_Args.errc, api.version Api.api_version, api.create_error Api.XLA_FFI_Error_Create,
    call_frame.api CallFrame.api, call_frame.stage CallFrame.stage, call_frame.arguments CallFrame.args,
    call_frame.results CallFrame.rets, call_frame.attributes CallFrame.attrs, metadata.version Metadata.api_version,
    metadata.traits Metadata.traits, metadata_extension.metadata Metadata_Extension.metadata"""
VALUES = {"major_version": "API_MAJOR", "metadata_extension_type": "Extension_Metadata",
          "execute_stage": "ExecutionStage_EXECUTE", "invalid_argument_code": "Error_Code_INVALID_ARGUMENT",
          "scalar_attribute": "AttrType_SCALAR", "string_attribute": "AttrType_STRING",
          **{name: "DataType_" + name.upper() for name in "u8 f16 f32 f64 bf16 f8e5m2 f8e4m3fn f8e4m3b11fnuz "
                                                          "f8e5m2fnuz f8e4m3fnuz".split()}}


def test_structures_are_those_of_xla(tmp_path):
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text(encoding="utf-8")
    older = {} if "XLA_FFI_InternalExtension" in header else {"InternalExtension.type": "Extension_Base.type"}
    lines = [f'#include "{ROOT}/python/src/xla_ffi.hpp"', '#include "xla/ffi/api/c_api.h"',
             "using namespace rotoscale::python::xla;"]
    for ours, theirs in (pair.split() for pair in FIELDS.split(",")):
        theirs = older.get(theirs, theirs)
        for fact in ("offsetof({}, {})", "sizeof({}::{})"):
            lines.append(f"static_assert({fact.format(*ours.split('.'))} == "
                         f"{fact.format(*('XLA_FFI_' + theirs).split('.'))});")
    lines += [f"static_assert(int({ours}) == int(XLA_FFI_{theirs}));" for ours, theirs in VALUES.items()]
    (tmp_path / "layout.cpp").write_text("\n".join(lines))
    compiler = os.environ.get("CXX", "g++").split()
    subprocess.run([*compiler, "-std=c++20", "-fsyntax-only", "-I", jax.ffi.include_dir(), tmp_path / "layout.cpp"],
                   check=True)
