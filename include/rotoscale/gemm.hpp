// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// gemm_ref at CPU speed. Operands are packed in the order in which the model meets K, B in panels of columns; a kernel
// takes rows of A through a panel, lanes being columns. Which models have a kernel is said where each is; whatever none
// promises to get right, down to single rows and panels with NaN in them, goes through the definition: same bits,
// slower.
#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include "rotoscale/detail/gemm_blocks.hpp"
#include "rotoscale/detail/gemm_decode.hpp"
#include "rotoscale/detail/gemm_late.hpp"
#include "rotoscale/detail/gemm_plan.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale {

namespace detail {
inline namespace ROTOSCALE_ISA {

/// finish_output over rows, by registers where the output is FP32 or BF16.
class row_finisher {
 public:
  row_finisher(float factor, const gemm_options& o)
      : factor_(factor),
        o_(o),
        plain_(o.output == formats::fp32),
        by_lanes_(plain_ || (o.output == formats::bf16 && o.output_rounding == rounding::nearest_even)) {}

  /// `n` outputs of a row from column `first` on.
  void finish(const float* acc, index_t n, float* to, index_t stride, index_t first) const {
    index_t j = 0;
    for (; by_lanes_ && stride == 1 && j + lane_count <= n; j += lane_count) finish_lanes(acc + j, to + j, first + j);
    for (; j < n; ++j) {
      to[j * stride] = finish_output(acc[j], factor_, o_, o_.accumulate ? to[j * stride] : 0.0f, first + j);
    }
  }

 private:
  /// gemm_epilogue for a register.
  void finish_lanes(const float* acc, float* to, index_t column) const {
    auto x = load_lanes<lanes_f32>(acc);
    lanes_f32 added{};
    if (o_.bias != nullptr) added = load_lanes<lanes_f32>(o_.bias + column);
    if (o_.accumulate) {
      const auto c = load_lanes<lanes_f32>(to);
      added = o_.bias != nullptr ? fma(c, broadcast(o_.beta), added) : c * o_.beta;
    }
    x = o_.accumulate || o_.bias != nullptr ? fma(x, broadcast(factor_), added) : x * factor_;
    const auto u = __builtin_bit_cast(lanes_u32, x);
    lanes_u32 rounded = u;
    if (!plain_) round_number_to_bf16(rounded);
    const auto nan = __builtin_bit_cast(lanes_u32, (u & fp32_magnitude_mask) > fp32_infinity_bits);
    store_lanes(to, (rounded & ~nan) | (nan & o_.model.nan_bits));
  }

  float factor_;
  const gemm_options& o_;
  bool plain_, by_lanes_;
};

/// fp32_fma_chain: any operands, as FP32 with their block scales multiplied in.
class fp32_chain {
 public:
  static constexpr index_t columns = gemm_cols;
  static constexpr index_t slice(const mma_model&) { return 256; }

  static bool applies(const gemm_operand&, const gemm_operand&, const gemm_options& o) {
    const mma_model& m = o.model;
    return m.sum == mma_sum::exact && m.group == 1 && m.operand == format{} && m.instruction_k == 0 &&
           m.result == mma_result::fp32_nearest && !m.c_last && o.split_run == 0;
  }
  fp32_chain(const gemm_operand& a, const gemm_operand& b, const gemm_options&, const gemm_plan& plan)
      : a_(a), b_(b), plan_(plan), table_a_(a.element), table_b_(b.element) {}

  index_t row_bytes() const { return a_.k * 4; }
  index_t panel_bytes() const { return b_.k * 4 * columns; }
  operand_range pack_row(index_t r, std::byte* to) const {
    decode_row(a_, table_a_, r, reinterpret_cast<float*>(to));
    return {};
  }
  /// An operand that lies transposed is packed from where it is.
  static bool reads_in_place(const gemm_operand& x) { return has_column_strips(x); }
  void pack_transposed_rows(index_t first, index_t last, std::byte* to) const {
    decode_transposed_rows(a_, table_a_, first, last, reinterpret_cast<float*>(to));
  }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    if (b_.transposed) {
      auto* panel = reinterpret_cast<float*>(to);
      for (index_t k = 0; k < b_.k; ++k, panel += columns) {
        decode_column_strip(b_, table_b_, k, first, valid, panel);
        for (index_t j = valid; j < columns; ++j) panel[j] = 0.0f;
      }
      return {};
    }
    const float* rows = decode_rows(b_, table_b_, first, first + valid);
    pack_panel_from_rows(rows, b_.k, valid, b_.k, reinterpret_cast<float*>(to));
    return {};
  }
  static bool admits(const operand_range&, const operand_range&) { return true; }
  static bool admits_start(const operand_range&, const operand_range&, float) { return true; }

  void run(const gemm_span& span, index_t, index_t, const operand_range*, const std::byte* rows, index_t count,
           const operand_range&, const std::byte* panel, float* acc) const {
    if (span.first == span.last) return;
    // Operands stay in the order of k, which ascends within a span; parts may follow each other otherwise.
    const index_t k = plan_.k_of(span.first);
    multiply_panels(count, columns, span.last - span.first, reinterpret_cast<const float*>(rows) + k, a_.k,
                    reinterpret_cast<const float*>(panel) + k * columns, a_.k, acc, columns);
  }

 private:
  const gemm_operand &a_, &b_;
  const gemm_plan& plan_;
  decode_table table_a_, table_b_;
};

struct gemm_panel_scratch;
struct gemm_row_scratch;
struct gemm_tile_scratch;

/// A rows × panel part of C while its accumulators run along K.
template <class Kernel>
struct gemm_tile {
  const Kernel& kernel;
  const gemm_operand &a, &b;
  const gemm_options& o;
  const gemm_plan& plan;
  matrix<float> c;
  index_t first_row, rows;
  const operand_range* row_ranges;
  const std::byte* packed_rows;
  float* memory;  ///< 4 * rows * Kernel::columns

