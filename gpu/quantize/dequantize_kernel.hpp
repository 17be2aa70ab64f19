// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The dequantizer's kernel: a thread decodes a word of codes at a time: four bytes, of 6-bit codes three.
// Words whose numbers are all zero or normal in BF16 take a fast path, which is exact in any order of multiplications.
// Other words are multiplied in the definition's order.
#pragma once

#include "gpu/dialect/convert.hpp"
#include "gpu/dialect/e2m1.hpp"
#include "gpu/quantize/layout.hpp"
#include "rotoscale/dequantize_ref.hpp"

namespace rotoscale::gpu {

struct dequantize_kernel_args {
  block_output in;  ///< read only
  unsigned rows = 0, k = 0, scale_rows = 1, length = 32;
  format scale = formats::e8m0;
  void* target = nullptr;
  index_t row_stride = 0, k_stride = 0;
  const float* factor = nullptr;  ///< null: 1
  bool vectors = false;           ///< rows of the target are contiguous and begin at multiples of 16 bytes
};

/// Value of a code of at most 8 bits. Its magnitude bits equal an FP32 number with another bias, subnormals included,
/// so one exact multiplication decodes it.
template <format F>
__device__ inline float code_value(std::uint32_t code) {
  const std::uint32_t magnitude = code & static_cast<std::uint32_t>(F.magnitude_mask());
  const std::uint32_t sign = (code & static_cast<std::uint32_t>(F.sign_mask())) << (31 - F.magnitude_bits());
  if (F.is_nan(magnitude)) return fp32_from_bits(fp32_nan_bits);
  if (F.is_infinity(magnitude)) return fp32_from_bits(sign | fp32_infinity_bits);
  const float m = fp32_from_bits(magnitude << (23 - F.mantissa_bits)) * pow2_fp32(127 - F.bias);
  return fp32_from_bits(fp32_bits(m) | sign);
}

/// Bits of `x` as T, rounded to nearest even.
template <class T>
__device__ inline std::uint32_t number_bits(float x) {
  if constexpr (std::is_same_v<T, float>) return fp32_bits(x);
  if constexpr (std::is_same_v<T, bf16>) return bf16_bits_keeping_nan(x);
  if constexpr (std::is_same_v<T, fp16>) return fp16_bits(x);
}

/// Elements in a word of codes, and the 32-bit words that hold them as T.
template <format F>
inline constexpr unsigned word_count = F.bits() == 6 ? 4 : 32 / storage_bits(F);
template <class T, format F>
using decoded = std::uint32_t[word_count<F> * sizeof(T) / 4];

/// Decodes by the definition: value times scale, times `factor`.
template <class T, format F>
__device__ inline void decode_word(std::uint32_t codes, float scale, float factor, decoded<T, F>& out) {
  ROTOSCALE_UNROLL
  for (unsigned j = 0; j < word_count<F>; ++j) {
    const float x = code_value<F>(codes >> (storage_bits(F) * j) & ((1u << storage_bits(F)) - 1));
    const std::uint32_t bits = number_bits<T>(canonical_nan(canonical_nan(x * scale) * factor));
    if constexpr (sizeof(T) == 4) {
      out[j] = bits;
    } else {
      out[j / 2] = j % 2 == 0 ? bits : out[j / 2] | bits << 16;
    }
  }
}

/// A scale of any format.
__device__ inline float scale_of(const format& scale, unsigned byte) {
  constexpr format e8m0_format = formats::e8m0, ue4m3_format = formats::ue4m3;
  if (scale == e8m0_format) return scale_value(static_cast<std::uint8_t>(byte));
  return scale == ue4m3_format ? fp8_value(true, byte) : decode(scale, byte);
}

/// True if all numbers of a word are zero or normal in BF16. Checks that the E8M0 scale is far enough from both ends,
/// and that no code is NaN or Inf.
template <format F>
__device__ inline bool word_takes_fast_path(std::uint32_t codes, unsigned scale_byte) {
  if constexpr (F.bits() == 6) return false;
  constexpr unsigned min_scale = 1 - (F.min_exponent() - F.mantissa_bits), max_scale = 254 - F.max_exponent();
  if (scale_byte - min_scale > max_scale - min_scale) return false;
  if constexpr (F.max_code() != F.magnitude_mask()) {
    constexpr std::uint32_t magnitudes = 0x7F7F7F7Fu, to_sign = 0x7Fu - static_cast<std::uint32_t>(F.max_code());
    return (((codes & magnitudes) + to_sign * 0x01010101u) & ~magnitudes) == 0;
  }
  return true;
}

/// Decodes a word of the fast path with a factor of 1. Every product is exact in BF16, as `scale` is.
template <class T, format F>
__device__ inline void decode_word_fast(std::uint32_t codes, float scale, decoded<T, F>& out) {
  std::uint32_t x[word_count<F>];
  if constexpr (F == formats::e2m1) {
    const std::uint32_t high = fp32_bits(scale) >> 16;
    const vec16 pairs = scale_eight(codes, high | high << 16);
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < word_count<F>; ++j) {
      x[j] = j % 2 == 0 ? pairs.word[j / 2] << 16 : pairs.word[j / 2] & 0xFFFF0000u;
    }
  } else {
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < word_count<F>; ++j) {
      const std::uint32_t at_top = codes << (24 - 8 * j);
      const float other_bias = fp32_from_bits((at_top & 0x7F000000u) >> (F.mantissa_bits + 1));
      x[j] = fp32_bits(other_bias * pow2_fp32(127 - F.bias) * scale) | (at_top & fp32_sign_mask);
    }
  }
  ROTOSCALE_UNROLL
  for (unsigned j = 0; j < word_count<F>; ++j) {
    if constexpr (sizeof(T) == 4) {
      out[j] = x[j];
    } else if (j % 2 == 1) {
      out[j / 2] = std::is_same_v<T, bf16> ? x[j - 1] >> 16 | (x[j] & 0xFFFF0000u)
                                           : fp16_pair(fp32_from_bits(x[j - 1]), fp32_from_bits(x[j]));
    }
  }
}

