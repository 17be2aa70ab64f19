// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry over tokenizer models and records: a model of any bytes is refused with io::error, or encodes a text,
// and where it has pieces for bytes, decoding gives the text again; any lines are refused or packed into windows.
// fuzz: -Iexamples/llama -DROTOSCALE_SENTENCEPIECE examples/llama/data/tokenizer.cpp examples/llama/data/records.cpp
// fuzz: -lsentencepiece -lsentencepiece_train
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "data/records.hpp"
#include "data/tokenizer.hpp"
#include "rotoscale/io/error.hpp"

namespace {

using namespace rotoscale;
using namespace rotoscale::llama_program;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_model(std::string_view bytes) {
  const std::string_view text("a block of 32\n\n\xE2\x96\x81\xFF\0 end", 24);
  std::vector<std::int32_t> tokens;
  try {
    const tokenizer t = tokenizer::from_bytes("input", bytes);
    t.encode(text, tokens);
    for (const std::int32_t token : tokens) require(token >= 0 && token < t.vocabulary());
    static_cast<void>(t.decode(tokens));
  } catch (const io::error&) {
  }
}

void check_records(std::string_view text) {
  data_options o;
  o.paths = {"input"};
  o.sequence = 16;
  o.validation = 0.5;
  token_batch batch;
  try {
    record_list list;
    add_records(list, text, "input", tokenizer(), o.sequence);
    const auto windows = pack_records(std::move(list), o, tokenizer());
    for (const data_part part : {data_part::training, data_part::validation}) {
      for (std::int64_t i = 0; i < windows->windows(part); ++i) windows->append(part, i, batch);
    }
  } catch (const io::error&) {
    return;
  }
  require(batch.tokens.size() % 16 == 0 && batch.tokens.size() == batch.targets.size());
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    require(batch.tokens[i] >= 0 && batch.tokens[i] < 256);
    require(batch.document_starts[i] >= 0 && batch.document_starts[i] <= static_cast<std::int32_t>(i % 16));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_model(bytes);
  check_records(bytes);
  return 0;
}
