# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes, strides and dtypes. An accepted array gives the bytes of its contiguous copy. Errors name the argument."""
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rotoscale

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def normal(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def bytes_of(q):
    return q.codes.tobytes(), q.scales.tobytes()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_strides_have_the_bytes_of_a_copy(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    axes = data.draw(st.integers(1, 3))
    leading = [data.draw(st.integers(0, 3)) for _ in range(axes - 1)]
    step, blocks = data.draw(st.sampled_from([1, 2, -1])), data.draw(st.integers(0, 3))
    format = data.draw(st.sampled_from([b["name"] for b in rotoscale.block_formats]))
    x = normal((*leading, 32 * blocks * abs(step)), dtype)[..., ::step]
    if data.draw(st.booleans()):
        x.flags.writeable = False
    q = rotoscale.quantize(x, format=format)
    assert bytes_of(q) == bytes_of(rotoscale.quantize(np.ascontiguousarray(x), format=format))
    assert bytes_of(q) == bytes_of(rotoscale.quantize(x.astype(np.float32), format=format))
    assert q.shape == x.shape and q.dequantize().shape == x.shape


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_functions_take_any_strides(data):
    """One element, none, slices, reversed and broadcast axes, read-only memory: the results of a copy."""
    shape = tuple(data.draw(st.integers(0, 4)) for _ in range(data.draw(st.integers(0, 2)))) + (
        data.draw(st.sampled_from([0, 1, 3, 16, 32])),)
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)
    x = normal(tuple(2 * n for n in shape), data.draw(st.sampled_from(DTYPES)))[steps]
    if data.draw(st.booleans()):
        x = np.broadcast_to(x[..., :1], x.shape)
    x.flags.writeable = False
    copy = np.ascontiguousarray(x)
    for call in (lambda x: rotoscale.encode(x, "e4m3"), lambda x: rotoscale.encode(x, "bf16", overflow="to_inf"),
                 lambda x: rotoscale.decode(rotoscale.encode(x, "e2m1"), "e2m1"),
                 lambda x: rotoscale.pack(rotoscale.encode(x, "e2m1"), "e2m1"),
                 lambda x: rotoscale.rotate(x.astype(np.float32), 16), lambda x: rotoscale.gemm(x, x)):
        try:
            expected = call(copy).tobytes()
        except ValueError:  # the shape
            with pytest.raises(ValueError):
                call(x)
            continue
        try:
            assert call(x).tobytes() == expected
        except ValueError as error:
            assert "contiguous" in str(error)


@pytest.mark.parametrize("dtype", DTYPES)
def test_axis_0_is_the_transpose(dtype):
    x = normal((64, 96), dtype)
    for source in (x, np.asfortranarray(x)):
        q = rotoscale.quantize(source, axis=0, rotation=16)
        assert bytes_of(q) == bytes_of(rotoscale.quantize(x.T, rotation=16))
        assert q.dequantize().shape == x.shape


def test_dlpack_alone_is_enough():
    class Tensor:
        def __init__(self, array):
            self.array, self.shape = array, array.shape

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = normal((2, 64))
    assert bytes_of(rotoscale.quantize(Tensor(x))) == bytes_of(rotoscale.quantize(x))


def test_codes_of_ml_dtypes():
    x = normal((4, 32))
    e4m3, e2m1 = x.astype(ml_dtypes.float8_e4m3fn), x.astype(ml_dtypes.float4_e2m1fn)
    assert np.array_equal(rotoscale.gemm(e4m3, e4m3, contract="exact"),
                          rotoscale.gemm(e4m3.astype(np.float32), e4m3.astype(np.float32), contract="exact"))
    assert np.array_equal(rotoscale.gemm(e2m1, e2m1, contract="exact"),
                          rotoscale.gemm(e2m1.astype(np.float32), e2m1.astype(np.float32), contract="exact"))
    packed = rotoscale.pack(e2m1, "e2m1")
    assert np.array_equal(rotoscale.unpack(packed, "e2m1"), e2m1.view(np.uint8))
    for name, dtype in (("e4m3ieee", ml_dtypes.float8_e4m3), ("e3m4ieee", ml_dtypes.float8_e3m4)):
        codes = x.astype(dtype)
        assert np.array_equal(rotoscale.decode(codes, name), codes.astype(np.float32))
        assert np.array_equal(rotoscale.encode(x, name, overflow="to_inf"), codes.view(np.uint8))


@pytest.mark.parametrize("call, error, says", [
    (lambda x: rotoscale.quantize(x.astype(np.int32)), TypeError, "x: dtype int32"),
    (lambda x: rotoscale.quantize(x.view(np.uint32)), TypeError, "x: dtype uint32"),
    (lambda x: rotoscale.quantize(x.astype(ml_dtypes.float8_e4m3fn)), TypeError, "x: dtype e4m3"),
    (lambda x: rotoscale.quantize([1.0] * 32), TypeError, "x: list"),
    (lambda x: rotoscale.quantize(np.float32(1)), (TypeError, ValueError), "x"),
    (lambda x: rotoscale.quantize(x[:, :33]), ValueError, "x, 4 x 33 along the blocks: 33 is not a multiple"),
    (lambda x: rotoscale.quantize(x, rotation=24), ValueError, "rotation.points 24"),
    (lambda x: rotoscale.quantize(x, rotation=1 << 20), ValueError, "rotation: points"),
    (lambda x: rotoscale.quantize(x, format="mxfp5"), ValueError, "format: no 'mxfp5'; the nearest name is 'mxfp4'"),
    (lambda x: rotoscale.quantize(x, preset="te_rock"), ValueError, "preset: no 'te_rock'"),
    (lambda x: rotoscale.quantize(x, scale_rule="round"), ValueError, "scale_rule: no 'round'"),
    (lambda x: rotoscale.quantize(x, rounding="stochastic"), ValueError, "random: stochastic rounding needs a seed"),
    (lambda x: rotoscale.quantize(x, random_count=33), ValueError, "random_count 33"),
    (lambda x: rotoscale.quantize(x, axis=2), ValueError, "axis: 2"),
    (lambda x: rotoscale.quantize(x, encode_factor=2.0), ValueError, "encode_factor: mxfp4"),
    (lambda x: rotoscale.quantize(x, encode_factor="max"), ValueError, "encode_factor: 'max'"),
    (lambda x: rotoscale.quantize(x, square=True), ValueError, "4 rows are not a multiple of the block's 32"),
    (lambda x: rotoscale.quantize(np.frombuffer(bytes(129), np.uint8)[1:].view(np.float32)), ValueError,
     "x: data are not aligned"),
    (lambda x: rotoscale.quantize(np.zeros((4, 4, 64), np.float32)[:, :3]), ValueError, "x of shape (4, 3, 64)"),
    (lambda x: rotoscale.dequantize(np.zeros(15, np.uint8), np.zeros(1, np.uint8)), ValueError, "codes of shape (15,)"),
    (lambda x: rotoscale.dequantize(x, x), TypeError, "codes: dtype float32"),
    (lambda x: rotoscale.decode(x.astype(ml_dtypes.float8_e5m2), "e4m3"), TypeError, "codes: its dtype holds codes of"),
    (lambda x: rotoscale.gemm(x.astype(ml_dtypes.float8_e5m2), x, format_a="e4m3"), TypeError, "a: its dtype holds"),
    (lambda x: rotoscale.gemm(x, x[:, :32]), ValueError, "a and b: k is 64 and 32"),
    (lambda x: rotoscale.gemm(x, x, contract="hopper-wgmma-fp8-f32"), ValueError, "a: hopper-wgmma-fp8-f32"),
    (lambda x: rotoscale.gemm(x, x, contract="hoper-wgmma-fp8-f32"), ValueError, "contract: no 'hoper-wgmma-fp8-f32'"),
    (lambda x: rotoscale.gemm(x, x, c=x), ValueError, "c of shape (4, 64)"),
    (lambda x: rotoscale.pack(np.full(4, 16, np.uint8), "e2m1"), ValueError, "codes: a code has more"),
    (lambda x: rotoscale.swizzle(np.zeros((15, 32), np.uint8), "aiter_data_16x16"), ValueError, "placement"),
    (lambda x: rotoscale.rotate(x, 12), ValueError, "points 12"),
    (lambda x: rotoscale.quantize(x.astype(">f4")), TypeError, "x: ndarray of dtype >f4"),
    (lambda x: rotoscale.quantize(x, axis="0"), TypeError, "axis: '0', expected an integer"),
    (lambda x: rotoscale.quantize(x, format=4), TypeError, "format: 4, expected a name"),
    (lambda x: rotoscale.quantize(x, square="no"), TypeError, "square: 'no', expected True or False"),
    (lambda x: rotoscale.quantize(x, rotation=(16,)), ValueError, "rotation: (16,), expected points or"),
    (lambda x: rotoscale.quantize(x, random=-1), ValueError, "random: seed -1"),
    (lambda x: rotoscale.quantize(x, random=x), ValueError, "random: seed ndarray must be an integer"),
    (lambda x: rotoscale.quantize(x).to(3), TypeError, "placement: 3, expected a name"),
    (lambda x: rotoscale.gemm(x, x, alpha="2"), TypeError, "alpha: '2', expected a number"),
    (lambda x: rotoscale.unswizzle(x, "aiter_scale", (3,)), ValueError, "shape: (3,)"),
    (lambda x: rotoscale.unswizzle(x, "aiter_scale", ("a", 2)), TypeError, "shape: rows: 'a'"),
    (lambda x: rotoscale.swizzle(x, "aiter_scale", padding=256), ValueError, "padding: 256"),
    (lambda x: rotoscale.swizzle(x, "row_major", repeat=1 << 62), ValueError, "repeat: 4611686018427387904 has more"),
    (lambda x: rotoscale.quantize(x, axis=1 << 40), ValueError, "axis: 1099511627776 has more than 32 bits"),
    (lambda x: rotoscale.quantize(x, format="nvfp4", encode_factor=x), TypeError, "encode_factor: only 0-dim"),
    (lambda x: rotoscale.quantize(x, format="nvfp4", encode_factor=np.float32(0)), ValueError, "encode_factor 0.0"),
    (lambda x: rotoscale.validate({"x": 3}), TypeError, "x: int is no array"),
    (lambda x: rotoscale.runs(3), TypeError, "path: 3, expected a path"),
])
def test_refusals_name_the_argument(call, error, says):
    with pytest.raises(error) as caught:
        call(normal((4, 64)))
    assert says in str(caught.value)


def test_one_element_needs_a_whole_block():
    with pytest.raises(ValueError, match="not a multiple"):
        rotoscale.quantize(np.ones(1, np.float32))


def test_empty_arrays():
    for shape in ((0, 64), (3, 0), (0,)):
        q = rotoscale.quantize(np.zeros(shape, np.float32))
        assert q.codes.size == q.scales.size == 0 and q.dequantize().shape == shape
        assert np.isnan(q.sqnr(np.zeros(shape, np.float32)))


def test_threads_give_the_same_bytes():
    x = normal((512, 256))
    expected, found = bytes_of(rotoscale.quantize(x, preset="te_rocm")), []

    def work():
        for _ in range(5):
            found.append(bytes_of(rotoscale.quantize(x, preset="te_rocm")))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for count, thread in enumerate(threads):
        thread.start()
        rotoscale.set_threads(count + 1)
    for thread in threads:
        thread.join()
    rotoscale.set_threads(0)
    assert found == [expected] * 20


def test_results_outlive_their_source():
    x = normal((64, 64))
    q = rotoscale.quantize(x)
    copy = bytes_of(q)
    del x
    assert bytes_of(q) == copy and q.codes.flags.writeable


def test_large_results_use_freed_memory_alone():
    x = normal((2048, 1024))
    q, view = rotoscale.quantize(x), rotoscale.quantize(x).codes[1:]
    copy = bytes_of(q)
    other = rotoscale.quantize(-x)
    assert bytes_of(q) == copy and view.tobytes() == q.codes[1:].tobytes()
    assert not np.shares_memory(q.codes, other.codes) and q.codes.ctypes.data % 64 == 0
    address = q.codes.ctypes.data
    del q
    again = rotoscale.quantize(x)
    assert again.codes.ctypes.data == address and bytes_of(again) == copy


@pytest.mark.parametrize("format, overflow", [("e4m3", "saturate"), ("e5m2", "saturate"), ("bf16", "to_inf")])
def test_encode_is_the_same_from_fp32_and_fp64(format, overflow):
    x = np.random.default_rng(8).integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.float32([0, -0.0, 464, 465, 61440, 3.4e38, np.inf, -np.inf, np.nan])])
    wide = x.astype(np.float64)
    codes = rotoscale.encode(x, format, overflow=overflow)
    assert np.array_equal(codes, rotoscale.encode(wide, format, overflow=overflow))
    again = rotoscale.encode(rotoscale.decode(codes, format), format, overflow=overflow)
    assert np.array_equal(codes, again)
