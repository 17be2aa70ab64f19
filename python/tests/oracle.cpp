// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The reference functions for comparison with the Python package. Input comes from stdin, results go to stdout.
//   oracle quantize ROWS COLUMNS   FP32 numbers. For each preset, block format, rounding and axis, in the order of
//                                  names.hpp: a byte 0 where options are not defined, or 1, codes, scales.
//   oracle gemm M N K              Bytes of A, then of B, 8 per element. For each unit and each format that it takes:
//                                  FP32 results.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/quantize_ref.hpp"

using namespace rotoscale;

namespace {

std::vector<std::uint8_t> read_input() {
  std::vector<std::uint8_t> all;
  for (int c = std::getchar(); c != EOF; c = std::getchar()) all.push_back(static_cast<std::uint8_t>(c));
  return all;
}

void write(const void* data, std::size_t bytes) { std::fwrite(data, 1, bytes, stdout); }

void quantize_case(block_format f, const block_options& o, block_axis axis, matrix<const float> in) {
  const bool row = axis == block_axis::row;
  const index_t rows = in.extent(row ? 0 : 1), k = in.extent(row ? 1 : 0);
  const std::uint8_t defined = options_are_defined(f, o) ? 1 : 0;
  write(&defined, 1);
  if (defined == 0) return;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * packed_bytes(f.element, k))),
      scales(static_cast<std::size_t>(rows * k / f.length));
  quantize_ref(f, o, in, axis, dense_blocks(f, rows, k, codes.data(), scales.data()));
  write(codes.data(), codes.size());
  write(scales.data(), scales.size());
}

void quantize_all(index_t rows, index_t columns) {
  const std::vector<std::uint8_t> input = read_input();
  const auto in = row_major(reinterpret_cast<const float*>(input.data()), rows, columns);
  for (const auto& preset : enum_names<block_options>::table) {
    for (const auto& f : enum_names<block_format>::table) {
      for (const auto& how : enum_names<rounding>::table) {
        for (const block_axis axis : {block_axis::row, block_axis::column}) {
          block_options o = preset.value;
          o.rounding = how.value;
          o.random = {42, 7};
          quantize_case(f.value, o, axis, in);
        }
      }
    }
  }
}

void gemm_all(index_t m, index_t n, index_t k) {
  const std::vector<std::uint8_t> input = read_input();
  std::vector<float> c(static_cast<std::size_t>(m * n));
  for (const mma_unit& unit : models::all) {
    for (const auto& f : enum_names<format>::table) {
      // A code of TF32 has 19 bits, and the input's have 32.
      if (f.value == formats::tf32) continue;
      if (!takes(unit, f.value) || unit.model.result == mma_result::fp64_nearest) continue;
      gemm_operand a{.element = f.value, .rows = m, .k = k, .codes = input.data(), .code_stride = 8 * k}, b = a;
      b.rows = n;
      b.codes = input.data() + m * 8 * k;
      const gemm_options o = contract_options(*find_contract("single-accumulator"), unit.model);
      const std::uint8_t defined = gemm_is_defined(a, b, o) ? 1 : 0;
      write(&defined, 1);
      if (defined == 0) continue;
      gemm_ref(a, b, o, row_major(c.data(), m, n));
      write(c.data(), c.size() * sizeof(float));
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int i) { return static_cast<index_t>(std::atol(arguments[i])); };
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "quantize" && count == 4) {
    quantize_all(number(2), number(3));
  } else if (mode == "gemm" && count == 5) {
    gemm_all(number(2), number(3), number(4));
  } else {
    return 2;
  }
  return 0;
}
