// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Decodes operands and measures their error. Squares and products of FP32 numbers are exact in FP64, so only the stated
// additions round: 16 lanes along a row, folded by halves, then a tree over rows.
#pragma once

#include <cstring>

#include "rotoscale/detail/decode.hpp"
#include "rotoscale/nn/cpu/layers.hpp"
#include "rotoscale/nn/cpu/operands.hpp"
#include "rotoscale/nn/cpu/optimizer.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace rotoscale::nn::cpu {

/// Rows of any operand as FP32: code · block scale · factor, each product rounded once.
class operand_reader {
 public:
  explicit operand_reader(const gemm_operand& operand)
      : o_(operand), table_(operand.element.bits() <= 8 ? operand.element : formats::e4m3) {
    largest_ = decode(o_.element, o_.element.max_code());
    for (std::uint32_t byte = 0; byte < 256 && o_.block != 0; ++byte) {
      scales_[byte] = o_.scale.is_nan(byte) ? fp32_from_bits(fp32_nan_bits) : decode(o_.scale, byte);
    }
  }

  /// Elements of row `r`.
  void read(index_t r, float* to) const {
    if (o_.block != 0 && o_.block % 2 == 0 && has_nibbles()) {
      for (index_t c = 0; c < o_.k; c += o_.block) {
        rotoscale::detail::decode_nibbles(o_.codes + r * o_.code_stride + c / 2, std::min<index_t>(o_.block, o_.k - c),
                                          table_, block_scale(r, c / o_.block), to + c);
      }
    } else if (read_codes(r, to); o_.block != 0) {
      for (index_t c = 0; c < o_.k; c += o_.block) {
        const float scale = block_scale(r, c / o_.block);
        for (index_t i = c; i < std::min(c + o_.block, o_.k); ++i) to[i] *= scale;
      }
    }
    if (o_.factor == nullptr || *o_.factor == 1.0f) return;
    for (index_t c = 0; c < o_.k; ++c) to[c] *= *o_.factor;
  }
  /// Largest magnitude of an element of row `r` in the block that begins with element `c`.
  float largest(index_t r, index_t c) const {
    const float block = o_.block == 0 ? largest_ : largest_ * block_scale(r, c / o_.block);
    return o_.factor == nullptr ? block : block * *o_.factor;
  }
  /// The scale of a block; NaN where its byte says so.
  float block_scale(index_t r, index_t b) const { return scales_[o_.scale_byte(r, b)]; }
  const gemm_operand& operand() const { return o_; }

 private:
  /// Are codes half bytes, in rows?
  bool has_nibbles() const {
    return o_.code_order == placement::row_major && storage_bits(o_.element) == 4 && !o_.transposed;
  }
  /// Codes without scales; formats that lie in whole bytes are read without operand_code's search.
  void read_codes(index_t r, float* to) const {
    const int bits = storage_bits(o_.element);
    const bool in_order = o_.code_order == placement::row_major;
    if (has_nibbles()) {
      const std::uint8_t* from = o_.codes + r * o_.code_stride;
      for (index_t c = 0; c < o_.k; ++c) to[c] = table_.value[from[c / 2] >> (c % 2 * 4) & 0xF];
      return;
    }
    if (!in_order || bits % 8 != 0) {
      for (index_t c = 0; c < o_.k; ++c) to[c] = value(operand_code(o_, r, c));
      return;
    }
    bits == 32   ? read_whole<std::uint32_t>(r, to)
    : bits == 16 ? read_whole<std::uint16_t>(r, to)
                 : read_whole<std::uint8_t>(r, to);
  }
  template <class Code>
  void read_whole(index_t r, float* to) const {
    constexpr index_t width = sizeof(Code);
    const index_t step = o_.transposed ? o_.code_stride : width;
    const std::uint8_t* from = o_.codes + (o_.transposed ? r * width : r * o_.code_stride);
    const bool is_bf16 = o_.element == formats::bf16, is_fp32 = o_.element == formats::fp32;
    for (index_t c = 0; c < o_.k; ++c, from += step) {
      Code code;
      std::memcpy(&code, from, sizeof code);  // little-endian, as operand_code reads it
      if constexpr (width == 1) {
        to[c] = table_.value[code];
      } else {
        to[c] = is_fp32   ? fp32_from_bits(code)
                : is_bf16 ? fp32_from_bits(static_cast<std::uint32_t>(code) << 16)
                          : value(code);
      }
    }
  }
  float value(std::uint64_t code) const {
    return o_.element.bits() <= 8 ? table_.value[code] : decode(o_.element, code);
  }

