// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer.hpp"

#include <algorithm>
#include <unordered_map>

#include "data/own_tokenizer.hpp"
#include "data/text_formats.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/io/same_file.hpp"
#include "rotoscale/io/token_file.hpp"

#if defined(ROTOSCALE_SENTENCEPIECE)
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#endif

namespace rotoscale::program {

namespace {

/// Least size of a part to encode: it takes less than a second, and limits memory.
constexpr std::size_t least_part = std::size_t{1} << 20;
/// Llama 3's has 9 MB.
constexpr std::uint64_t largest_model = std::uint64_t{64} << 20;

}  // namespace

tokenizer::tokenizer() : bytes_(256, 1) {}

tokenizer tokenizer::choose(const std::string& path) {
  return path.empty() || path == bytes_name ? tokenizer() : load(path);
}

namespace {

/// Does it begin with a line of tiktoken's form, a token in base 64 and its rank?
bool is_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), std::size_t{256}));
  const std::size_t space = line.find(' '), end = line.find_last_not_of("\r") + 1;
  constexpr std::string_view digits = "0123456789";
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  return space != line.npos && space > 0 && space % 4 == 0 && end > space + 1 &&
         line.substr(0, space).find_first_not_of(letters) == line.npos &&
         line.substr(space + 1, end - space - 1).find_first_not_of(digits) == line.npos;
}

void refuse_other_vocabularies(const std::string& name, std::string_view bytes) {
  if (const char* kind = io::foreign_content(bytes)) throw io::error(name, std::string("is ") + kind);
  if (!is_tiktoken(bytes)) return;
  throw io::error(name,
                  "is tiktoken's vocabulary, as Llama 3 has, not a SentencePiece model; "
                  "examples/train/write_tokens.py writes a token file with it, which --data takes");
}

}  // namespace

tokenizer tokenizer::load(const std::filesystem::path& path) {
  return from_bytes(path.string(), io::read_raw_file(path, largest_model));
}

#if defined(ROTOSCALE_SENTENCEPIECE)

namespace {

/// SentencePiece's mark for a space.
constexpr std::string_view space_mark = "\u2581";

/// The longest beginning of `text` that is UTF-8 without space marks.
std::size_t plain_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = io::utf8_length(text.substr(at));
    if (length == 0 || text.substr(at, length) == space_mark) break;
    at += length;
  }
  return at;
}

/// Message of a status without SentencePiece's source location, "./src/x.cc(660) [condition] ".
std::string reason(const sentencepiece::util::Status& status) {
  const std::string_view message = status.message();
  const std::size_t end =
      message.starts_with("./src/") || message.starts_with("src/") ? message.find("] ") : message.npos;
  return std::string(end == message.npos ? message : message.substr(end + 2));
}

void load_model(sentencepiece::SentencePieceProcessor& to, const std::string& name, std::string_view bytes) {
  sentencepiece::util::Status status;
  try {
    status = to.LoadFromSerializedProto(bytes);
  } catch (const std::exception&) {  // of its trie, whose words cite a source file: a piece with a zero byte, say
    throw io::error(name, "not a SentencePiece model: its pieces make no vocabulary");
  }
  if (status.ok()) return;
  const std::string why = reason(status);
  throw io::error(name, "not a SentencePiece model: " + (why.empty() ? "its bytes cannot be parsed as one" : why));
}

}  // namespace

struct tokenizer::model {
  std::string name;
  sentencepiece::SentencePieceProcessor processor;
  std::vector<std::int32_t> byte_pieces;  ///< piece of each byte; empty: none
  std::vector<std::string> texts;         ///< of each piece
  bool splits_lines = true;               ///< no piece continues after a newline: lines are encoded one by one
  bool splits_words = true;               ///< no piece has a space after other text, and spaces are kept

  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
    while (!text.empty()) {
      std::size_t end = text.size();
      if (splits_lines) {
        end = std::min(text.find('\n'), text.size());
        while (end < text.size() && text[end] == '\n') ++end;
      }
      std::vector<int> pieces;
      const auto status = processor.Encode(text.substr(0, end), &pieces);
      if (!status.ok()) throw io::error(name, "cannot encode: " + reason(status));
      append(pieces, out);
      text.remove_prefix(end);
    }
  }

  /// Without a piece for the space mark, SentencePiece writes the mark's three bytes, which would decode as such. No
  /// other plain text has them, so the byte of a space replaces them.
  void append(const std::vector<int>& pieces, std::vector<std::int32_t>& out) const {
    for (auto at = pieces.begin(); at != pieces.end();) {
      const bool is_mark = !byte_pieces.empty() && pieces.end() - at >= 3 && at[0] == byte_pieces[0xE2] &&
                           at[1] == byte_pieces[0x96] && at[2] == byte_pieces[0x81];
      out.push_back(is_mark ? byte_pieces[' '] : *at);
      at += is_mark ? 3 : 1;
    }
  }
};

