// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "make_case.hpp"

#include <algorithm>
#include <map>

#include "examples/threads.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/mma_cases.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

namespace {

format chosen_format(const std::string& flag, const std::string& name, const mma_unit& unit) {
  std::string valid;
  const std::optional<format> wanted = find_format(name, gemm_formats);
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
      // A for a sparse unit: prune two of four elements, or one of two FP32 words, at varying positions.
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

/// K, validated against the unit's instruction and blocks.
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

std::vector<case_kind> chosen_kinds(const std::string& name) {
  std::vector<case_kind> kinds;
  for (int i = 0; i < case_kinds; ++i) {
    if (name == "all" || name == case_kind_names[i]) kinds.push_back(static_cast<case_kind>(i));
  }
  if (kinds.empty())
    throw io::error("--kind", "'" + name +
                                  "' is no kind of case (all, normal, raw_bits, edges, many_zeros, tiny, outliers, "
                                  "wide, cancelling, properties)");
  return kinds;
}

/// A case with one batch entry per kind.
gemm_case make_inputs(const mma_unit& unit, format fa, format fb, index_t m, index_t n, index_t k,
                      const std::vector<case_kind>& kinds, std::uint64_t seed, format output) {
  gemm_case x;
  x.batch = static_cast<index_t>(kinds.size());
  x.m = m;
  x.n = n;
  x.k = k;
  if (const index_t size = x.batch * std::max({m * k, n * k, m * n}); size > largest_made_tensor) {
    throw io::error("--m, --n, --k", "a tensor of " + std::to_string(size) + " elements, the limit is " +
                                         std::to_string(largest_made_tensor));
  }
  x.a = make_operand(fa, unit, m, k, false, kinds, seed);
  x.b = make_operand(fb, unit, n, k, true, kinds, seed);
  x.output = output;
  x.c.emplace(output, x.outputs());
  index_t e = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    case_source source(seed, 1000 + i);
    for (const index_t end = e + m * n; e < end; ++e) x.c->set(e, source.code(output, kinds[i]));
  }
  return x;
}

/// Writer of a, b, their scales, c, a bias, and d unless it is empty.
io::safetensors_writer tensors_of(const gemm_case& x, const output_tensor& d, const std::string& model) {
  io::safetensors_writer writer;
  const auto add = [&](const char* name, const operand_data& o) {
    writer.add(name, io::safetensors_dtype_of(o.element), {x.batch, o.rows, x.k}, std::as_bytes(std::span(o.codes)));
    if (o.block == 0) return;
    writer.add("scale_" + std::string(name), o.scale == formats::e8m0 ? "F8_E8M0" : "F8_E4M3",
               {x.batch, o.rows, x.k / o.block}, std::as_bytes(std::span(o.scales)));
  };
  add("a", x.a);
  add("b", x.b);
  const auto add_outputs = [&](const char* name, const output_tensor& t) {
    writer.add(name, io::safetensors_dtype_of(t.element()), {x.batch, x.m, x.n}, std::as_bytes(t.bytes()));
  };
  if (x.c) add_outputs("c", *x.c);
  if (x.bias) writer.add("bias", "F32", {x.n}, std::as_bytes(std::span(*x.bias)));
  if (d.size() != 0) add_outputs("d", d);
  writer.metadata["model"] = model;
  return writer;
}

/// Inputs with the formats and K of a dump, and with the tensors that its epilogue reads.
gemm_case inputs_like(const gemm_case& dump, const std::vector<explanation>& tied, index_t m, index_t n,
                      const std::vector<case_kind>& kinds, std::uint64_t seed) {
  mma_unit unit;  // formats only: fitted parameters belong to no unit
  unit.model = tied.front().use.gemm.model;
  unit.block = dump.a.block;
  unit.scale = dump.a.scale;
  gemm_case made = make_inputs(unit, dump.a.element, dump.b.element, m, n, dump.k, kinds, seed, dump.output);
  if (!dump.c) made.c.reset();
  if (dump.bias) {
    case_source source(seed, 2000);
    made.bias.emplace();
    for (index_t j = 0; j < n; ++j)
      made.bias->push_back(static_cast<float>(value_of(formats::bf16, source.code(formats::bf16, case_kind::normal))));
  }
  return made;
}

/// Indices of explanations, grouped by equal results.
using groups = std::vector<std::vector<std::size_t>>;

groups same_results(const gemm_case& x, const std::vector<explanation>& tied, thread_pool& pool) {
  const index_t most = std::clamp<index_t>((1 << 24) / x.k, 64, 8192);  // the time depends on the number of products
  const index_t count = x.outputs(), step = std::max<index_t>(1, count / most) | 1;  // odd, to visit all columns
  std::map<std::vector<std::uint64_t>, std::vector<std::size_t>> by_results;
  for (std::size_t t = 0; t < tied.size(); ++t) {
    kernel_use u = tied[t].use;
    if (u.gemm.bias != nullptr) u.gemm.bias = x.bias->data();
    std::vector<std::uint64_t> codes(static_cast<std::size_t>((count + step - 1) / step));
    for_each_or_throw(pool, static_cast<index_t>(codes.size()),
                      [&](index_t i) { codes[static_cast<std::size_t>(i)] = model_code(x, u, i * step); });
    by_results[std::move(codes)].push_back(t);
  }
  groups all;
  for (auto& [results, members] : by_results) all.push_back(std::move(members));
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

io::safetensors_writer make_case(const make_options& o, thread_pool& pool) {
  const mma_unit* unit = find_unit(o.model);
  if (unit == nullptr) throw io::error("--model", "no model '" + o.model + "'; --list-models shows all");
  const format fa = chosen_format("--a-format", o.a_format, *unit), fb = chosen_format("--b-format", o.b_format, *unit);
  const format acc = unit->model.result == mma_result::fp16_nearest   ? formats::fp16
                     : unit->model.result == mma_result::fp64_nearest ? formats::fp64
                                                                      : formats::fp32;
  gemm_case made = make_inputs(*unit, fa, fb, static_cast<index_t>(o.m), static_cast<index_t>(o.n), chosen_k(o, *unit),
                               chosen_kinds(o.kind), o.seed, acc);
  if (!o.with_c) made.c.reset();
  output_tensor d;
  if (o.with_d) {
    kernel_use how;
    how.gemm.model = unit->model;
    how.gemm.start_from_c = o.with_c;
    how.gemm.output = acc;
    d = model_outputs(made, how, pool);
  }
  return tensors_of(made, d, unit->name);
}

std::vector<std::vector<std::size_t>> tell_apart(const std::filesystem::path& path, const gemm_case& dump,
                                                 const std::vector<explanation>& tied, std::uint64_t seed, bool with_d,
                                                 thread_pool& pool) {
  // Use the dump's extents if all kinds together stay small, since the kernel may take no others.
  const auto extent = [&](index_t size) {
    return dump.k > (1 << 14) ? std::min<index_t>(size, 64) : std::min<index_t>(size, 256);
  };
  const index_t m = extent(dump.m), n = extent(dump.n);
  std::vector<case_kind> useful;
  for (const case_kind kind : chosen_kinds("all")) {
    if (same_results(inputs_like(dump, tied, m, n, {kind}, seed), tied, pool).size() > 1) useful.push_back(kind);
  }
  if (useful.empty()) return same_results(dump, tied, pool);
  const gemm_case made = inputs_like(dump, tied, m, n, useful, seed);
  kernel_use first = tied.front().use;
  if (first.gemm.bias != nullptr) first.gemm.bias = made.bias->data();
  tensors_of(made, with_d ? model_outputs(made, first, pool) : output_tensor{}, tied.front().model).write(path);
  return same_results(made, tied, pool);
}

}  // namespace rotoscale::validate
