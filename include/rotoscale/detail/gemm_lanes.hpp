// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Registers of the emulating GEMM kernels: lanes are columns of C. GCC vectors as wide as the machine's registers, and
// the operations on them that no operator gives. The instruction set is the one the compiler was told of; each
// operation gives the same numbers on all of them.
#pragma once

#include "rotoscale/detail/simd.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Lanes of 32 bits in a register: fvec's.
inline constexpr int word_lanes = fvec::width;
inline constexpr int register_bytes = 4 * word_lanes;

using ilanes = std::int32_t __attribute__((vector_size(register_bytes)));
using flanes = float __attribute__((vector_size(register_bytes)));
using dlanes = double __attribute__((vector_size(register_bytes)));
using qlanes = std::int64_t __attribute__((vector_size(register_bytes)));
using blanes = std::int8_t __attribute__((vector_size(register_bytes)));

/// `from` as a register; To a type of lanes.
template <class To>
inline To load_lanes(const void* from) {
  To r;
  __builtin_memcpy(&r, from, sizeof r);
  return r;
}
template <class Lanes>
inline void store_lanes(void* to, Lanes x) {
  __builtin_memcpy(to, &x, sizeof x);
}
inline ilanes all_lanes(std::int32_t x) { return ilanes{} + x; }
inline flanes all_lanes(float x) { return flanes{} + x; }
inline dlanes all_lanes(double x) { return dlanes{} + x; }

/// The first (0) or second (1) half of the lanes as FP64; compilers take a __builtin_convertvector apart lane by lane.
template <int Half>
inline dlanes to_fp64(ilanes x) {
#if defined(__AVX512F__)
  const __m256i half = _mm512_maskz_extracti64x4_epi64(0xFF, __builtin_bit_cast(__m512i, x), Half);
  return __builtin_bit_cast(dlanes, _mm512_maskz_cvtepi32_pd(0xFF, half));
#elif defined(__AVX2__) && defined(__FMA__)
  return __builtin_bit_cast(dlanes, _mm256_cvtepi32_pd(_mm256_extracti128_si256(__builtin_bit_cast(__m256i, x), Half)));
#else
  return dlanes{static_cast<double>(x[2 * Half]), static_cast<double>(x[2 * Half + 1])};
#endif
}
template <int Half>
inline dlanes to_fp64(flanes x) {
#if defined(__AVX512F__)
  const __m256i half = _mm512_maskz_extracti64x4_epi64(0xFF, __builtin_bit_cast(__m512i, x), Half);
  return __builtin_bit_cast(dlanes, _mm512_maskz_cvtps_pd(0xFF, _mm256_castsi256_ps(half)));
#elif defined(__AVX2__) && defined(__FMA__)
  return __builtin_bit_cast(dlanes, _mm256_cvtps_pd(_mm256_extractf128_ps(__builtin_bit_cast(__m256, x), Half)));
#else
  return dlanes{static_cast<double>(x[2 * Half]), static_cast<double>(x[2 * Half + 1])};
#endif
}

/// Two halves as FP32, nearest even.
inline flanes to_fp32(dlanes low, dlanes high) {
#if defined(__AVX512F__)
  const __m256 x = _mm512_maskz_cvtpd_ps(0xFF, __builtin_bit_cast(__m512d, low));
  const __m256 y = _mm512_maskz_cvtpd_ps(0xFF, __builtin_bit_cast(__m512d, high));
  return __builtin_bit_cast(flanes, _mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(_mm256_castps_si256(x)),
                                                             _mm256_castps_si256(y), 1));
#elif defined(__AVX2__) && defined(__FMA__)
  return __builtin_bit_cast(flanes, _mm256_set_m128(_mm256_cvtpd_ps(__builtin_bit_cast(__m256d, high)),
                                                    _mm256_cvtpd_ps(__builtin_bit_cast(__m256d, low))));
#else
  return flanes{static_cast<float>(low[0]), static_cast<float>(low[1]), static_cast<float>(high[0]),
                static_cast<float>(high[1])};
#endif
}

