// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/open_windows.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "data/fingerprint.hpp"
#include "data/records.hpp"
#include "data/text_formats.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/text.hpp"
#include "rotoscale/io/token_file.hpp"
#include "rotoscale/nn/backend.hpp"

namespace rotoscale::program {

namespace {

/// Windows of text in memory: its bytes, or a tokenizer's tokens.
struct held_tokens {
  std::string bytes;
  std::vector<std::int32_t> pieces;
  bool is_bytes = true;

  std::int64_t size() const { return static_cast<std::int64_t>(is_bytes ? bytes.size() : pieces.size()); }
  void read(std::int64_t first, std::span<std::int32_t> to) const {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(first) + i;
      to[i] = is_bytes ? static_cast<unsigned char>(bytes[at]) : pieces[at];
    }
  }
  template <class Use>
  void for_each(const Use& use) const {
    if (is_bytes) {
      for (const char c : bytes) use(static_cast<unsigned char>(c));
    } else {
      for (const std::int32_t token : pieces) use(token);
    }
  }
};

/// Token files, mapped, one after the other.
struct mapped_tokens {
  std::vector<io::token_file> files;
  std::vector<std::int64_t> ends;  ///< of each file in the sequence of all tokens

  void add(io::token_file file) {
    ends.push_back(size() + static_cast<std::int64_t>(file.size()));
    files.push_back(std::move(file));
  }
  std::int64_t size() const { return ends.empty() ? 0 : ends.back(); }
  /// The file that has token number `i` of all.
  std::size_t file_of(std::int64_t i) const {
    return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), i) - ends.begin());
  }
  /// The number, of all tokens, of a file's first one.
  std::int64_t begin_of(std::size_t file) const { return file == 0 ? 0 : ends[file - 1]; }
  token_place place(std::int64_t i, std::int32_t token) const {
    const std::size_t f = file_of(i);
    return {token, files[f].name(), i - begin_of(f)};
  }
  void read(std::int64_t first, std::span<std::int32_t> to) const {
    std::size_t f = file_of(first);
    while (!to.empty()) {
      const std::int64_t begin = begin_of(f);
      const auto count =
          static_cast<std::size_t>(std::min<std::int64_t>(ends[f] - first, static_cast<std::int64_t>(to.size())));
      files[f].read(static_cast<std::uint64_t>(first - begin), to.first(count));
      to = to.subspan(count);
      first += static_cast<std::int64_t>(count);
      ++f;
    }
  }
  template <class Use>
  void for_each(const Use& use) const {
    for (const io::token_file& file : files) {
      file.for_each_chunk([&](std::span<const std::int32_t> piece) {
        for (const std::int32_t token : piece) use(token);
      });
    }
  }
};

/// A sequence of tokens cut into windows that do not overlap; its end is held out.
template <class Tokens>
class sequence_windows : public window_source {
 public:
  sequence_windows(Tokens tokens, const data_options& o, std::vector<std::int32_t> bytes, const char* kind)
      : tokens_(std::move(tokens)), sequence_(o.sequence), whole_(o.whole), bytes_(std::move(bytes)), kind_(kind) {
    const std::int64_t size = tokens_.size();
    split_ = whole_ ? 0 : size - std::llround(static_cast<double>(size) * o.validation);
    const std::int64_t least = sequence_ + 1;
    if (whole_ && size < 2) throw io::error(o.paths.front(), "too short: one token predicts none");
    if (!whole_ && (split_ < least || size - split_ < least)) {
      std::string source;
      for (const std::string& path : o.paths) source += (source.empty() ? "" : ", ") + path;
      const bool is_bytes = bytes_.size() == 256 && o.tokenizer.empty();
      throw io::error(source, "too short: " + std::to_string(split_) + " training and " +
                                  std::to_string(size - split_) + " validation " + (is_bytes ? "bytes" : "tokens") +
                                  ", a sequence needs " + std::to_string(least) +
                                  " of each (--sequence, --validation)");
    }
    std::int64_t number = 0, place = 0;
    std::int32_t largest = -1;
    tokens_.for_each([&](std::int32_t token) {
      fingerprint_.add(static_cast<std::uint32_t>(token));
      if (token > largest) {
        largest = token;
        place = number;
      }
      ++number;
    });
    if constexpr (requires { tokens_.place(place, largest); }) {
      largest_ = tokens_.place(place, largest);
      // Counting their bytes looks tokens up in bytes_.
      if (!bytes_.empty()) {
        require_token(*largest_, static_cast<std::int64_t>(bytes_.size()), "tokenizer " + o.tokenizer, "--tokenizer");
      }
    }
  }

  std::int64_t windows(data_part part) const override {
    const std::int64_t targets = tokens(part) - 1;
    return std::max<std::int64_t>(0, (targets + (whole_ ? sequence_ - 1 : 0)) / sequence_);
  }
  std::int64_t tokens(data_part part) const override {
    return part == data_part::training ? split_ : tokens_.size() - split_;
  }
  std::int64_t least_vocabulary() const override {
    return bytes_.empty() ? std::int64_t{largest_->token} + 1 : static_cast<std::int64_t>(bytes_.size());
  }
  const token_place* largest_token() const override { return largest_ ? &*largest_ : nullptr; }
  std::uint64_t fingerprint() const override { return fingerprint_.value(); }
  const char* kind() const override { return kind_; }
  const std::vector<std::int32_t>& bytes_of_tokens() const override { return bytes_; }

