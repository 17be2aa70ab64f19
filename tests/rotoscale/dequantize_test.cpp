// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast dequantizer equals dequantize_ref by bytes: all codes under all scales, every format, axis and target.
#include "rotoscale/dequantize.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "oracle/fenced_memory.hpp"

namespace dequantize_test {

using namespace rotoscale;

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
  // Targets are aligned to a cache line, which the code for large arrays requires.
  const auto line = [](std::vector<T>& v) {
    const auto past = reinterpret_cast<std::uintptr_t>(v.data()) % 64;
    return v.data() + (past == 0 ? 0 : (64 - past) / sizeof(T));
  };
  const auto offset = line(got) - got.data();
  dequantize_ref(f, in, axis, row_major(want.data() + offset, height, width, width + padding), factor);
  dequantize(f, in, axis, row_major(line(got), height, width, width + padding), pool, factor);
  return std::memcmp(want.data(), got.data(), size * sizeof(T)) == 0;
}

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

TEST_CASE("formats of a user's own: infinite scales, elements beyond FP32, bytes with bits above a code's") {
  constexpr format infinite_scale{5, 2, 15, false}, tiny{5, 2, 160, true, specials::none},
      huge{5, 2, -120, true, specials::none}, five_bits{0, 4, 0, true, specials::none, true, true, true},
      seven_bits{3, 3, 4, true, specials::fnuz};
  CHECK(infinite_scale.has_infinity());
  CHECK_FALSE(fits_fp32(tiny));
  CHECK_FALSE(fits_fp32(huge));
  thread_pool pool(2);
  std::uint64_t seed = 100;
  for (const block_format& f : {block_format{formats::e2m1, 32, infinite_scale},
                                {formats::int8, 32, infinite_scale},
                                {tiny, 32},
                                {huge, 32},
                                {tiny, 32, formats::ue4m3},
                                {five_bits, 32},
                                {seven_bits, 32}}) {
    for (const auto axis : {block_axis::row, block_axis::column}) {
      for (const float factor : {1.0f, 0.37f}) {
        CAPTURE(++seed);
        CHECK(same_bytes<float>(f, 64, 192, axis, 1, factor, seed, pool));
        CHECK(same_bytes<bf16>(f, 64, 192, axis, 1, factor, seed, pool));
      }
    }
  }
}

TEST_CASE("what is not whole blocks, or not of the target's extents, is not defined") {
  std::uint8_t codes[64] = {}, scales[2] = {};
  std::vector<float> to(128);
  const auto defined = [&](block_format f, index_t rows, index_t k, index_t height, index_t width) {
    const block_matrix<const std::uint8_t> in{rows, k, codes, 32, scales, 1};
    return dequantize_is_defined(f, in, block_axis::row, row_major(to.data(), height, width));
  };
  CHECK(defined(mxfp4, 2, 64, 2, 64));
  CHECK_FALSE(defined(mxfp4, 2, 48, 2, 48));
  CHECK_FALSE(defined(mxfp4, 2, 64, 2, 32));
  CHECK_FALSE(defined({formats::e2m1, 512}, 1, 512, 1, 512));
  CHECK_FALSE(defined({formats::e2m1, 0}, 2, 64, 2, 64));
  CHECK_FALSE(defined({formats::bf16, 32}, 2, 64, 2, 64));
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

TEST_CASE("nothing beyond codes and scales is read, nor anything beyond the target written") {
  thread_pool pool(2);
  const auto check = [&]<class T>(T, block_format f, index_t rows, index_t k, block_axis axis, bool end) {
    const auto code_bytes = static_cast<std::size_t>(rows * packed_bytes(f.element, k));
    oracle::fenced_memory codes(code_bytes), scales(static_cast<std::size_t>(rows / f.rows * (k / f.length))),
        target(static_cast<std::size_t>(rows * k) * sizeof(T));
    std::memset(codes.at(end), 0x5A, code_bytes);
    codes.hold();
    scales.hold();
    const bool row = axis == block_axis::row;
    const auto in = dense_blocks<const std::uint8_t>(f, rows, k, codes.at(end), scales.at(end));
    const auto to = row_major(reinterpret_cast<T*>(target.at(end)), row ? rows : k, row ? k : rows);
    dequantize(f, in, axis, to, pool);
    std::vector<T> want(static_cast<std::size_t>(rows * k));
    dequantize_ref(f, in, axis, row_major(want.data(), to.extent(0), to.extent(1)));
    CHECK(std::memcmp(want.data(), target.at(end), want.size() * sizeof(T)) == 0);
  };
  for (const block_format& f : {mxfp4, mxfp6_e3m2, mxfp8_e4m3, nvfp4, square_blocks(mxfp4)}) {
    for (const auto axis : {block_axis::row, block_axis::column}) {
      for (const bool end : {false, true}) {
        for (const index_t blocks : {1, 3}) {
          check(float{}, f, f.rows, f.length * blocks, axis, end);
          check(bf16{}, f, 3 * f.rows, f.length * blocks, axis, end);
        }
      }
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

}  // namespace dequantize_test
