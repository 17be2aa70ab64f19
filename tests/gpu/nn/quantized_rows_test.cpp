// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers with quantized output against the layer's launcher and quantize_ref, by bytes.
#include "layer_cases.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace nn_quantized_rows_test {

using namespace rotoscale;
using gpu_test::device_array;
using gpu_test::layer;
namespace nn = rotoscale::nn;

/// Both orientations from the device and from the definition.
template <class T>
struct orientation {
  block_format format;
  block_options options;
  index_t rows, k;
  placement order;  ///< of the scales
  bool wanted;
  device_array<std::uint8_t> codes, scales;

  orientation(block_format f, const block_options& o, index_t rows_, index_t k_, placement scale_order)
      : format(f),
        options(o),
        rows(rows_),
        k(k_),
        order(scale_order),
        wanted(k % 32 == 0),
        codes(static_cast<std::size_t>(wanted ? rows * packed_bytes(f.element, k) : 1)),
        scales(static_cast<std::size_t>(wanted ? scale_layout(order, f, rows, k).size_bytes() : 1)) {}
  gpu::quantized_output output() const {
    if (!wanted) return {};
    gpu::quantized_output q{codes.data(), scales.data(), options};
    q.scale_order = order;
    return q;
  }
  void check(const std::vector<T>& source, block_axis axis, index_t columns) const {
    if (!wanted) return;
    std::vector<std::uint8_t> want_codes(codes.read().size()),
        dense(static_cast<std::size_t>(rows * (k / format.length))), want_scales(scales.read().size());
    const auto m = static_cast<index_t>(source.size()) / columns;
    const auto blocks = dense_blocks(format, rows, k, want_codes.data(), dense.data());
    quantize_ref(format, options, row_major<const T>(source.data(), m, columns), axis, blocks);
    place_scales(format, blocks, order, want_scales.data());
    CHECK(codes.read() == want_codes);
    CHECK(scales.read() == want_scales);
    CHECK(codes.guards_hold());
    CHECK(scales.guards_hold());
  }
};

template <class T>
void check_layer(layer which, index_t m, index_t n, block_format f, const block_options& o, bool writes,
                 std::size_t skew = 0, placement order = placement::row_major) {
  const gpu_test::layer_case<T> made(which, m, n, writes, skew);
  const orientation<T> rows(f, o, m, made.cols(), order), columns(f, o, made.cols(), m, order);
  const std::vector<T> source = made.run(gpu::block_target{f, rows.output(), columns.output()});
  rows.check(source, block_axis::row, made.cols());
  columns.check(source, block_axis::column, made.cols());
}

TEST_CASE("a layer's operands are those of what it would write") {
  block_options plain = presets::te_rocm;
  plain.rotation = {};
  block_options random = presets::te_rocm;
  random.rounding = rounding::stochastic;
  random.random = {5, 7};
  random.rotation.signs[0] = 0x12345678u;
  block_options signs = presets::te_rocm, floor = presets::te_rocm;
  signs.rotation.signs[0] = random.rotation.signs[0];
  floor.rule = scale_rule::floor;
  for (const layer which : gpu_test::layers) {
    CAPTURE(static_cast<int>(which));
    check_layer<bf16>(which, 160, 160, mxfp4, presets::te_rocm, true);
    // A column's scales as one word (four blocks) and as a half word (two).
    check_layer<bf16>(which, 256, 160, mxfp4, presets::te_rocm, true);
    check_layer<float>(which, 128, 96, mxfp4, presets::te_rocm, false);
    check_layer<bf16>(which, 64, 96, mxfp4, random, false);
    check_layer<bf16>(which, 64, 160, mxfp4, plain, false);
    check_layer<bf16>(which, 96, 64, mxfp4, signs, false);
    check_layer<float>(which, 96, 64, mxfp4, floor, false);
    // Whole tiles with unaligned rows; one orientation; partial rows and columns.
    check_layer<bf16>(which, 160, 160, mxfp4, presets::te_rocm, true, 1);
    check_layer<float>(which, 160, 160, mxfp4, presets::te_rocm, false, 1);
    check_layer<bf16>(which, 33, 160, mxfp4, presets::te_rocm, true);
    if (which != layer::swiglu_gradient && which != layer::gelu_gradient) {
      check_layer<bf16>(which, 160, 100, mxfp4, presets::te_rocm, true);
      // Tiles that contain padding only.
      for (const placement order : {placement::nvidia_scale_128x4, placement::aiter_scale}) {
        check_layer<bf16>(which, 32, 32, mxfp4, presets::te_rocm, true, 0, order);
        check_layer<bf16>(which, 160, 160, mxfp4, presets::te_rocm, false, 0, order);
        check_layer<float>(which, 160, 160, mxfp4, presets::te_rocm, true, 1, order);
      }
    }
    // More tiles than blocks, so that blocks prefetch.
    if (gpu_test::on_device) {
      for (const index_t rows : {4096, 4128}) check_layer<bf16>(which, rows, 2080, mxfp4, presets::te_rocm, false);
    }
    check_layer<bf16>(which, 32, 32, mxfp8_e4m3, plain, true, 1);
    check_layer<float>(which, 96, 160, mxfp8_e5m2, plain, false);
    check_layer<float>(which, 64, 32, mxfp4, random, true, 1);
  }
}

}  // namespace nn_quantized_rows_test