  static constexpr index_t columns = Kernel::columns;

  float start_of(index_t i, index_t j) const {
    return o.start_from_c ? fp32_value(unpack(formats::fp32, fp32_bits(c(i, j)))) : 0.0f;
  }

  void compute(index_t first_column, const operand_range& range, const std::byte* panel, const row_finisher& finisher) {
    const index_t n = b.rows - first_column < columns ? b.rows - first_column : columns;
    const index_t size = rows * columns;
    float *acc = memory, *chain = memory + size, *part = memory + 2 * size, *sum = memory + 3 * size;
    bool admitted[64];
    for (index_t i = 0; i < rows; ++i) {
      admitted[i] = kernel.admits(row_ranges[i], range);
      for (index_t j = 0; o.start_from_c && admitted[i] && j < n; ++j) {
        admitted[i] = kernel.admits_start(row_ranges[i], range, start_of(first_row + i, first_column + j));
      }
    }
    for (const gemm_span& span : plan.spans) {
      if (span.restart) start(span, first_column, n, chain);
      if (o.model.c_last) {
        __builtin_memset(acc, 0, static_cast<std::size_t>(size) * sizeof(float));
      } else {
        std::swap(acc, chain);
      }
      for (index_t i = 0; i < rows;) {
        index_t end = i;
        while (end < rows && admitted[end]) ++end;
        if (end > i) {
          kernel.run(span, first_row + i, first_column, row_ranges + i, packed_rows + i * kernel.row_bytes(), end - i,
                     range, panel, acc + i * columns);
        }
        i = end + 1;
      }
      if (!o.model.c_last) {
        std::swap(acc, chain);
      } else if (span.instruction_ends) {
        add_rounded(acc, chain, size);
      }
      if (span.interval_ends) add_or_take(span.first_interval, chain, part, size);
      if (!span.part_ends) continue;
      const bool rounds = o.split_k != 1 && o.split_sum != formats::fp32;
      if (rounds) round_sums(part, size);
      add_or_take(span.first_part, part, sum, size);
      if (rounds) round_sums(sum, size);
    }
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; !admitted[i] && j < n; ++j) {
        const float old = o.start_from_c ? c(first_row + i, first_column + j) : 0.0f;
        sum[i * columns + j] = accumulate_ref(a, first_row + i, b, first_column + j, o, old);
      }
      finisher.finish(sum + i * columns, n, &c(first_row + i, first_column), c.stride(1), first_column);
    }
  }

 private:
  void start(const gemm_span& span, index_t first_column, index_t n, float* chain) const {
    __builtin_memset(chain, 0, static_cast<std::size_t>(rows * columns) * sizeof(float));
    for (index_t i = 0; span.from_c && i < rows; ++i) {
      for (index_t j = 0; j < n; ++j) chain[i * columns + j] = start_of(first_row + i, first_column + j);
    }
  }
  /// An instruction's own sum joins the chain as an IEEE addition of the accumulator's format.
  void add_rounded(const float* acc, float* chain, index_t size) const {
    const bool fp16 = o.model.result == mma_result::fp16_nearest;
    for (index_t i = 0; i < size; ++i) {
      // Rounding FP16's sum to FP32 first does no harm: 24 >= 2 * 11 + 2.
      const float x = chain[i] + acc[i];
      chain[i] = fp16 ? decode(formats::fp16, encode(formats::fp16, x, rounding::nearest_even, overflow::to_inf)) : x;
    }
  }
  void round_sums(float* x, index_t size) const {
    for (index_t i = 0; i < size; ++i) x[i] = round_to_format(o.split_sum, x[i]);
  }
  static void add_or_take(bool take, float*& from, float*& to, index_t size) {
    if (take) return std::swap(from, to);
    for (index_t i = 0; i < size; ++i) to[i] += from[i];
  }
};

