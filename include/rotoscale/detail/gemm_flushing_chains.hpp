// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM kernel for mma_sum::split_chains, Intel's AMX of BF16, on processors without AMX. Over 32 k, one chain of fused
// multiply-adds takes even k and one takes odd k; then c + (even + odd). Inputs and results below 2^-126 become zeros.
//
// Versions have the same bits. The program chooses one when it runs, independent of the compiler's flags. AVX-512, AVX2
// and NEON let the processor flush, and the portable version computes in double precision.
#pragma once

#include <bit>
#include <cmath>
#include <span>

#include "rotoscale/detail/gemm_chain.hpp"
#include "rotoscale/mma_models.hpp"

// CUDA's and HIP's compilers take the portable version alone.
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(__CUDACC__) && !defined(__HIP__)
#define ROTOSCALE_FLUSHING_LANES
#endif

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

inline constexpr index_t flushing_group = 32;    ///< k of a step
inline constexpr index_t flushing_columns = 32;  ///< columns of a panel
inline constexpr index_t flushing_part = 16;     ///< columns of a part of a panel: 64 bytes of each k

/// Rows of A are `stride` floats apart, rows of acc flushing_columns floats.
struct flushing_tile {
  index_t rows, steps;  ///< rows of A, steps of flushing_group k
  const float* a;       ///< k is contiguous
  index_t stride;
  const float* panel;  ///< k-major parts, `stride` * flushing_part floats apart
  float* acc;

  /// Columns from `j` on, k = 0.
  const float* columns(index_t j) const {
    return panel + j / flushing_part * stride * flushing_part + j % flushing_part;
  }
};

/// x, or a zero of its sign if x is subnormal.
inline float flush(float x) {
  const std::uint32_t bits = fp32_bits(x);
  return (bits & fp32_infinity_bits) == 0 ? fp32_from_bits(bits & fp32_sign_mask) : x;
}

/// Computes a · b + c with FTZ: the exact sum is rounded to odd in double precision, then to FP32. The product is exact
/// there. A sum is flushed if 24 bits without a least exponent would hold less than 2^-126. NaN is x86's new NaN.
inline float fma_flushing(float a, float b, float c) {
  const double p = static_cast<double>(a) * static_cast<double>(b), x = static_cast<double>(c), s = p + x;
  if (std::isnan(s)) return fp32_from_bits(0xFFC00000u);
  if (std::isinf(s)) return static_cast<float>(s);
  const double t = s - p, error = (p - (s - t)) + (x - t);
  auto bits = std::bit_cast<std::uint64_t>(s);
  if (error != 0.0 && (bits & 1) == 0) bits += (error > 0.0) == (s > 0.0) ? std::uint64_t{1} : ~std::uint64_t{0};
  const double odd = std::bit_cast<double>(bits);
  if (std::abs(odd) < 0x1p-126 - 0x1p-151) return std::signbit(odd) ? -0.0f : 0.0f;
  return static_cast<float>(odd);
}

/// The definition of the other versions, in any order of rows and columns.
inline void flushing_tile_portable(const flushing_tile& t) {
  for (index_t i = 0; i < t.rows; ++i) {
    for (index_t s = 0; s < t.steps; ++s) {
      const float* const a = t.a + i * t.stride + s * flushing_group;
      float* const acc = t.acc + i * flushing_columns;
      for (index_t j = 0; j < flushing_columns; ++j) {
        const float* const b = t.columns(j) + s * flushing_group * flushing_part;
        float chain[2] = {};
        for (index_t p = 0; p < flushing_group; ++p) {
          chain[p % 2] = fma_flushing(flush(a[p]), flush(b[p * flushing_part]), chain[p % 2]);
        }
        acc[j] = fma_flushing(1.0f, fma_flushing(1.0f, chain[0], chain[1]), flush(acc[j]));
      }
    }
  }
}

#if defined(ROTOSCALE_FLUSHING_LANES)

/// Lets the processor flush inputs and results of this thread for its lifetime. Arithmetic under it is called through a
/// function pointer: compilers move arithmetic across the change of the mode.
class flushing_mode {
 public:
#if defined(__x86_64__)
  flushing_mode() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }  // FTZ, DAZ
  ~flushing_mode() { _mm_setcsr(before_); }
#else
  flushing_mode() : before_(0) {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    __asm__ volatile("msr fpcr, %0" : : "r"(before_ | std::uint64_t{1} << 24) : "memory");  // FZ
    __asm__ volatile("msr fpsr, xzr" : : : "memory");
  }
  ~flushing_mode() { __asm__ volatile("msr fpcr, %0" : : "r"(before_) : "memory"); }
  /// Was a result flushed, or a NaN made?
  static bool differs_from_x86() {
    std::uint64_t flags;
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags) : : "memory");
    return (flags & 0b1001) != 0;  // UFC, IOC
  }
#endif
  flushing_mode(const flushing_mode&) = delete;
  flushing_mode& operator=(const flushing_mode&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
#else
  std::uint64_t before_;
#endif
};

