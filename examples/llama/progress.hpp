// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A line on a terminal's stderr that is rewritten in place and never wraps; nothing where stderr is no terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace rotoscale::llama_program {

/// Told how much of something is done.
using progress_function = std::function<void(std::int64_t done, std::int64_t total)>;

class progress_line {
 public:
  explicit progress_line(bool wanted = true);
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;
  ~progress_line() { end(); }

  /// Ten times a second at most, but for `always`. `parts` are in the order of their importance: what the terminal has
  /// no room for is left out from the end, and the title first of all.
  void show(const std::string& title, const std::vector<std::string>& parts, bool always = false);
  /// Ends the line, so that what follows on the terminal has a line of its own.
  void end();

  /// Shows how much of `what` is done, with the time that is left at the rate so far.
  progress_function counter(std::string title, std::string what);

 private:
  bool visible_ = false;
  bool open_ = false;
  std::size_t width_ = 0;  ///< of what stands there now
  double last_ = -1;       ///< seconds
};

/// What fits `columns`: see progress_line::show.
std::string fit_line(const std::string& title, const std::vector<std::string>& parts, std::size_t columns);

/// "1:02:03", "2:03"
std::string duration_text(double seconds);

}  // namespace rotoscale::llama_program
