// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every unit of gemm_units.hpp equals gemm_ref by bytes: those of this processor, and their algorithms with emulated
// instructions.
#include "rotoscale/detail/gemm_units.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "oracle/block_values.hpp"
#include "rotoscale/gemm.hpp"

namespace gemm_units_test {

using namespace rotoscale;

namespace {

std::int32_t product(std::uint8_t a, std::uint8_t b) {
  return static_cast<std::int8_t>(a) * static_cast<std::int8_t>(b);
}

/// Tile registers of a thread. Rows and bytes beyond the configuration are zero after a load, as in hardware.
struct tile_registers {
  detail::block_tiles configured{16};
  std::uint8_t data[8][16][64];

  void load(int tile, const std::byte* from, index_t stride) {
    std::memset(data[tile], 0, sizeof data[tile]);
    for (int r = 0; r < configured.rows[tile]; ++r) std::memcpy(data[tile][r], from + r * stride, row_bytes(tile));
  }
  void store(int tile, void* to, index_t stride) const {
    for (int r = 0; r < configured.rows[tile]; ++r) {
      std::memcpy(static_cast<std::byte*>(to) + r * stride, data[tile][r], row_bytes(tile));
    }
  }
  /// TDPBSSD c, a, b. Shapes that do not fit would be a fault.
  bool multiply(int c, int a, int b) {
    const auto& t = configured;
    if (t.rows[c] != t.rows[a] || t.row_bytes[c] != t.row_bytes[b] || t.row_bytes[a] != 4 * t.rows[b]) return false;
    for (int m = 0; m < t.rows[c]; ++m) {
      for (int n = 0; n < t.row_bytes[c] / 4; ++n) {
        std::int32_t sum;
        std::memcpy(&sum, data[c][m] + 4 * n, 4);
        for (int k = 0; k < t.row_bytes[a]; ++k) sum += product(data[a][m][k], data[b][k / 4][4 * n + k % 4]);
        std::memcpy(data[c][m] + 4 * n, &sum, 4);
      }
    }
    return true;
  }

 private:
  std::size_t row_bytes(int tile) const { return configured.row_bytes[tile]; }
};
thread_local tile_registers registers;

struct emulated_tiles {
  using floats = std::array<float, 16>;

  static void configure(const detail::block_tiles& tiles) { registers.configured = tiles; }
  static void release() { registers.configured = detail::block_tiles(0); }
  static void clear(floats& sum) { sum.fill(0.0f); }
  static void multiply(int slot, const std::byte* a, index_t a_stride, const std::byte* b, index_t b_stride,
                       std::int32_t* sums) {
    const int a_tile = 4 + slot % 2, b_tile = 6 + slot % 2;
    std::memset(registers.data[slot], 0, sizeof registers.data[slot]);
    registers.load(a_tile, a, a_stride);
    registers.load(b_tile, b, b_stride);
    ROTOSCALE_REQUIRE(registers.multiply(slot, a_tile, b_tile));
    registers.store(slot, sums, 64);
  }
  static void add(floats& sum, const std::int32_t* block, float scale, const floats& b_scale) {
    for (std::size_t l = 0; l < 16; ++l) {
      sum[l] = std::fmaf(static_cast<float>(block[l]), scale * b_scale[l], sum[l]);
    }
  }
};

template <int Lanes, int Rows>
struct emulated_dots {
  static constexpr int lanes = Lanes, rows = Rows;
  using floats = std::array<float, Lanes>;
  using ints = std::array<std::int32_t, Lanes>;

  static void broadcast(ints& to, std::int32_t x) { to.fill(x); }
  /// VPDPBUSD.
  static void add_products(ints& s, const ints& unsigned_bytes, const ints& signed_bytes) {
    for (std::size_t l = 0; l < lanes; ++l) {
      for (int i = 0; i < 4; ++i) {
        s[l] += (unsigned_bytes[l] >> (8 * i) & 0xFF) * static_cast<std::int8_t>(signed_bytes[l] >> (8 * i));
      }
    }
  }
  static void add(floats& sum, const ints& block, float scale, const floats& b_scale) {
    for (std::size_t l = 0; l < lanes; ++l) {
      sum[l] = std::fmaf(static_cast<float>(block[l]), scale * b_scale[l], sum[l]);
    }
  }
};

/// All units, with short spans too.
std::vector<detail::block_unit> units() {
  const auto tiles = [](const detail::packed_blocks& p) { detail::add_tiles<emulated_tiles>(p); };
  const auto wide = [](const detail::packed_blocks& p) { detail::add_dots<emulated_dots<16, 6>>(p); };
  const auto narrow = [](const detail::packed_blocks& p) { detail::add_dots<emulated_dots<8, 2>>(p); };
  std::vector<detail::block_unit> all{
      {0, 2048, tiles}, {0, 64, tiles}, {detail::e2m1_bias, 512, wide}, {detail::e2m1_bias, 64, narrow}};
  for (const detail::block_unit* unit : detail::processor_units().found) {
    if (unit == nullptr) break;
    all.push_back(*unit);
    all.push_back({unit->bias, 64, unit->add});
  }
  return all;
}

const detail::block_unit* chosen = nullptr;

class chosen_blocks : public detail::unit_blocks {
 public:
  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    return o.model.group == detail::unit_block && exact_block_operands::applies(a, b, o);
  }
  static index_t slice(const mma_model&) { return chosen->slice; }
  chosen_blocks(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const detail::gemm_plan& plan)
      : unit_blocks(a, b, o, plan, *chosen) {}
};

/// Random codes. `scales`: around 1; any byte but NaN; a few NaN.
struct operand {
  std::vector<std::uint8_t> codes, scales;
  gemm_operand view;

