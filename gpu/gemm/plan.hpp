// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What launchers of GEMMs decide before they launch: whether all is in order, how K is cut, what the workspace holds.
#pragma once

#include "gpu/api/gemm.hpp"
#include "gpu/gemm/output.hpp"
#include "gpu/dialect/launch.hpp"

namespace rotoscale::gpu::detail {

inline constexpr int most_parts = 64;

inline dim3 blocks_of(std::int64_t count) { return {static_cast<unsigned>(count), 1, 1}; }

/// Adds the parts of K and finishes the outputs.
inline status finish_parts(const gemm_arguments& g, hipStream_t stream) {
  const std::int64_t across = (g.n + add_threads - 1) / add_threads;
  return launch(add_parts_kernel, blocks_of(across * g.m), blocks_of(add_threads), 0, stream, g);
}

inline status check_workspace(const void* workspace, std::size_t bytes, std::size_t needed) {
  if (needed == 0) return {};
  if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
    return {fault::bad_pointer, "workspace", "must be device memory aligned to 256 bytes"};
  }
  if (bytes < needed) return {fault::out_of_memory, "workspace_bytes", "less than the workspace that is needed"};
  return {};
}

inline bool arch_is(const gemm_device& device, const char* name) { return std::string(device.arch) == name; }
inline bool expands(const gemm_device& device) { return arch_is(device, "sm_90") || arch_is(device, "host"); }

/// Greatest number of k that a part of K is a multiple of.
inline int grain_of(const gemm_device& device) { return expands(device) ? 128 : 256; }

struct split {
  int parts, part_k;
};
/// As accumulate_ref cuts K: parts of equal length but for the last; there may be fewer than asked for.
inline split split_of(int k, int parts, int grain) {
  const int part = (k + parts * grain - 1) / (parts * grain) * grain;
  return {(k + part - 1) / part, part};
}

/// Does the kernel itself write the output, or FP32 sums that another one finishes?
inline bool writes_partial(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  if (c.contract == gemm_contract::reference) return false;
  if (split_of(p.a.k, c.split_k, grain_of(device)).parts > 1) return true;
  if (!arch_is(device, "gfx950")) return false;
  const index_t stride = out_stride_of(p, p.b.rows);
  const bool wide = reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0 && stride % 8 == 0 && p.b.rows % 8 == 0;
  return p.output != formats::bf16 || p.accumulate || p.bias != nullptr || !wide;
}

inline bool is_fp8(const gemm_problem& p) { return p.a.element != gemm_element::e2m1; }
/// Are scales folded into E5M2?
inline bool folds(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  return c.contract != gemm_contract::reference && !is_fp8(p) && expands(device);
}
/// And into int8 where a row allows it? Its exact sums are `accurate`'s.
inline bool folds_int8(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  return folds(p, c, device) && c.contract == gemm_contract::accurate;
}

/// Where B's rows begin among bases and levels: at whole 16 bytes.
inline int second_base(int rows_a) { return (rows_a + 15) / 16 * 16; }

/// Parts of the workspace, offsets in bytes. What is to hold BF16 holds int8 before.
struct workspace_map {
  std::size_t folded_a = 0, folded_b = 0, wide_a = 0, wide_b = 0, base = 0, levels = 0, partial = 0, size = 0;
  workspace_map(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
    const auto m = static_cast<std::size_t>(p.a.rows), n = static_cast<std::size_t>(p.b.rows);
    const auto k = static_cast<std::size_t>(p.a.k);
    const bool uses_expansion =
        c.contract != gemm_contract::reference && (expands(device) || (arch_is(device, "gfx942") && is_fp8(p)));
    const bool folded = folds(p, c, device);
    folded_a = take(folded ? m * k : 0);
    folded_b = take(folded ? n * k : 0);
    wide_a = take(uses_expansion ? 2 * m * k : 0);
    wide_b = take(uses_expansion ? 2 * n * k : 0);
    const auto rows = static_cast<std::size_t>(second_base(p.a.rows)) + n;
    base = take(folded ? 4 * rows : 0);
    levels = take(folded ? rows : 0);
    const int parts = split_of(p.a.k, c.split_k, grain_of(device)).parts;
    partial = take(writes_partial(p, c, device) ? 4 * m * n * static_cast<std::size_t>(parts) : 0);
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = size;
    size += (bytes + 255) / 256 * 256;
    return at;
  }
};

/// Format and stride of `n` columns of results.
inline status check_result(const gemm_result& r, index_t n) {
  if (r.output != formats::bf16 && r.output != formats::fp32) {
    return {fault::bad_option, "output", "must be BF16 or FP32"};
  }
  if (out_stride_of(r, n) < n) return {fault::bad_extent, "out_stride", "must be at least n"};
  return {};
}

