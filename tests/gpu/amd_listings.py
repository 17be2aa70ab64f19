#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the compiled kernels of AMD's devices.

usage: amd_listings.py LISTING...                 probe-gfx950.s gemm-gfx942.s ...: what each kernel must have and may use
       amd_listings.py --table PAGE LISTING...    is PAGE (docs/results/amd-registers.md) what these listings say?
       amd_listings.py --write PAGE LISTING...    writes it

What a change of source or compiler could lose without any test of results noticing: the matrix instruction, 16-byte
accesses, registers instead of memory, the budget of registers and LDS, the waits before barriers, that reads of LDS run
while matrices are multiplied (gfx950's GEMM) and that nothing from memory is waited for before it has had time to come.
"""
import fnmatch
import sys
from pathlib import Path
from typing import NamedTuple

import listing


class Loop(NamedTuple):
    """The loop with the most matrix instructions. At most:"""
    moves: int  # to, from and between accumulation registers
    lds_waits: int
    reads: int  # of LDS in a row before a wait for all of them
    idle: int  # cycles of s_nop
    products: int  # at least: matrix instructions between a load to registers and the wait for it
    over_reads: tuple = ()  # at least, ascending: those between each read of LDS and the wait for it

    @classmethod
    def of(cls, code):
        loop = listing.main_loop(code)
        return cls(sum(text.startswith("v_accvgpr") for text in loop), sum("lgkmcnt" in text for text in loop),
                   listing.longest_wait_for_lds(loop), listing.idle_cycles(loop), listing.products_before_wait(loop) or 0,
                   tuple(listing.products_over_reads(loop)))

    def allows(self, found):
        in_flight = len(found.over_reads) >= len(self.over_reads) and all(
            have >= least for have, least in zip(found.over_reads, self.over_reads))
        return in_flight and found.products >= self.products and all(have <= most for have, most in zip(found[:4], self))


class Budget(NamedTuple):
    instructions: dict  # how often each is there at least
    registers: int  # vector registers at most, both kinds together
    lds: int = 0  # bytes at most; the quantizers' is dynamic: 20 KiB, 24 KiB for FP8 codes
    scratch: int = 0
    scalar_spills: int = 0  # scalar registers kept in lanes of vector registers
    loop: Loop = None
    in_loop: dict = {}  # how often each is in the loop with the most matrix instructions, exactly
    # A constant whose addition is rounded by itself: it is the addend of no fused multiply-add.
    added_alone: str = ""


QUANTIZE = {"global_load_dwordx4": 8, "global_store_dwordx4": 2, "ds_read_b128": 2}
CONVERT = {"v_cvt_scalef32_pk_fp4_f32": 32}  # one block of 32 along a row and one down a column, two numbers each
QUANTIZERS = {
    "quantize_kernel<*, exact>": Budget(QUANTIZE, 144, scalar_spills=420),
    "quantize_kernel<*, fast_unrotated>": Budget(QUANTIZE, 144, scalar_spills=420),
    "fp8_kernel<*>": Budget({"global_store_dwordx4": 4, "ds_write2_b32": 8}, 128, 16384, scalar_spills=144),
    "dequantize_kernel<*>": Budget({"global_store_dwordx4": 4}, 64),
    "update_scales_kernel": Budget({}, 64, 32),
    "draw_kernel": Budget({}, 64),
    "round_bf16_kernel": Budget({"global_load_dwordx4": 1, "global_store_dwordx2": 1}, 64),
}
MOVES = {"global_load_dwordx4": 4, "global_store_dwordx4": 2}
LAYERS = {
    **{f"{name}<*>": Budget(MOVES, 128) for name in ("add_kernel", "swiglu_kernel", "swiglu_gradient_kernel", "rope_kernel")},
    "dropout_kernel<*>": Budget({"global_load_dwordx4": 2, "global_store_dwordx4": 1}, 128),
    "embedding_kernel<*>": Budget({"global_load_dwordx4": 2, "global_store_dwordx4": 2}, 64),
    "embedding_gradient_kernel<*>": Budget({"global_load_dwordx4": 8, "global_store_dwordx4": 1}, 96),
    "norm_kernel<*>": Budget({"global_load_dwordx4": 2, "global_store_dwordx4": 1}, 112, 128),
    "norm_gradient_kernel<*>": Budget({"global_load_dwordx4": 3, "global_store_dwordx4": 1}, 128, 384),
    "norm_gradient_unstaged_kernel<*>": Budget({"global_load_dwordx4": 3, "global_store_dwordx4": 1}, 128, 128),
    "gain_sum_kernel": Budget({}, 80, 16512),
    "embedding_long_gradient_kernel<*>": Budget({"global_load_dwordx4": 1, "ds_write_b128": 1}, 96, 32768),
    "token_order_kernel": Budget({}, 96, 8480),
    "softmax_kernel": Budget({"global_load_dwordx4": 8, "global_store_dwordx4": 4}, 96, 16448),
    "adamw_kernel": Budget({"global_load_dwordx4": 16, "global_store_dwordx4": 12}, 64),
    "squares_kernel": Budget({}, 64),
    **{name: Budget({}, 64, 8192) for name in ("squares_sum_kernel", "gradient_norm_kernel", "loss_sum_kernel", "begin_step_kernel")},
    **{name: Budget({}, 32) for name in ("nonfinite_kernel", "gradient_scale_kernel", "next_micro_batch_kernel")},
}
REFERENCE = {
    "reference_kernel": Budget({}, 64, scalar_spills=120),
    "add_parts_kernel": Budget({}, 32, 64),
}
QUANTIZED_ROWS = {
    "quantized_rows_kernel<norm_producer<*>, *>": Budget({**MOVES, "ds_read_b128": 2}, 176, scalar_spills=420),
    "quantized_rows_kernel<swiglu_producer<*>, *>": Budget({**MOVES, "ds_read_b128": 2}, 176, scalar_spills=432),
    "quantized_rows_kernel<swiglu_gradient_producer<*>, *>": Budget({**MOVES, "ds_read_b128": 2}, 192, scalar_spills=264),
}
FP8_ROWS = {
    "fp8_rows_kernel<norm_producer<*>, *>": Budget(MOVES, 128, 16384, scalar_spills=104),
    "fp8_rows_kernel<swiglu_producer<*>, *>": Budget(MOVES, 128, 16384, scalar_spills=104),
    "fp8_rows_kernel<swiglu_gradient_producer<bf16>, *>": Budget(MOVES, 160, 16384, scalar_spills=144),
    "fp8_rows_kernel<swiglu_gradient_producer<float>, *>": Budget(MOVES, 272, 16384, scalar_spills=376),
}
STATISTICS = {
    **REFERENCE,
    "decode_kernel": Budget({}, 32),
    "observe_kernel<*>": Budget({}, 64),
    "observe_sum_kernel": Budget({}, 96, 13824),
    "compare_kernel": Budget({}, 64),
    "compare_sum_kernel": Budget({}, 64, 8192),
}
PROBE = {
    "mfma_kernel<mfma_f16_k16>": Budget({"v_mfma_f32_16x16x16_f16": 1}, 32),
    "mfma_kernel<mfma_bf16_k16>": Budget({"v_mfma_f32_16x16x16_bf16": 1}, 32),
    "mfma_kernel<mfma_fp8_k32>": Budget({"v_mfma_f32_16x16x32_fp8_fp8": 1}, 32),
    "mfma_kernel<mfma_bf8_k32>": Budget({"v_mfma_f32_16x16x32_bf8_bf8": 1}, 32),
}
SCALED = "v_mfma_scale_f32_16x16x128_f8f6f4"


def staged(vectors):
    """Of 16 bytes a thread and step."""
    return {"global_load_dwordx4": vectors, "ds_write_b128": vectors}


def blocks_of_fp8(idle):
    """gfx942's MXFP4 kernels, which gfx950 has for training, by name; idle cycles of the loop of the large tile and of the small one. A
    block's codes are read over the products of the block before, which are added one product late. Barriers: of a step, and behind the
    ranges of scales, without which outputs would be computed again, with the same bits."""
    products = "v_mfma_f32_16x16x32_fp8_fp8"
    large, small = (Loop(0, 13, 0, idle[0], 0, (0,) * 14 + (16,) * 8), Loop(0, 10, 6, idle[1], 0, (0,) * 7 + (4,) * 4))
    return {"gfx942::gemm_kernel<128, 128, *>": Budget({products: 64, "s_barrier": 2, **staged(4)}, 192, 35840, scalar_spills=72, loop=large),
            "gfx942::gemm_kernel<32, 128, *>": Budget({products: 16, "s_barrier": 2, **staged(3)}, 104, 23552, loop=small)}


def gfx950_step(turns, turn_tiles, column_tiles, idle):
    """A step of gfx950's GEMM, whose turns multiply `turn_tiles` row tiles by a wave's column tiles (gfx950_tile.hpp) and read two vectors
    of LDS each, behind the products of the first column tile, for the turn after next or, where a step has two turns, for the next. So
    every read has the rest of its turn to arrive, and what no wait in front of a step or at its barrier is for one turn more. Waits: those
    two, each for two turns, and for every row tile of the turns between."""
    products = turn_tiles * column_tiles
    over_reads = (products - turn_tiles,) * 4 + (2 * products - turn_tiles,) * (2 * turns - 4)
    return Loop(0, 2 + max(turns - 4, 0) * turn_tiles, 0, idle, turns * products // 2, over_reads)


def gfx950_tile(rows, columns, waves_of_fp4, fp8=None):
    """The kernels of a tile of gfx950's GEMM, by name. How many waves of FP4's a SIMD unit holds; of FP8's as well, and their idle cycles.
    No sum is moved, and loads to registers have at least half of a step's products to arrive."""
    large = rows * columns >= 240 * 256 or rows == 256
    down = 2 if large and columns <= rows else 1
    waves = down * (8 if large and down == 1 else 4)
    tiles = (rows // down // 16, columns * down // waves // 16)
    pairs = tiles[0] // 2 + (tiles[1] + 1) // 2
    found = {}
    for parts, counts, formats in ((1, (waves_of_fp4, tiles[0] // 2 + 1), ["e2m1"]), (2, fp8, ["e4m3", "e5m2"])):
        if not counts:
            continue
        simd, idle = counts
        step = {SCALED: 2 * tiles[0] * tiles[1], "global_load_lds_dwordx4": -(-rows // 16 * 2 * parts // waves),
                "ds_read_b128": 2 * parts * tiles[0], "global_load_dwordx4": 2 * parts * tiles[1], "global_load_dword": pairs}
        # Barriers: behind the first copies, in two of the three forms of a step, and before sums take LDS, which no order of threads
        # in host mode shows.
        budget = Budget({"s_barrier": 4}, 512 // simd // 8 * 8, max(256 * parts * rows, waves * 4096), in_loop=step,
                        scalar_spills=32 if (rows, parts) == (192, 2) else 0,
                        loop=gfx950_step(parts * tiles[0], 2 // parts, tiles[1], idle))
        found.update({f"gfx950::gemm_kernel<{rows}, {columns}, {a}, {b}>": budget for a in formats for b in formats})
    return found


# Idle cycles of FP8's are what clang 22 leaves; of FP4's at most one in two turns and one in the step.
GFX950_TILES = {}
for size in ((256, 256, 2), (128, 512, 2), (64, 1024, 2), (160, 384, 2), (96, 640, 2), (224, 256, 1), (64, 896, 1),
             (192, 256, 1, (1, 11)), (128, 384, 1), (96, 512, 1), (64, 768, 1), (160, 256, 1), (64, 640, 1), (96, 384, 2),
             (256, 128, 2), (128, 256, 2, (1, 8)), (64, 512, 2), (32, 1024, 1), (224, 128, 2), (32, 896, 1), (192, 128, 2),
             (96, 256, 2), (64, 384, 2), (32, 768, 2), (160, 128, 3), (32, 640, 2), (128, 128, 3, (2, 27)), (64, 256, 3, (2, 16)),
             (32, 512, 2), (96, 128, 4), (32, 384, 3), (64, 128, 4), (32, 256, 4), (32, 128, 6, (4, 2))):
    GFX950_TILES.update(gfx950_tile(*size))
MFMA_BF16 = "v_mfma_f32_16x16x16_bf16"


def dense_tile(rows, columns, registers, *loop):
    """The kernels of a tile of dense BF16 GEMMs, by name; their registers, and the loop's waits, reads and idle cycles.
    Steps of 32 k are staged in registers on their way to LDS, where two lie; there are two loops over them, for whole vectors and for what
    is left. Fragments are read where a step begins and waited for: the matrix unit has the products of the other blocks' waves meanwhile."""
    down = 2 if rows >= columns and rows % 32 == 0 else 1
    tiles = (rows // down // 16, columns * down // 4 // 16)
    products = 2 * tiles[0] * tiles[1]
    budgets = {}
    for a in (False, True):
        for b in (False, True):
            # Vectors of a thread: as rows of k, and of two k's rows.
            plain = (0 if a else -(-rows // 64)) + (0 if b else -(-columns // 64))
            turned = (-(-rows // 128) if a else 0) + (-(-columns // 128) if b else 0)
            copies = {"global_load_dwordx4": 2 * (plain + 2 * turned) + products // 2, "ds_write_b128": 2 * plain,
                      "ds_write_b32": 16 * turned, "ds_read2st64_b64": 4 * (tiles[0] // 2 + tiles[1] // 2)}
            budgets[f"amd::dense_kernel<{rows}, {columns}, {str(a).lower()}, {str(b).lower()}>"] = Budget(
                {MFMA_BF16: 2 * products, **copies, "global_store_dwordx4": products // 2}, registers,
                128 * (rows + columns), loop=Loop(0, *loop, products))
    return budgets


DENSE = {}
for size in ((128, 128, 160, 3, 0, 0), (160, 64, 136, 7, 1, 3), (128, 64, 120, 6, 1, 2), (96, 64, 104, 5, 1, 3), (32, 128, 96, 4, 0, 3),
             (64, 64, 88, 4, 0, 1), (48, 64, 80, 4, 0, 2), (32, 64, 80, 3, 0, 2)):
    DENSE.update(dense_tile(*size))
DEFINITION = {
    **REFERENCE,
    "decode_kernel": Budget({}, 32),
    "chain_kernel<*>": Budget({}, 256, 18432, scalar_spills=60),
    "blockwise_kernel<*>": Budget({"v_dot4c_i32_i8_e32": 32}, 192, 19584, scalar_spills=640),
}
UNROTATE = {**REFERENCE, "decode_kernel": Budget({}, 32), "unrotate_kernel": Budget({}, 48)}
ROUND = "0x4b400000"  # 1.5 * 2^23, which rounds the exponent of nn::exp2 to an integer
ATTENTION = {
    "attention_dots_kernel<*>": Budget({}, 32),
    "chains::*_kernel<*>": Budget({}, 256, scalar_spills=16),
    "tiles::forward_kernel<*, 64>": Budget({MFMA_BF16: 32}, 256, scalar_spills=40, added_alone=ROUND),
    "tiles::forward_kernel<*, 128>": Budget({MFMA_BF16: 64}, 256, scalar_spills=44, added_alone=ROUND),
    "tiles::queries_kernel<*, 64>": Budget({MFMA_BF16: 48}, 256),
    "tiles::queries_kernel<*, 128>": Budget({MFMA_BF16: 96}, 256),
    "tiles::keys_kernel<*, 64>": Budget({MFMA_BF16: 64}, 256),
    "tiles::keys_kernel<*, 128>": Budget({MFMA_BF16: 128}, 256),
}
# By listing: patterns of kernels' names (listing.py). The probe's scaled kernels gather operands in memory: nobody
# times them.
EXPECTED = {
    "probe-gfx942": PROBE,
    "probe-gfx950": {
        **PROBE,
        "mfma_kernel<mfma_f16_k32>": Budget({"v_mfma_f32_16x16x32_f16": 1}, 32),
        "mfma_kernel<mfma_bf16_k32>": Budget({"v_mfma_f32_16x16x32_bf16": 1}, 32),
        **{f"mfma_kernel<mfma_scaled_k128<?, {f}>>": Budget({SCALED: 1}, 32, scratch=128)
           for f in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")},
    },
    "gemm-gfx942": {
        **REFERENCE,
        **DENSE,
        **blocks_of_fp8((5, 5)),
    },
    "gemm-gfx950": {
        **REFERENCE,
        **DENSE,
        **GFX950_TILES,
        **blocks_of_fp8((17, 12)),
    },
    "definition-gfx942": DEFINITION,
    "definition-gfx950": DEFINITION,
    "unrotate-gfx942": UNROTATE,
    "unrotate-gfx950": UNROTATE,
    "layers-gfx942": LAYERS,
    "layers-gfx950": LAYERS,
    "quantized_rows-gfx942": QUANTIZED_ROWS,
    "quantized_rows-gfx950": QUANTIZED_ROWS,
    "fp8_rows-gfx942": FP8_ROWS,
    "fp8_rows-gfx950": FP8_ROWS,
    "statistics-gfx942": STATISTICS,
    "statistics-gfx950": STATISTICS,
    "attention-gfx942": ATTENTION,
    "attention-gfx950": ATTENTION,
    "quantize-gfx942": {
        **QUANTIZERS,
        "quantize_kernel<*, fast>": Budget(QUANTIZE, 144, scalar_spills=420),
        "quantize_kernel<*, fast_h16>": Budget(QUANTIZE, 144, scalar_spills=420),
    },
    "quantize-gfx950": {
        **QUANTIZERS,
        "quantize_kernel<*, fast>": Budget({**QUANTIZE, **CONVERT}, 144, scalar_spills=420),
        "quantize_kernel<*, fast_h16>": Budget({**QUANTIZE, **CONVERT}, 144, scalar_spills=420),
    },
}


def check_kernel(kernel, budget):
    """What is wrong with one kernel, a line each."""
    code = kernel.instructions()
    for instruction, least in budget.instructions.items():
        if code.count(instruction) < least:
            yield f"{code.count(instruction)} {instruction}, at least {least} expected"
    accesses = sum(instruction.startswith("scratch_") for instruction in code)
    if kernel.scratch > budget.scratch or (accesses and budget.scratch == 0) or kernel.vector_spills:
        yield f"{accesses} scratch accesses, {kernel.scratch} bytes, {kernel.vector_spills} spills"
    if kernel.scalar_spills > budget.scalar_spills:
        yield f"{kernel.scalar_spills} spills of scalar registers, at most {budget.scalar_spills} expected"
    if kernel.registers > budget.registers or kernel.lds > budget.lds:
        yield (f"{kernel.registers} registers and {kernel.lds} bytes of LDS, at most {budget.registers} and {budget.lds} "
               "expected")
    in_loop = [text.split()[0] for text in listing.main_loop(kernel.code)]
    for instruction, count in budget.in_loop.items():
        if in_loop.count(instruction) != count:
            yield f"{in_loop.count(instruction)} {instruction} in the loop, {count} expected"
    if budget.loop:
        found = Loop.of(kernel.code)
        if not budget.loop.allows(found):
            yield f"{found} found, {budget.loop} allowed"
    fused = [text for _, text in kernel.code if text.startswith(("v_fma", "v_pk_fma"))]
    if budget.added_alone and any(budget.added_alone in text for text in fused):
        yield f"a product fused with the addition of {budget.added_alone}"
    for line, operations, copies in listing.outstanding_at_barriers(kernel.code)[0]:
        yield (f"at the barrier in line {line} {operations} LDS operations" + (" and copies to LDS" if copies else "") +
               " may be outstanding")


def check(path):
    text, wrong, seen = path.read_text(encoding="utf-8"), [], set()
    if not path.stem.endswith(listing.architecture(text)):
        wrong.append(f"{path}: is for {listing.architecture(text)}")
    for kernel in listing.kernels(text):
        patterns = [p for p in EXPECTED[path.stem] if fnmatch.fnmatchcase(kernel.name, p)]
        seen.update(patterns)
        if len(patterns) != 1:
            wrong.append(f"{path}: {kernel.name}: {len(patterns)} budgets are for it")
        for pattern in patterns:
            wrong += [f"{path}: {kernel.name}: {what}" for what in check_kernel(kernel, EXPECTED[path.stem][pattern])]
    wrong += [f"{path}: no kernel {pattern}" for pattern in EXPECTED[path.stem] if pattern not in seen]
    return wrong


PAGE = """<!-- Written by tests/gpu/amd_listings.py --write; the test `gpu/registers of AMD's kernels` compares. -->
# Registers of AMD's kernels

What {compiler} makes of the kernels (`-O3`, `gpu/meson.build` has the flags). Vector registers: VGPRs and AGPRs together, of 512.
Scalar spills: scalar registers that are kept in lanes of vector registers, not in memory. LDS is the static part; the quantizers ask
for 20 KiB more at launch, with FP8 codes for 24. Waves: how many a SIMD holds by these alone.

```sh
ninja -C build-dev {targets}
python3 tests/gpu/amd_listings.py --write docs/results/amd-registers.md {listings}
```

| kernel | device | vector registers | scalar | scalar spills | scratch, bytes | LDS, bytes | waves |
|---|---|---|---|---|---|---|---|
"""


def table(paths):
    """The page of what all kernels use, and the compiler."""
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    compilers = {listing.compiler(text) for text in texts.values()}
    rows = set()  # a kernel of two listings has one line
    for text in texts.values():
        device = listing.architecture(text)
        for k in listing.kernels(text):
            rows.add(f"| `{k.name}` | {device} | {k.registers} | {k.scalar_registers} | {k.scalar_spills} | {k.scratch} | "
                     f"{k.lds} | {k.waves} |\n")
    names = sorted(path.name for path in paths)
    head = PAGE.format(compiler=" and ".join(sorted(compilers)), targets=" ".join(f"gpu/{name}" for name in names),
                       listings=" ".join(f"build-dev/gpu/{name}" for name in names))
    return head + "".join(sorted(rows)), compilers


def compare_table(page, paths):
    wanted, compilers = table(paths)
    found = page.read_text(encoding="utf-8") if page.is_file() else ""
    if not all(compiler in found for compiler in compilers) and found:
        print(f"skipped: {page} is of another compiler than {' and '.join(sorted(compilers))}")
        return 77
    if found == wanted:
        print(f"{page} is what the listings say")
        return 0
    for sign, ours, theirs in (("-", found, wanted), ("+", wanted, found)):
        print("".join(f"{sign}{line}\n" for line in ours.splitlines() if line not in theirs.splitlines()), end="")
    print(f"{page} is not what the listings say: write it again (it says how)")
    return 1


def main(arguments):
    if arguments[:1] in (["--table"], ["--write"]) and len(arguments) > 2:
        page, paths = Path(arguments[1]), [Path(name) for name in arguments[2:]]
        if arguments[0] == "--table":
            return compare_table(page, paths)
        page.write_text(table(paths)[0], encoding="utf-8")
        return 0
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    faults = [fault for name in arguments for fault in check(Path(name))]
    print("\n".join(faults) or "every kernel is as expected")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
