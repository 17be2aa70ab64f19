// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Recorded results of real matrix units (tests/golden). gemm_ref and gemm must give every bit, for FP64 fp64_chain.
// Wrong models must differ.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "rotoscale/gemm.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/mma_models.hpp"
#include "rotoscale/sparse.hpp"

namespace golden_test {

using namespace rotoscale;

format format_of(const std::string& dtype) {
  if (dtype == "F16") return formats::fp16;
  if (dtype == "BF16") return formats::bf16;
  if (dtype == "F8_E4M3") return formats::e4m3;
  if (dtype == "F8_E5M2") return formats::e5m2;
  if (dtype == "F64") return formats::fp64;
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

/// Numbers (m, n) as FP32. FP32 numbers keep the bits of a NaN.
std::vector<float> numbers(const gemm_operand& view) {
  std::vector<float> x;
  for (index_t r = 0; r < view.rows; ++r) {
    for (index_t c = 0; c < view.k; ++c) {
      const std::uint64_t code = operand_code(view, r, c);
      const bool is_fp32 = view.element == formats::fp32;
      x.push_back(is_fp32 ? fp32_from_bits(static_cast<std::uint32_t>(code)) : decode(view.element, code));
    }
  }
  return x;
}

/// Batch `i` of a file; a sparse A is expanded.
struct measured {
  gemm_operand a, b, c, d;
  std::vector<std::uint8_t> expanded;
};

measured load(const io::safetensors_file& file, std::int64_t i) {
  measured m{operand(file, *file.find("a"), i),
             operand(file, *file.find("b"), i),
             operand(file, *file.find("c"), i),
             operand(file, *file.find("d"), i),
             {}};
  if (const io::tensor_info* t = file.find("metadata_a")) {
    const index_t bytes = t->shape[2], k = m.b.k;
    REQUIRE(bytes == sparse_metadata_bytes(m.a.element, k));
    const auto* metadata = reinterpret_cast<const std::uint8_t*>(file.bytes(*t).data()) + i * m.a.rows * bytes;
    const index_t stride = packed_bytes(m.a.element, k);
    m.expanded.resize(static_cast<std::size_t>(m.a.rows * stride));
    for (index_t r = 0; r < m.a.rows; ++r) {
      REQUIRE(expand_sparse_row(m.a.element, m.a.codes + r * m.a.code_stride, metadata + r * bytes, k,
                                m.expanded.data() + r * stride) == -1);
    }
    m.a.codes = m.expanded.data();
    m.a.code_stride = stride;
    m.a.k = k;
  }
  return m;
}

int fp64_mismatches(const measured& m) {
  int wrong = 0;
  for (index_t r = 0; r < m.d.rows; ++r) {
    for (index_t col = 0; col < m.d.k; ++col) {
      std::vector<std::uint64_t> a, b;
      for (index_t k = 0; k < m.a.k; ++k) {
        a.push_back(operand_code(m.a, r, k));
        b.push_back(operand_code(m.b, col, k));
      }
      wrong += fp64_chain(a.data(), b.data(), m.a.k, operand_code(m.c, r, col)) != operand_code(m.d, r, col);
    }
  }
  return wrong;
}

int mismatches(const measured& m, const mma_model& model, thread_pool* pool) {
  gemm_options o{model};
  o.start_from_c = true;
  o.output = m.d.element;
  std::vector<float> got = numbers(m.c);
  const auto view = row_major(got.data(), m.d.rows, m.d.k);
  if (pool != nullptr) {
    gemm(m.a, m.b, o, view, *pool);
  } else {
    gemm_ref(m.a, m.b, o, view);
  }
  int wrong = 0;
  for (index_t r = 0; r < m.d.rows; ++r) {
    for (index_t col = 0; col < m.d.k; ++col) wrong += output_code(view(r, col), o) != operand_code(m.d, r, col);
  }
  return wrong;
}

/// Calls see(file, unit) for every file.
template <class See>
int each_file(const See& see) {
  const char* folder = std::getenv("ROTOSCALE_GOLDEN");
  REQUIRE_MESSAGE(folder != nullptr, "ROTOSCALE_GOLDEN must name tests/golden");
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
    see(file, *unit);
  }
  return files;
}

TEST_CASE("every measured result") {
  thread_pool pool(2);
  const int files = each_file([&](const io::safetensors_file& file, const mma_unit& unit) {
    for (std::int64_t i = 0; i < file.find("d")->shape[0]; ++i) {
      const measured m = load(file, i);
      if (unit.model.result == mma_result::fp64_nearest) {
        REQUIRE(fp64_mismatches(m) == 0);
      } else {
        REQUIRE(mismatches(m, unit.model, nullptr) == 0);
        REQUIRE(mismatches(m, unit.model, &pool) == 0);
      }
    }
  });
  CHECK(files >= 73);
}

}  // namespace golden_test
