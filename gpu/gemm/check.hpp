// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Argument checks of the GEMM launchers, with their error messages. Each returns the first error.
#pragma once

#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu::detail {

/// True if results may be stored in this format.
constexpr bool is_result_format(const format& f) { return f == formats::fp32 || f == formats::bf16; }

/// Checks format and stride of `n` columns of results.
inline status check_result(const gemm_result& r, index_t n) {
  if (!is_result_format(r.output)) return {error_code::bad_option, "output", "must be BF16 or FP32"};
  if (row_stride(r, n) < n) return {error_code::bad_extent, "out_stride", "must be at least n"};
  return {};
}

/// Checks formats, stride and memory of [m, n] results.
inline status check_sum_output(const sum_output& r, index_t m, index_t n) {
  if (!is_result_format(r.stored)) return {error_code::bad_option, "r.stored", "must be FP32 or BF16"};
  if (!is_result_format(r.output)) return {error_code::bad_option, "r.output", "must be FP32 or BF16"};
  if (r.out_stride != 0 && r.out_stride < n) return {error_code::bad_extent, "r.out_stride", "must be 0, or n or more"};
  if (m == 0 || n == 0) return {};
  return check_pointer(r.out, r.stored == formats::bf16 ? 2 : 4, "r.out");
}

inline status check_operand(const gemm_operand& x, bool first, bool plain_codes, bool plain_scales) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  if (x.block != 32 || x.block_rows != 1 || x.scale != formats::e8m0) {
    return {error_code::bad_option, named("a.block", "b.block"), "must be 32 elements of a row, with E8M0 scales"};
  }
  if (x.transposed || x.factor != nullptr || x.batch_stride != 0 || x.scale_batch_stride != 0) {
    return {error_code::bad_option, named("a", "b"), "must be one matrix, not transposed, without a factor"};
  }
  if (x.rows < 1 || x.rows > max_gemm_extent)
    return {error_code::bad_extent, named("a.rows", "b.rows"), "must be 1 to 2^20"};
  if (x.k < 32 || x.k > max_gemm_extent || x.k % 32 != 0) {
    return {error_code::bad_extent, named("a.k", "b.k"), "must be a multiple of 32 up to 2^20"};
  }
  if (plain_codes && x.code_order != placement::row_major) {
    return {error_code::bad_option, named("a.code_order", "b.code_order"), "this kernel takes row-major codes"};
  }
  if (plain_scales && x.scale_order != placement::row_major) {
    return {error_code::bad_option, named("a.scale_order", "b.scale_order"), "this kernel takes row-major scales"};
  }
  if (x.code_order != placement::row_major && !layout{x.code_order, x.rows, x.row_bytes()}.is_defined()) {
    return {error_code::bad_extent, named("a.rows", "b.rows"), "this order of codes needs whole tiles"};
  }
  if (x.code_order == placement::row_major && (x.code_stride < x.row_bytes() || x.code_stride % 16 != 0)) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  if (x.scale_order == placement::row_major && x.scale_stride < x.k / 32) {
    return {error_code::bad_extent, named("a.scale_stride", "b.scale_stride"), "must be at least k / 32"};
  }
  const status codes = check_pointer(x.codes, 16, named("a.codes", "b.codes"));
  if (!codes.ok()) return codes;
  return check_pointer(x.scales, x.scale_order == placement::row_major ? 1 : 4, named("a.scales", "b.scales"));
}

