// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Dequantization in host mode or on a device against dequantize_ref, by bytes: every code with every scale.
#include "gpu/api/dequantize.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "rotoscale/dequantize_ref.hpp"
#include "tests/gpu/device_memory.hpp"

namespace quantize_dequantize_test {

using namespace rotoscale;
using namespace gpu_test;

struct shape {
  index_t rows, k;
  placement code_order = placement::row_major, scale_order = placement::row_major;
  index_t extra_code_stride = 0, extra_scale_stride = 0, extra_stride = 0;
};

/// The first rows of q and all of them, in one launch.
void check_pair(const gemm_operand& q, const std::vector<bf16>& expected, index_t stride) {
  gemm_operand first = q;
  first.rows = q.block_rows;
  const device_array<bf16> some(expected.size()), all(expected.size());
  const gpu::status status = run([&](gpu::stream stream) {
    return gpu::dequantize_pair(first, row_major(some.data(), first.rows, q.k, stride), q,
                                row_major(all.data(), q.rows, q.k, stride), stream);
  });
  CHECK_MESSAGE(status.ok(), status.message());
  CHECK(std::memcmp(all.read().data(), expected.data(), expected.size() * sizeof(bf16)) == 0);
  CHECK(std::memcmp(some.read().data(), expected.data(), static_cast<std::size_t>(first.rows * stride) * 2) == 0);
  CHECK((some.guards_hold() && all.guards_hold()));
}

template <class T>
void check(block_format f, const shape& s, block_axis axis, float factor, unsigned seed) {
  CAPTURE(s.rows);
  CAPTURE(s.k);
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(s.rows * packed_bytes(f.element, s.k)));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(s.rows / f.rows * (s.k / f.length)));
  for (auto& c : codes) c = static_cast<std::uint8_t>(random());
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = static_cast<std::uint8_t>((i * 37 + seed) & f.scale.magnitude_mask());
  const auto blocks = dense_blocks(f, s.rows, s.k, codes.data(), scales.data());

  const device_array<float> there_factor(std::vector<float>{factor});
  gemm_operand q = make_operand(f, blocks, factor == 1.0f ? nullptr : there_factor.data());
  q.code_order = s.code_order;
  q.scale_order = s.scale_order;
  if (s.code_order != placement::row_major) q.code_stride = 0;
  if (s.scale_order != placement::row_major) q.scale_stride = 0;
  const index_t dense = packed_bytes(f.element, s.k);
  std::vector<std::uint8_t> placed_codes, placed_scales;
  if (s.code_order == placement::row_major) {
    q.code_stride = dense + s.extra_code_stride;
    placed_codes.resize(static_cast<std::size_t>(s.rows * q.code_stride));
    for (index_t r = 0; r < s.rows; ++r) {
      std::copy_n(codes.begin() + r * dense, dense, placed_codes.begin() + r * q.code_stride);
    }
  } else {
    placed_codes.resize(codes.size());
    place_codes(f, blocks, s.code_order, placed_codes.data());
  }
  if (s.scale_order == placement::row_major) {
    q.scale_stride = s.k / f.length + s.extra_scale_stride;
    placed_scales.resize(static_cast<std::size_t>(s.rows / f.rows * q.scale_stride));
    for (index_t r = 0; r < s.rows / f.rows; ++r) {
      std::copy_n(scales.begin() + r * (s.k / f.length), s.k / f.length, placed_scales.begin() + r * q.scale_stride);
    }
  } else {
    placed_scales.resize(static_cast<std::size_t>(scale_layout(s.scale_order, f, s.rows, s.k).size_bytes()));
    place_scales(f, blocks, s.scale_order, placed_scales.data());
  }
  const device_array<std::uint8_t> device_codes(placed_codes), device_scales(placed_scales);
  q.codes = device_codes.data();
  q.scales = device_scales.data();

  const index_t rows = axis == block_axis::row ? s.rows : s.k, columns = axis == block_axis::row ? s.k : s.rows;
  const index_t stride = columns + s.extra_stride;
  const device_array<T> target(static_cast<std::size_t>(rows * stride));
  std::vector<T> expected = target.read();
  const auto view = row_major(target.data(), rows, columns, stride);
  const gpu::status status = run([&](gpu::stream stream) { return gpu::dequantize(q, axis, view, stream); });
  CHECK_MESSAGE(status.ok(), status.message());
  dequantize_ref(f, blocks, axis, row_major(expected.data(), rows, columns, stride), factor);
  const std::vector<T> found = target.read();
  CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(T)) == 0);
  CHECK(target.guards_hold());
  if constexpr (std::is_same_v<T, bf16>) {
    const bool row_major_only = s.code_order == placement::row_major && s.scale_order == placement::row_major;
    if (axis == block_axis::row && row_major_only) check_pair(q, expected, stride);
  }
}

