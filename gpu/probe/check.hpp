// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The model's results for probe cases.
#pragma once

#include "gpu/probe/cases.hpp"
#include "rotoscale/mma_models.hpp"
#include "rotoscale/mma_ref.hpp"

namespace rotoscale::gpu {

/// The unit of that name, or null.
inline const mma_unit* find_unit(std::string_view name) {
  for (const mma_unit& u : models::all) {
    if (name == u.name) return &u;
  }
  return nullptr;
}

/// Bits of d that `m` gives for one tile, into `d` (rows × cols codes of the accumulator).
inline void model_tile(const mma_model& m, const probed_instruction& instruction, const probe_cases& cases,
                       std::size_t tile, std::vector<std::uint32_t>& d) {
  const format acc = instruction.fp16_accumulator ? formats::fp16 : formats::fp32;
  const auto rows = static_cast<std::size_t>(instruction.rows), cols = static_cast<std::size_t>(instruction.cols);
  const auto k = static_cast<std::size_t>(instruction.k);
  const auto elements = [&](const std::vector<std::uint8_t>& codes, const format& element, std::size_t count) {
    const format f = stored_format(element);
    const auto bytes = static_cast<std::size_t>(element_bytes(f));
    std::vector<mma_term> terms(count * k);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i] = mma_element(m, f, load_little_endian(codes, (tile * count * k + i) * bytes, static_cast<int>(bytes)));
    }
    return terms;
  };
  const std::vector<mma_term> a = elements(cases.a, instruction.a, rows), b = elements(cases.b, instruction.b, cols);
  std::vector<mma_product> products(k);
  d.resize(rows * cols);
  const int bytes = element_bytes(acc);
  for (std::size_t i = 0; i < rows * cols; ++i) {
    for (std::size_t p = 0; p < k; ++p) products[p] = mma_multiply(m, a[i / cols * k + p], b[i % cols * k + p]);
    const std::uint32_t c =
        load_little_endian(cases.c, (tile * rows * cols + i) * static_cast<std::size_t>(bytes), bytes);
    const unpacked r = mma_instruction(m, products.data(), instruction.k, unpack(acc, c));
    const std::uint32_t nan = instruction.fp16_accumulator ? m.nan_bits >> 16 : m.nan_bits;
    d[i] = r.kind == value_class::nan
               ? nan
               : static_cast<std::uint32_t>(round_to(acc, r, rounding::nearest_even, overflow::to_inf));
  }
}

}  // namespace rotoscale::gpu
