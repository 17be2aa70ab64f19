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
    ("fast tie rule", "detail/fast_round.hpp", "((1u << (c::drop - 1)) - 1u) + ((least >> c::drop) & 1u)",
     "(1u << (c::drop - 1))", "detail/fast_round"),
    ("fast subnormal constant", "detail/fast_round.hpp", "pow2_fp32(c::step_exponent + 23)",
     "pow2_fp32(c::step_exponent + 24)", "detail/fast_round"),
    ("fast BF16 ties away", "detail/fast_round.hpp", "(u + 0x7FFFu + ((u >> 16) & 1u))", "(u + 0x8000u)",
     "detail/fast_round"),
    ("fast BF16 NaN loses its sign", "detail/fast_round.hpp", "(u & fp32_sign_mask) | fp32_nan_bits",
     "U{} + fp32_nan_bits", "detail/fast_round"),
    ("fast sign a bit off", "detail/fast_round.hpp", "bits >> (31 - F.magnitude_bits())",
     "bits >> (30 - F.magnitude_bits())", "detail/fast_round"),
    ("fast INT8 as ones' complement", "detail/fast_round.hpp", "(code ^ (U{} - negative)) + negative",
     "(code ^ (U{} - negative))", "detail/fast_round"),
    ("fast stochastic carries at equality", "detail/fast_round.hpp", "fraction + random < fraction",
     "fraction + random <= fraction", "detail/fast_round"),
    ("fast stochastic takes the remainder for less", "detail/fast_round.hpp", "all_bits = 0x1p32f", "all_bits = 0x1p31f",
     "detail/fast_round"),
    ("lanes: amax lets NaN in", "detail/quantize_tile.hpp",
     "if (ignore_nan) u = u > fp32_infinity_bits ? lanes_u32{} : u;", "", "quantize"),
    ("lanes: a NaN that rounding wraps is a number", "detail/quantize_tile.hpp", ": wrapped >> 31;", ": lanes_u32{};",
     "quantize"),
    ("lanes: butterfly", "detail/quantize_tile.hpp", "x[i + step] = __builtin_bit_cast(lanes_u32, a - b);",
     "x[i + step] = __builtin_bit_cast(lanes_u32, b - a);", "quantize"),
    ("lanes: signs of the second half", "detail/quantize_tile.hpp", "signs[0] >> (16 * half)", "signs[0]", "quantize"),
    ("lanes: scale threshold", "detail/quantize_tile.hpp", "p.bump = (1u << 23) - last;",
     "p.bump = last == 1u << 23 ? 0 : (1u << 23) - last - 1;", "quantize"),
    ("lanes: largest amax is ordinary", "detail/quantize_tile.hpp", "end = 252;", "end = 255;", "quantize"),
    ("lanes: least amax is ordinary", "detail/quantize_tile.hpp", "usual = 127 - 60 + 1 + p.fold", "usual = p.fold",
     "quantize"),
    ("lanes: scale inverse of NVFP4", "detail/quantize_tile.hpp", "* (1.0f / p.o.encode_factor)",
     "/ p.o.encode_factor", "quantize"),
    ("lanes: FP16 subnormals", "detail/quantize_tile.hpp", "magnitude >= 0x7C00u << 13 ?", "magnitude < 0x400u << 13 ?",
     "quantize"),
    ("lanes: nibble order", "detail/encode_tile.hpp", "x[8 * w + 7 - i]", "x[8 * w + (7 - i ^ 1)]", "quantize"),
    ("lanes: sign of the neighbour", "detail/encode_tile.hpp", "x[8 * w + i] & fp32_sign_mask",
     "x[8 * w + (i ^ 1)] & fp32_sign_mask", "quantize"),
    ("lanes: piece of the code's function", "detail/encode_tile.hpp", "(magic + 2.0f)", "(magic + 1.0f)", "quantize"),
    ("lanes: E2M1 does not saturate", "detail/encode_tile.hpp",
     "take_least(least, lanes_f32{} + (magic + 7.0f));", "", "quantize"),
    ("lanes: six-bit codes across words", "detail/encode_tile.hpp", "code >> (32 - shift)", "code >> (31 - shift)",
     "quantize"),
    ("lanes: codes under a NaN scale", "detail/encode_tile.hpp", "packed[w] & s.keep", "packed[w]", "quantize"),
    ("lanes: random words of another row", "detail/encode_tile.hpp", "((v + l) * k + e)", "(v * k + l * 32 + e)",
     "quantize"),
    ("lanes: Philox key", "detail/encode_tile.hpp", "key1 += 0xBB67AE85u;", "key1 += 0xBB67AE87u;", "quantize"),
    ("lanes: scales of later blocks", "detail/quantize_panel.hpp", "s.codes << (block % 4 * 8)",
     "s.codes << (block % 2 * 8)", "quantize"),
    ("lanes: last rows of a matrix", "detail/quantize_panel.hpp",
     "out.rows - v < lane_count ? out.rows - v : lane_count", "lane_count", "quantize"),
    ("lanes: lines are streamed off a line", "detail/quantize_panel.hpp", "return {true, blocks};",
     "return {true, most};", "quantize"),
    ("both copies get the options of rows", "quantize.hpp", "plan_output<value>(f, column_options,",
     "plan_output<value>(f, row_options,", "quantize"),
    ("blockwise as a chain", "gemm.hpp", "if (model.group == 1) {", "if (model.group >= 1) {", "gemm"),
    ("two roundings a block", "gemm.hpp", "acc = static_cast<float>(static_cast<double>(acc) + scaled);",
     "acc = acc + static_cast<float>(sum * 0.9999999) * static_cast<float>(scaled / (sum == 0 ? 1 : sum));", "gemm"),
    ("product and sum rounded apart", "gemm.hpp",
     "acc = __builtin_fmaf(operand_value(a, i, k), operand_value(b, j, k), acc);",
     "{ volatile float p = operand_value(a, i, k) * operand_value(b, j, k); acc = acc + p; }", "gemm"),
    ("C added after the factor's rounding", "gemm.hpp", "__builtin_fmaf(acc, factor, old)",
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
