// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// One thread's run of 32 elements: rotation, scales and codes. Tiles, loads and stores are elsewhere (tile.hpp).
// The fast paths take finite blocks below 2^100, with the bits of the definition. All other runs take exact_run, which
// calls the definition's functions.
#pragma once

#include <type_traits>

#include "gpu/dialect/convert.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale::gpu {

/// Compile-time variants of the kernel.
enum class quantize_path {
  general,         ///< blocks and options known at run time
  fast_h16,        ///< MX blocks of 32 with H16, no signs, nearest even, by rules that cannot exceed the largest code
  fast_unrotated,  ///< the same without rotation
  // NVFP4: E2M1 in blocks of 16 with UE4M3 scales, rotated or not.
  nvfp4_nearest,        ///< blocks of one row, nearest even
  nvfp4_stochastic,     ///< blocks of one row, 32 random bits per element
  nvfp4_square,         ///< squares of 16 × 16, nearest even
  nvfp4_chosen,         ///< nvfp4_nearest with 4/6 scales
  nvfp4_chosen_square,  ///< nvfp4_square with 4/6 scales
  nvfp4_eden,           ///< nvfp4_nearest with EDEN's correction of scales
  // Blocks of 32 in one row with E8M0 scales, rotated or not.
  mx_nearest,     ///< nearest even
  mx_stochastic,  ///< 32 random bits per element
};
/// True for paths of general_tile.hpp, which make options on the device.
ROTOSCALE_HD constexpr bool is_general(quantize_path path) {
  return path != quantize_path::fast_h16 && path != quantize_path::fast_unrotated;
}

/// Constants of block_options under E8M0 scales, computed once by the launcher.
struct fast_rule {
  std::uint32_t add = 0;       ///< added to amax's bits, so that the rounded amax gives the exponent
  std::uint32_t subtract = 0;  ///< subtracted from that exponent
  std::uint8_t zero_byte = 0, least_byte = 0;
};

__host__ inline fast_rule make_fast_rule(format element, const block_options& o) {
  fast_rule p;
  const int width = element.mantissa_bits;
  const auto largest = static_cast<std::uint32_t>(element.max_code() << (23 - width)) & 0x7FFFFFu;
  switch (o.rule) {
    case scale_rule::floor: p.add = 0; break;
    case scale_rule::even: p.add = 1u << (22 - width); break;
    case scale_rule::ceil: p.add = 0x7FFFFF; break;
    case scale_rule::rceil: p.add = 0x7FFFFF - largest; break;
  }
  p.subtract = static_cast<std::uint32_t>(element.max_exponent());
  p.zero_byte = o.policy.zero_byte;
  p.least_byte = o.policy.least_byte;
  return p;
}

/// element_target of a format known at compile time.
template <format F>
__device__ inline float known_target(const block_options& o) {
  constexpr float largest = element_target(F, scale_choice::amax), room = element_target(F, scale_choice::headroom),
                  eden = element_target(F, scale_choice::eden);
  return o.choice == scale_choice::headroom ? room : o.choice == scale_choice::eden ? eden : largest;
}

/// Least amax, other than zero, of blocks on a fast path whose elements are FP32 numbers without the factor 1/4. The
/// definition rounds such a product below 2^-126, and no block type of AMD's multiplies by 2^128.
inline constexpr std::uint32_t least_inexact_amax = 67u << 23;  // 2^-60
/// True if amax (before the factor 1/4) is zero or between `least` and 2^100. Under `least` = 0 every tiny number is
/// in: powers of two then multiply elements exactly.
__device__ inline bool takes_fast_path(std::uint32_t amax, std::uint32_t least = 0) {
  constexpr std::uint32_t largest = 227u << 23;
  return amax == 0 || amax - least <= largest - least;
}

