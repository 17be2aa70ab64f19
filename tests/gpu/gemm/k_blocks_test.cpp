// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands of fp32_blockwise on sm_90, against the operands' values. Tested are int8 and E5M2 contents of each k-block
// of 128 elements, the choice per k-block, and bounds of row sums.
#include <doctest/doctest.h>

#include <cmath>

#include "gpu/gemm/blockwise.hpp"
#include "gpu/gemm/data.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/upconvert_k_blocks.hpp"

namespace gemm_k_blocks_test {

using namespace gpu_test;
using rotoscale::gpu::detail::second_base;

constexpr std::uint8_t poison = 0xC3;
constexpr int least_scale = 65, largest_scale = 178;

/// Conversions of both operands in workspace layout: rows of A, then of B.
struct k_blocks_of_operands {
  k_blocks_of_operands(const matrix_data& a, const matrix_data& b)
      : m(a),
        n(b),
        slots(second_base(a.rows) + b.rows),
        tiles_a(window_tiles(a.rows)),
        tiles(tiles_a + window_tiles(b.rows)),
        chunks(row_chunks(a.k)),
        count(k_block_count(a.k)),
        words(k_block_words(a.k)),
        int8(bytes(elements(), poison)),
        e5m2(bytes(elements(), poison)),
        base(std::vector<int>(size(slots), -999)),
        squares(std::vector<log_squares>(size(slots), 77)),
        row_k_blocks(std::vector<std::uint32_t>(size(slots * chunks), 77)),
        row_shifts(bytes(size(slots * chunks * chunk_k_blocks), 77)),
        tile_squares(std::vector<log_squares>(size(tiles), 77)),
        tile_words(std::vector<std::uint32_t>(size(2 * tiles * words), 0xA5A5A5A5u)),
        shifts(std::vector<std::uint16_t>(size(tiles * count * window_tile), 77)) {
    const auto source = [](const matrix_data& x) {
      return block_source{x.codes.there, x.scales.there, x.code_stride(), x.k / 32, x.rows};
    };
    const std::int64_t second = std::int64_t{m.rows} * m.k;
    k_block_arguments p{{source(m), source(n), m.k, e5m2.there, e5m2.there + second, int8.there, int8.there + second},
                        least_scale,
                        largest_scale,
                        squares.there,
                        row_k_blocks.there,
                        reinterpret_cast<std::int8_t*>(row_shifts.there),
                        {tile_squares.there, tile_words.there, shifts.there, tiles_a, tiles - tiles_a, words},
                        row_split(m.k)};
    p.e.base_b = second_base(m.rows);
    p.e.base = base.there;
    const int rows = m.rows + n.rows;
    REQUIRE(launch(upconvert_window_kernel, gpu::blocks((rows + int8_rows(m.k) - 1) / int8_rows(m.k)),
                   gpu::blocks(upconvert_threads), 0, {}, p)
                .ok());
    REQUIRE(launch(join_k_blocks_kernel, gpu::blocks(tiles * chunks), gpu::blocks(window_tile), 0, {}, p).ok());
    REQUIRE(
        launch(upconvert_k_blocks_kernel, gpu::blocks(tiles * chunks), gpu::blocks(upconvert_threads), 0, {}, p).ok());
    fetch(int8, e5m2, base, squares, row_k_blocks, row_shifts, tile_squares, tile_words, shifts);
  }

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::size_t elements() const { return size(std::int64_t{m.rows + n.rows} * m.k); }
  template <class... Array>
  static void fetch(Array&... arrays) {
    (arrays.fetch(), ...);
    CHECK((arrays.guards_hold() && ...));
  }

