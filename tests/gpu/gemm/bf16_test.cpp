// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// gemm_bf16 against the CPU's gemm under the contract of each of the device's units, by bytes: row-major and transposed
// operands, every output, ragged extents and strides, all kinds of numbers. Large shapes run on a device only. In host
// mode AMD's kernel runs with its unit's model.
#include <doctest/doctest.h>

#include <cstring>

#include "gpu/api/gemm_bf16.hpp"
#include "gpu/gemm/data.hpp"
#if !defined(ROTOSCALE_TEST_DEVICE)
#include "gpu/gemm/amd/dense.hpp"
#include "gpu/gemm/dense.hpp"
#include "gpu/gemm/dispatch.hpp"
#include "gpu/gemm/plan.hpp"
#endif
#include "rotoscale/gemm.hpp"
#include "tests/gpu/thread_orders.hpp"

namespace gemm_bf16_test {

using namespace gpu_test;

namespace {

constexpr const char* units[] = {"hopper-mma-fp16-f32", "cdna3-mfma-fp16-f32"};

const gemm_contract_entry* contract_of(const char* unit) { return bf16_contract(find_unit(unit)->model, device); }

enum class numbers {
  binades,  ///< 16 binades, some zeros, all significand bits
  any       ///< any codes: subnormal, zeros of both signs, Inf and NaN in row 3
};

/// Codes with `gap` elements between rows. Elements outside the operand are NaN.
struct dense_bf16 {
  int rows, k;
  bool transposed;
  int stride;  ///< elements
  array<std::uint8_t> codes;

  dense_bf16(int r, int length, bool t, unsigned seed, int gap = 0, numbers kind = numbers::binades)
      : rows(r), k(length), transposed(t), stride(((t ? r : length) + 7) / 8 * 8 + gap), codes(make(seed, kind)) {}