/// A block's scale byte, and the exponent field of the power of two that multiplies its elements.
struct fast_scale {
  std::uint32_t byte;
  std::uint32_t inverse;
  bool saturates;  ///< a number may round beyond the largest code
};
/// `H16`: amax and elements lack the rotation's factor 1/4.
template <bool H16>
__device__ inline fast_scale choose_fast_scale(const fast_rule& p, std::uint32_t amax) {
  constexpr std::uint32_t factor = H16 ? 2 : 0;
  const auto wanted = static_cast<std::int32_t>(((amax + p.add) >> 23) - p.subtract - factor);
  const std::int32_t least = p.least_byte;
  const auto byte = static_cast<std::uint32_t>(wanted > least ? wanted : least);
  if (amax == 0) return {p.zero_byte, 127, false};
  return {byte, 254u - factor - byte, false};
}

/// One stage of a Hadamard butterfly, in place.
template <int Step>
__device__ inline void butterfly_stage(float (&y)[16]) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < 16; ++i) {
    if ((i & Step) != 0) continue;
    const float a = y[i], b = y[i + Step];
    y[i] = a + b;
    y[i + Step] = a - b;
  }
}

/// hadamard(y, 16) without its factor.
__device__ inline void butterflies16(float (&y)[16]) {
  butterfly_stage<1>(y);
  butterfly_stage<2>(y);
  butterfly_stage<4>(y);
  butterfly_stage<8>(y);
}

/// Negates y[i] where bit i of `signs` is set.
__device__ inline void negate(float (&y)[16], std::uint32_t signs) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < 16; ++i) y[i] = fp32_from_bits(fp32_bits(y[i]) ^ (signs >> i & 1u) << 31);
}

/// Converts pairs of BF16 magnitudes to E2M1 codes, one pair per 32-bit word, as sums with `zero`.
/// E2M1's code is min(2x, x + 2, x / 2 + 4) rounded to an integer, ties to even. One sum gives the second and the third
/// term: 252 + x passes 256 at x = 4, where BF16's last place doubles. All numbers are scaled by 2^-7, so that `offset`
/// has no bit of the codes' signs.
struct e2m1_pair_codes {
  static constexpr std::uint32_t zero = 0x3FFA3FFAu;            ///< 250, the representation of code 0
  static constexpr std::uint32_t offset = 0u - zero * 0x1111u;  ///< difference between codes and four sums, in nibbles
  static_assert((offset & 0x88888888u) == 0);
  /// The scaling by 2^-7, in exponent bits.
  static constexpr std::uint32_t shift = 7u * 0x00800080u;
  std::uint32_t once, twice;

  /// `factor`: exponent bits of the power of two that multiplies magnitudes, less `shift`.
  __device__ explicit e2m1_pair_codes(std::uint32_t factor) : once(factor), twice(factor + 0x00800080u) {}
  __device__ std::uint32_t of(std::uint32_t m) const {
    return min_u16x2(fma_bf16x2(m, twice, zero), fma_bf16x2(m, once, zero + 0x00020002u));
  }
  /// The offset plus the signs: bit 3 of even and odd nibbles. Bytes of `even` and `odd` are 0xFF where negative.
  __device__ static std::uint32_t signs(std::uint32_t even, std::uint32_t odd) {
    return and_or(even, 0x08080808u, and_or(odd, 0x80808080u, offset));
  }
};

/// A block as pairs of BF16 magnitudes, rounded to odd. E2M1 has one mantissa bit and BF16 seven, so rounding to odd
/// first does not change the final rounding. Pair p of word w holds elements 8w + p and 8w + p + 4.
struct packed_e2m1_block {
  std::uint32_t pair[16];
  std::uint32_t sign[4];  ///< bit 3 of nibble i: the sign of element 8w + i; plus the codes' offset

