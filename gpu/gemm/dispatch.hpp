// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Selects the GEMM kernel for a shape from a table of measurements, like AITER's (ROCm/aiter,
// a4w4_blockscale_tuned_gemm.csv).
// Lookup: 1. the exact shape, 2. M rounded up like in AITER, 3. a heuristic. The library is built with a table.
// Environment: ROTOSCALE_GPU_TUNED names another table, ROTOSCALE_GPU_KERNEL forces a kernel ("fast", "fast/4" for four
// parts of K, "fast/4/64x256/5/n8" for the whole schedule).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/api/gemm.hpp"
#include "gpu/dialect/arch.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu {

/// Key of the table: A [m, k] · Bᵀ [n, k] in a format.
struct gemm_shape {
  bool fp8 = false;  ///< MXFP8, else MXFP4
  int m = 0, n = 0, k = 0;

  bool operator==(const gemm_shape&) const = default;
};
inline gemm_shape make_shape(const gemm_problem& p) {
  return {p.a.element != formats::e2m1, static_cast<int>(p.a.rows), static_cast<int>(p.b.rows),
          static_cast<int>(p.a.k)};
}
inline const char* format_name(const gemm_shape& s) { return s.fp8 ? "mxfp8" : "mxfp4"; }

/// Row of the table: comma-separated columns in this order, with a header line. Lines that begin with # are comments.
struct tuned_row {
  gpu::arch arch = gpu::arch::other;
  int processors = 0;  ///< number of SMs or CUs
  gemm_shape shape;
  gemm_choice choice;  ///< its schedule has zeros only where the device's kernels have no such parameter
  double us = 0, tflops = 0;
  double error = 0;  ///< relative error in the Frobenius norm, against FP64
};

inline constexpr const char* tuned_header = "arch,units,format,m,n,k,kernel,tile,stages,split_k,raster,us,tflops,error";

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

inline std::vector<std::string> parts_of(std::string_view text, char between) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == between) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// Parses a positive integer of digits only.
inline bool parse_count(std::string_view text, int& value) {
  std::int64_t x = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || x > 1 << 26) return false;
    x = 10 * x + (c - '0');
  }
  value = static_cast<int>(x);
  return x > 0;
}

/// "256x64": rows × columns of C.
inline std::string tile_text(const gemm_schedule& s) {
  return std::to_string(s.tile_m) + "x" + std::to_string(s.tile_n);
}
inline bool parse_tile(std::string_view text, gemm_schedule& s) {
  const auto parts = parts_of(text, 'x');
  return parts.size() == 2 && parse_count(parts[0], s.tile_m) && parse_count(parts[1], s.tile_n);
}

/// "m8" means bands of 8 rows of tiles, "n8" bands of 8 columns, "-" the kernel's own order.
inline std::string raster_text(const gemm_schedule& s) {
  return s.band == 0 ? "-" : (s.bands_of_columns ? "n" : "m") + std::to_string(s.band);
}
inline bool parse_raster(std::string_view text, gemm_schedule& s) {
  if (text == "-") return true;
  s.bands_of_columns = text.starts_with('n');
  return (s.bands_of_columns || text.starts_with('m')) && parse_count(text.substr(1), s.band);
}

/// Parses "CONTRACT", optionally with "/PARTS", "/TILE", "/STAGES", "/RASTER" in this order. False if malformed.
inline bool parse_choice(std::string_view text, gemm_choice& choice) {
  const auto parts = parts_of(text, '/');
  choice = {};
  for (const auto& c : contract_names) {
    if (parts[0] != c.name) continue;
    choice.contract = c.contract;
    gemm_schedule& s = choice.schedule;
    return parts.size() <= 5 && (parts.size() < 2 || parse_count(parts[1], choice.split_k)) &&
           (parts.size() < 3 || parse_tile(parts[2], s)) && (parts.size() < 4 || parse_count(parts[3], s.stages)) &&
           (parts.size() < 5 || parse_raster(parts[4], s));
  }
  return false;
}

