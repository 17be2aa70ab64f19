// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast GEMM equals gemm_ref by bytes under every model of a matrix unit. Cases: all units with their formats,
// inputs that distinguish models, tails of K, and the kernels' code around the instructions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <string>

#include "oracle/share.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/mma_cases.hpp"

namespace gemm_models_test {

using namespace rotoscale;

/// Range of block scales.
enum class spread { narrow, wide, any };

struct operand {
  std::vector<std::uint8_t> codes, scales;
  gemm_operand view;

  operand(const mma_unit& unit, const format& element, index_t rows, index_t k, case_kind kind, spread scales_apart,
          bool is_b, std::uint64_t seed) {
    case_source source(seed, is_b ? 8 : 7);
    const index_t stride = packed_bytes(element, k);
    codes.resize(static_cast<std::size_t>(rows * stride));
    for (index_t r = 0; r < rows; ++r) {
      std::uint8_t* const row = codes.data() + r * stride;
      make_row(element, kind, is_b, static_cast<int>(r), static_cast<int>(k), source, [&](int i, std::uint64_t code) {
        if (element.bits() <= 8) return store_code(element, row, i, static_cast<std::uint32_t>(code));
        const int bytes = storage_bits(element) / 8;
        for (int byte = 0; byte < bytes; ++byte) row[i * bytes + byte] = static_cast<std::uint8_t>(code >> (8 * byte));
      });
    }
    view.element = element;
    view.rows = rows;
    view.k = k;
    view.codes = codes.data();
    view.code_stride = stride;
    if (unit.block == 0) return;
    view.block = unit.block;
    view.scale = unit.scale;
    view.scale_stride = (k + unit.block - 1) / unit.block;
    for (index_t i = 0; i < rows * view.scale_stride; ++i) {
      const std::uint32_t word = source.word(), one = encode(unit.scale, 1.0f) & 0xFF;
      const std::uint32_t code = scales_apart == spread::narrow ? one - 8 + word % 16
                                 : scales_apart == spread::wide ? one - 40 + word % 80
                                                                : word % 256;
      scales.push_back(static_cast<std::uint8_t>(code & unit.scale.magnitude_mask()));
    }
    view.scales = scales.data();
  }
  operand(const operand&) = delete;
  operand& operator=(const operand&) = delete;
};

/// Number of elements in which gemm and gemm_ref differ.
int differences(const operand& a, const operand& b, const gemm_options& o, thread_pool& pool) {
  const index_t m = a.view.rows, n = b.view.rows;
  std::vector<float> c[2];
  for (int fast = 0; fast < 2; ++fast) {
    case_source source(3, 3);
    for (index_t i = 0; i < m * n; ++i) {
      // Every third row has edge cases, including Inf and NaN. Kernels leave such rows to gemm_ref.
      const std::uint64_t code = source.code(formats::fp16, i / n % 3 == 2 ? case_kind::edges : case_kind::wide);
      c[fast].push_back(decode(formats::fp16, code));
    }
    const auto target = row_major(c[fast].data(), m, n);
    if (fast != 0) {
      gemm(a.view, b.view, o, target, pool);
    } else {
      gemm_ref(a.view, b.view, o, target);
    }
  }
  int count = 0;
  for (std::size_t i = 0; i < c[0].size(); ++i) count += fp32_bits(c[0][i]) != fp32_bits(c[1][i]);
  return count;
}

/// The same from a given C.
bool same_from(const operand& a, const operand& b, const mma_model& model, const std::vector<float>& start) {
  thread_pool pool(1);
  gemm_options o;
  o.model = model;
  o.start_from_c = true;
  std::vector<float> c[2] = {start, start};
  gemm_ref(a.view, b.view, o, row_major(c[0].data(), a.view.rows, b.view.rows));
  gemm(a.view, b.view, o, row_major(c[1].data(), a.view.rows, b.view.rows), pool);
  return std::memcmp(c[0].data(), c[1].data(), start.size() * sizeof(float)) == 0;
}

/// Sets element (r, i) to x.
void set(operand& o, index_t r, index_t i, double x) {
  const format& f = o.view.element;
  const std::uint64_t code = case_source::encoded(f, x);
  std::uint8_t* const row = o.codes.data() + r * o.view.code_stride;
  if (f.bits() <= 8) return store_code(f, row, i, static_cast<std::uint32_t>(code));
  const int bytes = storage_bits(f) / 8;
  for (int byte = 0; byte < bytes; ++byte) row[i * bytes + byte] = static_cast<std::uint8_t>(code >> (8 * byte));
}
void set_row(operand& o, index_t r, double x) {
  for (index_t i = 0; i < o.view.k; ++i) set(o, r, i, x);
}

std::vector<format> formats_of(const mma_unit& unit) {
  std::vector<format> all;
  for (const format& f : {formats::fp32, formats::bf16, formats::fp16, formats::e4m3, formats::e5m2, formats::e4m3fnuz,
                          formats::e2m3, formats::e3m2, formats::e2m1}) {
    if (takes(unit, f)) all.push_back(f);
  }
  return all;
}

/// True if the case belongs to the share. Chosen at random, since cases cycle through options.
bool in_share(std::uint64_t seed) { return oracle::in_share(static_cast<int>(random_stream{9, 1}.word(seed) >> 1)); }

// Extents around the kernels' rows and columns (2 or 4 registers), whole steps and tails of K.
struct shape {
  index_t m, n, k;
};

TEST_CASE("every unit, every format that it takes, every kind of inputs") {
  thread_pool pool(2);
  std::uint64_t seed = 0;
  for (const mma_unit& unit : models::all) {
    const auto all = formats_of(unit);
    for (const format& left : all) {
      const format& right = all[++seed % all.size()];
      for (int kind = 0; kind < case_kinds; ++kind) {
        for (const auto apart : {spread::narrow, spread::wide, spread::any}) {
          if (unit.block == 0 && apart != spread::narrow) continue;
          const shape s = kind % 3 == 0 ? shape{7, 19, 128} : kind % 3 == 1 ? shape{3, 70, 144} : shape{2, 5, 66};
          if (!in_share(++seed)) continue;
          const operand a(unit, left, s.m, s.k, static_cast<case_kind>(kind), apart, false, seed);
          const operand b(unit, seed % 2 == 0 ? left : right, s.n, s.k, static_cast<case_kind>(kind), apart, true,
                          seed);
          gemm_options o;
          o.model = unit.model;
          o.start_from_c = seed % 3 == 0;
          o.accumulate = seed % 5 == 0;
          CAPTURE(unit.name);
          CAPTURE(seed);
          CAPTURE(kind);
          if (gemm_is_defined(a.view, b.view, o)) CHECK(differences(a, b, o, pool) == 0);
        }
      }
    }
  }
}

TEST_CASE("the caller's rounding mode stays, and is that of what follows") {
  const mma_unit& unit = *find_unit("hopper-wgmma-fp8-f32");
  const operand a(unit, formats::e4m3, 3, 96, case_kind::normal, spread::narrow, false, 1),
      b(unit, formats::e5m2, 70, 96, case_kind::normal, spread::narrow, true, 1);
  gemm_options o;
  o.model = unit.model;
  std::vector<float> c(3 * 70);
  thread_pool pool(1);
  gemm(a.view, b.view, o, row_major(c.data(), 3, 70), pool);
  CHECK(std::fegetround() == FE_TONEAREST);
  volatile float third = 1.0f;
  third = third / 3.0f;
  CHECK(third == 0x1.555556p-2f);  // nearest, above
}

TEST_CASE("blocks, rows and columns of zeros, whatever their scales, with accumulators that are not") {
  thread_pool pool(2);
  for (const mma_unit& unit : models::all) {
    if (unit.block == 0) continue;
    for (const format& f : formats_of(unit)) {
      operand a(unit, f, 5, 192, case_kind::normal, spread::narrow, false, 31);
      operand b(unit, f, 66, 192, case_kind::normal, spread::narrow, true, 32);
      const auto clear = [&](operand& x, index_t row, index_t first, index_t count, std::uint32_t scale) {
        for (index_t i = first; i < first + count; ++i) {
          store_code(f, x.codes.data() + row * x.view.code_stride, i,
                     static_cast<std::uint32_t>(i % 2) << (f.bits() - 1));
        }
        for (index_t i = first; i < first + count; i += unit.block) {
          x.scales[static_cast<std::size_t>(row * x.view.scale_stride + i / unit.block)] =
              static_cast<std::uint8_t>(scale & unit.scale.magnitude_mask());
        }
      };
      const std::uint32_t largest = static_cast<std::uint32_t>(unit.scale.max_code());
      clear(a, 0, 64, 32, 0);
      clear(a, 1, 0, 192, largest);
      clear(a, 2, 0, 64, largest);
      clear(b, 3, 64, 64, 0);
      clear(b, 40, 0, 192, largest);
      clear(b, 41, 128, 64, largest);
      for (const bool from_c : {false, true}) {
        gemm_options o;
        o.model = unit.model;
        o.start_from_c = from_c;
        CAPTURE(unit.name);
        CAPTURE(f.bits());
        CHECK(differences(a, b, o, pool) == 0);
      }
    }
  }
}

/// Numbers of both signs, and a NaN.
std::vector<float> biases(index_t n, std::uint64_t seed) {
  std::vector<float> x;
  for (index_t i = 0; i < n; ++i) {
    const std::uint32_t word = random_stream{seed, 5}.word(static_cast<std::uint64_t>(i));
    x.push_back(fp32_from_bits(i % 31 == 30 ? 0xFFC01234u : (word & 0x807FFFFFu) | (120u + word % 16) << 23));
  }
  return x;
}

TEST_CASE("promotion, split-K, starts from C, factors and output formats, on shapes around the kernels'") {
  thread_pool pool(2);
  const char* const names[] = {"fp32-fma-chain",         "fp32-blockwise",      "hopper-wgmma-fp8-f32",
                               "hopper-wgmma-fp8-f16",   "hopper-mma-fp8-f32",  "hopper-mma-fp8-f16",
                               "hopper-mma-fp16-f32",    "blackwell-nvf4-f32",  "blackwell-mxf4-f32",
                               "blackwell-mxf8f6f4-f32", "cdna3-mfma-fp16-f32", "cdna4-mfma-fp8-f32"};
  const shape shapes[] = {{1, 1, 1}, {1, 33, 31}, {5, 16, 257}, {9, 65, 130}, {66, 17, 96}, {2, 64, 640}};
  std::uint64_t seed = 100;
  for (const char* name : names) {
    const mma_unit& unit = *find_unit(name);
    const index_t instruction =
        std::max(1, unit.model.instruction_k != 0 ? unit.model.instruction_k : unit.model.group);
    for (const shape& s : shapes) {
      for (const index_t split : {1, 3}) {
        for (const index_t promotion : {index_t{0}, 2 * instruction}) {
          if (!in_share(++seed)) continue;
          const auto all = formats_of(unit);
          const operand a(unit, all.back(), s.m, s.k, case_kind::normal, spread::narrow, false, seed);
          const operand b(unit, all.back(), s.n, s.k, case_kind::outliers, spread::narrow, true, seed);
          gemm_options o;
          o.model = unit.model;
          o.promotion = promotion;
          o.split_k = split;
          o.split_grain = seed % 2 == 0 ? 1 : 32;  // parts may start inside a block or step
          o.start_from_c = seed % 3 == 0;
          o.accumulate = seed % 4 == 0;
          o.beta = seed % 8 == 0 ? 0.7f : 1.0f;
          const std::vector<float> bias = biases(s.n, seed);
          o.bias = seed % 3 == 1 ? bias.data() : nullptr;
          o.output = seed % 5 == 0 ? formats::bf16 : seed % 7 == 0 ? formats::fp16 : formats::fp32;
          o.alpha = seed % 2 == 0 ? 1.0f : 0.3f;
          o.output_rounding = seed % 11 < 2 ? rounding::toward_zero : rounding::nearest_even;
          CAPTURE(name);
          CAPTURE(seed);
          CHECK(differences(a, b, o, pool) == 0);
          if (split == 1) continue;
          o.split_k = 5;
          o.order = static_cast<split_order>(seed % 3);
          o.split_sum = seed % 4 == 0 ? formats::fp16 : seed % 4 == 1 ? formats::bf16 : formats::fp32;
          CHECK(differences(a, b, o, pool) == 0);
          o.split_k = 2;
          o.split_run = s.k == 640 ? 32 : s.k == 96 ? 24 : 1;
          if (s.k % (2 * o.split_run) == 0) CHECK(differences(a, b, o, pool) == 0);
        }
      }
    }
  }
}

TEST_CASE("accumulators at the edges of what the FP4 kernel may keep: cut, just not cut, far below and above") {
  for (const char* name : {"blackwell-nvf4-f32", "blackwell-mxf4-f32"}) {
    const mma_unit& unit = *find_unit(name);
    for (int exponent = -40; exponent <= 50; ++exponent) {
      const auto seed = static_cast<std::uint64_t>(exponent + 40);
      operand a(unit, formats::e2m1, 2, 128, case_kind::normal, spread::narrow, false, seed);
      operand b(unit, formats::e2m1, 40, 128, case_kind::cancelling, spread::narrow, true, seed);
      // Row 1's products cancel inside their groups, so that truncation of the accumulator shows.
      for (index_t i = 0; i < 128; ++i) set(a, 1, i, i % 2 == 0 ? 3 : -3);
      for (index_t j = 0; j < 40; j += 2) set_row(b, j, 1.5);
      std::vector<float> c;
      case_source source(seed, 1);
      for (int i = 0; i < 80; ++i) {
        c.push_back(static_cast<float>(std::ldexp(1 + source.uniform(), exponent)) * (i % 3 == 0 ? 1.0f : -1.0f));
      }
      CAPTURE(name);
      CAPTURE(exponent);
      CHECK(same_from(a, b, unit.model, c));
    }
  }
}

TEST_CASE("runs that lose their last bit to a far larger run or accumulator, which then cancels") {
  // Run 0 is -2^top or cancels. The least run has one product of 1/4 and odd scales. c is 2^top or zero.
  struct limit {
    const char* unit;
    int scale;            // exponent of run 0's scales
    std::uint32_t small;  // code in the least run
    int top;
  };
  for (const limit& x : {limit{"blackwell-nvf4-f32", 4, 0x09, 16}, limit{"blackwell-nvf4-f32", 8, 0x09, 24},
                         limit{"blackwell-nvf4-f32", 3, 0x09, 14}, limit{"blackwell-mxf4-f32", 4, 127 - 13, 16},
                         limit{"blackwell-mxf4-f32", 2, 127 - 13, 12}, limit{"blackwell-mxf4-f32", 5, 127 - 12, 18}}) {
    const mma_unit& unit = *find_unit(x.unit);
    for (const bool cancels : {false, true}) {
      for (int i = 0; i < 8; ++i) {
        operand a(unit, formats::e2m1, 1, 64, case_kind::normal, spread::narrow, false, 1);
        operand b(unit, formats::e2m1, 33, 64, case_kind::normal, spread::narrow, true, 1);
        std::fill(a.codes.begin(), a.codes.end(), std::uint8_t{0});
        for (index_t k = 0; k < 16; ++k) set(a, 0, k, cancels && k % 2 == 0 ? -4 : 4);
        set(a, 0, 40, 0.5);
        for (index_t j = 0; j < 33; ++j) {
          set_row(b, j, -4);
          for (index_t k = 16; k < 64; ++k) set(b, j, k, 0.5);
        }
        for (operand* o : {&a, &b}) {
          const index_t per_row = o->view.scale_stride;
          for (std::size_t s = 0; s < o->scales.size(); ++s) {
            const bool first = static_cast<index_t>(s) % per_row == 0;
            const auto small = static_cast<std::uint8_t>(x.small + static_cast<std::uint32_t>(o == &a ? i : 0));
            const auto large = static_cast<std::uint8_t>(encode(unit.scale, std::ldexp(1.0f, x.scale)));
            o->scales[s] = first ? large : small;
          }
        }
        CAPTURE(x.unit);
        CAPTURE(x.top);
        CAPTURE(i);
        CAPTURE(cancels);
        CHECK(same_from(a, b, unit.model, std::vector<float>(33, cancels ? 0.0f : std::ldexp(1.0f, x.top))));
      }
    }
  }
}

TEST_CASE("sums that reach the ends: 32 bits of a step, FP16's largest number, the ends of FP32 in BF16 and TF32") {
  struct value {
    const char* unit;
    format element;
    double a, b, c;
  };
  const value values[] = {
      {"hopper-mma-fp16-f32", formats::fp16, 1.9990234375, 1.9990234375, 3.9},  // the largest significands
      {"hopper-mma-fp16-f32", formats::fp16, 1.9990234375, -1.9990234375, -3.9},
      {"blackwell-f8f6f4-f32", formats::e4m3, 1.875, 1.875, 1.75},
      {"hopper-mma-fp16-f16", formats::fp16, 240, 17, 65504},
      {"hopper-mma-fp16-f16", formats::fp16, 63.96875, 63.96875, 0},
      {"hopper-wgmma-fp8-f16", formats::e4m3, 448, -448, 0},
      {"hopper-mma-fp16-f32", formats::bf16, 0x1p100, 0x1p20, 0x1p90},
      {"hopper-mma-fp16-f32", formats::bf16, 0x1p100, 0x1p27, 0x1p90},
      {"hopper-mma-fp16-f32", formats::bf16, 0x1p-70, 0x1p-60, 0x1p-110},
      {"hopper-mma-fp16-f32", formats::bf16, 0x1.fep-70, 0x1.fep-74, 0x1p-125},
      {"hopper-mma-fp16-f32", formats::bf16, 0x1.fep-70, -0x1.fep-75, 0},
      {"hopper-mma-tf32-f32", formats::fp32, 0x1.ffcp-60, 0x1.8p-62, 0x1p-120},
      {"cdna3-mfma-fp16-f32", formats::fp16, 1.9990234375, 1.9990234375, 3.9},
      {"cdna3-mfma-fp16-f32", formats::bf16, 0x1p100, 0x1p27, 0x1p90},
      {"cdna3-mfma-fp16-f32", formats::bf16, 0x1.fep-60, 0x1.fep-57, 0x1p-110},
      {"cdna3-mfma-fp16-f32", formats::bf16, 0x1.fep-60, 0x1.fep-58, -0x1p-110},
      {"cdna3-mfma-fp16-f32", formats::bf16, 0x1.fep-60, -0x1.fep-75, 0},
      {"cdna3-mfma-fp16-f32", formats::bf16, 0x1.fep-70, 0x1.fep-72, 0},
      {"cdna4-mfma-fp8-f32", formats::e4m3, 448, -448, 0},
      {"cdna4-mfma-f8f6f4-f32", formats::e4m3, 1.875, 1.875, 1.75},
      {"cdna4-mfma-f8f6f4-f32", formats::e4m3, 1.875, -1.875, -0x1p24},
  };
  for (const value& v : values) {
    const mma_unit& unit = *find_unit(v.unit);
    operand a(unit, v.element, 4, 96, case_kind::normal, spread::narrow, false, 5);
    operand b(unit, v.element, 66, 96, case_kind::normal, spread::narrow, true, 5);
    for (index_t i = 0; i < 96; ++i) {
      set(a, 0, i, v.a);
      set(a, 2, i, i % 7 == 0 ? v.a : 0);
      set(a, 3, i, i < 48 ? v.a : -v.a);  // overflows and returns
      for (index_t j = 0; j < 66; ++j) set(b, j, i, i % (1 + j % 4) == 0 ? v.b : 0);
    }
    CAPTURE(v.unit);
    CAPTURE(v.a);
    CAPTURE(v.b);
    CHECK(same_from(a, b, unit.model, std::vector<float>(4 * 66, static_cast<float>(v.c))));
  }
}

TEST_CASE("the floor under the exponent that FP16 results have") {
  // 2^-25 is a tie of FP16. The floor truncates the part that would break it, or just does not.
  for (const mma_unit& unit : models::all) {
    if (unit.model.result != mma_result::fp16_nearest || !takes(unit, formats::fp16)) continue;
    for (int exponent = 40; exponent <= 48; ++exponent) {
      operand a(unit, formats::fp16, 2, 16, case_kind::normal, spread::narrow, false, 5);
      operand b(unit, formats::fp16, 3, 16, case_kind::normal, spread::narrow, true, 5);
      set_row(a, 0, 0);
      set_row(a, 1, 0);
      for (index_t j = 0; j < 3; ++j) {
        set_row(b, j, 0x1p-24);
        set(b, j, 0, 0x1p-14);
      }
      for (index_t r = 0; r < 2; ++r) {
        set(a, r, 0, r == 0 ? 0x1p-11 : 0x3p-11);
        set(a, r, 1, std::ldexp(r == 0 ? 1.0 : -1.0, 24 - exponent));
      }
      CAPTURE(unit.name);
      CAPTURE(exponent);
      CHECK(same_from(a, b, unit.model, std::vector<float>(6, 0.0f)));
    }
  }
}

TEST_CASE(
    "accumulators that join late: at every distance from products of either sign, and of two sizes by k's parity") {
  for (const auto& [name, element] : {std::pair{"cdna3-mfma-fp16-f32", formats::bf16},
                                      {"cdna3-mfma-fp16-f32", formats::fp16},
                                      {"cdna3-mfma-xf32-f32", formats::fp32},
                                      {"cdna3-mfma-fp8-f32", formats::e4m3fnuz},
                                      {"cdna4-mfma-fp8-f32", formats::e4m3}}) {
    const mma_unit& unit = *find_unit(name);
    for (int odd = -14; odd <= 8; odd += 2) {
      operand a(unit, element, 6, 48, case_kind::normal, spread::narrow, false, 11);
      operand b(unit, element, 70, 48, case_kind::normal, spread::narrow, true, 12);
      const double size = element == formats::e4m3fnuz || element == formats::e4m3 ? std::ldexp(1.0, odd / 2) : 1.0;
      for (index_t r = 0; r < 6; ++r) {
        for (index_t i = 0; i < 48; ++i) {
          const double x = static_cast<double>(8 + (5 * i + 3 * r) % 7) / 8;
          set(a, r, i,
              r == 5 ? 0
                     : (i % 5 < r ? -x : x) * (i % 2 != 0 ? size * (size == 1.0 ? std::ldexp(1.0, odd) : size) : 1.0));
        }
      }
      // Sums that cancel except for one small product at odd k, or for the accumulator.
      for (index_t i = 0; i < 48; ++i) {
        for (index_t j = 0; j < 20; ++j) set(b, j, i, j < 10 ? 1 : i % 2 == 0 ? 128 : 0x1p-7);
        set(a, 3, i, i % 2 == 0 ? (i % 4 == 0 ? 8 : -8) : i % 4 == 3 ? 0 : i % 8 == 1 ? -0x1.2p-6 : 0);
        set(a, 4, i, i % 4 < 2 ? 1 : -1);
      }
      std::vector<float> c;
      for (int i = 0; i < 6 * 70; ++i)
        c.push_back(std::ldexp(i % 3 == 0 ? -1.2345678f : i % 3 == 1 ? 1.0f : 1.9999999f, i / 3 % 70 - 40));
      for (int j = 0; j < 10; ++j) c[static_cast<std::size_t>(4 * 70 + j)] = std::ldexp(-1.25f, j - 30);
      CAPTURE(unit.name);
      CAPTURE(odd);
      CHECK(same_from(a, b, unit.model, c));
    }
  }
}

TEST_CASE("exponents just beyond the window that bytes hold") {
  thread_pool pool(1);
  // BF16: a far larger element meets only zeros, so the exponent of the small ones decides.
  const mma_unit& bf16 = *find_unit("hopper-mma-fp16-f32");
  for (int i = 0; i < 60; ++i) {
    const mma_unit& unit = i < 30 ? bf16 : *find_unit("cdna3-mfma-fp16-f32");
    const int apart = 50 + i % 30;
    operand a(unit, formats::bf16, 1, 32, case_kind::normal, spread::narrow, false, 5);
    operand b(unit, formats::bf16, 65, 32, case_kind::normal, spread::narrow, true, 5);
    for (index_t p = 0; p < 32; ++p) {
      set(a, 0, p, p == 3 ? std::ldexp(1.0, apart) : 1.9921875);
      for (index_t j = 0; j < 65; ++j) set(b, j, p, p == 3 ? 0 : p == 5 && j == 0 ? std::ldexp(1.0, apart) : 1.9921875);
    }
    for (index_t j = 0; j < 65; ++j) set(a, 0, 5, 0);
    CAPTURE(apart);
    gemm_options o;
    o.model = unit.model;
    CHECK(differences(a, b, o, pool) == 0);
  }
  // Results that FP32 must truncate, at an offset where it need not.
  for (const double x : {0x1.fep-75, -0x1.fep-75, 0x1.02p-70}) {
    operand a(bf16, formats::bf16, 1, 32, case_kind::normal, spread::narrow, false, 5);
    operand b(bf16, formats::bf16, 3, 32, case_kind::normal, spread::narrow, true, 5);
    for (index_t i = 0; i < 32; ++i) {
      set(a, 0, i, i == 3 ? 0x1p-20 : i == 5 || i > 9 ? 0 : x);
      for (index_t j = 0; j < 3; ++j)
        set(b, j, i, i == 3 ? 0 : i == 5 ? 0x1p-30 : std::ldexp(1.9921875, -72 - static_cast<int>(j)));
    }
    CAPTURE(x);
    CHECK(same_from(a, b, bf16.model, std::vector<float>(3, 0.0f)));
    CHECK(same_from(a, b, find_unit("cdna3-mfma-fp16-f32")->model, std::vector<float>(3, 0.0f)));
  }
  // MXFP8: steps of small scales after a large accumulator.
  const mma_unit& mx = *find_unit("blackwell-mxf8f6f4-f32");
  for (int apart = 10; apart < 64; ++apart) {
    operand a(mx, formats::e4m3, 2, 96, case_kind::normal, spread::narrow, false, 5);
    operand b(mx, formats::e4m3, 65, 96, case_kind::normal, spread::narrow, true, 5);
    set(a, 0, 35, 0);  // an odd number of products
    for (operand* o : {&a, &b}) {
      for (std::size_t s = 0; s < o->scales.size(); ++s)
        o->scales[s] = static_cast<std::uint8_t>(127 - (s % 3 == 1 ? apart : 0));
    }
    for (const int exponent : {-60, 0, 50, 80}) {
      CAPTURE(apart);
      CAPTURE(exponent);
      CHECK(same_from(a, b, mx.model, std::vector<float>(130, std::ldexp(1.5f, exponent))));
    }
  }
}

TEST_CASE("zeros of either sign after accumulators that are small, or zeros themselves") {
  for (const mma_unit& unit : models::all) {
    if (takes(unit, formats::fp64)) continue;
    const format f = formats_of(unit).back();
    operand a(unit, f, 2, 64, case_kind::normal, spread::narrow, false, 9);
    operand b(unit, f, 70, 64, case_kind::normal, spread::narrow, true, 9);
    set_row(a, 0, -0.0);
    set_row(a, 1, 0.0);
    for (index_t j = 0; j < 70; ++j) set_row(b, j, j % 2 == 0 ? 1 : -1);  // columns of one sign
    std::fill(a.scales.begin(), a.scales.end(), static_cast<std::uint8_t>(unit.scale.max_code()));
    for (const int exponent : {-200, -140, -126, -110, -98, -94, -90, -60, -40, -20, 0}) {
      std::vector<float> c;
      for (int i = 0; i < 140; ++i) {
        const float x = static_cast<float>(std::ldexp(1.7320508, exponent + i % 3));
        c.push_back(i % 4 < 2 ? -x : x);
      }
      CAPTURE(unit.name);
      CAPTURE(exponent);
      CHECK(same_from(a, b, unit.model, c));
    }
  }
}

/// Transposed operands, scales in any placement, and batches, against the plain products.
void check_placed_operands(bool fast) {
  thread_pool pool(2);
  // gemm_ref has no register blocking, so more than the 32 rows of a scale tile suffices.
  const index_t m = 37, n = fast ? 70 : 34, k = 192, count = fast ? 3 : 2;
  struct choice {
    const char* unit;
    format element;
  };
  for (const choice& x : {choice{"fp32-fma-chain", formats::fp32}, choice{"fp32-blockwise", formats::e2m1},
                          choice{"hopper-mma-fp16-f32", formats::bf16}, choice{"hopper-wgmma-fp8-f32", formats::e4m3},
                          choice{"blackwell-nvf4-f32", formats::e2m1}, choice{"blackwell-mxf8f6f4-f32", formats::e3m2},
                          choice{"cdna3-mfma-fp16-f32", formats::fp16}, choice{"cdna4-mfma-fp8-f32", formats::e4m3}}) {
    const mma_unit& unit = *find_unit(x.unit);
    gemm_options o;
    o.model = unit.model;
    // 1. The plain products, one by one.
    std::vector<float> want;
    std::vector<std::uint8_t> codes[2], scales[2];
    for (index_t i = 0; i < count; ++i) {
      const auto seed = static_cast<std::uint64_t>(i);
      const operand a(unit, x.element, m, k, case_kind::normal, spread::narrow, false, seed);
      const operand b(unit, x.element, n, k, case_kind::normal, spread::narrow, true, seed);
      std::vector<float> c(static_cast<std::size_t>(m * n));
      gemm_ref(a.view, b.view, o, row_major(c.data(), m, n));
      want.insert(want.end(), c.begin(), c.end());
      // 2. The same operands, transposed and placed, one after another.
      for (const operand* from : {&a, &b}) {
        auto& to = codes[from == &b];
        const index_t stride = packed_bytes(x.element, from->view.rows);
        const std::size_t base = to.size();
        to.resize(base + static_cast<std::size_t>(k * stride));
        for (index_t r = 0; r < from->view.rows; ++r) {
          for (index_t c0 = 0; c0 < k; ++c0) {
            const std::uint64_t code = operand_code(from->view, r, c0);
            if (x.element.bits() <= 8) {
              store_code(x.element, to.data() + base + c0 * stride, r, static_cast<std::uint32_t>(code));
              continue;
            }
            const index_t bytes = storage_bits(x.element) / 8;
            for (index_t byte = 0; byte < bytes; ++byte) {
              to[base + static_cast<std::size_t>(c0 * stride + r * bytes + byte)] =
                  static_cast<std::uint8_t>(code >> (8 * byte));
            }
          }
        }
      }
    }
    for (const placement order : {placement::row_major, placement::column_major, placement::aiter_scale,
                                  placement::hipblaslt_scale_32x8, placement::nvidia_scale_128x4}) {
      if (unit.block == 0 && order != placement::row_major) continue;
      gemm_operand views[2];
      for (const bool is_b : {false, true}) {
        gemm_operand& v = views[is_b];
        scales[is_b].clear();
        for (index_t i = 0; i < count; ++i) {
          const operand from(unit, x.element, is_b ? n : m, k, case_kind::normal, spread::narrow, is_b,
                             static_cast<std::uint64_t>(i));
          v = from.view;
          if (unit.block == 0) continue;
          const layout l{order, v.rows, v.scale_columns()};
          std::vector<std::uint8_t> placed(static_cast<std::size_t>(l.size_bytes()));
          place(row_major(v.scales, v.rows, l.columns), l, placed.data(), 0xFF);
          scales[is_b].insert(scales[is_b].end(), placed.begin(), placed.end());
          v.scale_batch_stride = l.size_bytes();
        }
        v.transposed = true;
        v.codes = codes[is_b].data();
        v.code_stride = packed_bytes(x.element, v.rows);
        v.batch_stride = k * v.code_stride;
        v.scales = unit.block == 0 ? nullptr : scales[is_b].data();
        v.scale_order = order;
      }
      std::vector<float> c(want.size() + static_cast<std::size_t>(count), -1.0f);
      const view<float, 3> target{c.data(), {count, m, n}, {m * n + 1, n, 1}};
      fast ? gemm(views[0], views[1], o, target, pool) : gemm_ref(views[0], views[1], o, target);
      int wrong = 0;
      for (index_t i = 0; i < count; ++i) {
        wrong +=
            std::memcmp(c.data() + i * (m * n + 1), want.data() + i * m * n, static_cast<std::size_t>(m * n) * 4) != 0;
        wrong += c[static_cast<std::size_t>(i * (m * n + 1) + m * n)] != -1.0f;
      }
      CAPTURE(x.unit);
      CAPTURE(static_cast<int>(order));
      CHECK(wrong == 0);
    }
  }
}

/// Codes in any placement that the extents permit.
void check_placed_codes(bool fast) {
  thread_pool pool(2);
  const index_t m = 32, n = 48, k = 128;
  for (const auto& [name, element] : {std::pair{"fp32-fma-chain", formats::fp32},
                                      {"fp32-blockwise", formats::e2m1},
                                      {"hopper-mma-fp16-f32", formats::bf16},
                                      {"hopper-wgmma-fp8-f32", formats::e4m3},
                                      {"blackwell-nvf4-f32", formats::e2m1},
                                      {"blackwell-mxf8f6f4-f32", formats::e3m2}}) {
    const mma_unit& unit = *find_unit(name);
    gemm_options o;
    o.model = unit.model;
    const operand a(unit, element, m, k, case_kind::normal, spread::narrow, false, 1);
    const operand b(unit, element, n, k, case_kind::normal, spread::narrow, true, 1);
    std::vector<float> want(static_cast<std::size_t>(m * n)), c(want.size());
    gemm_ref(a.view, b.view, o, row_major(want.data(), m, n));
    for (const placement order : {placement::column_major, placement::aiter_data_16x16, placement::aiter_scale}) {
      std::vector<std::uint8_t> codes[2];
      gemm_operand views[2] = {a.view, b.view};
      for (int side = 0; side < 2; ++side) {
        gemm_operand& v = views[side];
        const layout l{order, v.rows, v.row_bytes()};
        REQUIRE(l.is_defined());
        codes[side].resize(static_cast<std::size_t>(l.size_bytes()));
        place(row_major(v.codes, v.rows, l.columns, v.code_stride), l, codes[side].data(), 0xFF);
        v.codes = codes[side].data();
        v.code_stride = 0;
        v.code_order = order;
      }
      const auto target = row_major(c.data(), m, n);
      fast ? gemm(views[0], views[1], o, target, pool) : gemm_ref(views[0], views[1], o, target);
      CAPTURE(unit.name);
      CAPTURE(static_cast<int>(order));
      CHECK(std::memcmp(c.data(), want.data(), want.size() * 4) == 0);
      views[0].transposed = true;
      CHECK(!gemm_is_defined(views[0], views[1], o));
    }
    gemm_operand odd = a.view;
    odd.code_order = placement::aiter_data_16x16;
    odd.rows = 31;
    CHECK(!gemm_is_defined(odd, b.view, o));
  }
}

TEST_CASE("gemm takes operands that lie otherwise") {
  check_placed_operands(true);
  check_placed_codes(true);
}

TEST_SUITE("definition") {
  TEST_CASE("gemm_ref takes operands that lie otherwise") {
    check_placed_operands(false);
    check_placed_codes(false);
  }
}

}  // namespace gemm_models_test
