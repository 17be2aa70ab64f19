// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// gemm_ref at CPU speed: codes are decoded to FP32 (exactly) a panel at a time and multiplied by one microkernel.
#pragma once

#include "rotoscale/detail/gemm_kernel.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale {

namespace detail {

/// FP32 values of every code of a format of at most 8 bits.
struct decode_table {
  float value[256];
  explicit decode_table(format f) {
    for (std::uint32_t code = 0; code < 256; ++code)
      value[code] = decode(f, code & (f.sign_mask() | f.magnitude_mask()));
  }
};

inline void decode_nibbles(const std::uint8_t* codes, index_t count, const decode_table& table, float scale,
                           float* out) {
  index_t i = 0;
#if defined(__AVX512F__)
  const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(table.value), _mm512_set1_ps(scale));
  for (; i + 16 <= count; i += 16) {  // eight bytes to sixteen indices: even elements in the low nibbles
    std::uint64_t bytes;
    __builtin_memcpy(&bytes, codes + i / 2, sizeof bytes);
    // The zero-masked forms: g++ 12 warns of an uninitialised value inside its own header for the plain ones.
    const __m512i wide = _mm512_maskz_cvtepu8_epi32(
        0xFFFF, _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<long long>(bytes & 0x0F0F0F0F0F0F0F0Full)),
                                  _mm_cvtsi64_si128(static_cast<long long>((bytes >> 4) & 0x0F0F0F0F0F0F0F0Full))));
    _mm512_storeu_ps(out + i, _mm512_maskz_permutexvar_ps(0xFFFF, wide, values));
  }
#endif
  for (; i < count; ++i) out[i] = table.value[nibble(codes[i / 2], i)] * scale;
}

/// Row r of an operand as k floats.
inline void decode_row(const gemm_operand& a, const decode_table& table, index_t r, float* out) {
  const std::uint8_t* row = a.codes + r * a.code_stride;
  if (a.element == formats::fp32 && a.block == 0) {
    __builtin_memcpy(out, row, static_cast<std::size_t>(a.k) * sizeof(float));
  } else if (a.element == formats::bf16 && a.block == 0) {
    for (index_t i = 0; i < a.k; ++i) {
      std::uint16_t code;
      __builtin_memcpy(&code, row + 2 * i, sizeof code);
      out[i] = fp32_from_bits(static_cast<std::uint32_t>(code) << 16);
    }
  } else if (a.element.bits() > 8) {
    for (index_t i = 0; i < a.k; ++i) out[i] = operand_value(a, r, i);
  } else {
    const index_t length = a.block == 0 ? a.k : a.block;
    for (index_t first = 0; first < a.k; first += length) {
      const index_t count = a.k - first < length ? a.k - first : length;
      // A product with a power of two: exact, or rounded once as operand_value rounds it.
      const float scale = a.block == 0 ? 1.0f : scale_value(a.scale, operand_scale(a, r, first));
      if (a.element.bits() == 4) {
        decode_nibbles(row + first / 2, count, table, scale, out + first);
      } else {
        for (index_t i = first; i < first + count; ++i) out[i] = table.value[load_code(a.element, row, i)] * scale;
      }
    }
  }
}

struct gemm_panel_scratch;
struct gemm_rows_scratch;
struct gemm_tile_scratch;

/// Rows [first, last) as floats k apart: in place when they already are.
inline const float* decode_rows(const gemm_operand& a, const decode_table& table, index_t first, index_t last) {
  if (a.element == formats::fp32 && a.block == 0 && a.code_stride == a.k * static_cast<index_t>(sizeof(float)) &&
      reinterpret_cast<std::uintptr_t>(a.codes) % alignof(float) == 0) {
    return reinterpret_cast<const float*>(a.codes + first * a.code_stride);
  }
  float* rows = scratch<gemm_rows_scratch>((last - first) * a.k);
  for (index_t i = first; i < last; ++i) decode_row(a, table, i, rows + (i - first) * a.k);
  return rows;
}

