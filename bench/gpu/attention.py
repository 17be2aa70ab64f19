#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's causal attention, by cuDNN and by its flash kernels: the peers of bench/gpu/attention.

usage: attention.py BATCHxSEQxHEADSxKV_HEADSxHEAD_DIM...
  Prints the lines of bench/gpu/attention, with the backend instead of the contract. The backward passes of these peers
  need not be deterministic.
"""
import statistics
import sys
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

REPEATS, LAUNCHES = 9, 4


def time_of(run):
    """Median microseconds of a run."""
    run()
    torch.cuda.synchronize()
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            run()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / LAUNCHES * 1e6)
    return statistics.median(found)


def measure(batch, seq, heads, kv_heads, dim, backend):
    q = torch.rand(batch, heads, seq, dim, device="cuda").mul(2).sub(1).bfloat16().requires_grad_()
    k, v = (torch.rand(batch, kv_heads, seq, dim, device="cuda").mul(2).sub(1).bfloat16().requires_grad_()
            for _ in range(2))
    gradient = torch.rand_like(q)
    with sdpa_kernel(backend):
        def forward():
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
        out = forward()
        f = time_of(forward)
        b = time_of(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    flop = 2 * batch * heads * dim * seq * seq
    print(batch, seq, heads, kv_heads, dim, backend.name,
          f"{f:.1f} {b:.1f} {flop / f / 1e6:.1f} {2.5 * flop / b / 1e6:.1f} -", flush=True)


def main(arguments):
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for text in arguments:
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            try:
                measure(*map(int, text.split("x")), backend)
            except RuntimeError as error:
                print(text, backend.name, "failed:", str(error).splitlines()[0], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