  bool second(int row) const { return row >= m.rows; }
  const matrix_data& of(int row) const { return second(row) ? n : m; }
  int in_operand(int row) const { return second(row) ? row - m.rows : row; }
  std::size_t slot(int row) const { return size(in_operand(row) + (second(row) ? second_base(m.rows) : 0)); }
  int tile(int row) const { return in_operand(row) / window_tile + (second(row) ? tiles_a : 0); }
  bool falls_back(int row) const { return squares.here[slot(row)] == fallback_row; }
  /// Flags of a k-block in the row's word: outside the row's window, and in no window.
  bool outside(int row, int k_block) const { return bit_of(row, k_block, 0); }
  bool wide(int row, int k_block) const { return bit_of(row, k_block, 16); }
  bool tile_has(int t, int k_block, bool wide_ones) const {
    return (tile_words.here[size((2 * t + (wide_ones ? 1 : 0)) * words + k_block / 32)] >> (k_block % 32) & 1u) != 0;
  }
  std::uint8_t code(const array<std::uint8_t>& form, int row, int c) const {
    return form.here[size(std::int64_t{row} * m.k + c)];
  }
  float value(int row, int c) const { return decode_element(mxfp4, of(row).here(), in_operand(row), c); }
  std::uint8_t scale(int row, int block) const {
    return of(row).scales.here[size(in_operand(row) * (m.k / 32) + block)];
  }
  bool has_numbers(int row, int block) const {
    for (int c = 32 * block; c < 32 * block + 32; ++c) {
      if (value(row, c) != 0.0f) return true;
    }
    return false;
  }
  /// Span in binades of the scales of a k-block's nonzero blocks. K-block -1: of the row.
  int span(int row, int k_block) const {
    int least = 255, largest = -1;
    for (int b = k_block < 0 ? 0 : 4 * k_block; b < (k_block < 0 ? m.k / 32 : std::min(m.k / 32, 4 * k_block + 4));
         ++b) {
      if (!has_numbers(row, b)) continue;
      least = std::min<int>(least, scale(row, b));
      largest = std::max<int>(largest, scale(row, b));
    }
    return largest < 0 ? 0 : largest - least;
  }
  /// Number of wrong elements of a k-block in int8 (with its factor) or E5M2.
  int wrong_int8(int row, int k_block) const {
    const std::uint16_t factor =
        shifts.here[size((std::int64_t{tile(row)} * count + k_block) * window_tile + in_operand(row) % window_tile)];
    // The kernel does not read factors of a k-block that is inside the window of every row of the tile.
    const float by = !tile_has(tile(row), k_block, false)
                         ? 1.0f
                         : fp32_from_bits(std::uint32_t{factor} << 16) / (second(row) ? window_unit : 1.0f);
    int wrong = 0;
    for (int c = k_block * k_block_length; c < std::min(m.k, (k_block + 1) * k_block_length); ++c) {
      const float x = static_cast<float>(static_cast<std::int8_t>(code(int8, row, c))) * std::sqrt(window_unit) * by;
      wrong += times_power(x, base.here[slot(row)]) != value(row, c);
    }
    return wrong;
  }
  int wrong_e5m2(int row, int k_block) const {
    int wrong = 0;
    for (int c = k_block * k_block_length; c < std::min(m.k, (k_block + 1) * k_block_length); ++c) {
      const float x = decode(formats::e5m2, code(e5m2, row, c));
      wrong += fp32_bits(times_power(x, base.here[slot(row)])) != fp32_bits(value(row, c));
    }
    return wrong;
  }
  bool is_poison(int row, int k_block) const {
    for (int c = k_block * k_block_length; c < std::min(m.k, (k_block + 1) * k_block_length); ++c) {
      if (code(e5m2, row, c) != poison) return false;
    }
    return true;
  }

  const matrix_data &m, &n;
  int slots, tiles_a, tiles, chunks, count, words;
  array<std::uint8_t> int8, e5m2;
  array<int> base;
  array<log_squares> squares;
  array<std::uint32_t> row_k_blocks;
  array<std::uint8_t> row_shifts;
  array<log_squares> tile_squares;
  array<std::uint32_t> tile_words;
  array<std::uint16_t> shifts;

