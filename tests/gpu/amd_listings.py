#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the compiled kernels of AMD's devices: amd_listings.py probe-gfx950.s gemm-gfx942.s ...

What a change of source or compiler could lose without any test of results noticing: the matrix instruction, 16-byte
accesses, registers instead of memory, and the budget of registers and LDS."""
import re
import sys
from pathlib import Path
from typing import NamedTuple


class Budget(NamedTuple):
    instructions: dict  # how often each is there at least
    registers: int  # vector registers at most, both kinds together
    lds: int = 0  # bytes at most; the quantizers' is dynamic: 20 KiB, 24 KiB for FP8 codes
    scratch: int = 0


QUANTIZE = {"global_load_dwordx4": 8, "global_store_dwordx4": 2, "ds_read_b128": 2}
CONVERT = {"v_cvt_scalef32_pk_fp4_f32": 32}  # one block of 32 along a row and one down a column, two numbers each
QUANTIZERS = {
    "8tile_wayE0E": Budget(QUANTIZE, 144),
    "8tile_wayE3E": Budget(QUANTIZE, 144),
    "10fp8_kernel": Budget({"global_store_dwordx4": 4, "ds_write2_b32": 8}, 112, 16384),
    "17dequantize_kernel": Budget({"global_store_dwordx4": 4}, 64),
}
PROBE = {
    "12mfma_f16_k16": Budget({"v_mfma_f32_16x16x16_f16": 1}, 32),
    "13mfma_bf16_k16": Budget({"v_mfma_f32_16x16x16_bf16": 1}, 32),
    "12mfma_fp8_k32": Budget({"v_mfma_f32_16x16x32_fp8_fp8": 1}, 32),
    "12mfma_bf8_k32": Budget({"v_mfma_f32_16x16x32_bf8_bf8": 1}, 32),
}
SCALED = "v_mfma_scale_f32_16x16x128_f8f6f4"
STAGED = {"global_load_dwordx4": 4, "ds_write_b128": 4}
TO_LDS = {"global_load_lds_dwordx4": 32, "ds_read_b128": 32}
# By listing: what kernels have in their names. The probe's scaled kernels gather operands in memory: nobody times them.
EXPECTED = {
    "probe-gfx942": PROBE,
    "probe-gfx950": {
        **PROBE,
        "12mfma_f16_k32": Budget({"v_mfma_f32_16x16x32_f16": 1}, 32),
        "13mfma_bf16_k32": Budget({"v_mfma_f32_16x16x32_bf16": 1}, 32),
        **{f"16mfma_scaled_k128ILi{f}E": Budget({SCALED: 1}, 32, scratch=128) for f in range(5)},
    },
    "gemm-gfx942": {
        "6gfx942L11gemm_kernel": Budget({"v_mfma_f32_16x16x32_fp8_fp8": 64, **STAGED}, 384, 34816),
        "6gfx942L11bf16_kernel": Budget({"v_mfma_f32_16x16x16_bf16": 32, "ds_read2st64_b64": 8, **STAGED}, 128, 32768),
    },
    "gemm-gfx950": {
        "gemm_elementE0E": Budget({SCALED: 128, **TO_LDS}, 512, 131072),
        "gemm_elementE1ELS3_1E": Budget({SCALED: 64, **TO_LDS}, 512, 131072),
        "gemm_elementE1ELS3_2E": Budget({SCALED: 64, **TO_LDS}, 512, 131072),
        "gemm_elementE2ELS3_1E": Budget({SCALED: 64, **TO_LDS}, 512, 131072),
        "gemm_elementE2ELS3_2E": Budget({SCALED: 64, **TO_LDS}, 512, 131072),
    },
    "quantize-gfx942": {
        **QUANTIZERS,
        "8tile_wayE1E": Budget(QUANTIZE, 144),
        "8tile_wayE2E": Budget(QUANTIZE, 144),
    },
    "quantize-gfx950": {
        **QUANTIZERS,
        "8tile_wayE1E": Budget({**QUANTIZE, **CONVERT}, 144),
        "8tile_wayE2E": Budget({**QUANTIZE, **CONVERT}, 144),
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
    text, wrong, seen = path.read_text(encoding="utf-8"), [], set()
    listing = path.stem
    arch = re.search(r"amdgcn-amd-amdhsa--(gfx\w+)", text).group(1)
    if not listing.endswith(arch):
        wrong.append(f"{path}: is for {arch}")
    for name, (code, meta) in kernels(text).items():
        for part, budget in EXPECTED[listing].items():
            if part not in name:
                continue
            seen.add(part)
            for instruction, least in budget.instructions.items():
                if code.count(instruction) < least:
                    wrong.append(f"{name}: {code.count(instruction)} {instruction}, at least {least} expected")
            scratch = [i for i in code if i.startswith("scratch_")]
            size = int(meta["private_segment_fixed_size"])
            if size > budget.scratch or (scratch and budget.scratch == 0) or int(meta["vgpr_spill_count"]) != 0:
                wrong.append(f"{name}: {len(scratch)} scratch accesses, {size} bytes")
            if int(meta["vgpr_count"]) > budget.registers or int(meta["group_segment_fixed_size"]) > budget.lds:
                wrong.append(f"{name}: {meta['vgpr_count']} registers, {meta['group_segment_fixed_size']} bytes of LDS")
            print(f"{arch} {name}: {meta['vgpr_count']} registers, {meta['group_segment_fixed_size']} bytes of LDS, "
                  + ", ".join(f"{code.count(i)} {i}" for i in budget.instructions))
    wrong += [f"{path}: no kernel {part}" for part in EXPECTED[listing] if part not in seen]
    return wrong


if __name__ == "__main__":
    faults = [w for path in sys.argv[1:] for w in check(Path(path))]
    print("\n".join(faults) or "every kernel is as expected")
    sys.exit(bool(faults) or len(sys.argv) < 2)
