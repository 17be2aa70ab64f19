// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tiles of discriminating inputs (rotoscale/mma_cases.hpp) in the probe's arrays.
#pragma once

#include "examples/probe/device.hpp"
#include "rotoscale/mma_cases.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/sparse.hpp"

namespace rotoscale::probe {

/// Format in memory: FP32 words for TF32.
inline format stored_format(const format& f) { return f == formats::tf32 ? formats::fp32 : f; }

inline void store_little_endian(std::vector<std::uint8_t>& to, std::size_t at, std::uint64_t code, int bytes) {
  for (int i = 0; i < bytes; ++i) to[at + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(code >> (8 * i));
}
inline std::uint64_t load_little_endian(const std::vector<std::uint8_t>& from, std::size_t at, int bytes) {
  std::uint64_t code = 0;
  for (int i = 0; i < bytes; ++i) code |= static_cast<std::uint64_t>(from[at + static_cast<std::size_t>(i)]) << (8 * i);
  return code;
}

/// Elements of a row of A in memory.
inline int stored_k(const probed_instruction& instruction) {
  return instruction.form.sparse ? instruction.k / 2 : instruction.k;
}
/// Bytes of metadata of a row of A.
inline int metadata_bytes(const probed_instruction& instruction) {
  if (!instruction.form.sparse) return 0;
  return static_cast<int>(sparse_metadata_bytes(stored_format(instruction.a), instruction.k));
}

/// Divides a number by 2^by; numbers that would become subnormal stay.
inline std::uint64_t divided(const format& f, std::uint64_t code, int by) {
  const std::uint64_t exponent = f.magnitude(code) >> f.mantissa_bits, down = static_cast<std::uint64_t>(by);
  return exponent > down && !f.is_nan(code) && !f.is_infinity(code) ? code - (down << f.mantissa_bits) : code;
}
/// Does the tile test products near FP32's least normal number? Their factors are divided by 2^63, c by 2^126.
inline bool is_low(const instruction_form& form, std::size_t tile) { return form.low && tile / case_kinds % 2 == 1; }

/// Fills rows of one operand of one tile: rows × k codes.
inline void fill_operand(std::vector<std::uint8_t>& codes, std::size_t tile, const format& element, int rows, int k,
                         bool is_b, bool low, case_source& source) {
  const format f = stored_format(element);
  const int bytes = element_bytes(f);
  for (int r = 0; r < rows; ++r) {
    const std::size_t row =
        (tile * static_cast<std::size_t>(rows) + static_cast<std::size_t>(r)) * static_cast<std::size_t>(k * bytes);
    const int property = static_cast<int>(tile / case_kinds) * rows + r;
    make_row(f, case_kind_of(static_cast<std::int64_t>(tile)), is_b, is_b ? r : property, k, source,
             [&](int i, std::uint64_t code) {
               store_little_endian(codes, row + static_cast<std::size_t>(i * bytes), low ? divided(f, code, 63) : code,
                                   bytes);
             });
  }
}

/// Chooses the kept elements of A: two of four, or one of two FP32 words. In a case of cancelling sums, both halves of
/// a row keep the same positions.
inline void fill_metadata(std::vector<std::uint8_t>& metadata, std::size_t tile, const probed_instruction& instruction,
                          case_source& source) {
  constexpr std::uint8_t pairs[] = {0x4, 0x8, 0xC, 0x9, 0xD, 0xE};
  const bool fp32 = sparse_window(stored_format(instruction.a)) == 2;
  const auto indices = [&] { return fp32 ? pairs[source.word() % 2 * 5] : pairs[source.word() % 6]; };
  const auto bytes = static_cast<std::size_t>(metadata_bytes(instruction));
  const bool cancelling = case_kind_of(static_cast<std::int64_t>(tile)) == case_kind::cancelling;
  const auto rows = static_cast<std::size_t>(instruction.rows);
  for (std::size_t r = tile * rows; r < (tile + 1) * rows; ++r) {
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::size_t at = r * bytes + i;
      const std::uint8_t low = indices(), high = indices();
      metadata[at] =
          cancelling && i >= bytes / 2 ? metadata[at - bytes / 2] : static_cast<std::uint8_t>(low | high << 4);
    }
  }
}

/// Scales of one operand of one tile, rows × k / 32.
inline void fill_scales(std::vector<std::uint8_t>& scales, std::size_t tile, std::size_t count, case_source& source) {
  for (std::size_t i = tile * count; i < (tile + 1) * count; ++i) {
    scales[i] = source.scale(formats::e8m0, case_kind_of(static_cast<std::int64_t>(tile)));
  }
}

/// `tiles` random cases; tile i depends on the seed and i alone.
inline probe_cases make_cases(const probed_instruction& instruction, int tiles, std::uint64_t seed, thread_pool& pool) {
  const format acc = instruction.accumulator;
  const int bytes_a = element_bytes(stored_format(instruction.a)), bytes_acc = element_bytes(acc);
  const int results = instruction.rows * instruction.cols;
  probe_cases cases;
  cases.tiles = tiles;
  const auto count = static_cast<std::size_t>(tiles);
  cases.a.resize(count * static_cast<std::size_t>(instruction.rows * stored_k(instruction) * bytes_a));
  cases.metadata.resize(count * static_cast<std::size_t>(instruction.rows * metadata_bytes(instruction)));
  cases.b.resize(count * static_cast<std::size_t>(instruction.cols * instruction.k * bytes_a));
  cases.c.resize(count * static_cast<std::size_t>(results * bytes_acc));
  cases.d.resize(cases.c.size());
  const auto blocks = static_cast<std::size_t>(instruction.form.scaled ? instruction.k / scale_block : 0);
  const std::size_t scales_a = static_cast<std::size_t>(instruction.rows) * blocks,
                    scales_b = static_cast<std::size_t>(instruction.cols) * blocks;
  cases.scales_a.resize(count * scales_a);
  cases.scales_b.resize(count * scales_b);
  pool.for_each(tiles, [&](index_t t) {
    const auto tile = static_cast<std::size_t>(t);
    case_source source(seed, tile);
    const bool low = is_low(instruction.form, tile);
    fill_operand(cases.a, tile, instruction.a, instruction.rows, stored_k(instruction), false, low, source);
    fill_operand(cases.b, tile, instruction.b, instruction.cols, instruction.k, true, low, source);
    fill_metadata(cases.metadata, tile, instruction, source);
    fill_scales(cases.scales_a, tile, scales_a, source);
    fill_scales(cases.scales_b, tile, scales_b, source);
    for (int i = 0; i < results; ++i) {
      // Every fourth round of kinds starts from +0, as kernels do.
      std::uint64_t code = tile / case_kinds % 4 == 3 ? 0 : source.code(acc, case_kind_of(t));
      if (low) code = divided(acc, code, 126);
      store_little_endian(cases.c,
                          (tile * static_cast<std::size_t>(results) + static_cast<std::size_t>(i)) *
                              static_cast<std::size_t>(bytes_acc),
                          code, bytes_acc);
    }
  });
  return cases;
}

}  // namespace rotoscale::probe