 private:
  bool bit_of(int row, int k_block, int shift) const {
    const std::uint32_t word = row_k_blocks.here[slot(row) * size(chunks) + size(k_block / chunk_k_blocks)];
    return (word >> (shift + k_block % chunk_k_blocks) & 1u) != 0;
  }
};

/// Checks all flags and bounds of a row, and its int8.
void check_row(const k_blocks_of_operands& x, int row) {
  CAPTURE(row);
  double squares = 0.0, least = 1e300;
  for (int b = 0; b < x.m.k / 32; ++b) {
    if (x.has_numbers(row, b)) least = std::min(least, std::ldexp(0.5, x.scale(row, b) - 127));
  }
  for (int c = 0; c < x.m.k; ++c) squares += std::pow(x.value(row, c) / least, 2.0);
  const double said = x.squares.here[x.slot(row)] / 4.0;
  if (squares != 0.0) {
    CHECK(said >= std::log2(squares));
    CHECK(said <= std::log2(squares) + 0.51);
  }
  for (int k_block = 0; k_block < x.count; ++k_block) {
    CAPTURE(k_block);
    // A k-block in no window has no int8. A k-block in its own window may be inside the row's too.
    if (x.wide(row, k_block)) {
      CHECK(x.outside(row, k_block));
      CHECK(x.span(row, k_block) > int8_window);
    } else {
      CHECK(x.wrong_int8(row, k_block) == 0);
    }
    if (x.span(row, -1) <= int8_window) CHECK(!x.outside(row, k_block));
    if (x.span(row, k_block) > int8_window) CHECK(x.wide(row, k_block));
    CHECK(x.tile_has(x.tile(row), k_block, false) >= x.outside(row, k_block));
    CHECK(x.tile_has(x.tile(row), k_block, true) >= x.wide(row, k_block));
  }
}

/// True if the limits of two tiles allow any order of sums.
bool exact(const k_blocks_of_operands& x, int a, int b) {
  return limit_of(x.tile_squares.here[x.size(a)]) + limit_of(x.tile_squares.here[x.size(b)]) <= exact_log_squares;
}

/// Checks that a tile combines its rows' flags, and that exactly the k-blocks needing E5M2 have it.
void check_tile(const k_blocks_of_operands& x, int tile, int first, int rows) {
  CAPTURE(tile);
  int limit = 0;
  bool flag = false;
  for (int row = first; row < first + rows; ++row) {
    flag = flag || x.falls_back(row);
    if (!x.falls_back(row)) limit = std::max<int>(limit, x.squares.here[x.slot(row)]);
  }
  CHECK(x.tile_squares.here[x.size(tile)] == (limit | (flag ? fallback_row : 0)));
  for (int k_block = 0; k_block < x.count; ++k_block) {
    bool needed = x.tile_has(tile, k_block, true), outside = false, wide = false;
    for (int t = tile < x.tiles_a ? x.tiles_a : 0; t < (tile < x.tiles_a ? x.tiles : x.tiles_a); ++t) {
      needed = needed || x.tile_has(t, k_block, true) || !exact(x, tile, t);
    }
    for (int row = first; row < first + rows; ++row) {
      if (x.falls_back(row)) continue;
      outside = outside || x.outside(row, k_block);
      wide = wide || x.wide(row, k_block);
      CHECK((needed ? x.wrong_e5m2(row, k_block) == 0 : x.is_poison(row, k_block)));
    }
    CHECK(x.tile_has(tile, k_block, false) == outside);
    CHECK(x.tile_has(tile, k_block, true) == wide);
  }
  for (int k_block = x.count; k_block < 32 * x.words; ++k_block)
    CHECK(!(x.tile_has(tile, k_block, false) || x.tile_has(tile, k_block, true)));
}

/// Codes up to 1.5, so that sums of long rows are exact.
matrix_data small_numbers(int rows, int k, unsigned seed, scales_of kind) {
  const matrix_data m = random_matrix(rows, k, seed, kind);
  bytes codes = m.codes.here;
  for (auto& c : codes) c &= 0xBB;
  return {rows, k, std::move(codes), m.scales.here};
}

struct kinds {
  int plain = 0, shifted = 0, e5m2 = 0, inexact = 0;
};
kinds check_all(const k_blocks_of_operands& x) {
  for (int row = 0; row < x.m.rows + x.n.rows; ++row) {
    if (!x.falls_back(row)) check_row(x, row);
  }
  for (int t = 0; t < x.tiles; ++t) {
    const int in = (t < x.tiles_a ? t : t - x.tiles_a) * window_tile, all = t < x.tiles_a ? x.m.rows : x.n.rows;
    check_tile(x, t, in + (t < x.tiles_a ? 0 : x.m.rows), std::min(window_tile, all - in));
  }
  kinds k;
  for (int a = 0; a < x.tiles_a; ++a) {
    for (int b = x.tiles_a; b < x.tiles; ++b) {
      k.inexact += !exact(x, a, b);
      for (int k_block = 0; k_block < x.count; ++k_block) {
        const bool e5m2 = !exact(x, a, b) || x.tile_has(a, k_block, true) || x.tile_has(b, k_block, true);
        const bool outside = x.tile_has(a, k_block, false) || x.tile_has(b, k_block, false);
        ++(e5m2 ? k.e5m2 : outside ? k.shifted : k.plain);
      }
    }
  }
  return k;
}

TEST_CASE("k-blocks of trained operands: three kinds, each exact") {
  struct extents {
    int rows, others, k;
  };
  for (const extents& e : {extents{300, 20, 2112}, extents{17, 270, 96}, extents{5, 9, 16512}}) {
    CAPTURE(e.k);
    const matrix_data a = small_numbers(e.rows, e.k, 1, scales_of::outliers),
                      b = small_numbers(e.others, e.k, 2, scales_of::narrow);
    for (const bool swapped : {false, true}) {
      const k_blocks_of_operands x(swapped ? b : a, swapped ? a : b);
      const kinds n = check_all(x);
      if (e.k > 96) CHECK((n.plain > 0 && n.shifted > 0 && n.e5m2 > 0));
      CHECK(n.inexact == 0);
    }
  }
}

TEST_CASE("k-blocks of rows that a window holds are plain, and blocks of zeros may have any scale") {
  matrix_data plain = random_matrix(40, 416, 3, scales_of::narrow);
  bytes codes = plain.codes.here, scales = plain.scales.here;
  for (std::size_t row = 0; row < 40; ++row) {
    const std::size_t block = row % 13;
    std::fill_n(codes.begin() + static_cast<std::ptrdiff_t>(row * 208 + 16 * block), 16, std::uint8_t{0x80});
    scales[row * 13 + block] = static_cast<std::uint8_t>(row % 3 == 0 ? 0 : row % 3 == 1 ? 254 : 90);
  }
  std::fill_n(codes.begin(), 208, std::uint8_t{0x88});  // row 0 is zero
  const matrix_data a(40, 416, codes, scales), b = random_matrix(3, 416, 4, scales_of::narrow);
  const kinds n = check_all(k_blocks_of_operands(a, b));
  CHECK(n.plain == 4);
  CHECK(n.shifted + n.e5m2 == 0);
}

TEST_CASE("half a block of zeros leaves the block its scale") {
  for (const int half : {0, 1}) {
    bytes codes(128, 0x31);
    std::fill_n(codes.begin() + 112 + 8 * half, 8, std::uint8_t{0x80});
    // Only the last block is outside the row's window. Its k-block has its own window.
    const matrix_data a(1, 256, codes, {121, 121, 121, 121, 118, 118, 118, 117}),
        b = small_numbers(2, 256, 7, scales_of::narrow);
    const k_blocks_of_operands x(a, b);
    const kinds n = check_all(x);
    CHECK(n.plain == 1);
    CHECK(n.shifted == 1);
  }
}

TEST_CASE("sums that could be rounded make all k-blocks of a tile E5M2, and leave other tiles alone") {
  matrix_data far = random_matrix(300, 1056, 5, scales_of::narrow);
  bytes scales = far.scales.here;
  scales[270 * 33 + 7] = 103;  // 18 binades below the row's maximum, in a row of the second tile
  const matrix_data a(300, 1056, far.codes.here, scales), b = random_matrix(2, 1056, 6, scales_of::narrow);
  const k_blocks_of_operands x(a, b);
  const kinds n = check_all(x);
  CHECK(n.inexact == 1);
  CHECK(n.plain == 9);
  CHECK(n.e5m2 == 9);
}

TEST_CASE("rows for the definition: NaN scales, scales too great or too small, more binades than E5M2 has") {
  const auto falls_back = [](std::uint8_t first, std::uint8_t second, bool zeros) {
    bytes codes(32, 0x31), scales{first, second};
    if (zeros) std::fill_n(codes.begin(), 16, std::uint8_t{0x88});
    const matrix_data a(1, 64, codes, scales), b(1, 64, bytes(32, 0x11), {127, 127});
    const k_blocks_of_operands x(a, b);
    check_all(x);
    CHECK(!x.falls_back(1));
    return x.falls_back(0);
  };
  CHECK(falls_back(255, 127, false));
  CHECK(falls_back(255, 127, true));  // NaN times zero is NaN
  CHECK(falls_back(64, 66, false));
  CHECK(!falls_back(65, 66, false));
  CHECK(!falls_back(64, 66, true));
  CHECK(falls_back(178, 179, false));
  CHECK(!falls_back(178, 177, false));
  for (const int high : {120, 127}) {
    for (const bool first : {false, true}) {
      CAPTURE(high);
      const auto top = static_cast<std::uint8_t>(high);
      for (int span = 0; span <= fold_window + 1; ++span) {
        const auto low = static_cast<std::uint8_t>(high - span);
        CHECK(falls_back(first ? top : low, first ? low : top, false) == (span > fold_window));
      }
    }
  }
}

TEST_CASE("a row's window leaves E5M2 room for one block far below, and the definition's rows do not limit others") {
  const int k = 512;
  for (int span = 20; span <= fold_window + 1; ++span) {
    bytes codes(3 * k / 2, 0x31), scales(3 * k / 32, 127);
    scales[5] = static_cast<std::uint8_t>(127 - span);
    scales[k / 32] = 255;
    const matrix_data a(3, k, codes, scales), b = random_matrix(4, k, 8, scales_of::narrow);
    const k_blocks_of_operands x(a, b);
    check_all(x);
    CHECK(x.falls_back(0) == (span > fold_window));
    CHECK(x.falls_back(1));
    CHECK(!x.falls_back(2));
  }
}

TEST_CASE("quarters of a logarithm are never too few") {
  CHECK(quarters_of_log2(1.0f) == 1);
  CHECK(quarters_of_log2(0x1p24f) == 97);
  for (int i = 0; i < 4000; ++i) {
    const float x = std::exp2(static_cast<float>(i) / 100.0f - 8.0f);
    const double exact_quarters = 4.0 * std::log2(static_cast<double>(x));
    CHECK(quarters_of_log2(x) >= exact_quarters);
    CHECK(quarters_of_log2(x) <= exact_quarters + 1.001);
  }
}

}  // namespace gemm_k_blocks_test
