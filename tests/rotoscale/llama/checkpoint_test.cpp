// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: round trips, equal bytes for equal states, and refusals by name of truncated, foreign or mismatched
// files.
#include "rotoscale/train/checkpoint.hpp"

#include <doctest/doctest.h>

#include "rotoscale/io/scratch.hpp"
#include "rotoscale/models/llama/model.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/train/merge.hpp"

namespace checkpoint_test {

using namespace rotoscale;
using namespace rotoscale::io::testing;
namespace fs = std::filesystem;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

constexpr const char* no_error = "(no error)";  // message_of

llama::model_config small_config(bool tied = false) {
  llama::model_config c;
  c.vocab_size = 16;
  c.hidden_size = 8;
  c.intermediate_size = 12;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.tie_word_embeddings = tied;
  return c;
}

llama::session_options averaging() {
  llama::session_options o;
  o.optimizer.average_decay = 0.5f;
  return o;
}

/// A model with nonzero moments, a moving average and FP8 state.
struct model_case {
  std::unique_ptr<nn::backend> ops = nn::make_cpu_backend(1);
  llama::session session;

  explicit model_case(std::uint64_t seed, const llama::model_config& c = small_config())
      : session(*ops, c, averaging(), {nn::presets::fp8_delayed("fp8", {3, nn::amax_algorithm::max, 0})}) {
    session.initialize(seed);
    const llama::model& m = session.model();
    for (std::size_t p = 0; p < m.parameters().all().size(); ++p) {
      std::vector<float> first(static_cast<std::size_t>(m.parameters()[p].size())), second = first;
      for (std::size_t i = 0; i < first.size(); ++i) {
        first[i] = static_cast<float>(i) * 0.5f + static_cast<float>(seed);
        second[i] = static_cast<float>(i * i) + 0.25f;
      }
      m.weights().set_owned_values(session.queue(), &nn::parameter_arena::m, p, first, 0);
      m.weights().set_owned_values(session.queue(), &nn::parameter_arena::v, p, second, 0);
      m.weights().set_owned_values(session.queue(), &nn::parameter_arena::average, p, second, 0);
    }
    std::vector<float> amax(static_cast<std::size_t>(m.scales().state().count));
    for (std::size_t i = 0; i < amax.size(); ++i) amax[i] = static_cast<float>(i + 1 + seed);
    ops->upload(session.queue(), m.scales().state().amax, amax.data(), amax.size() * sizeof(float));
    m.scales().update(*ops, session.queue());
  }
  std::vector<float> everything() const {
    std::vector<float> all;
    const llama::model& m = session.model();
    const auto add = [&](const std::vector<float>& host) { all.insert(all.end(), host.begin(), host.end()); };
    for (std::size_t p = 0; p < m.parameters().all().size(); ++p) {
      add(m.values(session.queue(), p));
      for (const float* arena : {m.arena().m, m.arena().v, m.arena().average}) {
        add(m.arena_values(session.queue(), arena, p));
      }
    }
    for (const auto& [name, memory, count] : rotoscale::train::detail::scaling_buffers(m.scales())) {
      std::vector<float> host(count);
      ops->download(session.queue(), host.data(), memory, count * sizeof(float));
      add(host);
    }
    return all;
  }
  void write(const fs::path& to) const { llama::write_checkpoint(to, session, {{"step", 3}}); }
  std::string read_message(const fs::path& from) {
    return message_of([&] {
      llama::read_checkpoint(from, session, true);
      llama::read_scales(from, session);
    });
  }
};

bool holds(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST_CASE("what is written is read, tied and untied, and equal states give equal bytes") {
  for (const bool tied : {false, true}) {
    const scratch_directory scratch;
    const model_case a(1, small_config(tied));
    model_case b(2, small_config(tied));
    REQUIRE(a.everything() != b.everything());
    a.write(scratch / "a");
    CHECK(b.read_message(scratch / "a") == "(no error)");
    CHECK(a.everything() == b.everything());
    b.write(scratch / "b");
    CHECK(scratch.entries() == 2);
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(scratch / "a")) {
      ++files;
      CHECK(get(entry.path()) == get(scratch / "b" / entry.path().filename()));
    }
    CHECK(files == 4);
    CHECK(io::read_json(scratch / "a" / "trainer_state.json") == nlohmann::ordered_json{{"step", 3}});
  }
}

TEST_CASE("tensors have Hugging Face's names and shapes") {
  const scratch_directory scratch;
  model_case(1).write(scratch / "a");
  const auto file = io::safetensors_file::open(scratch / "a" / "model.safetensors");
  using shape = std::vector<std::int64_t>;
  const std::pair<const char*, shape> expected[] = {{"model.embed_tokens.weight", {16, 8}},
                                                    {"model.layers.1.input_layernorm.weight", {8}},
                                                    {"model.layers.1.self_attn.q_proj.weight", {8, 8}},
                                                    {"model.layers.1.self_attn.k_proj.weight", {4, 8}},
                                                    {"model.layers.1.self_attn.v_proj.weight", {4, 8}},
                                                    {"model.layers.1.self_attn.o_proj.weight", {8, 8}},
                                                    {"model.layers.1.post_attention_layernorm.weight", {8}},
                                                    {"model.layers.1.mlp.gate_proj.weight", {12, 8}},
                                                    {"model.layers.1.mlp.up_proj.weight", {12, 8}},
                                                    {"model.layers.1.mlp.down_proj.weight", {8, 12}},
                                                    {"model.norm.weight", {8}},
                                                    {"lm_head.weight", {16, 8}}};
  for (const auto& e : expected) {
    const auto [name, extents] = e;
    CAPTURE(e.first);
    const auto* info = file.find(name);
    REQUIRE(info != nullptr);
    CHECK(info->shape == extents);
    CHECK(info->dtype == "F32");
  }
  CHECK(file.tensors().size() == 3 + 2 * 9);
  CHECK(file.metadata().at("format") == "pt");
}

TEST_CASE("a model of another shape, a missing tensor, another dtype") {
  const scratch_directory scratch;
  model_case a(1);
  a.write(scratch / "a");
  const auto refused = [&](const std::string& message, const std::string& tensor, const std::string& part) {
    CHECK(holds(message, "model.safetensors"));
    CHECK(holds(message, "'" + tensor + "'"));
    CHECK(holds(message, part));
  };
  auto c = small_config();
  c.intermediate_size = 16;
  refused(model_case(1, c).read_message(scratch / "a"), "model.layers.0.mlp.gate_proj.weight", "shape");
  c = small_config();
  c.num_hidden_layers = 3;
  refused(model_case(1, c).read_message(scratch / "a"), "model.layers.2.input_layernorm.weight", "missing");
  model_case(1, small_config(true)).write(scratch / "tied");
  refused(a.read_message(scratch / "tied"), "lm_head.weight", "missing");

  const std::string path = (scratch / "a" / "model.safetensors").string(), bytes = get(path);
  std::string other = bytes;
  other.replace(other.find("\"F32\""), 5, "\"I32\"");
  put(path, other);
  refused(a.read_message(scratch / "a"), "model.embed_tokens.weight", "expected F32, BF16 or F16, found I32");
}

TEST_CASE("a tied embedding beside a head: equal is no contradiction, another one is refused") {
  const scratch_directory scratch;
  const llama::model_config tied = small_config(true);
  const auto write = [&](float head) {
    model_case a(1, small_config());
    io::safetensors_writer out;
    const llama::parameter_list list(tied);
    for (const llama::parameter& p : list.all()) {
      rotoscale::train::detail::add_slices(out, p, "", [&p](index_t, index_t rows) {
        return std::vector<float>(static_cast<std::size_t>(rows * p.cols), 1.0f);
      });
    }
    const std::vector<float> values(16 * 8, head);
    out.add("lm_head.weight", "F32", {16, 8}, std::as_bytes(std::span<const float>(values)));
    out.write(scratch / "model.safetensors");
    return message_of([&] { llama::check_weights({scratch.path()}, tied); });
  };
  CHECK(write(1.0f) == no_error);
  CHECK(holds(write(2.0f), "tensor 'lm_head.weight': differs from 'model.embed_tokens.weight'"));
}

TEST_CASE("numbers that are not finite are refused by file, tensor and place; moments may be infinite") {
  const scratch_directory scratch;
  model_case a(1);
  a.write(scratch / "a");
  const auto with = [&](const char* file, const std::string& tensor, index_t element, float value, const char* type) {
    const auto from = io::safetensors_file::open(scratch / "a" / file);
    io::safetensors_writer to;
    std::vector<std::vector<std::uint16_t>> kept;  // BF16: the upper halves
    kept.reserve(from.tensors().size());
    for (const io::tensor_info& info : from.tensors()) {
      std::vector<float> values(from.bytes(info).size() / 4);
      from.read_floats(info, 0, values);
      if (info.name == tensor) values[static_cast<std::size_t>(element)] = value;
      if (type == std::string("F32")) {
        to.add(info.name, type, info.shape, std::as_bytes(std::span<const float>(values)));
      } else {
        kept.emplace_back();
        for (const float x : values) kept.back().push_back(static_cast<std::uint16_t>(fp32_bits(x) >> 16));
        to.add(info.name, type, info.shape, std::as_bytes(std::span<const std::uint16_t>(kept.back())));
      }
    }
    fs::remove_all(scratch / "b");
    fs::copy(scratch / "a", scratch / "b");
    to.write(scratch / "b" / file);
    return message_of([&] { llama::read_checkpoint(scratch / "b", a.session, true); });
  };
  const float inf = std::numeric_limits<float>::infinity();
  const std::string up = "model.layers.1.mlp.up_proj.weight", file = (scratch / "b" / "model.safetensors").string();
  CHECK(with("model.safetensors", up, 27, std::nanf(""), "F32") ==
        file + ": tensor '" + up + "': element [3, 3] is NaN");
  CHECK(with("model.safetensors", up, 95, -inf, "BF16") == file + ": tensor '" + up + "': element [11, 7] is -Inf");
  CHECK(with("model.safetensors", "model.norm.weight", 7, inf, "F32") ==
        file + ": tensor 'model.norm.weight': element [7] is Inf");
  CHECK(with("model.safetensors", up, 0, std::numeric_limits<float>::max(), "F32") == "(no error)");
  CHECK(with("optimizer.safetensors", "exp_avg_sq." + up, 0, inf, "F32") == "(no error)");
}

TEST_CASE("scales of another history are refused") {
  const scratch_directory scratch;
  model_case a(1);
  a.write(scratch / "a");
  const auto longer = nn::presets::fp8_delayed("fp8", {4, nn::amax_algorithm::max, 0});
  const llama::session other(*a.ops, small_config(), {}, {longer});
  CHECK(holds(message_of([&] { llama::read_scales(scratch / "a", other); }), "fp8.amax_history"));
  io::safetensors_writer none;
  none.write(scratch / "a" / "optimizer.safetensors");
  CHECK(holds(message_of([&] { llama::read_scales(scratch / "a", other); }), "'fp8.scale' is missing"));
}

TEST_CASE("a checkpoint that cannot be written leaves nothing") {
  const scratch_directory scratch;
  put(scratch / "file", "in the way");
  CHECK(holds(message_of([&] { model_case(1).write(scratch / "file" / "a"); }), "file/a"));
  CHECK(holds(message_of([&] { model_case(1).write(scratch / "file"); }), "not a directory"));
  CHECK(scratch.entries() == 1);
  CHECK(get(scratch / "file") == "in the way");
}

TEST_CASE("the newest checkpoint of a run, a checkpoint itself, or neither") {
  const scratch_directory scratch;
  put(scratch / "run" / "checkpoints/step-000000002/model.safetensors", "");
  put(scratch / "run" / "checkpoints/step-000000010/model.safetensors", "");
  put(scratch / "run" / "checkpoints/.step-000000011.tmp-1/model.safetensors", "");
  CHECK(llama::find_checkpoint(scratch / "run").filename() == "step-000000010");
  const fs::path own = scratch / "run" / "checkpoints/step-000000002";
  CHECK(llama::find_checkpoint(own) == own);
  put(scratch / "hollow" / "x", "");
  CHECK(holds(message_of([&] { llama::find_checkpoint(scratch / "hollow"); }), "neither"));
  CHECK(holds(message_of([&] { llama::find_checkpoint(scratch / "nowhere"); }), "no such checkpoint"));
  for (const auto& [name, bytes, said] : {std::tuple{"m.gguf", "GGUF\3", "m.gguf: is a GGUF file"},
                                          {"m.bin", "PK\3\4", "m.bin: is a zip archive"},
                                          {"m.pt", "\x80\2", "m.pt: is a pickle of PyTorch"},
                                          {"m", "version https://git-lfs", "m: is a Git LFS pointer"},
                                          {"m.html", "<!DOCTYPE html>", "m.html: is a web page"},
                                          {"m.txt", "text", "m.txt: not a directory"}}) {
    put(scratch / "files" / name, bytes);
    CHECK(holds(message_of([&] { llama::find_weights(scratch / "files" / name); }), said));
  }
  CHECK(holds(message_of([&] { llama::find_weights(scratch / "files"); }), "m.gguf: is a GGUF file"));
  for (const std::string name : {"pytorch_model.bin", "adapter_model.bin"}) {
    put(scratch / name / name, "");
    CHECK(holds(message_of([&] { llama::find_checkpoint(scratch / name); }), "/" + name + ": is PyTorch's"));
  }
}

/// Writes an adapter of eighths.
void write_adapter(const fs::path& directory, const llama::lora_config& lora) {
  const llama::parameter_list list(small_config(), nullptr, lora);
  io::safetensors_writer tensors;
  float next = 0.0f;
  for (std::size_t i = list.base_count(); i < list.all().size(); ++i) {
    for (const llama::parameter::slice& s : list[i].slices) {
      std::vector<float> values(static_cast<std::size_t>(s.rows * list[i].cols));
      for (float& x : values) x = (next += 0.125f);
      tensors.add(s.name, "F32", {s.rows, list[i].cols}, std::as_bytes(std::span<const float>(values)));
    }
  }
  fs::create_directory(directory);
  tensors.write(directory / "adapter_model.safetensors");
  io::write_json(directory / "adapter_config.json", llama::adapter_config_json(lora, ""));
}

/// The adapter merged with a base: every row is w + alpha / rank B A. Returns how many weights changed.
std::size_t check_merged(const llama::lora_config& lora) {
  const scratch_directory scratch;
  model_case(1).write(scratch / "base");
  write_adapter(scratch / "adapter", lora);
  const llama::parameter_list list(small_config(), nullptr, lora);
  const llama::merged_weights merged(small_config(), llama::find_weights(scratch / "base"), scratch / "adapter");
  const auto base = io::safetensors_shards::open(scratch / "base");
  const auto adapters = io::safetensors_shards::open(scratch / "adapter", "adapter_model");
  const auto whole_of = [](const io::safetensors_shards& from, const llama::parameter& p) {
    return rotoscale::train::detail::rows_of(from, p, 0, p.rows);
  };
  std::size_t changed = 0;
  for (std::size_t i = 0; i < list.base_count(); ++i) {
    const llama::parameter& p = list[i];
    std::vector<float> expected = whole_of(base, p);
    const std::vector<float> before = expected;
    for (const llama::adapter_parameters& own : list.adapters()) {
      if (own.base != i) continue;
      const std::vector<float> a = whole_of(adapters, list[own.a]), b = whole_of(adapters, list[own.b]);
      const index_t rank = list[own.a].rows;
      for (index_t r = 0; r < list[own.b].rows; ++r) {
        for (index_t c = 0; c < p.cols; ++c) {
          double sum = 0;  // exact: eighths
          for (index_t n = 0; n < rank; ++n)
            sum += double(b[std::size_t(rank * r + n)]) * double(a[std::size_t(n * p.cols + c)]);
          float& w = expected[static_cast<std::size_t>((list[own.b].base_row + r) * p.cols + c)];
          w = static_cast<float>(std::fma(lora.alpha / double(rank), sum, double(w)));
        }
      }
    }
    changed += expected != before;
    CHECK(merged.values(i, 0, p.rows) == expected);
    for (const index_t step : {1, 3}) {
      std::vector<float> parts;
      for (index_t r = 0; r < p.rows; r += step) {
        const auto part = merged.values(i, r, std::min<index_t>(step, p.rows - r));
        parts.insert(parts.end(), part.begin(), part.end());
      }
      CHECK(parts == expected);
    }
  }
  return changed;
}

llama::lora_config adapter_of_eighths() {
  llama::lora_config lora;
  lora.rank = 2;
  lora.alpha = 3.0;
  lora.targets = {"q_proj", "v_proj", "down_proj"};
  return lora;
}

TEST_CASE("merged weights: any rows are those of the whole, and that is w + alpha / rank B A") {
  // Two layers of query, key and value, and of down.
  CHECK(check_merged(adapter_of_eighths()) == 4);
}

TEST_CASE("PEFT's adapter_config.json is read, or refused by key") {
  const llama::lora_config lora = adapter_of_eighths();
  const scratch_directory scratch;
  write_adapter(scratch / "adapter", lora);
  auto json = llama::adapter_config_json(lora, "");
  CHECK(llama::adapter_config_json(llama::read_adapter_config(scratch / "adapter"), "") == json);
  const auto tensors = io::safetensors_shards::open(scratch / "adapter", "adapter_model");
  json["use_rslora"] = true;
  CHECK(llama::read_adapter_config(json, tensors, "f").alpha == 3.0 * std::sqrt(2.0));
  const auto refused = [&](const char* key, const char* value) {
    nlohmann::ordered_json changed = json;
    changed[key] = nlohmann::ordered_json::parse(value);
    return message_of([&] { llama::read_adapter_config(changed, tensors, "f"); });
  };
  CHECK(refused("rank_pattern", R"({"q_proj": 3})") == "f: rank_pattern: is not supported, found {\"q_proj\":3}");
  CHECK(refused("fan_in_fan_out", "true") == "f: fan_in_fan_out: is not supported, found true");
  CHECK(refused("target_modules", R"(["q_proj", "v_proj", "down_proj", "o_proj"])") ==
        "f: target_modules: adapter_model.safetensors has no tensor of 'o_proj'");
  json["target_modules"] = "all-linear";
  const float one = 1;
  io::safetensors_writer head;
  head.add("base_model.model.lm_head.lora_A.weight", "F32", {1, 1}, std::as_bytes(std::span(&one, 1)));
  head.write(scratch / "head.safetensors");
  CHECK(holds(
      message_of([&] { llama::read_adapter_config(json, io::safetensors_shards::open(scratch.path(), "head"), "f"); }),
      "adapters of 'lm_head' are not supported"));
}

TEST_CASE("a merged model that its dtype cannot hold is not written") {
  const scratch_directory scratch;
  model_case(1).write(scratch / "base");
  llama::lora_config lora;
  lora.rank = 1;
  lora.alpha = 1.0;
  lora.targets = {"v_proj"};
  const llama::parameter_list list(small_config(), nullptr, lora);
  const auto adapters = [&](float a) {  // adds a to element [1, 0] of each layer
    io::safetensors_writer tensors;
    for (std::size_t i = list.base_count(); i < list.all().size(); ++i) {
      const llama::parameter::slice& s = list[i].slices.front();
      const bool is_a = s.name.find("lora_A") != s.name.npos;
      std::vector<float> values(static_cast<std::size_t>(s.rows * list[i].cols));
      values[is_a ? 0 : 1] = is_a ? a : 1.0f;
      tensors.add(s.name, "F32", {s.rows, list[i].cols}, std::as_bytes(std::span<const float>(values)));
    }
    fs::create_directory(scratch / "adapter");
    tensors.write(scratch / "adapter" / "adapter_model.safetensors");
    io::write_json(scratch / "adapter" / "adapter_config.json", llama::adapter_config_json(lora, ""));
  };
  const auto written = [&](const char* dtype) {
    return message_of([&] {
      const llama::merged_weights merged(small_config(), llama::find_weights(scratch / "base"), scratch / "adapter");
      llama::write_merged(merged, scratch / "merged", dtype);
    });
  };
  for (const auto& [a, refused] : {std::pair{65504.0f, ""}, {70000.0f, "F16"}, {3.4e38f, "BF16"}}) {
    adapters(a);
    for (const std::string dtype : {"F16", "BF16", "F32"}) {
      const std::string message = written(dtype.c_str());
      const bool fits =
          dtype == "F32" || std::string(refused).empty() || (std::string(refused) == "F16" && dtype == "BF16");
      CHECK((message == no_error) == fits);
      CHECK(fs::exists(scratch / "merged") == fits);
      if (fits) {
        const auto file = io::safetensors_shards::open(scratch / "merged");
        const auto found = file.find("model.layers.1.self_attn.v_proj.weight");
        CHECK(found.info->dtype == dtype);
        float stored[9];
        found.file->read_floats(*found.info, 0, stored);
        CHECK(stored[8] == doctest::Approx(static_cast<double>(a)).epsilon(0.004));
      } else {
        CHECK(holds(message, (scratch / "merged").string() +
                                 ": tensor 'model.layers.0.self_attn.v_proj.weight': element [1, 0]: "));
      }
      fs::remove_all(scratch / "merged");
    }
    CHECK(scratch.entries() == 2);  // base and adapter: no temporary
  }
}

}  // namespace checkpoint_test
