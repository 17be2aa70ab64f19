// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The named matrix units against hardware.
//
// - Vectors of V100, A100 and H100 by Khattak and Mikaitis (arXiv:2512.07004). tests/golden holds a sample.
//   ROTOSCALE_VECTORS may name the folder of all, which the cases then read instead.
// - The published results of one discriminating case (arXiv:2511.10909, table 8).
// - Wrong models, each of which the vectors must reject.
#include "rotoscale/mma_models.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "oracle/fdpa_oracle.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace mma_models_test {

using namespace rotoscale;

const mma_unit& unit(const std::string& name) {
  for (const mma_unit& u : models::all) {
    if (name == u.name) return u;
  }
  FAIL("no unit " << name);
  return models::all[0];
}

/// One dot product added to c, of FP32 numbers that `element` holds exactly. Returns FP32 bits.
std::uint32_t dot(const mma_model& m, format element, const std::vector<float>& a, const std::vector<float>& b,
                  float c) {
  std::vector<mma_product> p;
  for (std::size_t i = 0; i < a.size(); ++i) {
    p.push_back(mma_multiply(m, mma_element(m, element, encode(element, a[i])),
                             mma_element(m, element, encode(element, b[i]))));
  }
  const unpacked r = mma_instruction(m, p.data(), static_cast<int>(p.size()), unpack(formats::fp32, fp32_bits(c)));
  return r.kind == value_class::nan ? m.nan_bits : fp32_bits(fp32_value(r));
}

struct vectors {
  std::vector<std::vector<float>> a, b;
  std::vector<float> c;
  std::vector<std::uint32_t> d;
};

std::vector<std::vector<float>> numbers(const std::filesystem::path& path, int base) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file, path.string());
  std::vector<std::vector<float>> lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<float> row;
    for (std::string w; words >> w;)
      row.push_back(fp32_from_bits(static_cast<std::uint32_t>(std::stoul(w, nullptr, base))));
    if (!row.empty()) lines.push_back(row);
  }
  return lines;
}

/// Loads the vectors of `gpu`/`type` with FP16 or FP32 results. With FP16, C is rounded to FP16, as the publishers did.
vectors load(const std::filesystem::path& root, const std::string& gpu, const std::string& type, bool fp16,
             bool zero_c) {
  const auto folder = root / gpu / type;
  vectors v;
  v.a = numbers(folder / ("a_" + gpu + "_" + type + ".txt"), 16);
  v.b = numbers(folder / ("b_" + gpu + "_" + type + ".txt"), 16);
  for (const auto& row : numbers(folder / ("c_" + gpu + "_fp32.txt"), 2)) {
    v.c.push_back(zero_c ? 0.0f : fp16 ? decode(formats::fp16, encode(formats::fp16, row[0])) : row[0]);
  }
  for (const auto& row : numbers(folder / ("d_" + gpu + (fp16 ? "_fp16.txt" : "_fp32.txt")), 2)) {
    v.d.push_back(fp32_bits(row[0]));
  }
  REQUIRE(v.a.size() == v.d.size());
  REQUIRE(v.b.size() == v.d.size());
  REQUIRE(v.c.size() == v.d.size());
  REQUIRE(v.d.size() >= 48);
  return v;
}

std::filesystem::path sample_folder() {
  const char* golden = std::getenv("ROTOSCALE_GOLDEN");
  REQUIRE_MESSAGE(golden != nullptr, "ROTOSCALE_GOLDEN must name tests/golden");
  return std::filesystem::path(golden) / "matrix-core-vectors";
}

std::filesystem::path vectors_folder() {
  const char* all = std::getenv("ROTOSCALE_VECTORS");
  return all != nullptr ? all : sample_folder();
}

int mismatches(const mma_model& m, format element, const vectors& v) {
  int wrong = 0;
  for (std::size_t i = 0; i < v.d.size(); ++i) wrong += dot(m, element, v.a[i], v.b[i], v.c[i]) != v.d[i];
  return wrong;
}

struct published {
  const char *gpu, *type;
  format element;
  bool fp16, zero_c;
  const char* unit;
};
constexpr published files[] = {
    {"V100", "fp16", formats::fp16, false, false, "volta-mma-fp16-f32"},
    {"V100", "fp16", formats::fp16, true, false, "volta-mma-fp16-f16"},
    {"A100", "fp16", formats::fp16, false, false, "ampere-mma-fp16-f32"},
    {"A100", "fp16", formats::fp16, true, false, "ampere-mma-fp16-f16"},
    {"A100", "bf16", formats::bf16, false, false, "ampere-mma-fp16-f32"},
    {"A100", "tf32", formats::tf32, false, false, "ampere-mma-tf32-f32"},
    {"H100", "fp16", formats::fp16, false, false, "hopper-mma-fp16-f32"},
    {"H100", "fp16", formats::fp16, true, false, "hopper-mma-fp16-f16"},
    {"H100", "bf16", formats::bf16, false, false, "hopper-mma-fp16-f32"},
    {"H100", "tf32", formats::tf32, false, false, "hopper-mma-tf32-f32"},
    // The published FP32 results are from wgmma with C = 0, the FP16 results from mma.sync.
    {"H100", "E4M3", formats::e4m3, false, true, "hopper-wgmma-fp8-f32"},
    {"H100", "E4M3", formats::e4m3, true, false, "hopper-mma-fp8-f16"},
    {"H100", "E5M2", formats::e5m2, false, true, "hopper-wgmma-fp8-f32"},
    {"H100", "E5M2", formats::e5m2, true, false, "hopper-mma-fp8-f16"},
};

