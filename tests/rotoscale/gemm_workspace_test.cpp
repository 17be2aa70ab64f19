// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// With the workspace that it asks for, gemm allocates nothing, whichever kernel computes; its bytes do not depend on
// whose memory it has.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "rotoscale/allocations.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/mma_models.hpp"
#include "rotoscale/philox.hpp"

using namespace rotoscale;
using rotoscale::testing::counted_allocations;

namespace {

/// Random codes and scales near 1, row-major or transposed.
struct stored_operand {
  std::vector<std::uint8_t> codes, scales;
  gemm_operand operand;

  stored_operand(format element, int block, format scale, index_t rows, index_t k, bool transposed,
                 std::uint64_t seed) {
    operand.element = element;
    operand.rows = rows;
    operand.k = k;
    operand.transposed = transposed;
    operand.code_stride = packed_bytes(element, transposed ? rows : k);
    const random_stream random{seed, 0};
    codes.resize(static_cast<std::size_t>((transposed ? k : rows) * operand.code_stride));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::uint8_t>(random.word(i));
      // Exponents of wide formats near 0, so that the fast ways have something to do.
      if (element.bits() >= 16 &&
          i % (static_cast<std::size_t>(element.bits()) / 8) == static_cast<std::size_t>(element.bits()) / 8 - 1) {
        codes[i] = static_cast<std::uint8_t>(0x3F | (codes[i] & 0x80));
      }
    }
    operand.codes = codes.data();
    if (block == 0) return;
    operand.block = block;
    operand.scale = scale;
    operand.scale_stride = operand.scale_columns();
    scales.resize(static_cast<std::size_t>(rows * operand.scale_stride));
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] = static_cast<std::uint8_t>((scale == formats::e8m0 ? 126 : 0x38) + random.word(codes.size() + i) % 3);
    }
    operand.scales = scales.data();
  }
};

struct problem {
  const char* unit;
  format element;
  int block = 0;
  format scale = formats::e8m0;
};

constexpr problem problems[] = {
    {"fp32-fma-chain", formats::fp32},
    {"fp32-fma-chain", formats::bf16},
    {"fp32-fma-chain", formats::e4m3},
    {"fp32-fma-chain", formats::e2m1, 32},
    {"exact", formats::e2m1, 32},
    {"hopper-wgmma-fp16-f32", formats::bf16},
    {"hopper-wgmma-fp8-f32", formats::e4m3},
    {"cdna3-mfma-fp16-f32", formats::bf16},
    {"blackwell-mxf4-f32", formats::e2m1, 32},
    {"blackwell-nvf4-f32", formats::e2m1, 16, formats::ue4m3},
    {"ampere-mma-tf32-f32", formats::fp32},
    {"fp32-blockwise", formats::e2m1, 32},
};

}  // namespace

TEST_CASE("gemm allocates nothing in its workspace, and gives the bytes that it gives without") {
  for (const problem& p : problems) {
    for (const bool transposed : {false, true}) {
      if (transposed && p.block != 0) continue;
      for (const int split_k : {1, 2}) {
        for (const int threads : {1, 2, 4}) {
          for (const auto& extents : {std::array<index_t, 3>{1, 1, 32}, {70, 130, 96}, {200, 9, 288}}) {
            const index_t m = extents[0], n = extents[1], k = extents[2];
            CAPTURE(p.unit);
            CAPTURE(p.element.bits());
            CAPTURE(transposed);
            CAPTURE(split_k);
            CAPTURE(threads);
            CAPTURE(m);
            const stored_operand a(p.element, p.block, p.scale, m, k, transposed, 1),
                b(p.element, p.block, p.scale, n, k, transposed, 2);
            gemm_options o;
            o.model = find_unit(p.unit)->model;
            o.split_k = split_k;
            o.split_grain = 32;
            const auto size = static_cast<std::size_t>(m * n);
            std::vector<float> expected(size), found(size);
            thread_pool one(1);
            gemm(a.operand, b.operand, o, row_major(expected.data(), m, n), one);

            gemm_operand left = a.operand, right = b.operand;
            left.codes = right.codes = left.scales = right.scales = nullptr;
            std::vector<std::byte> workspace(gemm_workspace_bytes(left, right, o, threads));
            long allocated = -1;
            std::thread([&] {  // without memory of its own
              thread_pool pool(threads);
              const counted_allocations now;
              gemm(a.operand, b.operand, o, row_major(found.data(), m, n), pool, workspace);
              allocated = now();
            })
                .join();
            CHECK(allocated == 0);
            CHECK(std::memcmp(found.data(), expected.data(), size * sizeof(float)) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("gemm takes what its workspace has not from elsewhere") {
  const stored_operand a(formats::bf16, 0, {}, 30, 64, true, 1), b(formats::bf16, 0, {}, 20, 64, false, 2);
  gemm_options o;
  o.model = find_unit("hopper-wgmma-fp16-f32")->model;
  thread_pool pool(2);
  std::vector<float> expected(600), found(600);
  gemm(a.operand, b.operand, o, row_major(expected.data(), 30, 20), pool);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{640}, std::size_t{5000}}) {
    std::vector<std::byte> workspace(bytes + 128, std::byte{0x5A});  // guarded
    gemm(a.operand, b.operand, o, row_major(found.data(), 30, 20), pool, std::span(workspace).first(bytes));
    CHECK(found == expected);
    for (std::size_t i = bytes; i < workspace.size(); ++i) CHECK(workspace[i] == std::byte{0x5A});
  }
}
