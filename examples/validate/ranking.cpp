// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "ranking.hpp"

#include <algorithm>
#include <iostream>

#include "kernel_options.hpp"
#include "rotoscale/io/atomic_file.hpp"

namespace rotoscale::validate {

namespace {

/// Does it explain any element? Others are not listed. Elements that differ only in NaN bits count (--nan any).
bool explains_any(const explanation& e) { return e.explained + e.nan_bits != 0; }

/// The model, with the options to add.
std::string name_of(const ranking& r, const explanation& e) {
  const std::string options = options_of(r.given, e.use);
  return e.model + (options.empty() ? "" : " with " + options);
}

std::vector<std::string> names_of(const ranking& r, const std::vector<std::size_t>& group) {
  std::vector<std::string> names;
  for (const std::size_t i : group) names.push_back(name_of(r, r.all[i]));
  return names;
}

/// The conclusion from the list, by line.
std::vector<std::string> conclusion(const ranking& r) {
  std::vector<std::string> lines;
  const bool tells = !r.told_file.empty();
  const std::string nothing_written = tells ? "; --tell-apart wrote nothing" : "";
  if (!explains_any(r.all.front())) {
    lines.push_back("nothing explains any of it" + nothing_written);
  } else if (!r.explains_half()) {
    lines.push_back("nothing that was tried explains half of this result (docs/reference/validate.md)" +
                    nothing_written);
  } else if (r.tied > 1) {
    lines.push_back("the first " + std::to_string(r.tied) + " cannot be told apart on this input" +
                    (tells ? "" : "; --tell-apart FILE writes one that tells more apart"));
    if (tells) {
      lines.push_back(r.told.empty() ? "no kind of case tells them apart; nothing was written"
                                     : r.told_file + " tells apart, once the kernel's d is added:");
    }
    for (const std::vector<std::size_t>& group : r.told) {
      std::string line;
      for (const std::string& name : names_of(r, group)) line += (line.empty() ? "  " : " = ") + name;
      lines.push_back(line);
    }
  } else if (tells) {
    lines.push_back("nothing ties with the first" + nothing_written);
  }
  if (r.is_sample() && r.different.value_or(0) != 0) {
    lines.push_back("but not all of the result: " + std::to_string(*r.different) + " of " + std::to_string(r.elements) +
                    " elements differ");
  }
  return lines;
}

nlohmann::ordered_json json_of(const ranking& r, const explanation& e) {
  return {{"model", e.model},
          {"options", options_of(r.given, e.use)},
          {"evidence", e.evidence_text},
          {"explained", e.explained},
          {"nan_bits", e.nan_bits}};
}

}  // namespace

ranking ranking_of(const char* what, const gemm_case& x, const kernel_use& given, std::vector<explanation> all,
                   bool any_nan, thread_pool& pool) {
  ranking r{what, given, std::move(all), x.outputs()};
  if (explains_any(r.all.front())) {
    while (r.tied < r.all.size() && r.all[r.tied].which == r.all.front().which) ++r.tied;
  }
  if (!r.is_sample()) r.different = r.elements - r.all.front().explained;
  if (!r.is_sample() || r.all.front().explained != r.looked_at()) return r;
  for (std::size_t i = 0; i < r.tied && r.different != 0; ++i) {
    const index_t different = compare(x, r.all[i].use, any_nan, pool).different;
    if (r.different && different >= *r.different) continue;
    r.different = different;
    r.best = i;
  }
  return r;
}

void print(const ranking& r) {
  std::cout << r.what << " by elements explained, of " << r.looked_at()
            << (r.is_sample() ? ", a sample of " + std::to_string(r.elements) : "") << ":\n";
  for (const explanation& e : r.all) {
    if (!explains_any(e)) continue;
    std::cout << "  " << e.explained << "  " << e.model << "  (" << e.evidence_text << ")";
    if (const std::string options = options_of(r.given, e.use); !options.empty()) std::cout << ", with " << options;
    if (e.nan_bits != 0) std::cout << ", " << e.nan_bits << " more except for NaN bits (--nan any)";
    std::cout << "\n";
  }
  for (const std::string& line : conclusion(r)) std::cout << line << "\n";
}

void add_to(nlohmann::ordered_json& report, const ranking& r) {
  report["identical"] = r.is_identical();
  report["elements"] = r.elements;
  report["looked_at"] = r.looked_at();
  report["different"] = nullptr;
  if (r.different) report["different"] = *r.different;
  report["best"] = nullptr;
  if (r.explains_half()) report["best"] = json_of(r, r.all[r.best]);
  report["tied"] = r.tied;
  report["candidates"] = nlohmann::ordered_json::array();
  for (const explanation& e : r.all) {
    if (explains_any(e)) report["candidates"].push_back(json_of(r, e));
  }
  if (!r.told_file.empty()) {
    report["told_apart"] = nlohmann::ordered_json::array();
    for (const std::vector<std::size_t>& group : r.told) report["told_apart"].push_back(names_of(r, group));
  }
  report["conclusion"] = conclusion(r);
}

void write_report(const std::string& path, const nlohmann::ordered_json& report) {
  io::write_file_atomically(path, report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace rotoscale::validate
