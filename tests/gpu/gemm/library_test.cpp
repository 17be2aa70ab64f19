// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The vendor library's plain GEMMs against the contracts that its plans state, by bytes. For a device.
#include <doctest/doctest.h>

#include <random>

#include "gpu/api/gemm_library.hpp"
#include "gpu/gemm/data.hpp"

using namespace gpu_test;

namespace {

/// Numbers N(0, 1) of a format, rows of `stride` elements, here and on the device.
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

/// Plans and runs a GEMM through `run` (a stream, or a graph) and compares 500 outputs with the contract.
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
  if (kernel == nullptr) return;  // another device than what was measured
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

TEST_CASE("bad input names the argument and writes nothing") {
  const plain_data a(formats::bf16, 16, 64, 6), b(formats::bf16, 32, 64, 7), c(formats::e4m3, 32, 64, 8);
  const array<std::uint8_t> memory(bytes(std::size_t{1} << 20));
  array<std::uint8_t> out(bytes(16 * 32 * 4, 0xA5));
  const plain_problem good{{out.there}, a.view(), b.view()};
  const auto plan_message = [&](auto change) {
    plain_problem p = good;
    change(p);
    plain_gemm plan;
    return plain_gemm::make(p, plan).message();
  };
  CHECK(plan_message([](plain_problem& p) { p.a.k = p.b.k = 60; }) ==
        "a.k: must be a multiple of 16 bytes, up to 2^20");
  CHECK(plan_message([](plain_problem& p) { p.b.k = 32; }) == "b.k: must equal a.k");
  CHECK(plan_message([](plain_problem& p) { p.b.rows = 30; }) == "b.rows: must be a multiple of 8");
  CHECK(plan_message([](plain_problem& p) { p.a.rows = 0; }) == "a.rows: must be 1 to 2^20");
  CHECK(plan_message([](plain_problem& p) { p.a.code_stride = 132; }) ==
        "a.code_stride: must be a multiple of 16, at least a row's bytes");
  CHECK(plan_message([](plain_problem& p) { p.a.element = formats::e2m1; }) ==
        "a.element: must be BF16, FP16, E4M3 or E5M2");
  CHECK(plan_message([&](plain_problem& p) { p.b = c.view(); }) ==
        "b.element: must be a's, or FP8 as well but not both E5M2");
#if defined(ROTOSCALE_CUDA)
  CHECK(plan_message([&](plain_problem& p) {
          p.a = p.b = c.view();
          p.b.element = formats::e4m3fnuz;
        }) == "b.element: only gfx942 multiplies FNUZ forms of FP8");
#endif
  CHECK(plan_message([](plain_problem& p) { p.output = formats::fp16; }) == "output: must be BF16 or FP32");
  CHECK(plan_message([](plain_problem& p) { p.out_stride = 31; }) == "out_stride: must be at least n");
  plain_gemm plan;
  CHECK(plan.run(good, memory.there, 1 << 20, {}).message() == "plan: was not made");
  plain_problem finished = good;
  finished.alpha = 2.0f;
  REQUIRE(plain_gemm::make(finished, plan).ok());
  const auto message = [&](auto change, std::size_t size = 1 << 20) {
    plain_problem p = finished;
    change(p);
    return plan.run(p, memory.there, size, {}).message();
  };
  CHECK(message([](plain_problem& p) { p.a.rows = 8; }) == "p: is not like the problem that the plan was made for");
  CHECK(message([](plain_problem& p) { p.a.codes = nullptr; }) == "a.codes: must not be null");
  CHECK(message([](plain_problem& p) { p.out = static_cast<std::uint8_t*>(p.out) + 2; }) ==
        "out: must be aligned to 16 bytes");
  CHECK(message([&](plain_problem& p) { p.a.factor = reinterpret_cast<const float*>(memory.there); }) ==
        "a.factor: must be null: only FP8 operands have one");
  CHECK(message([](plain_problem&) {}, 100) == "workspace_bytes: less than the workspace that is needed");
  out.fetch();
  CHECK(out.here == bytes(out.here.size(), 0xA5));
}
