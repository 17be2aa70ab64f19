// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compare.hpp"
#include "examples/threads.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::validate {

namespace {

/// At most `sample` random elements of D, the same in every run.
std::vector<index_t> chosen_elements(const gemm_case& x, index_t sample) {
  const index_t count = x.outputs();
  std::vector<index_t> elements;
  const random_stream random{1, 1};
  for (index_t i = 0; i < std::min(sample, count); ++i) {
    const auto word = random.word(static_cast<std::uint64_t>(i));
    elements.push_back(count <= sample ? i : static_cast<index_t>(word % static_cast<std::uint64_t>(count)));
  }
  return elements;
}

/// Marks the elements with the wanted result, and counts elements that differ only in the bits of a NaN.
template <class Wanted>
void explain_elements(const gemm_case& x, const std::vector<index_t>& elements, bool any_nan, const Wanted& wanted,
                      explanation& e, thread_pool& pool) {
  std::vector<std::uint8_t> right(elements.size()), nan_bits(elements.size());
  for_each_or_throw(pool, static_cast<index_t>(elements.size()), [&](index_t i) {
    const auto at = static_cast<std::size_t>(i);
    const std::uint64_t want = wanted(at), got = e.use.written(x, elements[at]);
    right[at] = same_result(x.output, want, got, any_nan);
    nan_bits[at] = right[at] == 0 && same_result(x.output, want, got, true);
  });
  e.which.assign(right.begin(), right.end());
  e.explained = std::count(e.which.begin(), e.which.end(), true);
  e.nan_bits = std::count(nan_bits.begin(), nan_bits.end(), 1);
}

std::vector<explanation> ranked(std::vector<explanation> all, const kernel_use& given) {
  const auto changed = [&](const explanation& e) { return changes(given, e.use); };
  std::stable_sort(all.begin(), all.end(), [&](const explanation& p, const explanation& q) {
    if (p.explained != q.explained) return p.explained > q.explained;
    return changed(p) != changed(q) ? changed(p) < changed(q) : p.evidence < q.evidence;
  });
  return all;
}

/// Sums of these elements of D under the use's model. Accumulators start from c or from +0.
std::vector<float> sums_of(const gemm_case& x, const kernel_use& u, bool starts_from_c,
                           const std::vector<index_t>& elements, thread_pool& pool) {
  gemm_options o = u.gemm;
  o.start_from_c = starts_from_c;
  std::vector<float> sums(elements.size());
  for_each_or_throw(pool, static_cast<index_t>(elements.size()), [&](index_t i) {
    const index_t e = elements[static_cast<std::size_t>(i)];
    const output_index at = index_of(x, e);
    const float c = x.fp32_c_at(e);
    sums[static_cast<std::size_t>(i)] =
        accumulate_ref(batch_operand(x.a, x.k, at.batch), at.row, batch_operand(x.b, x.k, at.batch), at.column, o, c);
  });
  return sums;
}

/// The codes that a use makes from sums, as a function of the element.
auto finished(const gemm_case& x, const kernel_use& u, const sampled_sums& sums) {
  return [&x, &sums, finish = finisher(x, u), &of = sums.of(u)](std::size_t i) {
    const index_t e = sums.elements[i];
    return finish(of[i], x.fp32_c_at(e), index_of(x, e).column);
  };
}

/// The epilogues that explain most of the first elements, and the given one.
std::vector<kernel_use> promising_epilogues(const gemm_case& x, const kernel_use& given, const sampled_sums& sums,
                                            bool any_nan, thread_pool& pool) {
  constexpr std::size_t looked_at = 512, most = 8;
  std::vector<index_t> few = sums.elements;
  few.resize(std::min(few.size(), looked_at));
  std::vector<explanation> all;
  for (const kernel_use& u : possible_epilogues(x, given, sums)) {
    explanation e{"", u, mma_evidence::definition, ""};
    explain_elements(x, few, any_nan, finished(x, u, sums), e, pool);
    all.push_back(std::move(e));
  }
  std::vector<kernel_use> best{given};
  for (const explanation& e : ranked(std::move(all), given)) {
    if (best.size() < most && !(e.use == given)) best.push_back(e.use);
  }
  return best;
}

/// A unit's result with the given use.
struct unit_result {
  explanation given;
  sampled_sums sums;  ///< with the given use's start value