/// Returns the error in a row's choice for its device, or null.
inline const char* check_tuned(const tuned_row& row) {
  const arch_traits& traits = traits_of(row.arch);
  const bool reference = row.choice.contract == gemm_contract::reference;
  if (row.choice.split_k > (reference || !traits.splits_k ? 1 : detail::max_parts))
    return "the device has no such split-K";
  const status s = detail::check_schedule(traits, row.choice.schedule, row.shape.fp8, reference);
  return s.ok() ? nullptr : s.reason;
}

/// Parses one line of a table. Returns its error, or null.
inline const char* parse_row(const std::string& line, tuned_row& row) {
  const auto fields = parts_of(line, ',');
  if (fields.size() != 14) return "fourteen columns are needed";
  row.arch = arch_from_name(fields[0]);
  if (fields[0] != to_text(row.arch)) return "no architecture has this name";
  row.shape.fp8 = fields[2] == "mxfp8";
  if (fields[2] != format_name(row.shape)) return "the format must be mxfp4 or mxfp8";
  if (!parse_choice(fields[6], row.choice) || fields[6] != to_text(row.choice.contract)) {
    return "no kernel has this name";
  }
  gemm_schedule& s = row.choice.schedule;
  int* const whole[] = {&row.processors, &row.shape.m, &row.shape.n, &row.shape.k, &s.stages, &row.choice.split_k};
  const std::size_t whole_at[] = {1, 3, 4, 5, 8, 9};
  for (std::size_t i = 0; i < 6; ++i) {
    if (!parse_count(fields[whole_at[i]], *whole[i])) return "a whole number above zero is needed";
  }
  if (!parse_tile(fields[7], s)) return "the tile must be MxN";
  if (!parse_raster(fields[10], s)) return "the raster must be mBAND, nBAND or -";
  double* const real[] = {&row.us, &row.tflops, &row.error};
  for (std::size_t i = 0; i < 3; ++i) {
    char* end = nullptr;
    *real[i] = std::strtod(fields[11 + i].c_str(), &end);
    const std::string& field = fields[11 + i];
    if (field.starts_with(' ') || end == field.c_str() || *end != '\0') return "a number is needed";
    if (!std::isfinite(*real[i]) || *real[i] < 0) return "times, rates and errors must be finite and not negative";
  }
  if (row.us == 0) return "a time above zero is needed";
  return check_tuned(row);
}

