# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays on a device: the bytes of the CPU. Needs PyTorch and librotoscale_device.

Without a device, ROTOSCALE_DEVICE_LIBRARY names a library that was built with -Dgpu=host. Its kernels then compute CPU
tensors, and the CPU's bytes come from NumPy arrays.
"""
import copy
import os

import numpy as np
import pytest

import rotoscale
from rotoscale import _device

torch = pytest.importorskip("torch")
import rotoscale.torch as layers  # noqa: E402

try:
    LIBRARY = _device.library()
except RuntimeError as error:
    pytest.skip(str(error), allow_module_level=True)
if LIBRARY.mode != "host" and not torch.cuda.is_available():
    pytest.skip("no device", allow_module_level=True)
DEVICE = torch.device(LIBRARY.device_type, None if LIBRARY.mode == "host" else 0)
TOKENS, IN, OUT, STEPS = 64, 96, 32, 3


def numbers(rows, columns, seed=1):
    """FP32 numbers of all magnitudes, with zeros, ties, subnormals, NaN and Inf."""
    random = np.random.default_rng(seed)
    x = (random.standard_normal((rows, columns)) * 2.0 ** random.integers(-20, 20, (rows, 1))).astype(np.float32)
    x[0] = 0
    x[1] = random.integers(-16, 17, columns).astype(np.float32) / 4
    x[2] = random.integers(0, 1 << 32, columns, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[3, ::7] = np.nan
    x[4, ::9] = -np.inf
    x[5] = np.float32(2.0 ** -149) * random.integers(0, 99, columns)
    return x


def moved(x):
    return torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)


def test_quantize_has_the_bytes_of_the_cpu():
    x = numbers(32, 64)
    cases = 0
    for preset in rotoscale.presets:
        for block in rotoscale.block_formats:
            for rounding in ("nearest_even", "stochastic"):
                for axis in (-1, 0):
                    options = {"preset": preset["name"], "format": block["name"], "rounding": rounding, "axis": axis,
                               "random": (42, 7)}
                    try:
                        expected = rotoscale.quantize(x, **options)
                    except ValueError:
                        with pytest.raises(ValueError):
                            rotoscale.quantize(moved(x), **options)
                        continue
                    try:
                        found = rotoscale.quantize(moved(x), **options)
                    except ValueError as error:  # a device has no such quantizer
                        assert block["name"] == "mxint8", error
                        continue
                    assert found.codes.device.type == DEVICE.type
                    assert found.cpu().codes.tobytes() == expected.codes.tobytes(), options
                    assert found.cpu().scales.tobytes() == expected.scales.tobytes(), options
                    cases += 1
    assert cases > 200


@pytest.mark.parametrize("options", [
    {}, {"format": "nvfp4", "encode_factor": "amax"}, {"format": "nvfp4", "encode_factor": "amax", "axis": 0},
    {"square": True}, {"rotation": 16}, {"rotation": (32, 0xA5)}, {"format": "nvfp4", "encode_factor": 2.5}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_tensor_is_its_object_of_the_cpu(dtype, options):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    source = x.float().numpy() if dtype != "float16" else x.numpy()
    expected, found = rotoscale.quantize(source, **options), rotoscale.quantize(x.to(DEVICE), **options)
    assert found.shape == expected.shape and found.axis == expected.axis
    assert found.cpu().codes.tobytes() == expected.codes.tobytes()
    assert found.cpu().scales.tobytes() == expected.scales.tobytes()
    assert float(found.global_factor) == expected.global_factor
    for unrotate in (False, True):
        values = found.dequantize(unrotate)
        assert values.device.type == DEVICE.type
        assert np.array_equal(values.cpu().numpy(), expected.dequantize(unrotate))
    assert found.sqnr(x.to(DEVICE)) == expected.sqnr(source)
    if options in ({}, {"rotation": 16}):
        placed = found.to("nvidia_scale_128x4")
        assert np.array_equal(placed.cpu().scales, expected.to("nvidia_scale_128x4").scales)


class Lent:
    """An array of another library, as CuPy's: DLPack alone."""

    def __init__(self, tensor):
        self.tensor, self.dtype, self.shape = tensor, tensor.dtype, tensor.shape
        if DEVICE.type == "cpu":
            self.is_cpu = True  # host mode computes PyTorch's CPU tensors alone

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_dlpack_alone_is_enough():
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    q, expected = rotoscale.quantize(Lent(x), preset="te_rocm"), rotoscale.quantize(x, preset="te_rocm")
    assert torch.equal(q.codes, expected.codes) and torch.equal(q.scales, expected.scales)
    assert q.sqnr(Lent(x)) == expected.sqnr(x)
    assert torch.equal(rotoscale.gemm(Lent(x), Lent(x)), rotoscale.gemm(x, x))


