// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The log of a run. Its JSON lines are the source. TensorBoard and MLPerf lines are written from the same records.
// docs/reference/logs.md has the fields.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "clock.hpp"
#include "data/data.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/io/jsonl.hpp"
#include "trainer/state.hpp"

namespace rotoscale::program {

/// Version of the records.
inline constexpr int log_schema = 1;

/// Receives every record. A "resume" or "rollback" voids the records of later steps.
class log_sink {
 public:
  virtual ~log_sink() = default;
  virtual void write(const nlohmann::ordered_json& record) = 0;
};

class run_log {
 public:
  /// Appends to the lines in `path`. Throws io::error, also if another process has the file locked.
  explicit run_log(const std::filesystem::path& path) : lines_(path, io::jsonl_writer::mode::append) {}

  void add(std::unique_ptr<log_sink> sink) { sinks_.push_back(std::move(sink)); }
  /// Writes the record with the time of day.
  void write(nlohmann::ordered_json record) {
    record["time"] = time_of_day();
    lines_.write(record);
    for (const auto& sink : sinks_) sink->write(record);
  }
  /// Returns when all lines are on disk.
  void flush() { lines_.flush(); }
  void clear() { lines_.clear(); }

 private:
  io::jsonl_writer lines_;
  std::vector<std::unique_ptr<log_sink>> sinks_;
};

/// The record "start": everything that the run depends on. `roof`: see throughput.hpp.
nlohmann::ordered_json start_record(const trainer_state& state, const train::session& model, const corpus& text,
                                    int threads, const nlohmann::ordered_json& roof);

/// Reads the records of a log. Throws io::error for a record that no run writes: without an event, or with a step or
/// seconds that are not numbers.
std::vector<nlohmann::ordered_json> read_log(const std::filesystem::path& log);

/// Does the log begin with a "start" record?
bool log_begins_with_start(const std::filesystem::path& log);

/// Training seconds of a step according to the log; 0 without an entry. Checkpoints hold no clock.
double logged_seconds(const std::filesystem::path& log, std::int64_t step);

/// Creates `directory` and a new TensorBoard event file in it.
std::unique_ptr<log_sink> make_tensorboard_log(const std::filesystem::path& directory);

}  // namespace rotoscale::program
