// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Which GEMM kernel for which shape: tables of measurements, one row a shape, in the manner of AITER's (ROCm/aiter,
// a4w4_blockscale_tuned_gemm.csv), which the library is built with. Looked up by the exact shape, then by M rounded up
// as AITER rounds it, else a heuristic decides. Two environment variables: ROTOSCALE_GPU_TUNED names another table,
// ROTOSCALE_GPU_KERNEL forces a kernel ("fast", or "fast/4" for four parts of K).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/api/gemm.hpp"
#include "gpu/dialect/arch.hpp"

namespace rotoscale::gpu {

/// What a kernel's speed depends on: A [m, k] · Bᵀ [n, k] of a format.
struct gemm_shape {
  bool fp8 = false;  ///< MXFP8, else MXFP4
  int m = 0, n = 0, k = 0;

  bool operator==(const gemm_shape&) const = default;
};
inline gemm_shape shape_of(const gemm_problem& p) {
  return {p.a.element != formats::e2m1, static_cast<int>(p.a.rows), static_cast<int>(p.b.rows),
          static_cast<int>(p.a.k)};
}
inline const char* format_name(const gemm_shape& s) { return s.fp8 ? "mxfp8" : "mxfp4"; }

/// Columns of the table, in this order, comma-separated, with a header line; lines that begin with # are comments.
struct tuned_row {
  gpu::arch arch = gpu::arch::other;
  int processors = 0;  ///< multiprocessors or compute units
  gemm_shape shape;
  std::string kernel;  ///< a contract's name
  int split_k = 1;
  double us = 0, tflops = 0;
  double error = 0;  ///< relative, Frobenius norm, against FP64
};

inline constexpr const char* tuned_header = "arch,units,format,m,n,k,kernel,split_k,us,tflops,error";

inline constexpr struct {
  const char* name;
  gemm_contract contract;
} contract_names[] = {
    {"reference", gemm_contract::reference}, {"accurate", gemm_contract::accurate}, {"fast", gemm_contract::fast}};

inline const char* to_text(gemm_contract contract) {
  for (const auto& c : contract_names) {
    if (c.contract == contract) return c.name;
  }
  return "";
}

/// "NAME" or "NAME/PARTS". False if it is neither.
inline bool parse_choice(std::string_view text, gemm_choice& choice) {
  const std::size_t slash = text.find('/');
  int parts = 1;
  if (slash != std::string_view::npos) {
    parts = 0;
    const std::string_view digits = text.substr(slash + 1);
    for (const char c : digits) {
      if (c < '0' || c > '9' || parts > 1000) return false;
      parts = 10 * parts + (c - '0');
    }
    if (digits.empty() || parts < 1) return false;
  }
  for (const auto& c : contract_names) {
    if (text.substr(0, slash) == c.name) {
      choice = {c.contract, parts};
      return true;
    }
  }
  return false;
}

/// Rows of a table. Empty `error`: all of it was understood; else "line N: what is wrong", and no rows.
inline std::vector<tuned_row> parse_tuned(std::istream& in, std::string& error) {
  std::vector<tuned_row> rows;
  std::string line;
  bool header = false;
  for (int number = 1; std::getline(in, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const auto fail = [&](const char* what) {
      error = "line " + std::to_string(number) + ": " + what;
      return std::vector<tuned_row>{};
    };
    if (!header) {
      if (line != tuned_header) return fail("the header is not the one of this version");
      header = true;
      continue;
    }
    std::vector<std::string> fields;
    std::istringstream text(line);
    for (std::string field; std::getline(text, field, ',');) fields.push_back(field);
    if (fields.size() != 11) return fail("eleven columns are needed");
    tuned_row row;
    row.arch = arch_from_name(fields[0]);
    if (fields[0] != to_text(row.arch)) return fail("no architecture has this name");
    row.shape.fp8 = fields[2] == "mxfp8";
    if (fields[2] != format_name(row.shape)) return fail("the format must be mxfp4 or mxfp8");
    row.kernel = fields[6];
    int* const whole[] = {&row.processors, &row.shape.m, &row.shape.n, &row.shape.k, &row.split_k};
    const std::size_t whole_at[] = {1, 3, 4, 5, 7};
    double* const real[] = {&row.us, &row.tflops, &row.error};
    for (std::size_t i = 0; i < 5; ++i) {
      char* end = nullptr;
      const long value = std::strtol(fields[whole_at[i]].c_str(), &end, 10);
      if (end == fields[whole_at[i]].c_str() || *end != '\0' || value < 1 || value > 1 << 30) {
        return fail("a whole number above zero is needed");
      }
      *whole[i] = static_cast<int>(value);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      char* end = nullptr;
      *real[i] = std::strtod(fields[8 + i].c_str(), &end);
      if (end == fields[8 + i].c_str() || *end != '\0') return fail("a number is needed");
    }
    gemm_choice choice;
    if (!parse_choice(row.kernel, choice) || choice.split_k != 1) return fail("no kernel has this name");
    rows.push_back(row);
  }
  if (!header) error = "no header";
  return header ? rows : std::vector<tuned_row>{};
}

/// M rounded up as AITER rounds it: finely (level 0), or to a power of two (level 1).
inline int padded_m(int m, int n, int level) {
  const auto up = [m](int unit) { return (m + unit - 1) / unit * unit; };
  if (level == 0) return up(m <= 256 ? 16 : m <= 1024 ? 32 : m <= 4096 ? 64 : 128);
  if (m > 8192 && n > 4096) return 8192;
  int power = 1;
  while (power < m) power *= 2;
  return power;
}

/// The fastest row for a shape under a contract, or null: the exact shape, then padded M of widths 0 and 1.
inline const tuned_row* find_tuned(const std::vector<tuned_row>& rows, const device_info& device,
                                   gemm_contract contract, const gemm_shape& shape) {
  for (const int wanted : {shape.m, padded_m(shape.m, shape.n, 0), padded_m(shape.m, shape.n, 1)}) {
    const gemm_shape padded{shape.fp8, wanted, shape.n, shape.k};
    const tuned_row* best = nullptr;
    for (const tuned_row& r : rows) {
      if (r.arch != device.arch || r.processors != device.processors || r.shape != padded) continue;
      if (r.kernel == to_text(contract) && (best == nullptr || r.us < best->us)) best = &r;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

/// Without a row: as many parts of K as leave no pair of multiprocessors idle, none shorter than 1024.
inline gemm_choice heuristic_choice(const device_info& device, gemm_contract contract, const gemm_shape& shape) {
  const arch_traits& traits = traits_of(device.arch);
  if (contract == gemm_contract::reference || !traits.splits_k) return {contract, 1};
  const int workers = device.processors / traits.tile_processors;
  const std::int64_t across = (shape.n + traits.tile - 1) / traits.tile,
                     tiles = (shape.m + traits.tile - 1) / traits.tile * across;
  const int parts = static_cast<int>(std::min<std::int64_t>(workers / tiles, shape.k / 1024));
  return {contract, std::clamp(parts, 1, 16)};
}

/// Reads the table that ROTOSCALE_GPU_TUNED names, else `built_in`. One that cannot be understood is an error.
inline status load_tuned(const char* built_in, std::vector<tuned_row>& rows) {
  rows.clear();
  std::string error;
  if (const char* other = std::getenv("ROTOSCALE_GPU_TUNED")) {
    std::ifstream file(other);
    if (!file) return {error_code::bad_option, "ROTOSCALE_GPU_TUNED", "cannot open it"};
    rows = parse_tuned(file, error);
    return error.empty() ? status{}
                         : status{error_code::bad_option, "ROTOSCALE_GPU_TUNED", "is no table of tuned kernels"};
  }
  std::istringstream text(built_in);
  rows = parse_tuned(text, error);
  ROTOSCALE_ASSERT(error.empty());
  return {};
}

/// Kernel and split-K for a shape under a contract. ROTOSCALE_GPU_KERNEL decides where it is set, the contract
/// included.
inline status choose_gemm(const std::vector<tuned_row>& rows, const device_info& device, gemm_contract contract,
                          const gemm_shape& shape, gemm_selection& selected) {
  selected = {};
  if (const char* forced = std::getenv("ROTOSCALE_GPU_KERNEL")) {
    if (!parse_choice(forced, selected.choice))
      return {error_code::bad_option, "ROTOSCALE_GPU_KERNEL", "no kernel has this name"};
    selected.from = gemm_selection::source::forced;
    return {};
  }
  if (const tuned_row* row = find_tuned(rows, device, contract, shape)) {
    selected.choice = {contract, row->split_k};
    selected.from = gemm_selection::source::table;
    selected.table_m = row->shape.m;
    selected.microseconds = row->us;
  } else {
    selected.choice = heuristic_choice(device, contract, shape);
  }
  return {};
}

/// All of gpu/gemm/tuned as one table.
extern const char* const tuned_text;

}  // namespace rotoscale::gpu