/// finish_output over one row: loops without a branch in them, which compilers vectorise.
inline void finish_row(const float* acc, index_t n, float factor, const gemm_options& o, float* to, index_t stride) {
  const bool plain = o.output == formats::fp32;
  if (stride != 1 || (!plain && o.output != formats::bf16)) {
    for (index_t j = 0; j < n; ++j) {
      to[j * stride] = finish_output(acc[j], factor, o, o.accumulate ? to[j * stride] : 0.0f);
    }
    return;
  }
  if (o.accumulate) {
    for (index_t j = 0; j < n; ++j) to[j] = __builtin_fmaf(acc[j], factor, o.beta * to[j]);
  } else {
    for (index_t j = 0; j < n; ++j) to[j] = acc[j] * factor;
  }
  for (index_t j = 0; j < n; ++j) {
    const std::uint32_t u = fp32_bits(to[j]);
    const std::uint32_t rounded = plain ? u : (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
    to[j] = fp32_from_bits(fp32_is_nan(u) ? o.model.nan_bits : rounded);
  }
}

struct byte_range {
  int least = 255;
  int largest = 0;
};

/// Range of the scale bytes of an operand, NaN scales left out.
inline byte_range scale_range(const gemm_operand& a) {
  if (a.block == 0) return {127, 127};
  byte_range range;
  for (index_t r = 0; r < a.rows; r += a.block_rows) {
    for (index_t b = 0; b < (a.k + a.block - 1) / a.block; ++b) {
      const int byte = a.scales[r / a.block_rows * a.scale_stride + b];
      if (byte == nan_scale_byte) continue;
      range.least = byte < range.least ? byte : range.least;
      range.largest = byte > range.largest ? byte : range.largest;
    }
  }
  return range;
}

/// Are all elements and partial sums of a group exact in FP32? An element is at most 6 < 2^3 times its scale and must
/// not reach 2^128. A product of E2M1 values is a multiple of 1/4, a group's sum at most 36 * group, both times
/// 2^(byte_a + byte_b - 254): the last place must not fall below 2^-149, nor the sum reach 2^128.
inline bool block_sums_fit_fp32(const gemm_operand& a, const gemm_operand& b, int group) {
  const byte_range ra = scale_range(a);
  const byte_range rb = scale_range(b);
  if (ra.largest - 127 + 3 > 128 || rb.largest - 127 + 3 > 128) return false;
  const int sum_bits = 6 + highest_bit(static_cast<std::uint64_t>(group));  // 36 < 2^6; the group is a power of two
  return ra.least + rb.least - 254 - 2 >= -149 && ra.largest + rb.largest - 254 + sum_bits <= 128;
}

/// Does the FP32 microkernel give this GEMM's bits?
inline bool fp32_kernel_applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  const mma_model& m = o.model;
  const bool plain =
      m.sum == mma_sum::exact && m.result == mma_result::fp32_nearest && m.operand == format{} && !m.c_last;
  if (!plain || o.start_from_c || o.promotion != 0 || o.split_k != 1) return false;
  if (m.group == 1) return true;
  const auto exact = [&](const gemm_operand& x) {
    return x.element == formats::e2m1 && (x.block == 0 || (x.block % m.group == 0 && x.scale == formats::e8m0));
  };
  // multiply_panels cuts K every 256
  return exact(a) && exact(b) && 256 % m.group == 0 && block_sums_fit_fp32(a, b, m.group);
}

}  // namespace detail

/// gemm_ref, blocked and threaded; equal by bytes.
inline void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                 thread_pool& pool) {
  ROTOSCALE_ASSERT(gemm_is_defined(a, b, o) && c.extent(0) == a.rows && c.extent(1) == b.rows);
  if (a.rows == 0 || b.rows == 0) return;
  if (!detail::fp32_kernel_applies(a, b, o)) {
    return pool.for_each(a.rows, [&](index_t i) { gemm_row_ref(a, b, o, c, i); });
  }
  const index_t m = a.rows;
  const index_t n = b.rows;
  const index_t k = a.k;
  const detail::decode_table table_a(a.element);
  const detail::decode_table table_b(b.element);

  // 1. Decode B into panels.
  float* panels = detail::scratch<detail::gemm_panel_scratch>(detail::panel_floats(n, k));
  pool.for_each(detail::panel_count(n), [&](index_t p) {
    const index_t first = p * detail::gemm_cols;
    const index_t valid = n - first < detail::gemm_cols ? n - first : detail::gemm_cols;
    const float* rows = detail::decode_rows(b, table_b, first, first + valid);
    detail::pack_panel_from_rows(rows, k, valid, k, panels + first * k);
  });

  // 2. Rows of C in chunks: enough of them to share out, large enough to reuse a panel.
  const index_t ldc = detail::panel_count(n) * detail::gemm_cols;
  index_t chunk = (m / (4 * pool.threads()) + detail::gemm_rows - 1) / detail::gemm_rows * detail::gemm_rows;
  chunk = chunk < detail::gemm_rows ? detail::gemm_rows : (chunk > 64 ? 64 : chunk);
  const float factor = combined_factor(a, b, o);
  for_each_chunk(pool, m, chunk, [&](index_t first, index_t last) {
    const float* rows = detail::decode_rows(a, table_a, first, last);
    float* tile = detail::scratch<detail::gemm_tile_scratch>(chunk * ldc);
    __builtin_memset(tile, 0, static_cast<std::size_t>((last - first) * ldc) * sizeof(float));
    detail::multiply_panels(last - first, n, k, o.model.group, rows, k, panels, k, tile, ldc);
    for (index_t i = first; i < last; ++i) {
      detail::finish_row(tile + (i - first) * ldc, n, factor, o, &c(i, 0), c.stride(1));
    }
  });
}

}  // namespace rotoscale
