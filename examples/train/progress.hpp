// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A line on stderr that is rewritten in place and never wraps; nothing if stderr is not a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace rotoscale::program {

/// Receives the progress of a task.
using progress_function = std::function<void(std::int64_t done, std::int64_t total)>;

class progress_line {
 public:
  explicit progress_line(bool wanted = true);
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;
  ~progress_line() { end(); }

  /// Shows the line, at most ten times a second unless `always`. `parts` are in order of importance. If the terminal is
  /// narrow, the title is dropped first, then parts from the end.
  void show(const std::string& title, const std::vector<std::string>& parts, bool always = false);
  /// Ends the line; later output begins a new one.
  void end();

  /// Counter for the task `what`, with the remaining time at the rate so far.
  progress_function counter(std::string title, std::string what);

 private:
  bool visible_ = false;
  bool open_ = false;
  std::size_t width_ = 0;  ///< of the line on the terminal
  double last_ = -1;       ///< seconds
};

/// The text that fits `columns`: see progress_line::show.
std::string fit_line(const std::string& title, const std::vector<std::string>& parts, std::size_t columns);

/// "1:02:03", "2:03"
std::string duration_text(double seconds);

}  // namespace rotoscale::program
