// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// config.json of transformers 4 and 5. Every key that means another architecture is refused by name.
#include "rotoscale/models/llama/config_json.hpp"

#include <doctest/doctest.h>

#include "rotoscale/io/scratch.hpp"

namespace config_json_test {

using namespace rotoscale;
using io::testing::message_of;
using json = nlohmann::ordered_json;
namespace llama = rotoscale::llama;

/// Output of LlamaConfig(vocab_size=256, hidden_size=64, ...).save_pretrained in transformers 5.23.0.
constexpr char transformers_5[] = R"({
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2,
  "head_dim": 16, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96,
  "max_position_embeddings": 2048, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 4,
  "num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": null, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
  "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": false,
  "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 256})";

/// Llama 3.1 8B's, written by transformers 4.42.3.
constexpr char llama_31_8b[] = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
  "vocab_size": 128256})";

llama::model_config small_config() {
  llama::model_config c;
  c.vocab_size = 16;
  c.hidden_size = 8;
  c.intermediate_size = 12;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  return c;
}

llama::model_config read(const json& config) { return llama::read_model_config(config, "config.json"); }

/// The message about transformers 5's file with one key changed; null removes it.
std::string message_with(const std::string& key, const json& value) {
  json changed = json::parse(transformers_5);
  changed[key] = value;
  return message_of([&] { read(changed); });
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST_CASE("config.json: round trip, and what would be another architecture is refused") {
  auto c = small_config();
  c.tie_word_embeddings = true;
  c.rope_scaling = nn::rope_scaling{"llama3", 8.0, 1.0, 4.0, 64};
  const auto json = llama::model_config_json(c);
  CHECK(json["architectures"][0] == "LlamaForCausalLM");
  CHECK(json["head_dim"] == 2);
  CHECK(json["torch_dtype"] == "float32");
  CHECK(llama::model_config_json(llama::read_model_config(json, "config.json")) == json);

  const auto message = [&](const std::string& key, const nlohmann::ordered_json& value) {
    auto changed = json;
    changed[key] = value;
    return message_of([&] { llama::read_model_config(changed, "config.json"); });
  };
  CHECK(message("model_type", "mistral") == "config.json: model_type: only \"llama\" is supported");
  CHECK(holds(message("hiden_size", 8), "did you mean 'hidden_size'?"));
  CHECK(holds(message("hidden_size", "8"), "config.json: hidden_size: expected an integer, found a string"));
  CHECK(holds(message("num_key_value_heads", 3), "num_key_value_heads: 3 does not divide"));
  CHECK(
      holds(message_of([] { llama::read_model_config(nlohmann::ordered_json::array(), "config.json"); }), "an object"));
}

TEST_CASE("a file of transformers 5: rope_parameters") {
  const auto plain = read(json::parse(transformers_5));
  CHECK(plain.hidden_size == 64);
  CHECK(plain.num_key_value_heads == 2);
  CHECK(plain.rope_theta == 10000.0);
  CHECK_FALSE(plain.rope_scaling.has_value());

  json scaled = json::parse(transformers_5);
  scaled["rope_parameters"] = {{"factor", 8.0},          {"high_freq_factor", 4.0},
                               {"low_freq_factor", 1.0}, {"original_max_position_embeddings", 8192},
                               {"rope_theta", 500000.0}, {"rope_type", "llama3"}};
  const auto c = read(scaled);
  CHECK(c.rope_theta == 500000.0);
  REQUIRE(c.rope_scaling.has_value());
  CHECK(c.rope_scaling->factor == 8.0);
  CHECK(c.rope_scaling->original_max_position_embeddings == 8192);
}

TEST_CASE("a file of transformers 4: Llama 3.1 8B, and the forms of rope_scaling") {
  const auto c = read(json::parse(llama_31_8b));
  CHECK(c.vocab_size == 128256);
  CHECK(c.head_size() == 128);
  CHECK(c.key_value_size() == 1024);
  CHECK(c.rope_theta == 500000.0);
  CHECK(c.rope_scaling.value().factor == 8.0);

  json old = json::parse(llama_31_8b);
  old["rope_scaling"]["type"] = "llama3";  // the key's name before 4.43, or with the new one
  CHECK(read(old).rope_scaling.value().factor == 8.0);
  old["rope_scaling"].erase("rope_type");
  CHECK(read(old).rope_scaling.value().factor == 8.0);
  for (const json& none : {json(nullptr), json{{"rope_type", "default"}}, json{{"type", "default"}}}) {
    old["rope_scaling"] = none;
    CHECK_FALSE(read(old).rope_scaling.has_value());
  }
  old["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  CHECK(message_of([&] { read(old); }) == "config.json: rope_theta 500000.0 and 7.0 contradict each other; remove one");
  old.erase("rope_theta");
  CHECK(read(old).rope_theta == 7.0);
}

TEST_CASE("two truths about RoPE are refused, and both are named") {
  json c = json::parse(llama_31_8b);
  c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  CHECK(message_of([&] { read(c); }).starts_with("config.json: rope_scaling {\"rope_type\":\"llama3\""));
  CHECK(holds(message_of([&] { read(c); }), "rope_parameters null contradict each other"));
  c["rope_parameters"] = c["rope_scaling"];
  CHECK(read(c).rope_scaling.value().factor == 8.0);  // equal
  c["rope_scaling"] = nullptr;
  CHECK(read(c).rope_scaling.value().factor == 8.0);
  c["rope_parameters"]["type"] = "linear";
  CHECK(message_of([&] { read(c); }) ==
        "config.json: rope_parameters: rope_type \"llama3\" and type \"linear\" contradict each other; remove one");
}

TEST_CASE("RoPE in linear form: what is read is written again") {
  json c = json::parse(transformers_5);
  c["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"mscale", nullptr}};
  CHECK(read(c).rope_scaling.value().rope_type == "linear");
  const json written = llama::model_config_json(read(c));
  CHECK(written["rope_scaling"] == json{{"rope_type", "linear"}, {"factor", 4.0}});
  c["rope_parameters"]["short_factor"] = {1.0};
  CHECK(message_of([&] {
          read(c);
        }).starts_with("config.json: rope_parameters.short_factor: no key of type \"linear\" (--ignore-config-key"));
  CHECK(llama::model_config_json(llama::read_model_config(c, "config.json", {"rope_parameters.short_factor"})) ==
        written);
  CHECK_THROWS_AS(llama::read_model_config(c, "config.json", {"short_factor", "rope_scaling.short_factor"}), io::error);
}

TEST_CASE("heads that are not grouped, sizes that follow") {
  json c = json::parse(transformers_5);
  for (const char* key : {"num_key_value_heads", "head_dim"}) {
    c[key] = nullptr;
    CHECK(read(c).num_key_value_heads == (c["num_key_value_heads"].is_null() ? 4 : 2));
    CHECK(read(c).head_size() == 16);
  }
  c.erase("rms_norm_eps");
  CHECK(read(c).rms_norm_eps == 1e-6);  // LlamaConfig's default
  c["hidden_act"] = "swish";
  CHECK(read(c).hidden_size == 64);
}

TEST_CASE("keys that change the arithmetic are refused by name, with what is supported") {
  const auto rope = [](json change) {
    json value = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
    value.update(change);
    return message_with("rope_parameters", value);
  };
  CHECK(rope(json::object()) == "(no error)");
  CHECK(rope({{"rope_type", "dynamic"}, {"factor", 2.0}}) ==
        "config.json: rope_parameters.rope_type: only \"default\", \"llama3\" and \"linear\" are supported, "
        "found \"dynamic\"");
  CHECK(rope({{"partial_rotary_factor", 0.5}}) ==
        "config.json: rope_parameters.partial_rotary_factor: only 1.0 is supported");
  CHECK(rope({{"rope_type", "llama3"}}) == "config.json: rope_parameters: factor is missing");
  CHECK(rope({{"rope_theta", "much"}}) == "config.json: rope_theta: expected a number, found a string");
  CHECK(message_with("rope_parameters", {{"rope_theta", 1.0}}) == "(no error)");  // the default type
  CHECK(message_with("rope_parameters", {{"factor", 2.0}}) == "config.json: rope_parameters: rope_type is missing");
  CHECK(message_with("rope_parameters", 1) ==
        "config.json: rope_parameters: expected an object or null, found the number 1");
  CHECK(message_with("rope_parameters", nullptr) == "(no error)");
  const json refused = json::parse(R"({"quantization_config": {"quant_method": "mxfp4"}, "sliding_window": 4096,
      "partial_rotary_factor": 0.25, "is_encoder_decoder": true, "add_cross_attention": true,
      "cross_attention_hidden_size": 64, "rope_interleaved": true, "pruned_heads": {"0": [1]}, "hidden_act": "gelu",
      "attention_bias": true, "mlp_bias": true, "architectures": ["GPT2LMHeadModel"]})");
  for (const auto& [key, value] : refused.items()) {
    CAPTURE(key);
    CHECK(holds(message_with(key, value), "config.json: " + key + ": only "));
  }
  const json ignored = json::parse(R"({"sliding_window": null, "cross_attention_hidden_size": null,
      "rope_interleaved": false, "is_llama_config": true, "max_length": 20, "do_sample": true, "temperature": 0.6,
      "early_stopping": false, "unsloth_fixed": true, "use_sdpa": true, "someone_elses": null, "use_cache": 1,
      "transformers_version": 1, "bos_token_id": 1, "attention_dropout": 1, "dtype": 1,
      "layer_types": ["full_attention", "full_attention"], "architectures": ["LLaMAForCausalLM"]})");
  for (const auto& [key, value] : ignored.items()) {
    CAPTURE(key);
    CHECK(message_with(key, value) == "(no error)");
  }
  CHECK(holds(message_with("layer_types", {"sliding_attention"}), "layer_types: only \"full_attention\""));
  CHECK(message_with("attn_logit_softcapping", 50.0).starts_with("config.json: attn_logit_softcapping: unknown key"));
  CHECK(holds(message_with("attn_logit_softcapping", 50.0), "--ignore-config-key"));
  json known = json::parse(transformers_5);
  known["attn_logit_softcapping"] = 50.0;
  CHECK(llama::read_model_config(known, "c", {"attn_logit_softcapping"}).hidden_size == 64);
  known["attention_bias"] = true;  // is not unknown
  CHECK(holds(message_of([&] { llama::read_model_config(known, "c", {"attention_bias"}); }), "attention_bias: only"));
}

}  // namespace config_json_test