/// Defines a tile for one instruction set: ROWS rows and two registers of columns at a time. One chain of all of them
/// fills ROWS * 2 registers; B takes two and A one.
#define ROTOSCALE_FLUSHING_TILE(NAME, TARGET, VECTOR, PREFIX, WIDTH, ROWS)                               \
  template <int R>                                                                                       \
  TARGET __attribute__((always_inline)) inline void NAME##_chain(const flushing_tile& t, index_t column, \
                                                                 index_t first, VECTOR(&chain)[R][2]) {  \
    const float *const left = t.columns(column), *const right = t.columns(column + (WIDTH));             \
    for (int i = 0; i < R; ++i) chain[i][0] = chain[i][1] = PREFIX##_setzero_ps();                       \
    for (index_t k = first; k < first + flushing_group; k += 2) {                                        \
      const VECTOR b0 = PREFIX##_loadu_ps(left + k * flushing_part),                                     \
                   b1 = PREFIX##_loadu_ps(right + k * flushing_part);                                    \
      for (int i = 0; i < R; ++i) {                                                                      \
        const VECTOR x = PREFIX##_set1_ps(t.a[i * t.stride + k]);                                        \
        chain[i][0] = PREFIX##_fmadd_ps(x, b0, chain[i][0]);                                             \
        chain[i][1] = PREFIX##_fmadd_ps(x, b1, chain[i][1]);                                             \
      }                                                                                                  \
    }                                                                                                    \
  }                                                                                                      \
  template <int R>                                                                                       \
  TARGET inline void NAME##_rows(const flushing_tile& t, index_t column) {                               \
    for (index_t s = 0; s < t.steps; ++s) {                                                              \
      VECTOR even[R][2], odd[R][2];                                                                      \
      NAME##_chain<R>(t, column, s * flushing_group, even);                                              \
      NAME##_chain<R>(t, column, s * flushing_group + 1, odd);                                           \
      for (int i = 0; i < R; ++i) {                                                                      \
        for (int j = 0; j < 2; ++j) {                                                                    \
          float* const acc = t.acc + i * flushing_columns + column + j * (WIDTH);                        \
          const VECTOR sum = PREFIX##_add_ps(even[i][j], odd[i][j]);                                     \
          PREFIX##_storeu_ps(acc, PREFIX##_add_ps(PREFIX##_loadu_ps(acc), sum));                         \
        }                                                                                                \
      }                                                                                                  \
    }                                                                                                    \
  }                                                                                                      \
  template <int R>                                                                                       \
  TARGET inline void NAME##_tail(const flushing_tile& t, index_t column) {                               \
    if constexpr (R > 0) t.rows == R ? NAME##_rows<R>(t, column) : NAME##_tail<R - 1>(t, column);        \
  }                                                                                                      \
  TARGET inline void NAME(const flushing_tile& whole) {                                                  \
    for (index_t column = 0; column < flushing_columns; column += 2 * (WIDTH)) {                         \
      flushing_tile t = whole;                                                                           \
      for (; t.rows >= (ROWS); t.rows -= (ROWS)) {                                                       \
        NAME##_rows<ROWS>(t, column);                                                                    \
        t.a += (ROWS)*t.stride;                                                                          \
        t.acc += (ROWS)*flushing_columns;                                                                \
      }                                                                                                  \
      NAME##_tail<(ROWS)-1>(t, column);                                                                  \
    }                                                                                                    \
  }
#if defined(__x86_64__)
#define ROTOSCALE_TARGET(sets) __attribute__((target(sets)))
ROTOSCALE_FLUSHING_TILE(flushing_tile_avx512, ROTOSCALE_TARGET("avx512f"), __m512, _mm512, 16, 12)
ROTOSCALE_FLUSHING_TILE(flushing_tile_avx2, ROTOSCALE_TARGET("avx2,fma"), __m256, _mm256, 8, 6)
#undef ROTOSCALE_TARGET
#else
/// NEON by the names of x86.
inline lanes_f32 neon_setzero_ps() { return lanes_f32{}; }
inline lanes_f32 neon_set1_ps(float x) { return broadcast(x); }
inline lanes_f32 neon_loadu_ps(const float* from) { return load_lanes<lanes_f32>(from); }
inline void neon_storeu_ps(float* to, lanes_f32 x) { store_lanes(to, x); }
inline lanes_f32 neon_add_ps(lanes_f32 a, lanes_f32 b) { return a + b; }
inline lanes_f32 neon_fmadd_ps(lanes_f32 a, lanes_f32 b, lanes_f32 c) { return fma(a, b, c); }
ROTOSCALE_FLUSHING_TILE(flushing_tile_neon, , lanes_f32, neon, lane_count, 12)
#endif
#undef ROTOSCALE_FLUSHING_TILE
#endif

