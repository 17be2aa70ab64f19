// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GPT-2 on the CPU: gradients against the double-precision oracle, recipes, adapters, recomputation, cached passes,
// files of Hugging Face and of llm.c.
#include <doctest/doctest.h>

#include "../io/scratch.hpp"
#include "../llama/session_case.hpp"
#include "oracle/reference_gpt2.hpp"
#include "rotoscale/models/gpt2/convert.hpp"
#include "rotoscale/models/gpt2/model.hpp"
#include "rotoscale/nn/presets.hpp"
#include "rotoscale/train/checkpoint.hpp"

namespace gpt2_test {

using namespace rotoscale;
using namespace rotoscale::testing;
using rotoscale::io::testing::message_of;
namespace fs = std::filesystem;

gpt2::model_config small_shape() {
  gpt2::model_config c;
  c.vocab_size = 64;
  c.n_positions = 96;
  c.n_embd = 64;
  c.n_layer = 2;
  c.n_head = 4;
  c.initializer_range = 0.2;  // gives all layers measurable gradients
  return c;
}

/// Adds numbers in (-0.1, 0.1) to gains and biases, which start with constants.
void disturb_vectors(train::session& s) {
  const auto& all = s.model().parameters().all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].is_vector) continue;
    std::vector<float> values = s.model().values(s.queue(), i);
    for (std::size_t j = 0; j < values.size(); ++j) {
      values[j] += 0.1f * (static_cast<float>(random_stream{17, i}.word(j) >> 8) * 0x1p-23f - 1.0f);
    }
    s.load(i, values);
  }
}

struct gpt2_case : session_case {
  explicit gpt2_case(const nn::recipe& r, index_t seq = 64, int threads = 1,
                     const std::function<void(train::session_options&)>& change = nullptr)
      : session_case(small_shape(), r, 2, seq, threads, 3, change) {
    disturb_vectors(session);
  }
};

oracle::gpt2::config oracle_shape(const gpt2::model_config& c) {
  return {c.vocab_size, c.n_positions, c.n_embd, c.n_layer, c.n_head, c.layer_norm_epsilon};
}

std::vector<int> ints(const std::vector<std::int32_t>& x) { return {x.begin(), x.end()}; }

TEST_CASE("GPT-2: loss and gradients agree with the double-precision oracle") {
  for (const index_t head_chunk : {2048, 32}) {
    gpt2_case c(preset("fp32"), 70, 2, [&](train::session_options& o) { o.model.head_chunk = head_chunk; });
    const batch data(2, 70, 64, true);
    const nn::step_state state = c.step(data);
    const auto weights = c.by_name(false), gradients = c.by_name(true);
    const oracle::gpt2::config shape = oracle_shape(small_shape());
    // The bounds of model_test.
    const double loss = oracle::gpt2::loss(shape, weights, ints(data.tokens), ints(data.targets), 2, 70);
    CHECK(state.mean_loss() == doctest::Approx(loss).epsilon(1e-5));
    const auto want = oracle::gpt2::gradients(shape, weights, ints(data.tokens), ints(data.targets), 2, 70);
    REQUIRE(gradients.size() == want.size());
    for (const auto& [name, values] : want) {
      CAPTURE(name);
      double error = 0, norm = 0;
      REQUIRE(gradients.at(name).size() == values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        error += (gradients.at(name)[i] - values[i]) * (gradients.at(name)[i] - values[i]);
        norm += values[i] * values[i];
      }
      CHECK(norm > 0);
      CHECK(std::sqrt(error / norm) < 1e-5);
    }
  }
}

TEST_CASE("GPT-2: every recipe has the same bytes on any number of threads and after recomputation") {
  const batch data(2, 64, 64, false);
  const auto bytes = [&](const nn::recipe& r, int threads, nn::recompute_part part) {
    gpt2_case c(r, 64, threads, [&](train::session_options& o) { o.model.recompute = part; });
    c.step(data, 0, 0.01f);
    c.step(data, 1, 0.01f);
    std::vector<float> all = c.all(), weights = c.all(true);
    all.insert(all.end(), weights.begin(), weights.end());
    return all;
  };
  for (const nn::recipe& r : nn::presets::all()) {
    CAPTURE(r.name);
    const std::vector<float> one = bytes(r, 1, nn::recompute_part::none);
    CHECK(same_bytes(one, bytes(r, 3, nn::recompute_part::layer)));
  }
  for (const auto part : {nn::recompute_part::elementwise, nn::recompute_part::attention, nn::recompute_part::mlp}) {
    const nn::recipe r = preset("mxfp4_h16");
    CHECK(same_bytes(bytes(r, 1, nn::recompute_part::none), bytes(r, 1, part)));
  }
}

