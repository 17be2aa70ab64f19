// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "clock.hpp"
#include "format_text.hpp"
#include "rotoscale/io/error.hpp"

namespace rotoscale::program {

namespace {

std::size_t terminal_columns() {
  struct winsize size {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto s = static_cast<long long>(std::clamp(seconds, 0.0, 3.6e8));
  return s < 3600 ? format_text("%lld:%02lld", s / 60, s % 60)
                  : format_text("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

std::string fit_line(const std::string& title, const std::vector<std::string>& parts, std::size_t columns) {
  std::string line;
  for (const std::string& part : parts) {
    const std::string next = (line.empty() ? "" : "  ") + part;
    if (!line.empty() && line.size() + next.size() > columns) break;
    line += next;
  }
  // A name may hold characters of several bytes or none at all: bytes are an upper bound of columns for nearly all.
  if (title.size() + 2 + line.size() <= columns) line = title + "  " + line;
  return line.substr(0, columns);
}

progress_line::progress_line(bool wanted) : visible_(wanted && ::isatty(STDERR_FILENO) != 0) {}

void progress_line::show(const std::string& title, const std::vector<std::string>& parts, bool always) {
  const double now = now_seconds();
  if (!visible_ || (!always && last_ >= 0 && now - last_ < 0.1)) return;
  last_ = now;
  // A terminal wraps after its last column.
  std::string line = fit_line(io::printable(title), parts, terminal_columns() - 1);
  const std::size_t width = line.size();
  if (width < width_) line.append(width_ - width, ' ');
  width_ = width;
  std::fprintf(stderr, "\r%s", line.c_str());
  open_ = true;
}

void progress_line::end() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
  width_ = 0;
  last_ = -1;
}

progress_function progress_line::counter(std::string title, std::string what) {
  return [this, title = std::move(title), what = std::move(what), start = now_seconds()](std::int64_t done,
                                                                                         std::int64_t total) {
    const double share = static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1));
    std::vector<std::string> parts = {what + format_text(" %.0f %%", 100 * share)};
    if (done > 0) parts.push_back("ETA " + duration_text((now_seconds() - start) * (1 / share - 1)));
    show(title, parts, done == 0 || done >= total);
  };
}

}  // namespace rotoscale::program
