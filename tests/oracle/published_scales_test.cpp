// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Do the presets match their names? Each implementation's own arithmetic (FP32 products, bit fields, clamps) computes
// the scale of a block from its amax. It is compared with shared_scale under the preset's rule and policy.
// The list states the deliberate differences by amax. Any other difference fails, and so does a missing one.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/block.hpp"
#include "rotoscale/parallel.hpp"

namespace published_scales_test {

using namespace rotoscale;

/// Amax patterns first..last, where a source gives `theirs` and this library gives `ours`.
struct exception {
  std::uint32_t first, last;
  int theirs, ours;
};

struct published {
  std::string name;
  format element;
  block_options preset;
  std::function<int(float)> byte;
  std::vector<exception> exceptions;
};

std::uint32_t field_of(std::uint32_t u) { return u >> 23 & 0xFFu; }
std::uint32_t mantissa_of(std::uint32_t u) { return u & 0x7FFFFFu; }
/// Constants of the sources: 1 / largest number in FP32, and the element's exponent and mantissa widths.
float reciprocal_of_max(format f) { return 1.0f / decode(f, f.max_code()); }
std::uint32_t rounded_even(std::uint32_t u, int mantissa_bits) {
  return (u + (1u << (23 - mantissa_bits - 1))) & 0xFF800000u;
}

/// ROCm/aiter csrc/include/mx_quant_utils.h, fp_f32_to_e8m0_scale.
int aiter_multiplied(float product, bool round_up) {
  const std::uint32_t u = fp32_bits(product);
  return static_cast<int>(field_of(u) + (round_up && field_of(u) < 255 && mantissa_of(u) != 0 ? 1 : 0));
}
int aiter_even(float amax, format f) {
  const int field = static_cast<int>(field_of(rounded_even(fp32_bits(amax), f.mantissa_bits)));
  return field >= f.max_exponent() ? field - f.max_exponent() : 0;
}

/// pytorch/ao torchao/prototype/mx_formats/mx_tensor.py, to_mx, as of 0.19 (commit 36027d82).
int torchao_rceil(float amax, format f) {
  const std::uint32_t u = fp32_bits(amax * reciprocal_of_max(f));
  if (field_of(u) == 255) return 255;
  return static_cast<int>(field_of(u) + (field_of(u) == 0 ? mantissa_of(u) > 0x400000u : mantissa_of(u) != 0));
}
int torchao_other(float amax, format f, scale_rule rule) {
  std::uint32_t u = fp32_bits(amax);
  if (rule == scale_rule::even) u = rounded_even(u, f.mantissa_bits);
  if (field_of(u) == 255) return 255;
  const int exponent = static_cast<int>(field_of(u)) - 127 + (rule == scale_rule::ceil && mantissa_of(u) != 0);
  return std::max(-127, std::min(128, exponent - f.max_exponent())) + 127;
}

/// NVIDIA/TransformerEngine common/util/ptx.cuh, float_to_e8m0 (v2.8; ptx_arch_spec.cuh later), of amax * max_norm_rcp.
int te_mxfp8(float amax, format f) {
  const float x = amax * reciprocal_of_max(f);
  if (std::isinf(x)) return 0xFE;
  if (x == 0.0f) return 0;
  const std::uint32_t field = field_of(fp32_bits(x)), mantissa = mantissa_of(fp32_bits(x));
  const bool up = mantissa > 0 && field != 0xFE && !(field == 0 && mantissa <= 0x400000u);
  return static_cast<int>(field + (up ? 1 : 0));
}

/// AMD-AGI/Primus-Turbo csrc/kernels/quantization/quantization_mxfp4.cu, compute_tile_scale.
int primus(float amax) {
  const int exponent = static_cast<int>((fp32_bits(amax) + (1u << 21)) >> 23 & 0x1FFu) - 127 - 2;
  return std::max(-127, std::min(128, exponent)) + 127;
}

/// ROCm/TransformerEngine common/cast/mxfp4/cast_transpose_mxfp4_shuffled.cuh, compute_e8m0_scale.
int te_rocm(float amax) {
  if (amax == 0.0f) return 127;
  const int exponent = static_cast<int>(field_of((fp32_bits(amax) + 0x200000u) & 0xFF800000u)) - 127 - 2;
  return std::max(-127, std::min(127, exponent)) + 127;
}

void add_aiter(std::vector<published>& all, const std::string& type, format f, std::uint32_t underflow_up,
               std::uint32_t underflow_ceil) {
  const float reciprocal = reciprocal_of_max(f), power = pow2_fp32(-f.max_exponent());
  // The product of the smallest amax underflows to zero, which gives byte 0.
  all.push_back({"aiter_round_up " + type,
                 f,
                 presets::aiter_round_up,
                 [=](float x) { return aiter_multiplied(x * reciprocal, true); },
                 {{1, underflow_up, 0, 1}}});
  all.push_back({"aiter_ceil " + type,
                 f,
                 presets::aiter_ceil,
                 [=](float x) { return aiter_multiplied(x * power, true); },
                 {{1, underflow_ceil, 0, 1}}});
  // One product rounds up to 2^-126.
  const std::uint32_t below = (static_cast<std::uint32_t>(f.max_exponent() + 1) << 23) - 1;
  all.push_back({"aiter_round_down " + type,
                 f,
                 presets::aiter_round_down,
                 [=](float x) { return aiter_multiplied(x * power, false); },
                 {{below, below, 1, 0}}});
  all.push_back({"aiter_even " + type, f, presets::aiter_even, [=](float x) { return aiter_even(x, f); }, {}});
}

void add_torchao(std::vector<published>& all, const std::string& type, format f) {
  // One step above the largest number times 2^-127, the product with the reciprocal rounds down to 2^-127.
  const std::uint32_t above = fp32_bits(decode(f, f.max_code()) * 0x1p-127f) + 1;
  all.push_back({"torchao_rceil " + type,
                 f,
                 presets::torchao_rceil,
                 [=](float x) { return torchao_rceil(x, f); },
                 {{above, above, 0, 1}}});
  for (const auto& [name, preset] :
       {std::pair{"torchao_floor ", presets::torchao_floor}, std::pair{"torchao_ceil ", presets::torchao_ceil},
        std::pair{"torchao_even ", presets::torchao_even}}) {
    const scale_rule rule = preset.rule;
    all.push_back({name + type, f, preset, [=](float x) { return torchao_other(x, f, rule); }, {}});
  }
  all.push_back(
      {"nvidia " + type, f, presets::nvidia, [=](float x) { return te_mxfp8(x, f); }, {{above, above, 0, 1}}});
}

const std::vector<published>& all_published() {
  static const std::vector<published> all = [] {
    std::vector<published> list;
    add_aiter(list, "e2m1", formats::e2m1, 2, 2);
    add_aiter(list, "e4m3", formats::e4m3, 223, 128);
    add_aiter(list, "e4m3fnuz", formats::e4m3fnuz, 119, 64);
    add_torchao(list, "e2m1", formats::e2m1);
    add_torchao(list, "e2m3", formats::e2m3);
    add_torchao(list, "e3m2", formats::e3m2);
    add_torchao(list, "e4m3", formats::e4m3);
    add_torchao(list, "e5m2", formats::e5m2);
    list.push_back({"primus", formats::e2m1, presets::primus, primus, {}});
    list.push_back({"te_rocm", formats::e2m1, presets::te_rocm, te_rocm, {}});
    return list;
  }();
  return all;
}

/// Does `p` give the expected scale for this amax?
bool agrees(const published& p, std::uint32_t amax) {
  const int theirs = p.byte(fp32_from_bits(amax));
  const int ours = shared_scale(amax, p.element, p.preset.rule, p.preset.policy);
  for (const exception& e : p.exceptions) {
    if (amax >= e.first && amax <= e.last) return theirs == e.theirs && ours == e.ours;
  }
  return theirs == ours;
}

TEST_CASE("scale bytes of published quantizers") {
  for (const published& p : all_published()) {
    CAPTURE(p.name);
    std::uint32_t different = 0, first = 0;
    const auto compare = [&](std::uint32_t amax) {
      if (!agrees(p, amax) && different++ == 0) first = amax;
    };
    for (std::uint32_t amax = 0; amax <= 1024; ++amax) compare(amax);
    for (std::uint32_t amax = 0; amax < fp32_infinity_bits; amax += 4093) compare(amax);
    // All thresholds: powers of two, and 1.5, 1.75, 1.875, ... times them.
    for (std::uint32_t field = 0; field < 256; ++field) {
      for (std::uint32_t top = 0; top < 16; ++top) {
        const std::uint32_t at = field << 23 | top << 19;
        for (std::uint32_t amax = at < 2 ? 0 : at - 2; amax <= at + 2 && amax <= fp32_infinity_bits; ++amax)
          compare(amax);
      }
    }
    CAPTURE(first);
    CHECK(different == 0);
  }
}

// NVFP4 in NVIDIA's Transformer Engine, common/cast/nvfp4/core_nvfp4.cuh. Its casts to E4M3 saturate.
std::uint8_t te_nvfp4_scale_until_2_13(float amax, float factor) {
  return static_cast<std::uint8_t>(encode(formats::e4m3, std::fmin(amax / 6.0f * factor, 0x1.FFFFFEp127f)));
}
std::uint8_t te_nvfp4_scale_since_2_14(float amax, float factor) {
  return static_cast<std::uint8_t>(encode(formats::e4m3, std::fmin(amax * (factor * (1.0f / 6.0f)), 0x1.FFFFFEp127f)));
}
float te_nvfp4_factor(float tensor_amax) {
  const float factor = std::fmin(448.0f * 6.0f / tensor_amax, 0x1.FFFFFEp127f);
  return tensor_amax == 0.0f || factor == 0.0f ? 1.0f : factor;
}
float te_nvfp4_inverse(std::uint8_t scale, float factor) {
  return std::fmin(1.0f / (decode(formats::e4m3, scale) * (1.0f / factor)), 0x1.FFFFFEp127f);
}

std::uint8_t our_nvfp4_scale(float amax, float factor) {
  return shared_scale(fp32_bits(amax), formats::e2m1, formats::ue4m3, factor, presets::nvidia.policy);
}

TEST_CASE("NVFP4 of Transformer Engine") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float tensor_maxima[] = {0.0f, 0x1p-149f, 1e-38f, 1e-5f, 1.0f, 0x1.311308p+2f, 6.0f, 2688.0f, 1e30f, infinity};
  for (const float tensor_amax : tensor_maxima) {
    CAPTURE(tensor_amax);
    const float factor = tensor_encode_factor(tensor_amax, formats::e2m1, formats::ue4m3);
    REQUIRE(factor == te_nvfp4_factor(tensor_amax));
    for (std::uint32_t u = 0; u <= fp32_bits(tensor_amax); u += 65521) {
      const float amax = fp32_from_bits(u);
      CHECK(our_nvfp4_scale(amax, factor) == te_nvfp4_scale_until_2_13(amax, factor));
    }
    for (std::uint8_t scale = 0; scale <= 0x7E; ++scale) {
      CHECK(scale_inverse(formats::ue4m3, scale, factor) == te_nvfp4_inverse(scale, factor));
    }
  }
  // The order of operations matters where amax is near a tie of the scale.
  int different = 0, orders_differ = 0;
  for (std::uint32_t i = 0; i < 256; ++i) {
    const float factor = te_nvfp4_factor(fp32_from_bits(fp32_bits(4.0f) + i * 32749));
    for (std::uint8_t scale = 0; scale < 0x7E; ++scale) {
      const float tie = (decode(formats::e4m3, scale) + decode(formats::e4m3, scale + 1u)) / 2;
      const std::uint32_t at = fp32_bits(tie / factor * 6.0f);
      for (std::uint32_t u = at - 3; u <= at + 3; ++u) {
        const float amax = fp32_from_bits(u);
        different += our_nvfp4_scale(amax, factor) != te_nvfp4_scale_until_2_13(amax, factor);
        orders_differ += te_nvfp4_scale_since_2_14(amax, factor) != te_nvfp4_scale_until_2_13(amax, factor);
      }
    }
  }
  CHECK(different == 0);
  CHECK(orders_differ > 0);
  CHECK(our_nvfp4_scale(infinity, 1.0f) == 0x7E);
  CHECK(te_nvfp4_scale_until_2_13(infinity, 1.0f) == 0x7E);
  CHECK(tensor_encode_factor(fp32_from_bits(fp32_nan_bits), formats::e2m1, formats::ue4m3) == 0x1.FFFFFEp127f);

  // Version 2.14 (2026-04) and later multiply the factor by the reciprocal of 6 first. About one block in four million
  // differs by one step of its scale, such as this one.
  const float factor = te_nvfp4_factor(0x1.311308p+2f), amax = 0x1.3bf848p-2f;
  CHECK(te_nvfp4_scale_until_2_13(amax, factor) == 0x5E);
  CHECK(te_nvfp4_scale_since_2_14(amax, factor) == 0x5F);
  CHECK(our_nvfp4_scale(amax, factor) == 0x5E);
}

TEST_SUITE("slow") {
  TEST_CASE("scale bytes of published quantizers, every amax") {
    thread_pool pool;
    for (const published& p : all_published()) {
      std::atomic<long long> different{0};
      pool.for_each(0x7F9, [&](index_t chunk) {
        long long count = 0;
        const std::uint32_t first = static_cast<std::uint32_t>(chunk) << 20;
        for (std::uint32_t amax = first; amax < first + (1u << 20) && amax <= fp32_infinity_bits; ++amax) {
          count += !agrees(p, amax);
        }
        different += count;
      });
      CAPTURE(p.name);
      CHECK(different == 0);
    }
  }
}

}  // namespace published_scales_test
