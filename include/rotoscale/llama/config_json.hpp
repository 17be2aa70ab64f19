// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Hugging Face's config.json of a LlamaForCausalLM, as transformers 4 and 5 write it, and model_config. A key is one of
// four kinds: it is a field of model_config; or it changes no arithmetic of a forward and backward pass and is ignored;
// or it changes some and only one of its values is implemented; or it is unknown and refused.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/io/json.hpp"
#include "rotoscale/llama/config.hpp"

namespace rotoscale::llama {

namespace detail {

/// A key with the values under which the model is the one implemented here, the first of which is written, if it is
/// one that transformers needs.
struct implemented_value {
  std::string key;
  std::vector<nlohmann::ordered_json> values;
  bool written = false;
};

inline const std::vector<implemented_value>& implemented_values() {
  using json = nlohmann::ordered_json;
  static const std::vector<implemented_value> values = {
      {"architectures", {json::array({"LlamaForCausalLM"}), nullptr}, true},
      {"model_type", {"llama"}, true},
      {"hidden_act", {"silu", "swish"}, true},  // two names of one function
      {"attention_bias", {false}, true},
      {"mlp_bias", {false}, true},
      {"add_cross_attention", {false}},
      {"cross_attention_hidden_size", {nullptr}},
      {"is_encoder_decoder", {false}},
      {"tie_encoder_decoder", {false}},
      {"pruned_heads", {json::object(), nullptr}},
      {"partial_rotary_factor", {1.0, nullptr}},
      {"rope_interleaved", {false}},  // which transformers does not read
      {"sliding_window", {nullptr}},
      {"quantization_config", {nullptr}}};
  return values;
}

/// Keys about training by others, generation, labels and memory.
inline const std::vector<std::string>& ignored_keys() {
  static const std::vector<std::string> keys = {
      "_attn_implementation_autoset", "_name_or_path", "attention_dropout", "bos_token_id", "chunk_size_feed_forward",
      "dtype", "eos_token_id", "finetuning_task", "id2label", "is_decoder", "is_llama_config", "label2id",
      "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "pretraining_tp",
      "problem_type", "return_dict", "return_dict_in_generate", "sep_token_id", "task_specific_params",
      "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "unk_token_id",
      "use_bfloat16", "use_cache",
      // Of generation, which transformers 4 wrote here.
      "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty", "do_sample",
      "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
      "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
      "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty", "suppress_tokens",
      "temperature", "top_k", "top_p", "typical_p"};
  return keys;
}

inline void take_implemented_values(nlohmann::ordered_json& json, const io::detail::place& at) {
  for (const implemented_value& known : implemented_values()) {
    const auto found = json.find(known.key);
    if (found == json.end()) continue;
    if (std::find(known.values.begin(), known.values.end(), *found) == known.values.end()) {
      at.key(known.key).fail("only " + known.values.front().dump() + " is supported");
    }
    json.erase(known.key);
  }
}

/// One form for RoPE's three: `rope_scaling` (with "type" before "rope_type", and null or "default" for none) beside
/// rope_theta, and transformers 5's `rope_parameters`, which holds rope_theta as well.
inline void take_rope(nlohmann::ordered_json& json, const io::detail::place& at) {
  nlohmann::ordered_json rope;
  std::string name;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {  // as transformers does: the newer key has precedence
    const auto found = json.find(key);
    if (found == json.end()) continue;
    if (!found->is_null()) {
      rope = *found;
      name = key;
    }
    json.erase(key);
  }
  if (rope.is_null()) return;
  const io::detail::place inside = at.key(name);
  if (!rope.is_object()) io::detail::fail_type("an object or null", rope, inside);
  take_implemented_values(rope, inside);  // partial_rotary_factor
  if (rope.contains("rope_theta")) {
    json["rope_theta"] = rope["rope_theta"];
    rope.erase("rope_theta");
  }
  if (rope.contains("type")) {
    if (!rope.contains("rope_type")) rope["rope_type"] = rope["type"];
    rope.erase("type");
  }
  if (!rope.contains("rope_type")) inside.fail("rope_type is missing");
  if (rope["rope_type"] == "default") return;
  if (rope["rope_type"] != "llama3") {
    inside.key("rope_type").fail("only \"default\" and \"llama3\" are supported, found " + rope["rope_type"].dump());
  }
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (!rope.contains(key)) inside.fail(std::string(key) + " is missing");
  }
  json["rope_scaling"] = rope;
}

}  // namespace detail

/// A model_config from a Hugging Face config.json. Throws io::error naming `where` and the key for one that would
/// change the architecture, is unknown or has a value out of range.
inline model_config read_model_config(nlohmann::ordered_json json, const std::string& where) {
  const io::detail::place at{where, ""};
  if (json.is_object()) {
    detail::take_implemented_values(json, at);
    detail::take_rope(json, at);
    for (const std::string& key : detail::ignored_keys()) json.erase(key);
    for (const char* key : {"num_key_value_heads", "head_dim"}) {
      if (json.contains(key) && json[key].is_null()) json.erase(key);
    }
  }
  model_config config;
  config.rms_norm_eps = 1e-6;  // LlamaConfig's defaults, which files may leave out
  config.num_key_value_heads = 0;
  io::from_json(json, config, where);
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    if (!json.contains(key)) throw io::error(where, std::string(key) + ": is missing");
  }
  if (!json.contains("num_key_value_heads")) config.num_key_value_heads = config.num_attention_heads;
  if (const auto fault = find_fault(config)) throw io::error(where, *fault);
  return config;
}

/// The config.json that transformers 4 and 5 load as this model. `dtype` is that of the weights beside it.
inline nlohmann::ordered_json model_config_json(const model_config& config, const std::string& dtype = "float32") {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const detail::implemented_value& known : detail::implemented_values()) {
    if (known.written) json[known.key] = known.values.front();
  }
  model_config full = config;
  full.head_dim = static_cast<int>(config.head_size());
  const nlohmann::ordered_json shape = io::to_json(full);  // items() would outlive a temporary
  for (const auto& [key, value] : shape.items()) json[key] = value;
  json["torch_dtype"] = dtype;
  return json;
}

}  // namespace rotoscale::llama
