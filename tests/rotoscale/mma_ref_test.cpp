// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Steps of matrix units against sums in doubles (tests/oracle/fdpa_oracle.hpp), and single properties: special values,
// signed zeros, overflow, orders of k, rounding of a late c.
#include "rotoscale/mma_ref.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <string_view>

#include "oracle/exact.hpp"
#include "oracle/fdpa_oracle.hpp"
#include "rotoscale/mma_models.hpp"
#include "rotoscale/philox.hpp"

namespace mma_ref_test {

using namespace rotoscale;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::uint32_t nvidia_nan = 0x7FFFFFFFu;

const mma_model& model(std::string_view name) {
  for (const mma_unit& u : models::all) {
    if (name == u.name) return u.model;
  }
  FAIL("no unit " << name);
  return models::all[0].model;
}

mma_product product(const mma_model& m, format f, std::uint64_t a, std::uint64_t b) {
  return mma_multiply(m, mma_element(m, f, a), mma_element(m, f, b));
}

/// Returns c plus products of FP32 numbers that f holds, as FP32 bits.
std::uint32_t dot(const mma_model& m, format f, const std::vector<float>& a, const std::vector<float>& b, float c) {
  std::vector<mma_product> p;
  for (std::size_t i = 0; i < a.size(); ++i) p.push_back(product(m, f, encode(f, a[i]), encode(f, b[i])));
  const unpacked r = mma_instruction(m, p.data(), static_cast<int>(p.size()), unpack(formats::fp32, fp32_bits(c)));
  return r.kind == value_class::nan ? m.nan_bits : fp32_bits(fp32_value(r));
}
/// The same for BF16 codes and FP32 bits. A NaN keeps its bits if the model says so.
std::uint32_t bf16_dot(const mma_model& m, const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b,
                       std::uint32_t c) {
  std::vector<mma_product> p;
  for (std::size_t i = 0; i < a.size(); ++i) p.push_back(product(m, formats::bf16, a[i], b[i]));
  const unpacked r = mma_instruction(m, p.data(), static_cast<int>(p.size()), mma_number(formats::fp32, c));
  return fp32_bits(fp32_value(m, r));
}

/// A finite code of f: from the whole range, near 1, or near zero (including subnormal numbers).
std::uint64_t random_code(const format& f, std::uint32_t word, std::uint32_t kind) {
  std::uint64_t code = word & (f.sign_mask() | f.magnitude_mask());
  if (kind % 3 == 1) code = (code & ~f.magnitude_mask()) | encode(f, 0x1p-23f * static_cast<float>(word >> 8) + 0.25f);
  if (kind % 3 == 2) code &= ~(f.magnitude_mask() & ~(2 * f.mantissa_mask() + 1));
  return f.is_nan(code) || f.is_infinity(code) ? 0 : code;
}

TEST_CASE("exact sums: of FP32 products, next to each other and 600 bits apart") {
  const random_stream random{21, 1};
  for (std::uint64_t i = 0; i < 100000; ++i) {
    float v[3];
    for (std::uint64_t j = 0; j < 3; ++j) {
      const std::uint32_t word = random.word(3 * i + j);
      v[j] = fp32_from_bits(i % 2 == 0 ? word : (word & 0x807FFFFFu) | (120u + (word >> 23) % 14) << 23);
      if (!std::isfinite(v[j])) v[j] = 1.5f;
    }
    REQUIRE(dot(fp32_blockwise, formats::fp32, {v[0]}, {v[1]}, v[2]) == fp32_bits(oracle::exact_fma(v[0], v[1], v[2])));
  }
  // 2^127 * 2^127 - 2^127 * 2^127 + 2^-149 * 1: carries through all limbs, remainder below a tie.
  CHECK(dot(fp32_blockwise, formats::fp32, {0x1p127f, -0x1p127f, 0x1p-149f}, {0x1p127f, 0x1p127f, 1.0f}, 0.0f) == 1u);
  CHECK(dot(fp32_blockwise, formats::fp32, {1.0f, 0x1p-24f, 0x1p-149f}, {1.0f, 1.0f, 0x1p-149f}, 0.0f) ==
        fp32_bits(0x1.000002p0f));
  CHECK(dot(fp32_blockwise, formats::fp32, {1.0f, 0x1p-24f, -0x1p-149f}, {1.0f, 1.0f, 0x1p-149f}, 0.0f) ==
        fp32_bits(1.0f));
}

TEST_CASE("aligned sums of every group, width and operand format equal sums in doubles") {
  const random_stream random{22, 1};
  struct kind {
    const char* unit;
    format element;
  };
  std::uint64_t at = 0;
  for (const kind& t : {kind{"volta-mma-fp16-f32", formats::fp16}, kind{"ampere-mma-fp16-f32", formats::fp16},
                        kind{"ampere-mma-fp16-f32", formats::bf16}, kind{"ampere-mma-tf32-f32", formats::tf32},
                        kind{"ada-mma-fp8-f32", formats::e4m3}, kind{"hopper-mma-fp16-f32", formats::fp16},
                        kind{"hopper-mma-fp16-f32", formats::bf16}, kind{"hopper-mma-tf32-f32", formats::tf32},
                        kind{"hopper-wgmma-fp8-f32", formats::e4m3}, kind{"hopper-wgmma-fp8-f32", formats::e5m2},
                        kind{"blackwell-f8f6f4-f32", formats::e3m2}, kind{"blackwell-f8f6f4-f32", formats::e2m1}}) {
    const mma_model& m = model(t.unit);
    const int digits = m.result == mma_result::e8m13 ? 14 : 24;
    const oracle::fdpa expected{m.group, m.fraction_bits, m.least_exponent, t.element.min_exponent()};
    CAPTURE(t.unit);
    int normal = 0;
    for (int i = 0; i < 4000; ++i) {
      std::vector<float> a, b;
      for (int k = 0; k < 2 * m.group; ++k) {
        const std::uint32_t w = random.word(at++), v = random.word(at++);
        a.push_back(decode(t.element, random_code(t.element, w, static_cast<std::uint32_t>(i))));
        b.push_back(decode(t.element, random_code(t.element, v, w >> 16)));
      }
      const std::uint32_t w = random.word(at++);
      const float c = fp32_from_bits((w & 0x807FFFFFu) | (100u + (w >> 23) % 50) << 23);
      const double want = expected({a.begin(), a.end()}, {b.begin(), b.end()}, static_cast<double>(c), digits);
      if (want != 0 && (std::fabs(want) < 0x1p-126 || std::fabs(want) >= 0x1p128)) continue;  // oracle overflow
      ++normal;
      REQUIRE(dot(m, t.element, a, b, c) == fp32_bits(static_cast<float>(want) + 0.0f));
    }
    CHECK(normal > 2000);
  }
}

TEST_CASE("NVIDIA: NaN is all ones, Inf propagates, overflow is Inf, zero is +0") {
  const mma_model& m = model("hopper-mma-fp16-f32");
  const auto bf16 = formats::bf16;
  const float nan = fp32_from_bits(0xFFC12345u);
  CHECK(dot(m, bf16, {1, 2}, {1, 1}, nan) == nvidia_nan);
  CHECK(dot(m, bf16, {1, 1}, {1, 1}, -infinity) == fp32_bits(-infinity));
  // encode() saturates, so infinities are given as codes.
  const auto inf = static_cast<std::uint64_t>(0x7F80), minus_inf = static_cast<std::uint64_t>(0xFF80),
             one = encode(bf16, 1);
  mma_product p[2] = {product(m, bf16, inf, one), product(m, bf16, minus_inf, one)};
  CHECK(mma_instruction(m, p, 2, {}).kind == value_class::nan);
  CHECK(mma_instruction(m, p, 1, {}).kind == value_class::infinity);
  CHECK(mma_instruction(m, p, 1, {}).negative == false);
  CHECK(mma_instruction(m, p + 1, 1, {}).negative);
  p[0] = product(m, bf16, inf, 0);
  CHECK(mma_instruction(m, p, 1, {}).kind == value_class::nan);
  // The largest product twice is Inf although the sum is truncated. Its cancellation does not overflow.
  const float largest = decode(bf16, bf16.max_code());
  CHECK(dot(m, bf16, {largest, largest}, {largest, largest}, 0) == fp32_bits(infinity));
  CHECK(dot(m, bf16, {largest, -largest}, {largest, largest}, 0) == 0u);
  CHECK(dot(m, bf16, {-0.0f, -0.0f}, {1, 1}, -0.0f) == 0u);
  CHECK(dot(m, bf16, {1, -1}, {1, 1}, -0.0f) == 0u);
  // IEEE keeps -0 if every term is -0.
  CHECK(dot(fp32_blockwise, bf16, {-0.0f, -0.0f}, {1, 1}, -0.0f) == 0x80000000u);
  CHECK(dot(fp32_blockwise, bf16, {-0.0f, 0.0f}, {1, 1}, -0.0f) == 0u);
}

TEST_CASE("Hopper, measured: the FP16 accumulator's quantum is 2^-46") {
  const mma_model& m = model("hopper-mma-fp16-f16");
  const auto sum = [&](float a, float b) {
    return fp32_from_bits(dot(m, formats::fp16, {a, b}, {0x1p-11f, 0x1p-23f}, 0));
  };
  CHECK(sum(0x1p-14f, 0x1p-24f) == 0.0f);         // 2^-25 + 2^-47
  CHECK(sum(0x1p-14f, 0x1p-23f) == 0x1p-24f);     // 2^-25 + 2^-46
  CHECK(sum(0x1.8p-13f, -0x1p-24f) == 0x1p-23f);  // 3 * 2^-25 - 2^-47
  CHECK(sum(0x1.8p-13f, -0x1p-23f) == 0x1p-24f);  // 3 * 2^-25 - 2^-46
}

TEST_CASE("Hopper, measured: TF32 operands lose their low 13 bits, a NaN too; wgmma FP8 cuts c to 13 bits") {
  const mma_model& tf32 = model("hopper-mma-tf32-f32");
  const auto run = [&](std::uint32_t a) {
    const mma_product p = product(tf32, formats::fp32, a, fp32_bits(1.0f));
    return fp32_bits(fp32_value(mma_instruction(tf32, &p, 1, {})));
  };
  CHECK(run(0x3F801FFFu) == 0x3F800000u);
  CHECK(run(0x7F800001u) == fp32_infinity_bits);
  CHECK(fp32_is_nan(run(0x7FC00000u)));
  const mma_model &wgmma = model("hopper-wgmma-fp8-f32"), &sync = model("hopper-mma-fp8-f32");
  CHECK(dot(wgmma, formats::e4m3, {0}, {0}, 0x1.00001p0f) == fp32_bits(1.0f));
  CHECK(dot(sync, formats::e4m3, {0}, {0}, 0x1.00001p0f) == fp32_bits(0x1.00001p0f));
}

TEST_CASE("Hopper, measured: mma.sync FP8 takes k mod 4 in {0, 1} first, then {2, 3}") {
  // 2^M at i and -2^M at j erase the ones that are added between them. If i is in an earlier step, they also erase the
  // ones of j's step.
  const mma_model& m = model("hopper-mma-fp8-f32");
  const auto survivors = [&](int i, int j) {
    std::vector<float> a(32, 0x1p-9f), b(32, 0x1p-9f);
    a[static_cast<std::size_t>(i)] = b[static_cast<std::size_t>(i)] = 256;
    a[static_cast<std::size_t>(j)] = -256;
    b[static_cast<std::size_t>(j)] = 256;
    return fp32_from_bits(dot(m, formats::e4m3, a, b, 0)) * 0x1p18f;
  };
  CHECK(survivors(0, 1) == 16);  // both in the first step, whose other products are lost
  CHECK(survivors(0, 4) == 16);
  CHECK(survivors(2, 3) == 0);  // both in the second: the first step's sum is lost too
  CHECK(survivors(2, 31) == 0);
  CHECK(survivors(1, 2) == 0);  // one in each
}

TEST_CASE("Blackwell FP4: groups align by their scales alone, and one that cancels keeps its exponent") {
  const mma_model& m = model("blackwell-nvf4-f32");
  const auto group = [&](mma_product* p, float a, float b, std::uint64_t scale, std::uint64_t other = 0x38) {
    for (int i = 0; i < 16; ++i) {
      p[i] = product(m, formats::e2m1, encode(formats::e2m1, i == 0 ? a : i == 1 ? b : 0), encode(formats::e2m1, 1));
      mma_scale(p[i], formats::ue4m3, scale);
      mma_scale(p[i], formats::ue4m3, other);
    }
  };
  mma_product p[64];
  const auto value = [&] { return fp32_value(mma_instruction(m, p, 64, {})); };
  const std::uint64_t one = 0x38, large = 0x7E, tiny = 0x01;  // 1, 448 = 1.75 * 2^8, 2^-9 (exponent of a normal: -6)
  group(p, 1, 0, one);
  group(p + 16, 0.5f, 0, tiny);
  group(p + 32, 0, 0, one);
  group(p + 48, 0, 0, large);
  CHECK(value() == 1.0f + 0x1p-10f);
  group(p + 48, 3, -3, large);  // cancels: 2^(8 - 35) is the unit, nothing here is that small
  CHECK(value() == 1.0f + 0x1p-10f);
  group(p + 48, 6, 0, large);
  CHECK(value() == 6 * 448 + 1.0f + 0x1p-10f);
  // 2^(8 + 8 - 35) is the unit of a group that cancels with two large scales. A group of zeros has none.
  for (int i = 0; i < 64; i += 16) group(p + i, 0, 0, large, large);
  const auto after = [&](float c) {
    return fp32_value(mma_instruction(m, p, 64, unpack(formats::fp32, fp32_bits(c))));
  };
  CHECK(after(0x1p-20f) == 0x1p-20f);
  group(p + 32, 3, -3, large, large);
  CHECK(after(0x1p-20f) == 0.0f);
  CHECK(after(0x1.8p-19f) == 0x1p-19f);
  group(p + 48, 0, 0, 0x7F);  // a NaN scale
  CHECK(mma_instruction(m, p, 64, {}).kind == value_class::nan);
}

TEST_CASE("CDNA3 rounds down: results are not symmetric in sign") {
  const mma_model& m = model("cdna3-mfma-fp16-f32");
  const auto f = formats::fp16;
  // A product of 1 and c = 2^-26: c is truncated below 2^-24.
  CHECK(dot(m, f, {1}, {1}, 0x1p-26f) == fp32_bits(1.0f));
  CHECK(fp32_from_bits(dot(m, f, {-1}, {1}, -0x1p-26f)) == -1.0f);  // floor(c) = -2^-24, a tie of -1 - 2^-24: even
  CHECK(fp32_from_bits(dot(m, f, {1}, {1}, -0x1p-26f)) == 1.0f - 0x1p-24f);
  // FP8 drops c below E - 25.
  const mma_model& fp8 = model("cdna3-mfma-fp8-f32");
  CHECK(fp32_from_bits(dot(fp8, formats::e4m3fnuz, {1}, {1}, -0x1p-26f)) == 1.0f);
  CHECK(fp32_from_bits(dot(fp8, formats::e4m3fnuz, {1}, {1}, -0x1p-25f)) == 1.0f - 0x1p-24f);
  // A product that overflows FP32 is Inf; two of opposite sign give NaN.
  const auto bf16 = formats::bf16;
  CHECK(dot(m, bf16, {0x1p100f}, {0x1p100f}, 0) == fp32_bits(infinity));
  CHECK(dot(m, bf16, {0x1p100f, -0x1p100f}, {0x1p100f, 0x1p100f}, 0) == fp32_nan_bits);
}

TEST_CASE("CDNA2 flushes subnormal operands, c among them, products and sums") {
  const mma_model& m = model("cdna2-mfma-fp16-f32");
  CHECK(dot(m, formats::fp16, {0x1p-24f}, {1}, 0) == 0u);
  CHECK(dot(m, formats::fp16, {0x1p-14f}, {1}, 0) == fp32_bits(0x1p-14f));
  CHECK(dot(m, formats::bf16, {0x1p-100f}, {0x1p-30f}, 0) == 0u);
  CHECK(dot(m, formats::bf16, {0x1p-126f, -0x1.8p-126f}, {1, 1}, 0) == 0u);             // the difference is subnormal
  CHECK(dot(m, formats::bf16, {0x1p-126f}, {1}, 0x1.8p-127f) == fp32_bits(0x1p-126f));  // c is subnormal
  CHECK(dot(m, formats::bf16, {1, -1}, {1, 1}, -0x1p-130f) == 0u);
}

TEST_CASE("AMX: FMA chains of even and of odd products, then c; subnormals are flushed") {
  const mma_model& m = model("intel-amx-bf16");
  const auto bf16 = formats::bf16;
  // Even products lose 2^-24 next to 1; odd ones keep it.
  CHECK(dot(m, bf16, {1, 0, 0x1p-24f, 0, -1, 0}, {1, 1, 1, 1, 1, 1}, 0) == 0u);
  CHECK(dot(m, bf16, {1, 0x1p-24f, -1, 0}, {1, 1, 1, 1}, 0) == fp32_bits(0x1p-24f));
  // c is added last: it keeps nothing of a sum that cancels, and rounds once.
  CHECK(dot(m, bf16, {0x1p-24f, 0x1p-24f}, {1, 1}, 1) == fp32_bits(0x1.000002p0f));
  CHECK(dot(m, bf16, {0x1p-24f, 0, 0x1p-24f, 0}, {1, 1, 1, 1}, 1) == fp32_bits(0x1.000002p0f));
  // Subnormal operands, c and results become zeros of their signs.
  CHECK(dot(m, bf16, {0x1p-127f}, {0x1p100f}, 0) == 0u);
  CHECK(dot(m, bf16, {1}, {1}, 0x1p-127f) == fp32_bits(1.0f));
  CHECK(dot(m, bf16, {0x1p-64f}, {0x1p-63f}, 0) == 0u);
  CHECK(dot(m, bf16, {0x1p-126f, -0x1.8p-126f}, {1, 1}, -0.0f) == fp32_sign_mask);
  // A product below 2^-126 is exact within its fused multiply-add.
  CHECK(dot(m, bf16, {0x1p-63f, 0, 0x1p-70f, 0}, {0x1p-63f, 1, 0x1p-70f, 1}, 0) == fp32_bits(0x1p-126f + 0x1p-140f));
  // Rounding to 24 bits decides what is below 2^-126: 2^-126 - 2^-150 is, 2^-126 - 2^-151 rounds up.
  CHECK(dot(m, bf16, {0x1p-63f, 0, -0x1p-75f, 0}, {0x1p-63f, 1, 0x1p-75f, 1}, 0) == 0u);
  CHECK(dot(m, bf16, {0x1p-63f, 0, -0x1p-75f, 0}, {0x1p-63f, 1, 0x1p-76f, 1}, 0) == fp32_bits(0x1p-126f));
  // Missing products are +0.
  CHECK(dot(m, bf16, {1, 1, 0x1p-24f}, {1, 1, 1}, 0) == fp32_bits(2.0f));
  CHECK(dot(m, bf16, {-0x1p-64f, -0x1p-64f}, {0x1p-63f, 0x1p-63f}, -0.0f) == 0u);
}

TEST_CASE("AVX512_BF16: a fused multiply-add of the odd product, then of the even one") {
  const mma_model& m = model("intel-avx512-bf16");
  const auto bf16 = formats::bf16;
  CHECK(dot(m, bf16, {1, -1}, {1, 1}, 0x1p-25f) == 0u);
  CHECK(dot(m, bf16, {-1, 1}, {1, 1}, 0x1p-24f) == 0u);
  CHECK(dot(m, bf16, {0x1p-24f, -1}, {1, 1}, 1) == fp32_bits(0x1p-24f));
  CHECK(dot(m, bf16, {-1, 0x1p-24f}, {1, 1}, 1) == 0u);
  CHECK(dot(m, bf16, {0x1p-24f}, {1}, 1) == fp32_bits(1.0f));
  CHECK(dot(m, bf16, {0x1p-63f, -0x1p-64f}, {0x1p-63f, 0x1p-63f}, 0x1p-126f) == fp32_bits(0x1p-126f));
  CHECK(dot(m, bf16, {-0x1p-63f, 0x1p-64f}, {0x1p-63f, 0x1p-63f}, 0x1p-126f) == 0u);
  CHECK(dot(m, bf16, {0, 0}, {0, 0}, -0x1p-127f) == 0u);
}

TEST_CASE("Intel: the NaN of a, else of b, else of the accumulator, quiet; a new NaN is negative") {
  const mma_model &amx = model("intel-amx-bf16"), &avx512 = model("intel-avx512-bf16");
  constexpr std::uint32_t one = 0x3F80, inf = 0x7F80, n = 0x7FC1, s = 0xFF82;  // n is quiet, s signals
  for (const mma_model* m : {&amx, &avx512}) {
    CHECK(bf16_dot(*m, {inf}, {0}, 0) == 0xFFC00000u);
    CHECK(bf16_dot(*m, {inf, 0}, {0x8000, 0}, 0) == 0xFFC00000u);
    CHECK(bf16_dot(*m, {inf, inf}, {one, 0xBF80}, 0) == 0xFFC00000u);
    CHECK(bf16_dot(*m, {one}, {one}, 0x7FB9A4AB) == 0x7FF9A4ABu);
    CHECK(bf16_dot(*m, {n}, {s}, 0) == 0x7FC10000u);
    CHECK(bf16_dot(*m, {s}, {n}, 0) == 0xFFC20000u);
    CHECK(bf16_dot(*m, {one}, {s}, 0) == 0xFFC20000u);
    CHECK(bf16_dot(*m, {n, s}, {one, one}, 0) == 0x7FC10000u);  // even k before odd k
    CHECK(bf16_dot(*m, {inf}, {0}, 0x7FC00001) == 0x7FC00001u);
  }
  CHECK(bf16_dot(amx, {n, 0, s}, {one, 0, one}, 0) == 0xFFC20000u);  // the last of a chain
  CHECK(bf16_dot(amx, {n, 0, inf}, {one, 0, 0}, 0) == 0x7FC10000u);
  CHECK(bf16_dot(amx, {n}, {one}, 0x7FC00001) == 0x7FC00001u);  // c before the chains
  CHECK(bf16_dot(avx512, {n}, {one}, 0x7FC00001) == 0x7FC10000u);
}

TEST_CASE("Hopper, measured: a sparse unit reads nothing of B where A is pruned") {
  const mma_model& m = model("hopper-sparse-fp16-f32");
  const auto f = formats::fp16;
  const std::uint64_t one = encode(f, 1), inf = f.infinity_code(), minus_zero = f.sign_mask();
  const auto sum = [&](std::uint64_t a) {
    const mma_product p[2] = {product(m, f, a, inf), product(m, f, one, one)};
    return mma_instruction(m, p, 2, {});
  };
  CHECK(fp32_value(sum(0)) == 1.0f);                // pruned
  CHECK(sum(minus_zero).kind == value_class::nan);  // a kept zero
  CHECK(sum(encode(f, 2)).kind == value_class::infinity);
  const mma_model& dense = model("hopper-mma-fp16-f32");
  CHECK(product(dense, f, 0, inf).value.kind == value_class::nan);
}

TEST_CASE("sparse units: a step takes twice the k, of which half is kept") {
  // A large number at i and its negative at j erase the sums of their steps and of those between.
  const auto survivors = [](const mma_model& m, format f, int k, int i, int j, float big, float one) {
    std::vector<float> a(static_cast<std::size_t>(k)), b(a.size(), 1);
    for (int p = 0; p < k; p += 4) a[static_cast<std::size_t>(p)] = one;
    a[static_cast<std::size_t>(i)] = big;
    a[static_cast<std::size_t>(j)] = -big;
    return fp32_from_bits(dot(m, f, a, b, 0)) / one;
  };
  const auto fp16 = formats::fp16, e4m3 = formats::e4m3;
  // The others are 2^-14, lost below 2^(15 - 25) in the steps from i's to j's.
  CHECK(survivors(model("hopper-sparse-fp16-f32"), fp16, 32, 0, 28, 0x1p15f, 0x1p-14f) == 0);
  CHECK(survivors(model("hopper-sparse-k16-fp16-f32"), fp16, 32, 0, 12, 0x1p15f, 0x1p-14f) == 4);
  CHECK(survivors(model("hopper-sparse-fp16-f32"), fp16, 64, 0, 12, 0x1p15f, 0x1p-14f) == 8);
  // FP8 through mma.sp: dense k mod 8 in 0..3 first. -256 at k 4 comes in the second step, at 8 in the first.
  CHECK(survivors(model("hopper-sparse-mma-fp8-f32"), e4m3, 64, 0, 8, 256, 0x1p-6f) == 14);
  CHECK(survivors(model("hopper-sparse-wgmma-fp8-f32"), e4m3, 64, 0, 4, 256, 0x1p-6f) == 0);
}

TEST_CASE("FP64 units: fused multiply-adds in ascending k") {
  const auto bits = [](double x) { return bit_cast<std::uint64_t>(x); };
  const auto chain = [&](std::vector<double> a, std::vector<double> b, double c) {
    std::vector<std::uint64_t> p, q;
    for (const double x : a) p.push_back(bits(x));
    for (const double x : b) q.push_back(bits(x));
    return fp64_chain(p.data(), q.data(), static_cast<std::int64_t>(p.size()), bits(c));
  };
  CHECK(chain({1 + 0x1p-52}, {1 - 0x1p-52}, -1) == bits(-0x1p-104));  // one rounding
  CHECK(chain({0x1p60, 1, -0x1p60}, {1, 1, 1}, 0) == bits(0.0));      // 1 is lost
  CHECK(chain({0x1p60, -0x1p60, 1}, {1, 1, 1}, 0) == bits(1.0));      // 1 is kept
  CHECK(chain({1}, {1}, 0x1p-53 + 0x1p-60) == bits(1 + 0x1p-52));
  CHECK(chain({0x1p-1074}, {0.5}, 0) == bits(0.0));  // a tie to even
  CHECK(chain({-0.0}, {1}, -0.0) == bits(-0.0));
  CHECK(chain({0x1p1023, -0x1p1023}, {2, 2}, 0) == bits(static_cast<double>(infinity)));
  // NaN priority: b, then the accumulator, then a. The result is quiet; a new NaN is negative.
  const double na = bit_cast<double>(std::uint64_t{0x7FF000000000000A}),
               nb = bit_cast<double>(std::uint64_t{0xFFF800000000000B});
  const double nc = bit_cast<double>(std::uint64_t{0x7FF800000000000C});
  CHECK(chain({na}, {nb}, nc) == 0xFFF800000000000Bu);
  CHECK(chain({na}, {1}, nc) == 0x7FF800000000000Cu);
  CHECK(chain({na}, {1}, 1) == 0x7FF800000000000Au);
  CHECK(chain({na, 1}, {1, nb}, 1) == 0xFFF800000000000Bu);
  CHECK(chain({0}, {static_cast<double>(infinity)}, 1) == 0xFFF8000000000000u);
}

}  // namespace mma_ref_test
