// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Table lookup of FP32 values, shared by the fast GEMM and the fast dequantizer.
#pragma once

#include "rotoscale/detail/simd.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// FP32 value of every byte, read as a code of a format of at most 8 bits.
struct decode_table {
  float value[256];
  explicit decode_table(format f) {
    for (std::uint32_t code = 0; code < 256; ++code) value[code] = decode(f, code);
  }
};

inline void decode_nibbles(const std::uint8_t* codes, index_t count, const decode_table& table, float scale,
                           float* out) {
  index_t i = 0;
#if defined(__AVX512F__)
  const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(table.value), _mm512_set1_ps(scale));
  for (; i + 16 <= count; i += 16) {  // eight bytes to sixteen indices; even elements are in the low nibbles
    std::uint64_t bytes;
    __builtin_memcpy(&bytes, codes + i / 2, sizeof bytes);
    // Zero-masked intrinsics, since g++ 12 warns of an uninitialised value in its own header for the plain ones.
    const __m512i wide = _mm512_maskz_cvtepu8_epi32(
        0xFFFF, _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<long long>(bytes & 0x0F0F0F0F0F0F0F0Full)),
                                  _mm_cvtsi64_si128(static_cast<long long>((bytes >> 4) & 0x0F0F0F0F0F0F0F0Full))));
    _mm512_storeu_ps(out + i, _mm512_maskz_permutexvar_ps(0xFFFF, wide, values));
  }
#endif
  for (; i < count; ++i) out[i] = table.value[nibble(codes[i / 2], i)] * scale;
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
