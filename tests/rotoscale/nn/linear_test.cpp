// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The linear layer's three GEMMs equal, by bytes, a composition written here from quantize_ref, encode and gemm_ref,
// each operand along the contraction axis of its GEMM; gradients against central differences; delayed scaling over
// steps; the weight cache.
#include "rotoscale/nn/linear.hpp"

#include "numbers.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

namespace {

constexpr index_t tokens = 64, in = 96, out = 32;
constexpr index_t layer_number = 3;
constexpr std::uint64_t seed = 17, step = 5, micro_batch = 1;

nn::recipe preset(const std::string& name) {
  for (auto& r : nn::presets::all()) {
    if (r.name == name) return r;
  }
  FAIL("no preset " << name);
  return {};
}

/// docs/design.md: word streams are purpose << 56 | GEMM << 52 | operand << 48 | layer << 32 | step.
std::uint64_t stream(std::uint64_t purpose, int gemm, int right, std::uint64_t at) {
  return purpose << 56 | static_cast<std::uint64_t>(gemm) << 52 | static_cast<std::uint64_t>(right) << 48 |
         static_cast<std::uint64_t>(layer_number) << 32 | at;
}

/// An operand of GEMM number `gemm` (0 fprop, 1 dgrad, 2 wgrad) made with the reference routines.
struct reference_operand {
  std::vector<std::uint8_t> codes, scales;
  float factor;
  gemm_operand described;

  reference_operand(const nn::operand_recipe& r, matrix<const float> source, block_axis axis, int gemm, int right,
                    float scale, float inverse)
      : factor(inverse) {
    const matrix<const float> from = axis == block_axis::row ? source : transposed(source);
    gemm_operand& o = described;
    o.element = nn::element_format(r.format);
    o.rows = from.extent(0);
    o.k = from.extent(1);
    o.code_stride = packed_bytes(o.element, o.k);
    codes.resize(static_cast<std::size_t>(o.rows * o.code_stride));
    if (nn::is_mx(r.format)) {
      o.block = 32;
      o.scale_stride = o.k / 32;
      scales.resize(static_cast<std::size_t>(o.rows * o.scale_stride));
      block_options how;
      how.source = formats::bf16;
      how.rule = r.rule;
      how.rounding = r.rounding;
      how.policy = nn::policy_of(r.policy);
      how.random = {seed, stream(1, gemm, right, step << 8 | micro_batch)};
      if (r.rotation != nn::rotation_kind::none) {
        how.rotation.points = 16;
        // Both operands of a GEMM draw the signs of the left one.
        const random_stream signs{seed,
                                  stream(2, gemm, 0, r.rotation == nn::rotation_kind::h16_step_signs ? step + 1 : 0)};
        if (r.rotation != nn::rotation_kind::h16) how.rotation.signs[0] = signs.word(0);
      }
      quantize_ref({o.element, 32}, how, source, axis,
                   {o.rows, o.k, codes.data(), o.code_stride, scales.data(), o.scale_stride});
    } else {
      for (index_t i = 0; i < o.rows; ++i) {
        for (index_t j = 0; j < o.k; ++j) put(i, j, code_of(r, from(i, j), scale));
      }
    }
    o.codes = codes.data();
    o.scales = scales.data();
    if (nn::is_fp8(r.format)) o.factor = &factor;
  }
  reference_operand(const reference_operand&) = delete;

 private:
  static std::uint64_t code_of(const nn::operand_recipe& r, float x, float scale) {
    if (r.format == nn::number_format::fp32) return fp32_bits(x);
    const float stored = decode(formats::bf16, encode(formats::bf16, x));
    return encode(nn::element_format(r.format), nn::is_fp8(r.format) ? stored * scale : stored);
  }
  void put(index_t i, index_t j, std::uint64_t code) {
    const index_t bytes = described.element.bits() / 8;
    for (index_t b = 0; b < bytes; ++b) {
      codes[static_cast<std::size_t>(i * described.code_stride + j * bytes + b)] =
          static_cast<std::uint8_t>(code >> (8 * b));
    }
  }
};

/// A linear layer with strided input and gradient matrices, and everything that a pass needs.
struct linear_case {
  nn::cpu_backend ops{2};
  nn::recipe r;
  strided_matrix x, dy, y, dx;
  nn::tensor weight, gradient;
  std::vector<float> gradient_before;
  nn::scaling_book scales;
  std::vector<nn::operand> scratch;
  nn::linear layer;
  nn::pass_context c;