/// Checks the operands of gfx950's scaled matrix instruction, in AITER's layouts.
inline status check_aiter_operands(const gemm_problem& p) {
  if (p.a.k % 256 != 0) return {error_code::bad_extent, "a.k", "must be a multiple of 256 on gfx950"};
  if (p.b.rows % 16 != 0) return {error_code::bad_extent, "b.rows", "must be a multiple of 16 on gfx950"};
  for (const gemm_operand* x : {&p.a, &p.b}) {
    const auto named = [&](const char* a, const char* b) { return x == &p.a ? a : b; };
    if (x->scale_order != placement::aiter_scale) {
      return {error_code::bad_option, named("a.scale_order", "b.scale_order"), "must be aiter_scale on gfx950"};
    }
    if (x->code_order != placement::row_major && x->code_order != placement::aiter_data_16x16) {
      return {error_code::bad_option, named("a.code_order", "b.code_order"),
              "must be row_major or aiter_data_16x16 on gfx950"};
    }
    // Lanes use 32-bit offsets over up to 15 rows.
    if (x->code_order == placement::row_major && x->code_stride >= index_t{1} << 27) {
      return {error_code::bad_extent, named("a.code_stride", "b.code_stride"), "must be below 2^27 on gfx950"};
    }
  }
  // B's column tiles begin at 32-bit offsets in units of 16 bytes.
  const index_t stride = p.b.code_order == placement::row_major ? p.b.code_stride : p.b.row_bytes();
  if (p.b.rows * stride > index_t{1} << 36) {
    return {error_code::bad_extent, "b.rows", "codes must be 64 GiB at most on gfx950"};
  }
  return {};
}

/// Checks gfx942's operands. Its MXFP4 kernel loads four scales at a time. MXFP8 is expanded first and has no such
/// limits.
inline status check_gfx942(const gemm_problem& p) {
  if (is_fp8(p)) return {};
  if (p.a.k % 128 != 0) return {error_code::bad_extent, "a.k", "must be a multiple of 128 on gfx942"};
  for (const gemm_operand* x : {&p.a, &p.b}) {
    const bool first = x == &p.a;
    if (x->scale_stride % 4 != 0) {
      return {error_code::bad_extent, first ? "a.scale_stride" : "b.scale_stride", "must be a multiple of 4 on gfx942"};
    }
    const status s = check_pointer(x->scales, 4, first ? "a.scales" : "b.scales");
    if (!s.ok()) return s;
  }
  return {};
}

/// check_gemm of gpu/api/gemm.hpp.
inline status check_problem(const gemm_problem& p, const gemm_choice& c, const device_info& device) {
  const bool reference = c.contract == gemm_contract::reference;
  const arch_traits& traits = traits_of(device.arch);
  if (!reference && traits.accurate == nullptr) {
    return {error_code::unsupported_device, "choice.contract", "this device has the reference kernel only"};
  }
  const auto is_known = [](const format& e, bool fp4) {
    return fp4 ? e == formats::e2m1 : e == formats::e4m3 || e == formats::e5m2;
  };
  if (!is_known(p.a.element, !is_fp8(p))) {
    return {error_code::bad_option, "a.element", "must be E2M1, E4M3 or E5M2"};
  }
  if (!is_known(p.b.element, !is_fp8(p))) {
    return {error_code::bad_option, "b.element", "must be E2M1 where a's is, else E4M3 or E5M2"};
  }
  const bool plain = !reference && !traits.has_scaled_mma;
  for (const gemm_operand* x : {&p.a, &p.b}) {
    const status s = check_operand(*x, x == &p.a, plain, plain);
    if (!s.ok()) return s;
  }
  if (p.a.k != p.b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  if (!reference && traits.has_scaled_mma) {
    if (status s = check_aiter_operands(p); !s.ok()) return s;
  }
  if (!reference && device.arch == arch::gfx942) {
    if (status s = check_gfx942(p); !s.ok()) return s;
  }
  if (status s = check_result(p, p.b.rows); !s.ok()) return s;
  const status out = check_pointer(p.out, p.output == formats::bf16 ? 2 : 4, "out");
  if (!out.ok()) return out;
  if (p.bias != nullptr) {
    if (status s = check_pointer(p.bias, 4, "bias"); !s.ok()) return s;
  }
  const bool one_part = reference || !traits.splits_k;
  if (c.split_k < 1 || c.split_k > max_parts || (one_part && c.split_k != 1)) {
    return {error_code::bad_option, "choice.split_k", one_part ? "must be 1 for this kernel" : "must be 1 to 64"};
  }
  return check_schedule(traits, c.schedule, is_fp8(p), reference);
}

}  // namespace rotoscale::gpu::detail