tokenizer tokenizer::from_bytes(const std::string& name, std::string_view bytes) {
  refuse_other_vocabularies(name, bytes);
  auto loaded = std::make_shared<model>();
  loaded->name = name;
  load_model(loaded->processor, name, bytes);
  const int count = loaded->processor.GetPieceSize();
  if (count <= 0) throw io::error(name, "not a SentencePiece model: it has no pieces");
  tokenizer t;
  t.bytes_.assign(static_cast<std::size_t>(count), 0);
  t.end_of_text_ = loaded->processor.eos_id();
  t.begin_of_text_ = loaded->processor.bos_id();
  std::vector<std::int32_t> byte_pieces(256, -1);
  for (int id = 0; id < count; ++id) {
    const auto& p = loaded->processor;
    std::string text;
    if (p.IdToPiece(id).find('\0') != text.npos) {  // SentencePiece would cut the piece at the zero
      throw io::error(name, "not a SentencePiece model: piece " + std::to_string(id) + " holds a zero byte");
    }
    if (p.IsByte(id)) {  // "<0x0A>"
      const auto value = static_cast<std::uint8_t>(std::stoi(p.IdToPiece(id).substr(3, 2), nullptr, 16));
      byte_pieces[value] = id;
      text = static_cast<char>(value);
    } else if (!p.IsControl(id) && !p.IsUnused(id) && !p.IsUnknown(id)) {
      text = p.IdToPiece(id);
      std::string_view word = text;
      while (word.starts_with(space_mark)) word.remove_prefix(space_mark.size());
      if (word.find(space_mark) != word.npos) loaded->splits_words = false;
      for (std::size_t at; (at = text.find(space_mark)) != text.npos;) text.replace(at, space_mark.size(), " ");
      const std::size_t newline = text.find_last_of('\n');
      if (newline != text.npos && text.find_first_not_of('\n') != text.npos) loaded->splits_lines = false;
    }
    t.bytes_[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(text.size());
    loaded->texts.push_back(std::move(text));
  }
  if (std::find(byte_pieces.begin(), byte_pieces.end(), -1) == byte_pieces.end()) loaded->byte_pieces = byte_pieces;
  // A model that puts a space before its text would put one before each line.
  std::vector<int> probe;
  if (loaded->processor.Encode("a", &probe).ok() && !probe.empty()) {
    if (loaded->texts[static_cast<std::size_t>(probe[0])].starts_with(' ')) loaded->splits_lines = false;
  }
  t.model_ = loaded;
  // Without byte pieces, adjacent unknown characters become one piece. Some models drop leading spaces.
  const auto decoded = [&](std::string_view text) {
    std::vector<std::int32_t> tokens;
    t.encode_part(text, 0, tokens);
    return t.decode(tokens);
  };
  loaded->splits_words = loaded->splits_words && !loaded->byte_pieces.empty() && decoded(" a") == " a";
  return t;
}

namespace {

/// Does a word end at `at`, with a space between two characters that no normalization joins with it?
bool ends_word(std::string_view text, std::size_t at) {
  const auto is_graph = [](char c) { return c > 0x20 && c < 0x7F; };
  return text[at] == ' ' && at > 0 && is_graph(text[at - 1]) && at + 1 < text.size() && is_graph(text[at + 1]);
}

}  // namespace

std::size_t tokenizer::first_part(std::string_view text) const {
  if (is_bytes()) return std::min(text.size(), least_part);
  if (!model_->splits_lines || text.size() <= least_part) return text.size();
  std::size_t at = text.substr(0, 2 * least_part).find('\n', least_part);
  // A text without lines, or nearly so: between words, or at the first line to come.
  if (at == text.npos) at = std::min(2 * least_part, text.size());
  while (at < text.size() && text[at] != '\n') {
    if (model_->splits_words && ends_word(text, at)) return at;
    ++at;
  }
  while (at < text.size() && text[at] == '\n') ++at;
  return at;
}

void tokenizer::encode_part(std::string_view text, std::size_t offset, std::vector<std::int32_t>& out) const {
  if (is_bytes()) {
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return;
  }
  // Bytes that SentencePiece would replace (not UTF-8) or read as a space are encoded one by one.
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = plain_length(text.substr(at));
    if (length > 0) {
      model_->encode_plain(text.substr(at, length), out);
      at += length;
    } else if (model_->byte_pieces.empty()) {
      throw io::error(model_->name, "cannot encode byte " + std::to_string(offset + at) +
                                        " of the text: it is not UTF-8, or U+2581, and the model has no byte pieces");
    } else {
      out.push_back(model_->byte_pieces[static_cast<unsigned char>(text[at])]);
      ++at;
    }
  }
}

