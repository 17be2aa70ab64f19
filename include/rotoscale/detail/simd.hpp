// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The few vector operations that plain loops do not give: a register of FP32 lanes with a fused multiply-add, and lanes
// as GCC vectors for integer code. The instruction set is the one the compiler was told of; results never depend on it.
#pragma once

#include <utility>

#include "rotoscale/bits.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Are there byte permutations and what the code around them uses? Processors with AVX512_VBMI and without AVX512_VBMI2
// exist (Cannon Lake). Whoever asks includes this header.
#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define ROTOSCALE_BYTE_LANES
#endif

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

#if defined(__AVX512F__)

struct fvec {
  static constexpr int width = 16;
  __m512 v;
  static fvec zero() { return {_mm512_setzero_ps()}; }
  static fvec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static fvec broadcast(float x) { return {_mm512_set1_ps(x)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
};
inline fvec fma(fvec a, fvec b, fvec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline fvec add(fvec a, fvec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline constexpr int gemm_rows = 8;  // 8 × 2 accumulators of 32 registers: the products of a block need no second set

#elif defined(__AVX2__) && defined(__FMA__)

struct fvec {
  static constexpr int width = 8;
  __m256 v;
  static fvec zero() { return {_mm256_setzero_ps()}; }
  static fvec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static fvec broadcast(float x) { return {_mm256_set1_ps(x)}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
};
inline fvec fma(fvec a, fvec b, fvec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline fvec add(fvec a, fvec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline constexpr int gemm_rows = 6;  // 6 × 2 accumulators of 16 registers

#else

struct fvec {
  static constexpr int width = 4;
  float v[4];
  static fvec zero() { return {}; }
  static fvec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static fvec broadcast(float x) { return {{x, x, x, x}}; }
  void store(float* p) const {
    for (int i = 0; i < width; ++i) p[i] = v[i];
  }
};
// Without FMA instructions this calls the C library's correctly rounded fmaf: slow, same bits.
inline fvec fma(fvec a, fvec b, fvec c) {
  fvec r{};
  for (int i = 0; i < fvec::width; ++i) r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return r;
}
inline fvec add(fvec a, fvec b) {
  fvec r{};
  for (int i = 0; i < fvec::width; ++i) r.v[i] = a.v[i] + b.v[i];
  return r;
}
inline constexpr int gemm_rows = 4;

#endif

inline constexpr int gemm_cols = 2 * fvec::width;  // two registers of B a step

/// Lanes of one register. (g++ takes vectors wider than that apart, lane by lane.)
#if defined(__AVX512F__)
inline constexpr int lane_count = 16;
#elif defined(__AVX2__)
inline constexpr int lane_count = 8;
#else
inline constexpr int lane_count = 4;
#endif
using lanes_f32 = float __attribute__((vector_size(4 * lane_count)));
using lanes_u32 = std::uint32_t __attribute__((vector_size(4 * lane_count)));

// Intrinsics below are the zero-masked forms: g++ 12 warns of an uninitialised value inside its own header for others.

/// Is any bit of any lane set?
inline bool any_bit(const lanes_u32& u) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(u), reinterpret_cast<__m512i>(u)) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256(reinterpret_cast<__m256i>(u), reinterpret_cast<__m256i>(u)) == 0;
#else
  std::uint32_t all = 0;
  for (int l = 0; l < lane_count; ++l) all |= u[l];
  return all != 0;
#endif
}

/// a = min(a, b) for floats with the sign clear. (g++ takes vectors wider than the machine's apart where floats are
/// compared, but not where integers are.)
inline void take_least(lanes_f32& a, const lanes_f32& b) {
#if defined(__AVX512F__)
  a = reinterpret_cast<lanes_f32>(
      _mm512_maskz_min_ps(0xFFFF, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  const auto x = reinterpret_cast<lanes_u32>(a), y = reinterpret_cast<lanes_u32>(b);
  a = reinterpret_cast<lanes_f32>(x < y ? x : y);
#endif
}

/// Both halves of the 64-bit products of a's lanes and m.
inline void multiply_wide(const lanes_u32& a, std::uint32_t m, lanes_u32& high, lanes_u32& low) {
#if defined(__AVX512F__)
  const __m512i x = reinterpret_cast<__m512i>(a), factor = _mm512_set1_epi32(static_cast<int>(m));
  const __m512i even = _mm512_maskz_mul_epu32(0xFF, x, factor);
  const __m512i odd = _mm512_maskz_mul_epu32(0xFF, _mm512_maskz_shuffle_epi32(0xFFFF, x, _MM_PERM_DDBB), factor);
  low = reinterpret_cast<lanes_u32>(_mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA));
  high = reinterpret_cast<lanes_u32>(_mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB));
#else
  for (int l = 0; l < lane_count; ++l) {
    const std::uint64_t product = std::uint64_t{a[l]} * m;
    high[l] = static_cast<std::uint32_t>(product >> 32);
    low[l] = static_cast<std::uint32_t>(product);
  }
#endif
}

/// Stores past the caches; `to` is aligned to the register's size, and whole lines should follow each other. Call
/// finish_streaming before another thread may read it.
inline void stream_lanes(void* to, const lanes_u32& u) {
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(to), reinterpret_cast<__m512i>(u));
#elif defined(__AVX2__)
  _mm256_stream_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(u));
#elif defined(__SSE2__)
  _mm_stream_si128(static_cast<__m128i*>(to), reinterpret_cast<__m128i>(u));
#else
  __builtin_memcpy(to, &u, sizeof u);
#endif
}
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/// Calls body with std::integral_constant 0 .. N - 1: for arrays of lanes that should stay in registers.
template <int N, class Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

/// Transposes lane_count rows in place.
[[gnu::always_inline]] inline void transpose_lanes(lanes_u32 (&r)[lane_count]) {
  constexpr int half = lane_count / 2;
  lanes_u32 t[lane_count];
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto as_float = [](const lanes_u32& u) { return __builtin_bit_cast(__m256, u); };
  unrolled<half>([&](auto i) __attribute__((always_inline)) {  // pairs of rows within 128 bits
    t[2 * i] = __builtin_bit_cast(lanes_u32, _mm256_unpacklo_ps(as_float(r[2 * i]), as_float(r[2 * i + 1])));
    t[2 * i + 1] = __builtin_bit_cast(lanes_u32, _mm256_unpackhi_ps(as_float(r[2 * i]), as_float(r[2 * i + 1])));
  });
  unrolled<half>([&](auto i) __attribute__((always_inline)) {  // fours of rows
    constexpr int pair = i / 2 * 4 + i % 2;
    const __m256 a = as_float(t[pair]), b = as_float(t[pair + 2]);
    r[i / 2 * 4 + i % 2 * 2] = __builtin_bit_cast(lanes_u32, _mm256_shuffle_ps(a, b, 0x44));
    r[i / 2 * 4 + i % 2 * 2 + 1] = __builtin_bit_cast(lanes_u32, _mm256_shuffle_ps(a, b, 0xEE));
  });
  unrolled<half>([&](auto i) __attribute__((always_inline)) {
    const __m256 a = as_float(r[i]), b = as_float(r[i + half]);
    t[i] = __builtin_bit_cast(lanes_u32, _mm256_permute2f128_ps(a, b, 0x20));
    t[i + half] = __builtin_bit_cast(lanes_u32, _mm256_permute2f128_ps(a, b, 0x31));
  });
  for (int i = 0; i < lane_count; ++i) r[i] = t[i];
#else
  // Rows i and i + half interleaved: as many such passes as lane_count has bits transpose.
#if defined(__AVX512F__)
#define ROTOSCALE_LOWER_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ROTOSCALE_UPPER_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define ROTOSCALE_LOWER_HALVES 0, 4, 1, 5
#define ROTOSCALE_UPPER_HALVES 2, 6, 3, 7
#endif
  for (int lanes = lane_count; lanes > 1; lanes /= 4) {
    for (int i = 0; i < half; ++i) {
      t[2 * i] = __builtin_shufflevector(r[i], r[i + half], ROTOSCALE_LOWER_HALVES);
      t[2 * i + 1] = __builtin_shufflevector(r[i], r[i + half], ROTOSCALE_UPPER_HALVES);
    }
    for (int i = 0; i < half; ++i) {
      r[2 * i] = __builtin_shufflevector(t[i], t[i + half], ROTOSCALE_LOWER_HALVES);
      r[2 * i + 1] = __builtin_shufflevector(t[i], t[i + half], ROTOSCALE_UPPER_HALVES);
    }
  }
#undef ROTOSCALE_LOWER_HALVES
#undef ROTOSCALE_UPPER_HALVES
#endif
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