  bool is_whole() const { return given.explained == static_cast<index_t>(given.which.size()); }
};

unit_result explain_unit(const gemm_case& x, const mma_unit& unit, kernel_use u, const std::vector<index_t>& elements,
                         bool any_nan, thread_pool& pool) {
  u.gemm.model = unit.model;
  unit_result r{{unit.name, u, unit.evidence, to_text(unit.evidence, unit.device)}, {elements, {}, {}}};
  if (x.is_fp64()) {
    explain_elements(
        x, elements, any_nan, [&](std::size_t i) { return model_code(x, u, elements[i]); }, r.given, pool);
    return r;
  }
  (u.gemm.start_from_c ? r.sums.from_c : r.sums.from_zero) = sums_of(x, u, u.gemm.start_from_c, elements, pool);
  explain_elements(x, elements, any_nan, finished(x, u, r.sums), r.given, pool);
  return r;
}

/// Adds a unit with the epilogues that explain most, or with the given one if they explain nothing.
void add_epilogues(const gemm_case& x, unit_result& r, bool any_nan, std::vector<explanation>& all, thread_pool& pool) {
  const kernel_use& given = r.given.use;
  if (r.sums.from_zero.empty()) r.sums.from_zero = sums_of(x, given, false, r.sums.elements, pool);
  std::vector<explanation> of_unit;
  for (const kernel_use& u : promising_epilogues(x, given, r.sums, any_nan, pool)) {
    of_unit.push_back({r.given.model, u, r.given.evidence, r.given.evidence_text});
    explain_elements(x, r.sums.elements, any_nan, finished(x, u, r.sums), of_unit.back(), pool);
  }
  of_unit = ranked(std::move(of_unit), given);
  const index_t most = of_unit.front().explained;
  for (explanation& e : of_unit) {
    if (e.explained == most && (most != 0 || &e == &of_unit.front())) all.push_back(std::move(e));
  }
}

/// Uses to try where no model explains the result as it is given: parts of K, and a transposed d.
std::vector<kernel_use> other_uses(const gemm_case& x, const kernel_use& given) {
  std::vector<kernel_use> all;
  kernel_use u = given;
  u.transposed_d = true;
  if (x.m == x.n && x.m != 1 && !given.transposed_d) all.push_back(u);
  if (x.is_fp64() || given.gemm.split_k != 1) return all;
  u = given;
  for (const index_t parts : {2, 4, 8, 16}) {
    for (const format sum : {formats::bf16, formats::fp32, formats::fp16}) {
      u.gemm.split_k = parts;
      u.gemm.split_sum = sum;
      if (parts <= x.k && (sum != formats::fp16 || x.output == sum)) all.push_back(u);
    }
  }
  return all;
}

/// Adds each unit with the other uses that explain half of a few elements.
void add_other_uses(const gemm_case& x, const kernel_use& given, const std::vector<index_t>& elements, bool any_nan,
                    const std::vector<const mma_unit*>& units, std::vector<explanation>& all, thread_pool& pool) {
  constexpr std::size_t looked_at = 64;
  std::vector<index_t> few = elements;
  few.resize(std::min(few.size(), looked_at));
  for (const mma_unit* unit : units) {
    for (const kernel_use& u : other_uses(x, given)) {
      const unit_result r = explain_unit(x, *unit, u, few, any_nan, pool);
      if (2 * r.given.explained >= static_cast<index_t>(few.size()))
        all.push_back(explain_unit(x, *unit, u, elements, any_nan, pool).given);
    }
  }
}

/// The reason why A is not as sparse as the unit requires, or an empty string.
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
  static constexpr const char* sums[] = {"exact",  "aligned",      "scaled_groups", "rounded_tree",
                                         "late_c", "late_c_split", "split_chains",  "swapped_chain"};
  static constexpr const char* published[] = {"E-FDPA", "T-FDPA", "GST-FDPA", "", "TR-FDPA", "GTR-FDPA", "", ""};
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
  if (m.keeps_nan) text += " keeps_nan";
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
    if (refusal(unit, operand->element, operand->block, operand->scale) == nullptr) continue;
    if (!takes(unit, operand->element)) {
      return "tensor '" + std::string(name) + "': " + unit.name + " does not multiply " +
             io::safetensors_dtype_of(operand->element);
    }
    if (unit.block != 0 && operand->block == 0)
      return "tensor 'scale_" + std::string(name) + "': missing, " + unit.name + " needs it";
    if (unit.block == 0) return "tensor 'scale_" + std::string(name) + "': " + unit.name + " takes no scales";
    return "tensor 'scale_" + std::string(name) + "': " + unit.name + " takes one scale for " +
           std::to_string(unit.block) + " elements";
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

std::vector<explanation> identify(const gemm_case& x, const kernel_use& given, bool has_tails, bool any_nan,
                                  index_t sample, thread_pool& pool) {
  const std::vector<index_t> elements = chosen_elements(x, sample);
  std::vector<unit_result> units;
  std::vector<const mma_unit*> fitting;
  for (const mma_unit& unit : models::all) {
    if (!mismatch(unit, x, has_tails).empty()) continue;
    gemm_options with = given.gemm;
    with.model = unit.model;
    if (!x.is_fp64() && !gemm_is_defined(batch_operand(x.a, x.k, 0), batch_operand(x.b, x.k, 0), with)) continue;
    units.push_back(explain_unit(x, unit, given, elements, any_nan, pool));
    fitting.push_back(&unit);
  }
  // If a model explains everything with the given epilogue, only such models are searched for other epilogues.
  const bool found = std::any_of(units.begin(), units.end(), [](const unit_result& r) { return r.is_whole(); });
  std::vector<explanation> all;
  for (unit_result& r : units) {
    if (x.is_fp64() || (found && !r.is_whole()))
      all.push_back(std::move(r.given));
    else
      add_epilogues(x, r, any_nan, all, pool);
  }
  const auto is_whole = [](const explanation& e) { return e.explained == static_cast<index_t>(e.which.size()); };
  if (std::none_of(all.begin(), all.end(), is_whole))
    add_other_uses(x, given, elements, any_nan, fitting, all, pool);
  return ranked(std::move(all), given);
}

namespace {

/// Adds variants with block scales: products under one scale are summed exactly, and sums are aligned by their scales.
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

std::vector<explanation> fit(const gemm_case& x, const kernel_use& given, bool any_nan, index_t sample,
                             thread_pool& pool) {
  const std::vector<index_t> elements = chosen_elements(x, sample);
  const gemm_options& o = given.gemm;
  std::vector<explanation> all;
  const auto add = [&](mma_model m) {
    kernel_use with = given;
    with.gemm.model = m;
    if (!gemm_is_defined(batch_operand(x.a, x.k, 0), batch_operand(x.b, x.k, 0), with.gemm)) return;
    explanation e{describe(m), with, mma_evidence::unverified, "a fit"};
    explain_elements(
        x, elements, any_nan, [&](std::size_t i) { return model_code(x, with, elements[i]); }, e, pool);
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
  all = ranked(std::move(all), given);
  all.resize(std::min<std::size_t>(all.size(), 40));
  return all;
}

}  // namespace rotoscale::validate
