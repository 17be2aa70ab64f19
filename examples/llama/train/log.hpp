// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The log of a run. Its JSON lines are the truth; CSV, TensorBoard's event files and MLPerf's lines are made of the
// same records as these are written. docs/reference/logs.md has the fields.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "clock.hpp"
#include "data/data.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/io/jsonl.hpp"
#include "train/state.hpp"

namespace rotoscale::llama_program {

/// Of the records.
inline constexpr int log_schema = 1;

/// Hears of every record. A "resume" or "rollback" voids what was said of later steps than its own.
class log_sink {
 public:
  virtual ~log_sink() = default;
  virtual void write(const nlohmann::ordered_json& record) = 0;
};

class run_log {
 public:
  /// Goes on with the lines in `path`, if there are any. Throws io::error, also while another process writes them.
  explicit run_log(const std::filesystem::path& path) : lines_(path, io::jsonl_writer::mode::append) {}

  void add(std::unique_ptr<log_sink> sink) { sinks_.push_back(std::move(sink)); }
  /// Adds the time of day.
  void write(nlohmann::ordered_json record) {
    record["time"] = time_of_day();
    lines_.write(record);
    for (const auto& sink : sinks_) sink->write(record);
  }
  /// All lines so far are on disk when this returns.
  void flush() { lines_.flush(); }
  void clear() { lines_.clear(); }

 private:
  io::jsonl_writer lines_;
  std::vector<std::unique_ptr<log_sink>> sinks_;
};

/// "start": everything that the run depends on. `roof`: see throughput.hpp.
nlohmann::ordered_json start_record(const trainer_state& state, const llama::session& model, const corpus& text,
                                    int threads, const nlohmann::ordered_json& roof);

/// The records of a log. Throws io::error naming one that this program did not write: without an event, or with a step
/// or seconds that are no numbers.
std::vector<nlohmann::ordered_json> read_log(const std::filesystem::path& log);

/// Has a log its "start" record?
bool log_begins_with_start(const std::filesystem::path& log);

/// Training seconds that a log gives for a step; 0 where it says nothing of it. Checkpoints hold no clock.
double logged_seconds(const std::filesystem::path& log, std::int64_t step);

/// metrics.csv: a row for each step and evaluation of `log`, then of what is written; rows that become void are
/// removed.
std::unique_ptr<log_sink> make_csv_log(const std::filesystem::path& path, const std::filesystem::path& log);

/// A new event file of TensorBoard in `directory`, which is made.
std::unique_ptr<log_sink> make_tensorboard_log(const std::filesystem::path& directory);

}  // namespace rotoscale::llama_program
