// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Registers as GCC vectors, for quantizers and GEMM kernels, and the lane operations that have no operator. The
// instruction set comes from compiler flags; every operation gives the same bits on all of them. Every type fills one
// register: lane_count lanes of 32 bits, half as many of 64 bits, four times as many of 8.
#pragma once

#include <utility>

#include "rotoscale/bits.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(__CUDACC__)
#include <arm_neon.h>
#endif

// ROTOSCALE_BYTE_LANES: byte permutations and the instructions used around them. Cannon Lake has AVX512_VBMI but not
// AVX512_VBMI2, so both are tested. Users of the macro must include this header.
#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define ROTOSCALE_BYTE_LANES
#endif

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// 32-bit lanes per register. g++ compiles wider vectors lane by lane.
#if defined(__AVX512F__)
inline constexpr int lane_count = 16;
#elif defined(__AVX2__)
inline constexpr int lane_count = 8;
#else
inline constexpr int lane_count = 4;
#endif
inline constexpr int register_bytes = 4 * lane_count;

using lanes_f32 = float __attribute__((vector_size(register_bytes)));
using lanes_u32 = std::uint32_t __attribute__((vector_size(register_bytes)));
using lanes_i32 = std::int32_t __attribute__((vector_size(register_bytes)));
using lanes_f64 = double __attribute__((vector_size(register_bytes)));
using lanes_i64 = std::int64_t __attribute__((vector_size(register_bytes)));
using lanes_i8 = std::int8_t __attribute__((vector_size(register_bytes)));

/// Loads and stores of a register, aligned or not. `Lanes` is one of the types above.
template <class Lanes>
inline Lanes load_lanes(const void* from) {
  Lanes r;
  __builtin_memcpy(&r, from, sizeof r);
  return r;
}
template <class Lanes>
inline void store_lanes(void* to, Lanes x) {
  __builtin_memcpy(to, &x, sizeof x);
}

/// One number in every lane. Floats use a difference: x - 0 is x, while x + 0 is +0 for x = -0.
inline lanes_f32 broadcast(float x) { return x - lanes_f32{}; }
inline lanes_u32 broadcast(std::uint32_t x) { return lanes_u32{} + x; }
inline lanes_i32 broadcast(std::int32_t x) { return lanes_i32{} + x; }
inline lanes_f64 broadcast(double x) { return x - lanes_f64{}; }

// Zero-masked intrinsics below, since g++ 12 warns of an uninitialised value in its own header for the plain ones.

