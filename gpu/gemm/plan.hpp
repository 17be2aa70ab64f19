// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Decisions of the GEMM launchers: split-K, workspace layout, kernel arguments.
#pragma once

#include <algorithm>

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/operand.hpp"
#include "gpu/gemm/output.hpp"
#include "gpu/gemm/tile_walk.hpp"
#include "gpu/gemm/upconvert.hpp"

namespace rotoscale::gpu::detail {

inline bool is_fp8(const gemm_call& c) { return c.a.element != formats::e2m1; }

struct split {
  int parts, part_k;
};
/// Splits K like accumulate_ref: parts of equal length except the last. There may be fewer than requested.
inline split split_of(index_t extent, index_t parts, index_t grain) {
  const index_t part = (extent + parts * grain - 1) / (parts * grain) * grain;
  return {static_cast<int>((extent + part - 1) / part), static_cast<int>(part)};
}

inline std::size_t padded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Bytes for the sums of the parts of K. They suffice for any smaller k, which may have more parts.
inline std::size_t split_bytes(const gemm_call& c) {
  const gemm_options& o = c.contract;
  const index_t parts = std::min(o.split_k, (c.a.k + o.split_grain - 1) / o.split_grain);
  return parts > 1 ? padded(sizeof(float) * static_cast<std::size_t>(c.a.rows * c.b.rows * parts)) : 0;
}
inline std::size_t no_bytes(const gemm_call&) { return 0; }

inline index_t row_stride(const gemm_result& r, index_t n) { return r.out_stride == 0 ? n : r.out_stride; }

/// Are rows of the output whole 16-byte vectors of BF16?
inline bool rows_are_vectors(const gemm_result& r, index_t n) {
  return r.stored == formats::bf16 && reinterpret_cast<std::uintptr_t>(r.out) % 16 == 0 && row_stride(r, n) % 8 == 0 &&
         n % 8 == 0;
}

/// True if rows of the output are whole, aligned pairs of FP32.
inline bool rows_are_pairs(const gemm_result& r, index_t n) {
  return r.stored == formats::fp32 && reinterpret_cast<std::uintptr_t>(r.out) % 8 == 0 && row_stride(r, n) % 2 == 0 &&
         n % 2 == 0;
}

/// Index of B's first row in bases and widths, a multiple of 16.
inline int second_base(index_t rows_a) { return static_cast<int>((rows_a + 15) / 16 * 16); }

/// Workspace layout of converted operands: offsets in bytes. The buffers of BF16 hold int8 first.
/// `folded`: scales are folded into int8 or E5M2 first.
struct workspace_map {
  std::size_t e5m2_a = 0, e5m2_b = 0, staging_a = 0, staging_b = 0, base = 0, widths = 0, fallback = 0, partial = 0,
              size = 0;
  workspace_map(const gemm_call& c, bool folded) {
    const auto m = static_cast<std::size_t>(c.a.rows), n = static_cast<std::size_t>(c.b.rows);
    const auto k = static_cast<std::size_t>(c.a.k);
    e5m2_a = take(folded ? m * k : 0);
    e5m2_b = take(folded ? n * k : 0);
    staging_a = take(2 * m * k);
    staging_b = take(2 * n * k);
    const auto rows = static_cast<std::size_t>(second_base(c.a.rows)) + n;
    base = take(folded ? 4 * rows : 0);
    widths = take(folded ? rows : 0);
    fallback = take(folded ? sizeof(fallback_work) : 0);
    partial = take(split_bytes(c));
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = size;
    size += padded(bytes);
    return at;
  }
};
template <bool Folded>
std::size_t converted_bytes(const gemm_call& c) {
  return workspace_map(c, Folded).size;
}

/// Bytes of an operand's BF16 copy; 0: it is BF16.
inline std::size_t bf16_bytes(const gemm_operand& x) {
  return x.element == formats::bf16 ? 0 : padded(sizeof(bf16) * static_cast<std::size_t>(x.rows * x.k));
}
inline std::size_t upconverted_bytes(const gemm_call& c) { return bf16_bytes(c.a) + bf16_bytes(c.b) + split_bytes(c); }

/// The arguments that all kernels share.
inline gemm_arguments make_arguments(const gemm_result& r, index_t m, index_t n) {
  gemm_arguments g;
  g.m = static_cast<int>(m);
  g.n = static_cast<int>(n);
  g.out = r.out;
  g.out_stride = row_stride(r, n);
  g.bf16_out = r.stored == formats::bf16;
  g.bf16_rounded = !g.bf16_out && r.output == formats::bf16;
  g.vector_stores = rows_are_vectors(r, n);
  g.pair_stores = rows_are_pairs(r, n);
  g.accumulate = r.accumulate;
  g.alpha = r.alpha;
  g.beta = r.beta;
  g.bias = r.bias;
  g.output_bias = r.output_bias;
  return g;
}
/// Arguments with schedule and split-K. `partial` receives the sums of the partitions.
inline gemm_arguments make_arguments(const gemm_launch& l, std::uint8_t* partial) {
  const gemm_call& c = l.call;
  gemm_arguments g = make_arguments(c, c.a.rows, c.b.rows);
  g.k = static_cast<int>(c.a.k);
  g.base_b = second_base(g.m);
  g.nan_bits = c.contract.model.nan_bits;
  const split parts = split_of(c.a.k, c.contract.split_k, options_of(l.kernel).split_grain);
  g.parts = parts.parts;
  g.part_k = parts.part_k;
  g.partial = reinterpret_cast<float*>(partial);
  if (!l.kernel.tiles.empty()) set_schedule(g, l.schedule);
  return g;
}

/// True if the kernel can store BF16 vectors, without C and bias.
inline bool stores_vectors(const gemm_arguments& g) {
  return g.vector_stores && !g.accumulate && g.bias == nullptr &&
         reinterpret_cast<std::uintptr_t>(g.output_bias) % 16 == 0;
}
/// True if the kernel can store FP32 pairs, without bias.
inline bool stores_pairs(const gemm_arguments& g) { return g.pair_stores && g.bias == nullptr; }

/// Arguments of the conversions.
inline upconvert_arguments make_expansion(const gemm_call& p, const workspace_map& map, std::uint8_t* memory) {
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