TEST_CASE("GPT-2: adapters train on a frozen base, which heals to the bytes of a new session") {
  const batch data(2, 64, 64, false);
  const auto options = [](train::session_options& o) {
    o.model.lora.emplace();
    o.model.lora->rank = 4;
    o.model.lora->targets = {"c_attn", "c_proj", "c_fc"};
  };
  const nn::recipe fp8 = preset("fp8_amd");
  session_case healed(small_shape(), std::vector{preset("mxfp4_h16"), fp8}, 2, 64, 2, 3, options);
  session_case fresh(small_shape(), fp8, 2, 64, 1, 3, options);
  const train::model &from = healed.session.model(), &to = fresh.session.model();
  CHECK(from.parameters().adapters().size() == 4 * 2);
  const double first = healed.step(data, 0, 0.05f).mean_loss();
  healed.session.use(fp8);
  for (std::size_t i = 0; i < to.parameters().all().size(); ++i) {
    if (to.parameters()[i].trains) fresh.session.load(i, from.values(healed.session.queue(), i));
  }
  CHECK(same_bytes(healed.evaluate(data), fresh.evaluate(data)));
  for (std::uint64_t step = 1; step < 6; ++step) healed.step(data, step, 0.05f);
  CHECK(healed.step(data, 6, 0.05f).mean_loss() < first - 0.01);
  CHECK_THROWS_WITH(session_case(small_shape(), fp8, 2, 64, 1, 3,
                                 [&](train::session_options& o) {
                                   options(o);
                                   o.model.lora->targets.push_back("q_proj");
                                 }),
                    "targets: the model has no linear layer 'q_proj'");
}

TEST_CASE("GPT-2: PEFT's adapter_config.json") {
  const io::testing::scratch_directory scratch;
  session_case adapted(small_shape(), preset("fp32"), 2, 64, 1, 3, [](train::session_options& o) {
    o.model.lora.emplace();
    o.model.lora->targets = {"c_attn"};
  });
  train::write_checkpoint(scratch / "a", adapted.session, {{"step", 0}});
  const auto json = io::read_json(scratch / "a" / "adapter_config.json");
  CHECK(json.at("fan_in_fan_out") == true);  // as PEFT sets it for Conv1D
  CHECK(train::read_adapter_config(scratch / "a").targets == std::vector<std::string>{"c_attn"});
}

TEST_CASE("GPT-2: a continued pass leaves the logits of a whole one") {
  const std::vector<std::int32_t> tokens = batch(1, 64, 64, false).tokens;
  const auto make = [](index_t cache) {
    return std::make_unique<gpt2_case>(preset("bf16"), 64, 1, [&](train::session_options& o) {
      o.model.batch = 1;
      o.model.training = false;
      o.model.cache = cache;
    });
  };
  const auto whole = make(0), parts = make(64);
  const index_t rows = parts->session.model().cache_rows();
  REQUIRE(rows > 0);
  parts->session.resize(1, rows);
  for (index_t first = 0; first < 64; first += rows) {
    const std::vector<std::int32_t> own(tokens.begin() + first, tokens.begin() + first + rows);
    CHECK(same_bytes(parts->session.logits(parts->inputs(0), own, rows - 1, first),
                     whole->session.logits(whole->inputs(0), tokens, first + rows - 1, 0)));
  }
}