std::string tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (is_bytes()) {
      text += static_cast<char>(token);
    } else {
      text += model_->texts.at(static_cast<std::size_t>(token));
    }
  }
  return text;
}

namespace {

/// The lines of a text; long ones are split, because SentencePiece ignores lines that are too long.
class lines_of_text : public sentencepiece::SentenceIterator {
 public:
  lines_of_text(std::string_view text, const progress_function& progress)
      : rest_(text), size_(text.size()), progress_(progress) {
    Next();
  }

  bool done() const override { return done_; }
  void Next() override {
    if (progress_) progress_(static_cast<std::int64_t>(size_ - rest_.size()), static_cast<std::int64_t>(size_));
    do {
      done_ = rest_.empty();
      const std::size_t line = std::min(rest_.find('\n'), rest_.size());
      std::size_t end = std::min(line, longest);
      while (end < line && end > longest - 4 && (rest_[end] & '\xC0') == '\x80') --end;  // between characters
      value_ = rest_.substr(0, end);
      rest_.remove_prefix(end == line ? std::min(line + 1, rest_.size()) : end);
    } while (!done_ && value_.empty());
  }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  static constexpr std::size_t longest = 4096;
  std::string_view rest_;
  std::size_t size_;
  const progress_function& progress_;
  std::string value_;
  bool done_ = false;
};

}  // namespace

void train_tokenizer(const tokenizer_options& o, const progress_function& progress) {
  io::require_no_input({o.out}, {o.data.begin(), o.data.end()});
  const std::string text = read_texts(o.data, o.text_format);
  const std::unordered_map<std::string, std::string> settings = {{"model_type", o.type},
                                                                 {"vocab_size", std::to_string(o.vocabulary)},
                                                                 {"byte_fallback", "true"},
                                                                 {"normalization_rule_name", "identity"},
                                                                 {"add_dummy_prefix", "false"},
                                                                 {"remove_extra_whitespaces", "false"},
                                                                 {"max_sentence_length", "8192"},
                                                                 {"num_threads", "1"},  // sums of threads in one order
                                                                 {"minloglevel", "3"}};
  lines_of_text lines(text, progress);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
  if (!status.ok()) {
    // SentencePiece's advice names options of SentencePiece's programs.
    std::string why = reason(status);
    why = why.substr(0, std::min(why.find(" Increase vocab_size"), why.find(" Please set it")));
    const char* const at = why.starts_with("Vocabulary size") ? "--vocab-size" : "tokenizer";
    throw io::error(at, "SentencePiece cannot train: " + why);
  }
  io::write_file_atomically(o.out, model);
}

#else

struct tokenizer::model {};

namespace {

[[noreturn]] void fail_without_library(const std::string& where) {
  throw io::error(where,
                  "this program was built without SentencePiece; install libsentencepiece-dev and configure again");
}

}  // namespace

tokenizer tokenizer::from_bytes(const std::string& name, std::string_view bytes) {
  refuse_other_vocabularies(name, bytes);
  fail_without_library(name);
}

void tokenizer::encode_part(std::string_view text, std::size_t, std::vector<std::int32_t>& out) const {
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
}

std::size_t tokenizer::first_part(std::string_view text) const { return std::min(text.size(), least_part); }

std::string tokenizer::decode(std::span<const std::int32_t> tokens) const { return {tokens.begin(), tokens.end()}; }

void train_tokenizer(const tokenizer_options&, const progress_function&) { fail_without_library("tokenizer train"); }

#endif

void tokenizer::encode(std::string_view text, std::vector<std::int32_t>& out, const progress_function& progress,
                       const std::function<void()>& after_part) const {
  for (std::size_t at = 0; at < text.size();) {
    if (progress) progress(static_cast<std::int64_t>(at), static_cast<std::int64_t>(text.size()));
    const std::string_view part = text.substr(at, first_part(text.substr(at)));
    encode_part(part, at, out);
    if (after_part) after_part();
    at += part.size();
  }
}

std::uint64_t encode_to_file(const encode_options& o, const progress_function& progress) {
  std::vector<std::filesystem::path> inputs(o.data.begin(), o.data.end());
  inputs.emplace_back(o.tokenizer);
  io::require_no_input({o.out}, inputs);
  const tokenizer t = tokenizer::choose(o.tokenizer);
  io::token_file_writer writer(o.out, t.vocabulary() <= 65536 ? io::token_kind::gpt2 : io::token_kind::llama3);
  const std::string text = read_texts(o.data, o.text_format);
  std::vector<std::int32_t> tokens;
  t.encode(text, tokens, progress, [&] {
    writer.write(tokens);
    tokens.clear();
  });
  writer.commit();
  return writer.count();
}

}  // namespace rotoscale::program
