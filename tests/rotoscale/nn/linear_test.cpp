// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The linear layer's three GEMMs equal, by bytes, a composition of quantize_ref, encode and gemm_ref, with each operand
// along the contraction axis of its GEMM. Also gradients against central differences, delayed scaling over steps,
// frozen layers.
#include "rotoscale/nn/blocks/linear.hpp"

#include "backend_memory.hpp"
#include "numbers.hpp"
#include "preset.hpp"
#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/nn/recipe_faults.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace linear_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

constexpr index_t tokens = 64, in = 96, out = 32;
constexpr index_t layer_number = 3;
constexpr std::uint64_t seed = 17, step = 5, micro_batch = 1;

/// docs/reference/layers.md: word streams are purpose << 56 | GEMM << 52 | operand << 48 | layer << 32 | step.
std::uint64_t stream(std::uint64_t purpose, int gemm, int right, std::uint64_t at) {
  return purpose << 56 | static_cast<std::uint64_t>(gemm) << 52 | static_cast<std::uint64_t>(right) << 48 |
         static_cast<std::uint64_t>(layer_number) << 32 | at;
}

/// Operand of GEMM `gemm` (0 fprop, 1 dgrad, 2 wgrad), made with the reference routines.
struct reference_operand {
  std::vector<std::uint8_t> codes, scales;
  float factor;
  gemm_operand described;
  rotation turn;

  reference_operand(const nn::operand_recipe& r, matrix<const float> source, block_axis axis, int gemm, int right,
                    float scale, float inverse)
      : factor(inverse) {
    const matrix<const float> from = axis == block_axis::row ? source : transposed(source);
    if (r.scaling > nn::fp8_scaling::current) {
      keep_values(r, from);
      return;
    }
    if (r.scaling == nn::fp8_scaling::current) {
      float amax = 0.0f;
      for (index_t i = 0; i < from.size(); ++i) {
        amax = std::max(amax, std::fabs(decode(formats::bf16, encode(formats::bf16, source.data[i]))));
      }
      scale = (r.format == nn::operand_format::fp8_e4m3 ? 448.0f : 57344.0f) / amax;
      factor = 1.0f / scale;
    }
    gemm_operand& o = described;
    o.element = nn::element_format(r.format);
    o.rows = from.extent(0);
    o.k = from.extent(1);
    o.code_stride = packed_bytes(o.element, o.k);
    codes.resize(static_cast<std::size_t>(o.rows * o.code_stride));
    if (nn::has_blocks(r.format)) {
      const bool nvfp4 = r.format == nn::operand_format::nvfp4;
      o.block = r.block ? r.block->length : nvfp4 ? 16 : 32;
      o.block_rows = r.block ? r.block->rows : 1;
      o.scale = r.block ? r.block->scale : nvfp4 ? formats::ue4m3 : formats::e8m0;
      o.scale_stride = o.k / o.block;
      scales.resize(static_cast<std::size_t>(o.rows / o.block_rows * o.scale_stride));
      block_options how;
      how.source = formats::bf16;
      how.rule = r.rule;
      how.choice = r.choice;
      how.rounding = r.rounding;
      how.policy = r.policy;
      // Weights are quantized once for all microbatches of a step.
      how.random = {seed, stream(1, gemm, right, step << 8 | (gemm != 2 && right == 1 ? 0 : micro_batch))};
      if (r.rotation.points != 0) {
        how.rotation.points = r.rotation.points;
        // Both operands of a GEMM draw the signs of the left one.
        const random_stream signs{seed, stream(2, gemm, 0, r.rotation.signs == nn::sign_kind::step ? step + 1 : 0)};
        if (r.rotation.signs == nn::sign_kind::mask) {
          how.rotation.signs[0] = r.rotation.mask * 0x10001u;  // both halves of a run of 32
        } else if (r.rotation.signs != nn::sign_kind::none) {
          how.rotation.signs[0] = signs.word(0);
        }
      }
      turn = how.rotation;
      const block_format blocks{o.element, o.block, o.scale, o.block_rows};
      factor = 1.0f;
      if (nvfp4) {
        how.encode_factor = tensor_encode_factor(tensor_amax(blocks, how, source, axis), o.element, o.scale, r.choice);
        factor = 1.0f / how.encode_factor;
      }
      quantize_ref(blocks, how, source, axis,
                   {o.rows, o.k, codes.data(), o.code_stride, scales.data(), o.scale_stride});
    } else {
      for (index_t i = 0; i < o.rows; ++i) {
        for (index_t j = 0; j < o.k; ++j) put(i, j, code_of(r, from(i, j), scale));
      }
    }
    o.codes = codes.data();
    o.scales = scales.data();
    if (nn::has_factor(r.format)) o.factor = &factor;
  }
  reference_operand(const reference_operand&) = delete;

