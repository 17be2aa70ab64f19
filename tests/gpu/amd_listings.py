#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the compiled kernels of AMD's devices.

usage: amd_listings.py LISTING...          gemm-gfx942.s ...: no scratch or spill, matrix instructions, registers of hot
                                           kernels
       amd_listings.py --same ONE OTHER    compares the code of two listings, one compiled with contraction
"""
import re
import sys
from pathlib import Path

# Matrix instruction of a kernel, by mangled name.
MATRIX = {
    r"gfx950L?11gemm_kernel": "v_mfma_scale_f32_16x16x128_f8f6f4",
    r"gfx942L?11gemm_kernel": "v_mfma_f32_16x16x32_fp8_fp8",
    r"L?12dense_kernel": "v_mfma_f32_16x16x16_bf16",
    r"5tilesL?\d+\w+_kernel": "v_mfma_f32_16x16x16_bf16",
    r"mfma_kernel.*mfma_scaled": "v_mfma_scale_f32_16x16x128_f8f6f4",
    r"mfma_kernel": "v_mfma_f32_16x16x",
}
# Hot kernels by listing and mangled name: maximum VGPRs, of 512 for all waves of a SIMD.
HOT = {
    ("gemm-gfx950", r"gfx950L?11gemm_kernelILi256ELi256E"): 256,
    ("gemm-gfx942", r"gfx942L?11gemm_kernelILi128ELi128E"): 192,
    ("gemm-", r"dense_kernelILi128ELi128E"): 160,
    ("attention-", r"5tilesL?14forward_kernel.*Li128E"): 256,
    ("attention-", r"5tilesL?11keys_kernel.*Li128E"): 256,
    ("quantize-", r"L?15quantize_kernel"): 144,
}
# The probe's scaled kernels gather operands in memory. They are not timed.
IN_SCRATCH = re.compile(r"mfma_kernel.*mfma_scaled")


def kernels(text):
    """Yields (mangled name, code, metadata) of each kernel of a listing."""
    functions = dict(re.findall(r"^(_Z\w+):[^\n]*\n(.*?)^\s*\.section", text, re.M | re.S))
    for entry in text[text.index("amdhsa.kernels:"):text.index("amdhsa.target:")].split("\n  - ")[1:]:
        meta = dict(re.findall(r"^ {4}\.(\w+): +([^\s].*?)$", "    " + entry, re.M))
        yield meta["name"], functions[meta["name"]], meta


def faults(path):
    """Yields one line per fault of a listing."""
    text, seen = path.read_text(encoding="utf-8"), set()
    found = list(kernels(text))
    if not found:
        yield "no kernel"
    for name, code, meta in found:
        if not IN_SCRATCH.search(name) and (int(meta["private_segment_fixed_size"]) or int(meta["vgpr_spill_count"]) or
                                            re.search(r"^\tscratch_", code, re.M)):
            yield f"{name}: {meta['private_segment_fixed_size']} bytes of scratch, {meta['vgpr_spill_count']} spills"
        instruction = next((i for pattern, i in MATRIX.items() if re.search(pattern, name)), "")
        if instruction not in code:
            yield f"{name}: no {instruction}"
        for (listing, pattern), most in HOT.items():
            if path.stem.startswith(listing) and re.search(pattern, name):
                seen.add(pattern)
                if int(meta["vgpr_count"]) > most:
                    yield f"{name}: {meta['vgpr_count']} vector registers, at most {most} expected"
    for listing, pattern in HOT:
        if path.stem.startswith(listing) and pattern not in seen:
            yield f"no kernel {pattern}"


def first_difference(paths):
    """Yields the first difference of two listings, ignoring the compilation unit's name. Contraction must change no
    code."""
    one, other = ([line for line in path.read_text(encoding="utf-8").splitlines() if "__hip_cuid_" not in line]
                  for path in paths)
    if len(one) < 1000:
        yield f"{len(one)} lines are no listing of kernels"
    for number, (a, b) in enumerate(zip(one, other), 1):
        if a != b:
            yield f"line {number}: {a.strip()} | {b.strip()}"
            return
    if len(one) != len(other):
        yield f"{len(one)} lines and {len(other)}"


def main(arguments):
    if arguments[:1] == ["--same"]:
        wrong = [f"{arguments[1]}: {fault}" for fault in first_difference([Path(name) for name in arguments[1:3]])]
    else:
        wrong = [f"{name}: {fault}" for name in arguments for fault in faults(Path(name))]
    print("\n".join(wrong) or "every kernel is as expected")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
