// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The whole model against an independent double-precision implementation (tests/oracle), and its promises about bits.
#include "rotoscale/llama/model.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "oracle/reference_llama.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

using rotoscale::index_t;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;
namespace oracle = rotoscale::oracle;

namespace {

llama::model_config small_config(bool tied) {
  llama::model_config c;
  c.vocab_size = 64;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.tie_word_embeddings = tied;
  c.initializer_range = 0.2;  // gradients of all layers of a size that shows
  return c;
}

oracle::config oracle_config(const llama::model_config& c) {
  oracle::config o{c.vocab_size,
                   c.hidden_size,
                   c.intermediate_size,
                   c.num_hidden_layers,
                   c.num_attention_heads,
                   c.num_key_value_heads,
                   static_cast<int>(c.head_size()),
                   c.rms_norm_eps,
                   c.rope_theta,
                   c.tie_word_embeddings};
  if (c.rope_scaling) {
    o.rope_scaling = {c.rope_scaling->factor, c.rope_scaling->low_freq_factor, c.rope_scaling->high_freq_factor,
                      static_cast<double>(c.rope_scaling->original_max_position_embeddings)};
  }
  return o;
}

struct batch {
  index_t rows, seq;
  std::vector<std::int32_t> tokens, targets;
  int counted = 0;

