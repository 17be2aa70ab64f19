// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast dequantizer equals dequantize_ref by bytes: all codes under all scales, every format, axis and target.
#include "rotoscale/dequantize.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

using namespace rotoscale;

namespace {

/// Fills codes and scales with random bytes and compares both targets, poisoned differently.
template <class T>
bool same_bytes(block_format f, index_t rows, index_t k, block_axis axis, index_t padding, float factor,
                std::uint64_t seed, thread_pool& pool) {
  const random_stream random{seed, 9};
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * packed_bytes(f.element, k)));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>((rows + f.rows - 1) / f.rows * (k / f.length)));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(random.word(i));
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = static_cast<std::uint8_t>(random.word(i + codes.size()) >> 8);
  const auto in = dense_blocks<const std::uint8_t>(f, rows, k, codes.data(), scales.data());
  const index_t height = axis == block_axis::row ? rows : k, width = axis == block_axis::row ? k : rows;
  const auto size = static_cast<std::size_t>(height * (width + padding) + 64);
  std::vector<T> want(size), got(size);
  std::memset(static_cast<void*>(want.data()), 0x5A, size * sizeof(T));
  std::memset(static_cast<void*>(got.data()), 0x5A, size * sizeof(T));
  // Targets begin on a cache line, where the code for large arrays asks for one.
  const auto line = [](std::vector<T>& v) {
    const auto past = reinterpret_cast<std::uintptr_t>(v.data()) % 64;
    return v.data() + (past == 0 ? 0 : (64 - past) / sizeof(T));
  };
  const auto offset = line(got) - got.data();
  dequantize_ref(f, in, axis, row_major(want.data() + offset, height, width, width + padding), factor);
  dequantize(f, in, axis, row_major(line(got), height, width, width + padding), pool, factor);
  return std::memcmp(want.data(), got.data(), size * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("every format, axis, target and factor") {
  std::uint64_t seed = 0;
  for (const int threads : {1, 2, 3}) {
    thread_pool pool(threads);
    for (const block_format& f :
         {mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e4m3, mxfp8_e5m2, mxint8, nvfp4, square_blocks(mxfp4),
          block_format{formats::e4m3fnuz, 64, formats::ue5m3}, block_format{formats::e2m1, 1}}) {
      for (const auto axis : {block_axis::row, block_axis::column}) {
        for (const index_t rows : {32, 64}) {
          for (const float factor : {1.0f, 0.37f, 0x1p-100f}) {
            CAPTURE(++seed);
            REQUIRE(same_bytes<float>(f, rows, 192, axis, 0, factor, seed, pool));
            REQUIRE(same_bytes<float>(f, rows, 64, axis, 5, factor, seed, pool));
            REQUIRE(same_bytes<bf16>(f, rows, 64, axis, 3, factor, seed, pool));
            REQUIRE(same_bytes<fp16>(f, rows, 64, axis, 0, factor, seed, pool));
          }
        }
      }
    }
  }
}

TEST_CASE("MXFP4: every code under every scale") {
  thread_pool pool(1);
  std::vector<std::uint8_t> codes, scales;
  for (int scale = 0; scale < 256; ++scale) {
    scales.push_back(static_cast<std::uint8_t>(scale));
    for (int i = 0; i < 16; ++i) codes.push_back(static_cast<std::uint8_t>(i << 4 | (15 - i)));
  }
  const auto in = dense_blocks<const std::uint8_t>(mxfp4, 256, 32, codes.data(), scales.data());
  const auto check = [&]<class T>(T) {
    std::vector<T> want(256 * 32), got(256 * 32);
    dequantize_ref(mxfp4, in, block_axis::row, row_major(want.data(), 256, 32));
    dequantize(mxfp4, in, block_axis::row, row_major(got.data(), 256, 32), pool);
    CHECK(std::memcmp(want.data(), got.data(), want.size() * sizeof(T)) == 0);
  };
  check(float{});
  check(bf16{});
}

TEST_CASE("rows of any number, and no rows") {
  thread_pool pool(2);
  for (const index_t rows : {0, 1, 15, 17, 33}) {
    for (const auto axis : {block_axis::row, block_axis::column}) {
      CHECK(same_bytes<float>(mxfp4, rows, 96, axis, 0, 1.0f, 5, pool));
      CHECK(same_bytes<bf16>(mxfp8_e5m2, rows, 96, axis, 1, 1.0f, 6, pool));
    }
  }
}

TEST_CASE("arrays beyond the caches, which are written past them") {
  thread_pool pool(2);
  CHECK(detail::dequantize_streaming_bytes <= 2048 * 1088 * 4);
  CHECK(same_bytes<float>(mxfp4, 2048, 1088, block_axis::row, 0, 1.0f, 7, pool));
  CHECK(same_bytes<float>(mxfp4, 2048, 1088, block_axis::row, 16, 1.0f, 8, pool));
  CHECK(same_bytes<float>(mxfp4, 2048, 1088, block_axis::row, 1, 1.0f, 9, pool));
  CHECK(same_bytes<bf16>(mxfp4, 4096, 1088, block_axis::row, 0, 1.0f, 10, pool));
}
