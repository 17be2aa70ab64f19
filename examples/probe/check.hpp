// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The model's results for probe cases.
#pragma once

#include "examples/probe/cases.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/mma_ref.hpp"

namespace rotoscale::probe {

/// Codes that the instruction multiplies, rows × k: without the pruned elements of a sparse A, with its negations
/// applied.
inline std::vector<std::uint64_t> multiplied_codes(const probed_instruction& instruction, const probe_cases& cases,
                                                   std::size_t tile, bool is_b) {
  const format f = stored_format(is_b ? instruction.b : instruction.a);
  const auto rows = static_cast<std::size_t>(is_b ? instruction.cols : instruction.rows);
  const auto bytes = static_cast<std::size_t>(element_bytes(f)), k = static_cast<std::size_t>(instruction.k);
  const std::vector<std::uint8_t>& stored = is_b ? cases.b : cases.a;
  std::vector<std::uint8_t> expanded;
  std::size_t first = tile * rows * k * bytes;
  if (instruction.form.sparse && !is_b) {
    const auto metadata = static_cast<std::size_t>(metadata_bytes(instruction));
    expanded.resize(rows * k * bytes);
    for (std::size_t r = 0; r < rows; ++r) {
      (void)expand_sparse_row(f, stored.data() + (tile * rows + r) * k / 2 * bytes,
                              cases.metadata.data() + (tile * rows + r) * metadata, instruction.k,
                              expanded.data() + r * k * bytes);
    }
    first = 0;
  }
  const bool negate = is_b ? instruction.form.negate_b : instruction.form.negate_a;
  std::vector<std::uint64_t> codes(rows * k);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = load_little_endian(expanded.empty() ? stored : expanded, first + i * bytes, static_cast<int>(bytes)) ^
               (negate ? f.sign_mask() : 0);
  }
  return codes;
}

/// Code of an accumulator, with the model's NaN.
inline std::uint64_t accumulator_code(const mma_model& m, const format& acc, const unpacked& r) {
  if (r.kind == value_class::nan) return (m.keeps_nan ? fp32_bits(fp32_value(m, r)) : m.nan_bits) >> (32 - acc.bits());
  return round_to(acc, r, rounding::nearest_even, overflow::to_inf);
}

/// Result bits of `m` for one tile, into `d` (rows × cols codes of the accumulator format).
inline void model_tile(const mma_model& m, const probed_instruction& instruction, const probe_cases& cases,
                       std::size_t tile, std::vector<std::uint64_t>& d) {
  const format acc = instruction.accumulator;
  const auto rows = static_cast<std::size_t>(instruction.rows), cols = static_cast<std::size_t>(instruction.cols);
  const auto k = static_cast<std::size_t>(instruction.k);
  const std::vector<std::uint64_t> a = multiplied_codes(instruction, cases, tile, false),
                                   b = multiplied_codes(instruction, cases, tile, true);
  d.resize(rows * cols);
  const int bytes = element_bytes(acc);
  const auto start = [&](std::size_t i) {
    if (instruction.form.zero_c) return std::uint64_t{0};
    return load_little_endian(cases.c, (tile * rows * cols + i) * static_cast<std::size_t>(bytes), bytes);
  };
  if (acc == formats::fp64) {
    for (std::size_t i = 0; i < rows * cols; ++i)
      d[i] = fp64_chain(&a[i / cols * k], &b[i % cols * k], instruction.k, start(i));
    return;
  }
  const auto terms = [&](const std::vector<std::uint64_t>& codes, const format& element) {
    std::vector<mma_term> t;
    for (const std::uint64_t code : codes) t.push_back(mma_element(m, stored_format(element), code));
    return t;
  };
  const std::vector<mma_term> ta = terms(a, instruction.a), tb = terms(b, instruction.b);
  const std::size_t blocks = k / scale_block;
  std::vector<mma_product> products(k);
  for (std::size_t i = 0; i < rows * cols; ++i) {
    for (std::size_t p = 0; p < k; ++p) {
      products[p] = mma_multiply(m, ta[i / cols * k + p], tb[i % cols * k + p]);
      if (!instruction.form.scaled) continue;
      const std::size_t block = p / scale_block;
      mma_scale(products[p], formats::e8m0, cases.scales_a[(tile * rows + i / cols) * blocks + block]);
      mma_scale(products[p], formats::e8m0, cases.scales_b[(tile * cols + i % cols) * blocks + block]);
    }
    d[i] = accumulator_code(m, acc, mma_instruction(m, products.data(), instruction.k, mma_number(acc, start(i))));
  }
}

}  // namespace rotoscale::probe
