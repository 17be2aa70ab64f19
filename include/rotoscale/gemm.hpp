// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// gemm_ref at CPU speed, equal by bytes. Operands are packed in the model's order of K, B in panels of columns. A
// kernel takes rows of A through a panel, with one column per SIMD lane.
//
// Each kernel (detail/gemm_*.hpp) states the models that it supports. Rows and panels that no kernel supports, for
// example with NaN, go through the definition: same bits, slower.
#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include "rotoscale/detail/gemm_blocks.hpp"
#include "rotoscale/detail/gemm_flushing_chains.hpp"
#include "rotoscale/detail/gemm_late.hpp"
#include "rotoscale/detail/gemm_tile_chains.hpp"
#include "rotoscale/detail/gemm_units.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale {

namespace detail {
inline namespace ROTOSCALE_ISA {

/// finish_output for rows of C; vectorised where the output is FP32 or BF16. A large C bypasses the caches: reading its
/// lines before writing them would take longer than the products of a short K.
class row_finisher {
 public:
  row_finisher(float factor, const gemm_options& o, const matrix<float>& c)
      : factor_(factor),
        o_(o),
        plain_(o.output == formats::fp32),
        by_lanes_(plain_ || (o.output == formats::bf16 && o.output_rounding == rounding::nearest_even)),
        only_factor_(plain_ && !o.accumulate && o.bias == nullptr),
        streams_(by_lanes_ && !o.accumulate && c.stride(1) == 1 && c.stride(0) % lane_count == 0 &&
                 reinterpret_cast<std::uintptr_t>(c.data) % register_bytes == 0 &&
                 c.extent(0) * c.extent(1) >= least_streamed) {}

  /// Writes `n` outputs of a row, from column `first` on. `keeps_nan`: NaN sums stay as they are.
  void finish(const float* acc, index_t n, float* to, index_t stride, index_t first, bool keeps_nan) const {
    index_t j = 0;
    const index_t whole = by_lanes_ && !keeps_nan && stride == 1 ? n - n % lane_count : 0;
    for (; only_factor_ && j < whole; j += lane_count) {
      store_numbers(to + j, __builtin_bit_cast(lanes_u32, load_lanes<lanes_f32>(acc + j) * factor_));
    }
    for (; j < whole; j += lane_count) finish_lanes(acc + j, to + j, first + j);
    for (; j < n; ++j) {
      to[j * stride] = finish_output(acc[j], factor_, o_, o_.accumulate ? to[j * stride] : 0.0f, first + j);
    }
  }

  /// Call it after a thread's last row.
  void end() const {
    if (streams_) finish_streaming();
  }

 private:
  /// gemm_epilogue for one register.
  void finish_lanes(const float* acc, float* to, index_t column) const {
    auto x = load_lanes<lanes_f32>(acc);
    lanes_f32 added{};
    if (o_.bias != nullptr) added = load_lanes<lanes_f32>(o_.bias + column);
    if (o_.accumulate) {
      const auto c = load_lanes<lanes_f32>(to);
      added = o_.bias != nullptr ? fma(c, broadcast(o_.beta), added) : c * o_.beta;
    }
    x = o_.accumulate || o_.bias != nullptr ? fma(x, broadcast(factor_), added) : x * factor_;
    auto u = __builtin_bit_cast(lanes_u32, x);
    if (plain_) return store_numbers(to, u);
    const auto nan = __builtin_bit_cast(lanes_u32, (u & fp32_magnitude_mask) > fp32_infinity_bits);
    round_number_to_bf16(u);
    store(to, (u & ~nan) | (nan & o_.model.nan_bits));
  }
  /// Stores FP32 numbers, each NaN as the model's.
  void store_numbers(float* to, const lanes_u32& u) const {
    const auto nan = __builtin_bit_cast(lanes_u32, (u & fp32_magnitude_mask) > fp32_infinity_bits);
    store(to, (u & ~nan) | (nan & o_.model.nan_bits));
  }
  void store(float* to, const lanes_u32& u) const {
    if (streams_) return stream_lanes(to, u);
    store_lanes(to, u);
  }

  static constexpr index_t least_streamed = index_t{1} << 18;  ///< numbers of C: 1 MiB

  float factor_;
  const gemm_options& o_;
  bool plain_, by_lanes_, only_factor_, streams_;
};

/// A tile of C: `rows` × Kernel::columns accumulators that run along K.
template <class Kernel>
struct gemm_tile {
  const Kernel& kernel;
  const gemm_operand &a, &b;
  const gemm_options& o;
  const gemm_plan& plan;
  matrix<float> c;
  index_t first_row, rows;
  const operand_range* row_ranges;
  const operand_range& joined;  ///< of all rows
  const std::byte* packed_rows;
  float* memory;  ///< 4 * rows * Kernel::columns floats

  static constexpr index_t columns = Kernel::columns;

  float start_of(index_t i, index_t j) const {
    return o.start_from_c ? fp32_value(unpack(formats::fp32, fp32_bits(c(i, j)))) : 0.0f;
  }

  void compute(index_t first_column, const operand_range& range, const std::byte* panel, const row_finisher& finisher) {
    const index_t n = b.rows - first_column < columns ? b.rows - first_column : columns;
    if constexpr (requires { Kernel::takes_joined_rows; }) {
      if (plan.spans().size() == 1 && !o.start_from_c && !o.model.c_last && kernel.admits(joined, range)) {
        kernel.run_joined(plan.spans()[0], row_ranges, joined, packed_rows, rows, range, panel, memory);
        for (index_t i = 0; i < rows; ++i) {
          finisher.finish(memory + i * columns, n, &c(first_row + i, first_column), c.stride(1), first_column, false);
        }
        return;
      }
    }
    const index_t size = rows * columns;
    float *acc = memory, *chain = memory + size, *part = memory + 2 * size, *sum = memory + 3 * size;
    bool admitted[64];
    for (index_t i = 0; i < rows; ++i) {
      admitted[i] = kernel.admits(row_ranges[i], range);
      for (index_t j = 0; o.start_from_c && admitted[i] && j < n; ++j) {
        admitted[i] = kernel.admits_start(row_ranges[i], range, start_of(first_row + i, first_column + j));
      }
    }
    for (const gemm_span& span : plan.spans()) {
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
      finisher.finish(sum + i * columns, n, &c(first_row + i, first_column), c.stride(1), first_column,
                      o.model.keeps_nan && !admitted[i]);
    }
  }

 private:
  void start(const gemm_span& span, index_t first_column, index_t n, float* chain) const {
    __builtin_memset(chain, 0, static_cast<std::size_t>(rows * columns) * sizeof(float));
    for (index_t i = 0; span.from_c && i < rows; ++i) {
      for (index_t j = 0; j < n; ++j) chain[i * columns + j] = start_of(first_row + i, first_column + j);
    }
  }
  /// Adds an instruction's sum to the chain: one IEEE addition in the accumulator's format.
  void add_rounded(const float* acc, float* chain, index_t size) const {
    const bool fp16 = o.model.result == mma_result::fp16_nearest;
    for (index_t i = 0; i < size; ++i) {
      // Rounding FP16's sum to FP32 first changes nothing: 24 >= 2 * 11 + 2.
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

/// The loop over C with one kernel: sizes of panels and chunks, and the scratch memory.
template <class Kernel>
struct gemm_walk {
  static constexpr index_t panel_memory = index_t{1} << 26, row_memory = index_t{1} << 24;  ///< bytes
  static constexpr index_t cached_panels = index_t{1} << 19;                                ///< bytes, in L2
  static constexpr index_t max_rows = 64;

  /// `counts_only`: for bytes() alone, which may then be a little too large.
  gemm_walk(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, int threads, bool counts_only = false)
      : plan(a.k, o, Kernel::slice(o.model), counts_only),
        kernel(a, b, o, plan),
        panels((b.rows + Kernel::columns - 1) / Kernel::columns),
        panel_bytes(round_up(kernel.panel_bytes(), 64)),
        at_once(most_of(panels, panel_memory, panel_bytes)),
        group(most_of(at_once, cached_panels, panel_bytes)),
        // Chunks of rows of C: enough for all threads, each large enough to reuse a panel.
        chunk(std::min(max_rows, round_up((a.rows + 4 * threads - 1) / (4 * threads), 8))),
        chunk_bytes(round_up(chunk * kernel.row_bytes(), 64)),
        chunks_at_once(most_of((a.rows + chunk - 1) / chunk, row_memory, chunk_bytes)) {}

  /// Scratch bytes for `threads` threads, the plan included.
  std::size_t bytes(int threads) const {
    const std::size_t tile = scratch_array<float>::bytes(4 * chunk * Kernel::columns), pack = kernel.pack_bytes();
    return plan.bytes() + scratch_array<operand_range>::bytes(at_once) +
           scratch_array<std::byte>::bytes(at_once * panel_bytes) +
           scratch_array<operand_range>::bytes(chunks_at_once * (chunk + 1)) +
           scratch_array<std::byte>::bytes(chunks_at_once * chunk_bytes) +
           static_cast<std::size_t>(threads) * std::max(tile, pack);
  }

  const gemm_plan plan;
  const Kernel kernel;
  const index_t panels, panel_bytes, at_once, group, chunk, chunk_bytes, chunks_at_once;

 private:
  /// As many of `count` parts as fit, at least 1.
  static index_t most_of(index_t count, index_t memory, index_t part) {
    return std::clamp(memory / std::max(index_t{1}, part), index_t{1}, std::max(index_t{1}, count));
  }
};

/// Packs rows [first, last) of A.
template <class Kernel>
void pack_rows(const Kernel& kernel, const gemm_operand& a, index_t first, index_t last, std::byte* to,
               operand_range* ranges) {
  if constexpr (requires { kernel.pack_transposed_rows(first, last, to, ranges); }) {
    if (a.transposed) return kernel.pack_transposed_rows(first, last, to, ranges);
  }
  for (index_t i = first; i < last; ++i) ranges[i - first] = kernel.pack_row(i, to + (i - first) * kernel.row_bytes());
}

/// The range of `count` rows, for kernels that take rows by it.
template <class Kernel>
operand_range joined_range([[maybe_unused]] const operand_range* rows, [[maybe_unused]] index_t count) {
  operand_range all;
  if constexpr (requires { Kernel::takes_joined_rows; }) {
    all.folded = 0;
    for (index_t i = 0; i < count; ++i) all.include(rows[i]);
  }
  return all;
}

/// Computes all of C with one kernel. Both operands are packed once. All rows pass through a group of panels, which
/// stays in L2, before the next group.
template <class Kernel>
void gemm_with(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
               thread_pool& pool) {
  const gemm_walk<Kernel> walk(a, b, o, pool.threads());
  const scratch_array<operand_range> ranges(walk.at_once), row_ranges(walk.chunks_at_once * (walk.chunk + 1));
  const scratch_array<std::byte> packed(walk.at_once * walk.panel_bytes);
  const scratch_array<std::byte> rows(walk.chunks_at_once * walk.chunk_bytes);
  const row_finisher finisher(combined_factor(a, b, o), o, c);
  const auto each_chunk = [&](index_t first_row, index_t i, const auto& body) {
    const index_t first = first_row + i * walk.chunk;
    body(first, std::min(a.rows, first + walk.chunk), rows.data() + i * walk.chunk_bytes,
         row_ranges.data() + i * (walk.chunk + 1));
  };
  for (index_t first_panel = 0; first_panel < walk.panels; first_panel += walk.at_once) {
    const index_t count = std::min(walk.at_once, walk.panels - first_panel);
    pool.for_each(count, [&](index_t p) {
      const index_t first = (first_panel + p) * Kernel::columns;
      const index_t valid = std::min(Kernel::columns, b.rows - first);
      ranges[p] = walk.kernel.pack_panel(first, valid, packed.data() + p * walk.panel_bytes);
    });
    const index_t groups = (count + walk.group - 1) / walk.group;
    for (index_t first_row = 0; first_row < a.rows; first_row += walk.chunks_at_once * walk.chunk) {
      const index_t chunks = std::min(walk.chunks_at_once, (a.rows - first_row + walk.chunk - 1) / walk.chunk);
      pool.for_each(chunks, [&](index_t i) {
        each_chunk(first_row, i, [&](index_t first, index_t last, std::byte* to, operand_range* found) {
          pack_rows(walk.kernel, a, first, last, to, found);
          found[last - first] = joined_range<Kernel>(found, last - first);
        });
      });
      pool.for_each(groups * chunks, [&](index_t task) {
        each_chunk(first_row, task % chunks, [&](index_t first, index_t last, std::byte* from, operand_range* found) {
          const scratch_array<float> sums(4 * walk.chunk * Kernel::columns);
          gemm_tile<Kernel> tile{walk.kernel,         a,    b,          o, walk.plan, c, first, last - first, found,
                                 found[last - first], from, sums.data()};
          const index_t first_of_group = task / chunks * walk.group;
          for (index_t p = first_of_group; p < std::min(count, first_of_group + walk.group); ++p) {
            tile.compute((first_panel + p) * Kernel::columns, ranges[p], packed.data() + p * walk.panel_bytes,
                         finisher);
          }
          finisher.end();
        });
      });
    }
  }
}

/// Can `Kernel` compute this GEMM? A tile holds one running sum of partitions. Pairwise order of more than 3 partitions
/// needs several.
template <class Kernel>
bool kernel_applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  const bool one_sum = o.order != split_order::pairwise || o.split_k <= 3;
  return one_sum && Kernel::applies(a, b, o);
}

template <class... Kernels>
struct kernel_list {};
using gemm_kernels = kernel_list<fp32_chain, tile_chains, flushing_chains, unit_blocks, exact_blocks, scaled_blocks,
                                 aligned_steps, late_steps>;

/// Computes C with the first kernel that applies, or with the definition.
template <class Kernel, class... Rest>
void gemm_with_first(kernel_list<Kernel, Rest...>, const gemm_operand& a, const gemm_operand& b, const gemm_options& o,
                     matrix<float> c, thread_pool& pool) {
  if (kernel_applies<Kernel>(a, b, o)) return gemm_with<Kernel>(a, b, o, c, pool);
  if constexpr (sizeof...(Rest) > 0) {
    gemm_with_first(kernel_list<Rest...>{}, a, b, o, c, pool);
  } else {
    pool.for_each(a.rows, [&](index_t i) { gemm_row_ref(a, b, o, c, i); });
  }
}

/// Scratch bytes of gemm_with_first.
template <class Kernel, class... Rest>
std::size_t first_kernel_bytes(kernel_list<Kernel, Rest...>, const gemm_operand& a, const gemm_operand& b,
                               const gemm_options& o, int threads) {
  if (kernel_applies<Kernel>(a, b, o)) return gemm_walk<Kernel>(a, b, o, threads, true).bytes(threads);
  if constexpr (sizeof...(Rest) > 0) return first_kernel_bytes(kernel_list<Rest...>{}, a, b, o, threads);
  return 0;
}

/// Transposes rows [first, last) of a transposed matrix of T into contiguous rows, `stride` bytes apart. Tiles of 64
/// columns stay in the cache.
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

/// Bytes of the copy that plain_operand makes.
inline index_t plain_copy_bytes(const gemm_operand& a) {
  const bool codes = a.transposed || a.code_order != placement::row_major,
             scales = a.block != 0 && a.scale_order != placement::row_major;
  return (codes ? a.rows * packed_bytes(a.element, a.k) : 0) + (scales ? a.rows * a.scale_columns() : 0);
}

/// The operand as kernels read it: k contiguous, scales row-major. Returns `a` itself, or a copy at `to`.
inline gemm_operand plain_operand(const gemm_operand& a, std::uint8_t* to, thread_pool& pool) {
  gemm_operand plain = a;
  const index_t stride = packed_bytes(a.element, a.k), columns = a.scale_columns();
  const bool place_scales = a.block != 0 && a.scale_order != placement::row_major;
  const bool copies_codes = a.transposed || a.code_order != placement::row_major;
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

/// Does the kernel of this GEMM read transposed operands in place?
inline bool reads_strips(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  return fp32_chain::applies(a, b, o) || flushing_chains::applies(a, b, o);  // tile_chains too
}
/// Bytes of the copy that an operand needs; 0 if kernels read it in place.
inline index_t copy_bytes(const gemm_operand& x, bool strips) {
  return strips && has_column_strips(x) ? 0 : plain_copy_bytes(x);
}

/// Computes each matrix of a batch with the first kernel that applies.
template <class Kernels>
void gemm_batch(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, view<float, 3> c,
                thread_pool& pool) {
  const bool strips = reads_strips(a, b, o);
  const index_t copied[] = {copy_bytes(a, strips), copy_bytes(b, strips)};
  const scratch_array<std::uint8_t> memory(copied[0] + copied[1]);
  for (index_t i = 0; i < c.extent(0); ++i) {
    gemm_operand left = batch_element(a, i), right = batch_element(b, i);
    if (copied[0] != 0) left = plain_operand(left, memory.data(), pool);
    if (copied[1] != 0) right = plain_operand(right, memory.data() + copied[0], pool);
    gemm_with_first(Kernels{}, left, right, o, batch_element(c, i), pool);
  }
}

/// Scratch bytes of gemm_batch.
template <class Kernels>
std::size_t gemm_batch_bytes(gemm_operand a, gemm_operand b, const gemm_options& o, int threads) {
  const bool strips = reads_strips(a, b, o);
  const std::size_t copies = scratch_array<std::uint8_t>::bytes(copy_bytes(a, strips) + copy_bytes(b, strips));
  for (gemm_operand* const x : {&a, &b}) {
    if (copy_bytes(*x, strips) != 0) x->transposed = false;
  }
  return copies + first_kernel_bytes(Kernels{}, a, b, o, threads);
}

#if defined(ROTOSCALE_COMPILED)
extern template void gemm_batch<gemm_kernels>(const gemm_operand&, const gemm_operand&, const gemm_options&,
                                              view<float, 3>, thread_pool&);
extern template std::size_t gemm_batch_bytes<gemm_kernels>(gemm_operand, gemm_operand, const gemm_options&, int);
#endif

}  // namespace ROTOSCALE_ISA
}  // namespace detail

inline namespace ROTOSCALE_ISA {

/// gemm_ref, blocked and threaded; equal by bytes. Scratch memory comes from, in this order: `workspace`, memory lent
/// to the calling thread, memory that threads keep between calls.
inline void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, view<float, 3> c,
                 thread_pool& pool, std::span<std::byte> workspace = {}) {
  ROTOSCALE_REQUIRE(gemm_is_defined(a, b, o) && c.extent(1) == a.rows && c.extent(2) == b.rows);
  if (a.rows == 0 || b.rows == 0) return;
  const auto compute = [&] { detail::gemm_batch<detail::gemm_kernels>(a, b, o, c, pool); };
  if (workspace.empty()) return compute();
  const lent_scratch lent(workspace);
  compute();
}
/// gemm for one matrix.
inline void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                 thread_pool& pool, std::span<std::byte> workspace = {}) {
  gemm(a, b, o, as_batch(c), pool, workspace);
}
/// Workspace bytes with which gemm allocates nothing on `threads` threads. Only formats, extents and orders of the
/// operands count; codes may be null.
inline std::size_t gemm_workspace_bytes(const gemm_operand& a, const gemm_operand& b, const gemm_options& o,
                                        int threads) {
  if (a.rows == 0 || b.rows == 0) return 0;
  return detail::gemm_batch_bytes<detail::gemm_kernels>(a, b, o, threads) +
         static_cast<std::size_t>(threads + 1) * scratch_stack::alignment;
}

}  // namespace ROTOSCALE_ISA

}  // namespace rotoscale
