// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of per-tensor FP8 equal the CPU's gemm by bytes, under the contracts of Hopper's kernels. Cases: every pair of
// formats, any codes, factors, every output, ragged extents, split-K. Large shapes run on a device only.
#include <doctest/doctest.h>

#include "gpu/gemm/data.hpp"
#include "rotoscale/gemm.hpp"

namespace gemm_fp8_test {

using namespace gpu_test;

/// Codes: of a few binades, so that sums keep low bits; all finite; any, including NaN and Inf.
enum class codes_of { few_binades, finite, anything };

struct fp8_data {
  format element;
  int rows, k, stride;
  array<std::uint8_t> codes;

  /// Fills the gaps between rows with NaN, which must not be read.
  fp8_data(const format& f, int r, int length, codes_of which, unsigned seed)
      : element(f),
        rows(r),
        k(length),
        stride((length + 15) / 16 * 16 + 16),
        codes(make(f, r, length, stride, which, seed)) {}
  static bytes make(const format& f, int rows, int k, int stride, codes_of which, unsigned seed) {
    std::mt19937 random(seed);
    bytes out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride), 0x7F);
    for (int r = 0; r < rows; ++r) {
      // One NaN or Inf decides its row's outputs, so most rows have none.
      const bool finite = which != codes_of::anything || r % 3 != 0;
      for (int i = 0; i < k; ++i) {
        std::uint32_t code = 0;
        do {
          const auto word = static_cast<std::uint32_t>(random());
          code = word & 0xFFu;
          if (which != codes_of::few_binades) continue;
          const std::uint32_t middle = static_cast<std::uint32_t>(f.bias) << f.mantissa_bits;
          code = (word & 0x80u) | (middle - (2u << f.mantissa_bits) + (word & 0x7Fu) % (4u << f.mantissa_bits));
        } while (finite && !std::isfinite(decode(f, code)));
        out[static_cast<std::size_t>(r) * static_cast<std::size_t>(stride) + static_cast<std::size_t>(i)] =
            static_cast<std::uint8_t>(code);
      }
    }
    return out;
  }
  gemm_operand view(bool there, const float* factor) const {
    gemm_operand o;
    o.element = element;
    o.rows = rows;
    o.k = k;
    o.codes = there ? codes.there : codes.here.data();
    o.code_stride = stride;
    o.factor = factor;
    return o;
  }
};

constexpr const char *promoted = "hopper-fp8-promoted", *fast = "hopper-fp8-fast-accumulate";

struct options {
  const char* contract = promoted;
  int output = 0;  ///< 0 FP32, 1 FP32 rounded to BF16, 2 BF16
  bool accumulate = false;
  int split_k = 1;
  int factors = 3;  ///< bit 0: of a, bit 1: of b
  codes_of which = codes_of::few_binades;
};
gemm_call call_of(const gemm_result& r, const gemm_operand& a, const gemm_operand& b, const options& t) {
  gemm_call c{r, a, b, gpu::detail::options_of(t.contract)};
  c.contract.split_k = t.split_k;
  return c;
}
/// True if the device has the contracts.
bool has_fp8() {
  const gemm_operand x{.element = formats::e4m3, .rows = 16, .k = 16, .code_stride = 16};
  return check_gemm(call_of({}, x, x, {}), device).ok();
}

