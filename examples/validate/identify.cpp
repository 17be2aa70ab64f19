// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compare.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::validate {

namespace {

/// At most `sample` elements of D, spread at random, the same in each run.
std::vector<index_t> chosen_elements(const gemm_case& x, index_t sample) {
  const index_t count = x.batch * x.m * x.n;
  std::vector<index_t> elements;
  const random_stream random{1, 1};
  for (index_t i = 0; i < std::min(sample, count); ++i) {
    const auto word = random.word(static_cast<std::uint64_t>(i));
    elements.push_back(count <= sample ? i : static_cast<index_t>(word % static_cast<std::uint64_t>(count)));
  }
  return elements;
}

/// Which of these elements have the model's result, and how many more differ in the bits of a NaN alone.
void explain_elements(const gemm_case& x, const gemm_options& o, const std::vector<index_t>& elements, bool any_nan,
                      explanation& e, thread_pool& pool) {
  std::vector<std::uint8_t> right(elements.size()), nan_bits(elements.size());
  pool.for_each(static_cast<index_t>(elements.size()), [&](index_t i) {
    const auto at = static_cast<std::size_t>(i);
    const std::uint64_t want = model_code(x, o, elements[at]), got = x.d[static_cast<std::size_t>(elements[at])];
    right[at] = same_result(x.output, want, got, any_nan);
    nan_bits[at] = right[at] == 0 && same_result(x.output, want, got, true);
  });
  e.which.assign(right.begin(), right.end());
  e.nan_bits = std::count(nan_bits.begin(), nan_bits.end(), 1);
}

std::vector<explanation> ranked(std::vector<explanation> all) {
  for (explanation& e : all) e.explained = std::count(e.which.begin(), e.which.end(), true);
  std::stable_sort(all.begin(), all.end(), [](const explanation& p, const explanation& q) {
    return p.explained != q.explained ? p.explained > q.explained : p.evidence < q.evidence;
  });
  return all;
}

/// Why A is not as sparse as the unit needs it, or an empty string.
std::string sparse_mismatch(const mma_unit& unit, const gemm_case& x) {
  if (!unit.model.sparse)
    return x.compressed ? "tensor 'metadata_a': " + std::string(unit.name) + " takes no sparse A" : "";
  const index_t bytes = packed_bytes(x.a.element, x.k);
  for (index_t r = 0; r < x.batch * x.m; ++r) {
    const index_t window = first_dense_window(x.a.element, x.a.codes.data() + r * bytes, x.k);
    if (window < 0) continue;
    const int size = sparse_window(x.a.element);
    return "tensor 'a': batch " + std::to_string(r / x.m) + " row " + std::to_string(r % x.m) + " has more than " +
           std::to_string(size / 2) + " elements other than +0 at k " + std::to_string(window * size) + ".." +
           std::to_string(window * size + size - 1) + ", " + unit.name + " keeps no more";
  }
  return {};
}

}  // namespace

std::string describe(const mma_model& m) {
  static constexpr const char* sums[] = {"exact", "aligned", "scaled_groups", "rounded_tree", "late_c", "late_c_split"};
  static constexpr const char* published[] = {"E-FDPA", "T-FDPA", "GST-FDPA", "", "TR-FDPA", "GTR-FDPA"};
  static constexpr const char* results[] = {"fp32_nearest", "fp32_truncate", "e8m13", "fp16_nearest", "fp64_nearest"};
  const bool aligned = m.sum == mma_sum::aligned || m.sum == mma_sum::scaled_groups;
  std::string text = std::string(sums[static_cast<int>(m.sum)]) + " group " + std::to_string(m.group);
  if (m.fraction_bits != 0) text += " fraction_bits " + std::to_string(m.fraction_bits);
  if (m.sum == mma_sum::scaled_groups) text += " subgroup " + std::to_string(m.subgroup);
  if (m.late_bits != 0) text += " late_bits " + std::to_string(m.late_bits);
  text += std::string(" result ") + results[static_cast<int>(m.result)];
  if (aligned) text += " least_exponent " + std::to_string(m.least_exponent);
  if (m.operand.exponent_bits != 0) text += " operand " + std::string(to_string(m.operand));
  if (m.interleave != 0) text += " interleave " + std::to_string(m.interleave);
  if (m.c_last) text += " c_last";
  const std::string name = published[static_cast<int>(m.sum)];
  return (m.sum == mma_sum::exact && m.group <= 1) || name.empty() ? text : text + " (" + name + ")";
}

std::string to_text(mma_evidence e, const char* device) {
  static constexpr const char* texts[] = {"by definition", "measured by this project", "published vectors",
                                          "literature only", "unverified"};
  const std::string text = texts[static_cast<int>(e)];
  if (*device == '\0') return text;
  return text + (e == mma_evidence::measured ? " on " : " of ") + device;
}