  /// Stores elements 16 * half to 16 * half + 15. Always inlined, for put_half's reason (tile.hpp).
  [[gnu::always_inline]] __device__ void put(int half, const float (&y)[16]) {
    ROTOSCALE_UNROLL
    for (int w = 0; w < 2; ++w) {
      std::uint32_t top[4];
      ROTOSCALE_UNROLL
      for (int p = 0; p < 4; ++p) {
        const std::uint32_t a = fp32_bits(y[8 * w + p]), b = fp32_bits(y[8 * w + p + 4]);
        top[p] = permute_bytes<0x7632>(a, b);
        const std::uint32_t lost = min_u16x2(permute_bytes<0x5410>(a, b), 0x00010001u);
        pair[8 * half + 4 * w + p] = (top[p] | lost) & 0x7FFF7FFFu;
      }
      const std::uint32_t even = permute_bytes<0xFBD9>(top[0], top[2]), odd = permute_bytes<0xFBD9>(top[1], top[3]);
      sign[2 * half + w] = e2m1_pair_codes::signs(even, odd);
    }
  }

  /// FP32 bits with amax's exponent. They compare with BF16 numbers as amax does.
  __device__ std::uint32_t amax() const {
    std::uint32_t m = max3_u16x2(pair[0], pair[1], pair[2]);
    ROTOSCALE_UNROLL
    for (int i = 3; i < 15; i += 2) m = max3_u16x2(m, pair[i], pair[i + 1]);
    m = max3_u16x2(m, pair[15], pair[15]);
    return max3_u16x2(m, m >> 16, m >> 16) << 16;
  }

  /// Word `w` of codes.
  __device__ std::uint32_t codes(int w, const fast_scale& s) const {
    constexpr std::uint32_t zero = e2m1_pair_codes::zero, seven = zero + 0x00070007u;
    const e2m1_pair_codes pairs((s.inverse << 7) * 0x00010001u - e2m1_pair_codes::shift);
    std::uint32_t code[4];
    ROTOSCALE_UNROLL
    for (int p = 0; p < 4; ++p) {
      code[p] = pairs.of(pair[4 * w + p]);
      if (s.saturates) code[p] = min_u16x2(code[p], seven);
    }
    const std::uint32_t low = code[1] * 16 + code[0], high = code[3] * 16 + code[2];
    return high * 256 + (low + sign[w]);
  }
};

/// The same with FP32 instructions only. FP32 numbers are exact here, so only the last addition rounds.
struct float_e2m1_block {
  float y[32];

  __device__ void put(int half, const float (&from)[16]) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) y[16 * half + i] = from[i];
  }

  __device__ std::uint32_t amax() const {
    std::uint32_t m = 0;
    ROTOSCALE_UNROLL
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t u = fp32_bits(y[i]) & fp32_magnitude_mask;
      m = u > m ? u : m;
    }
    return m;
  }

  __device__ std::uint32_t codes(int w, const fast_scale& s) const {
    constexpr float magic = 0x1.8p23f;
    constexpr std::uint32_t seven = fp32_bits(magic + 7.0f);
    const float once = fp32_from_bits(s.inverse << 23);
    std::uint32_t word = 0;
    ROTOSCALE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t u = fp32_bits(y[8 * w + i]);
      const float m = fp32_from_bits(u & fp32_magnitude_mask);
      const std::uint32_t low = fp32_bits(m * (2.0f * once) + magic), middle = fp32_bits(m * once + (magic + 2.0f));
      const std::uint32_t high = fp32_bits(m * (0.5f * once) + (magic + 4.0f));
      std::uint32_t code = low < middle ? low : middle;
      code = code < high ? code : high;
      code = code < seven ? code : seven;
      word |= ((code & 7u) | (u >> 28 & 8u)) << (4 * i);
    }
    return word;
  }
};

/// The same with gfx950's conversion instruction, which divides by a power of two, rounds to nearest even and
/// saturates.
struct converted_e2m1_block : float_e2m1_block {
  __device__ std::uint32_t codes(int w, const fast_scale& s) const {
    const float scale = fp32_from_bits((254u - s.inverse) << 23);
    std::uint32_t word = 0;
    word = insert_e2m1<0>(word, y[8 * w], y[8 * w + 1], scale);
    word = insert_e2m1<1>(word, y[8 * w + 2], y[8 * w + 3], scale);
    word = insert_e2m1<2>(word, y[8 * w + 4], y[8 * w + 5], scale);
    return insert_e2m1<3>(word, y[8 * w + 6], y[8 * w + 7], scale);
  }
};

