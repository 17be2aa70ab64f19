// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tokens of text. Decoding restores any bytes, training is reproducible, and invalid models are refused.
#include "data/tokenizer.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "data/open_windows.hpp"
#include "data/own_tokenizer.hpp"
#include "rotoscale/io/scratch.hpp"
#include "rotoscale/io/token_file.hpp"

namespace llama_tokenizer_test {

using namespace rotoscale;
using namespace rotoscale::program;
using namespace rotoscale::io::testing;

/// Words of a fixed congruence, in lines, with characters that tokenizers tend to lose.
std::string sample_text() {
  static const char* words[] = {"the",     "block", "scale",   "of",     "a",       "tensor", "is",
                                "rounded", "to",    "nearest", "even",   "  two  ", "\ttab",  "caf\u00E9",
                                "4.5",     "(x)",   "\u2014",  "end.\n", "\n\n"};
  std::string text;
  std::uint32_t state = 1;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525 + 1013904223;
    text += words[(state >> 16) % std::size(words)];
    text += ' ';
  }
  return text;
}

std::vector<std::int32_t> tokens_of(const tokenizer& t, std::string_view text) {
  std::vector<std::int32_t> tokens;
  t.encode(text, tokens);
  return tokens;
}

tokenizer_options options_in(const scratch_directory& dir) {
  put(dir / "text", sample_text());
  tokenizer_options o;
  o.data = {(dir / "text").string()};
  o.out = (dir / "m.model").string();
  o.vocabulary = 340;
  return o;
}

/// False if the build has no SentencePiece: the test ends.
bool trained(const tokenizer_options& o) {
  const std::string message = message_of([&] { train_tokenizer(o); });
  if (message.find("built without SentencePiece") != message.npos) return false;
  REQUIRE(message == "(no error)");
  return true;
}

TEST_CASE("bytes are tokens of their own") {
  const tokenizer t;
  CHECK(t.is_bytes());
  CHECK(t.vocabulary() == 256);
  CHECK(t.end_of_text() == 0);
  CHECK(tokens_of(t, "a\xFF") == std::vector<std::int32_t>{97, 255});
  CHECK(t.decode(tokens_of(t, "a\xFF")) == "a\xFF");
  CHECK(t.bytes_of_tokens() == std::vector<std::int32_t>(256, 1));
}

TEST_CASE("SentencePiece: decoding what was encoded gives every text, and bytes are counted") {
  const scratch_directory dir;
  for (const char* type : {"bpe", "unigram"}) {
    tokenizer_options o = options_in(dir);
    o.type = type;
    if (o.type == "unigram") o.vocabulary = 291;  // all pieces that the text allows
    if (!trained(o)) return;
    const tokenizer t = tokenizer::load(o.out);
    CHECK_FALSE(t.is_bytes());
    CHECK(t.vocabulary() == o.vocabulary);
    CHECK(t.end_of_text() >= 0);
    const std::string text = sample_text();
    CHECK(tokens_of(t, text).size() < text.size());
    std::string every_byte;
    for (int i = 0; i < 65536; ++i) every_byte += {static_cast<char>(i >> 8), static_cast<char>(i)};
    for (const std::string& given :
         {text, every_byte, std::string(), std::string("\0\n\0", 3), std::string("\u2581 \u2581\u2581x "),
          std::string("\r\n \n\n\n x\n"), std::string("\xF0\x9F\x98\x80 \xF0\x9F"), std::string(100000, ' ')}) {
      const auto tokens = tokens_of(t, given);
      REQUIRE(t.decode(tokens) == given);
      std::int64_t bytes = 0;
      for (const std::int32_t token : tokens) bytes += t.bytes_of_tokens()[static_cast<std::size_t>(token)];
      CHECK(bytes == static_cast<std::int64_t>(given.size()));
    }
  }
}

