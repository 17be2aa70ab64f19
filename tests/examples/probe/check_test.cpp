// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the probe expects of the forms of an instruction, against the plain dense one on inputs that were changed by
// hand: signs turned, C cleared, the elements of B gathered that a sparse A keeps.
#include "examples/probe/check.hpp"

#include <doctest/doctest.h>

#include "rotoscale/gemm_ref.hpp"

using namespace rotoscale;
using namespace rotoscale::probe;

namespace {

constexpr int tiles = 2 * case_kinds;

std::vector<std::uint64_t> expected(const probed_instruction& instruction, const probe_cases& cases) {
  std::vector<std::uint64_t> all, d;
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    model_tile(find_unit(instruction.unit)->model, instruction, cases, tile, d);
    all.insert(all.end(), d.begin(), d.end());
  }
  return all;
}

void turn_signs(std::vector<std::uint8_t>& codes, std::size_t bytes) {
  for (std::size_t last = bytes - 1; last < codes.size(); last += bytes) codes[last] ^= 0x80;
}

}  // namespace

TEST_CASE("negated operands and a C that is not read") {
  const format formats_of[] = {formats::fp16, formats::e4m3, formats::tf32};
  const char* units[] = {"hopper-mma-fp16-f32", "hopper-wgmma-fp8-f32", "hopper-mma-tf32-f32"};
  const int ks[] = {16, 32, 8};
  thread_pool pool(1);
  for (std::size_t i = 0; i < 3; ++i) {
    const format f = formats_of[i];
    const probed_instruction plain{units[i], "plain", f, f, formats::fp32, 8, 8, ks[i]};
    const probe_cases cases = make_cases(plain, tiles, 5, pool);
    const auto bytes = static_cast<std::size_t>(element_bytes(stored_format(f)));
    for (int form = 0; form < 8; ++form) {
      probed_instruction instruction = plain;
      instruction.form = {false, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0};
      probe_cases changed = cases;
      if ((form & 1) != 0) turn_signs(changed.a, bytes);
      if ((form & 2) != 0) turn_signs(changed.b, bytes);
      if ((form & 4) != 0) std::fill(changed.c.begin(), changed.c.end(), std::uint8_t{0});
      CAPTURE(units[i]);
      CAPTURE(form);
      CHECK(expected(instruction, cases) == expected(plain, changed));
      if (form != 0 && form != 3) CHECK(expected(instruction, cases) != expected(plain, cases));
    }
  }
}

TEST_CASE("block scales are those of the element's row and block") {
  thread_pool pool(1);
  const probed_instruction instruction{
      "blackwell-mxf8f6f4-f32",          "scaled", formats::e4m3, formats::e5m2, formats::fp32, 8, 8, 64,
      {false, false, false, false, true}};
  const probe_cases cases = make_cases(instruction, tiles, 7, pool);
  const std::vector<std::uint64_t> got = expected(instruction, cases);
  int wrong = 0;
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const auto operand = [&](const format& f, const std::vector<std::uint8_t>& codes,
                             const std::vector<std::uint8_t>& scales) {
      gemm_operand o;
      o.element = f;
      o.rows = 8;
      o.k = o.code_stride = 64;
      o.codes = codes.data() + tile * 8 * 64;
      o.block = 32;
      o.scales = scales.data() + tile * 8 * 2;
      o.scale_stride = 2;
      return o;
    };
    gemm_options o;
    o.model = find_unit(instruction.unit)->model;
    o.start_from_c = true;
    std::vector<float> c;
    for (std::size_t e = tile * 64; e < (tile + 1) * 64; ++e) {
      c.push_back(fp32_from_bits(static_cast<std::uint32_t>(load_little_endian(cases.c, e * 4, 4))));
    }
    gemm_ref(operand(formats::e4m3, cases.a, cases.scales_a), operand(formats::e5m2, cases.b, cases.scales_b), o,
             row_major(c.data(), 8, 8));
    for (std::size_t e = 0; e < 64; ++e) wrong += fp32_bits(c[e]) != got[tile * 64 + e];
  }
  CHECK(wrong == 0);
}

TEST_CASE("a sparse A multiplies the elements of B that its metadata name") {
  thread_pool pool(1);
  struct pair {
    const char *sparse, *dense;
    format element;
    int k;
  };
  for (const pair& p : {pair{"hopper-sparse-fp16-f32", "hopper-mma-fp16-f32", formats::fp16, 32},
                        pair{"hopper-sparse-wgmma-fp8-f32", "hopper-wgmma-fp8-f32", formats::e5m2, 64},
                        pair{"hopper-sparse-tf32-f32", "hopper-mma-tf32-f32", formats::tf32, 16}}) {
    const probed_instruction instruction{p.sparse, "sparse", p.element, p.element, formats::fp32, 8, 8, p.k, {true}};
    const probe_cases cases = make_cases(instruction, tiles, 6, pool);
    const std::vector<std::uint64_t> got = expected(instruction, cases);
    const mma_model dense = find_unit(p.dense)->model;
    const format stored = stored_format(p.element);
    const int bytes = element_bytes(stored), window = bytes == 4 ? 2 : 4, kept = p.k / 2;
    int wrong = 0;
    for (int row = 0; row < tiles * 8; ++row) {
      for (int column = 0; column < 8; ++column) {
        std::vector<mma_product> products;
        for (int i = 0; i < kept; ++i) {
          // Four bits a window: two indices of two bits; of FP32 words both name halves of the one that is kept.
          const int w = window == 4 ? i / 2 : i;
          const int bits = cases.metadata[static_cast<std::size_t>(row * p.k / window / 2 + w / 2)] >> (w % 2 * 4);
          const int place = window == 4 ? w * 4 + (bits >> (i % 2 * 2) & 3) : w * 2 + (bits & 3) / 2;
          const auto a = load_little_endian(cases.a, static_cast<std::size_t>((row * kept + i) * bytes), bytes);
          const auto b = load_little_endian(
              cases.b, static_cast<std::size_t>(((row / 8 * 8 + column) * p.k + place) * bytes), bytes);
          products.push_back(mma_multiply(dense, mma_element(dense, stored, a), mma_element(dense, stored, b)));
        }
        const auto e = static_cast<std::size_t>(row * 8 + column);
        const auto c = load_little_endian(cases.c, e * 4, 4);
        const unpacked d = mma_instruction(dense, products.data(), kept, unpack(formats::fp32, c));
        wrong += got[e] != accumulator_code(dense, formats::fp32, d);
      }
    }
    CAPTURE(p.sparse);
    CHECK(wrong == 0);
  }
}