/// a · b + c, rounded once. Without FMA instructions it calls the C library's correctly rounded fmaf, with the same
/// bits but slowly.
inline lanes_f32 fma(lanes_f32 a, lanes_f32 b, lanes_f32 c) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(lanes_f32, _mm512_fmadd_ps(__builtin_bit_cast(__m512, a), __builtin_bit_cast(__m512, b),
                                                       __builtin_bit_cast(__m512, c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return __builtin_bit_cast(lanes_f32, _mm256_fmadd_ps(__builtin_bit_cast(__m256, a), __builtin_bit_cast(__m256, b),
                                                       __builtin_bit_cast(__m256, c)));
#elif defined(__aarch64__) && !defined(__CUDACC__)
  return __builtin_bit_cast(lanes_f32, vfmaq_f32(__builtin_bit_cast(float32x4_t, c), __builtin_bit_cast(float32x4_t, a),
                                                 __builtin_bit_cast(float32x4_t, b)));
#else
  for (int l = 0; l < lane_count; ++l) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
  return c;
#endif
}

#if defined(__AVX512BW__) || (defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__))
inline constexpr bool has_fused_cut = true;  ///< fma_toward_zero and add_half_products take one or two instructions
#else
inline constexpr bool has_fused_cut = false;
#endif

/// Sets the thread's rounding mode for its lifetime, where fma_toward_zero has no instruction with its own rounding.
/// All other arithmetic meanwhile must be exact. It must be in a function that is not inlined, because compilers move
/// arithmetic across the mode change.
class toward_zero_mode {
#if defined(__AVX2__) && !defined(__AVX512F__)
 public:
  toward_zero_mode() : before_(_mm_getcsr()) { _mm_setcsr(before_ | _MM_ROUND_TOWARD_ZERO); }
  ~toward_zero_mode() { _mm_setcsr(before_); }
  toward_zero_mode(const toward_zero_mode&) = delete;
  toward_zero_mode& operator=(const toward_zero_mode&) = delete;
  static constexpr bool is_global = true;  ///< the mode affects all operations

 private:
  unsigned before_;
#else
 public:
  toward_zero_mode() {}  // a user-provided constructor avoids the unused-variable warning
  static constexpr bool is_global = false;
#endif
};

/// a · b + c, rounded once, toward zero. Requires toward_zero_mode.
inline lanes_f32 fma_toward_zero(lanes_f32 a, lanes_f32 b, lanes_f32 c) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(
      lanes_f32, _mm512_fmadd_round_ps(__builtin_bit_cast(__m512, a), __builtin_bit_cast(__m512, b),
                                       __builtin_bit_cast(__m512, c), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
  return fma(a, b, c);
#endif
}

/// s plus two signed products: of the low 16 bits of x and y, and of their high 16 bits.
inline lanes_i32 add_half_products(lanes_i32 s, lanes_i32 x, lanes_i32 y) {
#if defined(__AVX512VNNI__)
  return __builtin_bit_cast(lanes_i32,
                            _mm512_dpwssd_epi32(__builtin_bit_cast(__m512i, s), __builtin_bit_cast(__m512i, x),
                                                __builtin_bit_cast(__m512i, y)));
#elif defined(__AVX512BW__)
  return s + __builtin_bit_cast(lanes_i32,
                                _mm512_madd_epi16(__builtin_bit_cast(__m512i, x), __builtin_bit_cast(__m512i, y)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return s + __builtin_bit_cast(lanes_i32,
                                _mm256_madd_epi16(__builtin_bit_cast(__m256i, x), __builtin_bit_cast(__m256i, y)));
#else
  return s + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

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

/// a = min(a, b) for nonnegative floats. g++ splits vectors wider than the machine's for float comparisons, but not for
/// integer ones.
inline void take_least(lanes_f32& a, const lanes_f32& b) {
#if defined(__AVX512F__)
  a = reinterpret_cast<lanes_f32>(
      _mm512_maskz_min_ps(0xFFFF, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  const auto x = reinterpret_cast<lanes_u32>(a), y = reinterpret_cast<lanes_u32>(b);
  a = reinterpret_cast<lanes_f32>(x < y ? x : y);
#endif
}

/// High and low halves of the 64-bit products of a's lanes and m.
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

/// Stores that bypass the caches. `to` is aligned to the register size, and consecutive calls should fill whole lines.
/// Call finish_streaming before another thread may read the data.
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

/// Calls body with std::integral_constant 0 .. N - 1, so that arrays of lanes stay in registers.
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
  unrolled<half>([&](auto i) __attribute__((always_inline)) {  // groups of four rows
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
  // Interleaving rows i and i + half transposes after log2(lane_count) passes.
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

/// Half 0 or 1 of the lanes as FP64. Compilers split __builtin_convertvector lane by lane.
template <int Half>
inline lanes_f64 to_fp64(lanes_i32 x) {
#if defined(__AVX512F__)
  const __m256i half = _mm512_maskz_extracti64x4_epi64(0xFF, __builtin_bit_cast(__m512i, x), Half);
  return __builtin_bit_cast(lanes_f64, _mm512_maskz_cvtepi32_pd(0xFF, half));
#elif defined(__AVX2__)
  return __builtin_bit_cast(lanes_f64,
                            _mm256_cvtepi32_pd(_mm256_extracti128_si256(__builtin_bit_cast(__m256i, x), Half)));
#else
  return lanes_f64{static_cast<double>(x[2 * Half]), static_cast<double>(x[2 * Half + 1])};
#endif
}
template <int Half>
inline lanes_f64 to_fp64(lanes_f32 x) {
#if defined(__AVX512F__)
  const __m256i half = _mm512_maskz_extracti64x4_epi64(0xFF, __builtin_bit_cast(__m512i, x), Half);
  return __builtin_bit_cast(lanes_f64, _mm512_maskz_cvtps_pd(0xFF, _mm256_castsi256_ps(half)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(lanes_f64, _mm256_cvtps_pd(_mm256_extractf128_ps(__builtin_bit_cast(__m256, x), Half)));
#else
  return lanes_f64{static_cast<double>(x[2 * Half]), static_cast<double>(x[2 * Half + 1])};
#endif
}

/// Two halves to FP32, nearest even.
inline lanes_f32 to_fp32(lanes_f64 low, lanes_f64 high) {
#if defined(__AVX512F__)
  const __m256 x = _mm512_maskz_cvtpd_ps(0xFF, __builtin_bit_cast(__m512d, low));
  const __m256 y = _mm512_maskz_cvtpd_ps(0xFF, __builtin_bit_cast(__m512d, high));
  return __builtin_bit_cast(lanes_f32, _mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(_mm256_castps_si256(x)),
                                                                _mm256_castps_si256(y), 1));
#elif defined(__AVX2__)
  return __builtin_bit_cast(lanes_f32, _mm256_set_m128(_mm256_cvtpd_ps(__builtin_bit_cast(__m256d, high)),
                                                       _mm256_cvtpd_ps(__builtin_bit_cast(__m256d, low))));
#else
  return lanes_f32{static_cast<float>(low[0]), static_cast<float>(low[1]), static_cast<float>(high[0]),
                   static_cast<float>(high[1])};
#endif
}

/// The leading 24 bits of FP64 numbers: truncation to FP32 above its subnormals.
inline lanes_f64 leading_24_bits(lanes_f64 x) {
  return __builtin_bit_cast(lanes_f64, __builtin_bit_cast(lanes_i64, x) & ~((std::int64_t{1} << 29) - 1));
}

/// Integers to FP32, truncated.
inline lanes_f32 truncate_to_fp32(lanes_i32 x) {
#if defined(__AVX512F__)
  __mmask16 all = 0xFFFF;  // a variable: g++ 12 -O0 warns of a constant, as the intrinsic is a macro
  return __builtin_bit_cast(lanes_f32, _mm512_maskz_cvt_roundepi32_ps(all, __builtin_bit_cast(__m512i, x),
                                                                      _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
  return to_fp32(leading_24_bits(to_fp64<0>(x)), leading_24_bits(to_fp64<1>(x)));
#endif
}

inline lanes_i32 larger(lanes_i32 x, lanes_i32 y) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(
      lanes_i32, _mm512_maskz_max_epi32(0xFFFF, __builtin_bit_cast(__m512i, x), __builtin_bit_cast(__m512i, y)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(lanes_i32,
                            _mm256_max_epi32(__builtin_bit_cast(__m256i, x), __builtin_bit_cast(__m256i, y)));
#else
  return x > y ? x : y;
#endif
}

/// max(m, x + y) of bytes; sums saturate at -128.
inline lanes_i8 largest_sum(lanes_i8 m, lanes_i8 x, lanes_i8 y) {
#if defined(__AVX512BW__)
  return __builtin_bit_cast(
      lanes_i8, _mm512_max_epi8(__builtin_bit_cast(__m512i, m),
                                _mm512_adds_epi8(__builtin_bit_cast(__m512i, x), __builtin_bit_cast(__m512i, y))));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return __builtin_bit_cast(
      lanes_i8, _mm256_max_epi8(__builtin_bit_cast(__m256i, m),
                                _mm256_adds_epi8(__builtin_bit_cast(__m256i, x), __builtin_bit_cast(__m256i, y))));
#else
  for (int i = 0; i < register_bytes; ++i) {
    const int sum = x[i] + y[i] < -128 ? -128 : x[i] + y[i];
    if (sum > m[i]) m[i] = static_cast<std::int8_t>(sum);
  }
  return m;
#endif
}

/// Bytes [part * lane_count, (part + 1) * lane_count) of a register as 32-bit lanes.
template <int Part>
inline lanes_i32 widen_bytes(lanes_i8 x) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_extracti32x4_epi32(0xF, __builtin_bit_cast(__m512i, x), Part);
  return __builtin_bit_cast(lanes_i32, _mm512_maskz_cvtepi8_epi32(0xFFFF, bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm256_extracti128_si256(__builtin_bit_cast(__m256i, x), Part / 2);
  return __builtin_bit_cast(lanes_i32, _mm256_cvtepi8_epi32(Part % 2 == 0 ? bytes : _mm_srli_si128(bytes, 8)));
#else
  lanes_i32 r{};  // silences a false warning: all lanes are set below
  for (int i = 0; i < lane_count; ++i) r[i] = x[Part * lane_count + i];
  return r;
#endif
}

/// 2^e as FP32, -126 <= e <= 127.
inline lanes_f32 power_of_two(lanes_i32 e) { return __builtin_bit_cast(lanes_f32, (e + 127) << 23); }

/// A bit mask of the nonzero lanes.
inline std::uint32_t nonzero_lanes(lanes_i32 x) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(__builtin_bit_cast(__m512i, x), __builtin_bit_cast(__m512i, x));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < lane_count; ++i) bits |= static_cast<std::uint32_t>(x[i] != 0) << i;
  return bits;
#endif
}

/// A bit mask of the lanes whose magnitude is not in [least, most); NaN is not in it.
inline std::uint32_t lanes_outside(lanes_f64 x, double least, double most) {
#if defined(__AVX512F__)
  const __m512d magnitude =
      __builtin_bit_cast(__m512d, __builtin_bit_cast(lanes_i64, x) & static_cast<std::int64_t>(~std::uint64_t{0} >> 1));
  return static_cast<std::uint32_t>(_mm512_cmp_pd_mask(magnitude, _mm512_set1_pd(least), _CMP_NGE_UQ) |
                                    _mm512_cmp_pd_mask(magnitude, _mm512_set1_pd(most), _CMP_NLT_UQ));
#elif defined(__AVX2__)
  const __m256d magnitude =
      __builtin_bit_cast(__m256d, __builtin_bit_cast(lanes_i64, x) & static_cast<std::int64_t>(~std::uint64_t{0} >> 1));
  return static_cast<std::uint32_t>(
      _mm256_movemask_pd(_mm256_or_pd(_mm256_cmp_pd(magnitude, _mm256_set1_pd(least), _CMP_NGE_UQ),
                                      _mm256_cmp_pd(magnitude, _mm256_set1_pd(most), _CMP_NLT_UQ))));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < lane_count / 2; ++i) {
    const double m = x[i] < 0 ? -x[i] : x[i];
    bits |= static_cast<std::uint32_t>(!(m >= least && m < most)) << i;
  }
  return bits;
#endif
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