inline status check_operand(const gemm_operand_view& x, bool first, bool plain_codes, bool plain_scales) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  if (x.rows < 1 || x.rows > most_gemm_extent)
    return {fault::bad_extent, named("a.rows", "b.rows"), "must be 1 to 2^20"};
  if (x.k < 32 || x.k > most_gemm_extent || x.k % 32 != 0) {
    return {fault::bad_extent, named("a.k", "b.k"), "must be a multiple of 32 up to 2^20"};
  }
  if (plain_codes && x.code_order != placement::row_major) {
    return {fault::bad_option, named("a.code_order", "b.code_order"), "this kernel takes row-major codes"};
  }
  if (plain_scales && x.scale_order != placement::row_major) {
    return {fault::bad_option, named("a.scale_order", "b.scale_order"), "this kernel takes row-major scales"};
  }
  if (x.code_order != placement::row_major && !layout{x.code_order, x.rows, x.code_bytes()}.is_defined()) {
    return {fault::bad_extent, named("a.rows", "b.rows"), "this order of codes needs whole tiles"};
  }
  if (x.code_order == placement::row_major && (x.code_stride < x.code_bytes() || x.code_stride % 16 != 0)) {
    return {fault::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  if (x.scale_order == placement::row_major && x.scale_stride < x.k / 32) {
    return {fault::bad_extent, named("a.scale_stride", "b.scale_stride"), "must be at least k / 32"};
  }
  const status codes = check_pointer(x.codes, 16, named("a.codes", "b.codes"));
  if (!codes.ok()) return codes;
  return check_pointer(x.scales, x.scale_order == placement::row_major ? 1 : 4, named("a.scales", "b.scales"));
}

inline status check_gfx950(const gemm_problem& p) {
  if (p.a.k % 256 != 0) return {fault::bad_extent, "a.k", "must be a multiple of 256 on gfx950"};
  if (p.b.code_order != placement::aiter_data_16x16) {
    return {fault::bad_option, "b.code_order", "must be aiter_data_16x16 on gfx950"};
  }
  for (const gemm_operand_view* x : {&p.a, &p.b}) {
    if (x->scale_order != placement::aiter_scale) {
      return {fault::bad_option, x == &p.a ? "a.scale_order" : "b.scale_order", "must be aiter_scale on gfx950"};
    }
  }
  if (p.a.code_order != placement::row_major && p.a.code_order != placement::aiter_data_16x16) {
    return {fault::bad_option, "a.code_order", "must be row_major or aiter_data_16x16 on gfx950"};
  }
  return {};
}

/// FP8 is expanded first, from any rows.
inline status check_gfx942(const gemm_problem& p) {
  if (is_fp8(p)) return {};
  if (p.a.k % 128 != 0) return {fault::bad_extent, "a.k", "must be a multiple of 128 on gfx942"};
  for (const gemm_operand_view* x : {&p.a, &p.b}) {
    const bool first = x == &p.a;
    if (x->scale_stride % 4 != 0) {
      return {fault::bad_extent, first ? "a.scale_stride" : "b.scale_stride", "must be a multiple of 4 on gfx942"};
    }
    const status s = check_pointer(x->scales, 4, first ? "a.scales" : "b.scales");
    if (!s.ok()) return s;
  }
  return {};
}

/// gemm_mxfp4 and gemm_mxfp8 by the kernels of `device`, the current one or, in host mode, also one of AMD's.
status run_gemm(const gemm_problem& problem, const gemm_choice& choice, const gemm_device& device, void* workspace,
                std::size_t workspace_bytes, hipStream_t stream);

/// check_gemm of gemm.hpp.
inline status check_problem(const gemm_problem& p, const gemm_choice& c, const gemm_device& device) {
  const bool reference = c.contract == gemm_contract::reference;
  if (!reference && device.arch[0] == '\0') {
    return {fault::unsupported_device, "choice.contract", "this device has the reference kernel only"};
  }
  if ((p.a.element == gemm_element::e2m1) != (p.b.element == gemm_element::e2m1)) {
    return {fault::bad_option, "b.element", "must be E2M1 where a's is, else E4M3 or E5M2"};
  }
  const bool gfx950 = arch_is(device, "gfx950"), plain = !reference && !gfx950;
  for (const gemm_operand_view* x : {&p.a, &p.b}) {
    const status s = check_operand(*x, x == &p.a, plain, plain);
    if (!s.ok()) return s;
  }
  if (p.a.k != p.b.k) return {fault::bad_extent, "b.k", "must equal a.k"};
  if (!reference && !expands(device)) {
    const status s = gfx950 ? check_gfx950(p) : check_gfx942(p);
    if (!s.ok()) return s;
  }
  if (status s = check_result(p, p.b.rows); !s.ok()) return s;
  const status out = check_pointer(p.out, p.output == formats::bf16 ? 2 : 4, "out");
  if (!out.ok()) return out;
  if (p.bias != nullptr) {
    if (status s = check_pointer(p.bias, 4, "bias"); !s.ok()) return s;
  }
  const bool one_part = reference || arch_is(device, "gfx942");
  if (c.split_k < 1 || c.split_k > most_parts || (one_part && c.split_k != 1)) {
    return {fault::bad_option, "choice.split_k", one_part ? "must be 1 for this kernel" : "must be 1 to 64"};
  }
  return {};
}

}  // namespace rotoscale::gpu::detail
