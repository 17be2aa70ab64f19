// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>
#include <string>

#include "report/parts.hpp"
#include "rotoscale/io/append_file.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "trainer/log.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr const char* columns[] = {
    "event",     "step",          "tokens",       "seconds",         "loss",       "lr",
    "grad_norm", "recipe",        "tokens_per_s", "flops_per_s",     "roof_share", "loader_share",
    "val_loss",  "bits_per_byte", "windows",      "average_val_loss"};

std::string header() {
  std::string line;
  for (const char* column : columns) line += (line.empty() ? "" : ",") + std::string(column);
  return line + "\n";
}

std::string field(const ordered_json& value) {
  return value.is_null() ? "" : report_parts::csv_field(value.is_string() ? value.get<std::string>() : value.dump());
}

class csv_log : public log_sink {
 public:
  csv_log(const fs::path& path, const fs::path& log) : path_(path) {
    std::string text;
    for (const ordered_json& record : read_log(log)) {
      if (voids(record)) {
        text = rows_up_to(text, record.value("step", std::int64_t{0}));
        last_evaluation_ = last_evaluation_in(text);
      } else {
        text += row(record);
      }
    }
    replace(text);
  }

  void write(const ordered_json& record) override {
    if (voids(record)) {
      const std::string text =
          rows_up_to(io::read_file(path_).substr(header().size()), record.value("step", std::int64_t{0}));
      last_evaluation_ = last_evaluation_in(text);
      replace(text);
    } else if (const std::string line = row(record); !line.empty()) {
      file_.write(line);
    }
  }

 private:
  static bool voids(const ordered_json& record) {
    const std::string event = record.value("event", "");
    return event == "resume" || event == "rollback";
  }
  std::string row(const ordered_json& record) {
    const std::string event = record.value("event", "");
    if (event != "step" && event != "eval") return "";
    if (event == "eval") {  // a resumed run may repeat the evaluation of its first step
      const std::int64_t step = record.value("step", std::int64_t{0});
      if (step == last_evaluation_) return "";
      last_evaluation_ = step;
    }
    std::string line;
    for (const char* column : columns) {
      if (column != columns[0]) line += ",";
      if (record.contains(column)) line += field(record[column]);
    }
    return line + "\n";
  }
  /// A row is a line, since no name has a line break, and begins with event and step.
  static std::int64_t step_of(const std::string& row) { return std::stoll(row.substr(row.find(',') + 1)); }
  static std::string rows_up_to(const std::string& text, std::int64_t step) {
    std::string kept;
    std::istringstream rows(text);
    for (std::string row; std::getline(rows, row);) {
      if (step_of(row) <= step) kept += row + "\n";
    }
    return kept;
  }
  static std::int64_t last_evaluation_in(const std::string& text) {
    std::int64_t last = -1;
    std::istringstream rows(text);
    for (std::string row; std::getline(rows, row);) {
      if (row.starts_with("eval,")) last = step_of(row);
    }
    return last;
  }
  void replace(const std::string& rows) {
    io::write_file_atomically(path_, header() + rows);
    file_ = io::append_file(path_, io::append_file::mode::append);
  }

  fs::path path_;
  io::append_file file_;
  std::int64_t last_evaluation_ = -1;  ///< step of its row; -1: none
};

}  // namespace

std::unique_ptr<log_sink> make_csv_log(const fs::path& path, const fs::path& log) {
  return std::make_unique<csv_log>(path, log);
}

}  // namespace rotoscale::program
