// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target over PEFT's files, adapter_config.json and adapter_model.safetensors: any bytes are refused with
// io::error, or give an adapter of a small Llama whose every tensor is then read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "byte_choices.hpp"
#include "rotoscale/llama/adapter_config.hpp"
#include "rotoscale/llama/parameter_files.hpp"
#include "target.hpp"

namespace peft_fuzz {

namespace {

using namespace rotoscale;
using fuzz::byte_choices;
using fuzz::require;

llama::model_config small_model() {
  llama::model_config c;
  c.vocab_size = 4;
  c.hidden_size = 4;
  c.intermediate_size = 6;
  c.num_hidden_layers = 1;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  return c;
}

/// A configuration of the input's choice: mostly one that is taken.
nlohmann::ordered_json made_config(byte_choices& in, int rank) {
  nlohmann::ordered_json json = {{"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", in.below(9)}};
  static const std::pair<const char*, nlohmann::ordered_json> more[] = {
      {"lora_dropout", 0.5},
      {"use_rslora", true},
      {"use_rslora", 1},
      {"bias", "none"},
      {"bias", "all"},
      {"init_lora_weights", "gaussian"},
      {"init_lora_weights", "pissa"},
      {"alpha_pattern", nlohmann::ordered_json::object()},
      {"rank_pattern", {{"q_proj", 3}}},
      {"target_modules", "all-linear"},
      {"r", 65536},
      {"r", -1},
      {"lora_alpha", 1e300},
      {"modules_to_save", nullptr},
      {"fan_in_fan_out", true},
      {"task_type", 7}};
  for (int count = in.below(4); count > 0; --count) {
    const auto& [key, value] = in.one_of(more);
    json[key] = value;
  }
  return json;
}

/// Adapters of some targets, with now and then another name, extent or dtype.
std::string made_tensors(byte_choices& in, const llama::model_config& model, int rank) {
  io::safetensors_writer out;
  llama::lora_config lora;
  lora.rank = rank;
  lora.targets.clear();
  const int targets = in.byte();
  for (int i = 0; i < 7; ++i) {
    if ((targets >> i & 1) != 0) lora.targets.emplace_back(llama::lora_targets[i].name);
  }
  if (lora.targets.empty()) return out.bytes("made");
  const llama::parameter_list list(model, nullptr, lora);
  const auto values = in.rest();
  for (std::size_t i = list.base_count(); i < list.all().size(); ++i) {
    for (const llama::parameter::slice& s : list[i].slices) {
      std::vector<std::int64_t> shape{s.rows, list[i].cols};
      const int fault = in.below(32);
      if (fault == 1) continue;
      if (fault == 2) ++shape[0];
      if (fault == 3) shape.push_back(1);
      const char* const type = fault == 4 ? "F16" : fault == 5 ? "BF16" : fault == 6 ? "I32" : "F32";
      std::vector<std::byte> bytes(static_cast<std::size_t>(io::detail::size_of_tensor(type, shape).bytes));
      for (std::size_t b = 0; b < bytes.size() && !values.empty(); ++b) bytes[b] = values[b % values.size()];
      out.add(fault == 7 ? s.name + "x" : s.name, type, shape, bytes);
    }
  }
  return out.bytes("made");
}

void check(nlohmann::ordered_json json, const io::safetensors_shards& tensors, std::size_t file_bytes) {
  const llama::model_config model = small_model();
  const llama::lora_config lora = llama::read_adapter_config(std::move(json), tensors, "adapter_config.json");
  require(!find_fault(lora).has_value());
  const llama::parameter_list list(model, nullptr, lora);
  const auto adapters = std::span(list.all()).subspan(list.base_count());
  llama::detail::check_tensors(tensors, adapters, model);
  std::size_t read = 0, held = 0;
  for (const llama::parameter& p : adapters) {  // the shapes have been checked: every number is there
    llama::detail::read_rows(tensors, p, "", [&](index_t first, std::span<const float> values) {
      require(first >= 0 && first + static_cast<index_t>(values.size()) <= p.size());
      read += values.size();
    });
    held += static_cast<std::size_t>(p.size());
  }
  require(read == held && held * 2 <= file_bytes);
  // What is written of it is read alike.
  const auto written = llama::adapter_config_json(lora, "base");
  const llama::lora_config again = llama::read_adapter_config(written, tensors, "again");
  require(again.rank == lora.rank && again.alpha == lora.alpha && again.dropout == lora.dropout &&
          again.targets == lora.targets);
}

/// The first byte says which of the two files are made of the choices that follow; what is not is the input's, the
/// configuration up to a zero byte.
void one_input(const std::uint8_t* data, std::size_t size) {
  byte_choices in(data, size);
  const int kind = in.below(4), rank = 1 + in.below(3);
  try {
    nlohmann::ordered_json json;
    if ((kind & 1) != 0) {
      json = made_config(in, rank);
    } else {
      json = io::parse_json(in.text_to_zero(), "adapter_config.json");
    }
    std::string bytes = (kind & 2) != 0 ? made_tensors(in, small_model(), rank) : std::string(in.rest_as_text());
    const std::size_t file_bytes = bytes.size();
    const auto file = io::safetensors_file::from_bytes("adapter_model.safetensors", std::move(bytes));
    check(std::move(json), io::safetensors_shards::of(file), file_bytes);
  } catch (const io::error&) {
  }
}

const rotoscale::fuzz::target here("peft", one_input);

}  // namespace

}  // namespace peft_fuzz
