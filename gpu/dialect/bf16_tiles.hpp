// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// BF16 matrix instructions as products of 16 × 16 tiles, in one shape for both vendors. A unit gives the rows and
// columns of a result that a lane holds. A result can be the first operand of the next product without leaving
// registers. Host mode runs both units under their mma_model.
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/math.hpp"
#include "gpu/dialect/packed.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/dialect/wgmma_tiles.hpp"
#else
#include "gpu/dialect/amd_matrix.hpp"
#endif
#if defined(ROTOSCALE_GPU_HOST)
#include "gpu/dialect/mma_sync_host.hpp"
#endif
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu {

/// 64 rows × D features of BF16 in shared memory. Rows are padded by 16 bytes, so that eight rows are in different
/// banks.
template <int D>
struct padded_tile {
  static constexpr int stride = D + 8;
  alignas(16) std::uint16_t codes[64 * stride];

  /// Index of 8 features of a row.
  __device__ static int place(int row, int column) { return row * stride + column; }
  /// Rows 16 i to 16 i + 15, features from 16 j on.
  __device__ const std::uint16_t* at(int i, int j) const { return codes + i * 16 * stride + j * 16; }
};

/// Schedule of an attention kernel.
///
/// tiles     Tiles of 64 rows that a block computes concurrently.
/// blocks    Blocks per SM that registers are limited for.
/// stages    Buffers of streamed tiles; all but one or two are in flight.
/// overlaps  Overlap a tile's product with values and the next tile's with keys (forward pass). Takes one more buffer.
/// pingpong  The tiles of a block start their products one after the other (ping-pong), if the unit has a copy engine.
struct tile_plan {
  int tiles, blocks, stages;
  bool overlaps = false;
  bool pingpong = false;
};

/// For units without TMA.
struct no_tile_engine {
  static constexpr bool exists = false;
  struct maps {};
  template <int Stages>
  struct barriers {};
};

#if !defined(ROTOSCALE_AMD)

/// NVIDIA's mma.sync.m16n8k16 (sm_80 and later), two instructions per product.
struct mma_sync_unit {
  static constexpr const char* name = "hopper-mma-fp16-f32";
  static constexpr int lanes = 32;
  static constexpr int elements = 8;             ///< of a result in one lane
  static constexpr int rows = 2;                 ///< rows of those elements
  static constexpr bool whole_tiles = false;     ///< true: operands are tiles of 64 rows, products asynchronous
  static constexpr bool keeps_operands = false;  ///< true: registers hold operands across tiles
  using engine = no_tile_engine;
  static constexpr bool has_nan_maximum = true;  ///< larger_or_nan is one instruction
  static constexpr bool has_ex2_approx = true;   ///< ex2_approx is one instruction
  /// Schedules for heads of D features: forward pass, kernel of dk and dv, kernel of dq.
  template <int D>
  static constexpr tile_plan forward_plan = D == 64 ? tile_plan{2, 1, 2} : tile_plan{2, 1, 3, true};
  template <int D>
  static constexpr tile_plan keys_plan = {2, 1, 2};
  template <int D>
  static constexpr tile_plan queries_plan = {2, 1, 2};

  /// 16 rows × 16 k.
  struct fragment {
    std::uint32_t word[4];
  };
  /// Tells the compiler that x is equal in all lanes.
  __device__ static int uniform(int x) {
#if defined(ROTOSCALE_CUDA)
    return static_cast<int>(shuffle(static_cast<std::uint32_t>(x), 0));
#else
    return x;
#endif
  }
  /// 64 rows in shared memory. Their writers call publish before a barrier.
  template <int D>
  using tile = padded_tile<D>;
  __device__ static void publish() {}

  __device__ static int lane() { return static_cast<int>(thread_index().x) % lanes; }
  /// Position of a lane's elements: row number of its r-th row, and that row and the column of element e.
  __device__ static int row(int r) { return lane() / 4 + 8 * r; }
  __device__ static constexpr int row_of_element(int e) { return e / 2 % 2; }
  __device__ static int column(int e) { return 8 * (e / 4) + 2 * (lane() % 4) + e % 2; }
  /// Index of element e's column among the lane's four.
  __device__ static constexpr int column_of_element(int e) { return e / 4 * 2 + e % 2; }
  /// True in one of the lanes that share a row.
  __device__ static bool leads() { return lane() % 4 == 0; }

  __device__ static float row_max(float x) { return subgroup_max<4>(x); }
  /// Sums over the 16 columns of a row, of which a lane holds four. Folds columns j + 8, j + 4, j + 2, then j + 1.
  __device__ static float fold(const float (&sum)[4]) {
    return subgroup_sum<4>(sum[0] + sum[2]) + subgroup_sum<4>(sum[1] + sum[3]);
  }

  /// Rounds a result to BF16 as a first operand.
  __device__ static fragment as_operand(const float (&d)[elements]) {
    return {{bf16_pair(d[0], d[1]), bf16_pair(d[2], d[3]), bf16_pair(d[4], d[5]), bf16_pair(d[6], d[7])}};
  }

#if defined(ROTOSCALE_CUDA)
  template <bool Transposed>
  __device__ static fragment load_matrices(const std::uint16_t* at) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(at));
    fragment f;
    if constexpr (Transposed) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                   : "r"(address)
                   : "memory");
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                   : "r"(address)
                   : "memory");
    }
    return f;
  }
  /// First operand: 16 rows × 16 k in shared memory. `stride` is in elements, a multiple of 8.
  __device__ static fragment load_first(const std::uint16_t* x, int stride) {
    return load_matrices<false>(x + (lane() % 16) * stride + lane() / 16 * 8);
  }
  /// Second operand: 16 rows × 16 k.
  __device__ static fragment load_second(const std::uint16_t* x, int stride) {
    return load_matrices<false>(x + (lane() % 8 + lane() / 16 * 8) * stride + lane() / 8 % 2 * 8);
  }
  /// Second operand stored transposed: 16 k × 16 rows.
  __device__ static fragment load_second_transposed(const std::uint16_t* x, int stride) {
    return load_matrices<true>(x + (lane() % 16) * stride + lane() / 16 * 8);
  }
  __device__ static void multiply_half(const fragment& a, std::uint32_t b0, std::uint32_t b1, float* d) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  }
  /// d += a · bᵀ
  __device__ static void multiply(const fragment& a, const fragment& b, float (&d)[elements]) {
    multiply_half(a, b.word[0], b.word[1], d);
    multiply_half(a, b.word[2], b.word[3], d + 4);
  }
