// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tests of the oracle: its results equal recorded values of PyTorch and transformers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "reference_gpt2.hpp"

namespace reference_llama_test {

namespace oracle = rotoscale::oracle;
using oracle::size_t;
using oracle::tensor;
using oracle::tensor_map;

/// Uniform in [centre - width, centre + width). Distributions of <random> differ between standard libraries.
tensor random_tensor(size_t size, std::mt19937_64& engine, double width = 1.0, double centre = 0.0) {
  tensor x(size);
  for (double& value : x) value = centre + width * (2.0 * static_cast<double>(engine() >> 11) * 0x1p-53 - 1.0);
  return x;
}

std::vector<int> random_tokens(size_t size, int vocab, std::mt19937_64& engine) {
  std::vector<int> tokens(size);
  for (int& token : tokens) token = static_cast<int>(engine() % static_cast<unsigned>(vocab));
  return tokens;
}

double largest_difference(const tensor& x, const tensor& y) {
  REQUIRE(x.size() == y.size());
  double result = 0.0;
  for (size_t i = 0; i < x.size(); ++i) result = std::max(result, std::abs(x[i] - y[i]));
  return result;
}

struct model_case {
  oracle::config config;
  tensor_map params;
  int B, T;
  std::vector<int> tokens, targets;

  double loss() const { return oracle::loss(config, params, tokens, targets, B, T); }
  tensor_map gradients() const { return oracle::gradients(config, params, tokens, targets, B, T); }
};

tensor_map random_parameters(const oracle::config& c, std::mt19937_64& engine) {
  tensor_map params;
  for (const auto& [name, shape] : oracle::parameter_shapes(c)) {
    const bool is_norm = shape.size() == 1, is_embedding = name == "model.embed_tokens.weight";
    const size_t size = static_cast<size_t>(shape[0]) * static_cast<size_t>(is_norm ? 1 : shape[1]);
    const double width = is_norm ? 0.3 : is_embedding ? 2.0 : 0.5;
    params[name] = random_tensor(size, engine, width, is_norm ? 1.0 : 0.0);
  }
  return params;
}

/// Two windows of 40 bytes, longer than the original context of the scaled case.
model_case recorded_model(bool tied, std::optional<oracle::rope_scaling> scaling, unsigned seed) {
  std::mt19937_64 engine(seed);
  model_case m{{256, 24, 40, 2, 4, 2, 8, 1e-5, 100.0, tied, scaling}, {}, 2, 40, {}, {}};
  m.params = random_parameters(m.config, engine);
  const std::vector<int> data = random_tokens(2 * 40 + 1, 256, engine);
  m.tokens.assign(data.begin(), data.end() - 1);
  m.targets.assign(data.begin() + 1, data.end());
  return m;
}

struct gpt2_case {
  oracle::gpt2::config config;
  tensor_map params;
  std::vector<int> tokens, targets;
};

gpt2_case gpt2_model(const oracle::gpt2::config& c, int B, int T, unsigned seed) {
  std::mt19937_64 engine(seed);
  gpt2_case m{c, {}, {}, {}};
  for (const auto& [name, shape] : oracle::gpt2::parameter_shapes(c)) {
    const bool is_vector = shape.size() == 1, is_gain = is_vector && name.find("weight") != name.npos;
    const size_t size = static_cast<size_t>(shape[0]) * static_cast<size_t>(is_vector ? 1 : shape[1]);
    const double width = is_vector ? 0.3 : name == "transformer.wte.weight" ? 2.0 : 0.5;
    m.params[name] = random_tensor(size, engine, width, is_gain ? 1.0 : 0.0);
  }
  m.tokens = random_tokens(static_cast<size_t>(B * T), c.vocab_size, engine);
  m.targets = random_tokens(static_cast<size_t>(B * T), c.vocab_size, engine);
  return m;
}

// Recorded values of torch 2.15.0 and transformers 5.23.0 in double precision (transformers_reference.py), for the same
// parameters and bytes. Logits and all gradients agreed to 5e-14. The tolerance allows for other C libraries: one ulp
// each of exp, pow, sin and cos through two layers is below 1e-12.
constexpr double recorded_tolerance = 1e-12;

TEST_CASE("oracle: transformers' LlamaForCausalLM has the same loss and gradient norm") {
  const model_case scaled = recorded_model(false, oracle::rope_scaling{8.0, 1.0, 4.0, 32.0}, 11);
  CHECK(scaled.loss() == doctest::Approx(6.414275276201586).epsilon(recorded_tolerance));
  tensor_map grads = scaled.gradients();
  CHECK(oracle::clip_grad_norm(grads, 1.0) == doctest::Approx(2.6564230894824448).epsilon(recorded_tolerance));

  const model_case tied = recorded_model(true, {}, 12);
  CHECK(tied.loss() == doctest::Approx(16.001053411700532).epsilon(recorded_tolerance));
  grads = tied.gradients();
  CHECK(oracle::clip_grad_norm(grads, 1.0) == doctest::Approx(11.922213600202832).epsilon(recorded_tolerance));
}

TEST_CASE("oracle: transformers' GPT2LMHeadModel has the same loss and gradient norm") {
  const gpt2_case m = gpt2_model({256, 48, 24, 2, 4}, 2, 40, 21);
  CHECK(oracle::gpt2::loss(m.config, m.params, m.tokens, m.targets, 2, 40) ==
        doctest::Approx(15.497448967397972).epsilon(recorded_tolerance));
  tensor_map grads = oracle::gpt2::gradients(m.config, m.params, m.tokens, m.targets, 2, 40);
  CHECK(oracle::clip_grad_norm(grads, 1.0) == doctest::Approx(9.9028528539584233).epsilon(recorded_tolerance));
}

TEST_CASE("oracle: transformers' llama3 frequencies, with the values of Llama 3.1") {
  const tensor f = oracle::rope_frequencies(128, 500000.0, oracle::rope_scaling{8.0, 1.0, 4.0, 8192.0});
  const std::pair<size_t, double> recorded[] = {{0, 1.0},
                                                {28, 0.0032114459947525913},
                                                {29, 0.0021665707635033591},
                                                {34, 0.00017850781276799638},
                                                {35, 9.5562123539646833e-05},
                                                {63, 3.0689259889145111e-07}};
  for (const auto& [i, value] : recorded) CHECK(std::abs(f[i] / value - 1.0) < recorded_tolerance);
}

TEST_CASE("oracle: torch's AdamW after three steps") {
  tensor x{0.5, -2.0, 0.0}, m(3, 0.0), v(3, 0.0);
  const tensor grads[] = {{0.25, -3.0, 1e-3}, {-0.5, 1.0, 2e-3}, {0.75, 0.5, 0.0}};
  for (int n = 1; n <= 3; ++n) oracle::adamw_step(x, grads[n - 1], m, v, n, {0.1, 0.8, 0.95, 1e-3, 0.25});
  CHECK(largest_difference(x, {0.37136385718987008, -1.7103886289579788, -0.14621108644470396}) < recorded_tolerance);
  CHECK(largest_difference(m, {0.102, -0.124, 0.000448}) < recorded_tolerance);
  CHECK(largest_difference(v, {0.042820312500000041, 0.4661250000000004, 2.3512500000000019e-07}) < recorded_tolerance);
}

TEST_CASE("oracle: torch's clip_grad_norm_, and no change below the limit") {
  tensor_map grads{{"a", {3, -4}}, {"b", {12}}};
  CHECK(oracle::clip_grad_norm(grads, 20.0) == 13.0);
  CHECK(grads == tensor_map{{"a", {3, -4}}, {"b", {12}}});
  CHECK(oracle::clip_grad_norm(grads, 1.0) == 13.0);
  CHECK(largest_difference(grads["a"], {0.23076921301775288, -0.30769228402367049}) < 1e-15);
  CHECK(largest_difference(grads["b"], {0.92307685207101153}) < 1e-15);
}

}  // namespace reference_llama_test
