// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Device statistics against nn/cpu/statistics.hpp, by bytes, over operands of every kind.
#include "gpu/api/statistics.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "../device_memory.hpp"
#include "gpu/api/launch.hpp"
#include "rotoscale/nn/cpu/statistics.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace nn_statistics_test {

using namespace rotoscale;
using gpu_test::device_array;
namespace nn = rotoscale::nn;

template <class T>
std::vector<std::byte> bytes_of(const T& x) {
  std::vector<std::byte> bytes(sizeof x);
  std::memcpy(bytes.data(), &x, sizeof x);
  return bytes;
}

template <class T>
void check_observed(block_format f, int points, std::uint32_t signs, index_t m, index_t n, block_axis axis) {
  thread_pool pool(1);
  const std::vector<T> source = gpu_test::make_source<T>(m, n, 3);
  const matrix<const T> view = row_major<const T>(source.data(), m, n);
  const bool columns = axis == block_axis::column;
  const index_t rows = columns ? n : m, k = columns ? m : n;
  block_options o = f.has_e8m0_scale() ? presets::te_rocm : presets::nvidia;
  o.rotation = {points, {signs}};
  o.encode_factor = f.scale == formats::ue4m3 ? 4.0f : 1.0f;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * packed_bytes(f.element, k))),
      scales(static_cast<std::size_t>(rows / f.rows * (k / f.length)));
  quantize_ref(f, o, view, axis, dense_blocks(f, rows, k, codes.data(), scales.data()));
  const float factor = 1.0f / o.encode_factor;
  gemm_operand stored;
  stored.element = f.element;
  stored.rows = rows;
  stored.k = k;
  stored.codes = codes.data();
  stored.code_stride = packed_bytes(f.element, k);
  stored.block = f.length;
  stored.block_rows = f.rows;
  stored.scale = f.scale;
  stored.scales = scales.data();
  stored.scale_stride = k / f.length;
  stored.factor = f.scale == formats::ue4m3 ? &factor : nullptr;
  std::vector<nn::operand_statistics> by_row(static_cast<std::size_t>(rows));
  nn::operand_statistics want;
  nn::cpu::observe_operand(view, stored, columns ? nn::operand_form::column : nn::operand_form::row, o.rotation,
                           by_row.data(), want, pool);
  const device_array<T> in(source);
  const device_array<std::uint8_t> stored_codes(codes), stored_scales(scales);
  const device_array<float> stored_factor(std::vector<float>{factor});
  stored.codes = stored_codes.data();
  stored.scales = stored_scales.data();
  if (stored.factor != nullptr) stored.factor = stored_factor.data();
  const std::size_t needed = gpu::observe_workspace_bytes(rows);
  const device_array<std::byte> room(needed);
  const device_array<nn::operand_statistics> got(1);
  gpu::observed_form how{columns, points, {}, nullptr};
  how.draws.given_signs[0] = signs;
  constexpr nn::dtype type = std::is_same_v<T, bf16> ? nn::dtype::bf16 : nn::dtype::fp32;
  gpu_test::expect(
      gpu::observe(nn::dense_tensor(in.data(), type, {m, n}), stored, how, got.data(), room.data(), needed, {}));
  CHECK(bytes_of(got.read()[0]) == bytes_of(want));
  CHECK(want.elements == m * n);
  CHECK(got.guards_hold());
  CHECK(room.guards_hold());
}

TEST_CASE("what an operand lost has the CPU's bytes") {
  for (const block_axis axis : {block_axis::row, block_axis::column}) {
    check_observed<float>(mxfp4, 0, 0, 96, 64, axis);
    check_observed<bf16>(mxfp4, 16, 0xA5C31234u, 64, 160, axis);
    check_observed<float>(mxfp8_e4m3, 32, 0xA5C31234u, 64, 96, axis);
    check_observed<bf16>(nvfp4, 16, 0x1234u, 48, 80, axis);
    check_observed<float>({formats::e2m1, 16, formats::ue4m3, 16}, 0, 0, 32, 48, axis);
    check_observed<bf16>(mxfp6_e2m3, 0, 0, 32, 64, axis);
  }
  check_observed<float>(mxfp8_e5m2, 0, 0, 3, 2112, block_axis::row);  // more than 32 blocks, twice
}

TEST_CASE("a comparison of gradients has the CPU's bytes") {
  thread_pool pool(1);
  for (const index_t n : {index_t{1}, index_t{33}, index_t{4097}, index_t{70000}}) {
    std::vector<float> x(static_cast<std::size_t>(n)), y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(random_stream{1, 2}.word(i) >> 8) * 0x1p-24f - 0.5f;
      y[i] = x[i] + static_cast<float>(random_stream{1, 3}.word(i) >> 8) * 0x1p-30f;
    }
    std::vector<std::byte> scratch(4096);
    const lent_scratch lent(scratch);
    nn::comparison_statistics want;
    nn::cpu::compute(nn::op::compare::in{y.data(), x.data(), n}, nn::op::compare::out{&want}, pool);
    const device_array<float> value(y), reference(x);
    const device_array<nn::comparison_statistics> got(1);
    const gpu::op::compare::in in{value.data(), reference.data(), n};
    const std::size_t needed = gpu::workspace_bytes<gpu::op::compare>(in, {got.data()});
    const device_array<std::byte> room(needed);
    gpu_test::expect(gpu::launch<gpu::op::compare>({{}, room.data(), needed}, in, {got.data()}));
    CHECK(bytes_of(got.read()[0]) == bytes_of(want));
    CHECK(room.guards_hold());
  }
}

}  // namespace nn_statistics_test
