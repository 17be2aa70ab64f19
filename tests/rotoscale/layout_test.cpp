// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layouts are bijections. They equal the reshapes of AITER and torchao, cuBLAS's formula, CUTLASS's strides, and the
// lanes of the matrix instruction. Placing and gathering are tested with poisoned buffers.
namespace {
struct assertion_failed {};
}  // namespace
#define ROTOSCALE_ASSERT(condition) ((condition) ? void() : throw assertion_failed{})
#include "rotoscale/layout.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "rotoscale/quantize_ref.hpp"

using namespace rotoscale;

namespace {

using bytes = std::vector<std::uint8_t>;
using indices = std::vector<index_t>;

constexpr placement placements[] = {
    placement::row_major,   placement::column_major,         placement::aiter_data_16x16,
    placement::aiter_scale, placement::hipblaslt_scale_32x8, placement::nvidia_scale_128x4};

/// x.view(dims).permute(axes).flatten(), as torch and NumPy define it.
template <class T>
std::vector<T> permuted(const std::vector<T>& x, const indices& dims, const indices& axes) {
  const std::size_t rank = dims.size();
  REQUIRE(axes.size() == rank);
  indices strides(rank, 1);
  for (std::size_t d = rank - 1; d > 0; --d) strides[d - 1] = strides[d] * dims[d];
  REQUIRE(static_cast<index_t>(x.size()) == strides[0] * dims[0]);
  std::vector<T> y;
  indices at(rank, 0);  // in the order of axes
  while (y.size() < x.size()) {
    index_t from = 0;
    for (std::size_t d = 0; d < rank; ++d) from += at[d] * strides[static_cast<std::size_t>(axes[d])];
    y.push_back(x[static_cast<std::size_t>(from)]);
    for (std::size_t d = rank; d-- > 0;) {
      if (++at[d] < dims[static_cast<std::size_t>(axes[d])]) break;
      at[d] = 0;
    }
  }
  return y;
}

indices iota(index_t n) {
  indices x(static_cast<std::size_t>(n));
  std::iota(x.begin(), x.end(), index_t{0});
  return x;
}

index_t up(index_t n, index_t multiple) { return n % multiple == 0 ? n : n + multiple - n % multiple; }

/// The layouts as their libraries state them: for each place in memory, the index r * padded columns + c.
indices stated(placement order, index_t rows, index_t columns) {
  switch (order) {
    case placement::row_major: return iota(rows * columns);
    case placement::column_major: return permuted(iota(rows * columns), {rows, columns}, {1, 0});
    case placement::aiter_data_16x16:  // shuffle_weight, one byte per element
      return permuted(iota(rows * columns), {rows / 16, 16, columns / 32, 2, 16}, {0, 2, 3, 1, 4});
    case placement::aiter_scale:  // shuffle_scale
    case placement::hipblaslt_scale_32x8: {
      const index_t m = up(rows, order == placement::aiter_scale ? 256 : 32), n = up(columns, 8);
      return permuted(iota(m * n), {m / 32, 2, 16, n / 8, 2, 4}, {0, 3, 5, 2, 4, 1});
    }
    case placement::nvidia_scale_128x4: {  // to_blocked
      const index_t m = up(rows, 128), n = up(columns, 4);
      const indices blocks = permuted(iota(m * n), {m / 128, 128, n / 4, 4}, {0, 2, 1, 3});
      return permuted(blocks, {m * n / 512, 4, 32, 4}, {0, 2, 1, 3});
    }
  }
  return {};
}

/// Extents around every boundary of every placement.
std::vector<layout> many_layouts() {
  std::vector<layout> all;
  for (const placement order : placements) {
    for (const index_t rows :
         {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 64, 96, 127, 128, 129, 160, 255, 256, 257, 272}) {
      for (const index_t columns : {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 31, 32, 33, 64, 96}) {
        const layout l{order, rows, columns};
        if (order == placement::aiter_data_16x16 && (rows % 16 != 0 || columns % 32 != 0)) {
          CHECK(!l.is_defined());
          continue;
        }
        CHECK(l.is_defined());
        all.push_back(l);
      }
    }
  }
  return all;
}

bytes random_bytes(std::size_t n, std::uint64_t stream) {
  bytes x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<std::uint8_t>(random_stream{7, stream}.word(i));
  return x;
}

}  // namespace

