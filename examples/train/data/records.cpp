// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/records.hpp"

#include <algorithm>
#include <cmath>

#include "data/fingerprint.hpp"
#include "data/record_lines.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/nn/backend.hpp"

namespace rotoscale::program {

namespace {

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
    // No byte of a text, for tokens that are bytes.
    bytes_[static_cast<std::size_t>(t.end_of_text())] = 0;
    const std::size_t count = list_.records.size();
    const auto held_out = static_cast<std::size_t>(std::llround(static_cast<double>(count) * o.validation));
    split_ = o.whole ? 0 : count - held_out;
    if (!o.whole && (split_ == 0 || held_out == 0)) {
      throw io::error(o.paths.front(), "too short: " + std::to_string(split_) + " training and " +
                                           std::to_string(held_out) +
                                           " validation records, each needs one (--validation)");
    }
    if (!o.whole) pack(0, split_, starts_[0]);
    pack(split_, count, starts_[1]);
    for (const std::int32_t token : list_.tokens) fingerprint_.add(static_cast<std::uint32_t>(token));
    for (const auto& r : list_.records) {
      fingerprint_.add(r.learnt);
      for (const auto& [first, last] : r.masked) {
        fingerprint_.add(first);
        fingerprint_.add(last);
      }
    }
  }

  std::int64_t windows(data_part part) const override {
    return std::max<std::int64_t>(0, static_cast<std::int64_t>(starts_of(part).size()) - 1);
  }
  std::int64_t tokens(data_part part) const override {
    const auto& starts = starts_of(part);
    if (starts.empty()) return 0;
    return static_cast<std::int64_t>(list_.records[starts.back() - 1].end - list_.records[starts.front()].begin);
  }
  std::int64_t least_vocabulary() const override { return static_cast<std::int64_t>(bytes_.size()); }
  std::uint64_t fingerprint() const override { return fingerprint_.value(); }
  const char* kind() const override { return "records"; }
  std::int64_t long_records() const override { return list_.too_long; }
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
        batch.targets.push_back(r.learns(t + 1) ? list_.tokens[t + 1] : nn::ignored_target);
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

/// The text before and after a message's content.
struct turn_text {
  std::string before, after;
};
turn_text turn_of(const std::string& chat_template, const std::string& role) {
  if (chat_template == "llama3") return {"<|start_header_id|>" + role + "<|end_header_id|>\n\n", "<|eot_id|>"};
  return {"<|im_start|>" + role + "\n", "<|im_end|>\n"};
}

/// Adds the messages of a record. The assistant's content and the end of its turns count in the loss.
void add_messages(record_list& list, record_list::record& r, const nlohmann::ordered_json& json,
                  const std::string& where, const tokenizer& t, const data_options& options) {
  if (options.chat_template.empty()) throw io::error(where, "messages need --chat-template (chatml or llama3)");
  if (!json["messages"].is_array() || json["messages"].empty()) throw io::error(where, "messages is not an array");
  r.learnt = 0;
  std::size_t masked = 0;  // start of tokens that are not learnt
  for (const auto& message : json["messages"]) {
    if (!message.is_object()) throw io::error(where, "a message is not an object");
    const std::string role = string_of(message, "role", where), content = string_of(message, "content", where);
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      throw io::error(where, "role '" + role + "' is none of system, user, assistant, tool");
    }
    const turn_text turn = turn_of(options.chat_template, role);
    t.encode(turn.before, list.tokens);
    if (role == "assistant") {
      const std::size_t first = std::max(list.tokens.size(), r.begin + 1);
      if (r.learnt == 0)
        r.learnt = first;
      else
        r.masked.emplace_back(masked, first);
    }
    t.encode(role == "assistant" ? content + turn.after : content, list.tokens);
    if (role == "assistant") masked = list.tokens.size();
    if (role != "assistant") t.encode(turn.after, list.tokens);
  }
  if (r.learnt == 0) throw io::error(where, "no message is the assistant's");
  if (masked < list.tokens.size()) r.masked.emplace_back(masked, list.tokens.size() + 1);
}

/// Cuts or removes the last record, which no window holds, as the options say.
void shorten(record_list& list, record_list::record& r, const std::string& where, const data_options& options) {
  if (options.long_records == "refuse") {
    throw io::error(where, std::to_string(r.end - r.begin) + " tokens do not fit a sequence of " +
                               std::to_string(options.sequence) +
                               " and its last target (--sequence; --long-records cut or skip)");
  }
  ++list.too_long;
  r.end = r.begin + static_cast<std::size_t>(options.sequence) + 1;
  bool learns = false;
  for (std::size_t token = r.begin + 1; token < r.end; ++token) learns = learns || r.learns(token);
  if (options.long_records == "skip" || !learns) r.end = r.begin;
  list.tokens.resize(r.end);
}

}  // namespace

void add_records(record_list& list, std::string_view text, const std::string& name, const tokenizer& t,
                 const data_options& options, const progress_function& progress) {
  if (t.end_of_text() < 0) throw io::error(name, "the tokenizer has no piece for the end of a record");
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    if (progress) progress(line.data() - text.data(), static_cast<std::int64_t>(text.size()));
    const std::string where = name_line(name, number);
    const auto json = io::parse_json(line, name, number);
    if (!json.is_object()) throw io::error(where, "not an object");
    record_list::record r;
    r.begin = list.tokens.size();
    if (options.begin_of_text) list.tokens.push_back(t.begin_of_text());
    if (json.contains("messages") && !json.contains("prompt") && !json.contains("text")) {
      add_messages(list, r, json, where, t, options);
    } else if (json.contains("text") && !json.contains("prompt")) {
      t.encode(string_of(json, "text", where), list.tokens);
      r.learnt = r.begin + 1;
    } else {
      t.encode(string_of(json, "prompt", where), list.tokens);
      r.learnt = std::max(list.tokens.size(), r.begin + 1);
      t.encode(string_of(json, "answer", where), list.tokens);
    }
    list.tokens.push_back(t.end_of_text());
    r.end = list.tokens.size();
    if (r.end - r.begin < (options.begin_of_text ? 3u : 2u)) throw io::error(where, "the record is empty");
    if (r.end - r.begin - 1 > static_cast<std::size_t>(options.sequence)) shorten(list, r, where, options);
    if (r.end == r.begin) return;
    list.records.push_back(r);
  });
}

std::unique_ptr<window_source> pack_records(record_list list, const data_options& options, const tokenizer& t) {
  return std::make_unique<packed_windows>(std::move(list), options, t);
}

}  // namespace rotoscale::program