/// Parses a table. On failure `error` is "line N: reason", and no rows are returned.
inline std::vector<tuned_row> parse_tuned(std::istream& in, std::string& error) {
  std::vector<tuned_row> rows;
  std::string line;
  bool header = false;
  for (int number = 1; std::getline(in, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    tuned_row row;
    const char* const wrong = header                 ? parse_row(line, row)
                              : line != tuned_header ? "the header is not the one of this version"
                                                     : nullptr;
    if (wrong != nullptr) {
      error = "line " + std::to_string(number) + ": " + wrong;
      return {};
    }
    if (header) rows.push_back(row);
    header = true;
  }
  if (!header) error = "no header";
  return rows;
}

/// M rounded up like in AITER: finely (level 0), or to a power of two (level 1).
inline int padded_m(int m, int n, int level) {
  const auto up = [m](int unit) { return (m + unit - 1) / unit * unit; };
  if (level == 0) return up(m <= 256 ? 16 : m <= 1024 ? 32 : m <= 4096 ? 64 : 128);
  if (m > 8192 && n > 4096) return 8192;
  int power = 1;
  while (power < m) power *= 2;
  return power;
}

/// The fastest row for a shape under a contract, or null. Looks up the exact shape, then padded M of levels 0 and 1.
inline const tuned_row* find_tuned(const std::vector<tuned_row>& rows, const device_info& device,
                                   gemm_contract contract, const gemm_shape& shape) {
  for (const int wanted : {shape.m, padded_m(shape.m, shape.n, 0), padded_m(shape.m, shape.n, 1)}) {
    const gemm_shape padded{shape.fp8, wanted, shape.n, shape.k};
    const tuned_row* best = nullptr;
    for (const tuned_row& r : rows) {
      if (r.arch != device.arch || r.processors != device.processors || r.shape != padded) continue;
      if (r.choice.contract == contract && (best == nullptr || r.us < best->us)) best = &r;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

/// Largest split-K whose tiles fit into one wave: at most 16, and parts of at least 1024 k.
inline int filling_parts(const device_info& device, const tile_shape& tile, const gemm_shape& shape) {
  const std::int64_t across = (shape.n + tile.n - 1) / tile.n, tiles = (shape.m + tile.m - 1) / tile.m * across;
  const std::int64_t parts = std::min<std::int64_t>(device.processors / tile.processors / tiles, shape.k / 1024);
  return static_cast<int>(std::clamp<std::int64_t>(parts, 1, 16));
}

/// Relative cost of a tile, in products of one SM or CU: its waves at its share of the unit's rate. With split-K the
/// memory traffic of the partial sums is added.
inline std::int64_t tile_cost(const device_info& device, const tile_shape& tile, int parts, const gemm_shape& shape) {
  const std::int64_t tiles = std::int64_t{(shape.m + tile.m - 1) / tile.m} * ((shape.n + tile.n - 1) / tile.n) * parts;
  const std::int64_t workers = device.processors / tile.processors, waves = (tiles + workers - 1) / workers;
  const std::int64_t outputs = std::int64_t{tile.m} * tile.n / tile.processors;
  const std::int64_t start = std::int64_t{1} << 24;
  const std::int64_t adding = parts == 1 ? 0 : 2 * start + 2 * std::int64_t{parts + 1} * shape.m * shape.n * 8;
  return waves * (outputs * (shape.k / parts) * 100 / tile.percent + start) + adding;
}

/// The cheapest tile with parts_of(tile) parts of K.
template <class Parts>
const tile_shape& cheapest_tile(const device_info& device, std::span<const tile_shape> tiles, const gemm_shape& shape,
                                const Parts& parts_of) {
  return *std::min_element(tiles.begin(), tiles.end(), [&](const tile_shape& x, const tile_shape& y) {
    return tile_cost(device, x, parts_of(x), shape) < tile_cost(device, y, parts_of(y), shape);
  });
}

/// Choice without a table row: the cheapest tile, with the split-K that fills the device.
inline gemm_choice heuristic_choice(const device_info& device, gemm_contract contract, const gemm_shape& shape) {
  const arch_traits& traits = traits_of(device.arch);
  gemm_choice choice{contract};
  if (contract == gemm_contract::reference) return choice;
  const auto parts = [&](const tile_shape& tile) { return traits.splits_k ? filling_parts(device, tile, shape) : 1; };
  const tile_shape& tile = cheapest_tile(device, traits.tiles(shape.fp8), shape, parts);
  choice.split_k = parts(tile);
  choice.schedule.tile_m = tile.m;
  choice.schedule.tile_n = tile.n;
  choice.schedule = whole_schedule(traits, choice.schedule, shape.fp8);
  return choice;
}

/// Reads the table named by ROTOSCALE_GPU_TUNED, else `built_in`. A malformed table is an error. `reason` owns its
/// text.
inline status load_tuned(const char* built_in, std::vector<tuned_row>& rows, std::string& reason) {
  rows.clear();
  std::string error;
  if (const char* other = std::getenv("ROTOSCALE_GPU_TUNED")) {
    std::error_code unknown;
    std::ifstream file(other);
    if (!file || !std::filesystem::is_regular_file(other, unknown))
      return {error_code::bad_option, "ROTOSCALE_GPU_TUNED", "cannot open it as a regular file"};
    rows = parse_tuned(file, error);
    if (error.empty()) return {};
    reason = "is no table of tuned kernels: " + error;
    return {error_code::bad_option, "ROTOSCALE_GPU_TUNED", reason.c_str()};
  }
  std::istringstream text(built_in);
  rows = parse_tuned(text, error);
  ROTOSCALE_ASSERT(error.empty());
  return {};
}

/// Selects kernel, tile, stages, split-K and raster order for a shape under a contract. ROTOSCALE_GPU_KERNEL overrides
/// everything, also the contract.
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
    selected.choice = row->choice;
    selected.from = gemm_selection::source::table;
    selected.table_m = row->shape.m;
    selected.microseconds = row->us;
  } else {
    selected.choice = heuristic_choice(device, contract, shape);
  }
  return {};
}

/// The tables of gpu/gemm/tuned, concatenated.
extern const char* const tuned_text;

}  // namespace rotoscale::gpu
