// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The dequantizer's kernel: four bytes of codes a thread, every number multiplied by its scale as the definition does.
#pragma once

#include "gpu/block_layout.hpp"

namespace rotoscale::gpu {

struct dequantize_args {
  block_output in;  ///< read only
  unsigned rows = 0, k = 0, scale_rows = 1;
  void* target = nullptr;
  index_t row_stride = 0, k_stride = 0;
  float factor = 1.0f;
  bool vectors = false;  ///< rows of the target are contiguous and begin at multiples of 16 bytes
};

/// The value of a code of at most 8 bits: its magnitude bits are those of an FP32 number with another bias, subnormals
/// included, so one exact multiplication decodes them.
template <format F>
__device__ inline float code_value(std::uint32_t code) {
  const std::uint32_t magnitude = code & static_cast<std::uint32_t>(F.magnitude_mask());
  const std::uint32_t sign = (code & static_cast<std::uint32_t>(F.sign_mask())) << (31 - F.magnitude_bits());
  if (F.is_nan(magnitude)) return fp32_from_bits(fp32_nan_bits);
  if (F.is_infinity(magnitude)) return fp32_from_bits(sign | fp32_infinity_bits);
  const float m = fp32_from_bits(magnitude << (23 - F.mantissa_bits)) * pow2_fp32(127 - F.bias);
  return fp32_from_bits(fp32_bits(m) | sign);
}

/// Bits of a number as T, rounded to nearest even.
template <class T>
__device__ inline std::uint32_t number_bits(float x) {
  const std::uint32_t u = fp32_bits(x);
  if constexpr (std::is_same_v<T, float>) return u;
  if constexpr (std::is_same_v<T, bf16>) return (fp32_is_nan(u) ? u | 0x00400000u : u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
  if constexpr (std::is_same_v<T, fp16>) {
    fp16 y;
    store_value(x, y);
    return y.bits();
  }
}

/// `count` numbers side by side, 8 or 16 bytes at a time.
template <class T, unsigned Count>
__device__ inline void store_vector(const std::uint32_t (&bits)[Count], T* to) {
  constexpr unsigned words = Count * sizeof(T) / 4;
  std::uint32_t word[words];
  ROTOSCALE_UNROLL
  for (unsigned w = 0; w < words; ++w) word[w] = sizeof(T) == 4 ? bits[w] : bits[2 * w] | bits[2 * w + 1] << 16;
  if constexpr (words == 2) {
    store_streaming8(to, word[0], word[1]);
  } else {
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < words; w += 4) {
      store_streaming(reinterpret_cast<unsigned char*>(to) + 4 * w,
                      bytes16{{word[w], word[w + 1], word[w + 2], word[w + 3]}});
    }
  }
}

/// A thread four bytes of codes: consecutive threads along k (row targets) or along the rows (transposed ones). Blocks'
/// y counts the other index.
template <class T, class Element, bool Transposed>
__global__ void __launch_bounds__(256) dequantize_kernel(const ROTOSCALE_GRID_CONSTANT dequantize_args a) {
  constexpr format F = Element::format;
  constexpr unsigned count = 32 / storage_bits(F);
  const unsigned words = a.k / count, inner = Transposed ? a.rows : words, outer = Transposed ? words : a.rows;
  const unsigned i = block_index().x * 256 + thread_index().x;
  if (i >= inner) return;
  ROTOSCALE_KEEP_LOOP
  for (unsigned o = block_index().y; o < outer; o += grid_size().y) {
    const unsigned r = Transposed ? i : o, w = Transposed ? o : i;
    const auto word =
        *reinterpret_cast<const std::uint32_t*>(a.in.codes + code_offset(a.in, r, w / 4) + w % 4 * index_t{4});
    const std::uint8_t byte = a.in.scales[scale_offset(a.in, r / a.scale_rows, w * count / 32)];
    const float scale = scale_value(byte);
    T* to = static_cast<T*>(a.target) + r * a.row_stride + w * count * a.k_stride;
    std::uint32_t bits[count];
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < count; ++j) {
      const float x = code_value<F>(word >> (storage_bits(F) * j) & ((1u << storage_bits(F)) - 1));
      bits[j] = number_bits<T>(canonical_nan(canonical_nan(x * scale) * a.factor));
    }
    if (!Transposed && a.vectors) {
      store_vector<T>(bits, to);
      continue;
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < count; ++j) {
      if constexpr (sizeof(T) == 4) {
        to[j * a.k_stride] = fp32_from_bits(bits[j]);
      } else {
        to[j * a.k_stride] = T::from_bits(static_cast<std::uint16_t>(bits[j]));
      }
    }
  }
}

}  // namespace rotoscale::gpu