  bytes make(unsigned seed, numbers kind) const {
    std::mt19937 random(seed);
    const int lines = transposed ? k : rows, length = transposed ? rows : k;
    bytes out;
    for (int i = 0; i < lines; ++i) {
      const int codes_here = i + 1 < lines ? stride : length;  // the last row has no gap
      for (int j = 0; j < codes_here; ++j) {
        const std::uint32_t code = j < length ? code_of(random, kind, transposed ? j : i, transposed ? i : j) : 0x7FFFu;
        out.push_back(static_cast<std::uint8_t>(code));
        out.push_back(static_cast<std::uint8_t>(code >> 8));
      }
    }
    return out;
  }
  static std::uint32_t code_of(std::mt19937& random, numbers kind, int row, int at) {
    const auto word = static_cast<std::uint32_t>(random());
    const std::uint32_t some = word % 31 == 0 ? 0 : (word & 0x807Fu) | (119 + (word >> 16) % 16) << 7;
    if (kind == numbers::binades) return some;
    const std::uint32_t special = at % 5 == 0 ? 0x7F80u : 0x7FC1u, small = word & 0x807Fu, zero = word & 0x8000u;
    if (row == 3 && word % 3 == 0) return special | (word & 0x8000u);
    if (row == 5) return zero;
    if (row == 6) return small | 0x0100u;                            // products underflow
    if (row == 7) return (word & 0x807Fu) | (word % 2 + 252u) << 7;  // products overflow
    return word % 7 == 0 ? small : word % 7 == 1 ? zero : some;
  }
  gemm_operand view(bool there) const {
    gemm_operand o;
    o.element = formats::bf16;
    o.rows = rows;
    o.k = k;
    o.codes = there ? codes.there : codes.here.data();
    o.code_stride = 2 * stride;
    o.transposed = transposed;
    return o;
  }
};

struct options {
  int output = 0;  ///< 0 FP32, 1 FP32 rounded to BF16, 2 BF16
  bool accumulate = false;
  int split_k = 1;
  int gap = 0, out_gap = 0;  ///< elements between rows
  int skew = 0;              ///< elements before the output
  numbers kind = numbers::binades;
};

struct orientation {
  bool a, b;
};
constexpr orientation orientations[] = {{false, false}, {false, true}, {true, false}, {true, true}};

/// Outputs and the memory around them are initially `poison`, rounded to BF16 in a BF16 output.
template <class T>
struct judged {
  static constexpr float poison = 3.0f;
  int m, n, stride, skew;
  array<T> memory;
  judged(int rows, int columns, const options& o)
      : m(rows), n(columns), stride(columns + o.out_gap), skew(o.skew), memory(before()) {}
  std::vector<T> before() const {
    return std::vector<T>(static_cast<std::size_t>(skew + m * stride),
                          static_cast<T>(sizeof(T) == 2 ? fp32_bits(poison) >> 16 : fp32_bits(poison)));
  }
  /// Number of elements that differ from `want`, or from the poison outside the output.
  int wrong(const std::vector<float>& want) {
    memory.fetch();
    CHECK(memory.guards_hold());
    std::vector<T> expected = before();
    for (int i = 0; i < m * n; ++i) {
      const std::uint32_t bits = fp32_bits(want[static_cast<std::size_t>(i)]);
      expected[static_cast<std::size_t>(skew + i / n * stride + i % n)] =
          static_cast<T>(sizeof(T) == 2 ? bits >> 16 : bits);
    }
    int count = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) count += expected[i] != memory.here[i];
    return count;
  }
};

void compare(const char* unit, int m, int n, int k, orientation t, const options& how = {}) {
  const gemm_contract_entry* contract = contract_of(unit);
  if (contract == nullptr) return;
  CAPTURE(unit);
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(t.a);
  CAPTURE(t.b);
  CAPTURE(how.output);
  const dense_bf16 a(m, k, t.a, 1, how.gap, how.kind), b(n, k, t.b, 2, how.gap, how.kind);
  std::vector<float> want(static_cast<std::size_t>(m) * static_cast<std::size_t>(n), judged<float>::poison);
  gemm_options o = contract_options(*contract, find_unit(contract->unit)->model);
  o.output = how.output == 0 ? formats::fp32 : formats::bf16;
  o.accumulate = how.accumulate;
  o.split_k = how.split_k;
  sum_output r;
  r.output = o.output;
  r.accumulate = how.accumulate;
  judged<std::uint32_t> wide(m, n, how);
  judged<std::uint16_t> narrow(m, n, how);
  r.stored = how.output == 2 ? formats::bf16 : formats::fp32;
  r.out = how.output == 2 ? static_cast<void*>(narrow.memory.there + how.skew)
                          : static_cast<void*>(wide.memory.there + how.skew);
  r.out_stride = wide.stride;
  const std::size_t needed = gemm_bf16_workspace_bytes(*contract, m, n, k, how.split_k);
  CHECK((needed > 0) == (how.split_k > 1));
  const array<float> workspace(std::vector<float>(needed / sizeof(float) + 1, -7.0f));
  const status s = gemm_bf16(*contract, a.view(true), b.view(true), r, {}, how.split_k, workspace.there, needed);
  REQUIRE_MESSAGE(s.ok(), s.message());
  CHECK(workspace.guards_hold());
  static thread_pool pool(0);
  gemm(a.view(false), b.view(false), o, row_major(want.data(), m, n), pool);
  CHECK((how.output == 2 ? narrow.wrong(want) : wide.wrong(want)) == 0);
}

}  // namespace

TEST_CASE("BF16 operands in every orientation") {
  for (const char* unit : units) {
    for (const orientation t : orientations) {
      for (const int output : {0, 1, 2}) compare(unit, 40, 72, 88, t, {output, output == 0});
      compare(unit, 72, 40, 96, t, {2, true});
      if (!on_device) continue;
      compare(unit, 512, 768, 320, t, {2});
      compare(unit, 264, 520, 1096, t, {0, true});
      compare(unit, 136, 1032, 72, t, {1});
    }
  }
}

TEST_CASE("BF16 operands of any extents and strides: nothing else is read, nothing else is written") {
  for (const char* unit : units) {
    for (const orientation t : orientations) {
      // Less than a vector; one more and one less than tiles of 16, 32 and 128 and than steps of 32 k.
      compare(unit, 1, 1, 1, t, {.gap = 8, .out_gap = 3});
      compare(unit, 5, 3, 7, t, {.output = 2, .skew = 1});
      compare(unit, 33, 130, 65, t, {.output = 1, .gap = 8, .out_gap = 1});
      compare(unit, 31, 127, 63, t, {.output = 2, .accumulate = true, .gap = 16, .out_gap = 5});
      compare(unit, 129, 20, 40, t, {.accumulate = true, .out_gap = 4});
      compare(unit, 130, 129, 33, t, {.output = 2, .gap = 8, .out_gap = 2});
      // Multiples of four columns, aligned and not.
      compare(unit, 20, 132, 32, t, {.output = 2, .out_gap = 4});
      compare(unit, 20, 132, 32, t, {.output = 2, .out_gap = 2});
      compare(unit, 20, 132, 32, t, {.output = 0, .skew = 2});
      compare(unit, 20, 132, 32, t, {.output = 0, .out_gap = 2});
      compare(unit, 20, 132, 32, t, {.output = 2, .accumulate = true, .skew = 2});
    }
  }
}

