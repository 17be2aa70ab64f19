// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// For tests of cached keys and values on any backend: logits of every token of a growing text, by full passes and by
// continued passes.
#pragma once

#include "session_case.hpp"

namespace rotoscale::testing {

/// A text of 75 tokens. The first pass takes `given` of them.
class cache_case {
 public:
  cache_case(nn::backend& ops, const nn::recipe& r, index_t given, const std::vector<std::string>& adapters = {})
      : ops_(ops), recipe_(r), given_(given), adapters_(adapters) {}

  /// Logits by full passes over the text so far.
  std::vector<float> whole() const {
    const auto s = make(0);
    std::vector<float> to;
    for (index_t n = given_; n <= text; ++n) append_logits(*s, 0, (n + 31) / 32 * 32, n - 1, to);
    return to;
  }

  struct continuation {
    index_t rows = 0;  ///< rows of a continued pass; 0: unsupported, and `logits` are the first pass's
    std::vector<float> logits;
  };
  /// Logits by continued passes.
  continuation continued() const {
    const auto s = make(room);
    continuation c{s->model().cache_rows(), {}};
    append_logits(*s, 0, (given_ + 31) / 32 * 32, given_ - 1, c.logits);
    for (index_t n = given_ + 1; c.rows != 0 && n <= text; ++n) {
      append_logits(*s, (n - 1) / c.rows * c.rows, c.rows, n - 1, c.logits);
    }
    return c;
  }

 private:
  static constexpr index_t text = 75, room = 96;

  static nn::step_inputs inputs() {
    nn::step_inputs now;
    now.seed = 5;
    return now;
  }

  std::unique_ptr<llama::session> make(index_t cache) const {
    llama::session_options o;
    o.model.sequence = room;
    o.model.head_chunk = 32;
    o.model.training = false;
    o.model.cache = cache;
    if (!adapters_.empty()) {
      o.model.lora.emplace();
      o.model.lora->rank = 4;
      o.model.lora->targets = adapters_;
    }
    auto s = std::make_unique<llama::session>(ops_, small_config(false), o, std::vector{recipe_});
    s->set_inputs(inputs());
    s->initialize(3);
    return s;
  }

  /// Appends the logits of token `last`, by a pass over `count` tokens from `begin` on.
  void append_logits(llama::session& s, index_t begin, index_t count, index_t last, std::vector<float>& to) const {
    std::vector<std::int32_t> tokens(data_.tokens.begin() + begin, data_.tokens.begin() + last + 1);
    tokens.resize(static_cast<std::size_t>(count), 0);
    s.resize(1, count);
    const auto own = s.logits(inputs(), tokens, last - begin, begin);
    to.insert(to.end(), own.begin(), own.end());
  }

  nn::backend& ops_;
  const nn::recipe recipe_;
  index_t given_;
  std::vector<std::string> adapters_;
  const batch data_{1, room, 64, false};
};

/// Recipes that mix tokens in attention only.
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
