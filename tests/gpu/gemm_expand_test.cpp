// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands of the sm_90 GEMM, expanded to E5M2 and BF16: every code under every scale, against the definitions.
#include "gpu/gemm_expand.hpp"

#include <doctest/doctest.h>

#include <random>

#include "gpu/gemm_data.hpp"

using namespace gpu_test;

TEST_CASE("operands are expanded exactly: every code under every scale") {
  bytes codes(256 * 16), scales(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>((i % 16) * 0x21 + i / 4096);
  for (std::size_t i = 0; i < 16 * 256; ++i)
    codes[i] = static_cast<std::uint8_t>((2 * i % 16) | ((2 * i + 1) % 16) << 4);
  for (std::size_t i = 0; i < 256; ++i) scales[i] = static_cast<std::uint8_t>(i);
  const matrix_data a(256, 32, codes, scales), b(1, 32, bytes(16), bytes(1, 127));
  array<std::uint8_t> wide_a(bytes(256 * 64)), wide_b(bytes(64)), folded_a(bytes(256 * 32)), folded_b(bytes(32));
  array<int> base(std::vector<int>(257));
  array<std::uint8_t> flags(bytes(257, 0xFF));
  const auto source = [](const matrix_data& m) {
    return block_source{m.codes.there, m.scales.there, m.code_stride(), m.k / 32, m.rows};
  };
  expand_arguments e{source(a), source(b), 32, wide_a.there, wide_b.there};
  REQUIRE(launch(expand_bf16_kernel, dim3{33, 1, 1}, dim3{expand_threads, 1, 1}, 0, nullptr, e).ok());
  e.target_a = folded_a.there;
  e.target_b = folded_b.there;
  e.base = base.there;
  e.flags = flags.there;
  REQUIRE(launch(expand_e5m2_kernel, dim3{33, 1, 1}, dim3{expand_threads, 1, 1}, 0, nullptr, e).ok());
  wide_a.fetch();
  folded_a.fetch();
  base.fetch();
  flags.fetch();
  int wrong = 0;
  for (index_t r = 0; r < 256; ++r) {
    for (index_t c = 0; c < 32; ++c) {
      const float value = decode_element(mxfp4, a.here(), r, c);
      const float wide = fp32_from_bits(static_cast<std::uint32_t>(bits_at(wide_a.here, r * 32 + c, 2)) << 16);
      const auto folded = decode(formats::e5m2, folded_a.here[static_cast<std::size_t>(r * 32 + c)]);
      if (r == 255) {
        wrong += !fp32_is_nan(fp32_bits(wide)) || !fp32_is_nan(fp32_bits(folded));
        continue;
      }
      wrong += fp32_bits(wide) != fp32_bits(value);
      wrong += fp32_bits(times_power(folded, base.here[static_cast<std::size_t>(r)])) != fp32_bits(value);
    }
    wrong += flags.here[static_cast<std::size_t>(r)] != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("the window: 26 binades fit exactly, 27 do not; zeros and NaN scales do not count") {
  const auto data = [](std::uint8_t first, std::uint8_t second, std::uint8_t code) {
    bytes codes(32, 0x31);
    for (std::size_t i = 0; i < 16; ++i) codes[i] = code;
    return matrix_data(1, 64, codes, {first, second});
  };
  const struct {
    std::uint8_t first, second, code;  // of the first block
    bool fits;
  } cases[] = {{101, 127, 0x17, true}, {100, 127, 0x17, false}, {127, 101, 0x17, true}, {228, 254, 0xF9, true},
               {0, 26, 0x99, true},    {0, 27, 0x99, false},    {0, 127, 0x80, true},   {254, 27, 0x08, true},
               {255, 27, 0x11, true},  {0, 255, 0x11, true}};
  for (const auto& c : cases) {
    CAPTURE(static_cast<int>(c.first));
    CAPTURE(static_cast<int>(c.second));
    const matrix_data a = data(c.first, c.second, c.code), b = data(127, 127, 0x22);
    array<std::uint8_t> to_a(bytes(64)), to_b(bytes(64)), flags(bytes(2, 0xFF));
    array<int> base(std::vector<int>(2));
    expand_arguments e{{a.codes.there, a.scales.there, 32, 2, 1},
                       {b.codes.there, b.scales.there, 32, 2, 1},
                       64,
                       to_a.there,
                       to_b.there};
    e.base = base.there;
    e.flags = flags.there;
    REQUIRE(launch(expand_e5m2_kernel, dim3{1, 1, 1}, dim3{expand_threads, 1, 1}, 0, nullptr, e).ok());
    to_a.fetch();
    flags.fetch();
    base.fetch();
    CHECK((flags.here[0] == 0) == c.fits);
    CHECK(fold_range_ref(a.here(), 0).fits() == c.fits);
    for (index_t i = 0; c.fits && i < 64; ++i) {
      const float value = decode_element(mxfp4, a.here(), 0, i);
      const std::uint8_t code = to_a.here[static_cast<std::size_t>(i)];
      const float folded = decode(formats::e5m2, code);
      if (fp32_is_nan(fp32_bits(value))) {
        CHECK(fp32_is_nan(fp32_bits(folded)));
      } else {
        CHECK(fp32_bits(times_power(folded, base.here[0])) == fp32_bits(value));
        CHECK(((code & 0x7F) == 0 || (code & 0x7C) != 0));  // no subnormal number
      }
    }
  }
}

TEST_CASE("one rounding brings a folded sum back, whatever the exponent") {
  std::mt19937 random(3);
  int wrong = 0;
  for (int i = 0; i < 300; ++i) {  // significands of an E8M13 accumulator, and of an FP32 sum of them
    const auto significand = static_cast<float>((1u << 23 | (random() & 0x7FFFFFu)) & (i % 2 == 0 ? ~0x3FFu : ~0u));
    const float x = (i % 3 == 0 ? -1.0f : 1.0f) * significand * pow2_fp32(static_cast<int>(random() % 99) - 41 - 23);
    for (int e = -280; e <= 228; ++e) {
      const float want = static_cast<float>(__builtin_ldexp(static_cast<double>(x), e));
      wrong += fp32_bits(times_power(x, e)) != fp32_bits(want);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("FP8 codes are decoded and expanded as the definition says: every code under every scale") {
  for (const gemm_element element : {gemm_element::e4m3, gemm_element::e5m2}) {
    bytes codes(256 * 256), scales(256 * 8);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(i / 8);
    const matrix_data a(256, 256, codes, scales, element), b(1, 256, bytes(256), bytes(8, 127), element);
    array<std::uint8_t> wide_a(bytes(256 * 512)), wide_b(bytes(512));
    const auto source = [](const matrix_data& m) {
      return block_source{m.codes.there, m.scales.there, m.code_stride(), m.k / 32, m.rows, m.element};
    };
    const expand_arguments e{source(a), source(b), 256, wide_a.there, wide_b.there};
    REQUIRE(launch(expand_bf16_kernel, dim3{33, 1, 1}, dim3{expand_threads, 1, 1}, 0, nullptr, e).ok());
    wide_a.fetch();
    int wrong = 0;
    for (index_t r = 0; r < 256; ++r) {
      for (index_t c = 0; c < 256; ++c) {
        const auto code = static_cast<std::uint32_t>(c);
        wrong += fp32_bits(fp8_value(element == gemm_element::e4m3, code)) !=
                 fp32_bits(canonical_nan(decode(format_of(element), code)));
        const auto want =
            encode(formats::bf16, decode_element(a.blocks(), a.here(), r, c), rounding::nearest_even, overflow::to_inf);
        const std::uint64_t got = bits_at(wide_a.here, r * 256 + c, 2);
        wrong += formats::bf16.is_nan(want) ? !formats::bf16.is_nan(got) : got != want;
      }
    }
    CHECK(wrong == 0);
  }
}