/// Returns the launcher's output as FP32.
std::vector<float> run_fp8(const fp8_data& a, const fp8_data& b, const options& t) {
  const array<float> factor_a(std::vector<float>{0.37f}), factor_b(std::vector<float>{1.0f / 48.0f});
  const auto count = static_cast<std::size_t>(a.rows) * static_cast<std::size_t>(b.rows);
  array<float> wide(std::vector<float>(count, 3.0f));
  array<std::uint16_t> narrow(std::vector<std::uint16_t>(count, 0x4040));
  gemm_call r = call_of({}, a.view(true, (t.factors & 1) != 0 ? factor_a.there : nullptr),
                        b.view(true, (t.factors & 2) != 0 ? factor_b.there : nullptr), t);
  r.output = t.output == 0 ? formats::fp32 : formats::bf16;
  r.stored = t.output == 2 ? formats::bf16 : formats::fp32;
  r.accumulate = t.accumulate;
  r.out = t.output == 2 ? static_cast<void*>(narrow.there) : static_cast<void*>(wide.there);
  const std::size_t needed = gemm_workspace_bytes(r, device);
  CHECK((needed > 0) == (t.split_k > 1 && a.k > 128));
  const array<float> workspace(std::vector<float>(needed / sizeof(float) + 1, -7.0f));
  const status s = gemm(r, workspace.there, needed, {});
  REQUIRE_MESSAGE(s.ok(), s.message());
  wide.fetch();
  narrow.fetch();
  CHECK(wide.guards_hold());
  CHECK(narrow.guards_hold());
  if (t.output != 2) return wide.here;
  std::vector<float> got;
  for (const std::uint16_t x : narrow.here) got.push_back(fp32_from_bits(std::uint32_t{x} << 16));
  return got;
}

std::vector<float> want_fp8(const fp8_data& a, const fp8_data& b, const options& t) {
  const float factor_a = 0.37f, factor_b = 1.0f / 48.0f;
  std::vector<float> want(static_cast<std::size_t>(a.rows) * static_cast<std::size_t>(b.rows), 3.0f);
  gemm_options o = gpu::detail::options_of(t.contract);
  o.output = t.output == 0 ? formats::fp32 : formats::bf16;
  o.accumulate = t.accumulate;
  o.split_k = t.split_k;
  static thread_pool pool(0);
  rotoscale::gemm(a.view(false, (t.factors & 1) != 0 ? &factor_a : nullptr),
                  b.view(false, (t.factors & 2) != 0 ? &factor_b : nullptr), o, row_major(want.data(), a.rows, b.rows),
                  pool);
  return want;
}

void compare(const format& f, const format& g, int m, int n, int k, const options& t) {
  if (!has_fp8()) return;
  CAPTURE(t.contract);
  CAPTURE(f.mantissa_bits);
  CAPTURE(g.mantissa_bits);
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(t.output);
  CAPTURE(t.accumulate);
  CAPTURE(t.split_k);
  CAPTURE(t.factors);
  const fp8_data a(f, m, k, t.which, 1), b(g, n, k, t.which, 2);
  const std::vector<float> got = run_fp8(a, b, t), want = want_fp8(a, b, t);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    // Stored BF16 keeps the upper half of NaN's bits.
    const std::uint32_t kept = t.output == 2 ? 0xFFFF0000u : 0xFFFFFFFFu;
    wrong += ((fp32_bits(got[i]) ^ fp32_bits(want[i])) & kept) != 0;
  }
  CHECK(wrong == 0);
}

constexpr format both[] = {formats::e4m3, formats::e5m2};

TEST_CASE("FP8 operands of every pair of formats") {
  for (const char* contract : {promoted, fast}) {
    for (const format& f : both) {
      for (const format& g : both) {
        for (const int output : {0, 1, 2}) {
          compare(f, g, 24, 40, 304, {.contract = contract, .output = output, .accumulate = output == 0});
          compare(f, g, 17, 21, 176, {.contract = contract, .output = output, .which = codes_of::anything});
        }
        if (!on_device) continue;
        compare(f, g, 512, 768, 1024, {.contract = contract, .output = 2});
        compare(f, g, 264, 520, 1096, {.contract = contract, .accumulate = true, .which = codes_of::finite});
        compare(f, g, 136, 1032, 200, {.contract = contract, .output = 1, .which = codes_of::anything});
      }
    }
  }
}

