// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// gemm_bf16 against the CPU's gemm under the kernel's contract, by bytes: operands as they lie and transposed, every
// output, ragged extents; on a device also large ones.
#include <doctest/doctest.h>

#include <cstring>

#include "gpu/api/gemm_bf16.hpp"
#include "gpu/gemm/data.hpp"
#include "rotoscale/gemm.hpp"

namespace gemm_bf16_test {

using namespace gpu_test;

namespace {

struct dense_bf16 {
  array<std::uint8_t> codes;
  int rows, k;
  bool transposed;

  dense_bf16(int r, int length, bool t, unsigned seed)
      : codes(make(r * length, seed)), rows(r), k(length), transposed(t) {}
  /// Numbers of 16 binades, some zero, with all bits of a significand.
  static bytes make(int count, unsigned seed) {
    std::mt19937 random(seed);
    bytes out;
    for (int i = 0; i < count; ++i) {
      const auto word = static_cast<std::uint32_t>(random());
      const std::uint32_t code = word % 31 == 0 ? 0 : (word & 0x807Fu) | (119 + (word >> 16) % 16) << 7;
      out.push_back(static_cast<std::uint8_t>(code));
      out.push_back(static_cast<std::uint8_t>(code >> 8));
    }
    return out;
  }
  gemm_operand view(bool there) const {
    gemm_operand o;
    o.element = formats::bf16;
    o.rows = rows;
    o.k = k;
    o.codes = there ? codes.there : codes.here.data();
    o.code_stride = 2 * (transposed ? rows : k);
    o.transposed = transposed;
    return o;
  }
};

/// `output`: 0 FP32, 1 FP32 rounded to BF16, 2 BF16.
void compare(int m, int n, int k, bool transposed_a, bool transposed_b, int output, bool accumulate, int split_k = 1) {
  const gemm_contract_entry* contract = bf16_contract(device);
  if (contract == nullptr) return;
  CAPTURE(m);
  CAPTURE(transposed_a);
  CAPTURE(transposed_b);
  CAPTURE(output);
  const dense_bf16 a(m, k, transposed_a, 1), b(n, k, transposed_b, 2);
  const auto count = static_cast<std::size_t>(m) * static_cast<std::size_t>(n);
  std::vector<float> want(count, 3.0f);
  gemm_options o = contract_options(*contract, find_unit(contract->unit)->model);
  o.output = output == 0 ? formats::fp32 : formats::bf16;
  o.accumulate = accumulate;
  o.split_k = split_k;
  sum_output r;
  r.output = o.output;
  r.accumulate = accumulate;
  array<float> wide(want);
  array<std::uint16_t> narrow(std::vector<std::uint16_t>(count, 0x1234));
  r.stored = output == 2 ? formats::bf16 : formats::fp32;
  r.out = output == 2 ? static_cast<void*>(narrow.there) : static_cast<void*>(wide.there);
  const std::size_t needed = gemm_bf16_workspace_bytes(m, n, k, split_k, device);
  CHECK((needed > 0) == (split_k > 1));
  const array<float> workspace(std::vector<float>(needed / sizeof(float) + 1, -7.0f));
  const status s = gemm_bf16(a.view(true), b.view(true), r, {}, split_k, workspace.there, needed);
  REQUIRE_MESSAGE(s.ok(), s.message());
  static thread_pool pool(0);
  gemm(a.view(false), b.view(false), o, row_major(want.data(), m, n), pool);
  std::size_t wrong = 0;
  if (output == 2) {
    narrow.fetch();
    for (std::size_t i = 0; i < count; ++i) wrong += narrow.here[i] != fp32_bits(want[i]) >> 16;
    CHECK(narrow.guards_hold());
  } else {
    wide.fetch();
    for (std::size_t i = 0; i < count; ++i) wrong += fp32_bits(wide.here[i]) != fp32_bits(want[i]);
    CHECK(wide.guards_hold());
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("BF16 operands in every orientation") {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const int output : {0, 1, 2}) compare(40, 72, 88, a, b, output, output == 0);
      if (!on_device) continue;
      compare(512, 768, 320, a, b, 2, false);
      compare(264, 520, 1096, a, b, 0, true);
      compare(136, 1032, 72, a, b, 1, false);
    }
  }
}

TEST_CASE("parts of K are added in ascending order, and there may be fewer than asked for") {
  // A smaller k may have more parts: 640 is cut into three of 256, 512 into four of 128.
  for (int k = 8; k < 640; k += 8) {
    CHECK(gemm_bf16_workspace_bytes(8, 8, k, 4, device) <= gemm_bf16_workspace_bytes(8, 8, 640, 4, device));
  }
  for (const bool transposed : {false, true}) {
    for (const int output : {0, 1, 2}) compare(24, 40, 520, transposed, !transposed, output, output == 0, 3);
    compare(16, 24, 264, transposed, transposed, 0, true, 7);
    if (!on_device) continue;
    compare(264, 520, 4104, transposed, transposed, 0, true, 8);
    compare(768, 512, 8192, transposed, !transposed, 2, false, 16);
  }
}

TEST_CASE("bad dense operands are refused") {
  const dense_bf16 a(8, 16, false, 1);
  const array<float> out(std::vector<float>(64));
  const sum_output good{out.there};
  const auto argument = [](const status& s) { return std::string(s.argument); };
  gemm_operand wrong = a.view(true);
  wrong.element = formats::fp16;
  CHECK(argument(gemm_bf16(wrong, a.view(true), good, {})) == "a.element");
  wrong = a.view(true);
  wrong.code_stride = 24;
  CHECK(argument(gemm_bf16(a.view(true), wrong, good, {})) == "b.code_stride");
  wrong = a.view(true);
  wrong.k = 8;
  CHECK(argument(gemm_bf16(a.view(true), wrong, good, {})) == "b.k");
  sum_output bad = good;
  bad.out = nullptr;
  CHECK(argument(gemm_bf16(a.view(true), a.view(true), bad, {})) == "r.out");
}

}  // namespace gemm_bf16_test
