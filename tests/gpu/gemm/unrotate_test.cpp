// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// unrotate_operand in host mode or on a device against dequantize_ref and unrotate_run, by bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "gpu/api/dequantize.hpp"
#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/detail/fast_round.hpp"
#include "tests/gpu/device_memory.hpp"

namespace gemm_unrotate_test {

using namespace rotoscale;
using namespace gpu_test;

/// Compares unrotate_operand with dequantize_ref and unrotate_run.
void check_unrotated(block_format f, index_t rows, index_t k, int points, bool has_signs, float factor, unsigned seed) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * packed_bytes(f.element, k)));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(rows / f.rows * (k / f.length)));
  for (auto& c : codes) c = static_cast<std::uint8_t>(random());
  // Sums of different magnitudes round at each step. Every scale, including NaN, comes once.
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const bool near = seed % 2 != 0;
    scales[i] = static_cast<std::uint8_t>(near ? (f.scale == formats::e8m0 ? 120 : 40) + i * 5 % 16 : i * 37 + seed);
    if (f.scale == formats::ue4m3) scales[i] &= 0x7F;  // UE4M3 has no sign
  }
  const auto blocks = dense_blocks(f, rows, k, codes.data(), scales.data());
  const device_array<std::uint8_t> device_codes(codes), device_scales(scales);
  const device_array<float> there_factor(std::vector<float>{factor});
  gemm_operand q = make_operand(f, blocks, factor == 1.0f ? nullptr : there_factor.data());
  q.codes = device_codes.data();
  q.scales = device_scales.data();
  nn::form_draws draws;
  if (has_signs) draws.given_signs[0] = 0xD7E8B31Au;
  const index_t stride = k + 3;
  const device_array<bf16> target(static_cast<std::size_t>(rows * stride));
  std::vector<bf16> expected = target.read();
  const gpu::status status = run([&](gpu::stream stream) {
    return gpu::unrotate_operand(q, points, draws, nullptr, target.data(), stride, stream);
  });
  CHECK_MESSAGE(status.ok(), status.message());
  std::vector<float> values(static_cast<std::size_t>(rows * k));
  dequantize_ref(f, blocks, block_axis::row, row_major(values.data(), rows, k), factor);
  rotation turn{points, {has_signs ? 0xD7E8B31Au : 0u}};
  const int length = std::max(points, f.length);
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < k; c += length) unrotate_run(&values[static_cast<std::size_t>(r * k + c)], length, turn);
    for (index_t c = 0; c < k; ++c) {
      const float x = values[static_cast<std::size_t>(r * k + c)];
      std::uint32_t rounded = fp32_bits(x);
      rotoscale::detail::round_number_to_bf16(rounded);  // overflow gives Inf
      expected[static_cast<std::size_t>(r * stride + c)] =
          bf16::from_bits(static_cast<std::uint16_t>(std::isnan(x) ? 0x7FC0 : rounded >> 16));
    }
  }
  const std::vector<bf16> found = target.read();
  CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(bf16)) == 0);
  CHECK(target.guards_hold());
}

TEST_CASE("values whose rotation is undone") {
  unsigned seed = 0;
  for (const block_format f : {mxfp4, mxfp8_e4m3, mxfp8_e5m2, nvfp4, square_blocks(mxfp4)}) {
    for (const int points : {0, 16, 32}) {
      for (const bool has_signs : {false, true}) {
        if (has_signs && points == 0) continue;
        for (int half = 0; half < 2; ++half) {  // every scale and its neighbours
          check_unrotated(f, 64, 192, points, has_signs, 1.0f, ++seed);
        }
        for (int half = 0; half < 2; ++half) check_unrotated(f, 32, 96, points, has_signs, 0.3f, ++seed);
      }
    }
  }
  check_unrotated(nvfp4, 5, 80, 16, true, 0.7f, ++seed);  // half a subgroup
  for (const int points : {64, 128}) check_unrotated(nvfp4, 5, 384, points, true, 0.7f, ++seed);
  const device_array<std::uint8_t> codes(64 * 64), scales(64 * 2);
  const device_array<bf16> target(64 * 64);
  const gemm_operand good = make_operand(mxfp4, dense_blocks(mxfp4, 64, 64, codes.data(), scales.data()));
  const auto names = [&](const gemm_operand& q, int points, bf16* to, const std::string& argument) {
    const gpu::status s = gpu::unrotate_operand(q, points, {}, nullptr, to, 64, {});
    CHECK_MESSAGE(s.message().rfind(argument + ": ", 0) == 0, s.message());
  };
  names(good, 8, target.data(), "points");
  names(good, 16, nullptr, "to");
  gemm_operand other = good;
  other.block = 0;
  other.element = formats::e4m3;
  names(other, 16, target.data(), "from.block");
  other = make_operand(nvfp4, dense_blocks(nvfp4, 64, 48, codes.data(), scales.data()));
  names(other, 32, target.data(), "from.k");
}

}  // namespace gemm_unrotate_test
