// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/records.hpp"

#include <algorithm>
#include <cmath>

#include "data/fingerprint.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/nn/backend.hpp"

namespace rotoscale::llama_program {

namespace {

constexpr std::string_view blanks = " \t\r\n";

/// Without the byte order mark that some editors put before UTF-8.
std::string_view without_mark(std::string_view text) { return text.substr(text.starts_with("\xEF\xBB\xBF") ? 3 : 0); }

/// The first one, without its end.
std::string_view line_of(std::string_view text) { return text.substr(0, text.find('\n')); }

std::string name_line(const std::string& file, std::size_t number) { return file + ": line " + std::to_string(number); }

/// Why a line is no record, with its place before it; empty: it is one.
std::string find_record_fault(std::string_view line, const std::string& file, std::size_t number) {
  try {
    const auto json = io::parse_json(line, file, number);
    if (json.is_object() && ((json.contains("prompt") && json.contains("answer")) || json.contains("text"))) return {};
    return name_line(file, number) + ": no record: it has neither prompt and answer nor text";
  } catch (const io::error& e) {
    return e.what();
  }
}

/// Calls f(line, number) for each line that is not blank.
template <class Function>
void for_each_line(std::string_view text, const Function& f) {
  text = without_mark(text);
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") != line.npos) f(line, number);
  }
}

std::string string_of(const nlohmann::ordered_json& record, const char* key, const std::string& where) {
  const auto found = record.find(key);
  if (found == record.end()) throw io::error(where, std::string(key) + " is missing");
  if (!found->is_string()) throw io::error(where, std::string(key) + " is not a string");
  const std::string text = found->get<std::string>();
  if (text.find('\0') != text.npos)
    throw io::error(where, std::string(key) + " holds a zero byte, which ends documents");
  return text;
}

class packed_windows : public window_source {
 public:
  packed_windows(record_list list, const data_options& o, const tokenizer& t)
      : list_(std::move(list)), sequence_(static_cast<std::size_t>(o.sequence)), bytes_(t.bytes_of_tokens()) {
    // Not a byte of any text, where the tokens are bytes either.
    bytes_[static_cast<std::size_t>(t.end_of_text())] = 0;
    const std::size_t count = list_.records.size();
    const auto held_out = static_cast<std::size_t>(std::llround(static_cast<double>(count) * o.validation));
    split_ = count - held_out;
    if (split_ == 0 || held_out == 0) {
      throw io::error(o.paths.front(), "too short: " + std::to_string(split_) + " training and " +
                                           std::to_string(held_out) +
                                           " validation records, each needs one (--validation)");
    }
    pack(0, split_, starts_[0]);
    pack(split_, count, starts_[1]);
    for (const std::int32_t token : list_.tokens) fingerprint_.add(static_cast<std::uint32_t>(token));
    for (const auto& r : list_.records) fingerprint_.add(r.learnt);
  }

  std::int64_t windows(data_part part) const override { return static_cast<std::int64_t>(starts_of(part).size()) - 1; }
  std::int64_t tokens(data_part part) const override {
    const auto& starts = starts_of(part);
    return static_cast<std::int64_t>(list_.records[starts.back() - 1].end - list_.records[starts.front()].begin);
  }
  std::int64_t least_vocabulary() const override { return static_cast<std::int64_t>(bytes_.size()); }
  std::uint64_t fingerprint() const override { return fingerprint_.value(); }
  const char* kind() const override { return "records"; }
  bool has_documents() const override { return true; }
  const std::vector<std::int32_t>& bytes_of_tokens() const override { return bytes_; }