/// The 24 leading bits of FP64 numbers: what FP32 keeps toward zero, above its subnormal numbers.
inline dlanes leading_24_bits(dlanes x) {
  return __builtin_bit_cast(dlanes, __builtin_bit_cast(qlanes, x) & ~((std::int64_t{1} << 29) - 1));
}

/// Integers to FP32, toward zero.
inline flanes truncate_to_fp32(ilanes x) {
#if defined(__AVX512F__)
  // Zero-masked forms, here and below: g++ 12 warns of an uninitialised value inside its own header for the plain ones.
  __mmask16 all = 0xFFFF;  // without optimisation this is a macro, in which g++ 12 warns of the constant
  return __builtin_bit_cast(flanes, _mm512_maskz_cvt_roundepi32_ps(all, __builtin_bit_cast(__m512i, x),
                                                                   _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
  return to_fp32(leading_24_bits(to_fp64<0>(x)), leading_24_bits(to_fp64<1>(x)));
#endif
}

inline ilanes larger(ilanes x, ilanes y) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(
      ilanes, _mm512_maskz_max_epi32(0xFFFF, __builtin_bit_cast(__m512i, x), __builtin_bit_cast(__m512i, y)));
#elif defined(__AVX2__) && defined(__FMA__)
  return __builtin_bit_cast(ilanes, _mm256_max_epi32(__builtin_bit_cast(__m256i, x), __builtin_bit_cast(__m256i, y)));
#else
  return x > y ? x : y;
#endif
}

/// max(m, x + y) of bytes, where sums below -128 count as -128.
inline blanes largest_sum(blanes m, blanes x, blanes y) {
#if defined(__AVX512BW__)
  return __builtin_bit_cast(
      blanes, _mm512_max_epi8(__builtin_bit_cast(__m512i, m),
                              _mm512_adds_epi8(__builtin_bit_cast(__m512i, x), __builtin_bit_cast(__m512i, y))));
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
  return __builtin_bit_cast(
      blanes, _mm256_max_epi8(__builtin_bit_cast(__m256i, m),
                              _mm256_adds_epi8(__builtin_bit_cast(__m256i, x), __builtin_bit_cast(__m256i, y))));
#else
  for (int i = 0; i < register_bytes; ++i) {
    const int sum = x[i] + y[i] < -128 ? -128 : x[i] + y[i];
    if (sum > m[i]) m[i] = static_cast<std::int8_t>(sum);
  }
  return m;
#endif
}

/// Bytes part * word_lanes to (part + 1) * word_lanes of a register as words.
template <int Part>
inline ilanes widen_bytes(blanes x) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_extracti32x4_epi32(0xF, __builtin_bit_cast(__m512i, x), Part);
  return __builtin_bit_cast(ilanes, _mm512_maskz_cvtepi8_epi32(0xFFFF, bytes));
#elif defined(__AVX2__) && defined(__FMA__)
  const __m128i bytes = _mm256_extracti128_si256(__builtin_bit_cast(__m256i, x), Part / 2);
  return __builtin_bit_cast(ilanes, _mm256_cvtepi8_epi32(Part % 2 == 0 ? bytes : _mm_srli_si128(bytes, 8)));
#else
  ilanes r;
  for (int i = 0; i < word_lanes; ++i) r[i] = x[Part * word_lanes + i];
  return r;
#endif
}

/// 2^e as FP32, -126 <= e <= 127.
inline flanes power_of_two(ilanes e) { return __builtin_bit_cast(flanes, (e + 127) << 23); }

/// A bit for each lane that is not zero.
inline std::uint32_t nonzero_lanes(ilanes x) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(__builtin_bit_cast(__m512i, x), __builtin_bit_cast(__m512i, x));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < word_lanes; ++i) bits |= static_cast<std::uint32_t>(x[i] != 0) << i;
  return bits;
#endif
}

