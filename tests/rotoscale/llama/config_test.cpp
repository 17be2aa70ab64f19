// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Model shapes: their JSON, and every fault with the name of its field.
#include "rotoscale/models/llama/config.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "rotoscale/io/json.hpp"

namespace config_test {

using namespace rotoscale;
namespace llama = rotoscale::llama;

template <class Change>
std::string fault_of(Change change) {
  llama::model_config c;
  c.rope_scaling = nn::rope_scaling{};
  change(c);
  return find_fault(c).value_or("none");
}

TEST_CASE("sizes that follow from others") {
  llama::model_config c;
  CHECK(c.head_size() == 32);
  c.head_dim = 48;  // heads * head_dim may differ from the hidden size
  CHECK(c.query_size() == 192);
  CHECK(c.key_value_size() == 96);
}

TEST_CASE("JSON holds every field") {
  llama::model_config c{512, 64, 96, 3, 8, 4, 24, 128, 1e-6, 5e5, nn::rope_scaling{"llama3", 16, 2, 8, 64}, true, 0.1};
  const auto json = io::to_json(c);
  CHECK(json.size() == 13);
  CHECK(json["rope_scaling"]["factor"] == 16);
  llama::model_config read;
  io::from_json(json, read, "config");
  CHECK(io::to_json(read) == json);
  CHECK(io::to_json(llama::model_config{})["rope_scaling"].is_null());
}

TEST_CASE("faults name their field") {
  using config = llama::model_config;
  CHECK(fault_of([](config&) {}) == "none");
  CHECK(fault_of([](config& c) { c.vocab_size = 0; }) == "vocab_size: must be positive, is 0");
  CHECK(fault_of([](config& c) { c.num_key_value_heads = 3; }).starts_with("num_key_value_heads: 3 does not divide"));
  CHECK(fault_of([](config& c) { c.head_dim = 3; }).starts_with("head_dim: must be even"));
  CHECK(fault_of([](config& c) { c.hidden_size = 129; }).starts_with("num_attention_heads: 4 does not divide"));
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    CHECK(fault_of([&](config& c) { c.rms_norm_eps = bad; }).starts_with("rms_norm_eps"));
    CHECK(fault_of([&](config& c) { c.rope_scaling->factor = bad; }).starts_with("rope_scaling.factor"));
  }
  CHECK(fault_of([](config& c) { c.rope_scaling->high_freq_factor = 1.0; }).starts_with("rope_scaling.high"));
  CHECK(fault_of([](config& c) {
          c.rope_scaling->rope_type = "dynamic";
        }).starts_with("rope_scaling.rope_type: 'dynamic'"));
}

}  // namespace config_test
