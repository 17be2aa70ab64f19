// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Encodes eight FP32 numbers per lane to a word of E2M1 codes with AVX-512's byte instructions: four instructions per
// number and three per word. The portable version is encode_ordinary_e2m1 (encode_tile.hpp).
#pragma once

#include "rotoscale/detail/quantize_tile.hpp"

#if defined(ROTOSCALE_BYTE_LANES)

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// E2M1 codes of the cells [n / 4, (n + 1) / 4) for -32 <= n < 32, at index n modulo 64. Codes of odd elements are in
/// the high nibble.
struct e2m1_cells {
  std::uint8_t even[64] = {}, odd[64] = {};
  constexpr e2m1_cells() {
    for (int n = -32; n < 32; ++n) {
      const float middle = (static_cast<float>(n) + 0.5f) / 4.0f;
      even[n & 63] = static_cast<std::uint8_t>(encode(formats::e2m1, middle));
      odd[n & 63] = static_cast<std::uint8_t>(even[n & 63] << 4);
    }
  }
};
inline constexpr e2m1_cells codes_of_cells{};

/// Looks up codes by cell. All ties of E2M1 are multiples of a quarter. So rounding a product down to a cell decides
/// for every number that is not a tie.
///
/// A tie must move into the right cell: 0.75, 1.75 and 3.5 away from zero; 0.25, 1.25, 2.5 and 5 toward it. Two
/// products that nearly cancel do this:
/// 1. Times 1 + 2^-23, rounded: moves ties of mantissa 1 and 1.25 by 1 ULP, ties of 1.5 and 1.75 by 2 ULP.
/// 2. Times 1 - 2^-23: moves back by 1, 1.25, 1.5 and 1.75 ULP, and a little more.
/// The neighbours of a tie stay on their sides.
struct e2m1_words {
  /// First factor of a tile's elements: the inverse scale times 1 + 2^-23.
  static void factor_of(const tile_scales& s, lanes_u32& factor) {
    factor = __builtin_bit_cast(lanes_u32, s.inverse) + 1u;
  }

  /// Codes of value(pair, odd) * factor(pair) for pairs 0 to 3, in nibble 2 pair + odd of each lane's word.
  template <class Value, class Factor>
  [[gnu::always_inline]] static void encode(const Value& value, const Factor& factor, lanes_u32& word) {
    const __m512 least = _mm512_set1_ps(0x1p-20f);  // well inside the first cell
    const __m512 integers = _mm512_set1_ps(0x1.8p23f);
    const __m512 to_cells = _mm512_set1_ps((1.0f - 0x1p-23f) * 4.0f);  // four cells per unit
    const __m512i low_bytes = _mm512_set1_epi64(0x2020202000000000);   // lowest byte of a dword to bytes 0 to 3
    __m512i cells[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      using odd = std::integral_constant<int, i % 2>;
      using pair = std::integral_constant<int, i / 2>;
      const __m512 product =
          __builtin_bit_cast(__m512, value(pair{}, odd{})) * __builtin_bit_cast(__m512, factor(pair{}));
      // Take the larger magnitude with the product's sign, since -0 has its own code, which a sum would lose.
      const __m512 y = _mm512_maskz_range_ps(0xFFFF, product, least, 3);
      const __m512 cell = _mm512_fmadd_round_ps(y, to_cells, integers, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      cells[odd{}] = _mm512_mask_multishift_epi64_epi8(cells[odd{}], 0x1111111111111111u << pair{}, low_bytes,
                                                       __builtin_bit_cast(__m512i, cell));
    });
    word = __builtin_bit_cast(
        lanes_u32,
        _mm512_or_si512(_mm512_maskz_permutexvar_epi8(~0ull, cells[0], _mm512_loadu_si512(codes_of_cells.even)),
                        _mm512_maskz_permutexvar_epi8(~0ull, cells[1], _mm512_loadu_si512(codes_of_cells.odd))));
  }
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail

#endif
