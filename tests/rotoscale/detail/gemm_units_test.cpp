// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every unit of gemm_units.hpp and every version of AMX's BF16 chains equals gemm_ref by bytes. Units of this
// processor run natively, and all algorithms with emulated instructions.
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

std::int32_t add_bytes(std::int32_t sum, const std::uint8_t* a, const std::uint8_t* b, int count) {
  for (int k = 0; k < count; ++k) sum += static_cast<std::int8_t>(a[k]) * static_cast<std::int8_t>(b[k]);
  return sum;
}
float add_pairs(float sum, const std::uint8_t* a, const std::uint8_t* b, int count) {
  const auto value = [](const std::uint8_t* x, int i) {
    return detail::flush(fp32_from_bits(static_cast<std::uint32_t>(x[i + 1] << 24 | x[i] << 16)));
  };
  float chain[2] = {};
  for (int i = 0; i < count; i += 2) {
    chain[i / 2 % 2] = detail::fma_flushing(value(a, i), value(b, i), chain[i / 2 % 2]);
  }
  return detail::fma_flushing(1.0f, detail::fma_flushing(1.0f, chain[0], chain[1]), detail::flush(sum));
}

/// Tile registers of a thread. Rows and bytes beyond the configuration are zero after a load, as in hardware.
struct tile_registers {
  detail::tile_configuration configured;
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
  /// TDPBSSD or TDPBF16PS c, a, b. Shapes that do not fit would be a fault. add(sum, a, b): a row of A, column of B.
  template <class Sum, class Add>
  bool multiply(int c, int a, int b, const Add& add) {
    const auto& t = configured;
    if (t.rows[c] != t.rows[a] || t.row_bytes[c] != t.row_bytes[b] || t.row_bytes[a] != 4 * t.rows[b]) return false;
    for (int m = 0; m < t.rows[c]; ++m) {
      for (int n = 0; n < t.row_bytes[c] / 4; ++n) {
        Sum sum;
        std::uint8_t column[64];
        for (int q = 0; q < t.rows[b]; ++q) std::memcpy(column + 4 * q, data[b][q] + 4 * n, 4);
        std::memcpy(&sum, data[c][m] + 4 * n, 4);
        sum = add(sum, data[a][m], column, t.row_bytes[a]);
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

  static void configure(const detail::tile_configuration& tiles) { registers.configured = tiles; }
  static void release() { registers.configured = {}; }
  static void clear(floats& sum) { sum.fill(0.0f); }
  static void multiply(int slot, const std::byte* a, index_t a_stride, const std::byte* b, index_t b_stride,
                       std::int32_t* sums) {
    const int a_tile = 4 + slot % 2, b_tile = 6 + slot % 2;
    std::memset(registers.data[slot], 0, sizeof registers.data[slot]);
    registers.load(a_tile, a, a_stride);
    registers.load(b_tile, b, b_stride);
    ROTOSCALE_REQUIRE(registers.multiply<std::int32_t>(slot, a_tile, b_tile, add_bytes));
    registers.store(slot, sums, 64);
  }
  template <int Halves>
  static void clear_sums() {
    std::memset(registers.data, 0, 2 * Halves * sizeof registers.data[0]);
  }
  template <int Halves>
  static void add_products(const std::byte* a, index_t a_stride, const std::byte* b, index_t b_stride) {
    for (int h = 0; h < Halves; ++h) registers.load(4 + h, a + 16 * h * a_stride, a_stride);
    for (int h = 0; h < 2; ++h) registers.load(6 + h, b + 64 * h, b_stride);
    for (int t = 0; t < 2 * Halves; ++t) {
      ROTOSCALE_REQUIRE(registers.multiply<std::int32_t>(t, 4 + t / 2, 6 + t % 2, add_bytes));
    }
  }
  template <int Halves>
  static void store_sums(std::int32_t* sums, index_t stride) {
    for (int t = 0; t < 2 * Halves; ++t) {
      registers.store(t, sums + t / 2 * 16 * detail::unit_columns + t % 2 * 16, stride);
    }
  }
  static void add(floats& sum, const std::int32_t* block, float scale, const floats& b_scale) {
    for (std::size_t l = 0; l < 16; ++l) {
      sum[l] = std::fmaf(static_cast<float>(block[l]), scale * b_scale[l], sum[l]);
    }
  }
};

struct emulated_pairs {
  static void configure(const detail::tile_configuration& tiles) { registers.configured = tiles; }
  static void release() { registers.configured = {}; }
  template <int Halves>
  static void clear() {
    emulated_tiles::clear_sums<Halves>();
  }
  template <int Halves>
  static void load(const float* acc) {
    for (int t = 0; t < 2 * Halves; ++t) registers.load(t, reinterpret_cast<const std::byte*>(at(acc, t)), 128);
  }
  template <int Halves>
  static void multiply(const std::byte* a, index_t stride, const std::byte* left, const std::byte* right) {
    registers.load(6, left, 64);
    registers.load(7, right, 64);
    for (int h = 0; h < Halves; ++h) registers.load(4 + h, a + 16 * h * stride, stride);
    for (int t = 0; t < 2 * Halves; ++t) {
      ROTOSCALE_REQUIRE(registers.multiply<float>(t, 4 + t / 2, 6 + t % 2, add_pairs));
    }
  }
  template <int Halves>
  static void store(float* acc) {
    for (int t = 0; t < 2 * Halves; ++t) registers.store(t, at(acc, t), 128);
  }

 private:
  template <class T>
  static T* at(T* acc, int tile) {
    return acc + tile / 2 * 16 * detail::pair_columns + tile % 2 * 16;
  }
};
struct emulated_chains : detail::tile_chains {
  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    return detail::flushing_chains::applies(a, b, o);
  }
  static index_t slice(const mma_model&) { return 64; }
  emulated_chains(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const detail::gemm_plan& plan)
      : tile_chains(a, b, o, plan, &detail::add_pair_tiles<emulated_pairs>) {}
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

int folded_calls = 0;  ///< of the emulated AMX

/// All units, with short spans too.
std::vector<detail::block_unit> units() {
  using detail::folded_bias, detail::packed_blocks;
  const auto tiles = [](const packed_blocks& p) { detail::add_tiles<emulated_tiles>(p); };
  const auto folded_tiles = [](const packed_blocks& p) {
    ++folded_calls;
    detail::add_folded_tiles<emulated_tiles>(p);
  };
  const auto wide = [](const packed_blocks& p) { detail::add_dots<emulated_dots<16, 6>, false>(p); };
  const auto folded_wide = [](const packed_blocks& p) { detail::add_dots<emulated_dots<16, 6>, true>(p); };
  const auto narrow = [](const packed_blocks& p) { detail::add_dots<emulated_dots<8, 2>, false>(p); };
  const auto folded_narrow = [](const packed_blocks& p) { detail::add_dots<emulated_dots<8, 2>, true>(p); };
  std::vector<detail::block_unit> all{{0, 2048, tiles, folded_tiles},
                                      {0, 64, tiles, folded_tiles},
                                      {folded_bias, 512, wide, folded_wide},
                                      {folded_bias, 64, narrow, folded_narrow}};
  for (const detail::block_unit* unit : detail::processor_units().found) {
    if (unit == nullptr) break;
    all.push_back(*unit);
    all.push_back({unit->bias, 64, unit->add, unit->add_folded});
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

/// Random codes. `scales`: around 1; near enough to fold; any byte but NaN; a few NaN.
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
      if (kind == "any")
        scales.push_back(any);
      else if (kind == "folds")
        scales.push_back(static_cast<std::uint8_t>(120 + w % (1 + seed % 5)));
      else
        scales.push_back(kind == "NaN" && w % 50 == 0 ? std::uint8_t{255} : near);
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
// Extents around tiles of 16 rows and 16 columns, panels of 32, chunks of 64.
const std::vector<shape> shapes{{1, 1, 32},   {16, 16, 64},  {17, 33, 96},  {70, 31, 128},
                                {3, 65, 160}, {15, 48, 256}, {33, 17, 288}, {5, 40, 2080}};

/// BF16 codes by the kind of number that flushing chains must handle.
std::vector<std::uint16_t> flushing_codes(index_t count, int kind, std::uint64_t seed) {
  const random_stream random{seed, 22};
  std::vector<std::uint16_t> codes;
  for (index_t i = 0; i < count; ++i) {
    const std::uint32_t word = random.word(static_cast<std::uint64_t>(i)), sign_and_fraction = word & 0x807F;
    std::uint32_t exponent = 120 + (word >> 16) % 14;                          // 0: ordinary
    if (kind == 1) exponent = 60 + (word >> 16) % 10;                          // products near 2^-126
    if (kind == 2) exponent = (word >> 16) % 5 == 0 ? 0 : (word >> 16) % 255;  // zeros, subnormals, all exponents
    if (kind == 3) exponent = (word >> 16) % 256;                              // Inf and NaN as well
    if (kind == 4) exponent = 250 + (word >> 16) % 5;                          // sums beyond FP32
    codes.push_back(static_cast<std::uint16_t>(sign_and_fraction | exponent << 7));
  }
  return codes;
}

TEST_CASE("units: every shape and kind of scales") {
  thread_pool one(1), three(3);
  for (const detail::block_unit& unit : units()) {
    chosen = &unit;
    std::uint64_t seed = 0;
    for (const std::string kind : {"ordinary", "folds", "none", "NaN", "any"}) {
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

TEST_CASE("units: folded sums of K, and those that could leave FP32's significand") {
  thread_pool pool(1);
  for (const detail::block_unit& unit : units()) {
    chosen = &unit;
    for (const int spread : {4, 5, 6}) {  // of A's and B's scales
      operand a(3, 2080, "ordinary", 1), b(33, 2080, "ordinary", 2);
      for (operand* const x : {&a, &b}) {
        const int most = x == &a ? 3 : spread - 3;
        for (index_t i = 0; i < x->view.rows * 65; ++i) {
          // The last four blocks have one small product each, which a chain beyond 2^24 rounds away.
          const bool large = i % 65 < 61;
          x->scales[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(120 + (large ? most : 0));
          std::memset(x->codes.data() + 16 * i, large ? 0x77 : 0, 16);
          if (!large) x->codes[static_cast<std::size_t>(16 * i)] = 1;
        }
      }
      folded_calls = 0;
      CAPTURE(spread);
      CHECK(same_bytes(a, b, {fp32_blockwise}, pool));
      if (unit.add == units()[0].add) CHECK((folded_calls > 0) == (spread < 6));
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

TEST_CASE("AMX's chains of BF16, with zero padding, transposed operands, NaN, and numbers around 2^-126") {
  gemm_options o;
  o.model = models::intel(32, mma_sum::split_chains);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const int kind = static_cast<int>(seed % 5);
    CAPTURE(kind);
    const index_t m = 1 + static_cast<index_t>(seed * 37 % 71), n = 5 + static_cast<index_t>(seed * 11 % 40),
                  k = seed < 5 ? 64 : 1 + static_cast<index_t>(seed * 13 % 90);
    const auto a = flushing_codes(m * k, kind, 2 * seed), b = flushing_codes(n * k, kind, 2 * seed + 1);
    const auto view = [&](const std::vector<std::uint16_t>& codes, index_t rows, bool transposed) {
      gemm_operand x{formats::bf16, rows, k, reinterpret_cast<const std::uint8_t*>(codes.data())};
      x.transposed = transposed;
      x.code_stride = 2 * (transposed ? rows : k);
      return x;
    };
    const gemm_operand left = view(a, m, seed % 2 != 0), right = view(b, n, seed % 3 == 0);
    o.start_from_c = seed % 4 == 1;
    o.accumulate = seed % 4 == 2;
    std::vector<float> want;
    for (const std::uint16_t code : flushing_codes(m * n, kind, 1000 + seed)) {
      want.push_back(fp32_from_bits(std::uint32_t{code} << 16 | code));
    }
    std::vector<float> got = want, emulated = want;
    thread_pool pool(2);
    gemm_ref(left, right, o, row_major(want.data(), m, n));
    gemm(left, right, o, row_major(got.data(), m, n), pool);
    CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
    const auto c = as_batch(row_major(emulated.data(), m, n));
    detail::gemm_batch<detail::kernel_list<emulated_chains>>(left, right, o, c, pool);
    CHECK(std::memcmp(emulated.data(), want.data(), want.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("every version of AMX's chains that this processor has gives the bits of the portable one") {
  constexpr index_t rows = 29, steps = 3, k = steps * detail::flushing_group;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const int kind = static_cast<int>(seed % 5);
    if (kind == 3) continue;  // kernels get no NaN
    const auto floats = [&](index_t count, std::uint64_t stream) {
      std::vector<float> x;
      for (const std::uint16_t code : flushing_codes(count, kind, stream)) {
        x.push_back(fp32_from_bits(std::uint32_t{code} << 16));
      }
      return x;
    };
    const std::vector<float> a = floats(rows * k, 3 * seed), b = floats(k * detail::flushing_columns, 3 * seed + 1),
                             c = floats(rows * detail::flushing_columns, 3 * seed + 2);
    const auto run = [&](const detail::flushing_version& v) {
      std::vector<float> acc = c;
      detail::run_flushing_tile(v, {rows, steps, a.data(), k, b.data(), acc.data()});
      return acc;
    };
    const std::vector<float> want = run(detail::flushing_versions().back());
    for (const detail::flushing_version& v : detail::flushing_versions()) {
      if (!v.is_supported) continue;
      CAPTURE(v.name);
      CHECK(std::memcmp(run(v).data(), want.data(), want.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace gemm_units_test
