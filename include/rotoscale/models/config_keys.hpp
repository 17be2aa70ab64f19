// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reads and writes Hugging Face's config.json by a table of its keys. A key is a field of the model, has one
// implemented value, has no effect on a forward and backward pass, or is refused.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "rotoscale/io/json.hpp"
#include "rotoscale/train/lora.hpp"

namespace rotoscale::models {

/// The text after a refused key.
inline constexpr const char* ignoring_hint = " (--ignore-config-key passes one that changes no arithmetic)";

/// A key that must have one of these values.
struct implemented_value {
  std::string key;                             ///< of config.json
  std::vector<nlohmann::ordered_json> values;  ///< that are implemented
  bool written = false;                        ///< write the first value, which transformers needs
};

/// Keys about training by others, generation, labels, memory and kernels.
inline const std::vector<std::string>& ignored_keys() {
  static const std::vector<std::string> keys = {
      "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled", "_name_or_path",
      "attention_dropout", "attn_implementation", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype",
      "eos_token_id", "finetuning_task", "fused_mlp", "gradient_checkpointing", "id2label", "is_decoder",
      "is_llama_config", "label2id", "license", "max_sequence_length", "model_max_length", "output_attentions",
      "output_hidden_states", "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
      "return_dict", "return_dict_in_generate", "sep_token_id", "task_specific_params", "tf_legacy_loss",
      "tokenizer_class", "tokenizer_model_max_length", "torch_dtype", "torchscript", "transformers.js_config",
      "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
      "use_flash_attention", "use_flash_attention_2", "use_flash_attn", "use_sdpa",
      // Of generation, which transformers 4 wrote here.
      "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty", "do_sample",
      "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
      "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
      "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty", "suppress_tokens",
      "temperature", "top_k", "top_p", "typical_p"};
  return keys;
}

/// Removes keys of which one value is implemented. Throws io::error for other values.
inline void take_implemented_values(nlohmann::ordered_json& json, const std::vector<implemented_value>& keys,
                                    const io::detail::place& at) {
  for (const implemented_value& known : keys) {
    const auto found = json.find(known.key);
    if (found == json.end()) continue;
    if (std::find(known.values.begin(), known.values.end(), *found) == known.values.end()) {
      at.key(known.key).fail("only " + known.values.front().dump() + " is supported");
    }
    json.erase(known.key);
  }
}

/// A shape among the options of a run.
struct shape_options {
  std::string kind;                     ///< of model, in messages
  std::string key;                      ///< of the options that hold the shape
  nlohmann::ordered_json fields;        ///< of the shape, with defaults resolved
  std::vector<const char*> of_tensors;  ///< fields that extents of tensors depend on
  const char* positions_hint = "";      ///< ends messages about the longest sequence, if the fields have flags
  /// Default targets of adapters.
  std::vector<std::string> adapter_targets = train::lora_config().targets;
};

/// The keys of a kind of model that are not plain fields.
struct config_keys {
  std::vector<implemented_value> implemented;  ///< keys with one implemented value
  std::vector<const char*> required;           ///< fields that files must have
  std::vector<const char*> nullable;           ///< fields that files may give as null
  std::vector<const char*> ignored;            ///< keys without effect on this kind of model
  /// Checks keys with special forms, and removes or replaces them.
  std::function<void(nlohmann::ordered_json&, const std::vector<std::string>& passed, const io::detail::place&)> take;
};

namespace detail {

/// Removes `passed` keys, keys without effect, and null for unknown keys and nullable fields. Throws io::error for
/// other unknown keys.
inline void take_ignored_keys(nlohmann::ordered_json& json, const std::vector<std::string>& fields,
                              const config_keys& keys, const std::vector<std::string>& passed,
                              const io::detail::place& at) {
  for (const auto* names : {&ignored_keys(), &passed}) {
    for (const std::string& key : *names) json.erase(key);
  }
  for (const char* key : keys.ignored) json.erase(key);
  for (auto entry = json.begin(); entry != json.end();) {
    const std::string key = entry.key();
    const bool known = std::find(fields.begin(), fields.end(), key) != fields.end();
    const bool nullable = !known || std::find(keys.nullable.begin(), keys.nullable.end(), key) != keys.nullable.end();
    if (!known && !entry.value().is_null()) {
      at.key(key).fail("unknown key" + io::did_you_mean(key, fields) + ignoring_hint);
    }
    entry = nullable && entry.value().is_null() ? json.erase(entry) : std::next(entry);
  }
}

}  // namespace detail

/// Reads the fields of a model over their defaults in `config`. On return `json` has the fields of the file alone.
/// `passed`: unknown keys to ignore. Throws io::error that names `where` and the key.
template <class Config>
Config read_fields(nlohmann::ordered_json& json, const std::string& where, const config_keys& keys,
                   const std::vector<std::string>& passed, Config config) {
  if (json.is_object()) {
    const io::detail::place at{where, ""};
    std::vector<std::string> fields;
    describe([&](const char* key, auto&, const char*) { fields.emplace_back(key); }, config);
    take_implemented_values(json, keys.implemented, at);
    if (keys.take) keys.take(json, passed, at);
    detail::take_ignored_keys(json, fields, keys, passed, at);
  }
  io::from_json(json, config, where);
  for (const char* key : keys.required) {
    if (!json.contains(key)) throw io::error(where, std::string(key) + ": is missing");
  }
  return config;
}

/// Writes the keys that transformers needs, the fields of a model, and the dtype of its weights.
template <class Config>
nlohmann::ordered_json write_fields(const Config& config, const config_keys& keys, const std::string& dtype) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const implemented_value& known : keys.implemented) {
    if (known.written) json[known.key] = known.values.front();
  }
  json.update(io::to_json(config));
  json["torch_dtype"] = dtype;
  return json;
}

}  // namespace rotoscale::models