std::string mismatch(const mma_unit& unit, const gemm_case& x, bool has_tails) {
  for (const auto& [name, operand] : {std::pair{"a", &x.a}, std::pair{"b", &x.b}}) {
    if (!takes(unit, operand->element)) {
      return "tensor '" + std::string(name) + "': " + unit.name + " does not multiply " +
             io::safetensors_dtype_of(operand->element);
    }
    if (unit.block != 0 && operand->block == 0)
      return "tensor 'scale_" + std::string(name) + "': missing, " + unit.name + " needs it";
    if (unit.block == 0 && operand->block != 0 && unit.evidence != mma_evidence::definition) {
      return "tensor 'scale_" + std::string(name) + "': " + unit.name + " takes no scales";
    }
    if (unit.block != 0 && (operand->block != unit.block || operand->scale != unit.scale)) {
      return "tensor 'scale_" + std::string(name) + "': " + unit.name + " takes one scale for " +
             std::to_string(unit.block) + " elements";
    }
  }
  const bool pads = has_tails && !unit.model.sparse;
  if (!pads && unit.instruction_k != 0 && x.k % unit.instruction_k != 0) {
    return "tensor 'a': K is " + std::to_string(x.k) + ", no multiple of the " + std::to_string(unit.instruction_k) +
           " of " + unit.name;
  }
  if (const std::string wrong = sparse_mismatch(unit, x); !wrong.empty()) return wrong;
  const bool fp16 = unit.model.result == mma_result::fp16_nearest;
  if (fp16 && x.output != formats::fp16) return "tensor 'd': the results of " + std::string(unit.name) + " are F16";
  return {};
}

std::vector<explanation> identify(const gemm_case& x, const gemm_options& o, bool has_tails, bool any_nan,
                                  index_t sample, thread_pool& pool) {
  const std::vector<index_t> elements = chosen_elements(x, sample);
  std::vector<explanation> all;
  for (const mma_unit& unit : models::all) {
    if (!mismatch(unit, x, has_tails).empty()) continue;
    gemm_options with = o;
    with.model = unit.model;
    if (!x.is_fp64() && !gemm_is_defined(batch_operand(x.a, x.k, 0), batch_operand(x.b, x.k, 0), with)) continue;
    explanation e{unit.name, unit.evidence, to_text(unit.evidence, unit.device)};
    explain_elements(x, with, elements, any_nan, e, pool);
    all.push_back(std::move(e));
  }
  return ranked(std::move(all));
}

namespace {

/// Variants for block scales: products under one scale are summed exactly, and sums aligned by their scales alone.
template <class Add>
void add_scaled_groups(mma_model m, int group, const gemm_case& x, const Add& add) {
  m.group = group;
  m.instruction_k = m.interleave = m.late_bits = 0;
  m.sum = mma_sum::scaled_groups;
  m.least_exponent = -139;
  for (const int subgroup : {4, 8, 16, 32}) {
    if (subgroup > group || x.a.block % subgroup != 0 || x.b.block % subgroup != 0 || x.a.block == 0) continue;
    m.subgroup = subgroup;
    for (m.fraction_bits = 20; m.fraction_bits <= 36; ++m.fraction_bits) {
      for (const mma_result result : {mma_result::fp32_nearest, mma_result::fp32_truncate}) {
        m.result = result;
        add(m);
      }
    }
  }
}

}  // namespace

std::vector<explanation> fit(const gemm_case& x, const gemm_options& o, bool any_nan, index_t sample,
                             thread_pool& pool) {
  const std::vector<index_t> elements = chosen_elements(x, sample);
  std::vector<explanation> all;
  const auto add = [&](mma_model m) {
    gemm_options with = o;
    with.model = m;
    if (!gemm_is_defined(batch_operand(x.a, x.k, 0), batch_operand(x.b, x.k, 0), with)) return;
    explanation e{describe(m), mma_evidence::unverified, "a fit"};
    explain_elements(x, with, elements, any_nan, e, pool);
    all.push_back(std::move(e));
  };
  for (const int group : {1, 2, 4, 8, 16, 32, 64, 128}) {
    if (group > x.k) break;
    add_scaled_groups(o.model, group, x, add);
    mma_model m = o.model;
    m.group = group;
    m.instruction_k = m.interleave = 0;
    m.sum = mma_sum::exact;
    add(m);
    for (int bits = 10; bits <= 35; ++bits) {
      m.sum = mma_sum::aligned;
      m.fraction_bits = bits;
      m.late_bits = 0;
      for (const mma_result result : {mma_result::fp32_nearest, mma_result::fp32_truncate}) {
        m.result = o.model.result == mma_result::fp16_nearest ? o.model.result : result;
        add(m);
      }
      m.result = o.model.result;
      for (const mma_sum late : {mma_sum::late_c, mma_sum::late_c_split}) {
        if (bits < 20 || bits > 28) continue;
        m.sum = late;
        for (const int late_bits : {bits, bits + 7, bits + 8}) {
          m.late_bits = late_bits;
          add(m);
        }
      }
    }
  }
  all = ranked(std::move(all));
  all.resize(std::min<std::size_t>(all.size(), 40));
  return all;
}

}  // namespace rotoscale::validate