  void append(data_part part, std::int64_t window, token_batch& batch) const override {
    const auto& starts = starts_of(part);
    const auto w = static_cast<std::size_t>(window);
    std::size_t place = 0;
    for (std::size_t i = starts[w]; i < starts[w + 1]; ++i) {
      const record_list::record& r = list_.records[i];
      const std::size_t begin = place;
      for (std::size_t t = r.begin; t + 1 < r.end; ++t, ++place) {
        batch.tokens.push_back(list_.tokens[t]);
        batch.targets.push_back(t + 1 < r.learnt ? nn::ignored_target : list_.tokens[t + 1]);
        batch.document_starts.push_back(static_cast<std::int32_t>(begin));
      }
    }
    const std::size_t rest = sequence_ - place;
    batch.tokens.insert(batch.tokens.end(), rest, 0);
    batch.targets.insert(batch.targets.end(), rest, nn::ignored_target);
    batch.document_starts.insert(batch.document_starts.end(), rest, static_cast<std::int32_t>(place));
  }

 private:
  const std::vector<std::size_t>& starts_of(data_part part) const {
    return starts_[part == data_part::training ? 0 : 1];
  }

  /// Windows of records [first, last): each has the records from its start to the next one's.
  void pack(std::size_t first, std::size_t last, std::vector<std::size_t>& starts) const {
    std::size_t room = 0;
    for (std::size_t i = first; i < last; ++i) {
      const std::size_t needed = list_.records[i].end - list_.records[i].begin - 1;
      if (needed > room || starts.empty()) {
        starts.push_back(i);
        room = sequence_;
      }
      room -= needed;
    }
    starts.push_back(last);
  }

  record_list list_;
  std::size_t sequence_;
  std::vector<std::int32_t> bytes_;
  std::size_t split_ = 0;
  std::vector<std::size_t> starts_[2];  ///< records that windows begin with, and their end
  token_fingerprint fingerprint_;
};

}  // namespace

bool begins_as_records(std::string_view text, const std::string& name) {
  text = without_mark(text);
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos || text[begin] != '{') return false;
  const auto lines =
      static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
  const std::string_view first = line_of(text.substr(begin));
  const std::string fault = find_record_fault(first, name, lines + 1);
  if (fault.empty()) return true;
  const std::size_t key = first.find_first_not_of(" \t", 1);
  const std::string_view rest = text.substr(begin + first.size());
  const std::size_t next = std::min(rest.find_first_not_of(blanks), rest.size());
  const bool is_meant =
      (key != first.npos && first[key] == '"') || find_record_fault(line_of(rest.substr(next)), name, 0).empty();
  if (is_meant) throw io::error(fault + "; --text-format plain takes the file as text");
  return false;
}

void add_records(record_list& list, std::string_view text, const std::string& name, const tokenizer& t, int sequence,
                 const progress_function& progress) {
  if (t.end_of_text() < 0) throw io::error(name, "the tokenizer has no piece for the end of a record");
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    if (progress) progress(line.data() - text.data(), static_cast<std::int64_t>(text.size()));
    const std::string where = name_line(name, number);
    const auto json = io::parse_json(line, name, number);
    if (!json.is_object()) throw io::error(where, "not an object");
    record_list::record r;
    r.begin = list.tokens.size();
    if (json.contains("text") && !json.contains("prompt")) {
      t.encode(string_of(json, "text", where), list.tokens);
      r.learnt = r.begin + 1;
    } else {
      t.encode(string_of(json, "prompt", where), list.tokens);
      r.learnt = std::max(list.tokens.size(), r.begin + 1);
      t.encode(string_of(json, "answer", where), list.tokens);
    }
    list.tokens.push_back(t.end_of_text());
    r.end = list.tokens.size();
    if (r.end - r.begin < 2) throw io::error(where, "the record is empty");
    if (r.end - r.begin - 1 > static_cast<std::size_t>(sequence)) {
      throw io::error(where, std::to_string(r.end - r.begin) + " tokens do not fit a sequence of " +
                                 std::to_string(sequence) + " and its last target (--sequence)");
    }
    list.records.push_back(r);
  });
}

std::unique_ptr<window_source> pack_records(record_list list, const data_options& options, const tokenizer& t) {
  return std::make_unique<packed_windows>(std::move(list), options, t);
}

}  // namespace rotoscale::llama_program