@pytest.mark.skipif(LIBRARY.mode == "host", reason="needs a device")
@pytest.mark.parametrize("name", ["cupy", "jax.numpy"])
def test_arrays_of_other_libraries(name):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    theirs = pytest.importorskip(name)
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    lent = theirs.asarray(x)
    if name == "jax.numpy":
        import jax
        lent = jax.device_put(x, jax.devices("cuda")[0])
    lent = lent + 1  # may still be in flight
    for options in ({"preset": "te_rocm"}, {"axis": 0}, {"format": "nvfp4", "encode_factor": "amax"}):
        q, expected = rotoscale.quantize(lent, **options), rotoscale.quantize(x + 1, **options)
        assert q.cpu().codes.tobytes() == expected.codes.tobytes() and q.sqnr(lent) == expected.sqnr(x + 1)
        assert np.array_equal(q.cpu().scales, np.asarray(torch.from_dlpack(theirs.from_dlpack(q.scales)).cpu()))
    assert np.array_equal(rotoscale.gemm(lent, lent).cpu(), rotoscale.gemm(x + 1, x + 1))


def test_strides_axes_and_slices():
    x = torch.randn(4, 6, 128).to(DEVICE)
    for source in (x, x[:, ::2], x[..., 1:65], x.transpose(0, 1), x[:0]):
        q = rotoscale.quantize(source)
        expected = rotoscale.quantize(source.cpu().contiguous().numpy())
        assert q.codes.shape == expected.codes.shape and np.array_equal(q.cpu().codes, expected.codes)


@pytest.mark.parametrize("contract, format", [
    ("fp32_fma_chain", "mxfp8_e4m3"), ("fp32_fma_chain", "nvfp4"), ("fp32_blockwise", "mxfp4"),
    ("mx-bf16-sm90", "mxfp4")])
def test_gemm_has_the_bytes_of_the_cpu(contract, format):
    x, w = numbers(32, 128)[:16], numbers(32, 128, 2)
    x, w = np.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0).clip(-9, 9), w.clip(-9, 9)
    w = np.nan_to_num(w)
    a, b = (rotoscale.quantize(t, preset="te_rocm" if format == "mxfp4" else "nvidia", format=format) for t in (x, w))
    p, q = (rotoscale.quantize(moved(t), preset="te_rocm" if format == "mxfp4" else "nvidia", format=format)
            for t in (x, w))
    if contract == "mx-bf16-sm90":  # blocks are converted to BF16 first
        a, b = (t.dequantize(unrotate=False) for t in (a, b))
        a, b = (torch.from_numpy(t).to(torch.bfloat16) for t in (a, b))
    found = rotoscale.gemm(p, q, contract=contract)
    assert np.array_equal(found.cpu().numpy(), rotoscale.gemm(a, b, contract=contract))
    c = np.ones((16, 32), np.float32)
    found = rotoscale.gemm(p, q, contract=contract, c=moved(c), output="bf16")
    assert np.array_equal(found.cpu().numpy(), rotoscale.gemm(a, b, contract=contract, c=c, output="bf16"))


def test_gemm_of_numbers():
    x = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
    assert np.array_equal(rotoscale.gemm(moved(x), moved(x)).cpu().numpy(), rotoscale.gemm(x, x))
    e4m3 = torch.from_numpy(x).to(torch.float8_e4m3fn)
    assert np.array_equal(rotoscale.gemm(e4m3.to(DEVICE), e4m3.to(DEVICE)).cpu().numpy(),
                          rotoscale.gemm(e4m3.view(torch.uint8).numpy(), e4m3.view(torch.uint8).numpy(),
                                         format_a="e4m3", format_b="e4m3"))


