// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What owns backend memory: buffers, tensors and operands that grow.
#include "rotoscale/nn/backend.hpp"

#include <doctest/doctest.h>

#include "rotoscale/nn/cpu/backend.hpp"

using namespace rotoscale;
namespace nn = rotoscale::nn;

TEST_CASE("a buffer is zero at first, copies in and out, and moves") {
  nn::cpu_backend ops(1);
  nn::buffer<float> a(ops, 5);
  CHECK(a.copy_out() == std::vector<float>(5, 0.0f));
  a.copy_in({1, 2, 3, 4, 5});
  CHECK(a.bytes() == 20u);
  const float* memory = a.data();
  nn::buffer<float> b(std::move(a));
  CHECK(b.data() == memory);
  nn::buffer<float> c(ops, 1);
  c = std::move(b);
  CHECK(c.copy_out() == std::vector<float>{1, 2, 3, 4, 5});
  c.fill_zero();
  CHECK(c.copy_out() == std::vector<float>(5, 0.0f));
  CHECK(nn::buffer<float>().size() == 0);
  CHECK(nn::buffer<float>(ops, 0).copy_out().empty());
}

TEST_CASE("a tensor is row-major") {
  nn::cpu_backend ops(1);
  const nn::tensor t(ops, 2, 3);
  t.memory().copy_in({1, 2, 3, 4, 5, 6});
  CHECK(t.view().extent(0) == 2);
  CHECK(t.view()(1, 0) == 4.0f);
}

TEST_CASE("an operand describes what was quantized last, whatever it held before") {
  nn::cpu_backend ops(1);
  const nn::tensor source(ops, 64, 96);
  std::vector<float> host;
  for (int i = 0; i < 64 * 96; ++i) host.push_back(static_cast<float>(i % 13 - 6));
  source.memory().copy_in(host);
  nn::operand shared;
  for (const auto f : {nn::number_format::mxfp4, nn::number_format::fp32, nn::number_format::fp8_e4m3,
                       nn::number_format::mxfp8_e5m2, nn::number_format::bf16, nn::number_format::mxfp4}) {
    for (const block_axis axis : {block_axis::row, block_axis::column}) {
      nn::quantize_args args;
      args.recipe.format = f;
      args.axis = axis;
      nn::operand fresh;
      const gemm_operand& a = shared.quantize(ops, source.view(), args);
      const gemm_operand& b = fresh.quantize(ops, source.view(), args);
      CHECK(a.rows == (axis == block_axis::row ? 64 : 96));
      CHECK(a.k == (axis == block_axis::row ? 96 : 64));
      CHECK(a.block == (nn::is_mx(f) ? 32 : 0));
      CHECK((a.factor != nullptr) == nn::is_fp8(f));
      bool equal = true;
      for (index_t r = 0; r < a.rows; ++r) {
        for (index_t c = 0; c < a.k; ++c) {
          const float x = operand_value(a, r, c);
          equal = equal && x == operand_value(b, r, c);
          if (!nn::is_mx(f))
            equal = equal && x == (axis == block_axis::row ? source.view()(r, c) : source.view()(c, r));
        }
      }
      CHECK(equal);
    }
  }
}