/// A block of FP8 codes: multiply by the power of two, convert.
template <format F>
struct fp8_block : float_e2m1_block {
  __device__ std::uint32_t codes(int w, const fast_scale& s) const {
    const float once = fp32_from_bits(s.inverse << 23);
    return fp8_codes<F>(y[4 * w] * once, y[4 * w + 1] * once) | fp8_codes<F>(y[4 * w + 2] * once, y[4 * w + 3] * once)
                                                                    << 16;
  }
};

/// A block of FP6 codes. Five codes and a third make a word.
template <format F>
struct fp6_block : float_e2m1_block {
  __device__ std::uint32_t codes(int w, const fast_scale& s) const {
    const float once = fp32_from_bits(s.inverse << 23);
    const int half = w / 3, bit = 32 * (w % 3);
    std::uint32_t word = 0;
    ROTOSCALE_UNROLL
    for (int i = bit / 6; 6 * i < bit + 32; ++i) {
      const std::uint32_t code = encode_nearest<F>(y[16 * half + i] * once);
      word |= 6 * i < bit ? code >> (bit - 6 * i) : code << (6 * i - bit);
    }
    return word;
  }
};

/// The fastest block type for element format F on this device.
template <format F>
struct block_for {
  using type = std::conditional_t<F.bits() == 6, fp6_block<F>, fp8_block<F>>;
};
template <format F>
  requires(F.bits() == 4)
struct block_for<F> {
  using type = std::conditional_t<has_e2m1_conversion, converted_e2m1_block,
                                  std::conditional_t<has_packed_bf16, packed_e2m1_block, float_e2m1_block>>;
};

/// y[i] for a runtime i, without indexing registers. It uses masks because compilers turn selections back into an
/// index.
template <class T, unsigned N>
__device__ inline T pick(const T (&y)[N], unsigned i) {
  std::uint32_t bits = 0;
  ROTOSCALE_UNROLL
  for (unsigned j = 0; j < N; ++j) bits |= bit_cast<std::uint32_t>(y[j]) & (i == j ? ~0u : 0u);
  return bit_cast<T>(bits);
}

/// Code of |x| in E2M1 by encode_stochastic. Codes of numbers below 1 count halves, others continue FP32's bits.
__device__ inline std::uint32_t e2m1_stochastic_magnitude(float x, std::uint32_t random) {
  constexpr float below_one = 0x1.fffffep-1f;
  constexpr std::uint32_t zero = 252, largest = 7;  // of the upper word below
  const std::uint32_t u = fp32_bits(x) & fp32_magnitude_mask;
  const float m = fp32_from_bits(u);
  const bool small = m < 1.0f, half = m >= 0.5f;
  const auto part = static_cast<std::uint32_t>(((small ? m : below_one) - (half ? 0.5f : 0.0f)) * 0x1p33f);
  // The code in the upper word, the discarded fraction in the lower one.
  const std::uint32_t top = small ? (half ? zero + 1 : zero) : u >> 22, fraction = small ? part : u << 10;
  const std::uint64_t sum = (std::uint64_t{top} << 32 | fraction) + random;
  const std::uint32_t code = static_cast<std::uint32_t>(sum >> 32) - zero;
  return code < largest ? code : largest;
}

