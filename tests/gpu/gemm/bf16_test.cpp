// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of dense BF16 equal the CPU's gemm by bytes, under the contract of each of the device's units. Cases: row-major
// and transposed operands, every output, ragged extents and strides, all kinds of numbers. Large shapes run on a device
// only. In host mode AMD's kernel runs with its unit's model.
#include <doctest/doctest.h>

#include <cstring>

#include "gpu/gemm/data.hpp"
#include "oracle/share.hpp"
#include "rotoscale/gemm.hpp"
#include "tests/gpu/thread_orders.hpp"

namespace gemm_bf16_test {

using namespace gpu_test;

constexpr const char* contracts[] = {"mx-bf16-sm90", "mx-bf16-gfx942"};

gemm_call call_of(const gemm_result& r, const gemm_operand& a, const gemm_operand& b, const char* contract,
                  int split_k = 1) {
  gemm_call c{r, a, b, gpu::detail::options_of(contract)};
  c.contract.split_k = split_k;
  return c;
}
/// True if the device has the contract.
bool has(const char* contract) {
  gemm_operand x{.element = formats::bf16, .rows = 8, .k = 8, .code_stride = 16};
  return check_gemm(call_of({}, x, x, contract), device).ok();
}

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

void compare(const char* contract, int m, int n, int k, orientation t, const options& how = {}) {
  if (!has(contract)) return;
  CAPTURE(contract);
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(t.a);
  CAPTURE(t.b);
  CAPTURE(how.output);
  const dense_bf16 a(m, k, t.a, 1, how.gap, how.kind), b(n, k, t.b, 2, how.gap, how.kind);
  std::vector<float> want(static_cast<std::size_t>(m) * static_cast<std::size_t>(n), judged<float>::poison);
  gemm_call r = call_of({}, a.view(true), b.view(true), contract, how.split_k);
  r.output = how.output == 0 ? formats::fp32 : formats::bf16;
  r.accumulate = how.accumulate;
  judged<std::uint32_t> wide(m, n, how);
  judged<std::uint16_t> narrow(m, n, how);
  r.stored = how.output == 2 ? formats::bf16 : formats::fp32;
  r.out = how.output == 2 ? static_cast<void*>(narrow.memory.there + how.skew)
                          : static_cast<void*>(wide.memory.there + how.skew);
  r.out_stride = wide.stride;
  const std::size_t needed = gemm_workspace_bytes(r, device);
  CHECK((needed > 0) == (how.split_k > 1));
  const array<float> workspace(std::vector<float>(needed / sizeof(float) + 1, -7.0f));
  const status s = gemm(r, workspace.there, needed, {});
  REQUIRE_MESSAGE(s.ok(), s.message());
  CHECK(workspace.guards_hold());
  gemm_options o = r.contract;
  o.output = r.output;
  o.accumulate = how.accumulate;
  static thread_pool pool(0);
  rotoscale::gemm(a.view(false), b.view(false), o, row_major(want.data(), m, n), pool);
  CHECK((how.output == 2 ? narrow.wrong(want) : wide.wrong(want)) == 0);
}

TEST_CASE("BF16 operands in every orientation") {
  for (const char* contract : contracts) {
    for (const orientation t : orientations) {
      for (const int output : {0, 1, 2}) compare(contract, 40, 72, 88, t, {output, output == 0});
      compare(contract, 72, 40, 96, t, {2, true});
      if (!on_device) continue;
      compare(contract, 512, 768, 320, t, {2});
      compare(contract, 264, 520, 1096, t, {0, true});
      compare(contract, 136, 1032, 72, t, {1});
    }
  }
}

TEST_CASE("BF16 operands of any extents and strides: nothing else is read, nothing else is written") {
  for (const char* contract : contracts) {
    for (const orientation t : orientations) {
      // Less than a vector; one more and one less than tiles of 16, 32 and 128 and than steps of 32 k.
      compare(contract, 1, 1, 1, t, {.gap = 8, .out_gap = 3});
      compare(contract, 5, 3, 7, t, {.output = 2, .skew = 1});
      compare(contract, 33, 130, 65, t, {.output = 1, .gap = 8, .out_gap = 1});
      compare(contract, 31, 127, 63, t, {.output = 2, .accumulate = true, .gap = 16, .out_gap = 5});
      compare(contract, 129, 20, 40, t, {.accumulate = true, .out_gap = 4});
      compare(contract, 130, 129, 33, t, {.output = 2, .gap = 8, .out_gap = 2});
      // Multiples of four columns, aligned and not.
      compare(contract, 20, 132, 32, t, {.output = 2, .out_gap = 4});
      compare(contract, 20, 132, 32, t, {.output = 2, .out_gap = 2});
      compare(contract, 20, 132, 32, t, {.output = 0, .skew = 2});
      compare(contract, 20, 132, 32, t, {.output = 0, .out_gap = 2});
      compare(contract, 20, 132, 32, t, {.output = 2, .accumulate = true, .skew = 2});
    }
  }
}

TEST_CASE("BF16 numbers of every kind") {
  for (const char* contract : contracts) {
    for (const orientation t : orientations) {
      compare(contract, 40, 24, 136, t, {.kind = numbers::any});
      compare(contract, 24, 40, 100, t, {.output = 2, .accumulate = true, .gap = 8, .kind = numbers::any});
      compare(contract, 16, 16, 300, t, {.accumulate = true, .split_k = 2, .kind = numbers::any});
    }
  }
}

TEST_CASE("BF16: no order of threads changes a byte") {
  for_thread_orders([] {
    for (const char* contract : contracts) {
      for (const orientation t : orientations) {
        compare(contract, 160, 144, 136, t, {.output = 2});
        compare(contract, 24, 136, 100, t, {.accumulate = true, .gap = 8});
      }
    }
  });
}

#if !defined(ROTOSCALE_TEST_DEVICE)

/// Compares an (m, n) product in `tile`.
void compare_in_tile(const tile_shape& tile, int m, int n, int k, int split_k, orientation t) {
  CAPTURE(tile.m);
  CAPTURE(tile.n);
  CAPTURE(m);
  CAPTURE(t.a);
  CAPTURE(t.b);
  constexpr device_info device{arch::gfx942, 304};
  const dense_bf16 a(m, k, t.a, 5, 8), b(n, k, t.b, 6, 8);
  judged<std::uint32_t> found(m, n, {.out_gap = 3});
  gemm_call r =
      call_of({found.memory.there, formats::fp32, found.stride}, a.view(true), b.view(true), "mx-bf16-gfx942", split_k);
  r.schedule = {tile.m, tile.n};
  const std::size_t needed = gemm_workspace_bytes(r, device);
  const array<float> workspace(std::vector<float>(needed / sizeof(float) + 1, -7.0f));
  const status s = gpu::detail::run_gemm(r, device, workspace.there, needed, {});
  REQUIRE_MESSAGE(s.ok(), s.message());
  std::vector<float> want(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
  static thread_pool pool(0);
  rotoscale::gemm(a.view(false), b.view(false), r.contract, row_major(want.data(), m, n), pool);
  CHECK(found.wrong(want) == 0);
}

TEST_CASE("AMD's dense kernel in every tile, at the edges of each, in every orientation") {
  int number = 0;
  for (const tile_shape& tile : dense_tiles) {
    for (const orientation t : orientations) {
      if (!rotoscale::oracle::in_share(number++)) continue;
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

#endif

TEST_CASE("parts of K are added in ascending order, and there may be fewer than asked for") {
  for (const char* contract : contracts) {
    if (!has(contract)) continue;
    // A smaller k may have more parts: 640 splits into three of 256, 512 into four of 128.
    const auto bytes_of = [&](index_t k) {
      const gemm_operand x{.element = formats::bf16, .rows = 8, .k = k, .code_stride = 2 * k};
      return gemm_workspace_bytes(call_of({}, x, x, contract, 4), device);
    };
    for (int k = 8; k < 640; k += 8) CHECK(bytes_of(k) <= bytes_of(640));
    for (const bool transposed : {false, true}) {
      for (const int output : {0, 1, 2})
        compare(contract, 24, 40, 520, {transposed, !transposed}, {output, output == 0, 3});
      compare(contract, 16, 24, 264, {transposed, transposed}, {0, true, 7});
      compare(contract, 17, 35, 417, {transposed, !transposed}, {.split_k = 3, .gap = 8, .out_gap = 1});
      if (!on_device) continue;
      compare(contract, 264, 520, 4104, {transposed, transposed}, {0, true, 8});
      compare(contract, 768, 512, 8192, {transposed, !transposed}, {2, false, 16});
    }
  }
}

TEST_CASE("bad dense operands are refused") {
  const dense_bf16 a(8, 16, false, 1);
  const array<float> out(std::vector<float>(64));
  const gemm_result good{out.there, formats::fp32};
  int count = 0;
  for (const char* contract : contracts) {
    if (!has(contract)) continue;
    ++count;
    const auto argument = [&](const gemm_operand& x, const gemm_operand& y, const gemm_result& r) {
      return std::string(gemm(call_of(r, x, y, contract), nullptr, 0, {}).argument);
    };
    const gemm_operand x = a.view(true);
    const auto changed = [](auto o, auto change) {
      change(o);
      return o;
    };
    CHECK(argument(changed(x, [](auto& o) { o.element = formats::fp16; }), x, good) == "contract");
    CHECK(argument(x, changed(x, [](auto& o) { o.code_stride = 24; }), good) == "b.code_stride");
    CHECK(argument(x, changed(x, [](auto& o) { o.k = 8; }), good) == "b.k");
    CHECK(argument(x, x, changed(good, [](auto& r) { r.out = nullptr; })) == "out");
    CHECK(argument(x, x, changed(good, [](auto& r) { r.stored = formats::fp16; })) ==
          "stored");  // half of FP32's bytes
    CHECK(argument(x, x, changed(good, [](auto& r) { r.out_stride = 7; })) == "out_stride");
  }
  CHECK((count > 0 || device.arch == arch::other));
  for (const char* name : {"hopper-fp8-promoted", "mxfp8-gfx950", "aiter-a4w4"}) {
    const status s = gemm(call_of(good, a.view(true), a.view(true), name), nullptr, 0, {});
    CHECK(s.code == error_code::unsupported_device);
    CHECK(std::string(s.argument) == "contract");
  }
}

}  // namespace gemm_bf16_test
