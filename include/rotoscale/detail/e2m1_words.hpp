// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Eight FP32 numbers a lane to a word of E2M1 codes with AVX-512's byte instructions, at six instructions a number. The
// generic way is encode_ordinary_e2m1 (encode_tile.hpp).
#pragma once

#include "rotoscale/detail/quantize_tile.hpp"

#if defined(ROTOSCALE_BYTE_LANES)

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Codes by the exponent and the leading two mantissa bits of 16 y, from 2.0 on (less counts as 2.0); a cell excludes
/// its lower end and includes its upper. In the high nibble for odd elements.
struct e2m1_cells {
  std::uint8_t even[64] = {}, odd[64] = {};
  constexpr e2m1_cells() {
    for (std::uint32_t cell = 1; cell < 32; ++cell) {
      const std::uint32_t middle = fp32_bits(2.0f) + (cell << 21) - (1u << 20);
      even[cell] = static_cast<std::uint8_t>(encode(formats::e2m1, fp32_from_bits(middle) / 16.0f));
      odd[cell] = static_cast<std::uint8_t>(even[cell] << 4);
    }
  }
};
inline constexpr e2m1_cells codes_of_cells{};

/// A code is a table's entry for the leading bits of 16 y, all ties of E2M1 being numbers of at most three bits. To see
/// which side of a tie y is on, numbers are rounded up to the cells of the table, after a step of one unit in the last
/// place where the mantissa is at least 1.5: ties there go up (0.75, 1.75 and 3.5; 0.25, 1.25, 2.5 and 5 go down).
struct e2m1_words {
  /// What numbers are multiplied by. Multiplying by 1 + 2^-22 moves values past ties by 2 to 4 ULP: ties of mantissa 1
  /// and 1.25 by 2, those of 1.5 and 1.75 by 3 or 4, their neighbours by 2 or 3.
  static void factor_of(const tile_scales& s, lanes_u32& factor) {
    factor = __builtin_bit_cast(lanes_u32, s.inverse) + ((4u << 23) + 2u);
  }

  /// Codes of value(pair, odd) * factor(pair), pairs 0 to 3: nibble 2 pair + odd of each lane's word.
  template <class Value, class Factor>
  [[gnu::always_inline]] static void encode(const Value& value, const Factor& factor, lanes_u32& word) {
    const __m512 floor = _mm512_set1_ps(2.0f);
    // Bytes 0 to 3 of a dword take the cell's bits of that dword; then sign bits i and i + 4 of it as their bits 3, 7.
    const __m512i cell_bits = _mm512_set1_epi64(0x3535353515151515);
    const __m512i sign_bits = _mm512_set1_epi64(0x201F1E1D003F3E3D);
    __m512i cells[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, signs = _mm512_setzero_si512();
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      using odd = std::integral_constant<int, 1 - i / 4>;
      using pair = std::integral_constant<int, 3 - i % 4>;  // signs are pushed down: the last one is bit 0
      const lanes_u32& bits = value(pair{}, odd{});
      const __m512 product = __builtin_bit_cast(__m512, bits) * __builtin_bit_cast(__m512, factor(pair{}));
      // The larger magnitude, with the product's sign.
      const __m512 y = _mm512_maskz_range_ps(0xFFFF, product, floor, 3);
      const lanes_u32 up = __builtin_bit_cast(lanes_u32, y) + ((1u << 21) - 3u);
      cells[odd{}] = _mm512_mask_multishift_epi64_epi8(cells[odd{}], 0x1111111111111111u << pair{}, cell_bits,
                                                       __builtin_bit_cast(__m512i, up));
      signs = _mm512_maskz_shldi_epi32(0xFFFF, signs, __builtin_bit_cast(__m512i, bits), 1);
    });
    const __m512i codes =
        _mm512_or_si512(_mm512_maskz_permutexvar_epi8(~0ull, cells[0], _mm512_loadu_si512(codes_of_cells.even)),
                        _mm512_maskz_permutexvar_epi8(~0ull, cells[1], _mm512_loadu_si512(codes_of_cells.odd)));
    signs = _mm512_maskz_multishift_epi64_epi8(~0ull, sign_bits, signs);
    constexpr int third_selects_second = 0xD8;
    word = __builtin_bit_cast(lanes_u32,
                              _mm512_ternarylogic_epi32(codes, signs, _mm512_set1_epi32(static_cast<int>(0x88888888u)),
                                                        third_selects_second));
  }
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail

#endif