/// encode(F, x, stochastic, saturate, {random, 32}). x must not be NaN.
template <format F>
__device__ inline std::uint32_t encode_stochastic(float x, std::uint32_t random) {
  if constexpr (F == formats::e2m1) return e2m1_stochastic_magnitude(x, random) | (fp32_bits(x) >> 28 & 8u);
  constexpr unsigned drop = 23 - F.mantissa_bits, least = static_cast<unsigned>(F.min_exponent() + 127);
  constexpr std::uint32_t bias_gap = static_cast<std::uint32_t>(127 - F.bias) << F.mantissa_bits;
  constexpr auto largest = static_cast<std::uint32_t>(F.max_code());
  const std::uint32_t u = fp32_bits(x) & fp32_magnitude_mask, field = u >> 23;
  // The code in the upper word, the discarded fraction in the lower one. Subnormal codes count steps of the format.
  const bool normal = field >= least;
  const unsigned shift = normal ? drop : drop + least - field;
  const std::uint64_t significand = normal ? u : (u & 0x7FFFFFu) | 0x800000u;
  const std::uint64_t sum = (shift < 64 ? significand << 32 >> shift : 0) + random;
  const std::uint32_t code = static_cast<std::uint32_t>(sum >> 32) - (normal ? bias_gap : 0);
  return (code < largest ? code : largest) | fp32_bits(x) >> 31 << F.magnitude_bits();
}

/// A random_stream with the keys of all rounds. Blocks of a run share the keys, which compilers otherwise add again for
/// each block.
struct keyed_stream {
  static constexpr int rounds = 10;
  std::uint64_t stream;
  std::uint32_t key[2 * rounds];

  ROTOSCALE_HD constexpr void set(const random_stream& from) {
    stream = from.stream;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      key[2 * i] = static_cast<std::uint32_t>(from.seed) + i * 0x9E3779B9u;
      key[2 * i + 1] = static_cast<std::uint32_t>(from.seed >> 32) + i * 0xBB67AE85u;
    }
  }
  /// from.block(i)
  ROTOSCALE_HD constexpr philox_block block(std::uint64_t i) const {
    philox_block b{{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32),
                    static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}};
    ROTOSCALE_UNROLL
    for (int r = 0; r < rounds; ++r) b = philox4x32(b, key[2 * r], key[2 * r + 1], 1);
    return b;
  }
};

/// Packed codes of 16 elements, `word[i]` being word i. Random words begin at block `random_block` of `random`, a
/// random_stream or keyed_stream.
template <format F, class Random>
[[gnu::always_inline]] __device__ inline void stochastic_codes(const float (&y)[16], const Random& random,
                                                               std::uint64_t random_block, std::uint32_t* word) {
  constexpr int bits = storage_bits(F);
  ROTOSCALE_UNROLL
  for (int w = 0; w < bits / 2; ++w) word[w] = 0;
  std::uint32_t sign[2] = {};  // E2M1: bit 3 of nibble i is that of element i
  ROTOSCALE_UNROLL
  for (int four = 3; four >= 0; --four) {
    const philox_block drawn = random.block(random_block + static_cast<unsigned>(four));
    ROTOSCALE_UNROLL
    for (int i = 3; i >= 0; --i) {
      const float x = y[4 * four + i];
      if constexpr (F == formats::e2m1) {
        word[four / 2] = word[four / 2] * 16 + e2m1_stochastic_magnitude(x, drawn.word[i]);
        sign[four / 2] = sign[four / 2] << 4 | fp32_bits(x) >> 28;
      } else {
        const int at = bits * (4 * four + i);
        const std::uint32_t code = encode_stochastic<F>(x, drawn.word[i]);
        word[at / 32] |= code << at % 32;
        if (at % 32 + bits > 32) word[at / 32 + 1] |= code >> (32 - at % 32);
      }
    }
  }
  if constexpr (F == formats::e2m1) {
    ROTOSCALE_UNROLL
    for (int w = 0; w < 2; ++w) word[w] |= sign[w] & 0x88888888u;
  }
}

