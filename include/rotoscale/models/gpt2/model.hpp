// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GPT-2 as a list of blocks, with the tensor names of Hugging Face's GPT2LMHeadModel.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/models/gpt2/config_json.hpp"
#include "rotoscale/nn/blocks/embedding.hpp"
#include "rotoscale/nn/blocks/mlp.hpp"
#include "rotoscale/train/model.hpp"

namespace rotoscale::gpt2 {

/// The blocks of a model.
inline train::block_list blocks_of(const model_config& c) {
  const index_t d = c.n_embd;
  const nn::initial_distribution plain{nn::initial_distribution::kind::normal, c.initializer_range},
      scaled{plain.what, c.initializer_range / std::sqrt(2.0 * c.n_layer)};  // into the residual stream
  train::block_list list;
  list.stream = std::make_unique<nn::residual_stream>(d);
  nn::residual_stream& x = *list.stream;
  const nn::norm* before = nullptr;
  std::size_t entry = 0;
  const auto norm = [&](const std::string& name, bool inner) {
    return nn::norm(x, before, inner ? entry : entry++, inner, name + ".weight", c.layer_norm_epsilon, name + ".bias");
  };
  // A Conv1D: files hold (in, out).
  const auto conv = [](const std::string& name, const nn::initial_distribution& initial) {
    nn::parameter::slice whole{name + ".weight"};
    whole.transposed = true;
    return nn::linear_parameter{{whole}, initial, name + ".bias"};
  };

  const std::string table = "transformer.wte.weight";
  list.groups.emplace_back();
  list.add(std::make_unique<nn::embedding>(x, c.vocab_size, table, plain,
                                           nn::position_table{"transformer.wpe.weight", c.n_positions}));
  for (int i = 0; i < c.n_layer; ++i) {
    const std::string at = "transformer.h." + std::to_string(i) + ".";
    list.groups.emplace_back().is_layer = true;
    list.attention = list.add(std::make_unique<nn::attention>(
        x, norm(at + "ln_1", false), nn::attention_shape{c.n_head, c.n_head, d / c.n_head},
        conv(at + "attn.c_attn", plain), conv(at + "attn.c_proj", scaled), nullptr));
    before = &list.attention->entry();
    before = &list.add(std::make_unique<nn::mlp>(x, norm(at + "ln_2", true), nn::activation::gelu_tanh, 4 * d,
                                                 conv(at + "mlp.c_fc", plain), conv(at + "mlp.c_proj", scaled)))
                  ->entry();
  }
  list.groups.emplace_back();
  list.head =
      list.add(std::make_unique<nn::loss_head>(x, norm("transformer.ln_f", false), c.vocab_size, table, plain, true));
  return list;
}

/// The model as training sees it.
inline train::architecture architecture_of(const model_config& c) {
  train::architecture a;
  a.blocks = [c] { return blocks_of(c); };
  a.vocabulary = c.vocab_size;
  a.positions = c.n_positions;
  a.attention_width = index_t{c.n_layer} * c.n_embd;
  a.layers = c.n_layer;
  const index_t d = c.n_embd;
  const nn::named_extent hidden{"n_embd", d}, qkv{"3 * n_embd", 3 * d}, inner{"4 * n_embd", 4 * d};
  a.linears = {{{hidden}, {qkv}, {}}, {{hidden}, {hidden}, {}}, {{hidden}, {inner}, {}}, {{inner}, {hidden}, {}}};
  a.head = {{hidden}, {{"vocab_size", c.vocab_size}}, {}};
  a.extents = {hidden, qkv, inner};
  a.saved = {hidden};
  a.config_json = [c](const std::string& dtype) { return model_config_json(c, dtype); };
  a.is_implied = [](const std::string& tensor) {  // masks of old files, and the tied head
    return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") || tensor == "lm_head.weight";
  };
  return a;
}

}  // namespace rotoscale::gpt2
