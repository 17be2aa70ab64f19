#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Breaks the numerics headers on purpose, one place at a time, and demands that a test fails each time.

usage: mutants.py ROOT [TEXT]   TEXT: only mutants whose name contains it
A mutant is killed by a failing test program or by a static_assert; any other compile error, or a mutant whose text is
not found exactly once, is an error of this list.
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# (name, header, text, replacement, test)
MUTANTS = [
    ("ties away instead of even", "round.hpp", "fraction > half || (fraction == half && (kept & 1) != 0)",
     "fraction >= half", "round"),
    ("ties to odd", "round.hpp", "(fraction == half && (kept & 1) != 0)", "(fraction == half && (kept & 1) == 0)",
     "round"),
    ("nearest_away loses its ties", "round.hpp", "return fraction >= half;", "return fraction > half;", "round"),
    ("up rounds negative numbers too", "round.hpp", "return fraction != 0 && !negative;", "return fraction != 0;",
     "round"),
    ("stochastic compares instead of carrying", "round.hpp", "((fraction >> (64 - random.count)) + word) >> random.count != 0",
     "(fraction >> (64 - random.count)) > word", "round"),
    ("no sticky bit below the fraction", "bits.hpp",
     "return (x >> n) | ((x & ((std::uint64_t{1} << n) - 1)) != 0);", "return x >> n;", "round"),
    ("overflow keeps the largest number", "round.hpp", "away ? f.infinity_code() : f.max_code()",
     "f.max_code()", "round"),
    ("negative zero loses its sign", "round.hpp", "return f.signed_code(v.negative, 0);\n\n", "return 0;\n\n",
     "round"),
    ("flushing formats have one more exponent", "format.hpp", "(has_subnormals || has_zero ? 1 : 0) - bias",
     "(has_subnormals ? 1 : 0) - bias", "round"),
    ("FP64 goes through FP32", "small_float.hpp", "convert(formats::fp64, bit_cast<std::uint64_t>(x), Format",
     "convert(formats::fp32, fp32_bits(static_cast<float>(x)), Format", "small_float"),
    ("even threshold 1.5", "scale.hpp", "1u << (22 - element.mantissa_bits)", "1u << (23 - element.mantissa_bits)",
     "scale"),
    ("even threshold an ulp late", "scale.hpp", "u += 1u << (22 - element.mantissa_bits)",
     "u += (1u << (22 - element.mantissa_bits)) - 1", "scale"),
    ("rceil rounds up at equality", "scale.hpp", "byte += mantissa >\n", "byte += mantissa >=\n", "scale"),
    ("zero byte is forgotten", "scale.hpp", "if (amax == 0) return policy.zero_byte;\n  if (fp32_is_nan(amax)) return nan_scale_byte;",
     "if (amax == 0) return 0;\n  if (fp32_is_nan(amax)) return nan_scale_byte;",
     "scale"),
    ("Inf is the largest scale", "scale.hpp", "u = fp32_infinity_bits;\n", "return nan_scale_byte - 1;\n", "scale"),
    ("nibbles swapped", "pack.hpp", "(even & 0xF) | (odd << 4)", "(odd & 0xF) | (even << 4)", "pack"),
    ("nine Philox rounds", "philox.hpp", "int rounds = 10", "int rounds = 9", "philox"),
    ("stream halves swapped", "philox.hpp",
     "static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)",
     "static_cast<std::uint32_t>(stream >> 32), static_cast<std::uint32_t>(stream)", "philox"),
    ("Hadamard difference negated", "hadamard.hpp", "x[(i + step) * stride] = a - b;",
     "x[(i + step) * stride] = b - a;", "hadamard"),
    ("butterflies in the other order", "hadamard.hpp", "for (int step = 1; step < n; step *= 2) {",
     "for (int step = n / 2; step >= 1; step /= 2) {", "hadamard"),
    ("another Hadamard factor", "hadamard.hpp", "factor *= 0.5f", "factor *= 0.25f",
     "hadamard"),
    ("NaN of a rotation keeps its payload", "hadamard.hpp", "x[i] = canonical_nan(x[i]);", "x[i] = x[i] + 0.0f;",
     "hadamard"),
    ("signs shifted", "hadamard.hpp", "signs[i / 32] >> (i % 32) & 1u", "signs[i / 32] >> ((i + 1) % 32) & 1u", "hadamard"),
    ("amax lets NaN in", "block.hpp",
     "if (fp32_is_nan(u) && policy.nan == block_policy::nan_rule::ignore) continue;", "", "block"),
    ("amax before the source is rounded", "block.hpp", "x[i] = round_source(o.source, source_value(in(r, c + i)));",
     "x[i] = source_value(in(r, c + i));", "block"),
    ("random word of the transposed element", "block.hpp", "static_cast<std::uint64_t>(r * out.k + c0 + i)",
     "static_cast<std::uint64_t>((c0 + i) * out.rows + r)", "block"),
    ("fast tie rule", "quantize.hpp", "(magnitude + 0x1FFFFFu + ((magnitude >> 22) & 1u))", "(magnitude + 0x200000u)",
     "quantize"),
    ("fast subnormal constant", "quantize.hpp", "reinterpret_cast<lanes_f32>(magnitude) + 0x1p22f;",
     "reinterpret_cast<lanes_f32>(magnitude) + 0x1.000002p22f;", "quantize"),
    ("fast BF16 source truncates", "quantize.hpp", "(u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u", "u & 0xFFFF0000u",
     "quantize"),
    ("fast amax lets NaN in", "quantize.hpp",
     "if (o.policy.nan == block_policy::nan_rule::ignore) u = u > fp32_infinity_bits ? lanes_u32{} : u;", "",
     "quantize"),
    ("fast codes under a NaN scale", "quantize.hpp", "reinterpret_cast<lanes_u32>(inverse != 0.0f) & 0xFu",
     "lanes_u32{} + 0xFu", "quantize"),
    ("fast butterfly", "quantize.hpp", "y[i + step] = a - y[i + step];", "y[i + step] = y[i + step] - a;", "quantize"),
    ("blockwise as a chain", "gemm.hpp", "if (m.sum == mma_sum::exact && m.group == 1) {",
     "if (m.sum == mma_sum::exact) {", "gemm"),
    ("block sums rounded toward zero", "mma_ref.hpp", "nearest ? rounding::nearest_even : rounding::toward_zero",
     "rounding::toward_zero", "gemm"),
    ("an exact sum loses its sticky bit", "detail/exact_sum.hpp", "u.significand |= rest ? 1 : 0;", "", "mma_ref"),
    ("a carry stops after two limbs", "detail/exact_sum.hpp", "(i < first + 2 || carry != 0)", "i < first + 2", "mma_ref"),
    ("terms are floored", "mma_ref.hpp",
     "return t.negative ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);",
     "return t.negative ? -static_cast<std::int64_t>(magnitude) - (up < 0) : static_cast<std::int64_t>(magnitude);",
     "mma_models"),
    ("subnormal operands are normalised", "mma_ref.hpp", "u.exponent < least_exponent ? least_exponent : u.exponent",
     "u.exponent", "mma_ref"),
    ("a late c is cut toward zero", "mma_ref.hpp", "--floored;", ";", "mma_ref"),
    ("products are aligned without c", "mma_ref.hpp", "  raise(c);\n", "", "mma_ref"),
    ("the other pairs of k first", "mma_ref.hpp", "i / m.interleave % 2 != half", "i / m.interleave % 2 == half",
     "mma_ref"),
    ("product and sum rounded apart", "gemm.hpp",
     "acc = __builtin_fmaf(operand_value(a, i, k), operand_value(b, j, k), acc);",
     "{ volatile float p = operand_value(a, i, k) * operand_value(b, j, k); acc = acc + p; }", "gemm"),
    ("C added after the factor's rounding", "gemm.hpp", "__builtin_fmaf(acc, factor, o.beta * old)",
     "static_cast<float>(static_cast<double>(acc * factor) + static_cast<double>(old))", "gemm"),
    ("groups of 64 in the kernel", "detail/gemm_kernel.hpp", "for (index_t first = 0; first < k; first += group) {",
     "group *= 2;\n  for (index_t first = 0; first < k; first += group) {", "gemm_fast"),
    ("elements beyond FP32", "gemm_fast.hpp",
     "if (ra.largest - 127 + 3 > 128 || rb.largest - 127 + 3 > 128) return false;",
     "", "gemm_fast"),
    ("block scales of wide elements are dropped", "gemm_fast.hpp", "a.element == formats::bf16 && a.block == 0",
     "a.element == formats::bf16", "gemm_fast"),
    ("large groups overflow", "gemm_fast.hpp", "6 + highest_bit(static_cast<std::uint64_t>(group))", "11", "gemm_fast"),
    ("small scale sums", "gemm_fast.hpp", "ra.least + rb.least - 254 - 2 >= -149", "true", "gemm_fast"),
    ("last rows of a matrix", "detail/gemm_kernel.hpp", "multiply_tail<gemm_rows - 1>", "multiply_tail<gemm_rows - 2>",
     "gemm_fast"),
    ("AITER data rows swapped with columns", "layout.hpp", "return r * 16 + c;", "return c * 16 + r;", "layout"),
    ("AITER scale: no four K groups", "layout.hpp", "c % 4 * 64", "c % 4 * 32", "layout"),
    ("AITER scale: another lane", "layout.hpp", "r % 16 * 4", "r % 16 * 2", "layout"),
    ("AITER scale: halves of rows and of K swapped", "layout.hpp", "c / 4 * 2 + r / 16;", "c / 4 + r / 16 * 2;", "layout"),
    ("AITER scale: inverse row half", "layout.hpp", "offset % 2 * 16", "offset / 2 % 2 * 16", "layout"),
    ("AITER scale: inverse row in a half", "layout.hpp", "offset / 4 % 16,", "offset / 8 % 16,", "layout"),
    ("AITER scale: inverse K half", "layout.hpp", "offset / 2 % 2 * 4", "offset % 2 * 4", "layout"),
    ("AITER scale: inverse K group", "layout.hpp", "+ offset / 64}", "+ offset / 32}", "layout"),
    ("NVIDIA scale: rows as in memory", "layout.hpp", "r % 32 * 16 + r / 32 * 4", "r / 4 * 16 + r % 4 * 4", "layout"),
    ("NVIDIA scale: quarters of the rows", "layout.hpp", "r / 32 * 4 + c", "r / 32 * 8 + c", "layout"),
    ("NVIDIA scale: inverse quarter", "layout.hpp", "offset / 4 % 4 * 32", "offset / 4 % 4 * 16", "layout"),
    ("NVIDIA scale: inverse row", "layout.hpp", "* 32 + offset / 16,", "* 32 + offset / 32,", "layout"),
    ("tiles of unpadded columns", "layout.hpp",
     "padded_columns() / t.columns;  // not of `columns`", "columns / t.columns;  // not of `columns`", "layout"),
    ("tiles down, then across", "layout.hpp", "index / tiles_across * t.rows + in_tile.row, index % tiles_across * t.columns",
     "index % tiles_across * t.rows + in_tile.row, index / tiles_across * t.columns", "layout"),
    ("AITER scales padded to tiles only", "layout.hpp", "{256, 8}", "{32, 8}", "layout"),
    ("fewer rows than a tile are none", "layout.hpp", "(n + multiple - 1) / multiple", "n / multiple", "layout"),
    ("data of part of a K tile", "layout.hpp", "{16, 32}", "{16, 16}", "layout"),
    ("padding left as it was", "layout.hpp", "target[i] = l.is_padding(p) ? padding : source",
     "if (!l.is_padding(p)) target[i] = source", "layout"),
    ("the last column is padding", "layout.hpp", "p.column >= columns;", "p.column >= columns - 1;", "layout"),
    ("padding scale 0", "layout.hpp", "target, unit_scale(f.scale));", "target, 0);", "layout"),
    ("shared scales of the first rows only", "layout.hpp", "padding, f.rows);", "padding);", "layout"),
    ("shared scales gathered from neighbours", "layout.hpp", "l.offset(r * repeat, c)", "l.offset(r, c)", "layout"),
    ("a name twice", "names.hpp", '{rounding::down, "down"}', '{rounding::down, "up"}', "names"),
    ("an index skipped", "parallel.hpp", "for (index_t i = next_.fetch_add(1); i < count_;",
     "for (index_t i = next_.fetch_add(1); i + 1 < count_;", "parallel"),
]


