// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/digests.hpp"

#include <charconv>
#include <cinttypes>

#include "format_text.hpp"

namespace rotoscale::program {

using nlohmann::ordered_json;

namespace {

constexpr int digests_version = 4;

int version_of(const ordered_json& record) {
  const bool has = record.contains("version") && record["version"].is_number_integer();
  return has ? record["version"].get<int>() : 1;
}
/// Throws io::error.
void check_version(const std::filesystem::path& file, int version) {
  if (version == digests_version) return;
  throw io::error(file.string(),
                  "version " + std::to_string(version) + " is of " +
                      (version > digests_version
                           ? "a later mini-llama than this"
                           : "an earlier mini-llama, whose digests stood for other operations; without the file, the "
                             "checkpoint alone is compared"));
}

std::string hex(std::uint64_t digest) { return format_text("%016" PRIx64, digest); }

/// Throws std::invalid_argument.
std::uint64_t parse_hex(const std::string& text) {
  std::uint64_t digest = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, digest, 16);
  if (text.size() != 16 || error != std::errc() || end != last) throw std::invalid_argument(text);
  return digest;
}

/// Throws std::invalid_argument or an exception of nlohmann::json.
std::int64_t read_count(const ordered_json& record, const char* key) {
  const ordered_json& value = record.at(key);
  if (!value.is_number_integer() || value < 0) throw std::invalid_argument(key);
  return value.get<std::int64_t>();
}

}  // namespace

step_range parse_steps(const std::string& text, const std::string& where) {
  step_range r;
  const std::size_t colon = text.find(':');
  const auto read = [&](std::size_t first, std::size_t last, std::int64_t& to) {
    const auto [end, error] = std::from_chars(text.data() + first, text.data() + last, to);
    return error == std::errc() && end == text.data() + last && to >= 0;
  };
  if (colon == text.npos || !read(0, colon, r.first) || !read(colon + 1, text.size(), r.last) || r.first >= r.last) {
    throw io::error(where, "'" + text + "' is not A:B with steps 0 <= A < B");
  }
  return r;
}

digest_recorder::digest_recorder(nn::digest_observer& digests, step_range steps, std::filesystem::path file)
    : digests_(&digests), steps_(steps), file_(std::move(file)) {}

std::string read_digest_steps(const std::filesystem::path& file) {
  std::string steps;
  if (!std::filesystem::exists(file)) return steps;
  io::for_each_record(file, [&](const ordered_json& record, std::size_t line) {
    if (!record.is_object()) return;
    check_version(file, version_of(record));  // a resumed run appends the same version
    if (!record.contains("digest_steps")) return;
    const std::string where = file.string() + ": line " + std::to_string(line) + ": digest_steps";
    const ordered_json& value = record["digest_steps"];
    steps = value.is_string() ? value.get<std::string>() : value.dump();
    parse_steps(steps, where);
  });
  return steps;
}

void digest_recorder::open() {
  const std::string steps = std::to_string(steps_.first) + ":" + std::to_string(steps_.last);
  const bool is_known = read_digest_steps(file_) == steps;
  out_.emplace(file_, io::jsonl_writer::mode::append);
  if (!is_known) out_->write({{"version", digests_version}, {"digest_steps", steps}});
}

void digest_recorder::begin(std::int64_t step, std::int64_t skipped_steps) {
  step_ = step;
  skipped_steps_ = skipped_steps;
  seen_.clear();
  if (!out_ && step <= steps_.last) open();
  if (!steps_.contains(step)) return;
  digests_->take_digests([this](const nn::operation_digest& d) { seen_.push_back(d); });
}

void digest_recorder::end() {
  digests_->take_digests(nullptr);
  if (!steps_.contains(step_)) return;
  ordered_json operations = ordered_json::array();
  for (const nn::operation_digest& d : seen_) operations.push_back({d.operation, hex(d.digest)});
  out_->write(
      {{"version", digests_version}, {"step", step_}, {"skipped_steps", skipped_steps_}, {"operations", operations}});
}

digest_comparison::digest_comparison(nn::digest_observer& digests, const std::filesystem::path& file)
    : digests_(&digests) {
  has_file_ = std::filesystem::exists(file);
  if (!has_file_) return;
  const std::size_t unfinished = io::for_each_record(file, [&](const ordered_json& record, std::size_t line) {
    if (record.is_object()) check_version(file, version_of(record));
    try {
      if (!record.contains("digest_steps")) add(record);
    } catch (const std::exception&) {
      throw io::error(file.string(), "line " + std::to_string(line) + ": no record of a step's digests");
    }
  });
  if (unfinished == 0) return;
  throw io::error(file.string(), "line " + std::to_string(unfinished) +
                                     ": ends in the middle of a record; the steps of the other lines are compared "
                                     "when it is removed");
}

void digest_comparison::add(const ordered_json& record) {
  std::vector<nn::operation_digest> operations;
  for (const ordered_json& o : record.at("operations")) {
    operations.push_back({o.at(0).get<std::string>(), parse_hex(o.at(1).get<std::string>())});
  }
  // A run that was killed and resumed has computed some steps twice. The later digests count.
  recorded_[{read_count(record, "step"), read_count(record, "skipped_steps")}] = std::move(operations);
}

std::string digest_comparison::place(const std::string& operation) const {
  return "step " + std::to_string(step_) + ", operation " + std::to_string(at_) + " (" + operation + ")";
}

void digest_comparison::compare(const nn::operation_digest& d) {
  if (difference_) return;
  const std::vector<nn::operation_digest>& want = *of_step_;
  const std::size_t i = at_++;
  ++compared_;
  if (i >= want.size()) {
    difference_ = place(d.operation) + ": the run had no such operation";
  } else if (want[i].operation != d.operation) {
    difference_ = place(d.operation) + ": the run had " + want[i].operation + " here";
  } else if (want[i].digest != d.digest) {
    difference_ = place(d.operation) + ": digest " + hex(d.digest) + ", the run's is " + hex(want[i].digest);
  }
}

void digest_comparison::begin(std::int64_t step, std::int64_t skipped_steps) {
  step_ = step;
  at_ = 0;
  ++steps_;
  const auto found = recorded_.find({step, skipped_steps});
  of_step_ = difference_ || found == recorded_.end() ? nullptr : &found->second;
  if (of_step_ == nullptr) return;
  ++steps_compared_;
  digests_->take_digests([this](const nn::operation_digest& d) { compare(d); });
}

void digest_comparison::end() {
  digests_->take_digests(nullptr);
  if (of_step_ == nullptr || difference_ || at_ == of_step_->size()) return;
  const std::string& missing = (*of_step_)[at_++].operation;
  difference_ = place(missing) + ": the run had it, the replay has not";
}

std::string digest_comparison::summary() const {
  if (!has_file_) return "";
  return std::to_string(compared_) + " digests of " + std::to_string(steps_compared_) + " of " +
         std::to_string(steps_) + " steps";
}

}  // namespace rotoscale::program