/// All of C with one kernel.
template <class Kernel>
void gemm_with(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
               thread_pool& pool) {
  constexpr index_t panel_memory = index_t{1} << 26;  // bytes
  constexpr index_t max_rows = 64;
  const gemm_plan plan = plan_gemm(a.k, o, Kernel::slice(o.model));
  const Kernel kernel(a, b, o, plan);
  const index_t panels = (b.rows + Kernel::columns - 1) / Kernel::columns;
  const index_t panel_bytes = round_up(kernel.panel_bytes(), 64);
  const index_t at_once = std::max(index_t{1}, std::min(panels, panel_memory / std::max(index_t{1}, panel_bytes)));
  std::vector<operand_range> ranges(static_cast<std::size_t>(at_once));
  const row_finisher finisher(combined_factor(a, b, o), o);
  // Rows of C in chunks: enough of them to share out, large enough to reuse a panel.
  index_t chunk = round_up((a.rows + 4 * pool.threads() - 1) / (4 * pool.threads()), 8);
  chunk = chunk > max_rows ? max_rows : chunk;

  for (index_t first_panel = 0; first_panel < panels; first_panel += at_once) {
    const index_t count = std::min(at_once, panels - first_panel);
    auto* const packed = reinterpret_cast<std::byte*>(scratch<gemm_panel_scratch>(count * panel_bytes / 4));
    pool.for_each(count, [&](index_t p) {
      const index_t first = (first_panel + p) * Kernel::columns;
      const index_t valid = std::min(Kernel::columns, b.rows - first);
      ranges[static_cast<std::size_t>(p)] = kernel.pack_panel(first, valid, packed + p * panel_bytes);
    });
    for_each_chunk(pool, a.rows, chunk, [&](index_t first, index_t last) {
      auto* const rows =
          reinterpret_cast<std::byte*>(scratch<gemm_row_scratch>((last - first) * kernel.row_bytes() / 4));
      operand_range row_ranges[max_rows];
      bool in_place = false;
      if constexpr (requires { kernel.pack_transposed_rows(first, last, rows); }) {
        in_place = a.transposed;
        if (in_place) kernel.pack_transposed_rows(first, last, rows);
      }
      for (index_t i = first; i < last && !in_place; ++i) {
        row_ranges[i - first] = kernel.pack_row(i, rows + (i - first) * kernel.row_bytes());
      }
      float* const memory = scratch<gemm_tile_scratch>(4 * chunk * Kernel::columns);
      gemm_tile<Kernel> tile{kernel, a, b, o, plan, c, first, last - first, row_ranges, rows, memory};
      for (index_t p = 0; p < count; ++p) {
        tile.compute((first_panel + p) * Kernel::columns, ranges[static_cast<std::size_t>(p)], packed + p * panel_bytes,
                     finisher);
      }
    });
  }
}

/// The first kernel that applies, or the definition.
template <class Kernel, class... Rest>
void gemm_with_first(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                     thread_pool& pool) {
  // Tiles hold one sum of parts; pairs of pairs need more.
  const bool one_sum = o.order != split_order::pairwise || o.split_k <= 3;
  if (one_sum && Kernel::applies(a, b, o)) return gemm_with<Kernel>(a, b, o, c, pool);
  if constexpr (sizeof...(Rest) > 0) {
    gemm_with_first<Rest...>(a, b, o, c, pool);
  } else {
    pool.for_each(a.rows, [&](index_t i) { gemm_row_ref(a, b, o, c, i); });
  }
}