def try_mutant(mutant, root, folder):
    """None if a test notices, else what is wrong."""
    name, header, text, replacement, test = mutant
    place = folder / name.replace(" ", "_")
    shutil.copytree(root / "include", place)
    path = place / "rotoscale" / header
    source = path.read_text(encoding="utf-8")
    if source.count(text) != 1:
        return f"'{name}': its text occurs {source.count(text)} times in {header}"
    path.write_text(source.replace(text, replacement), encoding="utf-8")
    program = place / "program"
    compiling = subprocess.run(
        ["g++", "-std=c++20", "-O1", "-march=native", "-w", f"-I{place}", f"-I{root}/tests", "-pthread",
         str(root / f"tests/rotoscale/{test}_test.cpp"), str(folder / "main.o"), "-o", str(program)],
        capture_output=True, text=True)
    if compiling.returncode != 0:
        if "static assertion failed" in compiling.stderr:
            return None
        return f"'{name}' does not compile:\n{compiling.stderr[:2000]}"
    try:
        run = subprocess.run([str(program), "--test-suite-exclude=slow", "--abort-after=1"], capture_output=True,
                             env=os.environ | {"ROTOSCALE_VECTORS": str(root / "../shared/data/matrix-core-vectors")},
                             timeout=300)
    except subprocess.TimeoutExpired:
        return None
    finally:
        shutil.rmtree(place)
    return f"'{name}': {test}_test does not notice" if run.returncode == 0 else None


def main(root, only):
    mutants = [m for m in MUTANTS if only in m[0]]
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        subprocess.run(["g++", "-std=c++20", "-O1", "-c", str(root / "tests/main.cpp"), "-o", str(folder / "main.o")],
                       check=True)
        found = list(pool.map(lambda m: try_mutant(m, root, folder), mutants))
    survivors = [what for what in found if what is not None]
    for what in survivors:
        print(what)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed")
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) == 3 else ""))