  batch(index_t b, index_t s, int vocab, bool masked) : rows(b), seq(s) {
    const rotoscale::random_stream random{11, 0};
    for (index_t i = 0; i < b * s; ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      tokens.push_back(static_cast<std::int32_t>(random.word(2 * at) % static_cast<std::uint32_t>(vocab)));
      const bool mask = masked && i % 5 == 2;
      targets.push_back(mask ? nn::ignored_target
                             : static_cast<std::int32_t>(random.word(2 * at + 1) % static_cast<std::uint32_t>(vocab)));
      counted += !mask;
    }
  }
};

double total(const std::vector<float>& losses) {
  double sum = 0;
  for (const float l : losses) sum += static_cast<double>(l);
  return sum;
}

/// Parameters under their checkpoint names, taken from weights or gradients.
std::map<std::string, std::vector<double>> by_name(const llama::model& m, bool gradients) {
  std::map<std::string, std::vector<double>> all;
  for (const auto& p : m.parameters()) {
    const auto host = (gradients ? p.gradient : p.weight).memory().copy_out();
    for (const auto& s : p.slices) {
      all[s.name].assign(host.begin() + s.first_row * p.cols, host.begin() + (s.first_row + s.rows) * p.cols);
    }
  }
  return all;
}

nn::pass_context context_for(nn::backend& ops, const nn::recipe& r, const nn::scaling_book* scales = nullptr) {
  nn::pass_context c;
  c.ops = &ops;
  c.current = &r;
  c.scales = scales;
  c.seed = 5;
  c.training = true;
  return c;
}

nn::recipe preset(const std::string& name) {
  for (auto& r : nn::presets::all()) {
    if (r.name == name) return r;
  }
  FAIL("no preset " << name);
  return {};
}

/// Gradients of one pass under a recipe, all parameters in a row, and the losses.
struct pass_result {
  std::vector<float> losses, gradients;
};
pass_result run(const std::string& recipe_name, int threads, index_t b = 2, index_t seq = 32) {
  nn::cpu_backend ops(threads);
  llama::model m(ops, small_config(false));
  m.initialize(3);
  m.reserve(b, seq);
  const batch data(b, seq, 64, false);
  const nn::recipe r = preset(recipe_name);
  const nn::scaling_book scales(ops, m.linear_count(), r);
  auto c = context_for(ops, r, &scales);
  pass_result out;
  for (int step = 0; step < 2; ++step) {  // the second pass uses the scales that the first one recorded
    m.zero_gradients();
    out.losses = m.forward(c, data.tokens, data.targets, 1.0f / static_cast<float>(data.counted));
    m.backward(c);
    scales.update(ops);
    ++c.weight_version;
    ++c.step;
  }
  for (const auto& p : m.parameters()) {
    const auto host = p.gradient.memory().copy_out();
    out.gradients.insert(out.gradients.end(), host.begin(), host.end());
  }
  return out;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("loss and gradients agree with the double-precision oracle") {
  for (const bool tied : {false, true}) {
    for (const bool scaled_rope : {false, true}) {
      CAPTURE(tied);
      CAPTURE(scaled_rope);
      auto config = small_config(tied);
      if (scaled_rope) config.rope_scaling = llama::rope_scaling{"llama3", 8.0, 1.0, 4.0, 64};
      nn::cpu_backend ops(2);
      llama::model m(ops, config);
      m.initialize(7);
      // 70 tokens: two query blocks of attention, the second ragged.
      const batch data(2, 70, config.vocab_size, true);
      m.reserve(2, 70);
      const nn::recipe r = preset("fp32");
      const auto c = context_for(ops, r);
      const auto losses = m.forward(c, data.tokens, data.targets, 1.0f / static_cast<float>(data.counted));
      m.backward(c);

      const std::vector<int> tokens(data.tokens.begin(), data.tokens.end()),
          targets(data.targets.begin(), data.targets.end());
      const auto weights = by_name(m, false);
      const double expected = oracle::loss(oracle_config(config), weights, tokens, targets, 2, 70);
      // FP32 rounding: about 200 operations deep, each 2^-24, errors of random sign: 2^-24 * sqrt(200) * 10 of margin.
      CHECK(total(losses) / data.counted == doctest::Approx(expected).epsilon(1e-5));
      const auto expected_gradients = oracle::gradients(oracle_config(config), weights, tokens, targets, 2, 70);
      const auto gradients = by_name(m, true);
      REQUIRE(gradients.size() == expected_gradients.size());
      for (const auto& [name, want] : expected_gradients) {
        CAPTURE(name);
        const auto& got = gradients.at(name);
        REQUIRE(got.size() == want.size());
        double error = 0, norm = 0;
        for (std::size_t i = 0; i < want.size(); ++i) {
          error += (got[i] - want[i]) * (got[i] - want[i]);
          norm += want[i] * want[i];
        }
        CHECK(norm > 0);
        CHECK(std::sqrt(error / norm) < 2e-5);
      }
    }
  }
}

TEST_CASE("every preset gives the same bits on 1, 2 and 4 threads") {
  for (const auto& r : nn::presets::all()) {
    CAPTURE(r.name);
    const auto one = run(r.name, 1);
    for (const int threads : {2, 4}) {
      const auto many = run(r.name, threads);
      CHECK(same_bytes(one.losses, many.losses));
      CHECK(same_bytes(one.gradients, many.gradients));
    }
  }
}

TEST_CASE("recipes differ from each other and stay near FP32") {
  const auto exact = run("fp32", 2);
  std::vector<double> errors, cosines;
  for (const char* name : {"bf16", "fp8_delayed", "mxfp4_h16"}) {
    CAPTURE(name);
    const auto got = run(name, 2);
    double error = 0, norm = 0, own = 0, dot = 0;
    for (std::size_t i = 0; i < got.gradients.size(); ++i) {
      const auto a = static_cast<double>(got.gradients[i]), b = static_cast<double>(exact.gradients[i]);
      error += (a - b) * (a - b);
      norm += b * b;
      own += a * a;
      dot += a * b;
    }
    errors.push_back(std::sqrt(error / norm));
    cosines.push_back(dot / std::sqrt(norm * own));
  }
  CHECK(errors[0] > 0);
  CHECK(errors[0] < errors[1]);
  CHECK(errors[1] < errors[2]);
  CHECK(cosines[0] > 0.999);  // BF16 keeps 8 bits
  CHECK(cosines[1] > 0.9);
  CHECK(cosines[2] > 0.25);  // unrelated vectors of this length: about 1 / sqrt(n) = 0.004
}

TEST_CASE("cached weights are refreshed by a new version and reused within one") {
  nn::cpu_backend ops(1);
  llama::model m(ops, small_config(false));
  m.initialize(3);
  m.reserve(1, 32);
  const batch data(1, 32, 64, false);
  const nn::recipe r = preset("mxfp4_h16");
  auto c = context_for(ops, r);
  const auto first = m.forward(c, data.tokens, data.targets, 0.0f);
  auto& weight = m.parameters()[2].weight;  // layer 0, qkv
  auto host = weight.memory().copy_out();
  for (float& w : host) w = -w;
  weight.memory().copy_in(host);
  CHECK(same_bytes(first, m.forward(c, data.tokens, data.targets, 0.0f)));
  ++c.weight_version;
  CHECK_FALSE(same_bytes(first, m.forward(c, data.tokens, data.targets, 0.0f)));
}

TEST_CASE("the head is BF16 whatever single operands are, and so may have any vocabulary") {
  nn::cpu_backend ops(1);
  auto config = small_config(false);
  config.vocab_size = 300;  // no multiple of 32
  llama::model m(ops, config);
  m.initialize(3);
  m.reserve(1, 32);
  const batch data(1, 32, 300, false);
  nn::recipe mixed = preset("mxfp4");
  mixed.fprop = preset("fp32").fprop;
  const auto c = context_for(ops, mixed);
  m.forward(c, data.tokens, data.targets, 1.0f);
  m.backward(c);
  for (const auto& p : m.parameters()) {
    for (const float g : p.gradient.memory().copy_out()) REQUIRE(std::isfinite(g));
  }
}

TEST_CASE("layers left in BF16 do not see the recipe") {
  nn::cpu_backend ops(1);
  llama::model m(ops, small_config(false));
  m.initialize(3);
  m.reserve(1, 32);
  const batch data(1, 32, 64, false);
  nn::recipe all_exempt = preset("mxfp4_h16");
  all_exempt.bf16_first_layers = 1;
  all_exempt.bf16_last_layers = 1;
  const nn::recipe bf16 = preset("bf16");
  auto c = context_for(ops, all_exempt);
  const auto exempt = m.forward(c, data.tokens, data.targets, 0.0f);
  c.current = &bf16;
  ++c.weight_version;
  CHECK(same_bytes(exempt, m.forward(c, data.tokens, data.targets, 0.0f)));
}