std::vector<float> weights_of(const fs::path& directory) {
  const auto ops = nn::make_cpu_backend(1);
  train::session s(*ops, small_shape(), {}, {preset("fp32")});
  train::read_weights({directory}, s);
  std::vector<float> all;
  for (std::size_t i = 0; i < s.model().parameters().all().size(); ++i) {
    const std::vector<float> own = s.model().values(s.queue(), i);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

/// A tensor of a file.
struct tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// Writes a directory again with other tensors.
void rewrite(const fs::path& from, const fs::path& to, const std::function<void(std::vector<tensor>&)>& change) {
  const auto model = io::safetensors_file::open(from / "model.safetensors");
  std::vector<tensor> all;
  for (const io::tensor_info& info : model.tensors()) {
    all.push_back({info.name, info.shape, std::vector<float>(model.bytes(info).size() / 4)});
    model.read_floats(info, 0, all.back().values);
  }
  change(all);
  io::safetensors_writer out;
  for (const tensor& t : all) out.add(t.name, "F32", t.shape, std::as_bytes(std::span(t.values)));
  fs::create_directories(to);
  out.write(to / "model.safetensors");
  fs::copy_file(from / "config.json", to / "config.json", fs::copy_options::overwrite_existing);
}

/// As base models have them.
void remove_prefix(std::vector<tensor>& all) {
  for (tensor& t : all) t.name.erase(0, 12);
}

TEST_CASE("GPT-2: files of Hugging Face and of llm.c hold the model") {
  const io::testing::scratch_directory scratch;
  gpt2_case c(preset("fp32"));
  train::write_checkpoint(scratch / "own", c.session, {{"step", 0}});
  const std::vector<float> want = c.all(true), read = weights_of(scratch / "own");
  CHECK(same_bytes(read, weights_of(scratch / "own")));
  // Conv1D: transformers has [in, out].
  const auto file = io::safetensors_file::open(scratch / "own" / "model.safetensors");
  const io::tensor_info* qkv = file.find("transformer.h.1.attn.c_attn.weight");
  REQUIRE(qkv != nullptr);
  CHECK(qkv->shape == std::vector<std::int64_t>{64, 192});
  std::vector<float> values(64 * 192);
  file.read_floats(*qkv, 0, values);
  const auto& list = c.session.model().parameters();
  const std::vector<float> own = c.session.model().values(c.session.queue(), list.find(qkv->name));
  for (std::size_t in : {0u, 5u, 63u}) {
    for (std::size_t out : {0u, 100u, 191u}) CHECK(values[in * 192 + out] == own[out * 64 + in]);
  }
  // A base model lacks the prefix.
  rewrite(scratch / "own", scratch / "base", remove_prefix);
  CHECK(same_bytes(weights_of(scratch / "base"), read));
  for (const char* dtype : {"F32", "BF16"}) {
    CAPTURE(dtype);
    gpt2::write_llmc(scratch / "model.bin", {scratch / "own"}, dtype);
    CHECK(fs::file_size(scratch / "model.bin") ==
          1024 + (dtype == std::string("F32") ? 4u : 2u) * (read.size() + (128 - 64) * 64));
    gpt2::read_llmc(scratch / "model.bin", scratch / dtype);
    CHECK(io::safetensors_file::open(scratch / dtype / "model.safetensors").metadata().at("format") == "pt");
    if (dtype == std::string("F32")) {
      CHECK(same_bytes(weights_of(scratch / dtype), read));
    } else {
      std::vector<float> rounded(read);
      for (float& x : rounded) x = static_cast<float>(bf16(x));
      CHECK(same_bytes(weights_of(scratch / dtype), rounded));
    }
  }
  const std::string bytes = io::testing::get(scratch / "model.bin");
  const auto refused = [&](std::string changed) {
    io::testing::put(scratch / "wrong.bin", changed);
    return message_of([&] { gpt2::llmc_file(scratch / "wrong.bin"); });
  };
  CHECK(refused(bytes.substr(0, 1000)).find("too few for the header") != std::string::npos);
  CHECK(refused(bytes.substr(0, bytes.size() - 2)).find("the header's tensors have") != std::string::npos);
  std::string other = bytes;
  other[4] = 4;
  CHECK(refused(other).find("version 4 is neither 3 (FP32) nor 5 (BF16)") != std::string::npos);
  other[0] = 0;
  CHECK(refused(other).find("not a model of llm.c") != std::string::npos);
}

TEST_CASE("GPT-2: a model file of llm.c gets the model of config.json") {
  const io::testing::scratch_directory scratch;
  train::write_checkpoint(scratch / "own", gpt2_case(preset("fp32")).session, {{"step", 0}});
  const auto refused = [&](const std::function<void(std::vector<tensor>&)>& change, const char* dtype = "F32") {
    rewrite(scratch / "own", scratch / "b", change);
    const std::string said = message_of([&] { gpt2::write_llmc(scratch / "b.bin", {scratch / "b"}, dtype); });
    CHECK(!fs::exists(scratch / "b.bin"));
    return said.substr(said.find("tensor '"));
  };
  const auto set = [](float x) {
    return [x](std::vector<tensor>& all) {
      for (tensor& t : all) {
        if (t.name == "transformer.h.1.attn.c_attn.weight") t.values[2 * 192 + 5] = x;
      }
    };
  };
  const std::string at = "tensor 'transformer.h.1.attn.c_attn.weight': element [2, 5]";
  CHECK(refused(set(std::nanf(""))) == at + " is NaN");
  CHECK(refused(set(3.4e38f), "BF16") == at + ": 3.4e+38 is beyond what BF16 holds (--dtype F32 would do)");
  CHECK(refused([](auto& all) {
          remove_prefix(all);
          all.push_back(all[0]);
          all.back().name = "lm_head.weight";
          all.back().values[3] += 1;
        }).starts_with("tensor 'lm_head.weight': differs from 'transformer.wte.weight'"));
  CHECK(refused([](auto& all) {
          all.push_back(all[0]);
          all.back().name.erase(0, 12);
        }).find("': is another name of 'transformer.") != std::string::npos);
  CHECK(refused([](auto& all) {
          all.push_back({"transformer.h.2.ln_1.bias", {1}, {0}});
        }).find("no such parameter") != std::string::npos);
  auto json = io::read_json(scratch / "own" / "config.json");
  json["layer_norm_epsilon"] = 1e-6;
  io::write_json(scratch / "own" / "config.json", json);
  CHECK(message_of([&] {
          gpt2::write_llmc(scratch / "b.bin", {scratch / "own"}, "F32");
        }).ends_with("layer_norm_epsilon: llm.c's is 1e-5"));
  // A matrix of one row is none of the vectors.
  gpt2::model_config thin = small_shape();
  thin.n_embd = thin.n_head = 1;
  train::write_checkpoint(scratch / "thin", session_case(thin, preset("fp32"), 2, 64).session, {{"step", 0}});
  gpt2::write_llmc(scratch / "thin.bin", {scratch / "thin"}, "F32");
  gpt2::read_llmc(scratch / "thin.bin", scratch / "again");
  train::check_weights({scratch / "again"}, thin);
}

TEST_CASE("GPT-2: config.json of Hugging Face") {
  const auto json = gpt2::model_config_json(small_shape());
  CHECK(json.at("model_type") == "gpt2");
  const gpt2::model_config again = gpt2::read_model_config(json, "f");
  CHECK(gpt2::model_config_json(again) == json);
  // As openai-community/gpt2 has it.
  const auto published = nlohmann::ordered_json::parse(R"({"activation_function": "gelu_new",
      "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
      "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
      "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
      "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
      "summary_type": "cls_index", "summary_use_proj": true,
      "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
  CHECK(gpt2::read_model_config(published, "f").vocab_size == 50257);
  const auto refused = [&](const char* key, const nlohmann::ordered_json& value, std::int64_t width = 64) {
    auto changed = json;
    changed["n_embd"] = width;
    changed[key] = value;
    return message_of([&] { gpt2::read_model_config(changed, "f"); });
  };
  CHECK(refused("activation_function", "gelu") == "f: activation_function: only \"gelu_new\" is supported");
  CHECK(refused("n_inner", 128) == "f: n_inner: only 4 n_embd is supported");
  CHECK(refused("n_inner", 0, std::int64_t{1} << 62) == "f: n_inner: only 4 n_embd is supported");
  CHECK(refused("n_head", 3) == "f: n_head: 3 does not divide n_embd 64");
  CHECK(refused("scale_attn_by_inverse_layer_idx", true) ==
        "f: scale_attn_by_inverse_layer_idx: only false is supported");
}

}  // namespace gpt2_test