  gemm_operand o_;
  rotoscale::detail::decode_table table_;
  float scales_[256] = {};
  float largest_ = 0;
};

namespace detail {

/// Sixteen lanes of FP64, folded as ordered_sum folds its own.
struct wide_lanes {
  double lane[16] = {};
  double fold() const {
    double sum[16];
    for (int j = 0; j < 16; ++j) sum[j] = lane[j];
    for (int width = 8; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
    }
    return sum[0];
  }
};

/// Bits of |x|, or 0 if x is not finite. As integers they compare like |x|. (std::fmax is a call.)
inline std::uint32_t finite_magnitude(float x) {
  const std::uint32_t magnitude = fp32_bits(x) & fp32_magnitude_mask;
  return magnitude < fp32_infinity_bits ? magnitude : 0;
}

/// One row: reference, stored values, and the largest magnitude of each block. Blocks are whole lanes, or the row.
inline void observe_row(const operand_reader& stored, index_t r, const float* reference, const float* value,
                        operand_statistics& s) {
  const index_t k = stored.operand().k, block = stored.operand().block == 0 ? k : stored.operand().block;
  wide_lanes signal, noise;
  std::uint32_t most = 0;
  int nonfinite = 0, nonzero = 0, flushed = 0, saturated = 0;
  for (index_t first = 0; first < k; first += block) {
    const float largest = stored.largest(r, first);
    const index_t last = std::min(first + block, k);
    for (index_t c = first; c < last; ++c) {
      const std::uint32_t x_bits = fp32_bits(reference[c]) & fp32_magnitude_mask,
                          y_bits = fp32_bits(value[c]) & fp32_magnitude_mask;
      const bool finite = x_bits < fp32_infinity_bits && y_bits < fp32_infinity_bits;
      const float x = finite ? reference[c] : 0.0f, error = finite ? x - value[c] : 0.0f;
      signal.lane[c % 16] += static_cast<double>(x) * static_cast<double>(x);
      noise.lane[c % 16] += static_cast<double>(error) * static_cast<double>(error);
      nonfinite += !finite;
      nonzero += x != 0.0f;
      flushed += finite && x != 0.0f && value[c] == 0.0f;
      saturated += x > largest || -x > largest;
      most = finite && x_bits > most ? x_bits : most;
    }
  }
  s.signal = signal.fold();
  s.noise = noise.fold();
  s.elements = k;
  s.nonfinite = nonfinite;
  s.nonzero = nonzero;
  s.flushed = flushed;
  s.saturated = saturated;
  s.rotated_amax = fp32_from_bits(most);
}

/// Binades between the scales of a row's blocks that hold a finite number other than zero.
inline void observe_scales(const operand_reader& stored, index_t r, const float* value, operand_statistics& s) {
  const gemm_operand& o = stored.operand();
  if (o.block == 0) return;
  int least = 0, most = 0;
  bool any = false;
  for (index_t first = 0; first < o.k; first += o.block) {
    bool zero = true;
    for (index_t c = first; c < std::min(first + o.block, o.k); ++c) zero &= value[c] == 0.0f;
    const float scale = stored.block_scale(r, first / o.block);
    if (zero || !(scale > 0.0f)) continue;
    const int exponent = std::ilogb(scale);
    least = any ? std::min(least, exponent) : exponent;
    most = any ? std::max(most, exponent) : exponent;
    any = true;
  }
  if (!any) return;
  s.rows = 1;
  s.spread_sum = s.spread_max = most - least;
  s.rows_int8 = most - least <= int8_window_binades;
  s.rows_e5m2 = most - least <= e5m2_window_binades;
}

/// Sums of all rows into the first: counts in any order, FP64 by the tree.
inline void fold_rows(operand_statistics* rows, index_t n, operand_statistics& to) {
  operand_statistics all;
  for (index_t r = 0; r < n; ++r) {
    const operand_statistics& s = rows[r];
    all.elements += s.elements;
    all.nonzero += s.nonzero;
    all.flushed += s.flushed;
    all.saturated += s.saturated;
    all.nonfinite += s.nonfinite;
    all.rows += s.rows;
    all.spread_sum += s.spread_sum;
    all.rows_int8 += s.rows_int8;
    all.rows_e5m2 += s.rows_e5m2;
    all.spread_max = std::max(all.spread_max, s.spread_max);
    all.amax = std::max(all.amax, s.amax);
    all.rotated_amax = std::max(all.rotated_amax, s.rotated_amax);
  }
  index_t width = 1;
  while (width < n) width *= 2;
  for (; width > 1; width /= 2) {
    for (index_t i = 0; i + width / 2 < std::min(n, width); ++i) {
      rows[i].signal += rows[i + width / 2].signal;
      rows[i].noise += rows[i + width / 2].noise;
    }
  }
  if (n > 0) {
    all.signal = rows[0].signal;
    all.noise = rows[0].noise;
  }
  to = all;
}

/// Rows [first, last) of the operand as the quantizer read them: rows or columns of the source.
template <class T>
void gather_rows(matrix<const T> source, operand_form form, index_t first, index_t last, float* to) {
  const index_t k = source.extent(form == operand_form::row ? 1 : 0);
  if (form == operand_form::row) {
    for (index_t r = first; r < last; ++r) {
      for (index_t c = 0; c < k; ++c) to[(r - first) * k + c] = load_element(source(r, c));
    }
    return;
  }
  for (index_t c = 0; c < k; ++c) {
    for (index_t r = first; r < last; ++r) to[(r - first) * k + c] = load_element(source(c, r));
  }
}

}  // namespace detail