TEST_CASE("BF16 numbers of every kind") {
  for (const char* unit : units) {
    for (const orientation t : orientations) {
      compare(unit, 40, 24, 136, t, {.kind = numbers::any});
      compare(unit, 24, 40, 100, t, {.output = 2, .accumulate = true, .gap = 8, .kind = numbers::any});
      compare(unit, 16, 16, 300, t, {.accumulate = true, .split_k = 2, .kind = numbers::any});
    }
  }
}

TEST_CASE("BF16: no order of threads changes a byte") {
  for_thread_orders([] {
    for (const char* unit : units) {
      for (const orientation t : orientations) {
        compare(unit, 160, 144, 136, t, {.output = 2});
        compare(unit, 24, 136, 100, t, {.accumulate = true, .gap = 8});
      }
    }
  });
}

#if !defined(ROTOSCALE_TEST_DEVICE)
namespace {

/// True if `lanes` accesses of `bytes` at offset(lane) touch each of the 32 four-byte banks once.
template <class Offset>
bool fills_banks(int lanes, int bytes, const Offset& offset) {
  std::uint64_t seen = 0;
  for (int l = 0; l < lanes; ++l) {
    for (int b = 0; b < bytes; b += 4) seen |= std::uint64_t{1} << ((offset(l) + b) / 4 % 32);
  }
  return seen == 0xFFFFFFFFu && lanes * bytes == 128;
}

}  // namespace

