// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Results that real matrix units gave (tests/golden): every bit must come out of gemm_ref and of gemm.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "rotoscale/gemm_fast.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/mma_models.hpp"

using namespace rotoscale;

namespace {

format format_of(const std::string& dtype) {
  if (dtype == "F16") return formats::fp16;
  if (dtype == "BF16") return formats::bf16;
  if (dtype == "F8_E4M3") return formats::e4m3;
  if (dtype == "F8_E5M2") return formats::e5m2;
  REQUIRE(dtype == "F32");
  return formats::fp32;
}

/// Batch `i` of a rank-3 tensor as a GEMM operand.
gemm_operand operand(const io::safetensors_file& file, const io::tensor_info& t, std::int64_t i) {
  gemm_operand a;
  a.element = format_of(t.dtype);
  a.rows = t.shape[1];
  a.k = t.shape[2];
  a.code_stride = packed_bytes(a.element, a.k);
  a.codes = reinterpret_cast<const std::uint8_t*>(file.bytes(t).data()) + i * a.rows * a.code_stride;
  return a;
}

/// Numbers [m, n] of batch `i` as FP32.
std::vector<float> numbers(const io::safetensors_file& file, const io::tensor_info& t, std::int64_t i) {
  const gemm_operand view = operand(file, t, i);
  std::vector<float> x;
  for (index_t r = 0; r < view.rows; ++r) {
    for (index_t c = 0; c < view.k; ++c) x.push_back(operand_value(view, r, c));
  }
  return x;
}

}  // namespace

TEST_CASE("every measured result") {
  const char* folder = std::getenv("ROTOSCALE_GOLDEN");
  REQUIRE_MESSAGE(folder != nullptr, "ROTOSCALE_GOLDEN must name tests/golden");
  thread_pool pool(2);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    CAPTURE(entry.path().string());
    const auto file = io::safetensors_file::open(entry.path());
    const std::string name = file.metadata().at("model");
    const mma_unit* unit = nullptr;
    for (const mma_unit& u : models::all) unit = name == u.name ? &u : unit;
    REQUIRE(unit != nullptr);
    const auto &a = *file.find("a"), &b = *file.find("b"), &c = *file.find("c"), &d = *file.find("d");
    gemm_options o{unit->model};
    o.start_from_c = true;
    o.output = format_of(d.dtype);
    for (std::int64_t i = 0; i < d.shape[0]; ++i) {
      const std::vector<float> start = numbers(file, c, i);
      const gemm_operand want = operand(file, d, i);
      for (const bool fast : {false, true}) {
        auto got = start;
        const auto view = row_major(got.data(), d.shape[1], d.shape[2]);
        if (fast) {
          gemm(operand(file, a, i), operand(file, b, i), o, view, pool);
        } else {
          gemm_ref(operand(file, a, i), operand(file, b, i), o, view);
        }
        for (index_t r = 0; r < want.rows; ++r) {
          for (index_t col = 0; col < want.k; ++col) {
            REQUIRE(output_code(view(r, col), o) == operand_code(want, r, col));
          }
        }
      }
    }
  }
  CHECK(files >= 32);
}
