// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "compare.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::validate {

namespace {

constexpr std::size_t most_lines = 64;

std::string format_text(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// value = significand * 2^low.
double value_of(const mma_term& t) {
  if (t.kind != value_class::finite)
    return t.kind == value_class::zero ? 0.0 : t.kind == value_class::nan ? __builtin_nan("") : __builtin_inf();
  const double magnitude = __builtin_ldexp(static_cast<double>(t.significand), t.low);
  return t.negative ? -magnitude : magnitude;
}

/// What is below 2^unit of a number.
double below(mma_term t, int unit) {
  if (t.kind != value_class::finite || t.low >= unit) return 0;
  if (unit - t.low < 64) t.significand &= (std::uint64_t{1} << (unit - t.low)) - 1;
  return value_of(t);
}

/// Counts terms that lose something.
struct losses {
  int count = 0;
  double sum = 0;

  void see(const mma_term& t, int unit) {
    const double lost = below(t, unit);
    count += lost != 0;
    sum += lost;
  }
  std::string text(const char* what, std::size_t of) const {
    const std::string counts = std::to_string(count) + " of " + std::to_string(of) + " " + what + " cut";
    return count == 0 ? counts : counts + format_text(" (%.3g in all)", sum);
  }
};

std::string aligned_to(const char* what, int exponent, int unit) {
  return format_text("; %saligned to 2^%d, unit 2^%d, ", what, exponent, unit);
}
std::string c_cut(const mma_term& c, int unit) {
  return below(c, unit) == 0 ? "" : format_text(", c cut (%.3g)", below(c, unit));
}

/// What a step aligns to and what that cuts off, for the models that align.
std::string alignment(const mma_model& m, const std::vector<mma_product>& p, const mma_term& c) {
  losses lost;
  std::vector<mma_term> terms;
  if (m.sum == mma_sum::scaled_groups) {
    for (std::size_t i = 0; i < p.size(); i += static_cast<std::size_t>(m.subgroup)) {
      const int size = std::min(m.subgroup, static_cast<int>(p.size() - i));
      terms.emplace_back();
      if (!detail::subgroup_term(p.data() + i, size, terms.back())) terms.back().exponent = m.least_exponent;
    }
  } else {
    for (const mma_product& product : p) terms.push_back(detail::scaled(product));
  }
  const bool late = m.sum == mma_sum::late_c || m.sum == mma_sum::late_c_split;
  if (!late && m.sum != mma_sum::aligned && m.sum != mma_sum::scaled_groups) return {};
  if (!late) {
    const bool groups = m.sum == mma_sum::scaled_groups;
    int exponent = m.least_exponent;
    if (c.kind == value_class::finite) exponent = std::max(exponent, c.exponent);
    for (const mma_term& t : terms) {
      if (groups || t.kind == value_class::finite) exponent = std::max(exponent, t.exponent);
    }
    const int unit = exponent - m.fraction_bits;
    for (const mma_term& t : terms) lost.see(t, unit);
    return aligned_to("", exponent, unit) + lost.text(groups ? "groups" : "products", terms.size()) + c_cut(c, unit);
  }
  std::string text;
  const std::size_t parts = m.sum == mma_sum::late_c_split ? 2 : 1;
  for (std::size_t half = 0; half < parts; ++half) {
    int exponent = -100000;
    std::size_t count = 0;
    for (std::size_t i = half; i < terms.size(); i += parts, ++count) {
      if (terms[i].kind == value_class::finite) exponent = std::max(exponent, terms[i].exponent);
    }
    if (exponent == -100000) continue;
    lost = {};
    for (std::size_t i = half; i < terms.size(); i += parts) lost.see(terms[i], exponent - m.fraction_bits);
    text += aligned_to(parts == 1  ? ""
                       : half == 0 ? "even k "
                                   : "odd k ",
                       exponent, exponent - m.fraction_bits) +
            lost.text("products", count);
  }
  return text + "; then c joins, rounded down";
}

std::string k_text(const std::vector<index_t>& k) {
  if (k.back() - k.front() + 1 == static_cast<index_t>(k.size()))
    return std::to_string(k.front()) + (k.size() == 1 ? "" : ".." + std::to_string(k.back()));
  std::string text;
  for (std::size_t i = 0; i < k.size() && i < 6; ++i) text += (i == 0 ? "" : " ") + std::to_string(k[i]);
  return text + (k.size() > 6 ? " ... " + std::to_string(k.back()) : "");
}

std::string accumulator_text(const unpacked& before, const unpacked& after) {
  return format_text("; accumulator %.9g -> %.9g", static_cast<double>(fp32_value(before)),
                     static_cast<double>(fp32_value(after)));
}

/// One step in words.
std::string step_line(const mma_model& m, const std::vector<mma_product>& p, const std::vector<index_t>& k,
                      const unpacked& before, const unpacked& after) {
  std::string products;
  int terms = 0;
  for (const mma_product& product : p) {
    const mma_term t = detail::scaled(product);
    if (t.kind != value_class::zero && ++terms <= 4)
      products += (products.empty() ? "" : " ") + format_text("%.9g", value_of(t));
  }
  if (terms > 4) products += " ... (" + std::to_string(terms) + " not zero)";
  const format acc = m.result == mma_result::fp16_nearest ? formats::fp16 : formats::fp32;
  return "k " + k_text(k) + ": products " + (products.empty() ? "all zero" : products) +
         alignment(m, p, detail::term_of(before, acc.min_exponent())) + accumulator_text(before, after);
}

/// Positions [first, last), of one instruction, by steps.
std::vector<std::vector<index_t>> steps_of(const mma_model& m, index_t first, index_t last) {
  std::vector<std::vector<index_t>> steps;
  for (int half = 0; half < (m.interleave == 0 ? 1 : 2); ++half) {
    std::vector<index_t> step;
    for (index_t p = first; p < last; ++p) {
      if (m.interleave != 0 && (p - first) / m.interleave % 2 != half) continue;
      step.push_back(p);
      if (static_cast<int>(step.size()) != m.group) continue;
      steps.push_back(step);
      step.clear();
    }
    if (!step.empty()) steps.push_back(step);
  }
  return steps;
}

std::string heading(const gemm_case& x, const difference& d) {
  const place_of at = place(x, d.element);
  return "batch " + std::to_string(at.batch) + " row " + std::to_string(at.row) + " column " +
         std::to_string(at.column) + ": model " + number(x.output, d.want) + ", kernel " + number(x.output, d.got);
}

std::string c_line(double c, const gemm_options& o) {
  return format_text("c = %.17g", c) + (o.start_from_c ? ", where the accumulator starts" : ", added at the end");
}

std::string positions(index_t begin, index_t end) { return std::to_string(begin) + ".." + std::to_string(end - 1); }

/// FP64 units: a fused multiply-add a line.
std::vector<std::string> fp64_trace(const gemm_case& x, const gemm_options& o, const difference& d) {
  std::vector<std::string> lines{heading(x, d)};
  if (x.c) lines.push_back(c_line((*x.c)[static_cast<std::size_t>(d.element)], o));
  const double acc =
      fp64_accumulator(x, o, d.element, [&](index_t k, std::uint64_t p, std::uint64_t q, std::uint64_t after) {
        if (lines.size() >= most_lines) return;
        lines.push_back("k " + std::to_string(k) +
                        format_text(": %.17g * %.17g; accumulator %.17g", bit_cast<double>(p), bit_cast<double>(q),
                                    bit_cast<double>(after)));
      });
  if (lines.size() >= most_lines) lines.push_back("...");
  lines.push_back((o.split_k == 1 ? "result " : std::to_string(o.split_k) + " parts, together ") +
                  format_text("%.17g before it is scaled", acc));
  return lines;
}

}  // namespace

std::vector<std::string> trace(const gemm_case& x, const gemm_options& o, const difference& d) {
  const place_of at = place(x, d.element);
  const gemm_operand a = batch_operand(x.a, x.k, at.batch), b = batch_operand(x.b, x.k, at.batch);
  const mma_model& m = o.model;
  if (x.is_fp64()) return fp64_trace(x, o, d);
  const float start = x.c ? static_cast<float>((*x.c)[static_cast<std::size_t>(d.element)]) : 0.0f;
  std::vector<std::string> lines{heading(x, d)};
  if (x.c) lines.push_back(c_line(static_cast<double>(start), o));
  const index_t length = m.instruction_k != 0 ? m.instruction_k : m.group == 0 ? x.k : m.group;
  const auto add = [&](const std::string& line) {
    if (lines.size() < most_lines) lines.push_back(line);
  };
  const auto part = [&](index_t begin, index_t end) {
    if (o.split_k != 1) add("part of K, " + positions(begin, end) + ":");
    unpacked acc = o.start_from_c && begin == 0 ? unpack(formats::fp32, fp32_bits(start)) : unpacked{};
    float promoted = 0.0f;
    for (index_t first = begin; first < end;) {
      const index_t interval_end = o.promotion == 0 ? end : std::min(end, first + o.promotion);
      const index_t interval_begin = first;
      for (; first < interval_end; first = std::min(first + length, interval_end)) {
        const index_t last = std::min(first + length, interval_end);
        const unpacked before = acc;
        acc = detail::chain_ref(o, a, at.row, b, at.column, first, last, before);
        unpacked sum = m.c_last ? unpacked{} : before;
        const auto steps = steps_of(m, first, last);
        for (const std::vector<index_t>& step : steps) {
          std::vector<mma_product> p;
          std::vector<index_t> ks;
          for (const index_t position : step) {
            ks.push_back(detail::k_at(x.k, o, position));
            p.push_back(detail::product_ref(m, a, at.row, b, at.column, ks.back()));
          }
          const bool whole = steps.size() == 1 && !m.c_last;
          const unpacked after = whole ? acc : mma_step(m, p.data(), static_cast<int>(p.size()), sum);
          add(step_line(m, p, ks, sum, after));
          sum = after;
        }
        if (m.c_last)
          add(format_text("their sum %.9g", static_cast<double>(fp32_value(sum))) + " is added" +
              accumulator_text(before, acc));
      }
      promoted = interval_begin == begin ? fp32_value(acc) : promoted + fp32_value(acc);
      if (o.promotion == 0) continue;
      add(format_text("promoted: FP32 sum %.9g, accumulator emptied", static_cast<double>(promoted)));
      acc = {};
    }
    return o.split_k == 1 ? promoted : round_to_format(o.split_sum, promoted);
  };
  const auto join = [&](float p, float q) {
    const float sum = round_to_format(o.split_sum, p + q);
    add(format_text("parts added: %.9g + %.9g = %.9g", static_cast<double>(p), static_cast<double>(q),
                    static_cast<double>(sum)));
    return sum;
  };
  const float acc = detail::sum_of_parts(x.k, o, part, join);
  if (lines.size() >= most_lines) lines.push_back("...");
  lines.push_back(format_text("result %.9g before it is scaled and rounded", static_cast<double>(acc)));
  return lines;
}

}  // namespace rotoscale::validate
