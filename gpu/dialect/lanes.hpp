// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Shuffles, votes and reductions over a subgroup of 32 lanes. All lanes of the subgroup must call these together.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/bits.hpp"

namespace rotoscale::gpu {

/// Source position of a call. Host mode checks that all threads of a subgroup wait at the same one.
#if defined(ROTOSCALE_GPU_HOST)
struct call_site {
  const char* file;
  int line;
  static call_site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};
#else
struct call_site {
  __device__ static constexpr call_site here() { return {}; }
};
#endif

/// Returns `x` of lane (own lane ^ mask). T has 4 or 8 bytes, mask is 1 to 31.
template <class T>
__device__ inline T shuffle_xor(T x, unsigned mask, [[maybe_unused]] call_site at = call_site::here()) {
  const auto word = [&](std::uint32_t bits) {
#if defined(ROTOSCALE_GPU_HOST)
    return host::shuffle_xor(bits, mask, at.file, at.line);
#else
    return shuffle_xor(bits, mask);
#endif
  };
  if constexpr (sizeof(T) == 4) {
    return bit_cast<T>(word(bit_cast<std::uint32_t>(x)));
  } else {
    static_assert(sizeof(T) == 8);
    const auto bits = bit_cast<std::uint64_t>(x);
    const std::uint64_t low = word(static_cast<std::uint32_t>(bits)),
                        high = word(static_cast<std::uint32_t>(bits >> 32));
    return bit_cast<T>(high << 32 | low);
  }
}

/// Barrier of a subgroup. Writes before it are visible to the subgroup after it.
__device__ inline void subgroup_barrier([[maybe_unused]] call_site at = call_site::here()) {
#if defined(ROTOSCALE_CUDA)
  __syncwarp();
#elif defined(ROTOSCALE_GPU_HOST)
  host::subgroup_ballot(true, at.file, at.line);
#else
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#endif
}

/// Returns true if `condition` holds in any lane of the subgroup.
__device__ inline bool subgroup_any(bool condition, [[maybe_unused]] call_site at = call_site::here()) {
#if defined(ROTOSCALE_CUDA)
  return __any_sync(0xFFFFFFFFu, condition) != 0;
#elif defined(ROTOSCALE_GPU_HOST)
  return host::subgroup_ballot(condition, at.file, at.line) != 0;
#else
  return subgroup_ballot(condition) != 0;
#endif
}

/// Reduces x over `Lanes` neighbouring lanes by xor shuffles with masks Lanes / 2 to 1. All lanes return the same bits
/// if `combine` commutes.
template <unsigned Lanes = unsigned{subgroup_lanes}, class T, class Combine>
__device__ inline T subgroup_reduce(T x, const Combine& combine, call_site at = call_site::here()) {
  static_assert(Lanes >= 2 && Lanes <= unsigned{subgroup_lanes} && (Lanes & (Lanes - 1)) == 0);
  ROTOSCALE_UNROLL
  for (unsigned mask = Lanes / 2; mask > 0; mask /= 2) x = combine(x, shuffle_xor(x, mask, at));
  return x;
}
template <unsigned Lanes = unsigned{subgroup_lanes}, class T>
__device__ inline T subgroup_sum(T x, call_site at = call_site::here()) {
  return subgroup_reduce<Lanes>(
      x, [](T a, T b) { return a + b; }, at);
}
/// Maximum over `Lanes` lanes. No x may be NaN.
template <unsigned Lanes = unsigned{subgroup_lanes}, class T>
__device__ inline T subgroup_max(T x, call_site at = call_site::here()) {
  return subgroup_reduce<Lanes>(
      x, [](T a, T b) { return b > a ? b : a; }, at);
}
template <unsigned Lanes = unsigned{subgroup_lanes}>
__device__ inline std::uint32_t subgroup_or(std::uint32_t x, call_site at = call_site::here()) {
  return subgroup_reduce<Lanes>(
      x, [](std::uint32_t a, std::uint32_t b) { return a | b; }, at);
}

/// Hadamard transform without its factor over `points` neighbouring lanes (a power of two up to 32). The low bits of
/// `lane` number the points.
__device__ inline float subgroup_butterflies(float x, unsigned lane, unsigned points,
                                             call_site at = call_site::here()) {
  for (unsigned step = 1; step < points; step *= 2) {
    const float other = shuffle_xor(x, step, at);
    x = (lane & step) != 0 ? other - x : x + other;
  }
  return x;
}

/// Hadamard steps between the elements of one lane, which are `lanes` apart in their run of `points`.
template <unsigned Count>
__device__ inline void lane_butterflies(float (&x)[Count], unsigned lanes, unsigned points) {
  ROTOSCALE_UNROLL
  for (unsigned step = 1; step < Count; step *= 2) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < Count; ++i) {
      if ((i & step) != 0 || lanes * step >= points) continue;
      const float a = x[i], b = x[i + step];
      x[i] = a + b;
      x[i + step] = a - b;
    }
  }
}

/// Elements c + 32 i of a row, in the lane c of a subgroup of 32.
template <unsigned Parts>
struct lane_row {
  float x[Parts];

  /// Hadamard transform of `points` (at most 32 Parts) numbers, without its factor. A lane holds `parts` of them. All
  /// lanes of the subgroup call it.
  __device__ void rotate(unsigned lane, unsigned points, unsigned parts) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < Parts; ++i) {
      if (i < parts) x[i] = subgroup_butterflies(x[i], lane, points < 32 ? points : 32);
    }
    lane_butterflies(x, 32, points);
  }
};

}  // namespace rotoscale::gpu