  explicit linear_case(const nn::recipe& recipe)
      : r(recipe),
        x(tokens, in, 5, random_tensor(tokens * in, 1, 2.0)),
        dy(tokens, out, 7, random_tensor(tokens * out, 2, 0.25)),
        y(tokens, out, 2),
        dx(tokens, in, 3),
        weight(ops, out, in),
        gradient(ops, out, in),
        gradient_before(to_float(random_tensor(out * in, 4))),
        scales(ops, layer_number + 1, r),
        scratch(2),
        layer(layer_number, weight.view(), gradient.view()) {
    weight.memory().copy_in(to_float(random_tensor(out * in, 3, 0.5)));
    gradient.memory().copy_in(gradient_before);
    layer.share_scratch(scratch);
    c.ops = &ops;
    c.current = &r;
    c.scales = &scales;
    c.seed = seed;
    c.step = step;
    c.micro_batch = micro_batch;
    c.training = true;
  }
  void run() {
    layer.forward(c, x.view(), y.view());
    layer.backward(c, x.view(), dy.view(), dx.view());
  }

  /// c = A · Bᵀ from reference operands.
  void reference(const nn::gemm_recipe& g, int gemm, matrix<const float> a, block_axis a_axis,
                 nn::scaling_book::role a_role, matrix<const float> b, block_axis b_axis, nn::scaling_book::role b_role,
                 bool accumulate, matrix<float> to) {
    const auto at = [&](const nn::buffer<float>& state, nn::scaling_book::role role) {
      return state.copy_out()[static_cast<std::size_t>(layer_number * 3 + role)];
    };
    const reference_operand left(g.left, a, a_axis, gemm, 0, at(scales.scales(), a_role),
                                 at(scales.inverses(), a_role));
    const reference_operand right(g.right, b, b_axis, gemm, 1, at(scales.scales(), b_role),
                                  at(scales.inverses(), b_role));
    const mma_model model{g.accumulate == nn::accumulation_kind::fp32_blockwise ? 32 : 1};
    gemm_ref(left.described, right.described, {model, nn::element_format(g.output), accumulate}, to);
  }

  void check_against_references() {
    using role = nn::scaling_book::role;
    std::vector<float> want_y(tokens * out), want_dx(tokens * in), want_gradient = gradient_before;
    const auto row = block_axis::row, column = block_axis::column;
    reference(r.fprop, 0, x.view(), row, role::x, weight.view(), row, role::w, false,
              row_major(want_y.data(), tokens, out));
    reference(r.dgrad, 1, dy.view(), row, role::dy, weight.view(), column, role::w, false,
              row_major(want_dx.data(), tokens, in));
    reference(r.wgrad, 2, dy.view(), column, role::dy, x.view(), column, role::x, true,
              row_major(want_gradient.data(), out, in));
    run();
    CHECK(same_bytes(to_float(y.values()), want_y));
    CHECK(same_bytes(to_float(dx.values()), want_dx));
    CHECK(same_bytes(gradient.memory().copy_out(), want_gradient));
    CHECK((x.gaps_untouched() && dy.gaps_untouched() && y.gaps_untouched() && dx.gaps_untouched()));
  }
};

}  // namespace

TEST_CASE("every preset's three GEMMs equal the references by bytes") {
  for (const nn::recipe& r : nn::presets::all()) {
    CAPTURE(r.name);
    linear_case(r).check_against_references();
  }
}

TEST_CASE("unusual recipes as well: stochastic rounding, MXFP8, other rules, another recipe for each GEMM") {
  nn::recipe r = preset("mxfp4_h16_step_signs");
  for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->left.rounding = g->right.rounding = rounding::stochastic;
  linear_case(r).check_against_references();

  r = preset("bf16");
  const nn::operand_recipe mxfp8{nn::number_format::mxfp8_e5m2, scale_rule::rceil, rounding::nearest_even,
                                 nn::rotation_kind::h16_fixed_signs, nn::policy_kind::ocp};
  r.dgrad = {mxfp8, mxfp8, nn::accumulation_kind::fp32_fma_chain, nn::number_format::fp32};
  r.wgrad = {{nn::number_format::fp8_e5m2},
             {nn::number_format::fp8_e4m3},
             nn::accumulation_kind::fp32_fma_chain,
             nn::number_format::bf16};
  linear_case(r).check_against_references();
}

