// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Decisions of the GEMM launchers: split-K, workspace layout, kernel arguments.
#pragma once

#include "gpu/api/gemm.hpp"
#include "gpu/api/gemm_definition.hpp"
#include "gpu/dialect/arch.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/expand.hpp"
#include "gpu/gemm/operand.hpp"
#include "gpu/gemm/output.hpp"

namespace rotoscale::gpu {
struct definition_arguments;
}

namespace rotoscale::gpu::detail {

/// gemm_mxfp4 and gemm_mxfp8 with the kernels of `device`: the current one, or in host mode also an AMD device.
status run_gemm(const gemm_problem& problem, const gemm_choice& choice, const device_info& device, void* workspace,
                std::size_t workspace_bytes, stream stream);

/// Minimum workspace in bytes of a matrix unit with expanded operands; 0: the device has none.
std::size_t blockwise_unit_bytes(index_t m, index_t n, index_t k, const device_info& device);
/// True if run_blockwise_on_unit can multiply these on `device`, in this workspace. Codes are aligned to 16 bytes.
bool has_blockwise_unit(const gemm_operand& a, const gemm_operand& b, const void* workspace,
                        std::size_t workspace_bytes, const device_info& device);
/// gemm_by_definition's blockwise sums on the matrix unit of `device`.
status run_blockwise_on_unit(const gemm_operand& a, const gemm_operand& b, const definition_arguments& p,
                             const sum_output& r, void* workspace, const device_info& device, stream stream);

inline bool is_fp8(const gemm_problem& p) { return p.a.element != formats::e2m1; }

struct split {
  int parts, part_k;
};
/// Splits K like accumulate_ref: parts of equal length except the last. There may be fewer than requested.
inline split split_of(index_t extent, int parts, int grain) {
  const int k = static_cast<int>(extent);
  const int part = (k + parts * grain - 1) / (parts * grain) * grain;
  return {(k + part - 1) / part, part};
}

inline index_t row_stride(const gemm_result& r, index_t n) { return r.out_stride == 0 ? n : r.out_stride; }

/// Are rows of the output whole 16-byte vectors of BF16?
inline bool rows_are_vectors(const gemm_result& r, index_t n) {
  return r.output == formats::bf16 && reinterpret_cast<std::uintptr_t>(r.out) % 16 == 0 && row_stride(r, n) % 8 == 0 &&
         n % 8 == 0;
}

/// True if rows of the output are whole, aligned pairs of FP32.
inline bool rows_are_pairs(const gemm_result& r, index_t n) {
  return r.output == formats::fp32 && reinterpret_cast<std::uintptr_t>(r.out) % 8 == 0 && row_stride(r, n) % 2 == 0 &&
         n % 2 == 0;
}

/// True if scales are folded into E5M2.
inline bool folds(const gemm_problem& p, const gemm_choice& c, const device_info& device) {
  return c.contract != gemm_contract::reference && !is_fp8(p) && traits_of(device.arch).expands_mxfp4;
}
/// True if scales are folded into int8 where possible. Its exact sums are `accurate`'s.
inline bool folds_int8(const gemm_problem& p, const gemm_choice& c, const device_info& device) {
  return folds(p, c, device) && c.contract == gemm_contract::accurate;
}

/// Index of B's first row in bases and widths, a multiple of 16.
inline int second_base(index_t rows_a) { return static_cast<int>((rows_a + 15) / 16 * 16); }

/// Workspace layout: offsets in bytes. The buffers of BF16 hold int8 first.
struct workspace_map {
  std::size_t e5m2_a = 0, e5m2_b = 0, staging_a = 0, staging_b = 0, base = 0, widths = 0, rest = 0, partial = 0,
              size = 0;
  workspace_map(const gemm_problem& p, const gemm_choice& c, const device_info& device) {
    const auto m = static_cast<std::size_t>(p.a.rows), n = static_cast<std::size_t>(p.b.rows);
    const auto k = static_cast<std::size_t>(p.a.k);
    const arch_traits& traits = traits_of(device.arch);
    const bool uses_expansion =
        c.contract != gemm_contract::reference && (is_fp8(p) ? traits.expands_mxfp8 : traits.expands_mxfp4);
    const bool folded = folds(p, c, device);
    e5m2_a = take(folded ? m * k : 0);
    e5m2_b = take(folded ? n * k : 0);
    staging_a = take(uses_expansion ? 2 * m * k : 0);
    staging_b = take(uses_expansion ? 2 * n * k : 0);
    const auto rows = static_cast<std::size_t>(second_base(p.a.rows)) + n;
    base = take(folded ? 4 * rows : 0);
    widths = take(folded ? rows : 0);
    rest = take(folded ? sizeof(rest_work) : 0);
    const int parts = split_of(p.a.k, c.split_k, traits.grain).parts;
    partial = take(parts > 1 ? 4 * m * n * static_cast<std::size_t>(parts) : 0);
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = size;
    size += (bytes + 255) / 256 * 256;
    return at;
  }
};

/// The arguments that all kernels share.
inline gemm_arguments make_arguments(const gemm_result& r, int m, int n) {
  gemm_arguments g;
  g.m = m;
  g.n = n;
  g.out = r.out;
  g.out_stride = row_stride(r, n);
  g.bf16_out = r.output == formats::bf16;
  g.vector_stores = rows_are_vectors(r, n);
  g.pair_stores = rows_are_pairs(r, n);
  g.accumulate = r.accumulate;
  g.alpha = r.alpha;
  g.beta = r.beta;
  g.bias = r.bias;
  return g;
}
/// Output arguments of gemm_by_definition, and its NaN.
inline gemm_arguments make_arguments(const sum_output& r, int m, int n) {
  const bool narrow = r.stored == formats::bf16;
  gemm_result to;
  to.out = r.out;
  to.output = r.stored;
  to.out_stride = r.out_stride;
  to.accumulate = r.accumulate;
  gemm_arguments g = make_arguments(to, m, n);
  g.bf16_rounded = !narrow && r.output == formats::bf16;
  g.nan_bits = fp32_nan_bits;
  return g;
}
inline gemm_arguments make_arguments(const gemm_problem& p, const gemm_options& o) {
  gemm_arguments g = make_arguments(p, static_cast<int>(p.a.rows), static_cast<int>(p.b.rows));
  g.k = static_cast<int>(p.a.k);
  g.base_b = second_base(g.m);
  g.nan_bits = o.model.nan_bits;
  return g;
}

/// True if the kernel can store BF16 vectors, without C and bias.
inline bool stores_vectors(const gemm_arguments& g) { return g.vector_stores && !g.accumulate && g.bias == nullptr; }
/// True if the kernel can store FP32 pairs, without bias.
inline bool stores_pairs(const gemm_arguments& g) { return g.pair_stores && g.bias == nullptr; }

/// Arguments of the expansions.
inline expand_arguments make_expansion(const gemm_problem& p, const workspace_map& map, std::uint8_t* memory) {
  const auto source = [](const gemm_operand& operand) {
    const kernel_operand x = make_kernel_operand(operand);
    return block_source{x.codes, x.scales, x.code_stride, x.scale_stride, x.rows, x.element};
  };
  return {source(p.a),           source(p.b),         static_cast<int>(p.a.k),
          memory + map.e5m2_a,   memory + map.e5m2_b, memory + map.staging_a,
          memory + map.staging_b};
}

/// Adds the parts of K and applies the epilogue. `behind_kernel`: the preceding work on the stream is a kernel of this
/// library, so it may use programmatic dependent launch.
inline status finish_parts(const gemm_arguments& g, stream s, bool behind_kernel = true) {
  const dim3 grid = blocks(std::int64_t{(g.n + add_threads - 1) / add_threads} * g.m);
  return behind_kernel ? launch_behind(add_parts_kernel, grid, blocks(add_threads), 0, s, g)
                       : launch(add_parts_kernel, grid, blocks(add_threads), 0, s, g);
}

}  // namespace rotoscale::gpu::detail