TEST_CASE("SentencePiece: the same text gives the same model, and lines in any grouping the same tokens") {
  const scratch_directory dir;
  tokenizer_options o = options_in(dir);
  if (!trained(o)) return;
  const std::string first = get(o.out);
  REQUIRE(trained(o));
  CHECK(get(o.out) == first);
  const tokenizer t = tokenizer::load(o.out);
  const std::string text = sample_text();
  const std::size_t half = text.find('\n', text.size() / 2) + 1;
  REQUIRE(half != 0);
  auto tokens = tokens_of(t, text.substr(0, half));
  if (text[half] != '\n') {
    t.encode(text.substr(half), tokens);
    CHECK(tokens == tokens_of(t, text));
  }
}

TEST_CASE("SentencePiece: a text without lines is encoded in parts, wherever it is cut") {
  const scratch_directory dir;
  const tokenizer_options o = options_in(dir);
  if (!trained(o)) return;
  const tokenizer t = tokenizer::load(o.out);
  constexpr std::size_t mib = std::size_t{1} << 20;
  CHECK(tokenizer().first_part(std::string(3 * mib, ' ')) == mib);
  std::string words;
  while (words.size() < 3 * mib) words += sample_text();
  std::replace(words.begin(), words.end(), '\n', ' ');
  words.resize(3 * mib);
  std::vector<std::int64_t> shares;
  std::vector<std::int32_t> whole, parts;
  t.encode(words, whole, [&](std::int64_t done, std::int64_t total) {
    CHECK(total == static_cast<std::int64_t>(words.size()));
    shares.push_back(done);
  });
  REQUIRE(shares.size() == 2);
  CHECK(shares[0] == 0);
  CHECK((shares[1] >= std::int64_t{2 * mib} && shares[1] < std::int64_t{2 * mib} + 100));
  CHECK(t.first_part(std::string_view(words).substr(0, static_cast<std::size_t>(shares[1]))) ==
        static_cast<std::size_t>(shares[1]));
  for (std::string_view rest = words; !rest.empty();) {  // other parts, each encoded at once
    std::size_t end = std::min(mib / 2, rest.size());
    while (end < rest.size() && !(rest[end] == ' ' && rest[end - 1] > ' ')) ++end;
    t.encode(rest.substr(0, end), parts);
    rest.remove_prefix(end);
  }
  CHECK(parts == whole);
  // Lines are cut before words, also the first one after a long one. Text without lines or words is not cut.
  std::string lines = words;
  lines[mib + 7] = lines[mib + 8] = '\n';
  CHECK(t.first_part(lines) == mib + 9);
  std::string letters(3 * mib, 'x');
  CHECK(t.first_part(letters) == 3 * mib);
  letters[3 * mib - 9] = '\n';
  CHECK(t.first_part(letters) == 3 * mib - 8);
}

TEST_CASE("a token file of a text: bytes, and pieces") {
  const scratch_directory dir;
  const tokenizer_options o = options_in(dir);
  const auto encoded = [&](const std::string& model) {
    encode_options e;
    e.data = o.data;
    e.tokenizer = model;
    e.out = (dir / "t.bin").string();
    const std::uint64_t count = encode_to_file(e);
    const auto file = io::token_file::open(e.out);
    CHECK(file.size() == count);
    CHECK(file.kind() == io::token_kind::gpt2);
    std::vector<std::int32_t> tokens(count);
    file.read(0, tokens);
    return tokens;
  };
  CHECK(tokenizer().decode(encoded("")) == sample_text());
  if (!trained(o)) return;
  // More than is encoded at once. Parts end after lines, so that the pieces equal the whole text's.
  std::string text;
  while (text.size() < (std::size_t{5} << 18)) text += sample_text();
  put(dir / "text", text);
  const tokenizer t = tokenizer::load(o.out);
  CHECK(t.first_part(text) < text.size());
  CHECK(encoded(o.out) == tokens_of(t, text));
}

