// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// report.html: one file without scripts or references to other files. Colours follow the reader's light or dark
// setting; plots are images in the page.

#include <algorithm>

#include "report/parts.hpp"

namespace rotoscale::program::report_parts {

namespace {

constexpr const char* style_sheet = R"(
:root { color-scheme: light dark; --page: #ffffff; --text: #1b1f24; --soft: #5b6470; --line: #d5dae0; --band: #f4f6f8;
  --mark: #e8f1f8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --text: #e4e7eb; --soft: #a0a9b4; --line: #363c44; --band: #1c2025; --mark: #1d2b36; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 74rem; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 0.8rem; padding-bottom: 0.3rem; border-bottom: 1px solid var(--line); }
p { max-width: 46rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.25rem 1.25rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
caption { text-align: left; color: var(--soft); padding-bottom: 0.6rem; }
th, td { padding: 0.4rem 0.5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; }
th.name { text-align: left; font-weight: 600; white-space: normal; overflow-wrap: anywhere; min-width: 11rem; }
th.name small { display: block; font-weight: 400; color: var(--soft); }
tr.baseline th, tr.baseline td { background: var(--mark); }
figure { margin: 1.2rem 0 2rem; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: 0.92rem; max-width: 46rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; background: var(--band); }
summary { cursor: pointer; padding: 0.5rem 0.8rem; overflow-wrap: anywhere; }
details h3 { font-size: 0.95rem; margin: 0.4rem 0.8rem; }
@media print { :root { color-scheme: light; } body { max-width: none; padding: 0; font-size: 9pt; }
  .scroll { overflow: visible; } h2 { break-after: avoid; } tr, figure { break-inside: avoid; } }
pre { margin: 0; padding: 0.4rem 0.8rem 0.8rem; overflow-x: auto; font-size: 0.82rem; line-height: 1.45; }
)";

std::string element(const std::string& name, const std::string& html) {
  return "<" + name + ">" + html + "</" + name + ">";
}

std::string plain(const json& v) { return v.is_string() ? v.get<std::string>() : v.dump(); }

/// The value that all start records share, or each arm's own.
std::string field_text(const comparison& c, const std::string& key) {
  const json shared = shared_field(c, key);
  if (shared.is_array()) {
    std::vector<std::string> values;
    for (const json& v : shared) values.push_back(plain(v));
    return join(values);
  }
  if (!shared.is_null())
    return shared.is_number_integer() && key != "seed" ? grouped(shared.get<std::int64_t>()) : plain(shared);
  std::vector<std::string> values;
  for (const arm& a : c.arms) {
    const json own = a.start.value(key, json());
    if (!own.is_null()) values.push_back(a.name + " " + plain(own));
  }
  return values.empty() ? "not in the log" : "differs: " + join(values);
}

json config_of(const arm& a) {
  const json config = a.start.value("config", json::object());
  return config.is_object() ? config : json::object();
}

/// "hidden_size 128, layers 4": the plain values of one section of the baseline's configuration.
std::string section_text(const comparison& c, const char* section) {
  const json config = config_of(c.base());
  const json values = config.value(section, json());
  if (values.is_string()) return values.get<std::string>();
  std::string s;
  if (!values.is_object()) return s;
  for (const auto& [key, value] : values.items()) {
    if (value.is_structured() || value.is_null() || value == "") continue;
    s += (s.empty() ? "" : ", ") + key + " " + plain(value);
  }
  return s;
}

std::string both(const std::string& first, const std::string& second) {
  return second.empty() ? first : first + " (" + second + ")";
}

/// A CPU's description has its threads.
std::string device_text(const comparison& c) {
  const std::string device = field_text(c, "device");
  return device.find(" threads") != device.npos ? device : both(device, field_text(c, "threads") + " threads");
}

std::string trained(const comparison& c) {
  const arm& base = c.base();
  const auto row = [](const char* name, const std::string& value) {
    return element("dt", name) + element("dd", escape_html(value)) + "\n";
  };
  std::string amount = grouped(base.tokens) + " tokens in " + grouped(base.step) + " steps";
  std::vector<std::string> others;
  for (const arm& a : c.arms) {
    if (a.step == base.step && a.tokens == base.tokens) continue;
    others.push_back(a.name + " " + grouped(a.tokens) + " in " + grouped(a.step));
  }
  amount += others.empty() ? ", each arm" : "; " + join(others);
  return "<dl>\n" +
         row("Model",
             both(field_text(c, "parameters") + " parameters", section_text(c, model_section(config_of(c.base()))))) +
         row("Data", both(field_text(c, "train_tokens") + " training tokens, " + field_text(c, "val_tokens") +
                              " validation tokens",
                          section_text(c, "data"))) +
         row("Trained on", amount) + row("Settings", both(base.name, section_text(c, "train"))) +
         row(has_several_seeds(c) ? "Seeds" : "Seed", field_text(c, "seed")) +
         row("Version", both(field_text(c, "version"), "commit " + field_text(c, "commit"))) +
         row("Device", device_text(c)) + row("Compiler", field_text(c, "compiler")) + "</dl>\n";
}

std::string table(const comparison& c) {
  std::string s =
      "<div class=\"scroll\" role=\"region\" aria-label=\"Ranked table\" tabindex=\"0\">\n<table>\n<caption>"
      "Arms by final validation loss, in nats per token (bits per byte is nats / ln 2 where a token is a "
      "byte). The gap is to " +
      escape_html(c.base().name) + ". " + escape_html(table_note(c)) + " " + escape_html(windows_note(c)) +
      " arms.csv has more columns.</caption>\n<thead><tr>";
  for (const char* head : {"Rank", "Arm", "Seeds", "Final", "S.d. over seeds", "Bits per byte", "Gap to baseline",
                           "Best", "Tokens/s", "Status"}) {
    s += std::string("<th scope=\"col\"") + (std::string_view(head) == "Arm" ? " class=\"name\">" : ">") + head +
         "</th>";
  }
  s += "</tr></thead>\n<tbody>\n";
  constexpr double ln2 = 0.69314718055994530942;
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    const standing& p = c.standings[i];
    const std::string recipe = recipe_text(a);
    const std::string small = recipe == a.name ? "" : "<small>" + escape_html(recipe) + "</small>";
    s += i == c.baseline ? "<tr class=\"baseline\">" : "<tr>";
    s += element("td", p.rank > 0 ? std::to_string(p.rank) : none);
    s += "<th scope=\"row\" class=\"name\">" + escape_html(a.name) + small + "</th>";
    for (const std::string& cell :
         {seeds_text(a), fixed(a.final_loss, 4), p.final ? fixed(p.final->deviation, 4) : none,
          a.final_loss ? fixed(*a.final_loss / ln2, 4) : none, gap_text(p, i == c.baseline), fixed(a.best_loss, 4),
          fixed(tokens_per_second(a), 0), std::string(status_text(a.status))}) {
      s += element("td", escape_html(cell));
    }
    s += "</tr>\n";
  }
  return s + "</tbody>\n</table>\n</div>\n";
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = i; k < i + 3; ++k) three = three << 8 | (k < bytes.size() ? bytes[k] & 0xFFu : 0u);
    for (std::size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : digits[three >> (18 - 6 * k) & 63];
  }
  return text;
}

std::string figures(const std::vector<plot>& plots, bool statistics) {
  std::string s;
  for (const plot& p : plots) {
    if (p.svg.empty() || p.statistics != statistics) continue;
    s += "<figure>\n<img alt=\"" + escape_html(p.title) + "\" src=\"data:image/svg+xml;base64," + base64(p.svg) +
         "\">\n<figcaption>" + escape_html(p.caption) + "</figcaption>\n</figure>\n";
  }
  return s.empty()
             ? "<p>No plots: gnuplot was not available when this report was made, or there was nothing to draw.</p>\n"
             : s;
}

std::string recipes(const comparison& c) {
  std::string s;
  for (const arm& a : c.arms) {
    s += "<details><summary>" + escape_html(a.name) + ": " + escape_html(recipe_text(a)) + "</summary>\n";
    for (const json& entry : a.start.at("schedule")) {
      s += "<h3>From step " + entry.at("from_step").dump() + "</h3>\n<pre>" + escape_html(entry.at("recipe").dump(2)) +
           "</pre>\n";
    }
    s += "</details>\n";
  }
  return s + "<details><summary>Configuration of " + escape_html(c.base().name) + "</summary>\n<pre>" +
         escape_html(config_of(c.base()).dump(2)) + "</pre>\n</details>\n";
}

}  // namespace

std::string html_page(const comparison& c, const std::vector<plot>& plots, const std::string& title,
                      const std::string& study) {
  const std::string name = escape_html(one_line(title));
  std::string s =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>" +
      name + "</title>\n<style>" + style_sheet + "</style>\n</head>\n<body>\n<main>\n<h1>" + name + "</h1>\n" + study;
  s += "<section>\n<h2>Ranking</h2>\n" + table(c) + "</section>\n";
  s += "<section>\n<h2>Plots</h2>\n" + figures(plots, false) + "</section>\n";
  s += "<section>\n<h2>What this run says</h2>\n";
  for (const std::string& paragraph : findings(c)) s += element("p", escape_html(paragraph)) + "\n";
  s += "</section>\n";
  if (std::any_of(plots.begin(), plots.end(), [](const plot& p) { return p.statistics; })) {
    s += "<section>\n<h2>Quantization</h2>\n" + figures(plots, true) + "</section>\n";
  }
  s += "<section>\n<h2>What was trained</h2>\n" + trained(c) + "</section>\n";
  s += "<section>\n<h2>Effective recipes</h2>\n" + recipes(c) + "</section>\n";
  return s + "</main>\n</body>\n</html>\n";
}

}  // namespace rotoscale::program::report_parts
