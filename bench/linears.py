#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Trains one PyTorch model with MXFP4 linear layers of this package, microxcaling and torchao: step rate and loss.

usage: linears.py [--device cpu] [--steps 40] [--hidden 128] [--layers 2] [--batch 8] [--sequence 64]
                  [--recipes mxfp4,mxfp4_h16] [--custom-cuda] [--attention float32]
  The model is a byte-level transformer on consecutive integers, in FP32, with AdamW. The learning rate rises to
  0.2 / hidden in the first half of the steps.
  --attention is a dtype for all arms. Layers of microxcaling return BF16, whose attention is fast on a GPU.
  All arms begin with the same weights and read the same batches. All linear layers but the head are replaced.
  - torch: torch.nn.Linear
  - a recipe: rotoscale.torch.convert
  - microxcaling: mx.Linear, FP4 in all GEMMs, nearest even; with --custom-cuda also by its CUDA extension
  - torchao: MXTensor of both operands of all GEMMs, dequantized, then torch.mm (0.18 has no such layer)
  A package that is not installed is left out. Rates are medians of step times. A loss is the mean of the last five.
  Prints a Markdown table.
"""
import argparse
import copy
import statistics
import sys
import time

WARM = 3


def import_or_none(name):
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        print(f"linears.py: {name} is left out: {error}", file=sys.stderr)
        return None


def model_of(torch, o):
    """The transformer of all arms."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(o.hidden), nn.LayerNorm(o.hidden)])
            self.qkv, self.out = nn.Linear(o.hidden, 3 * o.hidden), nn.Linear(o.hidden, o.hidden)
            self.up, self.down = nn.Linear(o.hidden, 4 * o.hidden), nn.Linear(4 * o.hidden, o.hidden)

        def forward(self, x):  # (batch, sequence, hidden)
            heads = (*x.shape[:2], o.hidden // 32, 32)
            q, k, v = (t.reshape(heads).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
            q, k, v = (t.to(getattr(torch, o.attention)) if o.attention != "float32" else t for t in (q, k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).to(x.dtype)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(128, o.hidden), nn.Embedding(o.sequence, o.hidden)
            self.blocks = nn.Sequential(*(Block() for _ in range(o.layers)))
            self.norm, self.head = nn.LayerNorm(o.hidden), nn.Linear(o.hidden, 128)

        def forward(self, x):  # (batch, sequence)
            return self.head(self.norm(self.blocks(self.tokens(x) + self.positions.weight)))

    torch.manual_seed(1)
    return Model().to(o.device)


def replace_linears(torch, model, made):
    """Replaces each linear layer of the blocks by made(layer), with the same parameters."""
    for parent in model.blocks.modules():
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear:
                setattr(parent, name, made(layer))
    return model


def microxcaling_layer(mx, layer, device, custom_cuda):
    names = {f"{tensor}_elem_format{use}": "fp4_e2m1" for tensor, use in
             (("w", ""), ("a", ""), ("w", "_bp"), ("a", "_bp"), ("a", "_bp_ex"), ("a", "_bp_os"))}
    specs = mx.finalize_mx_specs({**names, "scale_bits": 8, "block_size": 32, "round": "even", "bfloat": 16,
                                  "custom_cuda": custom_cuda})
    made = mx.Linear(layer.in_features, layer.out_features, mx_specs=specs).to(device)
    made.weight, made.bias = layer.weight, layer.bias
    return made


def torchao_layer(torch, formats, layer):
    def rounded(x):
        return formats.MXTensor.to_mx(x.contiguous(), torch.float4_e2m1fn_x2, 32).dequantize(torch.float32)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return rounded(x) @ rounded(w).T

        @staticmethod
        def backward(ctx, dy):
            x, w = ctx.saved_tensors
            return rounded(dy) @ rounded(w.T).T, rounded(dy.T) @ rounded(x.T).T

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = layer.weight, layer.bias

        def forward(self, x):
            return Product.apply(x.reshape(-1, x.shape[-1]), self.weight).reshape(*x.shape[:-1], -1) + self.bias

    return Linear()


def arms_of(torch, o):
    """Functions that convert a model in place, by name."""
    arms = {"torch": lambda m: m}
    if ours := import_or_none("rotoscale.torch"):
        for recipe in o.recipes.split(","):
            arms[recipe] = lambda m, recipe=recipe: ours.convert(m, recipe, skip=["head"])
    if mx := import_or_none("mx"):
        for custom in (False, True)[:1 + o.custom_cuda]:
            arms["microxcaling" + ", custom_cuda" * custom] = lambda m, custom=custom: replace_linears(
                torch, m, lambda x: microxcaling_layer(mx, x, o.device, custom))
    if formats := import_or_none("torchao.prototype.mx_formats.mx_tensor"):
        arms["torchao"] = lambda m: replace_linears(torch, m, lambda x: torchao_layer(torch, formats, x))
    return arms


def train(torch, model, o):
    """(losses, seconds a step)."""
    text = torch.tensor(list("".join(f"{i}\n" for i in range(20000)).encode()), device=o.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.2 / o.hidden)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 2 * (step + 1) / o.steps))
    draw = torch.Generator().manual_seed(2)
    losses, seconds = [], []
    for _ in range(o.steps):
        starts = torch.randint(len(text) - o.sequence - 1, (o.batch, 1), generator=draw).to(o.device)
        window = text[starts + torch.arange(o.sequence + 1, device=o.device)]
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        warmup.step()
        losses.append(loss.item())  # waits for the device
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--recipes", default="mxfp4,mxfp4_h16")
    options.add_argument("--custom-cuda", action="store_true")
    options.add_argument("--attention", default="float32", choices=("float32", "bfloat16"))
    for name, value in (("steps", 40), ("hidden", 128), ("layers", 2), ("batch", 8), ("sequence", 64)):
        options.add_argument(f"--{name}", type=int, default=value)
    o = options.parse_args()
    torch = import_or_none("torch")
    if torch is None:
        print("skipped: PyTorch is not installed")
        return 77
    start, rows = model_of(torch, o), []
    for name, convert in arms_of(torch, o).items():
        losses, seconds = train(torch, convert(copy.deepcopy(start)), o)
        rows.append((name, 1 / statistics.median(seconds[WARM:]), statistics.mean(losses[-5:])))
        print(f"{name}: {rows[-1][1]:.2f} steps/s, loss {rows[-1][2]:.4f}", file=sys.stderr)
    peer = next((rate for name, rate, _ in rows if name == "microxcaling"), None)
    print(f"| {o.layers} layers of {o.hidden}, {o.batch * o.sequence} tokens | steps/s | of microxcaling | loss | "
          "difference |")
    print("| --- | --- | --- | --- | --- |")
    for name, rate, loss in rows:
        ratio = f"{rate / peer:.2f}" if peer else ""
        print(f"| {name} | {rate:.2f} | {ratio} | {loss:.4f} | {loss - rows[0][2]:+.4f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
