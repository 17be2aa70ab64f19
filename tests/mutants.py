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
    ("runs begin at the row's start", "block.hpp", "load_run(o, in, r, c0, run, x);\n      for (int b = 0;",
     "load_run(o, in, r, 0, run, x);\n      for (int b = 0;", "block"),
    ("elements of the row's first run", "block.hpp", "if (f.rows > 1) load_run(o, in, r, c0, run, x);",
     "if (f.rows > 1) load_run(o, in, r, 0, run, x);", "block"),
    ("2D blocks see their first row only", "block.hpp", "if (f.rows > 1) load_run(o, in, r, c0, run, x);",
     "if (f.rows > 1) load_run(o, in, r0, c0, run, x);", "block"),
    ("2D blocks begin at their tile's number", "block.hpp", "const index_t r0 = tile * f.rows;",
     "const index_t r0 = tile;", "block"),
    ("2D scales by the row", "block.hpp", "in.scales[r / f.rows * in.scale_stride + c / f.length]",
     "in.scales[r * in.scale_stride + c / f.length]", "block"),
    ("amax of the last row only", "block.hpp", "amax[b] = u > amax[b] ? u : amax[b];", "amax[b] = u;", "block"),
    ("every scale a power of two", "block.hpp", "return f.has_e8m0_scale() ? shared_scale(amax, f.element, o.rule, o.policy)",
     "return true ? shared_scale(amax, f.element, o.rule, o.policy)", "block"),
    ("scale without the second-level factor", "block.hpp", "shared_scale(amax, f.element, f.scale, o.encode_factor, o.policy)",
     "shared_scale(amax, f.element, f.scale, 1.0f, o.policy)", "block"),
    ("decode factor forgotten", "block.hpp", "decode_element(f, in, r, c) * decode_factor", "decode_element(f, in, r, c)",
     "block"),
    ("codes under a NaN scale", "block.hpp", "if (f.scale.is_nan(scale)) return 0;", "", "block"),
    ("NaN scale decodes to a number", "block.hpp",
     "if (f.scale.is_nan(scale)) return fp32_from_bits(fp32_nan_bits);", "", "block"),
    ("a rotation ends with its block", "block.hpp", "return r.points > f.length ? r.points : f.length;",
     "return f.length;", "block"),
    ("blocks of a rotated run share the first scale", "block.hpp", "const std::uint8_t scale = scales[i / f.length];",
     "const std::uint8_t scale = scales[0];", "block"),
    ("inverse of the scale before the second level", "block.hpp",
     "const float divisor = decode(scale, code) * (1.0f / encode_factor);",
     "const float divisor = decode(scale, code) / encode_factor;", "block"),
    ("factor by division", "block.hpp", "x * scale_inverse(f.scale, scale, o.encode_factor)",
     "x / (decode(f.scale, scale) * (1.0f / o.encode_factor))", "block"),
    ("inverse of a zero scale is Inf", "block.hpp", "return divisor > 0x1p-128f ? 1.0f / divisor : largest;",
     "return 1.0f / divisor;", "block"),
    ("NaN of a product keeps its sign", "block.hpp",
     "canonical_nan(x * scale_inverse(f.scale, scale, o.encode_factor))",
     "x * scale_inverse(f.scale, scale, o.encode_factor)", "block"),
    ("all random bits", "block.hpp", "random_bits random{0, o.random_count};", "random_bits random{0, 32};", "block"),
    ("FP64 goes to nearest FP32", "block.hpp", "formats::fp32, rounding::to_odd, overflow::to_inf)",
     "formats::fp32, rounding::nearest_even, overflow::to_inf)", "block"),
    ("unused bits left alone", "block.hpp", "out.codes[r * out.code_stride + last_byte] = 0;", ";", "block"),
    ("a NaN zero byte passes", "block.hpp",
     "return factor_ok && o.policy.zero_byte <= f.scale.max_code() &&", "return factor_ok &&", "block"),
    ("neighbours in memory overlap", "checked.hpp", "if (a.first >= b.last || b.first >= a.last) return;",
     "if (a.first > b.last || b.first > a.last) return;", "checked"),
    ("a source's last row is not looked at", "checked.hpp", "(size - a.cols) / stride < a.rows - 1",
     "(size - a.cols) / stride < a.rows - 2", "checked"),
    ("alignment by halves", "checked.hpp", "% alignof(T) != 0", "% (alignof(T) / 2) != 0", "checked"),
    ("larger buffers pass", "checked.hpp", "static_cast<index_t>(data.size()) != count * bytes",
     "static_cast<index_t>(data.size()) < count * bytes", "checked"),
    ("rotations are not looked at", "checked.hpp", "if (k % run_length(f, r) != 0) {", "if (false) {", "checked"),
    ("fast rounding constant", "detail/mxfp4_lanes.hpp", "constexpr float magic = 0x1.8p23f;",
     "constexpr float magic = 0x1.8p23f + 1.0f;", "quantize"),
    ("fast rounding misses a segment", "detail/mxfp4_lanes.hpp", "code = code < code3 ? code : code3;", "", "quantize"),
    ("fast codes do not saturate", "detail/mxfp4_lanes.hpp", "code = code < largest ? code : largest;", "", "quantize"),
    ("fast sign", "detail/mxfp4_lanes.hpp", "| ((y >> 28) & 8u)", "| ((y >> 29) & 4u)", "quantize"),
    ("fast BF16 source truncates", "detail/simd.hpp", "(u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u",
     "u & 0xFFFF0000u", "quantize"),
    ("fast even threshold", "detail/mxfp4_lanes.hpp", "amax + (1u << 21)", "amax + (1u << 21) - 1u", "quantize"),
    ("fast rceil threshold", "detail/mxfp4_lanes.hpp", "mantissa > 0x00400000u", "mantissa >= 0x00400000u", "quantize"),
    ("fast ceil of a power of two", "detail/mxfp4_lanes.hpp", "mantissa != 0u", "mantissa != 1u", "quantize"),
    ("fast zero byte", "detail/mxfp4_lanes.hpp", "bytes = amax == 0u ? lanes_u32{} + o.policy.zero_byte : byte;",
     "bytes = byte;", "quantize"),
    ("fast window", "detail/mxfp4_lanes.hpp", "amax - (27u << 23) > (200u << 23)", "amax - (27u << 23) > (0xFFu << 23)",
     "quantize"),
    ("fast butterfly", "detail/mxfp4_lanes.hpp", "y[i + Step] = a - y[i + Step];", "y[i + Step] = y[i + Step] - a;",
     "quantize"),
    ("butterfly stages in the other order", "detail/mxfp4_lanes.hpp",
     "butterfly_stage<1>(y);\n  butterfly_stage<2>(y);", "butterfly_stage<2>(y);\n  butterfly_stage<1>(y);", "quantize"),
    ("H16's factor is forgotten", "detail/mxfp4_lanes.hpp", "(254u - (rotated ? 2u : 0u))", "254u", "quantize"),
    ("blocks of a chunk in the order of lanes", "detail/mxfp4_rows.hpp", "return 4 * (lane % 4) + lane / 4;",
     "return lane;", "quantize"),
    ("BF16 pairs swapped", "detail/mxfp4_rows.hpp", "x[2 * i] = t[i] << 16;\n    x[2 * i + 1] = t[i] & 0xFFFF0000u;",
     "x[2 * i + 1] = t[i] << 16;\n    x[2 * i] = t[i] & 0xFFFF0000u;", "quantize"),
    ("special blocks of a column keep old codes", "detail/mxfp4_columns.hpp", "words[4 * b + w][l] = word[w];", "",
     "quantize"),
    ("the second piece of a row", "quantize.hpp", "i, c0 / 32, (c1 - c0) / 32", "i, 0, (c1 - c0) / 32", "quantize"),
    ("dequantized NaN scale", "dequantize.hpp", "if (code == nan_scale_byte) v =", "if (false) v =", "dequantize"),
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
    ("two formats swapped", "names.hpp", '{formats::e4m3, "e4m3"}', '{formats::e4m3fnuz, "e4m3"}', "names"),
    ("a preset takes its neighbour's rule", "names.hpp", '{presets::aiter_ceil, "aiter_ceil"}',
     '{presets::aiter_round_up, "aiter_ceil"}', "names"),
    ("lowest is minus the largest", "limits.hpp", "return f.twos_complement ? f.sign_mask() : f.signed_code",
     "return f.signed_code", "limits"),
    ("every format has a normal number", "limits.hpp", "if (is_fixed_point(f)) return 1;\n", "", "limits"),
    ("hidden digit in INT8", "limits.hpp", "f.mantissa_bits + (is_fixed_point(f) ? 0 : 1)", "f.mantissa_bits + 1",
     "limits"),
    ("decimal exponent of the largest power of two", "limits.hpp", "largest >= power ? guess + 1 : guess", "guess",
     "limits"),
    ("logarithm truncates below 1", "limits.hpp", "product / 100000 - (product % 100000 < 0 ? 1 : 0)",
     "product / 100000", "limits"),
    ("NaN of FNUZ formats has a sign", "limits.hpp", "if (F.specials == specials::fnuz && x.is_nan())",
     "if (false && x.is_nan())", "limits"),
    ("FP64 printed as FP32", "limits.hpp", "std::conditional_t<fits_fp32(F), float, double>", "float", "limits"),
    ("hash ignores the sign", "limits.hpp", "(x.bits());\n  }\n};", "(x.bits() & 0x7F);\n  }\n};", "limits"),
    ("zeros are equal", "small_float.hpp", "return bits_ == other.bits_;",
     "return bits_ == other.bits_ || float(*this) == float(other);", "limits"),
    ("FP64 is read through FP32", "small_float.hpp",
     "return bit_cast<double>(convert(Format, bits_, formats::fp64, rounding::nearest_even, overflow::to_inf));",
     "return static_cast<double>(decode(Format, bits_));", "limits"),
    ("DLPack codes swapped", "dlpack.hpp", "{formats::e2m3, 15}", "{formats::e2m3, 16}", "dlpack"),
    ("DLPack bits not looked at", "dlpack.hpp", " && entry.element.bits() == type.bits", "", "dlpack"),
    ("DLPack lanes forgotten", "dlpack.hpp", "static_cast<std::uint8_t>(f.bits()), lanes}",
     "static_cast<std::uint8_t>(f.bits()), 1}", "dlpack"),
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