TEST_CASE_TEMPLATE("dequantizing", T, bf16, fp16, float) {
  unsigned seed = 0;
  for (const block_format f : {mxfp4, mxfp8_e4m3, mxfp8_e5m2}) {
    for (const block_axis axis : {block_axis::row, block_axis::column}) {
      check<T>(f, {64, 256}, axis, 1.0f, ++seed);
      check<T>(f, {37, 96}, axis, 1.0f, ++seed);
      check<T>(f, {37, 96}, axis, 0.3f, ++seed);
      check<T>(f, {33, 64, placement::row_major, placement::row_major, 4, 3, 5}, axis, 1.0f, ++seed);
      check<T>(f, {48, 192, placement::aiter_data_16x16, placement::aiter_scale}, axis, 1.0f, ++seed);
      check<T>(f, {130, 64, placement::row_major, placement::nvidia_scale_128x4}, axis, 1.0f, ++seed);
      check<T>(f, {40, 64, placement::row_major, placement::hipblaslt_scale_32x8}, axis, 1.0f, ++seed);
      check<T>(square_blocks(f), {64, 96}, axis, 1.0f, ++seed);
      check<T>(square_blocks(f), {64, 64, placement::aiter_data_16x16, placement::aiter_scale}, axis, 1.0f, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("blocks of 16, 6-bit codes and floating-point scales", T, bf16, fp16, float) {
  unsigned seed = 60;
  const block_format nvfp4_of_32{formats::e2m1, 32, formats::ue4m3}, wide_scales{formats::e2m1, 16, formats::ue5m3};
  for (const block_format f : {mxfp6_e2m3, mxfp6_e3m2, nvfp4, nvfp4_of_32, wide_scales, block_format{formats::e2m1, 16},
                               block_format{formats::e4m3, 16}, block_format{formats::e3m2, 16}}) {
    for (const block_axis axis : {block_axis::row, block_axis::column}) {
      check<T>(f, {64, 256}, axis, 1.0f, ++seed);
      check<T>(f, {37, 96}, axis, 0.3f, ++seed);
      check<T>(f, {33, 64, placement::row_major, placement::row_major, 4, 3, 5}, axis, 1.0f, ++seed);
      check<T>(square_blocks(f), {64, 96}, axis, 1.0f, ++seed);
      if (f.length == 16) check<T>(f, {16, 48}, axis, 1.0f, ++seed);
    }
  }
}

TEST_CASE("large, and captured in a graph") {
  const index_t size = on_device ? 16 : 1;
  through_graphs = true;
  check<bf16>(mxfp4, {256 * size, 192 * size, placement::aiter_data_16x16, placement::aiter_scale}, block_axis::column,
              1.0f, 90);
  check<float>(mxfp8_e4m3, {130 * size, 96 * size}, block_axis::row, 1.0f, 91);
  through_graphs = false;
}

TEST_CASE("bad arguments are named before anything is launched") {
  const device_array<std::uint8_t> codes(64 * 64), scales(64 * 2);
  const device_array<float> target(64 * 64);
  const gemm_operand good = make_operand(mxfp4, dense_blocks(mxfp4, 64, 64, codes.data(), scales.data()));
  const auto names = [&](auto change, matrix<float> to, const std::string& argument) {
    gemm_operand q = good;
    change(q);
    const gpu::status s = gpu::dequantize(q, block_axis::row, to, {});
    CHECK_MESSAGE(s.message().rfind(argument + ": ", 0) == 0, s.message());
  };
  const auto whole = row_major(target.data(), 64, 64);
  const auto as_it_is = [](gemm_operand&) {};
  names([](gemm_operand& q) { q.element = formats::int8; }, whole, "q.element");
  names([](gemm_operand& q) { q.block = 64; }, whole, "q.element");
  names(as_it_is, row_major(target.data(), 64, 32), "target");
  names([](gemm_operand& q) { q.k = 48; }, row_major(target.data(), 64, 48), "q");
  names([](gemm_operand& q) { q.transposed = true; }, whole, "q");
  names([](gemm_operand& q) { q.codes = nullptr; }, whole, "q.codes");
  names([](gemm_operand& q) { q.scales = nullptr; }, whole, "q.scales");
  names([](gemm_operand& q) { q.codes += 2; }, whole, "q.codes");
  names([&](gemm_operand& q) { q.factor = reinterpret_cast<const float*>(codes.data() + 1); }, whole, "q.factor");
  names(as_it_is, row_major<float>(nullptr, 64, 64), "target");
  names([](gemm_operand& q) { q.code_order = placement::column_major; }, whole, "q.code_order");
  names([](gemm_operand& q) { q.scale_order = placement::column_major; }, whole, "q.scale_order");
  names([](gemm_operand& q) { q.code_stride = 30; }, whole, "q.code_stride");
  gemm_operand empty = good;
  empty.rows = empty.k = 0;
  CHECK(gpu::dequantize(empty, block_axis::row, row_major<float>(nullptr, 0, 0), {}).ok());
}

}  // namespace quantize_dequantize_test