/// One way to compute a tile.
struct flushing_version {
  const char* name;
  bool is_supported;  ///< by this processor
  bool sets_mode;     ///< runs under flushing_mode
  void (*run)(const flushing_tile&);
};
/// All versions, the fastest first.
inline std::span<const flushing_version> flushing_versions() {
#if defined(__aarch64__) && defined(ROTOSCALE_FLUSHING_LANES)
  static const flushing_version all[] = {{"neon", true, true, flushing_tile_neon},
                                         {"portable", true, false, flushing_tile_portable}};
#elif defined(ROTOSCALE_FLUSHING_LANES)
  static const flushing_version all[] = {
      {"avx512", __builtin_cpu_supports("avx512f") != 0, true, flushing_tile_avx512},
      {"avx2", __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0, true, flushing_tile_avx2},
      {"portable", true, false, flushing_tile_portable}};
#else
  static const flushing_version all[] = {{"portable", true, false, flushing_tile_portable}};
#endif
  return all;
}
#if defined(__aarch64__) && defined(ROTOSCALE_FLUSHING_LANES)
/// Computes rows under flushing_mode. Arm flushes results that are below 2^-126 before they are rounded, x86 those that
/// are below it after. Rows with a flushed result are computed again by the portable version, as are rows with a NaN,
/// whose sign differs.
inline void run_flushing_mode(const flushing_version& v, flushing_tile t) {
  constexpr index_t most = 12;
  float before[most * flushing_columns];
  for (index_t left = t.rows; left > 0; left -= most, t.a += most * t.stride, t.acc += most * flushing_columns) {
    t.rows = left < most ? left : most;
    const std::size_t bytes = static_cast<std::size_t>(t.rows * flushing_columns) * sizeof(float);
    __builtin_memcpy(before, t.acc, bytes);
    bool again = false;
    {
      const flushing_mode mode;
      v.run(t);
      again = flushing_mode::differs_from_x86();
    }
    if (!again) continue;
    __builtin_memcpy(t.acc, before, bytes);
    flushing_tile_portable(t);
  }
}
#elif defined(ROTOSCALE_FLUSHING_LANES)
inline void run_flushing_mode(const flushing_version& v, const flushing_tile& t) {
  const flushing_mode mode;
  v.run(t);
}
#endif

/// Computes a tile by a version.
inline void run_flushing_tile(const flushing_version& v, const flushing_tile& t) {
#if defined(ROTOSCALE_FLUSHING_LANES)
  if (v.sets_mode) return run_flushing_mode(v, t);
#endif
  v.run(t);
}

/// split_chains of 32 k, for BF16. Rows and panels with NaN go through the definition: NaN operands propagate.
class flushing_chains : public float_panels<flushing_columns, flushing_part> {
 public:
  static constexpr index_t slice(const mma_model&) { return 256; }

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    const mma_model& m = o.model;
    const auto is_bf16 = [](const gemm_operand& x) { return x.element == formats::bf16 && x.block == 0; };
    return m == models::intel(flushing_group, mma_sum::split_chains) && is_bf16(a) && is_bf16(b) && o.split_k == 1 &&
           o.promotion == 0;
  }
  flushing_chains(const gemm_operand& a, const gemm_operand& b, const gemm_options&, const gemm_plan& plan)
      : float_panels(a, b, plan) {
    for (const flushing_version& v : flushing_versions()) {
      if (v.is_supported) {
        version_ = &v;
        break;
      }
    }
  }

  operand_range pack_row(index_t r, std::byte* to) const {
    float_panels::pack_row(r, to);
    return range_of(to, depth());
  }
  void pack_transposed_rows(index_t first, index_t last, std::byte* to, operand_range* ranges) const {
    float_panels::pack_transposed_rows(first, last, to, ranges);
    for (index_t i = first; i < last; ++i, to += row_bytes()) ranges[i - first] = range_of(to, depth());
  }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    float_panels::pack_panel(first, valid, to);
    return range_of(to, panel_bytes() / 4);
  }
  static bool admits(const operand_range& a, const operand_range& b) { return !a.special && !b.special; }
  static bool admits_start(const operand_range&, const operand_range&, float c) { return !fp32_is_nan(fp32_bits(c)); }

  void run(const gemm_span& span, index_t, index_t, const operand_range*, const std::byte* rows, index_t count,
           const operand_range&, const std::byte* panel, float* acc) const {
    const index_t k = span.first * flushing_group;
    run_flushing_tile(*version_, {count, span.last - span.first, reinterpret_cast<const float*>(rows) + k, depth(),
                                  reinterpret_cast<const float*>(panel) + k * flushing_part, acc});
  }

 private:
  static operand_range range_of(const void* floats, index_t count) {
    const auto* const x = static_cast<const float*>(floats);
    lanes_u32 nan{};
    index_t i = 0;
    for (; i + lane_count <= count; i += lane_count) {
      nan |= __builtin_bit_cast(lanes_u32, (load_lanes<lanes_u32>(x + i) & fp32_magnitude_mask) > fp32_infinity_bits);
    }
    operand_range range;
    range.special = any_bit(nan);
    for (; i < count; ++i) range.special = range.special || fp32_is_nan(fp32_bits(x[i]));
    return range;
  }

  const flushing_version* version_ = nullptr;
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