template <format F>
inline constexpr index_t word_bytes = F.bits() == 6 ? 3 : 4;
template <format F>
__device__ inline std::uint32_t load_codes(const std::uint8_t* from) {
  if constexpr (F.bits() == 6) return from[0] | std::uint32_t{from[1]} << 8 | std::uint32_t{from[2]} << 16;
  return *reinterpret_cast<const std::uint32_t*>(from);
}

/// Stores contiguous numbers, 8 or 16 bytes at a time.
template <unsigned Words>
__device__ inline void store_words(const std::uint32_t (&word)[Words], void* to) {
  if constexpr (Words == 2) {
    store_streaming8(to, word[0], word[1]);
  } else {
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < Words; w += 4) {
      store_streaming(static_cast<unsigned char*>(to) + 4 * w, vec16{{word[w], word[w + 1], word[w + 2], word[w + 3]}});
    }
  }
}

/// Consecutive threads take consecutive words of codes along k (row targets) or rows (transposed targets). Each takes
/// four words in the other direction, which share a group of 16 rows or a 16-byte vector. Its fours are `first`,
/// `first` + `step`, and so on. `across`: index of the thread block's 256 words.
template <class T, class Element, bool Transposed>
__device__ inline void dequantize_words(const dequantize_kernel_args& a, unsigned across, unsigned first,
                                        unsigned step) {
  constexpr format F = Element::format;
  constexpr unsigned count = word_count<F>;
  const unsigned words = a.k / count, inner = Transposed ? a.rows : words, outer = Transposed ? words : a.rows;
  const unsigned i = across * 256 + thread_index().x;
  if (i >= inner) return;
  const index_t code_step = Transposed ? word_bytes<F> : a.in.code_row,
                target_step = Transposed ? count * a.k_stride : a.row_stride;
  const index_t scale_step = a.scale_rows > 1 ? 0 : a.in.scale_row;
  constexpr format e8m0_format = formats::e8m0;
  const bool is_e8m0 = a.scale == e8m0_format;
  const float factor = a.factor == nullptr ? 1.0f : *a.factor;
  ROTOSCALE_KEEP_LOOP
  for (unsigned o = 4 * first; o < outer; o += 4 * step) {
    const unsigned r = Transposed ? i : o, w = Transposed ? o : i;
    const std::uint8_t* const codes = a.in.codes + (F.bits() == 6 ? r * a.in.code_stride + w * index_t{3}
                                                                  : code_offset(a.in, r, w / 4) + w % 4 * index_t{4});
    const std::uint8_t* const scales = a.in.scales + scale_offset(a.in, r / a.scale_rows, w * count / a.length);
    T* to = static_cast<T*>(a.target) + r * a.row_stride + w * count * a.k_stride;
    std::uint32_t word[4] = {}, scale[4] = {};
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      if (o + j >= outer) break;
      word[j] = load_codes<F>(codes + j * code_step);
      scale[j] = scales[Transposed ? index_t{j * count / a.length} : j * scale_step];
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j, to += target_step) {
      if (o + j >= outer) break;
      decoded<T, F> out;
      const float value = scale_of(a.scale, scale[j]);
      const bool fast =
          is_e8m0 ? word_takes_fast_path<F>(word[j], scale[j]) : F == formats::e2m1 && !fp32_is_nan(fp32_bits(value));
      if (factor == 1.0f && fast) {
        decode_word_fast<T, F>(word[j], value, out);
      } else {
        decode_word<T, F>(word[j], value, factor, out);
      }
      if (!Transposed && a.vectors) {
        store_words(out, to);
      } else {
        ROTOSCALE_UNROLL
        for (unsigned e = 0; e < count; ++e) {
          if constexpr (sizeof(T) == 4) {
            to[e * a.k_stride] = fp32_from_bits(out[e]);
          } else {
            to[e * a.k_stride] = T::from_bits(static_cast<std::uint16_t>(out[e / 2] >> (e % 2 * 16)));
          }
        }
      }
    }
  }
}

template <class T, class Element, bool Transposed>
__global__ void __launch_bounds__(256) dequantize_kernel(const ROTOSCALE_GRID_CONSTANT dequantize_kernel_args a) {
  dequantize_words<T, Element, Transposed>(a, block_index().x, block_index().y, grid_size().y);
}

/// Two matrices along rows. Thread block b of one takes the words of column b % across and row b / across.
struct dequantize_pair_args {
  struct {
    dequantize_kernel_args matrix;
    unsigned across = 1, down = 0;  ///< thread blocks
  } of[2];
};
template <class T, class Element>
__global__ void __launch_bounds__(256) dequantize_pair_kernel(const ROTOSCALE_GRID_CONSTANT dequantize_pair_args p) {
  const unsigned of_first = p.of[0].across * p.of[0].down;
  const bool second = block_index().x >= of_first;
  const unsigned b = block_index().x - (second ? of_first : 0);
  const auto& own = p.of[second ? 1 : 0];
  dequantize_words<T, Element, false>(own.matrix, b % own.across, b / own.across, own.down);
}

}  // namespace rotoscale::gpu