#else
  static std::uint32_t two(const std::uint16_t* x, int step) {
    return x[0] | static_cast<std::uint32_t>(x[step]) << 16;
  }
  static fragment load_first(const std::uint16_t* x, int stride) {
    const auto word = [&](int w) {
      return two(x + (lane() / 4 + w % 2 * 8) * stride + 2 * (lane() % 4) + w / 2 * 8, 1);
    };
    return {{word(0), word(1), word(2), word(3)}};
  }
  static fragment load_second(const std::uint16_t* x, int stride) {
    const auto word = [&](int w) {
      return two(x + (lane() / 4 + w / 2 * 8) * stride + 2 * (lane() % 4) + w % 2 * 8, 1);
    };
    return {{word(0), word(1), word(2), word(3)}};
  }
  static fragment load_second_transposed(const std::uint16_t* x, int stride) {
    const auto word = [&](int w) {
      return two(x + (2 * (lane() % 4) + w % 2 * 8) * stride + lane() / 4 + w / 2 * 8, stride);
    };
    return {{word(0), word(1), word(2), word(3)}};
  }
  static void multiply(const fragment& a, const fragment& b, float (&d)[elements], const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
    detail::mma_registers low{a.word, b.word, d}, high{a.word, b.word + 2, d + 4};
    host::wave_instruction<detail::mma_m16n8k16, 32>(low, file, line);
    host::wave_instruction<detail::mma_m16n8k16, 32>(high, file, line);
  }
#endif
};

#endif

#if defined(ROTOSCALE_CUDA)

struct wgmma_unit_without_engine;

/// sm_90a's wgmma on tiles of 64 rows. Results have the lane layout of mma.sync.
struct wgmma_unit : mma_sync_unit {
  static constexpr const char* name = "hopper-wgmma-fp16-f32";
  static constexpr bool whole_tiles = true;
  using engine = sm90::tile_engine;
  using without_engine = wgmma_unit_without_engine;
  // Fastest schedules as measured.
  template <int D>
  static constexpr tile_plan forward_plan = D == 64 ? tile_plan{1, 4, 2} : tile_plan{3, 1, 4, true, true};
  template <int D>
  static constexpr tile_plan keys_plan = D == 64 ? tile_plan{1, 3, 2} : tile_plan{1, 2, 2};
  template <int D>
  static constexpr tile_plan queries_plan = D == 64 ? tile_plan{1, 4, 2} : tile_plan{3, 1, 3, false, true};
  template <int D>
  using tile = sm90::swizzled_tile<D>;
  __device__ static void publish() { sm90::publish_shared(); }
  __device__ static void wait_for_turn(int tile) { sm90::wait_for_turn(tile); }
  __device__ static void signal_turn(int tile) { sm90::signal_turn(tile); }

