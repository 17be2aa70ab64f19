// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Row-wise MXFP4 without a transpose, for AVX-512 with byte instructions. A block is one register of even elements and
// one of odd elements, read and written as a stream. Sixteen blocks compute their scales together.
#pragma once

#include "rotoscale/detail/quantize_panel.hpp"

#if defined(ROTOSCALE_BYTE_LANES)

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

inline constexpr int chunk_blocks = lane_count;

/// Can this path quantize `p`? Other rotations and roundings use tiles.
inline bool is_chunked(const tile_plan& p) {
  constexpr block_format covered = mxfp4;
  return p.f == covered && p.o.rounding == rounding::nearest_even && p.o.rotation.points <= 16;
}

/// Position of a block in two registers, by source type. Byte b of its codes comes from lane lane_of_byte(b).
/// Butterflies of 2, 4 and 8 elements pair lanes that differ in steps[0], [1] and [2].
template <class T>
struct block_lanes;
template <>
struct block_lanes<float> {  // each 128 bits: two numbers of the first half, two of the second
  static constexpr int steps[3] = {1, 4, 8};
  static constexpr int lane_of_byte(int b) { return b % 8 / 2 * 4 + b / 8 * 2 + b % 2; }
  static void load(const float* from, lanes_u32& even, lanes_u32& odd) {
    const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
    even = __builtin_bit_cast(lanes_u32, _mm512_maskz_shuffle_ps(0xFFFF, low, high, 0x88));
    odd = __builtin_bit_cast(lanes_u32, _mm512_maskz_shuffle_ps(0xFFFF, low, high, 0xDD));
  }
};
template <>
struct block_lanes<bf16> {
  static constexpr int steps[3] = {1, 2, 4};
  static constexpr int lane_of_byte(int b) { return b; }
  static void load(const bf16* from, lanes_u32& even, lanes_u32& odd) {
    const auto pairs = __builtin_bit_cast(lanes_u32, _mm512_loadu_si512(from));
    even = pairs << 16;
    odd = pairs & 0xFFFF0000u;
  }
};

/// Lane i of the result is x[i ^ Step].
template <int Step>
[[gnu::always_inline]] inline __m512 other_lanes(__m512 x) {
  if constexpr (Step == 1) return _mm512_maskz_permute_ps(0xFFFF, x, 0xB1);
  if constexpr (Step == 2) return _mm512_maskz_permute_ps(0xFFFF, x, 0x4E);
  if constexpr (Step == 4) return _mm512_maskz_shuffle_f32x4(0xFFFF, x, x, 0xB1);
  if constexpr (Step == 8) return _mm512_maskz_shuffle_f32x4(0xFFFF, x, x, 0x4E);
}

/// Keeps a constant in a register; compilers would recompute it for each use.
inline void keep_in_register(__m512& x) {
#if defined(__GNUC__)
  __asm__("" : "+v"(x));
#endif
}

/// Butterflies of H16 on both halves of a block, without the factor, in hadamard's order. The first pass pairs even and
/// odd elements. The others pair lanes: a + b in the lower lane, a - b in the upper one. Multiplying by ±1 is exact, so
/// the fused form rounds equally.
template <class T>
class block_butterflies {
 public:
  block_butterflies() {
    unrolled<3>([&](auto i) {
      for (int l = 0; l < lane_count; ++l) sign_[i][l] = (l & block_lanes<T>::steps[i]) != 0 ? -1.0f : 1.0f;
      keep_in_register(sign_[i]);
    });
  }
  /// Four blocks, pass by pass, so that independent instructions hide the latency.
  [[gnu::always_inline]] void operator()(lanes_u32 (&blocks)[4][2]) const {
    __m512 x[4][2];
    unrolled<4>([&](auto i) __attribute__((always_inline)) {
      const auto a = __builtin_bit_cast(__m512, blocks[i][0]), b = __builtin_bit_cast(__m512, blocks[i][1]);
      x[i][0] = a + b;
      x[i][1] = a - b;
    });
    unrolled<3>([&](auto pass) __attribute__((always_inline)) {
      unrolled<8>([&](auto i) __attribute__((always_inline)) {
        __m512& v = x[i / 2][i % 2];
        v = _mm512_fmadd_ps(v, sign_[pass], other_lanes<block_lanes<T>::steps[pass]>(v));
      });
    });
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      blocks[i / 2][i % 2] = __builtin_bit_cast(lanes_u32, x[i / 2][i % 2]);
    });
  }

 private:
  __m512 sign_[3];
};