  /// dgrad's w or wgrad's x: `forward` dequantized to BF16 without its rotation, and transposed.
  explicit reference_operand(const reference_operand& forward, bool) : factor(1.0f) {
    const gemm_operand& from = forward.described;
    gemm_operand& o = described;
    o.element = formats::bf16;
    o.rows = from.k;
    o.k = from.rows;
    o.code_stride = 2 * o.k;
    codes.resize(static_cast<std::size_t>(o.rows * o.code_stride));
    const int run = std::max(1, std::max(forward.turn.points, from.block));
    for (index_t j = 0; j < o.k; ++j) {
      for (index_t first = 0; first < o.rows; first += run) {
        float values[32];
        for (int i = 0; i < run; ++i) {
          values[i] = operand_value(from, j, first + i) * (from.factor != nullptr ? *from.factor : 1.0f);
        }
        unrotate_run(values, run, forward.turn);
        for (int i = 0; i < run; ++i) {
          put(first + i, j, encode(formats::bf16, values[i], rounding::nearest_even, overflow::to_inf));
        }
      }
    }
    o.codes = codes.data();
  }

 private:
  /// FP8 under FP32 scales of rows or blocks, as BF16.
  void keep_values(const nn::operand_recipe& r, matrix<const float> from) {
    gemm_operand& o = described;
    o = {.element = formats::bf16, .rows = from.extent(0), .k = from.extent(1), .code_stride = 2 * from.extent(1)};
    codes.resize(static_cast<std::size_t>(o.rows * o.code_stride));
    o.codes = codes.data();
    const index_t tall = r.scaling == nn::fp8_scaling::block_128x128 ? 128 : 1;
    const index_t wide = r.scaling == nn::fp8_scaling::row ? o.k : 128;
    const format f = nn::element_format(r.format);
    for (index_t r0 = 0; r0 < o.rows; r0 += tall) {
      for (index_t c0 = 0; c0 < o.k; c0 += wide) {
        const auto each = [&](const auto& body) {
          for (index_t i = r0; i < std::min(o.rows, r0 + tall); ++i) {
            for (index_t j = c0; j < std::min(o.k, c0 + wide); ++j) body(i, j);
          }
        };
        float amax = 0;
        each([&](index_t i, index_t j) {
          amax = std::max(amax, std::fabs(decode(formats::bf16, encode(formats::bf16, from(i, j)))));
        });
        const float scale = 448.0f / amax, inverse = 1.0f / scale;
        each([&](index_t i, index_t j) {
          put(i, j, encode(formats::bf16, decode(f, code_of(r, from(i, j), scale)) * inverse));
        });
      }
    }
  }
  static std::uint64_t code_of(const nn::operand_recipe& r, float x, float scale) {
    if (r.format == nn::operand_format::fp32) return fp32_bits(x);
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

/// Returns the operand that the GEMM's unit multiplies: the operand itself, or its numbers as BF16 with its factor.
gemm_operand multiplied(const gemm_operand& o, const std::string& contract, std::vector<bf16>& numbers) {
  const bool is_bf16_unit = contract.starts_with("mx-bf16") || contract.starts_with("intel-amx-bf16");
  if (!is_bf16_unit || o.element.bits() > 8) return o;
  numbers.resize(static_cast<std::size_t>(o.rows * o.k));
  const auto values = row_major(numbers.data(), o.rows, o.k);
  for (index_t i = 0; i < o.rows; ++i) {
    for (index_t j = 0; j < o.k; ++j) {
      const float exact = operand_value(o, i, j);
      values(i, j) = bf16::from_bits(static_cast<std::uint16_t>(encode(formats::bf16, exact)));
      CHECK(float(values(i, j)) == exact);
    }
  }
  gemm_operand made = make_operand(matrix<const bf16>(values));
  made.factor = o.factor;
  return made;
}

struct linear_case {
  std::unique_ptr<nn::backend> ops = nn::make_cpu_backend(2);
  nn::recipe r;
  tensor x_values = random_tensor(tokens * in, 1, 2.0), dy_values = random_tensor(tokens * out, 2, 0.25);
  device_array<float> x{*ops, to_float(x_values)}, dy{*ops, to_float(dy_values)}, y{*ops, tokens*out},
      dx{*ops, tokens*in}, weight{*ops, to_float(random_tensor(out*in, 3, 0.5))}, gradient{*ops, out*in};
  std::vector<float> gradient_before = to_float(random_tensor(out * in, 4));
  std::vector<std::byte> memory;
  device_array<std::byte> workspace{*ops, 1 << 20};
  nn::delayed_scaling_state scales;
  nn::linear layer;
  device_array<nn::step_state> state{*ops, 1};
  nn::pass pass;

  explicit linear_case(const nn::recipe& recipe, bool trains = true)
      : r(recipe), layer({layer_number, out, in, tokens, trains, true, nn::dtype::fp32}, r) {
    gradient.set(gradient_before);
    REQUIRE(!layer.take_contracts(*ops));
    ops->set_workspace({}, workspace.data(), 1 << 20);
    nn::memory_cursor counting;
    lay_out(counting);
    memory.resize(counting.plan().total() + 1024);
    nn::arena_bases bases{};
    auto* at = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256);
    for (std::size_t c = 0; c < bases.size(); ++c) {
      bases[c] = at;
      at += counting.plan().bytes[c];
    }
    nn::memory_cursor giving(bases);
    lay_out(giving);
    scales.reset(*ops, {});
    nn::step_state now;
    now.inputs.seed = seed;
    now.inputs.step = step;
    now.micro_batch = micro_batch;
    state.set({now});
    pass = {ops.get(), {}, state.data(), &scales, true};
  }
  static nn::tensor_view whole(const device_array<float>& a, index_t rows, index_t cols) {
    return nn::dense_tensor(a.data(), nn::dtype::fp32, {rows, cols});
  }
  void lay_out(nn::memory_cursor& cursor) {
    scales = nn::delayed_scaling_state(cursor, layer_number + 1, r);
    layer.lay_out(*ops, cursor, nn::memory_category::quantized, nn::tensor_role::w, whole(weight, out, in));
    layer.lay_out(*ops, cursor, nn::memory_category::activations, nn::tensor_role::x, whole(x, tokens, in));
    layer.lay_out(*ops, cursor, nn::memory_category::workspace, nn::tensor_role::dy, whole(dy, tokens, out));
  }
  void quantize_weights() { layer.quantize_weights(pass, whole(weight, out, in)); }
  void run_passes() {
    ops->quantize({}, {whole(x, tokens, in), state.data()}, {layer.input_target(pass)});
    layer.forward(pass, whole(y, tokens, out));
    ops->quantize({}, {whole(dy, tokens, out), state.data()}, {layer.gradient_target(pass)});
    layer.backward(pass, whole(dx, tokens, in), whole(gradient, out, in));
    ops->synchronize(nn::queue{});
  }
  void run() {
    quantize_weights();
    run_passes();
  }
  std::vector<float> scale_state(const float* from) const {
    std::vector<float> host(static_cast<std::size_t>(scales.state().count));
    ops->download({}, host.data(), from, host.size() * sizeof(float));
    return host;
  }
  std::vector<float> history() const {
    std::vector<float> host(scales.history_size());
    ops->download({}, host.data(), scales.state().history, host.size() * sizeof(float));
    return host;
  }

  /// c = A · Bᵀ from reference operands.
  void reference(const nn::gemm_recipe& g, int gemm, matrix<const float> a, block_axis a_axis, nn::tensor_role a_role,
                 matrix<const float> b, block_axis b_axis, nn::tensor_role b_role, bool accumulate, matrix<float> to) {
    const auto at = [&](const float* from, nn::tensor_role role) {
      return scale_state(from)[static_cast<std::size_t>(layer_number * 3 + static_cast<int>(role))];
    };
    const nn::scaling_state& s = scales.state();
    const reference_operand left(g.left, a, a_axis, gemm, 0, at(s.scale, a_role), at(s.scale_inverse, a_role));
    const bool again = takes_row_form(g.right), requantized = g.right.source == nn::operand_source::forward;
    // The forward operand: x is the left one, w the right one, each along its rows.
    const nn::operand_recipe& own = !again ? g.right : b_role == nn::tensor_role::x ? r.fprop.left : r.fprop.right;
    const reference_operand made(own, b, again ? block_axis::row : b_axis, again ? 0 : gemm,
                                 again && b_role == nn::tensor_role::x ? 0 : 1, at(s.scale, b_role),
                                 at(s.scale_inverse, b_role));
    std::optional<reference_operand> taken;
    if (again) taken.emplace(made, true);
    std::optional<reference_operand> twice;
    if (requantized) {
      std::vector<float> values;
      for (index_t i = 0; i < b.size(); ++i) {
        values.push_back(operand_value(taken->described, i % b.extent(1), i / b.extent(1)));
      }
      twice.emplace(g.right, row_major<const float>(values.data(), b.extent(0), b.extent(1)), b_axis, gemm, 1, 1.0f,
                    1.0f);
    }
    const reference_operand& right = requantized ? *twice : again ? *taken : made;
    gemm_options options = nn::find_gemm_contract(g.accumulate, to.extent(0), to.extent(1), left.described.k)->options;
    if (g.accumulate == nn::fp32_blockwise_contract) CHECK(options.model == mma_model{32});
    options.output = nn::element_format(g.output);
    options.accumulate = accumulate;
    std::vector<bf16> left_numbers, right_numbers;
    gemm_ref(multiplied(left.described, g.accumulate, left_numbers),
             multiplied(right.described, g.accumulate, right_numbers), options, to);
  }

  void check_against_references() {
    const auto host = [](const device_array<float>& a) { return a.get(); };
    const std::vector<float> hx = host(x), hdy = host(dy), hw = host(weight);
    const auto mx = row_major(hx.data(), tokens, in), mdy = row_major(hdy.data(), tokens, out),
               mw = row_major(hw.data(), out, in);
    std::vector<float> want_y(tokens * out), want_dx(tokens * in), want_gradient = gradient_before;
    const auto row = block_axis::row, column = block_axis::column;
    reference(r.fprop, 0, mx, row, nn::tensor_role::x, mw, row, nn::tensor_role::w, false,
              row_major(want_y.data(), tokens, out));
    reference(r.dgrad, 1, mdy, row, nn::tensor_role::dy, mw, column, nn::tensor_role::w, false,
              row_major(want_dx.data(), tokens, in));
    reference(r.wgrad, 2, mdy, column, nn::tensor_role::dy, mx, column, nn::tensor_role::x, true,
              row_major(want_gradient.data(), out, in));
    run();
    CHECK(same_bytes(y.get(), want_y));
    CHECK(same_bytes(dx.get(), want_dx));
    CHECK(same_bytes(gradient.get(), want_gradient));
  }
};

TEST_CASE("every preset's three GEMMs equal the references by bytes") {
  for (const nn::recipe& r : nn::presets::all()) {
    CAPTURE(r.name);
    linear_case(r).check_against_references();
  }
}

TEST_CASE("under the sets bf16 and cpu a BF16 unit multiplies every format, exactly; factors multiply the sum") {
  using enum nn::operand_format;
  std::vector<nn::recipe> recipes = {preset("bf16"), preset("fp8_amd"), preset("nvfp4"), preset("mxfp4_h16")};
  for (const nn::operand_recipe& o : {nn::operand_recipe{mxfp6_e2m3}, {mxfp6_e3m2}, {mxfp8_e4m3}, {mxfp8_e5m2}}) {
    recipes.push_back(nn::presets::uniform(std::string(to_string(o.format)), o, nn::operand_format::bf16));
    recipes.push_back(recipes.back());
    static_cast<nn::linear_recipe&>(recipes.back()) = nn::uniform_gemms(
        [&] {
          nn::operand_recipe in_16 = o;
          in_16.block = {16, 1, formats::e8m0};
          return in_16;
        }(),
        nn::operand_format::bf16);
  }
  nn::operand_recipe ue5m3{nvfp4};
  ue5m3.block = {16, 16, formats::ue5m3};
  recipes.push_back(nn::presets::uniform("ue5m3", ue5m3, nn::operand_format::fp32));
  for (const char* set : {"bf16", "cpu"}) {
    for (const nn::recipe& own : recipes) {
      const nn::recipe r = take_contracts(own, *nn::find_contract_set(set));
      CAPTURE(r.name);
      CAPTURE(set);
      CHECK(find_fault(r).value_or("none") == "none");
      linear_case(r).check_against_references();
    }
  }
}

TEST_CASE("unusual recipes as well: stochastic rounding, MXFP8, other rules, another recipe for each GEMM") {
  nn::recipe r = preset("mxfp4_h16_step_signs");
  for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->left.rounding = g->right.rounding = rounding::stochastic;
  linear_case(r).check_against_references();

  r = preset("bf16");
  const nn::operand_recipe mxfp8{nn::operand_format::mxfp8_e5m2, scale_rule::rceil, rounding::nearest_even,
                                 {16, nn::sign_kind::layer},     policies::ocp,     {}};
  r.dgrad = {mxfp8, mxfp8, nn::fp32_fma_chain_contract, nn::operand_format::fp32};
  r.wgrad = {{nn::operand_format::fp8_e5m2},
             {nn::operand_format::fp8_e4m3},
             nn::fp32_fma_chain_contract,
             nn::operand_format::bf16};
  linear_case(r).check_against_references();
}

TEST_CASE("every field of an operand: blocks, scales, rotations, signs, policies, backward overrides") {
  using enum nn::operand_format;
  const auto all_operands = [](nn::recipe& r, const auto& change) {
    for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) {
      g->accumulate = nn::fp32_fma_chain_contract;
      change(g->left);
      change(g->right);
    }
  };
  const auto check = [&](const nn::recipe& r, const std::string& what) {
    CAPTURE(what);
    CHECK(find_fault(r).value_or("none") == "none");
    linear_case(r).check_against_references();
  };
  for (const nn::operand_format f : {mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e4m3, mxfp8_e5m2, nvfp4}) {
    for (const int length : {16, 32}) {
      for (const bool square : {false, true}) {
        for (const nn::rotation_recipe& rotation :
             {nn::rotation_recipe{}, {16, nn::sign_kind::mask, 0xD7E8}, {32, nn::sign_kind::step}}) {
          nn::recipe r = preset("bf16");
          all_operands(r, [&](nn::operand_recipe& o) {
            o = {f, scale_rule::rceil, rounding::nearest_even, rotation, policies::nvidia};
            o.block = {length, square ? length : 1, f == nvfp4 ? formats::ue5m3 : formats::e8m0};
          });
          check(r, std::string(to_string(f)) + " " + std::to_string(length) + (square ? " square" : ""));
        }
      }
    }
  }
  for (const auto& policy : enum_names<block_policy>::table) {
    for (const auto& rule : enum_names<scale_rule>::table) {
      nn::recipe r = preset("mxfp4_h16");
      all_operands(r, [&](nn::operand_recipe& o) { o.policy = policy.value, o.rule = rule.value; });
      check(r, std::string(policy.name) + " " + std::string(rule.name));
    }
  }
  nn::recipe mixed = preset("nvfp4");  // both forms of each tensor have blocks, of two kinds
  mixed.dgrad = preset("mxfp8").dgrad;
  mixed.wgrad = preset("mxfp4").wgrad;
  check(mixed, "other blocks in each GEMM");
  std::vector<nn::recipe> overridden;
  for (const char* name : {"fp8_delayed", "mxfp4", "mxfp8", "nvfp4", "mxfp4_h16", "mxfp4_h16_fixed_signs",
                           "mxfp4_h16_step_signs", "mxfp4_h32"}) {
    overridden.push_back(preset(name));
  }
  overridden.push_back(preset("nvfp4"));
  overridden.back().name = "nvfp4, a rotation over two blocks";
  for (nn::operand_recipe* o : {&overridden.back().fprop.left, &overridden.back().fprop.right}) {
    o->rotation = {32, nn::sign_kind::mask, 0xD7E8};
  }
  for (const nn::recipe& r : overridden) {
    for (const auto kind : {nn::backward_kind::high_precision, nn::backward_kind::dequantized}) {
      check(override_backward(r, kind), r.name);
    }
  }
}