/// Rotates a run of 32 elements like load_run, NaN excepted: both halves by 16 points, or the whole run by 32.
/// `halves`: the run is two blocks of 16, whose signs are equal without a rotation of both.
[[gnu::always_inline]] __device__ inline void rotate_both(const block_options& o, bool halves, float (&y)[2][16]) {
  if (o.rotation.points == 0) return;
  const bool whole = o.rotation.points == 32;
  const std::uint32_t signs = o.rotation.signs[0];
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    negate(y[half], half == 1 && (whole || !halves) ? signs >> 16 : signs);
    butterflies16(y[half]);
  }
  if (whole) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const float a = y[0][i], b = y[1][i];
      y[0][i] = a + b;
      y[1][i] = a - b;
    }
  }
  const float factor = whole ? hadamard_factor(32) : 0.25f;
  ROTOSCALE_UNROLL
  for (int half = 0; half < 2; ++half) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) y[half][i] = y[half][i] * factor;
  }
}

/// Rotates 16 elements like load_run, NaN excepted.
__device__ inline void rotate_sixteen(const block_options& o, int half, float (&y)[16]) {
  if (o.rotation.points == 0) return;
  negate(y, o.rotation.signs[0] >> (16 * half));
  butterflies16(y);
  ROTOSCALE_UNROLL
  for (int i = 0; i < 16; ++i) y[i] = y[i] * 0.25f;
}

/// Quantizes a run of 32 elements, one or two blocks of `f`, by the definition. Returns the scale, that of a second
/// block in the second byte.
/// - `load(half, y)` returns 16 elements of the source.
/// - `emit(word, bits)` receives the words of codes.
/// - `index` is the random word of the first element.
/// - `amax`: of the two halves' blocks, where other runs share them (square blocks); else null.
/// - `expansion`: factors of the two scales, under 4/6; else null.
template <format F, class Load, class Emit>
__device__ inline std::uint32_t exact_run(const block_format& f, const block_options& o, std::uint64_t index,
                                          const std::uint32_t* amax, const float* expansion, const Load& load,
                                          const Emit& emit) {
  const block_format blocks{F, f.length, f.scale, f.rows};
  const auto read = [&](int half, float(&y)[16]) {
    load(half, y);
    // Signs repeat after a run of the definition, which is a block.
    rotate_sixteen(o, f.length == 16 ? 0 : half, y);
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) y[i] = o.rotation.points == 0 ? y[i] : canonical_nan(y[i]);
  };
  std::uint32_t first = no_amax, second = no_amax;
  float y[16];
  ROTOSCALE_KEEP_LOOP
  for (int half = 0; half < 2; ++half) {
    read(half, y);
    std::uint32_t of_half = no_amax;
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) of_half = block_amax(&y[i], 1, o.policy, of_half);
    (half == 0 ? first : second) = of_half;
  }
  if (f.length == 32) first = second = larger_amax(first, second);
  if (amax != nullptr) first = amax[0], second = amax[1];
  const std::uint8_t scale[2] = {choose_scale(blocks, o, first, expansion != nullptr ? expansion[0] : 1.0f),
                                 choose_scale(blocks, o, second, expansion != nullptr ? expansion[1] : 1.0f)};
  constexpr int bits = storage_bits(F);
  std::uint64_t word = 0;
  int filled = 0, words = 0;
  philox_block random{};
  ROTOSCALE_KEEP_LOOP
  for (int half = 0; half < 2; ++half) {
    read(half, y);
    ROTOSCALE_KEEP_LOOP
    for (int i = 0; i < 16; ++i) {
      const int at = 16 * half + i;
      random_bits drawn{0, o.random_count};
      if (o.rounding == rounding::stochastic) {
        if (at % 4 == 0) random = o.random.block((index + static_cast<unsigned>(at)) / 4);
        drawn.word = pick(random.word, static_cast<unsigned>(at % 4));
      }
      const std::uint32_t code =
          encode_element(blocks, o, pick(y, static_cast<unsigned>(i)), half == 0 ? scale[0] : scale[1], drawn);
      word |= std::uint64_t{code} << filled;
      filled += bits;
      if (filled < 32) continue;
      emit(words++, static_cast<std::uint32_t>(word));
      word >>= 32;
      filled -= 32;
    }
  }
  return scale[0] | (f.length == 16 ? scale[1] << 8 : 0u);
}

}  // namespace rotoscale::gpu
