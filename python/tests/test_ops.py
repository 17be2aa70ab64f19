# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Custom operators of PyTorch: schemas and fake tensors, the same bytes under torch.compile. Skips without PyTorch."""
import subprocess
import sys

import numpy as np
import pytest

import rotoscale
from rotoscale import _device

torch = pytest.importorskip("torch")
import rotoscale.torch as layers  # noqa: E402

ops = torch.ops.rotoscale
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def blocks():
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    codes, scales, factor = ops.quantize(x, preset="te_rocm")
    return x, codes, scales, factor


@pytest.mark.parametrize("options", [{}, {"format": "nvfp4", "encode_factor": 0.0}, {"axis": 0}, {"square": True}])
def test_quantize_is_an_operator(options):
    x = blocks()[0]
    torch.library.opcheck(ops.quantize.default, (x,), options, test_utils=CHECKS)
    factor_of = "amax" if "encode_factor" in options else None
    q = rotoscale.quantize(x.cpu().numpy(), **{**options, "encode_factor": factor_of})
    codes, scales, factor = ops.quantize(x, **options)
    assert np.array_equal(codes.cpu(), q.codes) and np.array_equal(scales.cpu(), q.scales)
    assert factor.item() == np.float32(q.global_factor)


def test_dequantize_and_gemm_are_operators():
    x, codes, scales, factor = blocks()
    torch.library.opcheck(ops.dequantize.default, (codes, scales, factor), test_utils=CHECKS)
    torch.library.opcheck(ops.gemm.default, (x, x), test_utils=CHECKS)
    named = {"format_a": "mxfp4", "format_b": "mxfp4", "contract": "fp32_blockwise"}
    torch.library.opcheck(ops.gemm.default, (codes, codes, scales, scales), named, test_utils=CHECKS)
    q = rotoscale.quantize(x.cpu().numpy(), preset="te_rocm")
    assert np.array_equal(ops.dequantize(codes, scales).cpu(), q.dequantize(unrotate=False))
    assert np.array_equal(ops.gemm(codes, codes, scales, scales, **named).cpu(),
                          rotoscale.gemm(q, q, contract="fp32_blockwise"))


def test_a_compiled_function_has_the_same_bytes():
    def product(x, w):
        a, a_scales, _ = ops.quantize(x * 2, preset="te_rocm")
        b, b_scales, _ = ops.quantize(w, preset="te_rocm")
        return ops.gemm(a, b, a_scales, b_scales, contract="fp32_blockwise", format_a="mxfp4", format_b="mxfp4") + 1

    compiled = torch.compile(product, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (16, 48):
        x, w = torch.randn(rows, 64, device=DEVICE), torch.randn(32, 64, device=DEVICE)
        assert torch.equal(product(x, w), compiled(x, w))
        assert torch.equal(compiled(x, w).cpu(), product(x.cpu(), w.cpu()))


def test_a_compiled_model_trains_with_the_same_bits():
    def losses(compiles):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).to(DEVICE)
        layers.convert(model, "mxfp4_h16_step_signs")
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiles else model
        optimizer, x = torch.optim.SGD(model.parameters(), lr=1.0), torch.randn(32, 64, device=DEVICE)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (run(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert model[0].gemms.step == 3
        return found

    assert losses(False) == losses(True)


def gradients(run, layer, x):
    layer.zero_grad()
    (run(x) ** 2).mean().backward()
    return [p.grad.clone() for p in layer.parameters()]


def test_linear_is_an_operator():
    layer = layers.Linear(64, 32, recipe="mxfp4_h16", device=DEVICE)
    x = torch.randn(32, 64, device=DEVICE)
    torch.library.opcheck(ops.linear.default, (x, layer.weight, layer.bias, layer.gemms.key, True), test_utils=CHECKS)


def test_inductor_has_the_gradients_of_eager():
    """All bits, biases included: inductor sums over tokens in another order, so the operator sums itself."""
    try:
        torch.compile(lambda x: x + x)(torch.ones(64, device=DEVICE))
    except Exception as error:  # it needs a compiler
        pytest.skip(f"inductor: {error}".splitlines()[0])
    torch.manual_seed(0)
    model = layers.convert(torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))).to(DEVICE)
    x = torch.randn(1024, 32, device=DEVICE)
    expected, found = gradients(model, model, x), gradients(torch.compile(model, fullgraph=True), model, x)
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


class OnDevice:
    """An array of a library that lends memory of a CUDA device."""

    def __dlpack_device__(self):
        return 2, 0


def test_a_missing_library_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(_device, "NAME", "libmissing_device.so")
    monkeypatch.delenv("ROTOSCALE_DEVICE_LIBRARY", raising=False)
    _device.library.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="Build it with a CUDA toolkit by .*-Dgpu=cuda"):
            rotoscale.quantize(OnDevice())
    finally:
        _device.library.cache_clear()


def test_numpy_alone_is_enough():
    script = ("import sys; sys.modules['torch'] = None; import numpy, rotoscale; "
              "rotoscale.quantize(numpy.ones(32, 'f4'))")
    subprocess.run([sys.executable, "-c", script], check=True)
