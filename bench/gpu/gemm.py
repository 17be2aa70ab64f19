#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times the FP4 GEMM and its peers: cuBLAS BF16, cuBLASLt FP8 and INT8, Triton's dot_scaled.

usage: gemm.py LIBRARY [MxNxK ...]
       gemm.py --config CONFIG [--tokens N] LIBRARY
  LIBRARY is BUILD/bench/libgpu_gemm.so. --config times fprop, dgrad and wgrad of a model's linear layers, and shapes of
  few rows or columns. It compares cuBLAS BF16 with the kernel that gemm() chooses for `accurate`.
  Variants of a shape take turns, and times are medians. Operands are N(0, 1) quantized to MXFP4. The peers multiply the
  same values in their formats. cuBLAS BF16 also multiplies unquantized N(0, 1). No row of "outside int8" folds into
  int8: the first block of every row is scaled by 2^-12. Needs PyTorch and a CUDA device.
"""
import ctypes
import json
import math
import sys

import torch
import triton
import triton.language as tl

CONTRACTS = {"reference": 0, "accurate": 1, "fast": 2}
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
ROUNDS = 15
FEW = ((16, 8192, 8192), (64, 8192, 8192), (128, 8192, 8192), (256, 8192, 8192), (1024, 2048, 4096), (8192, 16, 4096),
       (8192, 64, 4096))


@triton.jit
def dot_scaled_kernel(a, sa, b, sb, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    half, blocks = tl.arange(0, BK // 2), tl.arange(0, BK // 32)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * (K // 2) + k // 2 + half[None, :])
        y = tl.load(b + cols[None, :] * (K // 2) + k // 2 + half[:, None])
        p = tl.load(sa + rows[:, None] * (K // 32) + k // 32 + blocks[None, :])
        q = tl.load(sb + cols[:, None] * (K // 32) + k // 32 + blocks[None, :])
        acc = tl.dot_scaled(x, p, "e2m1", y, q, "e2m1", acc)
    tl.store(out + rows[:, None] * N + cols[None, :], acc.to(tl.bfloat16))


def quantize(rows, k):
    """Codes, scales and values of N(0, 1) as MXFP4, scales by OCP's rule."""
    x = torch.randn(rows, k, device="cuda").view(rows, k // 32, 32)
    exponent = torch.floor(torch.log2(x.abs().amax(2))) - 2
    scaled = x / torch.exp2(exponent)[:, :, None]
    values = VALUES.to("cuda")
    code = torch.bucketize(scaled.abs(), (values[1:] + values[:-1]) / 2)
    value = (values[code] * scaled.sign() * torch.exp2(exponent)[:, :, None]).view(rows, k)
    code = (code | (scaled < 0) << 3).view(rows, k).to(torch.uint8)
    return code[:, 0::2] | code[:, 1::2] << 4, (exponent + 127).to(torch.uint8), value


class ours:
    def __init__(self, library, a, b, m, n, k, contract, split=1, out_bytes=2):
        dtype = torch.bfloat16 if out_bytes == 2 else torch.float32
        self.library, self.out = library, torch.empty(m, n, device="cuda", dtype=dtype)
        self.pointers = (ctypes.c_void_p * 5)(*[t.data_ptr() for t in (*a, *b, self.out)])
        self.extents = (ctypes.c_int * 4)(m, n, k, out_bytes)
        self.choice = (ctypes.c_int * 2)(CONTRACTS[contract], split)
        self.bytes = library.rotoscale_gemm_workspace(self.pointers, self.extents, self.choice)
        self.workspace = torch.empty(max(self.bytes, 1), device="cuda", dtype=torch.uint8)
        self.why = ctypes.create_string_buffer(200)

    def __call__(self):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        workspace = ctypes.c_void_p(self.workspace.data_ptr())
        if self.library.rotoscale_gemm(self.pointers, self.extents, self.choice, workspace,
                                       ctypes.c_longlong(self.bytes), stream, self.why, 200):
            raise SystemExit(f"gemm: {self.why.value.decode()}")
        return self.out


class quantized_ours(ours):
    """The GEMM from BF16: it rotates and quantizes both operands first."""

    def __init__(self, library, x, y, m, n, k, contract, split=1):
        self.sources = [(t, t.shape[0], torch.empty(t.shape[0], k // 2, device="cuda", dtype=torch.uint8),
                         torch.empty(t.shape[0], k // 32, device="cuda", dtype=torch.uint8)) for t in (x, y)]
        super().__init__(library, self.sources[0][2:], self.sources[1][2:], m, n, k, contract, split)

    def __call__(self):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for x, rows, codes, scales in self.sources:
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, codes, scales)]
            if self.library.rotoscale_quantize(pointers[0], rows, x.shape[1], *pointers[1:], stream, self.why, 200):
                raise SystemExit(f"gemm: {self.why.value.decode()}")
        return super().__call__()


def captured(call):
    """Replay of a graph of the call."""
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def wide_operand(rows, k):
    """Random codes under scales of 12 binades, and their values. Their sums round in every matrix unit."""
    code = torch.randint(0, 16, (rows, k), device="cuda", dtype=torch.uint8)
    scale = torch.randint(118, 130, (rows, k // 32), device="cuda", dtype=torch.uint8)
    table = torch.cat([VALUES, -VALUES]).to("cuda")
    value = table[code.long()] * torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
    return code[:, 0::2] | code[:, 1::2] << 4, scale, value


def compare_orders(library, m, n, k):
    """Prints errors, and the share of outputs unlike the reference's, on data where the order of sums matters."""
    (ca, sa, va), (cb, sb, vb) = wide_operand(m, k), wide_operand(n, k)
    out = {c: ours(library, (ca, sa), (cb, sb), m, n, k, c, 1, 4)() for c in CONTRACTS}
    out["cuBLAS BF16"] = torch.mm(va.to(torch.bfloat16), vb.to(torch.bfloat16).t(), out_dtype=torch.float32)
    double = va.double()[:256] @ vb.double().t()
    print(f"scales of 12 binades, {m} x {n} x {k}, FP32 output")
    for name, x in out.items():
        other = (x.view(torch.int32) != out["reference"].view(torch.int32)).float().mean().item()
        error = ((x[:256].double() - double).norm() / double.norm()).item()
        print(f"  {name:34} relative error {error:.2e}, {other:.2e} of outputs are not the reference's")


def load(path):
    library = ctypes.CDLL(path)
    library.rotoscale_gemm_workspace.restype = ctypes.c_longlong
    return library


def medians(variants, rounds=ROUNDS):
    """Median microseconds of each variant. They take turns."""
    times = {name: [] for name in variants}
    for f in variants.values():
        f()
        f()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for name, f in variants.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            f()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3)
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def measure(library, m, n, k):
    (ca, sa, va), (cb, sb, vb) = quantize(m, k), quantize(n, k)
    bf16 = [v.to(torch.bfloat16) for v in (va, vb)]
    normal = [torch.randn(r, k, device="cuda").to(torch.bfloat16) for r in (m, n)]
    fp8 = [v.to(torch.float8_e4m3fn) for v in (va, vb)]
    int8 = [(8 * v).to(torch.int8) for v in (va, vb)]
    spread = [torch.cat([s[:, :1] - 12, s[:, 1:]], 1) for s in (sa, sb)]
    outside = (ca, spread[0]), (cb, spread[1])
    one, triton_out = torch.ones((), device="cuda"), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    variants = {
        "fast": ours(library, (ca, sa), (cb, sb), m, n, k, "fast"),
        "accurate": ours(library, (ca, sa), (cb, sb), m, n, k, "accurate"),
        "accurate, outside int8": ours(library, *outside, m, n, k, "accurate"),
        "fast, graph replay": captured(ours(library, (ca, sa), (cb, sb), m, n, k, "fast")),
        "accurate, graph replay": captured(ours(library, (ca, sa), (cb, sb), m, n, k, "accurate")),
        "accurate, outside, graph replay": captured(ours(library, *outside, m, n, k, "accurate")),
        "H16 + quantize both, fast": quantized_ours(library, *normal, m, n, k, "fast"),
        "H16 + quantize both, accurate": quantized_ours(library, *normal, m, n, k, "accurate"),
        "cuBLAS BF16, N(0, 1)": lambda: normal[0] @ normal[1].t(),
        "cuBLAS BF16, the same values": lambda: bf16[0] @ bf16[1].t(),
        "cuBLASLt FP8, fast accumulation": lambda: torch._scaled_mm(
            fp8[0], fp8[1].t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
        "cuBLASLt FP8": lambda: torch._scaled_mm(
            fp8[0], fp8[1].t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=False),
        "cuBLASLt INT8, to INT32": lambda: torch._int_mm(int8[0], int8[1].t()),
        "Triton dot_scaled": lambda: dot_scaled_kernel[(m // 128, n // 128)](
            ca, sa, cb, sb, triton_out, m, n, k, 128, 128, 128, num_warps=8, num_stages=3),
    }
    times = medians(variants)
    accurate, fast = variants["accurate"]().clone(), variants["fast"]().clone()
    peer = bf16[0] @ bf16[1].t()
    double = va.double()[:256] @ vb.double().t()
    print(f"{m} x {n} x {k}")
    for name, us in times.items():
        print(f"  {name:34} {us:9.1f} us {2 * m * n * k / us * 1e-6:7.0f} TFLOP/s, "
              f"{times['cuBLAS BF16, the same values'] / us:.3f} of cuBLAS BF16 on the same values")
    rotated = variants["H16 + quantize both, fast"]().double()[:256]
    exact = normal[0].double()[:256] @ normal[1].double().t()
    print(f"  H16 + quantize both, fast: error of quantization {((rotated - exact).norm() / exact.norm()).item():.3f}")
    norm = double.norm()
    for name, out in (("accurate", accurate), ("fast", fast), ("cuBLAS BF16", peer)):
        other = (out.view(torch.int16) != accurate.view(torch.int16)).float().mean().item()
        print(f"  {name:34} relative error {((out[:256].double() - double).norm() / norm).item():.2e}"
              f", {other:.2e} of outputs differ from accurate")
    sys.stdout.flush()


def layer_shapes(path, tokens):
    """(layer, pass, m, n, k) of a decoder layer's linear layers."""
    with open(path, encoding="utf-8") as file:
        c = json.load(file)
    hidden, mlp, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    head = c.get("head_dim") or hidden // heads
    qkv = (heads + 2 * c["num_key_value_heads"]) * head
    for name, out, inner in (("q, k, v", qkv, hidden), ("o", hidden, heads * head), ("gate, up", 2 * mlp, hidden),
                             ("down", hidden, mlp)):
        yield name, "fprop", tokens, out, inner
        yield name, "dgrad", tokens, inner, out
        yield name, "wgrad", out, inner, tokens


def queued(call, count=4):
    """Mean microseconds of `count` calls, all queued before the first begins."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000000)
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / count


def against_cublas(library, m, n, k):
    """Median microseconds of `accurate` on quantized operands, of cuBLAS, both on N(0, 1), and the choice."""
    x, y = (torch.randn(r, k, device="cuda").to(torch.bfloat16) for r in (m, n))
    call = quantized_ours(library, x, y, m, n, k, "accurate", split=0)
    call()
    product, why = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), ctypes.create_string_buffer(300)
    library.rotoscale_gemm_selection(call.pointers, call.extents, call.choice, why, 300)
    variants = (lambda: ours.__call__(call), lambda: torch.mm(x, y.t(), out=product))
    for variant in variants:
        queued(variant)
    times = [[queued(variant) for variant in variants] for _ in range(ROUNDS)]
    medians = [sorted(t)[ROUNDS // 2] for t in zip(*times)]
    return medians + [why.value.decode().split(":")[0].replace("mxfp4-accurate, ", "")]


def compare_model(library, config, tokens):
    """Prints a line for each shape, the least and mean ratio, then shapes of few rows or columns."""
    ratios = []
    for count in tokens:
        for name, direction, m, n, k in layer_shapes(config, count):
            us, peer, choice = against_cublas(library, m, n, k)
            ratios.append(peer / us)
            flop = 2e-6 * m * n * k
            print(f"{name:8} {direction} {m:6} x {n:6} x {k:6} {us:8.1f} us {flop / us:6.0f} TFLOP/s, cuBLAS BF16 "
                  f"{peer:8.1f} us {flop / peer:5.0f}: {peer / us:.2f}   {choice}", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{len(ratios)} shapes: least {min(ratios):.2f} of cuBLAS BF16, geometric mean {mean:.2f}")
    for m, n, k in FEW:
        us, peer, choice = against_cublas(library, m, n, k)
        print(f"few            {m:6} x {n:6} x {k:6} {us:8.1f} us, cuBLAS BF16 {peer:8.1f} us: "
              f"{peer / us:.2f}   {choice}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(1)
    if sys.argv[1:2] == ["--config"] and len(sys.argv) in (4, 6):
        lengths = [int(sys.argv[4])] if len(sys.argv) == 6 else [4096, 8192]
        compare_model(load(sys.argv[-1]), sys.argv[2], lengths)
        raise SystemExit
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    compare_orders(load(sys.argv[1]), 1024, 2048, 4096)
    for shape in sys.argv[2:] or ["4096x4096x4096", "8192x8192x8192"]:
        measure(load(sys.argv[1]), *map(int, shape.split("x")))