@pytest.mark.parametrize("call, says", [
    (lambda x: rotoscale.quantize(x.double()), "x: dtype fp64, expected fp32, bf16 or fp16 on a device"),
    (lambda x: rotoscale.quantize(x[:, :33]), "33 is not a multiple"),
    (lambda x: rotoscale.quantize(x, format="mxfp5"), "format: no 'mxfp5'"),
    (lambda x: rotoscale.quantize(x, axis=2), "axis: 2"),
    (lambda x: rotoscale.quantize(x, square=True), "4 rows are not a multiple"),
    (lambda x: rotoscale.quantize(x, encode_factor="amax"), "encode_factor: mxfp4 has no second-level factor"),
    (lambda x: rotoscale.gemm(x, x[:, :32]), "a and b: k is 64 and 32"),
    (lambda x: rotoscale.gemm(x, x, contract="hoper"), "contract: no 'hoper'"),
    (lambda x: rotoscale.gemm(x, x, c=x), "c of shape (4, 64)"),
])
def test_refusals_name_the_argument(call, says):
    with pytest.raises(ValueError) as caught:
        call(torch.ones(4, 64, device=DEVICE))
    assert says in str(caught.value)


@pytest.mark.parametrize("recipe", [r["name"] for r in rotoscale.recipes])
def test_a_layer_has_the_bits_of_the_cpu(recipe):
    """The emulation on NumPy arrays equals the C++ trainer (test_torch.py)."""
    cpu = layers.Gemms(recipe, 3, 17)
    ours = layers.Linear(IN, OUT, bias=False, device=DEVICE, recipe=recipe, layer=3, seed=17)
    for step in range(STEPS):
        random = np.random.default_rng(step)
        x, w, dy = ((random.standard_normal(shape) * scale).astype(np.float32)
                    for shape, scale in (((TOKENS, IN), 2), ((OUT, IN), 0.5), ((TOKENS, OUT), 0.25)))
        source = moved(x).requires_grad_()
        with torch.no_grad():
            ours.weight.copy_(moved(w))
        ours.weight.grad = None
        try:
            y = ours(source)
        except ValueError as error:
            assert "no kernel" in str(error)  # of another device's unit
            pytest.skip(str(error))
        y.backward(moved(dy))
        expected = [cpu.forward(x, w), cpu.input_gradient(dy, w), cpu.weight_gradient(dy, x)]
        cpu.end_backward(dy)
        for name, e, f in zip(("y", "dx", "dw"), expected, (y, source.grad, ours.weight.grad)):
            assert e.tobytes() == f.detach().cpu().numpy().tobytes(), (step, name)
    assert ours.gemms.step == cpu.step == STEPS


def test_a_bf16_layer_and_a_copy():
    layer = layers.Linear(64, 32, recipe="mxfp4_sr", dtype=torch.bfloat16, device=DEVICE)
    x = torch.randn(2, 5, 64, dtype=torch.bfloat16, device=DEVICE)
    y = layer(x)
    assert y.dtype == torch.bfloat16 and y.shape == (2, 5, 32)
    assert torch.equal(y, layer(x))
    other = copy.deepcopy(layer)
    assert other.gemms.key != layer.gemms.key and torch.equal(y, other(x))
    y.sum().backward()
    assert (layer.gemms.step, other.gemms.step) == (1, 0)
    assert layer.weight.grad.dtype == torch.bfloat16 and not torch.equal(y, layer(x))
    assert layer(x[:0]).shape == (0, 5, 32)


def test_delayed_scaling_starts_with_the_recipe():
    layer = layers.Linear(64, 32, recipe="fp8_amd", device=DEVICE)
    layer(torch.full((32, 64), 100.0, device=DEVICE)).sum().backward()
    scaling = layer.gemms.on_device(layer.weight.device).scaling["x"]
    assert scaling.scale != 1
    layer.set_recipe("fp8_amd")
    assert layer.gemms.on_device(layer.weight.device).scaling["x"].scale == 1


def test_threads_give_the_same_bytes():
    import threading
    x = torch.randn(64, 64, device=DEVICE)
    expected, found = rotoscale.quantize(x).cpu().codes, []

    def work():
        found.extend(rotoscale.quantize(x).cpu().codes for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 9 and all(np.array_equal(codes, expected) for codes in found)


@pytest.mark.skipif(LIBRARY.mode == "host", reason="host mode has one stream")
def test_the_callers_stream():
    stream = torch.cuda.Stream()
    x = torch.zeros(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()
    expected = rotoscale.quantize(np.full((4096, 4096), 3, np.float32)).codes
    compiled = torch.compile(torch.ops.rotoscale.quantize, fullgraph=True, backend="aot_eager")
    for call in (lambda x: rotoscale.quantize(x).codes, lambda x: compiled(x)[0]):
        call(x)
        with torch.cuda.stream(stream):
            x.zero_()
            torch.cuda._sleep(50_000_000)  # a launch on another stream would read zeros
            x.fill_(3.0)
            codes = call(x)
        stream.synchronize()
        assert np.array_equal(codes.cpu(), expected)
