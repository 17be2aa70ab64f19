// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Numbers and names as text: formatting without locales, escaping for HTML, CSV and gnuplot (arm names come from
// users), and the table for a terminal.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "report/parts.hpp"

namespace rotoscale::program::report_parts {

std::string fixed(double value, int digits) {
  std::array<char, 400> text{};  // 309 digits before the point at most
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
  std::string s(text.data(), end);
  // A small negative number must not show as minus zero.
  if (s.front() == '-' && s.find_first_not_of("-0.") == std::string::npos) s.erase(0, 1);
  return s;
}

std::string fixed(const maybe& value, int digits) { return value ? fixed(*value, digits) : none; }

std::string signed_fixed(double value, int digits) {
  std::string s = fixed(value, digits);
  const bool zero = s.find_first_not_of("0.") == std::string::npos;
  return s.front() == '-' || zero ? s : "+" + s;
}

std::string gap_text(const standing& s, bool is_baseline) {
  if (is_baseline) return "baseline";
  if (!s.gap) return none;
  return estimate_text(*s.gap);
}

int gap_decimals(const maybe& half_width) {
  if (!half_width) return 2;
  return *half_width > 0 ? std::clamp(1 - static_cast<int>(std::floor(std::log10(*half_width))), 1, 6) : 4;
}

int gap_decimals(const arm& a) { return a.seeds.size() > 1 ? 3 : 2; }

std::string estimate_text(const estimate& e) {
  const int decimals = gap_decimals(e.half_width);
  const std::string mean = signed_fixed(e.mean, decimals);
  if (!e.half_width) return mean;
  return mean + " [" + signed_fixed(e.mean - *e.half_width, decimals) + ", " +
         signed_fixed(e.mean + *e.half_width, decimals) + "]";
}

std::string seeds_text(const arm& a) {
  const auto done = static_cast<std::size_t>(
      std::count_if(a.seeds.begin(), a.seeds.end(), [](const seed_result& s) { return s.final_loss.has_value(); }));
  const std::string all = std::to_string(a.seeds.size());
  return done == a.seeds.size() || a.seeds.size() == 1 ? all : std::to_string(done) + " of " + all;
}

std::string windows_note(const comparison& c) {
  const json config = c.base().start.value("config", json::object());
  const json train = config.is_object() ? config.value("train", json::object()) : json::object();
  if (!train.is_object()) return "";
  const json last = train.value("final_eval_windows", json()), others = train.value("eval_windows", json());
  if (!last.is_number_integer() || !others.is_number_integer() || last == others) return "";
  return "Final losses, with which the curves end, are over " + grouped(last.get<std::int64_t>()) +
         " windows of the held-out text; earlier points are over " + grouped(others.get<std::int64_t>()) + ".";
}

std::string table_note(const comparison& c) {
  if (has_several_seeds(c)) {
    return "Losses are means over seeds; gaps are means over pairs of equal seeds, with their interval of 95 % "
           "(Student's t). Equal ranks: every interval of a difference contains zero.";
  }
  return "One seed an arm: gaps of such models move by several hundredths of a nat between seeds, so arms closer "
         "than " +
         fixed(one_seed_resolution, 2) + " nats are not ranked against each other.";
}

std::string exact(const maybe& value) {
  if (!value) return "";
  std::array<char, 64> text{};
  return std::string(text.data(), std::to_chars(text.data(), text.data() + text.size(), *value).ptr);
}

std::string grouped(std::int64_t value) {
  std::string s = std::to_string(value);
  const std::size_t first = s.front() == '-' ? 1 : 0;
  for (std::size_t i = s.size(); i > first + 3; i -= 3) s.insert(i - 3, ",");
  return s;
}

std::string join(const std::vector<std::string>& items) {
  std::string s;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) s += i + 1 == items.size() ? " and " : ", ";
    s += items[i];
  }
  return s;
}

std::string one_line(std::string_view text) {
  std::string s(text);
  for (char& c : s)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return s;
}

std::string escape_html(std::string_view text) {
  std::string s;
  s.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': s += "&amp;"; break;
      case '<': s += "&lt;"; break;
      case '>': s += "&gt;"; break;
      case '"': s += "&quot;"; break;
      case '\'': s += "&#39;"; break;
      default:
        // HTML has no way to write the other control characters, not even as references.
        s += (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f ? ' ' : c;
    }
  }
  return s;
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string s = "\"";
  for (const char c : text) {
    if (c == '"') s += '"';
    s += c;
  }
  return s + '"';
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) line += (&field == &fields.front() ? "" : ",") + csv_field(field);
  return line + "\n";
}

std::string gnuplot_string(std::string_view text) {
  // Inside single quotes gnuplot substitutes nothing (no backquotes, no macros); only the quote itself is special.
  std::string s = "'";
  for (const char c : one_line(text)) {
    if (c == '\'') s += '\'';
    s += c;
  }
  return s + "'";
}

namespace {

std::size_t display_width(const std::string& s) {
  return static_cast<std::size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::vector<std::string>> table_rows(const comparison& c) {
  std::vector<std::vector<std::string>> rows = {{"#", "arm", "recipe", "seeds", "initial", "final", "s.d.",
                                                 "final/initial", "gap to baseline", "best", "tokens/s", "relative",
                                                 "status"}};
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    const standing& s = c.standings[i];
    rows.push_back({s.rank > 0 ? std::to_string(s.rank) : none, one_line(a.name), one_line(recipe_text(a)),
                    seeds_text(a), fixed(a.initial_loss, 4), fixed(a.final_loss, 4),
                    s.final ? fixed(s.final->deviation, 4) : none, s.ratio ? fixed(100 * *s.ratio, 1) + " %" : none,
                    gap_text(s, i == c.baseline), fixed(a.best_loss, 4), fixed(tokens_per_second(a), 0),
                    s.speed ? fixed(*s.speed, 2) + "x" : none, status_text(a.status)});
  }
  return rows;
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& left) {
  std::vector<std::size_t> width(rows.front().size(), 0);
  for (const auto& row : rows)
    for (std::size_t j = 0; j < row.size(); ++j) width[j] = std::max(width[j], display_width(row[j]));
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t j = 0; j < row.size(); ++j) {
      const bool is_left = std::find(left.begin(), left.end(), j) != left.end();
      const std::string pad(width[j] - display_width(row[j]), ' ');
      if (j > 0) text += "  ";
      text += is_left ? row[j] + (j + 1 < row.size() ? pad : "") : pad + row[j];
    }
    text += '\n';
  }
  return text;
}

std::string text_table(const comparison& c) {
  const auto rows = table_rows(c);
  return aligned(rows, {1, 2, rows.front().size() - 1}) + "Losses in nats per token. " + table_note(c) + "\n";
}

}  // namespace rotoscale::program::report_parts