  void append(data_part part, std::int64_t window, token_batch& batch) const override {
    const auto length = static_cast<std::size_t>(sequence_);
    const std::int64_t first = (part == data_part::training ? 0 : split_) + window * sequence_;
    const auto count = std::min<std::int64_t>(sequence_ + 1, tokens_.size() - first);
    std::vector<std::int32_t> read(static_cast<std::size_t>(count));
    tokens_.read(first, read);
    const std::size_t rest = length + 1 - read.size();  // only of a whole text's last window
    batch.tokens.insert(batch.tokens.end(), read.begin(), read.end() - 1);
    batch.tokens.insert(batch.tokens.end(), rest, 0);
    batch.targets.insert(batch.targets.end(), read.begin() + 1, read.end());
    batch.targets.insert(batch.targets.end(), rest, nn::ignored_target);
  }

 private:
  Tokens tokens_;
  std::int64_t sequence_, split_ = 0;
  bool whole_;
  std::vector<std::int32_t> bytes_;
  const char* kind_;
  std::optional<token_place> largest_;
  token_fingerprint fingerprint_;
};

bool is_directory(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_directory(path, failed);
}

bool begins_as_token_file(const std::string& path) {
  if (is_directory(path)) return false;
  const std::string beginning = io::read_beginning(path, 4);
  return io::is_token_file(std::as_bytes(std::span(beginning)));
}

std::unique_ptr<window_source> open_token_files(const data_options& o) {
  mapped_tokens tokens;
  for (const std::string& path : o.paths) {
    if (!begins_as_token_file(path)) throw io::error(path, "no token file, while " + o.paths.front() + " is one");
    tokens.add(io::token_file::open(path));
  }
  std::vector<std::int32_t> bytes;  // unknown without the tokenizer that made the file
  if (!o.tokenizer.empty()) bytes = tokenizer::load(o.tokenizer).bytes_of_tokens();
  auto windows = std::make_unique<sequence_windows<mapped_tokens>>(std::move(tokens), o, std::move(bytes), "tokens");
  return windows;
}

std::unique_ptr<window_source> open_records(const data_options& o, const tokenizer& t, const std::string& first,
                                            const progress_function& progress) {
  record_list list;
  add_records(list, first, o.paths.front(), t, o, progress);
  for (std::size_t i = 1; i < o.paths.size(); ++i) {
    add_records(list, io::read_text(o.paths[i], io::text_format::plain), o.paths[i], t, o, progress);
  }
  return pack_records(std::move(list), o, t);
}

}  // namespace

void require_token(const token_place& largest, std::int64_t vocabulary, const std::string& whose, const char* flag) {
  if (largest.token < vocabulary) return;
  throw io::error(largest.file, "token " + std::to_string(largest.token) + " at position " +
                                    std::to_string(largest.position) + " needs a vocabulary of " +
                                    std::to_string(std::int64_t{largest.token} + 1) + ", the " + whose + " has " +
                                    std::to_string(vocabulary) + " (" + flag + ")");
}

bool are_token_files(const data_options& o) {
  return !o.paths.empty() && o.text_format == "auto" && begins_as_token_file(o.paths.front());
}

std::unique_ptr<window_source> open_windows(const data_options& o, const progress_function& progress) {
  if (o.paths.empty()) throw io::error("--data", "no text given");
  const io::text_format format = text_format_named(o.text_format);
  const bool chosen = o.text_format == "auto";
  if (are_token_files(o)) return open_token_files(o);
  const tokenizer t = tokenizer::choose(o.tokenizer);
  if (o.begin_of_text && t.begin_of_text() < 0) {
    throw io::error("--begin-of-text", "the tokenizer has no token for the begin of a text");
  }
  held_tokens held;
  for (const std::string& path : o.paths) {
    if (chosen && begins_as_token_file(path))
      throw io::error(path, "a token file, while " + o.paths.front() + " is text");
    std::string text = io::read_text(path, format);
    const bool first = &path == &o.paths.front();
    if (chosen && begins_as_records(text, path)) {
      if (is_directory(path))
        throw io::error(path, "begins with records, which are read from files, not from a directory");
      if (first) return open_records(o, t, text, progress);
      throw io::error(path, "records, while " + o.paths.front() + " is text");
    }
    if (first) {
      held.bytes = std::move(text);
    } else {
      held.bytes += text;
    }
  }
  if (!t.is_bytes()) {
    if (o.begin_of_text) held.pieces.push_back(t.begin_of_text());
    t.encode(held.bytes, held.pieces, progress);
    held.bytes = {};
    held.is_bytes = false;
  }
  return std::make_unique<sequence_windows<held_tokens>>(std::move(held), o, t.bytes_of_tokens(), "text");
}

}  // namespace rotoscale::program