TEST_CASE("FP32 gradients against central differences of the oracle's forward pass") {
  linear_case l(preset("fp32"));
  l.run();
  tensor x = l.x.values(), w = to_double(l.weight.memory().copy_out());
  const tensor dy = l.dy.values();
  const auto forward = [&] { return oracle::linear(x, w, in, out); };
  // A result of K products in one fma chain, its partial sums no larger than a few results: K roundings at most.
  CHECK(roundings_apart(l.y.values(), forward()) < in);
  const auto objective = [&] { return dot(forward(), dy); };
  CHECK(roundings_apart(every_nth(l.dx.values(), 61), numeric_gradient(objective, x, 61)) < out);
  tensor gradient = to_double(l.gradient.memory().copy_out());
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= static_cast<double>(l.gradient_before[i]);
  CHECK(roundings_apart(every_nth(gradient, 61), numeric_gradient(objective, w, 61)) < tokens);
  const tensor direction = random_tensor(tokens * in, 9);
  const double slope = numeric_slope(objective, x, direction);
  CHECK(dot(l.dx.values(), direction) == doctest::Approx(slope).epsilon(1e-5));
}

TEST_CASE("delayed scaling: the maxima of one step scale the next one") {
  for (const char* name : {"fp8_delayed", "fp8_delayed_most_recent"}) {
    linear_case l(preset(name));
    const auto state = [&](const nn::buffer<float>& b) { return b.copy_out(); };
    CHECK(state(l.scales.scales()) == std::vector<float>(12, 1.0f));
    l.run();
    CHECK(state(l.scales.scales()) == std::vector<float>(12, 1.0f));  // a step quantizes with earlier steps' data
    l.scales.update(l.ops);
    const auto largest_of = [](const tensor& values) {
      float most = 0;
      for (const double v : values) {
        most = std::fmax(most, std::fabs(decode(formats::bf16, encode(formats::bf16, static_cast<float>(v)))));
      }
      return most;
    };
    const float maxima[] = {largest_of(l.x.values()), largest_of(to_double(l.weight.memory().copy_out())),
                            largest_of(l.dy.values())};
    const float largest[] = {448.0f, 448.0f, 57344.0f};  // E4M3 for x and w, E5M2 for dy
    const int length = l.r.fp8.history_length;
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(state(l.scales.scales())[i] == (i < 9 ? 1.0f : largest[i - 9] / maxima[i - 9]));
      CHECK(state(l.scales.history())[i * static_cast<std::size_t>(length)] == (i < 9 ? 0.0f : maxima[i - 9]));
    }
    l.gradient.memory().copy_in(l.gradient_before);
    ++l.c.weight_version;
    l.check_against_references();
  }
}

TEST_CASE("evaluations leave no trace in the scales") {
  linear_case l(preset("fp8_delayed"));
  l.c.training = false;
  l.run();
  l.scales.update(l.ops);
  for (const float h : l.scales.history().copy_out()) CHECK(h == 0.0f);
  // Training on the same weights afterwards records them, cached or not.
  l.c.training = true;
  l.run();
  l.scales.update(l.ops);
  const auto history = l.scales.history().copy_out();
  for (std::size_t i = 9; i < 12; ++i) CHECK(history[i * 1024] > 0.0f);
}

TEST_CASE("quantized weights are kept until their version changes, in both directions") {
  for (const char* name : {"bf16", "fp8_delayed", "mxfp4_h16"}) {
    CAPTURE(name);
    linear_case l(preset(name));
    l.run();
    const tensor y = l.y.values(), dx = l.dx.values();
    auto host = l.weight.memory().copy_out();
    for (float& w : host) w = -w;
    l.weight.memory().copy_in(host);
    l.run();
    CHECK(l.y.values() == y);
    CHECK(l.dx.values() == dx);
    ++l.c.weight_version;
    l.run();
    CHECK(l.y.values() != y);
    CHECK(l.dx.values() != dx);
  }
}