TEST_CASE("JSON is no text to train or to encode, unless it is asked for") {
  const scratch_directory dir;
  tokenizer_options o = options_in(dir);
  encode_options e;
  e.data = o.data;
  e.out = (dir / "t.bin").string();
  const std::string hint = "; --text-format plain takes the file as text", record = R"({"text": "a"})";
  for (const auto& [text, what] :
       {std::pair<std::string, const char*>{"[" + record + ", " + record + "]", "an array of JSON, not JSON lines"},
        {record + "\n", "JSON lines of records, which train and eval tokenize themselves"}}) {
    put(dir / "text", text);
    const std::string expected = o.data[0] + ": " + what + hint;
    CHECK(message_of([&] { encode_to_file(e); }) == expected);
    const std::string trained_on = message_of([&] { train_tokenizer(o); });
    if (trained_on.find("built without SentencePiece") == trained_on.npos) CHECK(trained_on == expected);
  }
  CHECK(!std::filesystem::exists(e.out));
  e.text_format = "plain";
  CHECK(encode_to_file(e) == record.size() + 1);
}

TEST_CASE("a model's directory says what text is read with, or that nothing does") {
  const scratch_directory dir;
  const auto found = [&](int vocabulary) {
    std::string model;
    const std::string message = message_of([&] { model = find_own_tokenizer(dir.path(), vocabulary); });
    return message == "(no error)" ? model : message;
  };
  CHECK(found(256) == "bytes");
  CHECK(found(32000).starts_with(dir.path().string() + ": has no tokenizer.model, and its vocabulary of 32000"));
  put(dir / "tokenizer.json", "{}");
  CHECK(found(256).starts_with((dir / "tokenizer.json").string() + ": is a tokenizer that mini-llama does not read"));
  put(dir / "tokenizer.model", "");
  const std::string model = (dir / "tokenizer.model").string();
  CHECK(found(32000) == model);
  CHECK_FALSE(begins_with_token("auto", model));
  put(dir / "tokenizer_config.json", "{\"add_bos_token\": true}");
  CHECK(begins_with_token("auto", model));
  CHECK_FALSE(begins_with_token("no", model));
  CHECK_FALSE(begins_with_token("auto", "bytes"));
  put(dir / "tokenizer_config.json", "{\"add_bos_token\": null, \"tokenizer_class\": \"LlamaTokenizer\"}");
  CHECK_FALSE(begins_with_token("auto", model));
  put(dir / "tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");  // transformers' default
  CHECK(begins_with_token("auto", model));
  put(dir / "tokenizer_config.json", "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}");
  CHECK_FALSE(begins_with_token("auto", model));
  put(dir / "tokenizer_config.json", "{\"add_bos_token\": 1}");
  CHECK(message_of([&] { begins_with_token("auto", model); }).find("add_bos_token: expected true") !=
        std::string::npos);
}

TEST_CASE("tiktoken's file is called one, with or without SentencePiece") {
  CHECK(message_of([] { tokenizer::from_bytes("m", "IQ== 0\nIg== 1\n"); }).starts_with("m: is tiktoken's vocabulary"));
  CHECK(message_of([] { tokenizer::from_bytes("m", "no base 64 1\n"); }).find("tiktoken") == std::string::npos);
}

TEST_CASE("SentencePiece: the begin of text precedes a text and each record where it is asked for") {
  const scratch_directory dir;
  const tokenizer_options o = options_in(dir);
  if (!trained(o)) return;
  const tokenizer t = tokenizer::load(o.out);
  REQUIRE(t.begin_of_text() >= 0);
  data_options read;
  read.paths = o.data;
  read.tokenizer = o.out;
  read.sequence = 8;
  const auto first = [&] {
    token_batch batch;
    open_windows(read)->append(data_part::training, 0, batch);
    return batch;
  };
  const token_batch plain = first();
  read.begin_of_text = true;
  const token_batch begun = first();
  CHECK(begun.tokens[0] == t.begin_of_text());
  CHECK(begun.targets[0] == plain.tokens[0]);
  put(dir / "text", "{\"text\": \"a\"}\n{\"text\": \"a\"}\n");
  read.validation = 0.5;
  CHECK(first().tokens[0] == t.begin_of_text());
}

}  // namespace llama_tokenizer_test