namespace {

/// Compares an (m, n) product in `tile`, on a device with a CU count for which the launcher selects that tile.
void compare_in_tile(const tile_shape& tile, int m, int n, int k, int split_k, orientation t) {
  CAPTURE(tile.m);
  CAPTURE(tile.n);
  CAPTURE(m);
  CAPTURE(t.a);
  CAPTURE(t.b);
  const gemm_contract_entry& contract = *find_contract("mx-bf16-gfx942");
  const int parts = gpu::detail::split_of(k, split_k, static_cast<int>(contract.split_grain)).parts;
  device_info device{arch::gfx942, 1};
  const auto is_cheapest = [&] {
    return &cheapest_tile(device, dense_tiles, {true, m, n, k}, [&](const tile_shape&) { return parts; }) == &tile;
  };
  while (device.processors < 1000 && !is_cheapest()) ++device.processors;
  REQUIRE(is_cheapest());
  const dense_bf16 a(m, k, t.a, 5, 8), b(n, k, t.b, 6, 8);
  judged<std::uint32_t> found(m, n, {.out_gap = 3});
  sum_output r;
  r.out = found.memory.there;
  r.out_stride = found.stride;
  const std::size_t needed = gemm_bf16_workspace_bytes(contract, m, n, k, split_k);
  const array<float> workspace(std::vector<float>(needed / sizeof(float) + 1, -7.0f));
  const status s =
      gpu::detail::run_dense(a.view(true), b.view(true), r, contract, {split_k, workspace.there, needed}, device, {});
  REQUIRE_MESSAGE(s.ok(), s.message());
  gemm_options how = contract_options(contract, find_unit(contract.unit)->model);
  how.split_k = split_k;
  std::vector<float> want(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
  static thread_pool pool(0);
  gemm(a.view(false), b.view(false), how, row_major(want.data(), m, n), pool);
  CHECK(found.wrong(want) == 0);
}

}  // namespace

TEST_CASE("AMD's dense kernel in every tile, at the edges of each, in every orientation") {
  for (const tile_shape& tile : dense_tiles) {
    for (const orientation t : orientations) {
      compare_in_tile(tile, tile.m > 32 ? 2 * tile.m - 5 : 27, 2 * tile.n + 9, 72, 1, t);  // partial vectors
      compare_in_tile(tile, tile.m - 8, tile.n + 8, 296, 2, t);                            // whole vectors, split-K
    }
  }
  for_thread_orders([] {
    for (const tile_shape& tile : dense_tiles) {
      compare_in_tile(tile, tile.m - 8, tile.n + 8, 72, 1, {true, false});
    }
  });
}

TEST_CASE("AMD's dense kernel: no access to LDS has bank conflicts") {
  using gpu::amd::dense_offset;
  for (int row = 0; row < 256; row += 16) {
    for (int chunk = 0; chunk < 8; ++chunk) {
      CHECK(fills_banks(16, 8, [&](int l) { return dense_offset(row + l, chunk); }));
    }
  }
  for (int thread = 0; thread < 256; thread += 8) {  // vectors: four lanes per row
    CHECK(fills_banks(8, 16, [&](int l) { return dense_offset((thread + l) / 4, 2 * (l % 4)) & ~8; }));
  }
  for (int thread = 0; thread < 256; thread += 32) {  // transposed operands: word t of each patch
    for (int t = 0; t < 8; ++t) {
      CHECK(fills_banks(32, 4, [&](int l) {
        const int patch = (thread + l) / 64 * 4 + (thread + l) % 4, pair = (thread + l) / 4 % 16;
        return dense_offset(8 * patch + (t ^ patch % 2), pair / 2) + pair % 2 * 4;
      }));
    }
  }
}
#endif

TEST_CASE("parts of K are added in ascending order, and there may be fewer than asked for") {
  for (const char* unit : units) {
    const gemm_contract_entry* const contract = contract_of(unit);
    if (contract == nullptr) continue;
    // A smaller k may have more parts: 640 splits into three of 256, 512 into four of 128.
    for (int k = 8; k < 640; k += 8) {
      CHECK(gemm_bf16_workspace_bytes(*contract, 8, 8, k, 4) <= gemm_bf16_workspace_bytes(*contract, 8, 8, 640, 4));
    }
    for (const bool transposed : {false, true}) {
      for (const int output : {0, 1, 2})
        compare(unit, 24, 40, 520, {transposed, !transposed}, {output, output == 0, 3});
      compare(unit, 16, 24, 264, {transposed, transposed}, {0, true, 7});
      compare(unit, 17, 35, 417, {transposed, !transposed}, {.split_k = 3, .gap = 8, .out_gap = 1});
      if (!on_device) continue;
      compare(unit, 264, 520, 4104, {transposed, transposed}, {0, true, 8});
      compare(unit, 768, 512, 8192, {transposed, !transposed}, {2, false, 16});
    }
  }
}

TEST_CASE("bad dense operands are refused") {
  const dense_bf16 a(8, 16, false, 1);
  const array<float> out(std::vector<float>(64));
  const sum_output good{out.there};
  int contracts = 0;
  for (const char* unit : units) {
    const gemm_contract_entry* const contract = contract_of(unit);
    if (contract == nullptr) continue;
    ++contracts;
    const auto argument = [&](const gemm_operand& x, const gemm_operand& y, const sum_output& r) {
      return std::string(gemm_bf16(*contract, x, y, r, {}).argument);
    };
    gemm_operand wrong = a.view(true);
    wrong.element = formats::fp16;
    CHECK(argument(wrong, a.view(true), good) == "a.element");
    wrong = a.view(true);
    wrong.code_stride = 24;
    CHECK(argument(a.view(true), wrong, good) == "b.code_stride");
    wrong = a.view(true);
    wrong.k = 8;
    CHECK(argument(a.view(true), wrong, good) == "b.k");
    sum_output bad = good;
    bad.out = nullptr;
    CHECK(argument(a.view(true), a.view(true), bad) == "r.out");
    bad = good;
    bad.stored = formats::fp16;  // half the bytes of FP32
    CHECK(argument(a.view(true), a.view(true), bad) == "r.stored");
    bad = good;
    bad.out_stride = 7;
    CHECK(argument(a.view(true), a.view(true), bad) == "r.out_stride");
  }
  CHECK((contracts > 0 || device.arch == arch::other));
  for (const char* name : {"cublas-fp16", "single-accumulator", "mxfp8-gfx950"}) {
    const status s = gemm_bf16(*find_contract(name), a.view(true), a.view(true), good, {});
    CHECK(s.code == error_code::unsupported_device);
    CHECK(std::string(s.argument) == "contract");
  }
}

}  // namespace gemm_bf16_test