TEST_CASE("any extents, any factors") {
  for (const char* contract : {promoted, fast}) {
    for (const int k : {1, 15, 31, 33, 127, 129, 260}) {
      compare(formats::e5m2, formats::e4m3, 5, 3, k, {.contract = contract, .which = codes_of::finite});
    }
    for (const int factors : {0, 1, 2, 3}) {
      for (const int output : {0, 2}) {
        compare(formats::e4m3, formats::e4m3, 9, 16, 144,
                {.contract = contract, .output = output, .accumulate = true, .factors = factors});
      }
    }
    if (!on_device) continue;
    for (const int rows : {1, 63, 64, 255, 257, 300}) {
      for (const int output : {0, 1, 2}) {
        compare(formats::e4m3, formats::e5m2, rows, 391, 401, {.contract = contract, .output = output});
        compare(formats::e5m2, formats::e4m3, 129, rows, 640,
                {.contract = contract, .output = output, .accumulate = true});
      }
    }
  }
}

TEST_CASE("parts of K are added in ascending order, and there may be fewer than asked for") {
  for (const char* contract : {promoted, fast}) {
    for (const int output : {0, 1, 2}) {
      compare(formats::e5m2, formats::e4m3, 12, 20, 520,
              {.contract = contract, .output = output, .accumulate = output == 0, .split_k = 3});
    }
    compare(formats::e4m3, formats::e4m3, 16, 24, 264, {.contract = contract, .accumulate = true, .split_k = 7});
    compare(formats::e4m3, formats::e4m3, 8, 8, 128, {.contract = contract, .split_k = 4});
    if (!on_device) continue;
    compare(formats::e5m2, formats::e4m3, 264, 520, 4104, {.contract = contract, .accumulate = true, .split_k = 8});
    compare(formats::e4m3, formats::e4m3, 768, 512, 8192, {.contract = contract, .output = 2, .split_k = 16});
  }
}

TEST_CASE("promoted sums and fast ones are two contracts") {
  if (!has_fp8()) return;
  const fp8_data a(formats::e4m3, 16, 512, codes_of::few_binades, 3),
      b(formats::e4m3, 16, 512, codes_of::few_binades, 4);
  CHECK(run_fp8(a, b, {}) != run_fp8(a, b, {.contract = fast}));
}

TEST_CASE("bad FP8 operands are refused") {
  const fp8_data a(formats::e4m3, 8, 16, codes_of::finite, 1);
  const gemm_operand x = a.view(true, nullptr);
  const array<float> out(std::vector<float>(64));
  const gemm_result good{out.there, formats::fp32};
  if (!has_fp8()) return;
  const auto argument = [&](const gemm_operand& x, const gemm_operand& y, const gemm_result& r, int split_k = 1) {
    return std::string(gemm(call_of(r, x, y, {.split_k = split_k}), nullptr, 0, {}).argument);
  };
  const auto changed = [&](auto change) {
    gemm_operand wrong = x;
    change(wrong);
    return wrong;
  };
  CHECK(argument(changed([](gemm_operand& o) { o.element = formats::bf16; }), x, good) == "contract");
  CHECK(argument(x, changed([](gemm_operand& o) { o.element = formats::e4m3fnuz; }), good) == "contract");
  CHECK(argument(x, changed([](gemm_operand& o) { o.block = 32; }), good) == "b.scales");
  CHECK(argument(changed([](gemm_operand& o) { o.transposed = true; }), x, good) == "a.transposed");
  CHECK(argument(x, changed([](gemm_operand& o) { o.code_stride = 24; }), good) == "b.code_stride");
  CHECK(argument(x, changed([](gemm_operand& o) { ++o.codes; }), good) == "b.codes");
  CHECK(argument(x, changed([](gemm_operand& o) { o.k = 8; }), good) == "b.k");
  const auto* const unaligned = reinterpret_cast<const float*>(a.codes.there + 1);
  CHECK(argument(x, changed([&](gemm_operand& o) { o.factor = unaligned; }), good) == "b.factor");
  gemm_result bad = good;
  bad.out = nullptr;
  CHECK(argument(x, x, bad) == "out");
  CHECK(argument(x, x, good, 65) == "contract.split_k");
}

}  // namespace gemm_fp8_test
