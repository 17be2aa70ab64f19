// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "make_case.hpp"

#include <algorithm>

#include "compare.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/mma_cases.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

namespace {

format chosen_format(const std::string& flag, const std::string& name, const mma_unit& unit) {
  std::string valid;
  const std::optional<format> wanted = find_operand_format(name);
  for (const format& f : gemm_formats) {
    if (!takes(unit, f)) continue;
    if (name.empty() || wanted == f) return f;
    valid += (valid.empty() ? "" : ", ") + std::string(to_string(f));
  }
  throw io::error(flag, "'" + name + "' is none of the types that " + unit.name + " takes: " + valid);
}

operand_data make_operand(const format& f, const mma_unit& unit, index_t rows, index_t k, bool is_b,
                          const std::vector<case_kind>& kinds, std::uint64_t seed) {
  operand_data x;
  x.element = f;
  x.rows = rows;
  const index_t stride = packed_bytes(f, k);
  x.codes.resize(kinds.size() * static_cast<std::size_t>(rows * stride));
  x.block = unit.block;
  x.scale = unit.block != 0 ? unit.scale : formats::e8m0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    case_source source(seed, 2 * i + (is_b ? 1 : 0));
    for (index_t r = 0; r < rows; ++r) {
      // A sparse unit's A: two of four elements, or one of two FP32 words, are pruned, others in each window and row.
      const int window = sparse_window(f), turn = static_cast<int>(source.word() % 4);
      const auto is_pruned = [&](int at) {
        return unit.model.sparse && !is_b && (at + at / window + turn) % window < window / 2;
      };
      std::uint8_t* row = x.codes.data() + (static_cast<index_t>(i) * rows + r) * stride;
      make_row(f, kinds[i], is_b, static_cast<int>(r), static_cast<int>(k), source, [&](int at, std::uint64_t code) {
        if (is_pruned(at)) code = 0;
        if (f.bits() <= 8) return store_code(f, row, at, static_cast<std::uint32_t>(code));
        const int bytes = storage_bits(f) / 8;
        for (int b = 0; b < bytes; ++b) row[at * bytes + b] = static_cast<std::uint8_t>(code >> (8 * b));
      });
      for (index_t b = 0; unit.block != 0 && b < k / unit.block; ++b) {
        x.scales.push_back(source.scale(x.scale, kinds[i]));
      }
    }
  }
  return x;
}

/// K, checked against the unit's instruction and blocks.
index_t chosen_k(const make_options& o, const mma_unit& unit) {
  const index_t k = o.k == 0 ? 4 * std::max({unit.instruction_k, unit.block, 32}) : static_cast<index_t>(o.k);
  if (unit.instruction_k != 0 && k % unit.instruction_k != 0) {
    throw io::error(
        "--k", std::to_string(k) + " is no multiple of the " + std::to_string(unit.instruction_k) + " of " + unit.name);
  }
  if (unit.block != 0 && k % unit.block != 0)
    throw io::error("--k", std::to_string(k) + " is no multiple of the block");
  return k;
}

std::vector<case_kind> chosen_kinds(const make_options& o) {
  std::vector<case_kind> kinds;
  for (int i = 0; i < case_kinds; ++i) {
    if (o.kind == "all" || o.kind == case_kind_names[i]) kinds.push_back(static_cast<case_kind>(i));
  }
  if (kinds.empty())
    throw io::error("--kind", "'" + o.kind +
                                  "' is no kind of case (all, normal, raw_bits, edges, many_zeros, tiny, outliers, "
                                  "wide, cancelling, properties)");
  return kinds;
}

}  // namespace

void make_case(const std::filesystem::path& path, const make_options& o, thread_pool& pool) {
  const mma_unit* unit = find_unit(o.model);
  if (unit == nullptr) throw io::error("--model", "no model '" + o.model + "'; --list-models shows all");
  const format fa = chosen_format("--a-format", o.a_format, *unit), fb = chosen_format("--b-format", o.b_format, *unit);
  const index_t k = chosen_k(o, *unit);
  const std::vector<case_kind> kinds = chosen_kinds(o);
  const index_t m = static_cast<index_t>(o.m), n = static_cast<index_t>(o.n);
  const auto batch = static_cast<index_t>(kinds.size());
  constexpr index_t largest = index_t{1} << 28;
  if (const index_t size = batch * std::max({m * k, n * k, m * n}); size > largest) {
    throw io::error("--m, --n, --k",
                    "a tensor of " + std::to_string(size) + " elements, the limit is " + std::to_string(largest));
  }
  const operand_data a = make_operand(fa, *unit, m, k, false, kinds, o.seed),
                     b = make_operand(fb, *unit, n, k, true, kinds, o.seed);
  const format acc = unit->model.result == mma_result::fp16_nearest   ? formats::fp16
                     : unit->model.result == mma_result::fp64_nearest ? formats::fp64
                                                                      : formats::fp32;
  gemm_case x{batch, m, n, k, a, b, std::vector<double>{}, acc, {}, false};
  std::vector<std::uint64_t> c;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    case_source source(o.seed, 1000 + i);
    for (index_t e = 0; e < m * n; ++e) {
      c.push_back(source.code(acc, kinds[i]));
      x.c->push_back(value_of(acc, c.back()));
    }
  }
  io::safetensors_writer writer;
  const auto add = [&](const char* name, const operand_data& x) {
    writer.add(name, io::safetensors_dtype_of(x.element), {batch, x.rows, k}, std::as_bytes(std::span(x.codes)));
    if (x.block == 0) return;
    writer.add("scale_" + std::string(name), x.scale == formats::e8m0 ? "F8_E8M0" : "F8_E4M3",
               {batch, x.rows, k / x.block}, std::as_bytes(std::span(x.scales)));
  };
  add("a", a);
  add("b", b);
  const auto add_results = [&](const char* name, const std::vector<std::uint64_t>& codes) {
    const index_t bytes = packed_bytes(acc, 1);
    std::vector<std::uint8_t> stored;
    for (const std::uint64_t code : codes) {
      for (index_t i = 0; i < bytes; ++i) stored.push_back(static_cast<std::uint8_t>(code >> (8 * i)));
    }
    writer.add(name, io::safetensors_dtype_of(acc), {batch, m, n}, std::as_bytes(std::span(stored)));
  };
  add_results("c", c);
  if (o.with_d) {
    gemm_options how;
    how.model = unit->model;
    how.start_from_c = true;
    how.output = acc;
    add_results("d", model_codes(x, how, pool));
  }
  writer.metadata["model"] = unit->name;
  writer.write(path);
}

}  // namespace rotoscale::validate
