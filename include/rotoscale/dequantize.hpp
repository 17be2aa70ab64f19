// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast dequantizer, equal to dequantize_ref by bytes: a table gives the value of each code, which is multiplied by
// its scale. The product is the only rounding if every element is an FP32 number; other formats take the reference.
#pragma once

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/detail/fast_round.hpp"
#include "rotoscale/detail/mxfp4_decode.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale {

namespace detail {
inline namespace ROTOSCALE_ISA {

/// Targets above this size are written with streaming stores, which bypass the caches.
inline constexpr index_t dequantize_streaming_bytes = index_t{8} << 20;

/// Elements [c, c + count) of row `r`, all in one block, times `decode_factor`.
inline void dequantize_block(block_format f, const decode_table& table, block_matrix<const std::uint8_t> in, index_t r,
                             index_t c, index_t count, float decode_factor, float* to) {
  if (f.has_e8m0_scale() && !fits_fp32(f.element)) {  // the table rounds before the scale is known
    for (index_t i = 0; i < count; ++i) to[i] = canonical_nan(decode_element(f, in, r, c + i) * decode_factor);
    return;
  }
  const std::uint8_t code = in.scales[r / f.rows * in.scale_stride + c / f.length];
  const float scale = scale_value(f.scale, code);
  const std::uint8_t* codes = in.codes + r * in.code_stride;
  if (f.scale.is_nan(code)) {
    for (index_t i = 0; i < count; ++i) to[i] = fp32_from_bits(fp32_nan_bits);
    return;
  }
  if (storage_bits(f.element) == 4 && c % 2 == 0) {
    decode_nibbles(codes + c / 2, count, table, scale, to);
  } else {
    for (index_t i = 0; i < count; ++i) to[i] = table.value[load_code(f.element, codes, c + i)] * scale;
  }
  if (decode_factor != 1.0f) {
    for (index_t i = 0; i < count; ++i) to[i] *= decode_factor;
  }
  // NaN comes from an element, from an infinite scale of a zero, or from the factor.
  if (f.element.has_nan() || f.scale.has_infinity() || decode_factor != 1.0f) {
    for (index_t i = 0; i < count; ++i) to[i] = canonical_nan(to[i]);
  }
}

/// store_value for `count` elements. Compilers vectorise the BF16 loop.
template <class T>
inline void store_values(const float* from, index_t count, T* to) {
  for (index_t i = 0; i < count; ++i) store_value(from[i], to[i]);
}
inline void store_values(const float* from, index_t count, bf16* to) {
  for (index_t i = 0; i < count; ++i) {
    const std::uint32_t u = fp32_bits(from[i]);
    std::uint32_t rounded = u;
    round_number_to_bf16(rounded);
    to[i] = bf16::from_bits(static_cast<std::uint16_t>((fp32_is_nan(u) ? fp32_nan_bits : rounded) >> 16));
  }
}

/// One row of the quantized matrix as FP32.
inline void dequantize_row(block_format f, const decode_table& table, block_matrix<const std::uint8_t> in, index_t r,
                           float decode_factor, float* to) {
  for (index_t c = 0; c < in.k; c += f.length) dequantize_block(f, table, in, r, c, f.length, decode_factor, to + c);
}

#if defined(__AVX2__)  // AVX512BW includes AVX2
template <class T>
inline void dequantize_mxfp4_row(const decode_table& table, block_matrix<const std::uint8_t> in, index_t r, T* to,
                                 bool stream) {
  const e2m1_values values(table);
  for (index_t b = 0; b < in.k / 32; ++b) {
    const float scale = scale_value(in.scales[r * in.scale_stride + b]);
    values.times(scale).decode(in.codes + r * in.code_stride + 16 * b, to + 32 * b, stream);
  }
  if (stream) finish_streaming();
}
#endif

}  // namespace ROTOSCALE_ISA
}  // namespace detail

inline namespace ROTOSCALE_ISA {

/// dequantize_ref, threaded.
template <class T>
void dequantize(block_format f, block_matrix<const std::uint8_t> in, block_axis axis, matrix<T> target,
                thread_pool& pool, float decode_factor = 1.0f) {
  const matrix<T> out = axis == block_axis::row ? target : transposed(target);
  ROTOSCALE_REQUIRE(dequantize_is_defined(f, in, axis, target));
  const detail::decode_table table(f.element);
  const bool contiguous = std::is_same_v<T, float> && out.stride(1) == 1;
#if defined(__AVX2__)  // which AVX512BW includes
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
    constexpr block_format covered = mxfp4;
    if (out.stride(1) == 1 && f == covered && decode_factor == 1.0f) {
      const auto bytes = static_cast<index_t>(sizeof(T));
      const bool stream = in.rows * in.k * bytes >= detail::dequantize_streaming_bytes &&
                          out.stride(0) * bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(out.data) % 64 == 0;
      return pool.for_each(in.rows, [&](index_t r) {
        detail::dequantize_mxfp4_row(table, in, r, out.data + r * out.stride(0), stream);
      });
    }
  }
#endif
  if (contiguous) {
    pool.for_each(in.rows, [&](index_t r) {
      detail::dequantize_row(f, table, in, r, decode_factor, reinterpret_cast<float*>(out.data + r * out.stride(0)));
    });
    return;
  }
  // Strips of 16 rows, so that a transposed target is written a cache line at a time.
  constexpr index_t strip = 16;
  for_each_chunk(pool, in.rows, strip, [&](index_t first, index_t last) {
    float block[strip][max_run_length];
    for (index_t c = 0; c < in.k; c += f.length) {
      for (index_t r = first; r < last; ++r) {
        detail::dequantize_block(f, table, in, r, c, f.length, decode_factor, block[r - first]);
      }
      if (out.stride(1) == 1) {
        for (index_t r = first; r < last; ++r) detail::store_values(block[r - first], f.length, &out(r, c));
        continue;
      }
      for (index_t i = 0; i < f.length; ++i) {
        for (index_t r = first; r < last; ++r) detail::store_values(&block[r - first][i], 1, &out(r, c + i));
      }
    }
  });
}

#if defined(ROTOSCALE_COMPILED)
extern template void dequantize<float>(block_format, block_matrix<const std::uint8_t>, block_axis, matrix<float>,
                                       thread_pool&, float);
extern template void dequantize<bf16>(block_format, block_matrix<const std::uint8_t>, block_axis, matrix<bf16>,
                                      thread_pool&, float);
#endif

}  // namespace ROTOSCALE_ISA

}  // namespace rotoscale
