// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Decodes MXFP4 blocks to FP32 or BF16 with an in-register table: the values of all codes under the block's scale.
#pragma once

#include "rotoscale/detail/decode.hpp"
#include "rotoscale/small_float.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

#if defined(__AVX512BW__)
// Zero-masked intrinsics, since g++ 12 warns of an uninitialised value in its own header for the plain ones.

/// Values of the sixteen E2M1 codes times a scale. A NaN scale makes all of them the canonical NaN.
class e2m1_values {
 public:
  explicit e2m1_values(const decode_table& table) : v_(_mm512_loadu_ps(table.value)) {}
  e2m1_values times(float scale) const { return e2m1_values(_mm512_mul_ps(v_, _mm512_set1_ps(scale))); }

  /// Decodes a block: 16 bytes to 32 elements, with streaming stores if `stream`.
  void decode(const std::uint8_t* codes, float* to, bool stream) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    const __m128i halves[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
    for (int h = 0; h < 2; ++h) {
      const __m512i index = _mm512_maskz_cvtepu8_epi32(0xFFFF, halves[h]);
      const __m512i v = _mm512_castps_si512(_mm512_maskz_permutexvar_ps(0xFFFF, index, v_));
      stream ? _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 16 * h), v) : _mm512_storeu_si512(to + 16 * h, v);
    }
  }
  /// Decodes to BF16. An E2M1 number times a power of two fits in the leading half of FP32.
  void decode(const std::uint8_t* codes, bf16* to, bool stream) const {
    const __m512i leading = _mm512_maskz_srli_epi32(0xFFFF, _mm512_castps_si512(v_), 16);
    const __m512i table = _mm512_maskz_broadcast_i64x4(0xFF, _mm512_maskz_cvtepi32_epi16(0xFFFF, leading));
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i nibbles = _mm256_or_si256(_mm256_and_si256(bytes, _mm256_set1_epi16(15)),
                                            _mm256_and_si256(_mm256_slli_epi16(bytes, 4), _mm256_set1_epi16(0xF00)));
    const __m512i v = _mm512_maskz_permutexvar_epi16(~0u, _mm512_maskz_cvtepu8_epi16(~0u, nibbles), table);
    stream ? _mm512_stream_si512(reinterpret_cast<__m512i*>(to), v) : _mm512_storeu_si512(to, v);
  }

 private:
  explicit e2m1_values(__m512 v) : v_(v) {}
  __m512 v_;
};

#elif defined(__AVX2__)

/// Values of the E2M1 codes 0 to 7 times a scale. Codes 8 to 15 are the same with a sign, except NaN.
class e2m1_values {
 public:
  explicit e2m1_values(const decode_table& table) : v_(_mm256_loadu_ps(table.value)) {}
  e2m1_values times(float scale) const { return e2m1_values(_mm256_mul_ps(v_, _mm256_set1_ps(scale))); }

  /// Decodes a block: 16 bytes to 32 elements, with streaming stores if `stream`.
  void decode(const std::uint8_t* codes, float* to, bool stream) const {
    const __m256i nibble_places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    for (int i = 0; i < 4; ++i) {
      std::int32_t word;
      __builtin_memcpy(&word, codes + 4 * i, sizeof word);
      const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(word), nibble_places);
      const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 28), sign_of_numbers());
      const __m256 magnitude = _mm256_permutevar8x32_ps(v_, code);  // indexed by the low three bits
      store(_mm256_xor_si256(_mm256_castps_si256(magnitude), sign), to + 8 * i, stream);
    }
  }
  /// Decodes to BF16. An E2M1 number times a power of two fits in the leading half of FP32, whose two bytes come from
  /// two byte tables.
  void decode(const std::uint8_t* codes, bf16* to, bool stream) const {
    const __m256i bytes_apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(2, 6, 10, 14, 3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i apart = _mm256_shuffle_epi8(_mm256_castps_si256(v_), bytes_apart);
    const __m128i tables = _mm_unpacklo_epi32(_mm256_castsi256_si128(apart), _mm256_extracti128_si256(apart, 1));
    const __m128i signs = _mm_and_si128(_mm256_castsi256_si128(sign_of_bytes()), _mm_set_epi64x(-1, 0));
    const __m256i low = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(tables, tables));
    const __m256i high = _mm256_broadcastsi128_si256(_mm_or_si128(_mm_unpackhi_epi64(tables, tables), signs));

    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i even = _mm_and_si128(pairs, _mm_set1_epi8(15));
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
    const __m256i code = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
    const __m256i low_bytes = _mm256_shuffle_epi8(low, code), high_bytes = _mm256_shuffle_epi8(high, code);
    const __m256i a = _mm256_unpacklo_epi8(low_bytes, high_bytes), b = _mm256_unpackhi_epi8(low_bytes, high_bytes);
    store(_mm256_permute2x128_si256(a, b, 0x20), to, stream);
    store(_mm256_permute2x128_si256(a, b, 0x31), to + 16, stream);
  }

 private:
  explicit e2m1_values(__m256 v) : v_(v) {}
  /// The sign bit in lanes that are not NaN.
  __m256i sign_of_numbers() const {
    return _mm256_slli_epi32(_mm256_castps_si256(_mm256_cmp_ps(v_, v_, _CMP_ORD_Q)), 31);
  }
  __m256i sign_of_bytes() const {  // either all lanes are NaN or none
    return _mm256_and_si256(_mm256_castps_si256(_mm256_cmp_ps(v_, v_, _CMP_ORD_Q)), _mm256_set1_epi8(-128));
  }
  static void store(__m256i x, void* to, bool stream) {
    auto* at = static_cast<__m256i*>(to);
    stream ? _mm256_stream_si256(at, x) : _mm256_storeu_si256(at, x);
  }
  __m256 v_;
};

#endif

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
