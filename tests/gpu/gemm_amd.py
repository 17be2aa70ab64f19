#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the compiled kernels of AMD's devices: gemm_amd.py LISTING.s ...

What a change of source or compiler could lose without any test of results noticing: the matrix instruction, 16-byte
accesses, registers instead of memory, and the budget of registers and LDS."""
import re
import sys
from pathlib import Path

# By name: instructions and how often they are there at least; most vector registers (both kinds together) and LDS bytes.
QUANTIZE = {"global_load_dwordx4": 8, "global_store_dwordx4": 2, "ds_read_b128": 2}
CONVERT = {"v_cvt_scalef32_pk_fp4_f32": 32}  # one block of 32 along a row and one down a column, two numbers each
# The quantizers' LDS is dynamic: 20 KiB, 24 KiB for FP8 codes.
QUANTIZERS = {
    "8tile_wayE0E": (QUANTIZE, 144, 0),
    "8tile_wayE3E": (QUANTIZE, 144, 0),
    "10fp8_kernel": ({"global_store_dwordx4": 4, "ds_write2_b32": 8}, 112, 16384),
    "17dequantize_kernel": ({"global_store_dwordx4": 1}, 48, 0),
}
EXPECTED = {
    "gfx942": {
        **QUANTIZERS,
        "6gfx942": ({"v_mfma_f32_16x16x32_fp8_fp8": 64, "global_load_dwordx4": 4, "ds_write_b128": 4}, 384, 34816),
        "8tile_wayE1E": (QUANTIZE, 144, 0),
        "8tile_wayE2E": (QUANTIZE, 144, 0),
    },
    "gfx950": {
        **QUANTIZERS,
        "6gfx950": ({"v_mfma_scale_f32_16x16x128_f8f6f4": 128, "global_load_lds_dwordx4": 32, "ds_read_b128": 32},
                    512, 131072),
        "8tile_wayE1E": ({**QUANTIZE, **CONVERT}, 144, 0),
        "8tile_wayE2E": ({**QUANTIZE, **CONVERT}, 144, 0),
    },
}


def kernels(text):
    """name -> (its instructions, its metadata)"""
    bodies = dict(re.findall(r"^(_Z\w+):.*?\n(.*?)^\s*\.section", text, re.M | re.S))
    found = {}
    for entry in text[text.index("amdhsa.kernels:"):text.index("amdhsa.target:")].split("\n  - ")[1:]:
        meta = dict(re.findall(r"^ {4}\.(\w+): +([^\s].*?)$", "    " + entry, re.M))
        found[meta["name"]] = (re.findall(r"^\t([a-z]\w+)", bodies[meta["name"]], re.M), meta)
    return found


def check(path):
    text, wrong, seen = path.read_text(encoding="utf-8"), [], 0
    arch = re.search(r'amdgcn-amd-amdhsa--(gfx\w+)', text).group(1)
    for name, (code, meta) in kernels(text).items():
        for part, (instructions, registers, lds) in EXPECTED[arch].items():
            if part not in name:
                continue
            seen += 1
            for instruction, least in instructions.items():
                if code.count(instruction) < least:
                    wrong.append(f"{name}: {code.count(instruction)} {instruction}, at least {least} expected")
            scratch = [i for i in code if i.startswith("scratch_")]
            if scratch or int(meta["private_segment_fixed_size"]) != 0 or int(meta["vgpr_spill_count"]) != 0:
                wrong.append(f"{name}: {len(scratch)} scratch accesses, {meta['private_segment_fixed_size']} bytes")
            if int(meta["vgpr_count"]) > registers or int(meta["group_segment_fixed_size"]) > lds:
                wrong.append(f"{name}: {meta['vgpr_count']} registers, {meta['group_segment_fixed_size']} bytes of LDS")
            print(f"{arch} {name}: {meta['vgpr_count']} registers, {meta['group_segment_fixed_size']} bytes of LDS, "
                  + ", ".join(f"{code.count(i)} {i}" for i in instructions))
    if seen == 0:
        wrong.append(f"{path}: no kernel was checked")
    return wrong


if __name__ == "__main__":
    faults = [w for path in sys.argv[1:] for w in check(Path(path))]
    print("\n".join(faults) or "every kernel is as expected")
    sys.exit(bool(faults) or len(sys.argv) < 2)
