// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The vendor library's GEMMs against the contracts that its plans state, by bytes. Needs a device.
#include <doctest/doctest.h>

#include <random>

#include "gpu/api/gemm_library.hpp"
#include "gpu/gemm/data.hpp"

using namespace gpu_test;

namespace {

/// Numbers from N(0, 1) in a format, rows of `stride` elements, on the host and the device.
struct plain_data {
  format element;
  int rows, k;
  index_t stride;
  array<std::uint8_t> codes;
  plain_data(const format& f, int r, int length, unsigned seed, index_t extra = 0)
      : element(f), rows(r), k(length), stride(length + extra), codes(numbers(f, r * (length + extra), seed)) {}
  gemm_operand view() const {
    gemm_operand o = here();
    o.codes = codes.there;
    return o;
  }
  gemm_operand here() const { return {element, rows, k, codes.here.data(), stride * width()}; }
  int width() const { return element.bits() / 8; }

 private:
  static bytes numbers(const format& f, index_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    bytes to;
    for (index_t i = 0; i < count; ++i) {
      const std::uint64_t code = encode(f, normal(random));
      for (int b = 0; b < f.bits(); b += 8) to.push_back(static_cast<std::uint8_t>(code >> b));
    }
    return to;
  }
};

struct options {
  format output = formats::bf16;
  bool fast_accumulate = false;
  float alpha = 1.0f;
  bool accumulate = false, bias = false;
  float factor_a = 1.0f, factor_b = 1.0f;
};

/// Plans and runs a GEMM through `run` (stream or graph) and compares 500 outputs with the contract.
void compare(const plain_data& a, const plain_data& b, const options& o) {
  const int m = a.rows, n = b.rows, width = o.output == formats::bf16 ? 2 : 4;
  CAPTURE(a.element.bits());
  CAPTURE(b.element.exponent_bits);
  CAPTURE(width);
  CAPTURE(o.fast_accumulate);
  CAPTURE(o.factor_a);
  CAPTURE(through_graphs);
  std::vector<float> bias(static_cast<std::size_t>(n));
  for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = 0.125f * static_cast<float>(j % 7) - 0.25f;
  const array<float> bias_there(bias), factor_a(std::vector<float>{o.factor_a}),
      factor_b(std::vector<float>{o.factor_b});
  bytes before(static_cast<std::size_t>(m * n * width), 0xA5);
  for (std::size_t i = 1; o.accumulate && i < before.size(); i += 2) before[i] = 0x3F;
  array<std::uint8_t> out(before);
  plain_problem p{{out.there, o.output, 0, o.alpha, o.accumulate, 0.5f}, a.view(), b.view()};
  p.fast_accumulate = o.fast_accumulate;
  if (o.bias) p.bias = bias_there.there;
  if (o.factor_a != 1.0f) p.a.factor = factor_a.there;
  if (o.factor_b != 1.0f) p.b.factor = factor_b.there;
  plain_gemm plan;
  const status made = plain_gemm::make(p, plan);
  REQUIRE_MESSAGE(made.ok(), made.message());
  const array<std::uint8_t> workspace(bytes(plan.workspace_bytes(), 0xC3));
  const status s =
      run([&](gpu::stream stream) { return plan.run(p, workspace.there, plan.workspace_bytes(), stream); });
  REQUIRE_MESSAGE(s.ok(), s.message());
  out.fetch();
  CHECK(out.guards_hold());
  CHECK(workspace.guards_hold());
  const gemm_contract_entry* kernel = plan.contract();
  if (kernel == nullptr) return;  // this device was not measured
  const gemm_options how = rotoscale::contract_options(*kernel, find_unit(kernel->unit)->model);
  std::mt19937 random(1);
  int wrong = 0;
  for (int sample = 0; sample < 500; ++sample) {
    const auto i = static_cast<index_t>(random()) % m, j = static_cast<index_t>(random()) % n;
    const float sum = accumulate_ref(a.here(), i, b.here(), j, how, 0.0f) * (o.factor_a * o.factor_b);
    const auto old_bits = static_cast<std::uint32_t>(bits_at(before, i * n + j, width));
    const float old = fp32_from_bits(width == 2 ? old_bits << 16 : old_bits);
    const float* of_column = o.bias ? &bias[static_cast<std::size_t>(j)] : nullptr;
    wrong += bits_at(out.here, i * n + j, width) !=
             finished_bits(sum, o.output, o.alpha, o.accumulate, 0.5f, old, of_column, how.model.nan_bits);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("plain GEMMs of the library are what their contracts say") {
  for (const bool graphs : {false, true}) {
    through_graphs = graphs;
    for (const format& f : {formats::bf16, formats::fp16}) {
      const plain_data a(f, 300, 2048, 1), b(f, 520, 2048, 2, 64);
      compare(a, b, {});
      compare(a, b, {formats::fp32});
      compare(a, b, {formats::bf16, false, 0.75f, true, true});
      compare(a, b, {formats::fp32, false, -1.5f, true, false});
    }
    const plain_data a(formats::e4m3, 304, 2048, 3), b(formats::e4m3, 528, 2048, 4), c(formats::e5m2, 528, 2048, 5);
    for (const bool fast : {false, true}) {
      compare(a, b, {formats::bf16, fast});
      compare(a, c, {formats::fp32, fast});
      compare(c, a, {formats::bf16, fast, 0.75f, true, true});
      compare(a, b, {formats::fp32, fast, 1.0f, false, false, 0.3f, 1.7f});
      compare(a, c, {formats::bf16, fast, 1.0f, false, false, 3.1f, 1.0f});
      compare(a, c, {formats::bf16, fast, 2.5f, true, true, 1.0f, 0.7f});
    }
  }
  through_graphs = false;
}