  template <int D>
  __device__ static void start_rows(const tile<D>& a, const tile<D>& b, float (&d)[4][elements]) {
    sm90::start_rows(a, b, d);
  }
  template <int D>
  __device__ static void start_sum(const fragment (&weights)[4], const tile<D>& b, float (&d)[D / 16][elements]) {
    std::uint32_t words[4][4];
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) words[i / 4][i % 4] = weights[i / 4].word[i % 4];
    sm90::start_sum<D>(words, b, d);
  }
  template <int Youngest, int... Count>
  __device__ static void finish(float (&... d)[Count][elements]) {
    sm90::finish<Youngest>(d...);
  }
};
/// For tensors that TMA cannot read.
struct wgmma_unit_without_engine : wgmma_unit {
  using engine = no_tile_engine;
};

#endif

#if !defined(ROTOSCALE_CUDA)

/// AMD's 16x16x16 BF16 instruction (gfx942, gfx950). Operands are exchanged, so that a lane holds neighbouring columns
/// of a row.
struct mfma_unit {
  static constexpr const char* name = "cdna3-mfma-fp16-f32";
  static constexpr int lanes = 64;
  static constexpr int elements = 4;
  static constexpr int rows = 1;
  static constexpr bool whole_tiles = false;
  static constexpr bool keeps_operands = true;
  using engine = no_tile_engine;
  static constexpr bool has_nan_maximum = false;
  static constexpr bool has_ex2_approx = false;
  template <int D>
  static constexpr tile_plan forward_plan = {1, 1, 1};
  template <int D>
  static constexpr tile_plan keys_plan = {1, 1, 1};
  template <int D>
  static constexpr tile_plan queries_plan = {1, 1, 1};

  __device__ static int uniform(int x) { return x; }  // the compiler knows uniform values
  struct fragment {
    amd::short4 four;
  };
  template <int D>
  using tile = padded_tile<D>;
  __device__ static void publish() {}

  __device__ static int lane() { return static_cast<int>(thread_index().x) % lanes; }
  __device__ static int row(int) { return lane() % 16; }
  __device__ static constexpr int row_of_element(int) { return 0; }
  __device__ static int column(int e) { return lane() / 16 * 4 + e; }
  __device__ static constexpr int column_of_element(int e) { return e; }
  __device__ static bool leads() { return lane() < 16; }

  __device__ static float row_max(float x) {
    ROTOSCALE_UNROLL
    for (unsigned mask = 16; mask <= 32; mask *= 2) {
      const float other = fp32_from_bits(amd::wave_xor(fp32_bits(x), mask));
      x = other > x ? other : x;
    }
    return x;
  }
  __device__ static float fold(const float (&sum)[4]) {
    float x[4] = {sum[0], sum[1], sum[2], sum[3]};
    ROTOSCALE_UNROLL
    for (unsigned mask = 32; mask >= 16; mask /= 2) {
      ROTOSCALE_UNROLL
      for (float& y : x) y += fp32_from_bits(amd::wave_xor(fp32_bits(y), mask));
    }
    return (x[0] + x[2]) + (x[1] + x[3]);
  }

  __device__ static fragment as_operand(const float (&d)[elements]) {
    const std::uint32_t words[2] = {bf16_pair(d[0], d[1]), bf16_pair(d[2], d[3])};
    fragment f;
    __builtin_memcpy(&f.four, words, 8);
    return f;
  }
  __device__ static fragment load_first(const std::uint16_t* x, int stride) {
    return {*reinterpret_cast<const amd::short4*>(x + lane() % 16 * stride + lane() / 16 * 4)};
  }
  __device__ static fragment load_second(const std::uint16_t* x, int stride) { return load_first(x, stride); }
  __device__ static fragment load_second_transposed(const std::uint16_t* x, int stride) {
    const std::uint16_t* const at = x + lane() / 16 * 4 * stride + lane() % 16;
    return {amd::short4{static_cast<short>(at[0]), static_cast<short>(at[stride]), static_cast<short>(at[2 * stride]),
                        static_cast<short>(at[3 * stride])}};
  }
  __device__ static void multiply(const fragment& a, const fragment& b, float (&d)[elements]) {
    amd::float4 sum = {d[0], d[1], d[2], d[3]};
    sum = amd::multiply_bf16(b.four, a.four, sum);
    ROTOSCALE_UNROLL
    for (int e = 0; e < elements; ++e) d[e] = sum[e];
  }
};

#endif

/// Returns body(unit) for the unit of this build with this model, or `otherwise` if there is none.
template <class Result, class Body>
Result with_bf16_unit(const mma_model& model, const Result& otherwise, const Body& body) {
#if defined(ROTOSCALE_CUDA)
  if (model == find_unit(wgmma_unit::name)->model) return body(wgmma_unit{});
#elif defined(ROTOSCALE_GPU_HOST)
  if (model == find_unit(mma_sync_unit::name)->model) return body(mma_sync_unit{});
#endif
#if !defined(ROTOSCALE_CUDA)
  if (model == find_unit(mfma_unit::name)->model) return body(mfma_unit{});
#endif
  return otherwise;
}

}  // namespace rotoscale::gpu