/// Maximum within groups of four lanes, for four registers: lane 4 i + b is group i of register b.
[[gnu::always_inline]] inline __m512i largest_of_quads(const __m512i (&m)[4]) {
  const auto join = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_maskz_max_epu32(0xFFFF, _mm512_maskz_unpacklo_epi32(0xFFFF, a, b),
                                  _mm512_maskz_unpackhi_epi32(0xFFFF, a, b));
  };
  const __m512i low = join(m[0], m[1]), high = join(m[2], m[3]);
  return _mm512_maskz_max_epu32(0xFFFF, _mm512_maskz_unpacklo_epi64(0xFF, low, high),
                                _mm512_maskz_unpackhi_epi64(0xFF, low, high));
}
/// Maximum across groups: lane 4 i + b of the result belongs to register i and block b.
[[gnu::always_inline]] inline __m512i largest_of_lanes(const __m512i (&q)[4]) {
  const auto join = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_maskz_max_epu32(0xFFFF, _mm512_maskz_shuffle_i32x4(0xFFFF, a, b, 0x88),
                                  _mm512_maskz_shuffle_i32x4(0xFFFF, a, b, 0xDD));
  };
  return join(join(q[0], q[1]), join(q[2], q[3]));
}

/// Converts lane order to byte order for four blocks: byte b of block j is byte j of lane_of_byte(b).
template <class T>
struct block_order {
  alignas(64) std::uint8_t index[64] = {};
  constexpr block_order() {
    for (int i = 0; i < 64; ++i) {
      index[i] = static_cast<std::uint8_t>(4 * block_lanes<T>::lane_of_byte(i % 16) + i / 16);
    }
  }
};

/// Signs of the rotation in the even and odd lanes of a block.
template <class T>
inline void signs_of_lanes(const rotation& r, lanes_u32 (&signs)[2]) {
  for (int i = 0; i < 32; ++i) signs[i % 2][block_lanes<T>::lane_of_byte(i / 2)] = (r.signs[0] >> i & 1u) << 31;
}

/// Blocks of a chunk in flight.
struct chunk {
  lanes_u32 x[chunk_blocks][2];  ///< even and odd elements, rotated
  lanes_u32 amax, wrapped;       ///< per block; `wrapped` as in load_tile
  tile_scales scales;
  int count = 0;  ///< blocks to encode, at most 16; the others are padding
  std::uint8_t *to, *to_scales;
};

enum class chunk_rotation { none, plain, with_signs };

template <bool Round, chunk_rotation Rotation, class T>
inline void load_chunk(const T* from, const lanes_u32 (&signs)[2], index_t ahead, chunk& c) {
  const block_butterflies<T> butterflies;
  __m512i quads[4];
  __mmask16 numbers[4] = {0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF};  // lanes that are not NaN, in four dependency chains
  c.wrapped = lanes_u32{};
  for (int g = 0; g < 4; ++g) {
    lanes_u32 x[4][2];
    unrolled<4>([&](auto i) __attribute__((always_inline)) {
      const T* block = from + 32 * (4 * g + i);
      fetch(block, ahead);
      if constexpr (sizeof(T) == sizeof(float)) fetch(block, ahead + line_bytes);
      block_lanes<T>::load(block, x[i][0], x[i][1]);
      for (int odd = 0; odd < 2; ++odd) {
        if constexpr (Round) {
          const lanes_u32 before = x[i][odd];
          round_number_to_bf16(x[i][odd]);
          c.wrapped |= before ^ x[i][odd];
        }
        if constexpr (Rotation == chunk_rotation::with_signs) x[i][odd] ^= signs[odd];
      }
    });
    if constexpr (Rotation != chunk_rotation::none) butterflies(x);
    __m512i largest[4];
    unrolled<4>([&](auto i) __attribute__((always_inline)) {
      const auto even = __builtin_bit_cast(__m512, x[i][0]), odd = __builtin_bit_cast(__m512, x[i][1]);
      constexpr int larger_magnitude = 0b1011;  // the larger magnitude, positive; a number before NaN
      largest[i] = __builtin_bit_cast(__m512i, _mm512_maskz_range_ps(0xFFFF, even, odd, larger_magnitude));
      numbers[i] = _mm512_mask_cmp_ps_mask(numbers[i], even, odd, _CMP_ORD_Q);
      c.x[4 * g + i][0] = x[i][0];
      c.x[4 * g + i][1] = x[i][1];
    });
    quads[g] = largest_of_quads(largest);
  }
  c.amax = __builtin_bit_cast(lanes_u32, largest_of_lanes(quads));
  if ((numbers[0] & numbers[1] & numbers[2] & numbers[3]) != 0xFFFF) c.wrapped = ~lanes_u32{};
}

template <class T>
inline void encode_chunk(const chunk& c, const tile_scales& s, lanes_u32 (&lines)[4]) {
  static constexpr block_order<T> order{};
  const __m512i index = _mm512_load_si512(order.index);
  lanes_u32 factors;
  e2m1_words::factor_of(s, factors);
  const auto* factor_of_block = reinterpret_cast<const char*>(&factors);
#if defined(__GNUC__)
  __asm__("" : "+r"(factor_of_block) : : "memory");  // reloads lanes from memory; g++ would permute the register
#endif
  unrolled<4>([&](auto g) __attribute__((always_inline)) {
    lanes_u32 factor[4], word;
    unrolled<4>([&](auto i) __attribute__((always_inline)) {
      float of_one;
      __builtin_memcpy(&of_one, factor_of_block + sizeof(float) * (4 * g + i), sizeof of_one);
      factor[i] = __builtin_bit_cast(lanes_u32, _mm512_set1_ps(of_one));
    });
    e2m1_words::encode([&](auto pair, auto odd) -> const lanes_u32& { return c.x[4 * g + pair][odd]; },
                       [&](auto pair) -> const lanes_u32& { return factor[pair]; }, word);
    lines[g] =
        __builtin_bit_cast(lanes_u32, _mm512_maskz_permutexvar_epi8(~0ull, index, __builtin_bit_cast(__m512i, word)));
  });
}