TEST_CASE("a recipe's GEMMs under the contracts of matrix units and kernels") {
  const std::pair<const char*, const char*> arms[] = {{"bf16", "cublas-fp16"},
                                                      {"bf16", "hopper-mma-fp16-f32:split_k=2:split_grain=16"},
                                                      {"fp8_delayed", "hopper-fp8-promoted"},
                                                      {"fp8_delayed", "hopper-wgmma-fp8-f32:promotion=32"},
                                                      {"mxfp4_h16", "mxfp4-accurate-sm90"},
                                                      {"mxfp4", "mxfp4-fast-sm90"},
                                                      {"bf16", "single-accumulator@cdna3-mfma-fp16-f32"}};
  for (const auto& arm : arms) {
    CAPTURE(arm.first);
    CAPTURE(arm.second);
    nn::recipe r = preset(arm.first);
    for (nn::gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->accumulate = arm.second;
    REQUIRE_FALSE(find_fault(r).has_value());
    linear_case(r).check_against_references();
  }
}

TEST_CASE("FP32 gradients against central differences of the oracle's forward pass") {
  linear_case l(preset("fp32"));
  l.run();
  tensor x = l.x_values, w = to_double(l.weight.get());
  const tensor dy = l.dy_values;
  const auto forward = [&] { return oracle::linear(x, w, in, out); };
  // A result of K products in one FMA chain, with partial sums no larger than a few results: at most K roundings.
  CHECK(roundings_apart(to_double(l.y.get()), forward()) < in);
  const auto objective = [&] { return dot(forward(), dy); };
  const tensor dx = to_double(l.dx.get());
  CHECK(roundings_apart(every_nth(dx, 61), numeric_gradient(objective, x, 61)) < out);
  tensor gradient = to_double(l.gradient.get());
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= static_cast<double>(l.gradient_before[i]);
  CHECK(roundings_apart(every_nth(gradient, 61), numeric_gradient(objective, w, 61)) < tokens);
  const tensor direction = random_tensor(tokens * in, 9);
  const double slope = numeric_slope(objective, x, direction);
  CHECK(dot(dx, direction) == doctest::Approx(slope).epsilon(1e-5));
}

TEST_CASE("delayed scaling: the maxima of one step scale the next one") {
  for (const char* name : {"fp8_delayed", "fp8_amd"}) {
    linear_case l(preset(name));
    const float* scale = l.scales.state().scale;
    CHECK(l.scale_state(scale) == std::vector<float>(12, 1.0f));
    l.run();
    CHECK(l.scale_state(scale) == std::vector<float>(12, 1.0f));  // a step quantizes with earlier steps' data
    l.scales.update(*l.ops, {});
    const auto largest_of = [](const tensor& values) {
      float most = 0;
      for (const double v : values) {
        most = std::fmax(most, std::fabs(decode(formats::bf16, encode(formats::bf16, static_cast<float>(v)))));
      }
      return most;
    };
    const float maxima[] = {largest_of(l.x_values), largest_of(to_double(l.weight.get())), largest_of(l.dy_values)};
    const float largest[] = {448.0f, 448.0f, 57344.0f};  // E4M3 for x and w, E5M2 for dy
    const auto length = static_cast<std::size_t>(l.r.fp8.history_length);
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(l.scale_state(scale)[i] == (i < 9 ? 1.0f : largest[i - 9] / maxima[i - 9]));
      CHECK(l.history()[i * length] == (i < 9 ? 0.0f : maxima[i - 9]));
    }
    l.gradient.set(l.gradient_before);
    l.check_against_references();
  }
}

