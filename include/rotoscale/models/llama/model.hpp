// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Llama as a list of blocks, with the tensor names of Hugging Face's LlamaForCausalLM.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/models/llama/config_json.hpp"
#include "rotoscale/nn/blocks/embedding.hpp"
#include "rotoscale/nn/blocks/mlp.hpp"
#include "rotoscale/train/model.hpp"

namespace rotoscale::llama {

/// The blocks of a model.
inline train::block_list blocks_of(const model_config& c) {
  const index_t d = c.hidden_size, f = c.intermediate_size, q = c.query_size(), kv = c.key_value_size();
  const nn::initial_distribution plain{nn::initial_distribution::kind::normal, c.initializer_range},
      scaled{plain.what, c.initializer_range / std::sqrt(2.0 * c.num_hidden_layers)};  // into the residual stream
  train::block_list list;
  list.stream = std::make_unique<nn::residual_stream>(d);
  nn::residual_stream& x = *list.stream;
  const nn::norm* before = nullptr;
  std::size_t entry = 0;
  const auto norm = [&](const std::string& name, bool inner) {
    return nn::norm(x, before, inner ? entry : entry++, inner, name, c.rms_norm_eps);
  };

  const std::string table = "model.embed_tokens.weight";
  list.groups.emplace_back();
  list.add(std::make_unique<nn::embedding>(x, c.vocab_size, table, plain));
  const nn::rotary* const rope = list.add(std::make_unique<nn::rotary>(c.rope()));
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".", attn = at + "self_attn.", mlp = at + "mlp.";
    list.groups.emplace_back().is_layer = true;
    list.attention = list.add(std::make_unique<nn::attention>(
        x, norm(at + "input_layernorm.weight", false),
        nn::attention_shape{c.num_attention_heads, c.num_key_value_heads, c.head_size()},
        nn::linear_parameter{
            {{attn + "q_proj.weight", 0, q}, {attn + "k_proj.weight", q, kv}, {attn + "v_proj.weight", q + kv, kv}},
            plain},
        nn::linear_parameter{{{attn + "o_proj.weight"}}, scaled}, rope));
    before = &list.attention->entry();
    before =
        &list.add(std::make_unique<nn::mlp>(
                      x, norm(at + "post_attention_layernorm.weight", true), nn::activation::swiglu, f,
                      nn::linear_parameter{{{mlp + "gate_proj.weight", 0, f}, {mlp + "up_proj.weight", f, f}}, plain},
                      nn::linear_parameter{{{mlp + "down_proj.weight"}}, scaled}))
             ->entry();
  }
  list.groups.emplace_back();
  list.head = list.add(std::make_unique<nn::loss_head>(x, norm("model.norm.weight", false), c.vocab_size,
                                                       c.tie_word_embeddings ? table : "lm_head.weight", plain,
                                                       c.tie_word_embeddings));
  return list;
}

/// The model as training sees it.
inline train::architecture architecture_of(const model_config& c) {
  train::architecture a;
  a.blocks = [c] { return blocks_of(c); };
  a.vocabulary = c.vocab_size;
  a.positions = c.max_position_embeddings;
  a.attention_width = c.num_hidden_layers * c.query_size();
  a.layers = c.num_hidden_layers;
  const index_t q = c.query_size(), kv = c.key_value_size(), f = c.intermediate_size;
  const nn::named_extent hidden{"hidden_size", c.hidden_size}, inner{"intermediate_size", f},
      both{"2 * intermediate_size", 2 * f}, query{"num_attention_heads * head_dim", q},
      keys{"num_key_value_heads * head_dim", kv};
  a.linears = {
      {{hidden}, {query, keys}, {}}, {{query}, {hidden}, {}}, {{hidden}, {inner}, {}}, {{inner}, {hidden}, {}}};
  a.head = {{hidden}, {{"vocab_size", c.vocab_size}}, {}};
  a.extents = {hidden, inner, both, query, keys, {query.name + " + 2 * " + keys.name, q + 2 * kv}};
  a.saved = {hidden, query, {"2 * " + keys.name, 2 * kv}, both};
  a.config_json = [c](const std::string& dtype) { return model_config_json(c, dtype); };
  a.is_implied = [c](const std::string& tensor) {
    return tensor.ends_with(".rotary_emb.inv_freq") || (c.tie_word_embeddings && tensor == "lm_head.weight");
  };
  return a;
}

}  // namespace rotoscale::llama
