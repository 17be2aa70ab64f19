# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""rotoscale.torch: the three GEMMs have the bits of the C++ trainer's linear layer. Skips without PyTorch."""
import copy

import numpy as np
import pytest

import rotoscale

torch = pytest.importorskip("torch")
import rotoscale.torch as emulated  # noqa: E402

TOKENS, IN, OUT, LAYER, SEED, STEPS = 64, 96, 32, 3, 17, 3


def tensors(step):
    random = np.random.default_rng(step)
    return [(random.standard_normal(shape) * scale).astype(np.float32)
            for shape, scale in (((TOKENS, IN), 2), ((OUT, IN), 0.5), ((TOKENS, OUT), 0.25))]


@pytest.mark.parametrize("recipe", [r["name"] for r in rotoscale.recipes])
def test_the_bits_of_the_trainer(linear_oracle, recipe):
    layer = emulated.Linear(IN, OUT, bias=False, recipe=recipe, layer=LAYER, seed=SEED)
    ours, data = b"", b""
    for step in range(STEPS):
        x, w, dy = tensors(step)
        data += x.tobytes() + w.tobytes() + dy.tobytes()
        source = torch.from_numpy(x).requires_grad_()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(w))
        layer.weight.grad = None
        y = layer(source)
        y.backward(torch.from_numpy(dy))
        ours += b"".join(t.detach().numpy().tobytes() for t in (y, source.grad, layer.weight.grad))
    theirs = linear_oracle(recipe, LAYER, SEED, TOKENS, IN, OUT, data=data)
    assert ours == theirs


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64),
                               torch.nn.Linear(64, 7))


def test_convert_keeps_parameters_and_trains():
    net = model()
    before = {name: p for name, p in net.named_parameters()}
    with pytest.raises(ValueError, match="3: out_features 7: mxfp4_h16 needs a multiple of 32; leave it with skip"):
        emulated.convert(net, "mxfp4_h16")
    with pytest.raises(TypeError, match="recipe: 3, expected a name or a record"):
        emulated.convert(net, 3)
    assert not any(isinstance(m, emulated.Linear) for m in net)
    assert emulated.convert(net, "mxfp4_h16", skip="3") is net
    assert [type(m) for m in net] == [emulated.Linear, torch.nn.GELU, emulated.Linear, torch.nn.Linear]
    assert all(p is before[name] for name, p in net.named_parameters())
    x, target = torch.randn(10, 3, 64), torch.randn(10, 3, 7)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    losses = []
    for step in range(12):
        if step == 6:
            emulated.convert(net, "fp8_amd", skip=["3"])  # healing
            assert net[0].gemms.step == 6
        optimizer.zero_grad()
        loss = ((net(x) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert net[0].gemms.scaling["x"].scale != 1


def test_dtypes_shapes_and_evaluation():
    layer = emulated.Linear(64, 32, recipe="mxfp4_sr", dtype=torch.bfloat16)
    x = torch.randn(2, 5, 64, dtype=torch.bfloat16)
    y = layer(x)
    assert y.shape == (2, 5, 32) and y.dtype == torch.bfloat16
    assert torch.equal(y, layer(x))  # a step's words stay until its backward pass
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.bfloat16 and not torch.equal(y, layer(x))
    fp8 = emulated.Linear(64, 32, recipe="fp8_delayed").eval()
    fp8(x.float())
    assert fp8.gemms.scaling["x"].amax == 0
    assert "recipe=mxfp4_sr" in repr(layer)
    with pytest.raises(ValueError, match="recipe: no 'mxfp5'"):
        emulated.Linear(64, 32, recipe="mxfp5")
    with pytest.raises(ValueError, match=r"x of shape \(2, 10, 32\): the last axis must have 64"):
        layer(x.reshape(2, 10, 32))
    for dtype in (torch.int64, torch.float8_e4m3fn):
        with pytest.raises(TypeError, match=f"x: dtype {dtype}"):
            layer(x.to(dtype))


@pytest.mark.parametrize("replace", [lambda layer: None, lambda layer: layer.set_recipe("fp8_amd")])
def test_a_backward_pass_outlives_its_layer(replace):
    """The layer is dropped or switched between the passes: the gradients of a layer that stays."""
    torch.manual_seed(0)
    gradients, stays, x = [], emulated.Linear(64, 32), torch.randn(32, 64, requires_grad=True)
    for change in (None, replace):
        layer = copy.deepcopy(stays)
        loss = layer(x).square().sum()
        if change is not None:
            change(layer)
            del layer
        gradients += torch.autograd.grad(loss, x)
    assert torch.equal(*gradients)


def test_an_encoder_evaluates_under_the_recipe():
    """PyTorch's fused kernel of evaluation would multiply the weights in FP32."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    layer, x = emulated.convert(layer).eval(), torch.randn(2, 32, 64)
    called = []
    layer.linear1.forward = lambda x: called.append(x) or emulated.Linear.forward(layer.linear1, x)
    with torch.no_grad():
        layer(x)
    assert called


def test_a_negated_view_has_its_sign():
    x = torch.randn(64, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).conj().imag
    assert x.is_neg()
    assert np.array_equal(rotoscale.quantize(x).codes, rotoscale.quantize(x.numpy(force=True)).codes)


def test_narrow_dtypes_of_torch():
    q = rotoscale.quantize(tensors(0)[0], preset="te_rocm")
    codes = torch.from_numpy(q.codes).view(torch.float4_e2m1fn_x2)
    scales = torch.from_numpy(q.scales).view(torch.float8_e8m0fnu)
    unpacked = rotoscale.unpack(codes, "e2m1")
    assert np.array_equal(rotoscale.dequantize(codes, scales), q.dequantize(unrotate=False))
    assert np.array_equal(rotoscale.decode(codes, "e2m1"), rotoscale.decode(unpacked, "e2m1"))
    assert np.array_equal(rotoscale.gemm(codes, codes), rotoscale.gemm(*[rotoscale.decode(unpacked, "e2m1")] * 2))
    for call in (lambda: rotoscale.pack(codes, "e2m1"), lambda: rotoscale.decode(codes, "e4m3")):
        with pytest.raises(TypeError, match="codes: "):
            call()


def test_a_second_derivative_is_refused():
    layer, x = emulated.Linear(32, 32), torch.randn(32, 32, requires_grad=True)
    dx, = torch.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.sum().backward()
