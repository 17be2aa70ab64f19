// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host mode's thread-block executor: error detection and shared memory. Every kernel's test covers the rest.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "gpu/dialect/bf16_tiles.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace dialect_host_test {

using namespace rotoscale;
using gpu::host::thread_order;

struct order_scope {
  explicit order_scope(thread_order o) { gpu::host::set_thread_order(o); }
  ~order_scope() { gpu::host::set_thread_order(thread_order::forward); }
};

struct tile {
  std::uint32_t cell[64];
};

/// Reverses a block's 64 words, without the barrier that it needs.
__global__ void racy_reverse(std::uint32_t* words) {
  auto& shared = gpu::block_shared<tile>();
  const unsigned t = gpu::thread_index().x;
  shared.cell[t] = words[t];
  words[t] = shared.cell[63 - t];
}

__global__ void half_waits(int where) {
  const unsigned t = gpu::thread_index().x;
  if (where == 0 && t < 32) gpu::block_barrier();
  if (where == 1) {
    if (t % 2 == 0) {
      gpu::block_barrier();
    } else {
      gpu::block_barrier();
    }
  }
  if (where == 2 && t != 5) gpu::shuffle(t, 0);
  if (where == 3 && t < 32) gpu::shuffle(t, 0);  // allowed: a whole subgroup
  if (where == 4) {
    if (t % 2 == 0) {
      gpu::subgroup_sum(t);
    } else {
      gpu::subgroup_sum(t);
    }
  }
}

__global__ void read_poison(std::uint32_t* out) {
  out[0] = gpu::block_shared<tile>().cell[7];
  out[1] = gpu::dynamic_shared<std::uint32_t>()[3];
  gpu::block_shared<tile>().cell[7] = 1;
  gpu::dynamic_shared<std::uint32_t>()[3] = 1;
  out[2] = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(gpu::dynamic_shared<std::uint32_t>()) % 128);
}

TEST_CASE("a missing barrier shows: the orders differ and shared memory is poisoned") {
  std::vector<std::uint32_t> results[2];
  for (const bool backwards : {false, true}) {
    const order_scope scope(backwards ? thread_order::reverse : thread_order::forward);
    results[backwards].assign(64, 1);
    CHECK(gpu::launch(racy_reverse, dim3{1}, dim3{64}, 0, {}, results[backwards].data()).ok());
  }
  CHECK(results[0] != results[1]);
  CHECK(results[0][0] == 0xFDFDFDFDu);
}

TEST_CASE("threads that wait for what cannot come are an error") {
  for (const int where : {0, 1, 2, 4}) {
    const gpu::status s = gpu::launch(half_waits, dim3{1}, dim3{64}, 0, {}, where);
    CHECK(s.code == gpu::error_code::device_error);
    CHECK(s.message().find("host_test.cpp") != std::string::npos);
  }
  CHECK(gpu::launch(half_waits, dim3{1}, dim3{64}, 0, {}, 3).ok());
  CHECK(!gpu::launch(half_waits, dim3{1}, dim3{1025}, 0, {}, 3).ok());
}

TEST_CASE("shared memory is poisoned for every block, dynamic shared memory is aligned") {
  std::uint32_t out[3] = {};
  CHECK(gpu::launch(read_poison, dim3{2}, dim3{1}, 64, {}, out).ok());
  CHECK(out[0] == 0xFDFDFDFDu);
  CHECK(out[1] == 0xFDFDFDFDu);
  CHECK(out[2] == 0);
}

[[gnu::noinline]] float number_after(float* number, gpu::vec16* words, const gpu::vec16& bits) {
  *number = 1.0f;
  *words = bits;
  return *number;
}
[[gnu::noinline]] float number_after(float* number, gpu::any_word* word, std::uint32_t bits) {
  *number = 1.0f;
  *word = bits;
  return *number;
}
[[gnu::noinline]] gpu::vec16 words_after(float* number, const gpu::vec16* words) {
  const gpu::vec16 before = *words;
  *number = 2.0f;
  gpu::vec16 after = *words;
  after.word[3] += before.word[3];
  return after;
}