TEST_CASE("published vectors of V100, A100 and H100") {
  const auto root = vectors_folder();
  for (const published& f : files) {
    CAPTURE(f.unit);
    CAPTURE(f.type);
    CHECK(mismatches(unit(f.unit).model, f.element, load(root, f.gpu, f.type, f.fp16, f.zero_c)) == 0);
  }
}

TEST_CASE("the vectors reject other parameters") {
  const auto root = vectors_folder();
  for (const published& f : files) {
    const vectors v = load(root, f.gpu, f.type, f.fp16, f.zero_c);
    const mma_model right = unit(f.unit).model;
    const auto rejects = [&](const char* what, auto change) {
      mma_model wrong = right;
      change(wrong);
      INFO(std::string(f.unit) << " on " << std::string(f.type) << ": " << std::string(what));
      CHECK(mismatches(wrong, f.element, v) > 0);
    };
    if (!f.fp16) {  // FP16 results drop too many bits to show these in 2000 cases
      rejects("a fraction bit less", [](mma_model& m) { --m.fraction_bits; });
      rejects("no alignment", [](mma_model& m) { m.sum = mma_sum::exact; });
    }
    // The TF32 vectors of the H100 have K = 4, half a step.
    if (static_cast<int>(v.a[0].size()) > right.group / 2) rejects("half the step", [](mma_model& m) { m.group /= 2; });
    rejects("another rounding", [](mma_model& m) {
      m.result = m.result == mma_result::fp16_nearest ? mma_result::fp32_truncate : mma_result::fp32_nearest;
    });
    if (right.c_last) {
      rejects("c within the chain", [](mma_model& m) { m.c_last = false; });
      rejects("ascending k", [](mma_model& m) { m.interleave = 0; });
      rejects("odd and even k", [](mma_model& m) { m.interleave = 1; });
    }
  }
}

TEST_CASE("table 8: c = 2^23 and products -2^23, -1/2, -1/4, -1/8") {
  struct row {
    const char* unit;
    format element;
    float big_a, big_b;  ///< factors of -2^23, exact in the element
    float want;
  };
  const auto fp16 = formats::fp16, bf16 = formats::bf16, tf32 = formats::tf32, e5m2 = formats::e5m2;
  const row rows[] = {
      {"volta-mma-fp16-f32", fp16, -0x1p13f, 0x1p10f, 0.0f},
      {"turing-mma-fp16-f32", fp16, -0x1p13f, 0x1p10f, -0.5f},
      {"ampere-mma-fp16-f32", fp16, -0x1p13f, 0x1p10f, -0.5f},
      {"ampere-mma-fp16-f32", bf16, -0x1p13f, 0x1p10f, -0.5f},
      {"ampere-mma-tf32-f32", tf32, -0x1p13f, 0x1p10f, -0.5f},
      {"ada-mma-fp8-f32", e5m2, -0x1p13f, 0x1p10f, 0.0f},
      {"hopper-mma-fp16-f32", fp16, -0x1p13f, 0x1p10f, -0.75f},
      {"hopper-wgmma-fp8-f32", e5m2, -0x1p13f, 0x1p10f, 0.0f},
      {"blackwell-f8f6f4-f32", e5m2, -0x1p13f, 0x1p10f, -0.75f},
      {"cdna1-mfma-fp16-f32", fp16, -0x1p13f, 0x1p10f, -0.875f},
      {"cdna2-mfma-bf16-f32", bf16, -0x1p13f, 0x1p10f, -0.375f},
      {"cdna2-mfma-fp16-f32", fp16, -0x1p13f, 0x1p10f, 0.0f},
      {"cdna3-mfma-fp16-f32", fp16, -0x1p13f, 0x1p10f, -0.5f},
      {"cdna3-mfma-fp16-f32", bf16, -0x1p13f, 0x1p10f, -0.5f},
      {"cdna3-mfma-fp8-f32", formats::e5m2fnuz, -0x1p13f, 0x1p10f, -1.0f},
      {"fp32-fma-chain", fp16, -0x1p13f, 0x1p10f, -0.875f},
  };
  for (const row& r : rows) {
    CAPTURE(r.unit);
    const std::vector<float> a{r.big_a, -0.5f, -0.25f, -0.125f}, b{r.big_b, 1.0f, 1.0f, 1.0f};
    CHECK(fp32_from_bits(dot(unit(r.unit).model, r.element, a, b, 0x1p23f)) == r.want);
  }
}

TEST_CASE("names are unique, and every unit's parameters hang together") {
  for (const mma_unit& u : models::all) {
    CAPTURE(u.name);
    int same = 0;
    for (const mma_unit& other : models::all) same += std::string(u.name) == other.name;
    CHECK(same == 1);
    CHECK(u.operands != 0);
    if (u.model.instruction_k != 0) CHECK(u.model.instruction_k == u.instruction_k);
    if (u.model.sum == mma_sum::scaled_groups)
      CHECK((u.block % u.model.subgroup == 0 && u.model.group % u.model.subgroup == 0));
    if (u.instruction_k != 0) CHECK(u.instruction_k % u.model.group == 0);
  }
}

}  // namespace mma_models_test