  operand(index_t rows, index_t k, const std::string& kind, std::uint64_t seed) {
    const random_stream random{seed, 31};
    const index_t stride = (k + 1) / 2, per_row = (k + 31) / 32;
    const auto word = [&](index_t i) { return random.word(static_cast<std::uint64_t>(i)); };
    for (index_t i = 0; i < rows * stride; ++i) codes.push_back(static_cast<std::uint8_t>(word(i)));
    for (index_t i = 0; i < rows * per_row; ++i) {
      const std::uint32_t w = word((index_t{1} << 40) + i);
      const auto near = static_cast<std::uint8_t>(120 + w % 14), any = static_cast<std::uint8_t>(w % 255);
      scales.push_back(kind == "any" ? any : kind == "NaN" && w % 50 == 0 ? std::uint8_t{255} : near);
    }
    view = {formats::e2m1, rows, k, codes.data(), stride, 0, nullptr, 0, nullptr};
    if (kind == "none") return;
    view.block = 32;
    view.scales = scales.data();
    view.scale_stride = per_row;
  }
};

/// Compares the chosen unit with gemm_ref, over old values of C.
bool same_bytes(const operand& a, const operand& b, const gemm_options& o, thread_pool& pool) {
  const index_t m = a.view.rows, n = b.view.rows;
  std::vector<float> c[2];
  for (auto& x : c) x = oracle::block_values(m, n, 4, false);
  const auto first = row_major(c[0].data(), m, n), second = row_major(c[1].data(), m, n);
  gemm_ref(a.view, b.view, o, first);
  REQUIRE(chosen_blocks::applies(a.view, b.view, o));
  detail::gemm_batch<detail::kernel_list<chosen_blocks>>(a.view, b.view, o, as_batch(second), pool);
  return std::memcmp(c[0].data(), c[1].data(), c[0].size() * sizeof(float)) == 0;
}

struct shape {
  index_t m, n, k;
};
// Extents around tiles of 16 rows and 16 columns, panels of 32, chunks of 64, three and four blocks in flight.
const std::vector<shape> shapes{{1, 1, 32},   {16, 16, 64},  {17, 33, 96},  {70, 31, 128},
                                {3, 65, 160}, {15, 48, 256}, {33, 17, 288}, {5, 40, 2080}};

}  // namespace

TEST_CASE("units: every shape and kind of scales") {
  thread_pool one(1), three(3);
  for (const detail::block_unit& unit : units()) {
    chosen = &unit;
    std::uint64_t seed = 0;
    for (const std::string kind : {"ordinary", "none", "NaN", "any"}) {
      for (const shape& s : shapes) {
        ++seed;
        CAPTURE(seed);
        CAPTURE(unit.slice);
        const operand a(s.m, s.k, kind, seed), b(s.n, s.k, kind, seed + 1000);
        REQUIRE(same_bytes(a, b, {fp32_blockwise}, seed % 2 == 0 ? one : three));
      }
    }
  }
}

TEST_CASE("units: depths that are no whole blocks, parts of K, accumulators that start from C") {
  thread_pool pool(2);
  for (const detail::block_unit& unit : units()) {
    chosen = &unit;
    for (const index_t k : {1, 31, 40, 417}) {
      const operand a(19, k, "ordinary", 5), b(35, k, "ordinary", 6);
      gemm_options o{fp32_blockwise, formats::bf16, true};
      CAPTURE(k);
      REQUIRE(same_bytes(a, b, o, pool));
      o.start_from_c = true;
      o.accumulate = false;
      REQUIRE(same_bytes(a, b, o, pool));
      o.split_k = 3;
      o.split_grain = 32;
      o.start_from_c = false;
      o.promotion = 64;
      REQUIRE(same_bytes(a, b, o, pool));
    }
  }
}

TEST_CASE("units: the largest sums of a block") {
  thread_pool pool(1);
  for (const detail::block_unit& unit : units()) {
    chosen = &unit;
    for (const int second : {0x77, 0xFF}) {
      operand a(18, 96, "none", 1), b(33, 96, "none", 2);
      for (auto& code : a.codes) code = 0x77;
      for (auto& code : b.codes) code = static_cast<std::uint8_t>(second);
      CHECK(same_bytes(a, b, {fp32_blockwise}, pool));
    }
  }
}

TEST_CASE("units: only blocks of 32 E2M1 elements apply") {
  const operand a(4, 64, "ordinary", 1), b(4, 64, "ordinary", 2);
  const bool has_unit = detail::processor_units().found[0] != nullptr;
  CHECK(detail::unit_blocks::applies(a.view, b.view, {fp32_blockwise}) == has_unit);
  CHECK_FALSE(detail::unit_blocks::applies(a.view, b.view, {mma_model{16}}));
  CHECK_FALSE(detail::unit_blocks::applies(a.view, b.view, {fp32_fma_chain}));
}

}  // namespace gemm_units_test