TEST_CASE("a quotient by an inverse is the quotient") {
  for (const std::uint32_t divisor : {1u, 2u, 3u, 13u, 32u, 255u, 65537u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    const gpu::known_divisor by(divisor);
    for (std::uint64_t i = 0; i < 4000; ++i) {
      const auto x = static_cast<std::uint32_t>(i < 1000   ? i
                                                : i < 2000 ? 0xFFFFFFFFu - (i - 1000)
                                                           : divisor * (i - 2000) - i % 2);
      const auto [quotient, rest] = gpu::divide(x, by);
      CHECK(quotient == x / divisor);
      CHECK(rest == x % divisor);
    }
  }
}

// At -O1 compilers keep every order, so that a quick build cannot fail here; builds with warnings as errors have -O3.
TEST_CASE("words keep their order with numbers of the same memory") {
  constexpr std::uint32_t two = 0x40000000u;
  alignas(16) float x[4] = {};
  CHECK(number_after(x, reinterpret_cast<gpu::vec16*>(x), gpu::vec16{{two, two, two, two}}) == 2.0f);
  CHECK(number_after(x, reinterpret_cast<gpu::any_word*>(x), two) == 2.0f);
  x[0] = 1.0f;
  CHECK(words_after(x, reinterpret_cast<const gpu::vec16*>(x)).word[0] == two);
}

TEST_CASE("mma.sync m16n8k16: the layout of lanes and the unit's model") {
  std::mt19937 random(3);
  gemm_options o;
  o.model = find_unit("hopper-mma-fp16-f32")->model;
  o.start_from_c = true;
  int wrong = 0;
  for (int round = 0; round < 400; ++round) {
    std::uint16_t a[16][16], b[8][16];
    float d[16][8], before[16][8];
    // Exponents of 4 to 256 binades. The widest include subnormals, NaN and Inf. Some elements are zero.
    const unsigned span = 4u << (round % 7), first = span == 256 ? 0 : random() % (256 - span);
    const auto code = [&] {
      const std::uint32_t x = random(), field = (first + (x >> 16) % span) & 0xFFu;
      const bool special = field == 255 && round % 2 == 0;
      return static_cast<std::uint16_t>(x % 9 == 0 ? x & 0x8000u : (x & 0x807Fu) | (special ? 254 : field) << 7);
    };
    for (auto& row : a) {
      for (auto& x : row) x = code();
    }
    for (auto& row : b) {
      for (auto& x : row) x = code();
    }
    for (auto& row : before) {
      for (float& x : row) x = fp32_from_bits(static_cast<std::uint32_t>(code()) << 16 | random() % 65536);
    }
    // Lanes as in PTX's figures: four lanes hold a row of A, a column of B and a row of D.
    std::uint32_t words[32][6];
    float sums[32][4];
    gpu::detail::mma_registers registers[32], *lanes[32];
    for (int l = 0; l < 32; ++l) {
      const int row = l / 4, k = l % 4 * 2;
      const auto two = [](const std::uint16_t* x) { return x[0] | static_cast<std::uint32_t>(x[1]) << 16; };
      const std::uint16_t* const from[6] = {&a[row][k],         &a[row + 8][k], &a[row][k + 8],
                                            &a[row + 8][k + 8], &b[row][k],     &b[row][k + 8]};
      for (int w = 0; w < 6; ++w) words[l][w] = two(from[w]);
      for (int e = 0; e < 4; ++e) sums[l][e] = before[row + e / 2 * 8][k + e % 2];
      registers[l] = {words[l], words[l] + 4, sums[l]};
      lanes[l] = &registers[l];
    }
    gpu::detail::mma_m16n8k16(lanes);
    for (int l = 0; l < 32; ++l) {
      for (int e = 0; e < 4; ++e) d[l / 4 + e / 2 * 8][l % 4 * 2 + e % 2] = sums[l][e];
    }
    const auto operand = [](const std::uint16_t* x, index_t rows) {
      return gemm_operand{formats::bf16, rows, 16, reinterpret_cast<const std::uint8_t*>(x), 32};
    };
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        const float want = accumulate_ref(operand(a[0], 16), i, operand(b[0], 8), j, o, before[i][j]);
        wrong += fp32_bits(want) != fp32_bits(d[i][j]) && !(want != want && d[i][j] != d[i][j]);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a status names its argument") {
  CHECK(gpu::check_pointer(nullptr, 16, "source.data").message() == "source.data: must not be null");
  alignas(16) char bytes[32] = {};
  CHECK(gpu::check_pointer(bytes, 16, "source.data").ok());
  CHECK(gpu::check_pointer(bytes + 4, 4, "source.data").ok());
  CHECK(gpu::check_pointer(bytes + 8, 16, "rows.codes").message() == "rows.codes: must be aligned to 16 bytes");
  CHECK(gpu::status{}.message() == "ok");
}

}  // namespace dialect_host_test
