// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "train/digests.hpp"

#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "rotoscale/io/jsonl.hpp"

namespace rotoscale::llama_program {

using nlohmann::ordered_json;

namespace {

constexpr int digests_version = 2;
int version_of(const ordered_json& record) {
  const bool has = record.is_object() && record.contains("version") && record["version"].is_number_integer();
  return has ? record["version"].get<int>() : 1;
}
/// Version 1, which the file does not name, has no digests of operands and statistics.
bool is_in_version(int version, const std::string& operation) {
  const auto is = [&](std::string_view name) { return operation.starts_with(name); };
  return version > 1 || !(is("quantize ") || is("observe ") || is("compare "));
}

std::string hex(std::uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, digest);
  return text;
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

digest_recorder::digest_recorder(nn::digest_backend& ops, step_range steps, std::filesystem::path file)
    : ops_(&ops), steps_(steps), file_(std::move(file)) {}

void digest_recorder::begin(std::int64_t step) {
  step_ = step;
  seen_.clear();
  if (!steps_.contains(step)) return;
  ops_->take_digests([this](const nn::operation_digest& d) { seen_.push_back(d); });
}

void digest_recorder::end() {
  ops_->take_digests(nullptr);
  if (!steps_.contains(step_)) return;
  ordered_json operations = ordered_json::array();
  for (const nn::operation_digest& d : seen_) operations.push_back({d.operation, hex(d.digest)});
  using mode = io::jsonl_writer::mode;
  io::jsonl_writer out(file_, fresh_ && step_ == steps_.first + 1 ? mode::write : mode::append);
  fresh_ = false;
  out.write({{"version", digests_version}, {"step", step_}, {"operations", operations}});
}

digest_comparison::digest_comparison(nn::digest_backend& ops, const std::filesystem::path& file) : ops_(&ops) {
  if (!std::filesystem::exists(file)) return;
  for (const ordered_json& record : io::read_jsonl(file)) {
    const int version = version_of(record);
    if (version > digests_version) {
      throw io::error(file.string(), "version " + std::to_string(version) + " is of a later mini-llama than this");
    }
    try {
      step_digests& of_step = recorded_[record.at("step").get<std::int64_t>()];
      of_step = {version, {}};
      for (const ordered_json& o : record.at("operations")) {
        of_step.operations.push_back(
            {o.at(0).get<std::string>(), std::stoull(o.at(1).get<std::string>(), nullptr, 16)});
      }
    } catch (const std::exception&) {
      throw io::error(file.string(), "is no file of digests");
    }
  }
}

void digest_comparison::begin(std::int64_t step) {
  step_ = step;
  at_ = 0;
  const auto found = recorded_.find(step);
  if (found == recorded_.end() || difference_) return;
  ops_->take_digests([this, &of_step = found->second](const nn::operation_digest& d) {
    if (difference_ || !is_in_version(of_step.version, d.operation)) return;
    const std::vector<nn::operation_digest>& want = of_step.operations;
    const std::size_t i = at_++;
    ++compared_;
    const std::string where =
        "step " + std::to_string(step_) + ", operation " + std::to_string(i + 1) + " (" + d.operation + ")";
    if (i >= want.size()) {
      difference_ = where + ": the run had no such operation";
    } else if (want[i].operation != d.operation) {
      difference_ = where + ": the run had " + want[i].operation + " here";
    } else if (want[i].digest != d.digest) {
      difference_ = where + ": digest " + hex(d.digest) + ", the run's is " + hex(want[i].digest);
    }
  });
}

void digest_comparison::end() { ops_->take_digests(nullptr); }

}  // namespace rotoscale::llama_program
