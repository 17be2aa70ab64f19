// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every error of the checked interface, by message, before a byte is written. Valid input gives the results of the
// unchecked functions.
#include "rotoscale/checked.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <vector>

#include "oracle/block_values.hpp"
#include "rotoscale/dequantize.hpp"

namespace checked_test {

using namespace rotoscale;

using bytes = std::vector<std::uint8_t>;
using floats = checked::array<const float>;

/// Returns the message of std::invalid_argument, or "accepted".
template <class Call>
std::string complaint(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

/// Returns the message for quantizing a source of the given extents into dense buffers. Refused calls must not change
/// the buffers.
struct request {
  block_format f = mxfp4;
  block_options o = {};
  index_t rows = 4, cols = 64, stride = -1;
  block_axis axis = block_axis::row;
  index_t more_codes = 0, more_scales = 0;

  std::string operator()() const {
    const std::vector<float> x(4096, 1.0f);
    const index_t out_rows = axis == block_axis::row ? rows : cols, k = axis == block_axis::row ? cols : rows;
    const index_t code_bytes = std::max<index_t>(0, out_rows * packed_bytes(f.element, k));
    const index_t scale_bytes =
        f.length < 1 || f.rows < 1 ? 0 : std::max<index_t>(0, out_rows / f.rows * (k / f.length));
    bytes codes(static_cast<std::size_t>(code_bytes + more_codes), 0xEE);
    bytes scales(static_cast<std::size_t>(scale_bytes + more_scales), 0xEE);
    const std::string said = complaint([&] {
      checked::quantize(f, o, floats{x, rows, cols, stride}, axis, codes, scales);
    });
    if (said != "accepted") {
      CHECK(codes == bytes(codes.size(), 0xEE));
      CHECK(scales == bytes(scales.size(), 0xEE));
    }
    return said;
  }
};

block_options with_rotation(int points) {
  block_options o;
  o.rotation.points = points;
  return o;
}

TEST_CASE("good input gives the bytes of the unchecked functions, on one thread or many") {
  const index_t rows = 96, cols = 64, stride = 70;
  const auto x = oracle::block_values(rows, stride, 1);
  thread_pool pool(3);
  for (const block_format& f : {mxfp4, nvfp4, mxfp6_e3m2, square_blocks(mxfp8_e4m3)}) {
    for (const auto axis : {block_axis::row, block_axis::column}) {
      const bool by_row = axis == block_axis::row;
      const index_t out_rows = by_row ? rows : cols, k = by_row ? cols : rows;
      bytes codes[3], scales[3];
      for (int i = 0; i < 3; ++i) {
        codes[i].assign(static_cast<std::size_t>(out_rows * packed_bytes(f.element, k)), 0xEE);
        scales[i].assign(static_cast<std::size_t>(out_rows / f.rows * (k / f.length)), 0xEE);
      }
      const auto source = row_major<const float>(x.data(), rows, cols, stride);
      quantize_ref(f, {}, source, axis, dense_blocks(f, out_rows, k, codes[0].data(), scales[0].data()));
      checked::quantize(f, {}, floats{x, rows, cols, stride}, axis, codes[1], scales[1]);
      checked::quantize(f, {}, floats{x, rows, cols, stride}, axis, codes[2], scales[2], pool);
      CHECK((codes[0] == codes[1] && codes[0] == codes[2] && scales[0] == scales[1] && scales[0] == scales[2]));

      std::vector<float> y(x.size(), 7.0f), z(x.size(), 7.0f);
      dequantize_ref(f, dense_blocks<const std::uint8_t>(f, out_rows, k, codes[0].data(), scales[0].data()), axis,
                     row_major(y.data(), rows, cols, stride), 0.5f);
      checked::dequantize<float>(f, codes[0], scales[0], axis, {z, rows, cols, stride}, 0.5f);
      CHECK(std::memcmp(y.data(), z.data(), y.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("extents") {
  CHECK(request{}() == "accepted");
  CHECK(request{.rows = 0}() == "source of 0 x 64: extents must be above zero");
  CHECK(request{.cols = -32}() == "source of 4 x -32: extents must be above zero");
  CHECK(request{.stride = 60}() == "source of 4 x 64: stride 60 is below the 64 columns");
  CHECK(request{.stride = -2}() == "source of 4 x 64: stride -2 is below the 64 columns");
  CHECK(request{.stride = 1344}() == "accepted");  // 3 * 1344 + 64 = 4096
  CHECK(request{.stride = 1345}() == "source of 4 x 64, stride 1345: does not fit in 4096 elements");
  CHECK(request{.rows = 65}() == "source of 65 x 64, stride 64: does not fit in 4096 elements");
  CHECK(request{.cols = 60}() == "source, 4 x 60 along the blocks: 60 is not a multiple of the block length 32");
  CHECK(request{.axis = block_axis::column}() ==
        "source, 64 x 4 along the blocks: 4 is not a multiple of the block length 32");
  CHECK(request{.o = with_rotation(64), .cols = 96}() ==
        "source, 4 x 96 along the blocks: 96 is not a multiple of rotation.points 64");
  CHECK(request{.f = square_blocks(mxfp4)}() ==
        "source, 4 x 64 along the blocks: 4 rows are not a multiple of the block's 32");
}

TEST_CASE("codes and scales must be exactly as large as the source needs") {
  CHECK(request{.more_codes = 1}() == "codes has 129 bytes, expected 4 x 32 = 128");
  CHECK(request{.more_codes = -1}() == "codes has 127 bytes, expected 4 x 32 = 128");
  CHECK(request{.more_scales = 1}() == "scales has 9 bytes, expected 4 x 2 = 8");
  CHECK(request{.more_scales = -8}() == "scales has 0 bytes, expected 4 x 2 = 8");
  CHECK(request{.f = mxfp6_e2m3, .more_codes = 1}() == "codes has 193 bytes, expected 4 x 48 = 192");
  CHECK(request{.f = square_blocks(mxfp4), .rows = 32, .more_scales = 1}() == "scales has 3 bytes, expected 1 x 2 = 2");
}

TEST_CASE("pointers: null, misaligned, overlapping") {
  alignas(16) float memory[512] = {};
  auto* raw = reinterpret_cast<std::uint8_t*>(memory);
  bytes codes(128), scales(8);
  const auto quantize = [&](const float* x, std::span<std::uint8_t> c, std::span<std::uint8_t> s) {
    return complaint([&] { checked::quantize(mxfp4, {}, floats{{x, 256}, 4, 64}, block_axis::row, c, s); });
  };
  CHECK(quantize(memory, codes, scales) == "accepted");
  CHECK(quantize(nullptr, codes, scales) == "source of 4 x 64: null pointer");
  CHECK(quantize(memory, {static_cast<std::uint8_t*>(nullptr), 128}, scales) == "codes of 4 x 32 bytes: null pointer");
  CHECK(quantize(memory, codes, {static_cast<std::uint8_t*>(nullptr), 8}) == "scales of 4 x 2 bytes: null pointer");
  CHECK(quantize(reinterpret_cast<const float*>(raw + 2), codes, scales) ==
        "source of 4 x 64: pointer is not aligned to 4 bytes");
  CHECK(complaint([&] {
          const auto* odd = reinterpret_cast<const bf16*>(raw + 1);
          checked::quantize(mxfp4, {}, checked::array<const bf16>{{odd, 256}, 4, 64}, block_axis::row, codes, scales);
        }) == "source of 4 x 64: pointer is not aligned to 2 bytes");
  CHECK(quantize(memory, {raw + 1024, 128}, {raw + 1152, 8}) == "accepted");  // side by side
  CHECK(quantize(memory, {raw + 1023, 128}, scales) == "source and codes overlap in 1 bytes");
  CHECK(quantize(memory, codes, {raw + 100, 8}) == "source and scales overlap in 8 bytes");
  CHECK(quantize(memory, codes, {codes.data() + 120, 8}) == "codes and scales overlap in 8 bytes");
}

TEST_CASE("gemm") {
  const std::vector<float> x(8 * 64, 1.0f), w(5 * 64, 2.0f);
  std::vector<float> c(8 * 5, 7.0f);
  thread_pool pool(1);
  gemm_operand a = make_operand(row_major<const float>(x.data(), 8, 64)), b = make_operand(row_major(w.data(), 5, 64));
  const auto multiply = [&](index_t rows, index_t cols) {
    return complaint([&] { checked::gemm(a, b, {}, {c, rows, cols}, pool); });
  };
  CHECK(multiply(8, 4) == "c of 8 x 4: a and b give 8 x 5");
  CHECK(multiply(8, 6) == "c of 8 x 6, stride 6: does not fit in 40 elements");
  b.k = 32;
  CHECK(multiply(8, 5) == "a of 8 x 64 and b of 5 x 32: k must be equal");
  b.k = 0;
  CHECK(multiply(8, 5) == "b of 5 x 0: extents must be above zero");
  b.k = 64;
  b.block = -1;
  b.scales = a.codes;
  CHECK(multiply(8, 5) == "a of 8 x 64 and b of 5 x 64: not defined for these formats, blocks and gemm_options");
  b.block = 32;
  b.scales = nullptr;
  CHECK(multiply(8, 5) == "b of 5 x 64: null pointer");
  b.block = 0;
  b.codes = reinterpret_cast<const std::uint8_t*>(c.data());
  CHECK(multiply(8, 5) == "c and b overlap in 160 bytes");
  CHECK(c == std::vector<float>(8 * 5, 7.0f));
  b = make_operand(row_major<const float>(w.data(), 5, 64));
  CHECK(multiply(8, 5) == "accepted");
  CHECK(c == std::vector<float>(8 * 5, 128.0f));
}

TEST_CASE("gemm: the unit of a model multiplies the operands, or is refused") {
  const bytes codes(8 * 64, 0x11), scales(8 * 4, 0x7F);
  std::vector<float> c(64, 7.0f);
  thread_pool pool(1);
  const auto multiply = [&](const char* unit, const format& element, int block, const format& scale) {
    const gemm_operand a{.element = element, .rows = 8, .k = 64, .codes = codes.data(), .code_stride = 64,
                         .block = block, .scales = block == 0 ? nullptr : scales.data(), .scale_stride = 4,
                         .scale = scale};
    return complaint([&] { checked::gemm(a, a, {.model = find_unit(unit)->model}, {c, 8, 8}, pool); });
  };
  CHECK(multiply("hopper-wgmma-fp8-f32", formats::e2m1, 32, formats::e8m0) ==
        "a of e2m1 in blocks of 32: hopper-wgmma-fp8-f32 does not multiply these elements");
  CHECK(multiply("hopper-wgmma-fp8-f32", formats::e4m3, 32, formats::e8m0) ==
        "a of e4m3 in blocks of 32: hopper-wgmma-fp8-f32 takes no block scales");
  CHECK(multiply("blackwell-mxf4-f32", formats::e2m1, 0, {}) == "a of e2m1: blackwell-mxf4-f32 needs block scales");
  CHECK(c == std::vector<float>(64, 7.0f));
  CHECK(multiply("hopper-wgmma-fp8-f32", formats::e5m2, 0, {}) == "accepted");
  CHECK(multiply("fp32-fma-chain", formats::int8, 32, formats::e8m0) == "accepted");  // a definition takes any operand
}

TEST_CASE("the caller's random words decide stochastic rounding, in the order of the result") {
  const auto x = oracle::block_values(64, 96, 3);
  block_options o;
  o.rounding = rounding::stochastic;
  o.random = {5, 6};
  std::vector<std::uint32_t> words(64 * 96);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = o.random.word(i);
  thread_pool pool(2);
  for (const auto axis : {block_axis::row, block_axis::column}) {
    bytes codes[2], scales[2];
    for (int i = 0; i < 2; ++i) codes[i].assign(64 * 48, 0), scales[i].assign(64 * 3, 0);
    checked::quantize(mxfp4, o, floats{x, 64, 96}, axis, codes[0], scales[0]);
    checked::quantize(mxfp4, o, floats{x, 64, 96}, axis, codes[1], scales[1], words, pool);
    CHECK((codes[0] == codes[1] && scales[0] == scales[1]));
  }
  bytes codes(64 * 48), up(64 * 48), scales(64 * 3);
  block_options other = o;
  other.random = {7, 8};
  checked::quantize(mxfp4, o, floats{x, 64, 96}, block_axis::row, codes, scales);
  checked::quantize(mxfp4, other, floats{x, 64, 96}, block_axis::row, up, scales, words, pool);
  CHECK(codes == up);
  const auto refused = [&](const block_options& options, std::size_t count) {
    return complaint([&] {
      checked::quantize(mxfp4, options, floats{x, 64, 96}, block_axis::row, codes, scales,
                        std::span<const std::uint32_t>(words).first(count), pool);
    });
  };
  CHECK(refused(o, 6143) == "words has 6143 words, expected 64 x 96 = 6144");
  CHECK(refused({}, 6144) == "words: options.rounding is not stochastic");
}

TEST_CASE("unchecked functions end the program where a part of the result would be left out") {
  const auto ends = [](const auto& call) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(::open("/dev/null", O_WRONLY), 2);
      std::signal(SIGABRT, SIG_DFL);
      call();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  };
  const std::vector<float> x(64 * 64, 1.0f);
  bytes codes(4096), scales(4096);
  std::vector<float> y(64 * 64);
  thread_pool pool(1);
  const auto quantize_of = [&](index_t rows, index_t k) {
    return ends([&] {
      quantize(mxfp4, {}, row_major<const float>(x.data(), rows, k), block_axis::row,
               dense_blocks(mxfp4, rows, k, codes.data(), scales.data()), pool);
    });
  };
  CHECK_FALSE(quantize_of(3, 32));
  CHECK(quantize_of(3, 33));
  CHECK(quantize_of(3, 31));
  CHECK(ends([&] { tensor_amax(mxfp4, {}, row_major<const float>(x.data(), 4, 40), block_axis::row, pool); }));
  CHECK(ends([&] {
    dequantize(mxfp4, dense_blocks<const std::uint8_t>(mxfp4, 3, 40, codes.data(), scales.data()), block_axis::row,
               row_major(y.data(), 3, 40), pool);
  }));
}

TEST_CASE("unrotate inverts the rotation of a matrix along either axis; sqnr") {
  std::vector<float> x(64 * 32), y;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 37 % 61) - 30);
  const rotation r{16, {0xA5A5A5A5u}};
  for (const auto axis : {block_axis::row, block_axis::column}) {
    y = x;
    const matrix<float> m = row_major(y.data(), 64, 32), along = axis == block_axis::row ? m : transposed(m);
    for (index_t i = 0; i < along.extent(0); ++i) {
      for (index_t first = 0; first < along.extent(1); first += 32) {
        float run[32];
        for (index_t e = 0; e < 32; ++e) run[e] = along(i, first + e);
        rotate_run(run, 32, r);
        for (index_t e = 0; e < 32; ++e) along(i, first + e) = run[e];
      }
    }
    CHECK(y != x);
    unrotate(mxfp4, r, m, axis);
    CHECK(y == x);  // small integers: exact
  }
  const auto source = row_major<const float>(x.data(), 64, 32);
  CHECK(std::isinf(sqnr(source, row_major<const float>(y.data(), 64, 32))));
  const float want[] = {3, 4}, got[] = {3, 4.5};  // 25 / 0.25: 20 dB
  CHECK(sqnr(row_major(want, 1, 2), row_major(got, 1, 2)) == doctest::Approx(20));
}

}  // namespace checked_test