/// Rows that observe_operand takes at once.
inline constexpr index_t observed_chunk = 16;
/// Scratch memory of a thread of observe_operand, of an operand over at most k.
inline std::size_t observed_bytes(index_t k) { return scratch_array<float>::bytes((observed_chunk + 1) * k); }

/// `rows` has room for as many as the operand has.
template <class T>
void observe_operand(matrix<const T> source, const gemm_operand& operand, operand_form form, const rotation& rotated,
                     operand_statistics* rows, operand_statistics& to, thread_pool& pool) {
  const operand_reader stored(operand);
  const index_t k = operand.k;
  const int run = std::max(rotated.points, operand.block);
  for_each_chunk(pool, operand.rows, observed_chunk, [&](index_t first, index_t last) {
    const row_scratch room(observed_chunk + 1, k);
    detail::gather_rows(source, form, first, last, room[0]);
    for (index_t r = first; r < last; ++r) {
      float *const x = room[r - first], *const value = room[observed_chunk];
      operand_statistics s;
      std::uint32_t most = 0;
      for (index_t c = 0; c < k; ++c) most = std::max(most, detail::finite_magnitude(x[c]));
      s.amax = fp32_from_bits(most);
      if (rotated.points != 0) {
        for (index_t c = 0; c < k; c += run) rotate_run(x + c, run, rotated);
      }
      stored.read(r, value);
      detail::observe_row(stored, r, x, value, s);
      detail::observe_scales(stored, r, value, s);
      rows[r] = s;
    }
  });
  detail::fold_rows(rows, operand.rows, to);
}

/// Chunks of 4096 elements, 16 lanes each; a tree over chunks.
inline void compute(const op::compare::in& i, const op::compare::out& o, thread_pool& pool) {
  const index_t chunks = chunk_count(i.n);
  const auto partial = work<double>(4 * chunks);
  for_each_chunk(pool, i.n, squares_chunk, [&](index_t first, index_t last) {
    detail::wide_lanes sums[4];
    for (index_t at = first; at < last; ++at) {
      const double x = static_cast<double>(i.reference[at]), y = static_cast<double>(i.value[at]),
                   error = static_cast<double>(i.reference[at] - i.value[at]);
      const index_t j = (at - first) % 16;
      sums[0].lane[j] += x * x;
      sums[1].lane[j] += y * y;
      sums[2].lane[j] += x * y;
      sums[3].lane[j] += error * error;
    }
    for (index_t s = 0; s < 4; ++s) partial[s * chunks + first / squares_chunk] = sums[s].fold();
  });
  const auto sum = [&](index_t s) { return tree_sum(partial.data() + s * chunks, chunks); };
  *o.to = {sum(0), sum(1), sum(2), sum(3), i.n};
}
inline room workspace(const op::compare::in& i, const op::compare::out&) {
  return room_for<double>(4 * chunk_count(i.n));
}

/// Values of an operand in its source's orientation, rounded once to what `target` stores.
template <class T>
void dequantize_operand(const gemm_operand& operand, operand_form form, matrix<T> target, thread_pool& pool) {
  const operand_reader stored(operand);
  for_each_chunk(pool, operand.rows, row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(1, operand.k);
    for (index_t r = first; r < last; ++r) {
      if (form == operand_form::row && target.stride(1) == 1) {
        T* const to = &target(r, 0);
        float* const values = target_row(to, room[0]);
        stored.read(r, values);
        write_row(values, operand.k, to);
        continue;
      }
      stored.read(r, room[0]);
      for (index_t c = 0; c < operand.k; ++c) {
        store_element(form == operand_form::row ? target(r, c) : target(c, r), room[0][c]);
      }
    }
  });
}

}  // namespace rotoscale::nn::cpu
