// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Encodes a tile (quantize_tile.hpp) to packed codes: words[w][l] is word w of lane l's block, in the byte order of
// pack.hpp on a little-endian machine.
#pragma once

#include "rotoscale/detail/e2m1_words.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Philox4x32-10 in every lane, in place; equals philox4x32 of philox.hpp.
inline void philox_lanes(const random_stream& r, lanes_u32 (&c)[4]) {
  auto key0 = static_cast<std::uint32_t>(r.seed), key1 = static_cast<std::uint32_t>(r.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    lanes_u32 high0, low0, high1, low1;
    multiply_wide(c[0], 0xD2511F53u, high0, low0);
    multiply_wide(c[2], 0xCD9E8D57u, high1, low1);
    c[0] = high1 ^ c[1] ^ key0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// Random words of a tile: element e of lane l takes word (v + l) * k + e of the stream.
class tile_words {
 public:
  tile_words(const block_options& o, index_t k, index_t v, index_t e) : random_(o.random), shift_(32 - o.random_count) {
    std::uint32_t low[lane_count], high[lane_count];
    for (int l = 0; l < lane_count; ++l) {
      const auto block = static_cast<std::uint64_t>((v + l) * k + e) / 4;  // k and e are multiples of 16
      low[l] = static_cast<std::uint32_t>(block);
      high[l] = static_cast<std::uint32_t>(block >> 32);
    }
    __builtin_memcpy(&low_, low, sizeof low_);
    __builtin_memcpy(&high_, high, sizeof high_);
  }
  /// Words of the next four elements, in the form that stochastic_magnitude takes.
  void next(lanes_u32 (&words)[4]) {
    lanes_u32 c[4] = {low_, high_, broadcast(static_cast<std::uint32_t>(random_.stream)),
                      broadcast(static_cast<std::uint32_t>(random_.stream >> 32))};
    philox_lanes(random_, c);
    for (int i = 0; i < 4; ++i) words[i] = c[i] << shift_;
    low_ += 1u;  // never carries: a tile starts at a multiple of its number of words
  }

 private:
  random_stream random_;
  int shift_;
  lanes_u32 low_, high_;
};

/// Adds code I of sixteen to the words that it spans.
template <int Bits, int I>
inline void pack_code(const lanes_u32& code, lanes_u32 (&words)[Bits / 2]) {
  constexpr int word = I * Bits / 32, shift = I * Bits % 32;
  words[word] |= code << shift;
  if constexpr (shift + Bits > 32) words[word + 1] |= code >> (32 - shift);
}

template <format F, bool Stochastic, int Length>
inline void encode_elements(const lanes_u32 (&x)[Length], const tile_scales& s, [[maybe_unused]] tile_words* random,
                            lanes_u32* words) {
  constexpr int bits = storage_bits(F), run_words = bits / 2;
  for (int first = 0; first < Length; first += 16) {
    lanes_u32 packed[run_words] = {};
    [[maybe_unused]] lanes_u32 drawn[4];
    unrolled<16>([&](auto i) __attribute__((always_inline)) {
      lanes_u32 bits_of_x = x[first + i];
      lanes_u32 code = __builtin_bit_cast(lanes_u32, __builtin_bit_cast(lanes_f32, bits_of_x) * s.inverse);
      code &= fp32_magnitude_mask;
      if constexpr (Length == 16) bits_of_x &= __builtin_bit_cast(lanes_u32, code <= fp32_infinity_bits);
      if constexpr (Stochastic) {
        if constexpr (i % 4 == 0) random->next(drawn);
        stochastic_magnitude<F>(code, drawn[i % 4]);
      } else {
        nearest_magnitude<F>(code);
      }
      add_sign<F>(code, bits_of_x);
      pack_code<bits, i>(code, packed);
    });
    for (int w = 0; w < run_words; ++w) words[first / 16 * run_words + w] = packed[w] & s.keep;
  }
}

#if defined(ROTOSCALE_BYTE_LANES)

template <int Length>
inline void encode_ordinary_e2m1(const lanes_u32 (&x)[Length], const tile_scales& s, lanes_u32* words) {
  lanes_u32 factor;
  e2m1_words::factor_of(s, factor);
  for (int w = 0; w < Length / 8; ++w) {
    e2m1_words::encode([&](auto pair, auto odd) -> const lanes_u32& { return x[8 * w + 2 * pair + odd]; },
                       [&](auto) -> const lanes_u32& { return factor; }, words[w]);
  }
}

#else

/// E2M1 codes, nearest even, under ordinary scales. Code c has the value g^-1(c) with g(y) = min(2y, y + 2, y / 2 + 4,
/// 7). Three fused multiply-adds onto numbers whose last place is 1 round to nearest even; their minimum is the code.
/// Products are exact, or so small that they vanish, so contraction changes nothing.
template <int Length>
inline void encode_ordinary_e2m1(const lanes_u32 (&x)[Length], const tile_scales& s, lanes_u32* words) {
  constexpr float magic = 0x1.8p23f;
  constexpr std::uint32_t eight_magics = fp32_bits(magic) * 0x11111111u;  // its bits in eight nibbles
  const lanes_f32 twice = s.inverse * 2.0f, half = s.inverse * 0.5f;
  for (int w = 0; w < Length / 8; ++w) {
    lanes_u32 codes{}, signs{};
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      const auto y = __builtin_bit_cast(lanes_f32, x[8 * w + 7 - i] & fp32_magnitude_mask);
      lanes_f32 least = y * twice + magic;
      take_least(least, y * s.inverse + (magic + 2.0f));
      take_least(least, y * half + (magic + 4.0f));
      take_least(least, broadcast(magic + 7.0f));
      codes = (codes << 4) + __builtin_bit_cast(lanes_u32, least);
      signs = (signs >> 4) | (x[8 * w + i] & fp32_sign_mask);
    });
    words[w] = (codes - eight_magics) | signs;
  }
}

#endif

/// Codes of one tile: elements from e on of rows from v on, with k elements per row.
template <bool Exact, int Length>
inline void encode_tile(const tile_plan& p, const lanes_u32 (&x)[Length], const tile_scales& s, index_t k, index_t v,
                        index_t e, lanes_u32* words) {
  const auto encode = [&]<format F>(std::integral_constant<format, F>) {
    if (p.o.rounding == rounding::stochastic) {
      tile_words random(p.o, k, v, e);
      encode_elements<F, true>(x, s, &random, words);
    } else if constexpr (!Exact && F == formats::e2m1) {
      encode_ordinary_e2m1(x, s, words);
    } else {
      encode_elements<F, false>(x, s, nullptr, words);
    }
  };
  const format f = p.f.element;
  if (f == formats::e2m1) return encode(std::integral_constant<format, formats::e2m1>{});
  if constexpr (Length == 32) {
    if (f == formats::e2m3) return encode(std::integral_constant<format, formats::e2m3>{});
    if (f == formats::e3m2) return encode(std::integral_constant<format, formats::e3m2>{});
    if (f == formats::e4m3) return encode(std::integral_constant<format, formats::e4m3>{});
    if (f == formats::e5m2) return encode(std::integral_constant<format, formats::e5m2>{});
    if (f == formats::int8) return encode(std::integral_constant<format, formats::int8>{});
  }
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
