// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target for tokenizer models and records; the first byte chooses the kind of input.
//
// - Any bytes as a model: refused with io::error, or the model encodes a text.
// - A model made of the input's pieces encodes the remaining input. If it has byte pieces and does not normalize,
//   decoding gives the text again.
// - Any lines as records: refused, or packed into windows.
//
// fuzz: -Iexamples/train -DROTOSCALE_SENTENCEPIECE examples/train/data/tokenizer.cpp examples/train/data/records.cpp
// fuzz: -lsentencepiece -lsentencepiece_train
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "byte_choices.hpp"
#include "data/records.hpp"
#include "data/tokenizer.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/small_float.hpp"
#include "target.hpp"

namespace tokenizer_fuzz {

using namespace rotoscale;
using namespace rotoscale::program;
using fuzz::require;

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

/// SentencePiece's messages as protocol buffers: a number, and fields of a number or of bytes.
std::string varint(std::size_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string number_field(std::size_t field, unsigned value) { return varint(field << 3) + varint(value); }
std::string bytes_field(std::size_t field, const std::string& content) {
  return varint(field << 3 | 2) + varint(content.size()) + content;
}

enum piece_type { normal = 1, unknown, control, user_defined, unused, byte };

std::string piece(const std::string& text, piece_type type, float score = 0) {
  std::string bits(1, static_cast<char>(2 << 3 | 5));
  for (int i = 0; i < 4; ++i) bits += static_cast<char>(rotoscale::fp32_bits(score) >> 8 * i);
  return bytes_field(1, bytes_field(1, text) + bits + number_field(3, static_cast<unsigned>(type)));
}

const std::string& byte_pieces() {
  static const std::string all = [] {
    std::string pieces;
    for (int i = 0; i < 256; ++i) {
      constexpr const char* digits = "0123456789ABCDEF";
      pieces += piece(std::string("<0x") + digits[i / 16] + digits[i % 16] + ">", byte);
    }
    return pieces;
  }();
  return all;
}

/// Its normalizer leaves text unchanged, unless the input chooses otherwise.
std::string made_model(fuzz::byte_choices& in, bool has_bytes, bool is_plain) {
  constexpr unsigned algorithms[] = {1, 2, 3, 4};  // unigram, BPE, words, characters
  constexpr piece_type types[] = {normal, normal, normal, normal, normal, user_defined, unused, control};
  std::string model = piece("<unk>", unknown) + piece("<s>", control) + piece("</s>", control);
  if (has_bytes) model += byte_pieces();
  const unsigned algorithm = algorithms[in.byte() % (is_plain ? 2 : 4)];  // the last two encode "<s>" as that piece
  for (int i = in.below(24); i > 0; --i) {
    const int head = in.byte();
    std::string text = head >= 0xE0 ? "\xE2\x96\x81" : "";
    for (int length = head % 4 + (text.empty() ? 1 : 0); length > 0; --length) text += static_cast<char>(in.byte());
    model += piece(text, is_plain ? normal : types[in.byte() % 8], -static_cast<float>(head / 4 % 16));
  }
  const int normalizer = is_plain ? 0 : in.byte();
  return model + bytes_field(2, number_field(3, algorithm) + number_field(35, has_bytes ? 1 : 0)) +
         bytes_field(3, bytes_field(1, "identity") + number_field(3, normalizer & 1) +
                            number_field(4, normalizer >> 1 & 1) + number_field(5, normalizer >> 2 & 1 ? 0 : 1));
}

void check_made_model(fuzz::byte_choices in) {
  const bool has_bytes = in.flag(), is_plain = in.flag();
  const std::string bytes = made_model(in, has_bytes, is_plain);
  const std::string_view text = in.rest_as_text();
  std::vector<std::int32_t> tokens;
  try {
    const tokenizer t = tokenizer::from_bytes("made", bytes);
    t.encode(text, tokens);
    for (const std::int32_t token : tokens) require(token >= 0 && token < t.vocabulary());
    const std::string decoded = t.decode(tokens);
    if (has_bytes && is_plain) require(decoded == text);
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
    add_records(list, text, "input", tokenizer(), o);
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

void one_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::uint8_t first = size == 0 ? std::uint8_t{0} : data[0];
  if (first < 8) {
    if (size > 0) check_made_model({data + 1, size - 1});
  } else if (first < 32) {
    check_model(bytes);  // the model's first field
    if (first == '\n') check_records(bytes);
  } else {
    check_records(bytes);
  }
}

const rotoscale::fuzz::target here("tokenizer", one_input);

}  // namespace tokenizer_fuzz
