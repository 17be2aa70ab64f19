# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX on the CPU, in and out, also under jit. Skips without JAX."""
import numpy as np
import pytest

import rotoscale
from rotoscale._arrays import FORMAT_OF_DTYPE

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

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