TEST_CASE("every offset is hit once, the inverse agrees, and the padding is what is left") {
  std::size_t count = 0;
  for (const layout& l : many_layouts()) {
    std::vector<int> hits(static_cast<std::size_t>(l.size_bytes()), 0);
    index_t padding = 0, wrong = 0;
    for (index_t r = 0; r < l.padded_rows(); ++r) {
      for (index_t c = 0; c < l.padded_columns(); ++c) {
        const index_t offset = l.offset(r, c);
        if (offset < 0 || offset >= l.size_bytes()) {
          ++wrong;
          continue;
        }
        ++hits[static_cast<std::size_t>(offset)];
        wrong += l.position(offset) != matrix_position{r, c};
        padding += l.is_padding({r, c});
      }
    }
    CHECK(wrong == 0);
    CHECK(std::count(hits.begin(), hits.end(), 1) == l.size_bytes());
    CHECK(padding == l.size_bytes() - l.rows * l.columns);
    ++count;
  }
  CHECK(count == 5 * 21 * 16 + 10 * 4);
}

TEST_CASE("each layout is the reshape and transpose that its users write") {
  for (const layout& l : many_layouts()) {
    const indices expected = stated(l.order, l.rows, l.columns);
    CHECK(static_cast<index_t>(expected.size()) == l.size_bytes());
    indices got;
    for (index_t i = 0; i < l.size_bytes(); ++i) {
      const matrix_position p = l.position(i);
      got.push_back(p.row * l.padded_columns() + p.column);
    }
    CHECK(got == expected);
  }
}

