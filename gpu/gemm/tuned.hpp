// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Schedules of GEMM kernels from a table of measurements, like AITER's (ROCm/aiter, a4w4_blockscale_tuned_gemm.csv).
// Lookup: 1. the exact shape, 2. M rounded up like in AITER, 3. a heuristic. The library is built with a table;
// ROTOSCALE_GPU_TUNED names another one.
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

#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu {

using detail::walks_bands;

/// Row of the table: comma-separated columns in this order, with a header line. Lines that begin with # are comments.
struct tuned_row {
  gpu::arch arch = gpu::arch::other;
  int processors = 0;  ///< number of SMs or CUs
  const gemm_kernel* kernel = nullptr;
  int m = 0, n = 0, k = 0;  ///< A [m, k] · Bᵀ [n, k]
  int split_k = 1;
  gemm_schedule schedule;  ///< zeros only where the kernel has no such parameter
  double us = 0, tflops = 0;
  double error = 0;  ///< relative error in the Frobenius norm, against FP64
};

inline constexpr const char* tuned_header = "arch,units,kernel,m,n,k,tile,stages,split_k,raster,us,tflops,error";

/// The kernel of that name on an architecture, or null.
inline const gemm_kernel* kernel_of(std::string_view name, gpu::arch arch) {
  for (const gemm_kernel& kernel : detail::gemm_kernels()) {
    if (kernel.name == name && (kernel.archs & detail::bit_of(arch)) != 0) return &kernel;
  }
  return nullptr;
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

/// Parses one line of a table. Returns its error, or null.
inline const char* parse_row(const std::string& line, tuned_row& row) {
  const auto fields = parts_of(line, ',');
  if (fields.size() != 13) return "thirteen columns are needed";
  row.arch = arch_from_name(fields[0]);
  if (fields[0] != to_text(row.arch)) return "no architecture has this name";
  row.kernel = kernel_of(fields[2], row.arch);
  if (row.kernel == nullptr) return "no kernel of this architecture has this name";
  gemm_schedule& s = row.schedule;
  int* const whole[] = {&row.processors, &row.m, &row.n, &row.k, &s.stages, &row.split_k};
  const std::size_t whole_at[] = {1, 3, 4, 5, 7, 8};
  for (std::size_t i = 0; i < 6; ++i) {
    if (!parse_count(fields[whole_at[i]], *whole[i])) return "a whole number above zero is needed";
  }
  if (!parse_tile(fields[6], s)) return "the tile must be MxN";
  if (!parse_raster(fields[9], s)) return "the raster must be mBAND, nBAND or -";
  double* const real[] = {&row.us, &row.tflops, &row.error};
  for (std::size_t i = 0; i < 3; ++i) {
    char* end = nullptr;
    const std::string& field = fields[10 + i];
    *real[i] = std::strtod(field.c_str(), &end);
    if (field.starts_with(' ') || end == field.c_str() || *end != '\0') return "a number is needed";
    if (!std::isfinite(*real[i]) || *real[i] < 0) return "times, rates and errors must be finite and not negative";
  }
  if (row.us == 0) return "a time above zero is needed";
  if (row.split_k > row.kernel->max_parts) return "the kernel has no such split-K";
  const status checked = detail::check_schedule(*row.kernel, s);
  return checked.ok() ? nullptr : checked.reason;
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

/// The fastest row of a kernel for the call's shape, or null. Looks up the exact shape, then padded M of levels 0
/// and 1. `split_k` 0: any.
inline const tuned_row* find_tuned(const std::vector<tuned_row>& rows, const device_info& device,
                                   const gemm_kernel& kernel, const gemm_call& c, index_t split_k) {
  const int m = static_cast<int>(c.a.rows), n = static_cast<int>(c.b.rows);
  for (const int wanted : {m, padded_m(m, n, 0), padded_m(m, n, 1)}) {
    const tuned_row* best = nullptr;
    for (const tuned_row& r : rows) {
      if (r.kernel != &kernel || r.arch != device.arch || r.processors != device.processors) continue;
      if (r.m != wanted || r.n != n || r.k != c.a.k || (split_k != 0 && r.split_k != split_k)) continue;
      if (best == nullptr || r.us < best->us) best = &r;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

/// Largest split-K whose tiles fit into one wave: at most 16, and parts of at least 1024 k.
inline int filling_parts(const device_info& device, const tile_shape& tile, index_t m, index_t n, index_t k) {
  const index_t tiles = (m + tile.m - 1) / tile.m * ((n + tile.n - 1) / tile.n);
  const index_t parts = std::min<index_t>(device.processors / tile.processors / tiles, k / 1024);
  return static_cast<int>(std::clamp<index_t>(parts, 1, 16));
}

/// Relative cost of a tile, in products of one SM or CU: its waves at its share of the unit's rate. With split-K the
/// memory traffic of the partial sums is added.
inline index_t tile_cost(const device_info& device, const tile_shape& tile, int parts, index_t m, index_t n,
                         index_t k) {
  const index_t tiles = (m + tile.m - 1) / tile.m * ((n + tile.n - 1) / tile.n) * parts;
  const index_t workers = device.processors / tile.processors, waves = (tiles + workers - 1) / workers;
  const index_t outputs = index_t{tile.m} * tile.n / tile.processors, start = index_t{1} << 24;
  const index_t adding = parts == 1 ? 0 : 2 * start + 2 * index_t{parts + 1} * m * n * 8;
  return waves * (outputs * (k / parts) * 100 / tile.percent + start) + adding;
}

/// The cheapest tile with parts_of(tile) parts of K.
template <class Parts>
const tile_shape& cheapest_tile(const device_info& device, std::span<const tile_shape> tiles, const gemm_call& c,
                                const Parts& parts_of) {
  return *std::min_element(tiles.begin(), tiles.end(), [&](const tile_shape& x, const tile_shape& y) {
    const auto cost = [&](const tile_shape& t) { return tile_cost(device, t, parts_of(t), c.a.rows, c.b.rows, c.a.k); };
    return cost(x) < cost(y);
  });
}

/// Tile, stages and raster order of a kernel with several tiles: the fastest measured with the call's split-K, else the
/// cheapest tile.
inline void choose_schedule(const std::vector<tuned_row>& rows, const device_info& device, const gemm_kernel& kernel,
                            const gemm_call& c, gemm_selection& selected) {
  if (const tuned_row* row = find_tuned(rows, device, kernel, c, c.contract.split_k)) {
    selected.schedule = row->schedule;
    selected.from = gemm_selection::source::table;
    selected.table_m = row->m;
    selected.microseconds = row->us;
    return;
  }
  const int parts = detail::split_of(c.a.k, c.contract.split_k, detail::options_of(kernel).split_grain).parts;
  const tile_shape& tile = cheapest_tile(device, kernel.tiles, c, [&](const tile_shape&) { return parts; });
  selected.schedule = detail::whole_schedule(kernel, {tile.m, tile.n});
}

/// fastest_split_k of gpu/api/gemm.hpp.
inline int choose_split_k(const std::vector<tuned_row>& rows, const device_info& device, const gemm_kernel& kernel,
                          const gemm_call& c) {
  if (const tuned_row* row = find_tuned(rows, device, kernel, c, 0)) return row->split_k;
  const auto parts = [&](const tile_shape& t) { return filling_parts(device, t, c.a.rows, c.b.rows, c.a.k); };
  return parts(cheapest_tile(device, kernel.tiles, c, parts));
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

/// The tables of gpu/gemm/tuned, concatenated.
extern const char* const tuned_text;

}  // namespace rotoscale::gpu
