// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// For tests of kept keys and values on any backend: logits of every token of a text that grows, by passes over all of
// it and by passes that continue it.
#pragma once

#include "session_case.hpp"

namespace rotoscale::testing {

struct cache_case {
  index_t rows = 0;  ///< of passes that continue
  std::vector<float> whole, continued;
};

/// A text of 75 tokens, of which `given` go through at once.
inline cache_case run_cache_case(nn::backend& ops, const nn::recipe& r, index_t given,
                                 const std::vector<std::string>& adapters = {}) {
  constexpr index_t text = 75, room = 96;
  const auto make = [&](index_t cache) {
    llama::session_options o;
    o.model.sequence = room;
    o.model.head_chunk = 32;
    o.model.training = false;
    o.model.cache = cache;
    if (!adapters.empty()) {
      o.model.lora.emplace();
      o.model.lora->rank = 4;
      o.model.lora->targets = adapters;
    }
    auto s = std::make_unique<llama::session>(ops, small_config(false), o, std::vector{r});
    nn::step_inputs inputs;
    inputs.seed = 5;
    s->set_inputs(inputs);
    s->initialize(3);
    return s;
  };
  const batch data(1, room, 64, false);
  nn::step_inputs now;
  now.seed = 5;
  const auto logits = [&](llama::session& s, index_t begin, index_t count, index_t last, std::vector<float>& to) {
    std::vector<std::int32_t> tokens(data.tokens.begin() + begin, data.tokens.begin() + last + 1);
    tokens.resize(static_cast<std::size_t>(count), 0);
    s.resize(1, count);
    const auto own = s.logits(now, tokens, last - begin, begin);
    to.insert(to.end(), own.begin(), own.end());
  };
  cache_case c;
  const auto without = make(0), with = make(room);
  c.rows = with->model().cache_rows();
  for (index_t n = given; n <= text; ++n) logits(*without, 0, (n + 31) / 32 * 32, n - 1, c.whole);
  logits(*with, 0, (given + 31) / 32 * 32, given - 1, c.continued);
  for (index_t n = given + 1; c.rows != 0 && n <= text; ++n) {
    const index_t begin = (n - 1) / c.rows * c.rows;
    logits(*with, begin, c.rows, n - 1, c.continued);
  }
  return c;
}

/// Recipes whose tokens meet nowhere but in attention.
inline std::vector<nn::recipe> cached_recipes() {
  std::vector<nn::recipe> all = {preset("fp32"), preset("bf16"), preset("fp8_amd"), preset("mxfp4_h16"),
                                 preset("mxfp4_h16_step_signs")};
  nn::recipe narrow = preset("bf16");
  narrow.name = "bf16 stored as BF16, attention in tiles";
  narrow.activations = nn::operand_format::bf16;
  narrow.attention = "attention-bf16-tile64x64-exp2deg3@hopper-mma-fp16-f32";
  all.push_back(narrow);
  nn::recipe square = preset("mxfp4");
  square.name = "square blocks";
  square.fprop.left.block = square.fprop.right.block = nn::block_recipe{32, 32, formats::e8m0};
  all.push_back(square);
  return all;
}

}  // namespace rotoscale::testing
