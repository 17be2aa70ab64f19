// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// All cases of backend operations, for the tests of the CPU and of devices. Also cases of step state, delayed scaling
// and bytes.
#pragma once

#include <limits>

#include "backend_ops_gemm.hpp"

namespace rotoscale::testing {

/// Tensors whose scales grow, overflow or stay: maxima of 0, subnormal, huge, Inf.
inline op_case::prepared update_scales_case(op_scene& c, const nn::delayed_scaling& rule) {
  const std::vector<float> amax = {
      0.0f, 1.0f, 0.37f, 448.0f, 0x1p-149f, 0x1.8p-126f, 0x1.fffffep+127f, std::numeric_limits<float>::infinity()};
  const std::size_t n = amax.size(), length = static_cast<std::size_t>(rule.history_length);
  std::vector<float> history, largest;
  for (std::size_t i = 0; i < n * length; ++i) {
    const float x = op_scene::number(i, 4, 9);
    history.push_back(i % 3 == 0 ? 0.0f : std::fabs(x));
  }
  for (std::size_t i = 0; i < n; ++i) largest.push_back(i % 2 == 0 ? 448.0f : 57344.0f);
  const std::vector<float> ones(n, 1.0f);
  const nn::scaling_state s{static_cast<index_t>(n), rule.history_length, c.keep(ones), c.keep(ones), c.keep(amax),
                            c.keep(history),         c.keep(largest)};
  return {[=, &c] {
            c.ops().update_scales(c.queue, {rule}, {s});
            c.ops().update_scales(c.queue, {rule}, {s});  // of a step that recorded nothing
          },
          [=, &c] {
            for (const float* x : {s.scale, s.scale_inverse, s.amax}) c.result(x, s.count);
            c.result(s.history, s.count * s.history_length);
          }};
}

/// begin_step over valid and masked targets, after a step that left its sums.
inline op_case::prepared begin_step_case(op_scene& c, index_t targets, bool all_masked) {
  std::vector<std::int32_t> t(static_cast<std::size_t>(targets), nn::ignored_target);
  for (std::size_t i = 0; i < t.size() && !all_masked; ++i) {
    if (random_stream{3, 2}.word(i) % 5 != 0) t[i] = static_cast<std::int32_t>(i % 70);
  }
  const std::int32_t* const in_backend = c.keep(t);
  nn::step_state before;
  before.inputs = {11, 5, 0.01f, 0.4f, 0.3f, 1, 2, 0};
  before.micro_batch = 3;
  before.nonfinite = 7;
  before.valid_tokens = 99;
  before.loss_sum = 2.5;
  before.squares = std::numeric_limits<double>::infinity();
  before.gradient_norm = 4.0;
  before.gradient_scale = 0.5f;
  before.clip_factor = 0.25f;
  nn::step_state* const state = c.keep(std::vector<nn::step_state>{before});
  return {[=, &c] {
            c.ops().begin_step(c.queue, {in_backend, targets}, {state});
            c.ops().set_gradient_scale(c.queue, {}, {state});
            c.ops().next_micro_batch(c.queue, {}, {state});
            c.ops().next_micro_batch(c.queue, {}, {state});
          },
          [=, &c] { c.result(state, 1); }};
}

/// Bytes at odd addresses. A graph repeats its copies at each launch.
inline op_case::prepared bytes_case(op_scene& c, bool captured) {
  constexpr index_t n = 10007;
  float *const from = c.floats(n, 1), *const to = c.floats(n, 2);
  const auto* const first = reinterpret_cast<const std::byte*>(from);
  auto* const target = reinterpret_cast<std::byte*>(to);
  const auto operations = [=, &c] {
    c.ops().fill_zero(c.queue, target + 3, 1021);
    c.ops().copy(c.queue, target + 4096, first + 1024, 8191);
  };
  const auto recorded = std::make_shared<std::unique_ptr<nn::graph>>();
  return {[=, &c] {
            if (!captured) return operations();
            *recorded = c.ops().capture(c.queue, operations);
            c.ops().fill_zero(c.queue, target, 4096);
            c.ops().copy(c.queue, target + 4096, first, 8192);
            c.ops().launch(c.queue, **recorded);
          },
          [=, &c] { c.result(to, n); }};
}

/// Steps of a window and its end.
inline op_case::prepared deoscillate_case(op_scene& c, index_t n) {
  float* const w = c.floats(n, 1);
  const auto q = c.tensor(nn::dtype::bf16, 1, n, 2), after = c.tensor(nn::dtype::bf16, 1, n, 3);
  const nn::oscillation_state s{c.floats(n, 4, 1), c.floats(n, 5), c.floats(n, 6), c.floats(n, 7)};
  return {[=, &c] {
            c.ops().deoscillate(c.queue, {q, {1.5f, false}}, {w, s});
            c.ops().deoscillate(c.queue, {after, {1.5f, true}}, {w, s});
          },
          [=, &c] {
            for (const float* x : {w, s.last, s.last_quantized, s.moved, s.moved_quantized}) c.result(x, n);
          }};
}

inline std::vector<op_case> state_cases() {
  std::vector<op_case> all;
  all.push_back({"deoscillate", false, [](op_scene& c, bool) { return deoscillate_case(c, 5003); }});
  all.push_back({"draw_normal", false, [](op_scene& c, bool) -> op_case::prepared {
                   float* const x = c.floats(5003, 1);
                   const nn::tensor_view to = nn::dense_tensor(x, nn::dtype::fp32, {5003});
                   return {[=, &c] {
                             c.ops().draw_normal(c.queue, {nn::normal_draw::of({3, 4}, 0.02)}, {to});
                           },
                           [=, &c] { c.result(x, 5003); }};
                 }});
  for (const nn::operand_format f : {nn::operand_format::mxfp4, nn::operand_format::nvfp4}) {
    nn::operand_recipe how{f};
    if (f == nn::operand_format::nvfp4) how.policy = policies::nvidia;
    all.push_back({"estimate_gradient of " + std::string(to_string(f)), false,
                   [=](op_scene& c, bool) { return estimate_case(c, how); }});
  }
  for (op_case& c : kept_cases()) all.push_back(std::move(c));
  for (const nn::amax_algorithm algorithm : {nn::amax_algorithm::max, nn::amax_algorithm::most_recent}) {
    for (const int margin : {0, 2, -1}) {
      for (const int length : {1, 4, 1024}) {
        nn::delayed_scaling rule;
        rule.history_length = length;
        rule.algorithm = algorithm;
        rule.margin = margin;
        all.push_back({"update_scales " + std::string(to_string(algorithm)) + " of " + std::to_string(length) +
                           " margin " + std::to_string(margin),
                       false, [=](op_scene& c, bool) { return update_scales_case(c, rule); }});
      }
    }
  }
  for (const index_t n : {index_t{1}, index_t{255}, index_t{70001}}) {
    for (const bool masked : {false, true}) {
      all.push_back(
          {"begin_step, set_gradient_scale, next_micro_batch " + std::to_string(n) + (masked ? " masked" : ""), false,
           [=](op_scene& c, bool) { return begin_step_case(c, n, masked); }});
    }
  }
  for (const bool captured : {false, true}) {
    all.push_back({captured ? "fill_zero, copy by capture, launch" : "fill_zero, copy", false,
                   [=](op_scene& c, bool) { return bytes_case(c, captured); }});
  }
  return all;
}

inline std::vector<op_case> all_cases() {
  std::vector<op_case> all;
  for (const auto& more : {row_cases(), attention_cases(), coarse_row_cases(), gemm_cases(), statistics_cases(),
                           coarse_cases(), state_cases()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

/// A layer's operands must equal their composition's, byte by byte.
inline std::vector<op_case> coarse_and_raw_cases() {
  std::vector<op_case> all = all_cases();
  for (op_case& c : layer_operands_cases(true)) all.push_back(std::move(c));
  return all;
}

}  // namespace rotoscale::testing
