// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// For model tests: a small shape, random tokens, and a session.
#pragma once

#include <doctest/doctest.h>

#include <map>

#include "rotoscale/models/llama/model.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/nn/preset.hpp"
#include "rotoscale/nn/same_bytes.hpp"
#include "rotoscale/train/parameter_files.hpp"
#include "rotoscale/train/session.hpp"

namespace rotoscale::testing {

inline llama::model_config small_config(bool tied) {
  llama::model_config c;
  c.vocab_size = 64;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.tie_word_embeddings = tied;
  c.initializer_range = 0.2;  // gives all layers measurable gradients
  return c;
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

/// A session for passes over b × seq tokens.
struct session_case {
  std::unique_ptr<nn::backend> ops;
  llama::session session;

  session_case(const train::architecture& config, const nn::recipe& r, index_t b, index_t seq, int threads = 1,
               std::uint64_t weights = 3, const std::function<void(llama::session_options&)>& change = nullptr,
               nn::communicator* ranks = nullptr)
      : session_case(config, std::vector<nn::recipe>(1, r), b, seq, threads, weights, change, ranks) {}
  /// With several recipes, starting with the first.
  session_case(const train::architecture& config, const std::vector<nn::recipe>& recipes, index_t b, index_t seq,
               int threads = 1, std::uint64_t weights = 3,
               const std::function<void(llama::session_options&)>& change = nullptr, nn::communicator* ranks = nullptr)
      : ops(nn::make_cpu_backend(threads)), session(*ops, config, options(b, seq, change), recipes, ranks) {
    nn::step_inputs inputs;
    inputs.seed = 5;
    session.set_inputs(inputs);
    session.initialize(weights);
  }
  static llama::session_options options(index_t b, index_t seq,
                                        const std::function<void(llama::session_options&)>& change) {
    llama::session_options o;
    o.model.batch = b;
    o.model.sequence = seq;
    if (change) change(o);
    return o;
  }
  static nn::step_inputs inputs(std::uint64_t number, float learning_rate = 0.0f) {
    nn::step_inputs inputs;
    inputs.seed = 5;
    inputs.step = number;
    inputs.learning_rate = learning_rate;
    return inputs;
  }
  /// A step without an update: the learning rate is 0.
  nn::step_state step(const batch& data, std::uint64_t number = 0, float learning_rate = 0.0f) {
    session.train_step(inputs(number, learning_rate), data.tokens, data.targets);
    return session.finish_step();
  }
  std::vector<float> losses() {
    std::vector<float> host(static_cast<std::size_t>(session.pass_tokens()));
    ops->download(session.queue(), host.data(), session.model().loss(), host.size() * sizeof(float));
    return host;
  }
  std::vector<float> evaluate(const batch& data) {
    nn::step_inputs inputs;
    inputs.seed = 5;
    return session.evaluate(inputs, data.tokens, data.targets);
  }
  /// Gradients of all parameters, concatenated; with `weights` their values.
  std::vector<float> all(bool weights = false) {
    std::vector<float> out;
    const llama::model& m = session.model();
    for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
      if (!m.parameters()[i].trains) continue;
      const auto host = weights ? m.values(session.queue(), i) : m.arena_values(session.queue(), m.arena().gradient, i);
      out.insert(out.end(), host.begin(), host.end());
    }
    return out;
  }
  /// Parameters under their checkpoint names, taken from weights or gradients.
  std::map<std::string, std::vector<double>> by_name(bool gradients) {
    std::map<std::string, std::vector<double>> found;
    const llama::model& m = session.model();
    for (std::size_t i = 0; i < m.parameters().all().size(); ++i) {
      const llama::parameter& p = m.parameters()[i];
      if (gradients && !p.trains) continue;
      const auto host =
          gradients ? m.arena_values(session.queue(), m.arena().gradient, i) : m.values(session.queue(), i);
      for (const auto& s : p.slices) {
        std::vector<float> own(host.begin() + s.first_row * p.cols, host.begin() + (s.first_row + s.rows) * p.cols);
        if (s.transposed) own = train::detail::transposed(own, s.rows, p.cols);
        found[s.name].assign(own.begin(), own.end());
      }
    }
    return found;
  }
};

}  // namespace rotoscale::testing