/// Rows [first, last) of a transposed matrix of T as rows of their own, `stride` bytes apart; tiles that stay in the
/// cache.
template <class T>
inline void transpose_rows(const gemm_operand& a, index_t first, index_t last, std::uint8_t* to, index_t stride) {
  constexpr index_t tile = 64;
  for (index_t c0 = 0; c0 < a.k; c0 += tile) {
    for (index_t r = first; r < last; ++r) {
      std::uint8_t* const row = to + r * stride;
      for (index_t c = c0; c < a.k && c < c0 + tile; ++c) {
        __builtin_memcpy(row + c * static_cast<index_t>(sizeof(T)),
                         a.codes + c * a.code_stride + r * static_cast<index_t>(sizeof(T)), sizeof(T));
      }
    }
  }
}

/// An operand as kernels read it, k contiguous and scales in row-major order: itself, or a copy in `memory`.
inline gemm_operand plain_operand(const gemm_operand& a, std::vector<std::uint8_t>& memory, thread_pool& pool) {
  gemm_operand plain = a;
  const index_t stride = packed_bytes(a.element, a.k), columns = a.scale_columns();
  const bool place_scales = a.block != 0 && a.scale_order != placement::row_major;
  const bool copies_codes = a.transposed || a.code_order != placement::row_major;
  memory.resize(static_cast<std::size_t>((copies_codes ? a.rows * stride : 0) + (place_scales ? a.rows * columns : 0)));
  std::uint8_t* to = memory.data();
  if (a.code_order != placement::row_major) {
    gather(a.codes, {a.code_order, a.rows, stride}, row_major(to, a.rows, stride));
  } else if (a.transposed) {
    for_each_chunk(pool, a.rows, 64, [&](index_t first, index_t last) {
      switch (storage_bits(a.element)) {
        case 8: return transpose_rows<std::uint8_t>(a, first, last, to, stride);
        case 16: return transpose_rows<std::uint16_t>(a, first, last, to, stride);
        case 32: return transpose_rows<std::uint32_t>(a, first, last, to, stride);
        default: break;
      }
      for (index_t r = first; r < last; ++r) {
        for (index_t c = 0; c < a.k; ++c) {
          store_code(a.element, to + r * stride, c, static_cast<std::uint32_t>(operand_code(a, r, c)));
        }
      }
    });
  }
  if (copies_codes) {
    plain.codes = to;
    plain.code_stride = stride;
    plain.transposed = false;
    plain.code_order = placement::row_major;
    to += a.rows * stride;
  }
  if (place_scales) {
    gather(a.scales, {a.scale_order, a.rows, columns}, row_major(to, a.rows, columns));
    plain.scales = to;
    plain.scale_stride = columns;
    plain.scale_order = placement::row_major;
    plain.block_rows = 1;
  }
  return plain;
}

/// Each element of a batch with the first kernel that applies.
template <class... Kernels>
void gemm_batch(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, view<float, 3> c,
                thread_pool& pool) {
  std::vector<std::uint8_t> memory[2];
  const bool chains = fp32_chain::applies(a, b, o);
  const auto readable = [&](const gemm_operand& x, std::vector<std::uint8_t>& copy) {
    return chains && fp32_chain::reads_in_place(x) ? x : plain_operand(x, copy, pool);
  };
  for (index_t i = 0; i < c.extent(0); ++i) {
    const gemm_operand left = readable(batch_element(a, i), memory[0]);
    const gemm_operand right = readable(batch_element(b, i), memory[1]);
    gemm_with_first<Kernels...>(left, right, o, batch_element(c, i), pool);
  }
}

#if defined(ROTOSCALE_COMPILED)
extern template void gemm_batch<fp32_chain, exact_blocks, scaled_blocks, aligned_steps, late_steps>(  //
    const gemm_operand&, const gemm_operand&, const gemm_options&, view<float, 3>, thread_pool&);
#endif

}  // namespace ROTOSCALE_ISA
}  // namespace detail

inline namespace ROTOSCALE_ISA {

/// gemm_ref, blocked and threaded; equal by bytes.
inline void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, view<float, 3> c,
                 thread_pool& pool) {
  ROTOSCALE_ASSERT(gemm_is_defined(a, b, o) && c.extent(1) == a.rows && c.extent(2) == b.rows);
  if (a.rows == 0 || b.rows == 0) return;
  detail::gemm_batch<detail::fp32_chain, detail::exact_blocks, detail::scaled_blocks, detail::aligned_steps,
                     detail::late_steps>(a, b, o, c, pool);
}
/// One matrix.
inline void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                 thread_pool& pool) {
  gemm(a, b, o, as_batch(c), pool);
}

}  // namespace ROTOSCALE_ISA

}  // namespace rotoscale
