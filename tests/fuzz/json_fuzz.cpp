// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target for JSON: documents, config.json and lines of records. Any bytes are refused with io::error, or accepted
// and then written and read again with the same value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "rotoscale/io/json.hpp"
#include "rotoscale/models/llama/config_json.hpp"
#include "target.hpp"

namespace json_fuzz {

using namespace rotoscale;
using fuzz::require;

/// Numbers beyond FP64 become Inf when read and null when written.
bool is_finite(const nlohmann::ordered_json& value) {
  if (value.is_number_float()) return std::isfinite(value.get<double>());
  if (!value.is_structured()) return true;
  return std::all_of(value.begin(), value.end(), is_finite);
}

void check_document(const nlohmann::ordered_json& value) {
  if (!is_finite(value)) return;
  const std::string text = io::json_text(value, "again");
  require(io::parse_json(text, "again") == value);
}

void check_config(const nlohmann::ordered_json& value) {
  std::optional<llama::model_config> config;
  try {
    config = llama::read_model_config(value, "config.json");
  } catch (const io::error&) {
    return;
  }
  require(!find_fault(*config).has_value());
  const auto written = llama::model_config_json(*config);
  require(llama::model_config_json(llama::read_model_config(written, "again")) == written);
}

void one_input(const std::uint8_t* data, std::size_t size) {
  std::optional<nlohmann::ordered_json> value;
  try {
    value = io::parse_json({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const io::error&) {
    return;
  }
  check_document(*value);
  check_config(*value);
}

const rotoscale::fuzz::target here("json", one_input);

}  // namespace json_fuzz