TEST_CASE("AITER's data shuffle is the same order of bytes for elements of any size") {
  // shuffle_weight: K = 16 / element size, BK = 32; `view(N / 16, 16, columns / BK, BK / K, K).permute(0, 2, 3, 1, 4)`.
  for (const index_t size : {1, 2, 4}) {
    for (const index_t rows : {16, 48}) {
      for (const index_t columns : {32, 96, 160}) {
        const index_t run = 16 / size;
        const indices elements =
            permuted(iota(rows * columns), {rows / 16, 16, columns / 32, 32 / run, run}, {0, 2, 3, 1, 4});
        const layout l{placement::aiter_data_16x16, rows, columns * size};
        index_t wrong = 0;
        for (index_t i = 0; i < l.size_bytes(); ++i) {
          const matrix_position p = l.position(i);
          wrong += p.row * columns * size + p.column != elements[static_cast<std::size_t>(i / size)] * size + i % size;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("AMD: chunks of 1024 bytes and tiles of 64 dwords are what the lanes of an MFMA 16x16x128 read") {
  const layout data{placement::aiter_data_16x16, 48, 192};  // 48 rows of 384 FP4 elements
  for (index_t r = 0; r < data.rows; ++r) {
    for (index_t k = 0; k < 2 * data.columns; k += 2) {
      const index_t chunk = r / 16 * (384 / 128) + k / 128;
      const index_t lane = k % 128 / 32 * 16 + r % 16;  // a lane holds 32 elements of a row: 16 bytes
      CHECK(data.offset(r, k / 2) == chunk * 1024 + lane * 16 + k % 32 / 2);
    }
  }
  for (const placement order : {placement::aiter_scale, placement::hipblaslt_scale_32x8}) {
    const layout scales{order, 100, 20};
    for (index_t r = 0; r < scales.padded_rows(); ++r) {
      for (index_t block = 0; block < scales.padded_columns(); ++block) {
        const index_t tile = r / 32 * 3 + block / 8;            // 32 rows × 256 elements, 20 blocks padded to 3 tiles
        const index_t lane = block % 4 * 16 + r % 16;           // the lane that holds the block's elements
        const index_t op_sel = block / 4 % 2 * 2 + r / 16 % 2;  // which of two K halves and two row halves
        CHECK(scales.offset(r, block) == (tile * 64 + lane) * 4 + op_sel);
      }
    }
  }
}

TEST_CASE("NVIDIA: cuBLAS's formulas and CUTLASS's strides") {
  const layout l{placement::nvidia_scale_128x4, 300, 11};
  CHECK(l.padded_rows() == 384);
  CHECK(l.padded_columns() == 12);
  for (index_t outer = 0; outer < 384; ++outer) {
    for (index_t inner = 0; inner < 12; ++inner) {
      // cuBLAS: the tile at corner (sf_outer, sf_inner) starts at (sf_inner + sf_outer * sf_inner_dim) * 128.
      const index_t sf_inner = inner - inner % 4, sf_outer = outer / 128;
      const index_t in_tile = outer % 128 % 32 * 16 + outer % 128 / 32 * 4 + inner % 4;
      const index_t offset = (sf_inner + sf_outer * 12) * 128 + in_tile;
      CHECK(l.offset(outer, inner) == offset);
      CHECK(in_tile % 16 / 4 * 32 + in_tile / 16 == outer % 128);
      // CUTLASS: ((32, 4), 4) with strides ((16, 4), 1), so the four scales of a row are one 32-bit word.
      const index_t shape[] = {32, 4}, stride[] = {16, 4};
      const index_t coordinate[] = {outer % 128 % shape[0], outer % 128 / shape[0]};
      CHECK(offset % 512 == coordinate[0] * stride[0] + coordinate[1] * stride[1] + inner % 4);
    }
  }
}

TEST_CASE("extents: padding, sizes and what is refused") {
  CHECK(layout{placement::aiter_scale, 257, 9}.size_bytes() == 512 * 16);
  CHECK(layout{placement::hipblaslt_scale_32x8, 33, 9}.size_bytes() == 64 * 16);
  CHECK(layout{placement::nvidia_scale_128x4, 129, 5}.size_bytes() == 256 * 8);
  // Fewer rows than a tile take one tile (ROCm/rocm-libraries#11774 made them none). No rows take none.
  for (index_t rows = 1; rows <= 32; ++rows) {
    CHECK(layout{placement::hipblaslt_scale_32x8, rows, 8}.size_bytes() == 256);
    CHECK(layout{placement::aiter_scale, rows, 8}.size_bytes() == 2048);
    CHECK(layout{placement::nvidia_scale_128x4, rows, 4}.size_bytes() == 512);
  }
  CHECK(layout{placement::aiter_scale, 0, 8}.size_bytes() == 0);
  // A permuted and a plain array of equal shape (pytorch/pytorch#190290).
  const layout plain{placement::row_major, 128, 8}, swizzled{placement::hipblaslt_scale_32x8, 128, 8};
  CHECK(plain.size_bytes() == swizzled.size_bytes());
  CHECK(plain != swizzled);

  CHECK(layout{placement::aiter_data_16x16, 16, 32}.is_defined());
  CHECK(!layout{placement::aiter_data_16x16, 8, 32}.is_defined());
  CHECK(!layout{placement::aiter_data_16x16, 16, 16}.is_defined());
  CHECK(!layout{placement::row_major, -1, 4}.is_defined());
  CHECK(!layout{placement::row_major, 4, -1}.is_defined());

  bytes from(16 * 40), to(2048);
  const auto source = row_major<const std::uint8_t>(from.data(), 16, 40);
  CHECK(place_is_defined(source, {placement::aiter_scale, 16, 40}));
  CHECK(!place_is_defined(source, {placement::aiter_data_16x16, 16, 40}));
  CHECK(!place_is_defined(source, {placement::aiter_scale, 17, 40}));
  CHECK(!place_is_defined(source, {placement::aiter_scale, 16, 39}));
  CHECK(place_is_defined(source, {placement::aiter_scale, 32, 40}, 2));
  CHECK(!place_is_defined(source, {placement::aiter_scale, 16, 40}, 2));
  CHECK(!place_is_defined(source, {placement::aiter_scale, 0, 40}, 0));
  CHECK_THROWS_AS(place(source, {placement::aiter_data_16x16, 16, 40}, to.data(), 0), assertion_failed);
  CHECK_THROWS_AS(place(source, {placement::aiter_scale, 16, 32}, to.data(), 0), assertion_failed);
  CHECK_THROWS_AS(gather(to.data(), {placement::aiter_scale, 16, 32}, row_major(from.data(), 16, 40)),
                  assertion_failed);
  CHECK_THROWS_AS((layout{placement::aiter_scale, 16, 40}.offset(256, 0)), assertion_failed);
  CHECK_THROWS_AS((layout{placement::aiter_scale, 16, 40}.offset(0, 40)), assertion_failed);
  CHECK_THROWS_AS((layout{placement::aiter_scale, 16, 40}.position(256 * 40)), assertion_failed);
}

TEST_CASE("place writes every byte of its target and no other; gather is its inverse and reads no padding") {
  for (const layout& l : many_layouts()) {
    for (const std::uint8_t poison : {std::uint8_t{0x00}, std::uint8_t{0xA5}}) {
      const index_t stride = l.columns + 3;  // gaps between source rows
      const bytes from = random_bytes(static_cast<std::size_t>(l.rows * stride), 1);
      const auto source = row_major(from.data(), l.rows, l.columns, stride);
      const std::size_t size = static_cast<std::size_t>(l.size_bytes());
      bytes target(size + 32, poison);
      place(source, l, target.data() + 16, 0x7F);

      const indices expected = stated(l.order, l.rows, l.columns);
      index_t wrong = 0;
      for (std::size_t i = 0; i < size; ++i) {
        const index_t r = expected[i] / l.padded_columns(), c = expected[i] % l.padded_columns();
        wrong += target[16 + i] != (r < l.rows && c < l.columns ? source(r, c) : 0x7F);
      }
      for (std::size_t i = 0; i < 16; ++i) wrong += target[i] != poison || target[16 + size + i] != poison;
      CHECK(wrong == 0);

      // The contents of padding must not matter.
      for (index_t i = 0; i < l.size_bytes(); ++i) {
        if (l.is_padding(l.position(i))) target[static_cast<std::size_t>(16 + i)] = 0xFF;
      }
      bytes back(from.size(), poison), wanted(from.size(), poison);
      gather(target.data() + 16, l, row_major(back.data(), l.rows, l.columns, stride));
      for (index_t r = 0; r < l.rows; ++r) {
        std::copy_n(&from[static_cast<std::size_t>(r * stride)], l.columns,
                    &wanted[static_cast<std::size_t>(r * stride)]);
      }
      CHECK(back == wanted);
    }
  }
}

TEST_CASE("a quantized matrix goes to a kernel's layouts and back in one call each") {
  struct example {
    block_format format;
    block_options options;
    placement data, scale;
    std::uint8_t unit;
  };
  const example examples[] = {
      {mxfp4, presets::te_rocm, placement::aiter_data_16x16, placement::aiter_scale, 0x7F},
      {square_blocks(mxfp4), presets::primus, placement::aiter_data_16x16, placement::aiter_scale, 0x7F},
      {mxfp8_e4m3, presets::aiter_round_up, placement::row_major, placement::hipblaslt_scale_32x8, 0x7F},
      {mxfp6_e2m3, presets::ocp, placement::row_major, placement::aiter_scale, 0x7F},
      {mxfp8_e5m2, presets::nvidia, placement::row_major, placement::nvidia_scale_128x4, 0x7F},
      {nvfp4, presets::nvidia, placement::column_major, placement::nvidia_scale_128x4, 0x38}};
  const index_t rows = 96, k = 320;
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t halvings = i / 32 % 5 + i / static_cast<std::size_t>(32 * k) * 3;  // 32 × 32 blocks differ too
    x[i] = 0x1p-20f * static_cast<float>(static_cast<std::int32_t>(random_stream{7, 2}.word(i)) >> halvings);
  }
  for (const example& e : examples) {
    const std::size_t code_size = static_cast<std::size_t>(rows * packed_bytes(e.format.element, k));
    const std::size_t scale_size = static_cast<std::size_t>(rows / e.format.rows * (k / e.format.length));
    bytes codes(code_size), scales(scale_size);
    const auto blocks = dense_blocks(e.format, rows, k, codes.data(), scales.data());
    quantize_ref(e.format, e.options, row_major<const float>(x.data(), rows, k), block_axis::row, blocks);

    const layout data = code_layout(e.data, e.format, rows, k), scale = scale_layout(e.scale, e.format, rows, k);
    bytes data_placed(static_cast<std::size_t>(data.size_bytes()), 0xA5);
    bytes scale_placed(static_cast<std::size_t>(scale.size_bytes()), 0xA5), scale_zeros = scale_placed;
    place_codes(e.format, blocks, e.data, data_placed.data());
    place_scales(e.format, blocks, e.scale, scale_placed.data());
    place_scales(e.format, blocks, e.scale, scale_zeros.data(), 0);
    index_t wrong = 0;
    for (index_t i = 0; i < data.size_bytes(); ++i) {
      const matrix_position p = data.position(i);
      wrong += data_placed[static_cast<std::size_t>(i)] !=
               codes[static_cast<std::size_t>(p.row * packed_bytes(e.format.element, k) + p.column)];
    }
    for (index_t i = 0; i < scale.size_bytes(); ++i) {
      const matrix_position p = scale.position(i);
      const bool inside = p.row < rows && p.column < k / e.format.length;
      const index_t from = p.row / e.format.rows * (k / e.format.length) + p.column;
      const std::uint8_t value = inside ? scales[static_cast<std::size_t>(from)] : e.unit;
      wrong += scale_placed[static_cast<std::size_t>(i)] != value;
      wrong += scale_zeros[static_cast<std::size_t>(i)] != (inside ? value : 0);
    }
    CHECK(wrong == 0);

    bytes codes_back(code_size, 0xA5), scales_back(scale_size, 0xA5);
    const auto back = dense_blocks(e.format, rows, k, codes_back.data(), scales_back.data());
    gather_codes(e.format, data_placed.data(), e.data, back);
    gather_scales(e.format, scale_placed.data(), e.scale, back);
    CHECK(codes_back == codes);
    CHECK(scales_back == scales);
  }
}

TEST_CASE("unit scales") {
  CHECK(unit_scale(formats::e8m0) == 0x7F);
  CHECK(unit_scale(formats::ue4m3) == 0x38);
  CHECK(unit_scale(formats::ue5m3) == 0x78);
  for (const format f : {formats::e8m0, formats::ue4m3, formats::ue5m3}) CHECK(scale_value(f, unit_scale(f)) == 1.0f);
}

namespace {

template <placement Order, index_t Rows, index_t Columns>
constexpr auto compiled() {
  constexpr layout l{Order, Rows, Columns};
  std::array<std::uint8_t, static_cast<std::size_t>(Rows * Columns)> from{}, back{};
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
  std::array<std::uint8_t, static_cast<std::size_t>(l.size_bytes())> to{};
  place(row_major<const std::uint8_t>(from.data(), Rows, Columns), l, to.data(), unit_scale(formats::e8m0));
  gather(to.data(), l, row_major(back.data(), Rows, Columns));
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] != back[i]) to[0] = static_cast<std::uint8_t>(~to[0]);
  }
  return to;
}

template <placement Order, index_t Rows, index_t Columns>
void check_compiled() {
  static constexpr auto constant = compiled<Order, Rows, Columns>();
  CHECK(constant == compiled<Order, Rows, Columns>());
  const indices expected = stated(Order, Rows, Columns);
  const index_t n = layout{Order, Rows, Columns}.padded_columns();
  for (std::size_t i = 0; i < constant.size(); ++i) {
    const index_t r = expected[i] / n, c = expected[i] % n, from = r * Columns + c;
    const bool inside = r < Rows && c < Columns;
    CHECK(constant[i] == (inside ? static_cast<std::uint8_t>(from * 37 + from / 256) : 0x7F));
  }
}

}  // namespace

TEST_CASE("compile time and run time agree") {
  check_compiled<placement::row_major, 5, 7>();
  check_compiled<placement::column_major, 5, 7>();
  check_compiled<placement::aiter_data_16x16, 32, 64>();
  check_compiled<placement::aiter_scale, 40, 12>();
  check_compiled<placement::hipblaslt_scale_32x8, 40, 12>();
  check_compiled<placement::nvidia_scale_128x4, 40, 6>();
}