/// A bit for each lane whose magnitude is not in [least, most); NaN is not.
inline std::uint32_t lanes_outside(dlanes x, double least, double most) {
#if defined(__AVX512F__)
  const __m512d magnitude =
      __builtin_bit_cast(__m512d, __builtin_bit_cast(qlanes, x) & static_cast<std::int64_t>(~std::uint64_t{0} >> 1));
  return static_cast<std::uint32_t>(_mm512_cmp_pd_mask(magnitude, _mm512_set1_pd(least), _CMP_NGE_UQ) |
                                    _mm512_cmp_pd_mask(magnitude, _mm512_set1_pd(most), _CMP_NLT_UQ));
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256d magnitude =
      __builtin_bit_cast(__m256d, __builtin_bit_cast(qlanes, x) & static_cast<std::int64_t>(~std::uint64_t{0} >> 1));
  return static_cast<std::uint32_t>(
      _mm256_movemask_pd(_mm256_or_pd(_mm256_cmp_pd(magnitude, _mm256_set1_pd(least), _CMP_NGE_UQ),
                                      _mm256_cmp_pd(magnitude, _mm256_set1_pd(most), _CMP_NLT_UQ))));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < word_lanes / 2; ++i) {
    const double m = x[i] < 0 ? -x[i] : x[i];
    bits |= static_cast<std::uint32_t>(!(m >= least && m < most)) << i;
  }
  return bits;
#endif
}

/// Sums of products of four bytes a lane, unsigned times signed. The unsigned ones are at most 24, the signed ones at
/// most 12 in magnitude, so that the 16-bit sums of the AVX2 form hold max_byte_quads of them.
inline constexpr int max_byte_quads = 32;
static_assert(2 * max_byte_quads * 24 * 12 < 1 << 15);

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
using byte_sums = __m512i;
inline void clear(byte_sums& s) { s = _mm512_setzero_si512(); }
inline void add_products(byte_sums& s, ilanes unsigned_bytes, ilanes signed_bytes) {
  s = _mm512_dpbusd_epi32(s, __builtin_bit_cast(__m512i, unsigned_bytes), __builtin_bit_cast(__m512i, signed_bytes));
}
inline ilanes words(byte_sums s) { return __builtin_bit_cast(ilanes, s); }
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
#if defined(__AVXVNNI__)
using byte_sums = __m256i;
inline void clear(byte_sums& s) { s = _mm256_setzero_si256(); }
inline void add_products(byte_sums& s, ilanes unsigned_bytes, ilanes signed_bytes) {
  s = _mm256_dpbusd_avx_epi32(s, __builtin_bit_cast(__m256i, unsigned_bytes),
                              __builtin_bit_cast(__m256i, signed_bytes));
}
inline ilanes words(byte_sums s) { return __builtin_bit_cast(ilanes, s); }
#else
using byte_sums = __m256i;  // of 16 bits
inline void clear(byte_sums& s) { s = _mm256_setzero_si256(); }
inline void add_products(byte_sums& s, ilanes unsigned_bytes, ilanes signed_bytes) {
  s = _mm256_add_epi16(
      s, _mm256_maddubs_epi16(__builtin_bit_cast(__m256i, unsigned_bytes), __builtin_bit_cast(__m256i, signed_bytes)));
}
inline ilanes words(byte_sums s) { return __builtin_bit_cast(ilanes, _mm256_madd_epi16(s, _mm256_set1_epi16(1))); }
#endif
#else
struct byte_sums {
  ilanes v;
};
inline void clear(byte_sums& s) { s.v = ilanes{}; }
inline void add_products(byte_sums& s, ilanes unsigned_bytes, ilanes signed_bytes) {
  for (int i = 0; i < 4; ++i) {  // C++20: >> of a negative number is arithmetic
    s.v += ((unsigned_bytes >> (8 * i)) & 0xFF) * ((signed_bytes << (24 - 8 * i)) >> 24);
  }
}
inline ilanes words(byte_sums s) { return s.v; }
#endif

/// Runs f.template operator()<R>(i) over `count` rows, Rows at a time and the rest one by one.
template <int Rows, class Function>
inline void for_row_tiles(index_t count, const Function& f) {
  index_t i = 0;
  for (; i + Rows <= count; i += Rows) f.template operator()<Rows>(i);
  for (; i < count; ++i) f.template operator()<1>(i);
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