/// Loads, rotates and scales the blocks from `from` on. Returns false if one is not ordinary (quick_scales).
template <class T>
inline bool begin_chunk(const tile_plan& p, const lanes_u32 (&signs)[2], const T* from, index_t ahead, chunk& c) {
  const auto load = [&]<bool Round>(std::bool_constant<Round>) {
    using kind = chunk_rotation;
    if (p.o.rotation.points == 0) return load_chunk<Round, kind::none>(from, signs, ahead, c);
    if (p.o.rotation.signs[0] == 0) return load_chunk<Round, kind::plain>(from, signs, ahead, c);
    load_chunk<Round, kind::with_signs>(from, signs, ahead, c);
  };
  p.round_to_bf16 ? load(std::true_type{}) : load(std::false_type{});
  return quick_scales(p, c.amax, c.wrapped, c.scales);
}

/// Writes the codes and scales of a chunk.
template <class T>
inline void end_chunk(const chunk& c, bool stream) {
  lanes_u32 lines[4];
  encode_chunk<T>(c, c.scales, lines);
  const __m128i scales = _mm512_maskz_cvtepi32_epi8(0xFFFF, __builtin_bit_cast(__m512i, c.scales.codes));
  if (c.count < chunk_blocks) {
    __builtin_memcpy(c.to, lines, static_cast<std::size_t>(16 * c.count));
    __builtin_memcpy(c.to_scales, &scales, static_cast<std::size_t>(c.count));
    return;
  }
  if (stream) {
    for (int i = 0; i < 4; ++i) stream_lanes(c.to + line_bytes * i, lines[i]);
  } else {
    __builtin_memcpy(c.to, lines, sizeof lines);
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(c.to_scales), scales);
}

/// Rows in flight. A chunk is ended after the next one is begun, possibly of the next row, which hides the latency of
/// its scales. Chunks with blocks that are not ordinary take the exact path, as rows of one block.
template <class T>
class chunked_rows {
 public:
  /// Prefetches the source `ahead` bytes before its use.
  chunked_rows(const tile_plan& p, bool stream, index_t ahead) : p_(p), stream_(stream), ahead_(ahead) {
    signs_of_lanes<T>(p.o.rotation, signs_);
  }
  ~chunked_rows() {
    for (const chunk& c : chunks_) end(c);
  }
  chunked_rows(const chunked_rows&) = delete;
  chunked_rows& operator=(const chunked_rows&) = delete;

  /// Quantizes a part of one output row: `blocks` blocks from `from` on, with contiguous codes and scales.
  void quantize(const T* from, index_t blocks, std::uint8_t* codes, std::uint8_t* scales) {
    for (index_t b = 0; b < blocks; b += chunk_blocks) {
      if (blocks - b >= chunk_blocks) {
        add(from + 32 * b, chunk_blocks, codes + 16 * b, scales + b);
      } else {
        add_some(from + 32 * b, static_cast<int>(blocks - b), codes + 16 * b, scales + b);
      }
    }
  }

 private:
  /// Takes fewer blocks than a chunk holds, and pads with zeros.
  void add_some(const T* from, int count, std::uint8_t* codes, std::uint8_t* scales) {
    T padded[32 * chunk_blocks];
    for (int i = 0; i < 32 * chunk_blocks; ++i) padded[i] = i < 32 * count ? from[i] : T();
    add(padded, count, codes, scales);
  }
  void add(const T* from, int count, std::uint8_t* codes, std::uint8_t* scales) {
    chunk &c = chunks_[turn_], &last = chunks_[turn_ ^ 1];
    turn_ ^= 1;
    c.to = codes;
    c.to_scales = scales;
    c.count = count;
    if (!begin_chunk(p_, signs_, from, ahead_, c)) {
      const block_matrix<std::uint8_t> out{count, 32, c.to, 16, c.to_scales, 1};
      quantize_row_panels<T>(p_, row_major(from, count, 32), out, lay_out_panels(p_, out), {0, count, 0, 32});
      c.count = 0;
    }
    end(last);
    last.count = 0;
  }
  void end(const chunk& c) const {
    if (c.count == 0) return;
    end_chunk<T>(c, stream_ && reinterpret_cast<std::uintptr_t>(c.to) % line_bytes == 0);
  }

  const tile_plan& p_;
  bool stream_;
  int turn_ = 0;
  index_t ahead_;
  lanes_u32 signs_[2];
  chunk chunks_[2];
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail

#endif