TEST_CASE("evaluations leave no trace of x in the scales") {
  linear_case l(preset("fp8_delayed"));
  l.pass.training = false;
  l.ops->quantize({}, {linear_case::whole(l.x, tokens, in), l.state.data()}, {l.layer.input_target(l.pass)});
  l.scales.update(*l.ops, {});
  for (const float h : l.history()) CHECK(h == 0.0f);
  l.pass.training = true;
  l.run();
  l.scales.update(*l.ops, {});
  for (std::size_t i = 9; i < 12; ++i) CHECK(l.history()[i * 1024] > 0.0f);
}

TEST_CASE("weights are read when they are quantized, and not again") {
  for (const char* name : {"bf16", "fp8_delayed", "mxfp4_h16"}) {
    CAPTURE(name);
    linear_case l(preset(name));
    l.run();
    const auto y = l.y.get(), dx = l.dx.get();
    auto host = l.weight.get();
    for (float& w : host) w = -w;
    l.weight.set(host);
    l.run_passes();
    CHECK(l.y.get() == y);
    CHECK(l.dx.get() == dx);
    l.run();
    CHECK(l.y.get() != y);
    CHECK(l.dx.get() != dx);
  }
}

TEST_CASE("a frozen layer needs no columns of x and dy, and leaves its gradient alone") {
  for (const char* name : {"fp32", "bf16", "fp8_delayed", "mxfp4_h16"}) {
    CAPTURE(name);
    linear_case trains(preset(name)), frozen(preset(name), false);
    trains.run();
    frozen.run();
    CHECK(same_bytes(trains.y.get(), frozen.y.get()));
    CHECK(same_bytes(trains.dx.get(), frozen.dx.get()));
    CHECK(frozen.gradient.get() == frozen.gradient_before);
    CHECK_FALSE(frozen.layer.request(nn::tensor_role::x).column.has_value());
    CHECK_FALSE(frozen.layer.request(nn::tensor_role::dy).column.has_value());
    CHECK(frozen.layer.request(nn::tensor_role::w).column.has_value());  // dgrad
  }
}

}  // namespace linear_test
