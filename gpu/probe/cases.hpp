// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tiles of discriminating inputs (rotoscale/mma_cases.hpp) in the probe's arrays.
#pragma once

#include "gpu/probe/device.hpp"
#include "rotoscale/mma_cases.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::gpu {

/// What a TF32 unit reads: FP32 words.
inline format stored_format(const format& f) { return f == formats::tf32 ? formats::fp32 : f; }

inline void store_little_endian(std::vector<std::uint8_t>& to, std::size_t at, std::uint32_t code, int bytes) {
  for (int i = 0; i < bytes; ++i) to[at + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(code >> (8 * i));
}
inline std::uint32_t load_little_endian(const std::vector<std::uint8_t>& from, std::size_t at, int bytes) {
  std::uint32_t code = 0;
  for (int i = 0; i < bytes; ++i) code |= static_cast<std::uint32_t>(from[at + static_cast<std::size_t>(i)]) << (8 * i);
  return code;
}

/// Fills one operand of one tile: rows × k codes.
inline void fill_operand(std::vector<std::uint8_t>& codes, std::size_t tile, const format& element, int rows, int k,
                         bool is_b, case_source& source) {
  const format f = stored_format(element);
  const int bytes = element_bytes(f);
  for (int r = 0; r < rows; ++r) {
    const std::size_t row =
        (tile * static_cast<std::size_t>(rows) + static_cast<std::size_t>(r)) * static_cast<std::size_t>(k * bytes);
    const int property = static_cast<int>(tile / case_kinds) * rows + r;
    make_row(f, case_kind_of(static_cast<std::int64_t>(tile)), is_b, is_b ? r : property, k, source,
             [&](int i, std::uint32_t code) {
               store_little_endian(codes, row + static_cast<std::size_t>(i * bytes), code, bytes);
             });
  }
}

/// `tiles` random cases; tile i depends on the seed and i alone.
inline probe_cases make_cases(const probed_instruction& instruction, int tiles, std::uint64_t seed, thread_pool& pool) {
  const format acc = instruction.fp16_accumulator ? formats::fp16 : formats::fp32;
  const int bytes_a = element_bytes(stored_format(instruction.a)), bytes_acc = element_bytes(acc);
  const int results = instruction.rows * instruction.cols;
  probe_cases cases;
  cases.tiles = tiles;
  const auto count = static_cast<std::size_t>(tiles);
  cases.a.resize(count * static_cast<std::size_t>(instruction.rows * instruction.k * bytes_a));
  cases.b.resize(count * static_cast<std::size_t>(instruction.cols * instruction.k * bytes_a));
  cases.c.resize(count * static_cast<std::size_t>(results * bytes_acc));
  cases.d.resize(cases.c.size());
  pool.for_each(tiles, [&](index_t t) {
    const auto tile = static_cast<std::size_t>(t);
    case_source source(seed, tile);
    fill_operand(cases.a, tile, instruction.a, instruction.rows, instruction.k, false, source);
    fill_operand(cases.b, tile, instruction.b, instruction.cols, instruction.k, true, source);
    for (int i = 0; i < results; ++i) {
      // Every fourth round of kinds starts from +0, as kernels do.
      const std::uint32_t code = tile / case_kinds % 4 == 3 ? 0 : source.code(acc, case_kind_of(t));
      store_little_endian(cases.c,
                          (tile * static_cast<std::size_t>(results) + static_cast<std::size_t>(i)) *
                              static_cast<std::size_t>(bytes_acc),
                          code, bytes_acc);
    }
  });
  return cases;
}

}  // namespace rotoscale::gpu
