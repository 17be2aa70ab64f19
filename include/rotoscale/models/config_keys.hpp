// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Keys of Hugging Face's config.json that are no fields of a model: without effect, or with one implemented value.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "rotoscale/io/json.hpp"

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

/// Removes keys without effect, those that are passed, and unknown ones that are null; and null for `optional`
/// fields of Config. Throws io::error for other unknown keys.
template <class Config>
void take_ignored_keys(nlohmann::ordered_json& json, Config any, const std::vector<std::string>& optional,
                       const std::vector<std::string>& passed, const io::detail::place& at) {
  for (const auto* keys : {&ignored_keys(), &passed}) {
    for (const std::string& key : *keys) json.erase(key);
  }
  std::vector<std::string> fields;
  describe([&](const char* key, auto&, const char*) { fields.emplace_back(key); }, any);
  for (auto entry = json.begin(); entry != json.end();) {
    const std::string key = entry.key();
    const bool known = std::find(fields.begin(), fields.end(), key) != fields.end();
    const bool follows = !known || std::find(optional.begin(), optional.end(), key) != optional.end();
    if (!known && !entry.value().is_null()) {
      at.key(key).fail("unknown key" + io::did_you_mean(key, fields) + ignoring_hint);
    }
    entry = follows && entry.value().is_null() ? json.erase(entry) : std::next(entry);
  }
}

}  // namespace rotoscale::models
