// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "compare.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::validate {

namespace {

constexpr std::size_t max_lines = 64;

std::string format_text(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// value = significand * 2^low.
double term_value(const mma_term& t) {
  if (t.kind != value_class::finite)
    return t.kind == value_class::zero ? 0.0 : t.kind == value_class::nan ? __builtin_nan("") : __builtin_inf();
  const double magnitude = __builtin_ldexp(static_cast<double>(t.significand), t.low);
  return t.negative ? -magnitude : magnitude;
}

/// The part of a number below 2^unit, which truncation drops.
double below(mma_term t, int unit) {
  if (t.kind != value_class::finite || t.low >= unit) return 0;
  if (unit - t.low < 64) t.significand &= (std::uint64_t{1} << (unit - t.low)) - 1;
  return term_value(t);
}

/// Counts the terms that truncation changes, and sums what they lose.
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

/// Text on a step's alignment and truncation losses, for models that align.
std::string alignment(const mma_model& m, const std::vector<mma_product>& p, const mma_term& c) {
  losses lost;
  std::vector<mma_term> terms;
  if (m.sum == mma_sum::scaled_groups) {
    for (std::size_t i = 0; i < p.size(); i += static_cast<std::size_t>(m.subgroup)) {
      const int size = std::min(m.subgroup, static_cast<int>(p.size() - i));
      terms.emplace_back();
      if (!subgroup_term(p.data() + i, size, terms.back())) terms.back().exponent = m.least_exponent;
    }
  } else {
    for (const mma_product& product : p) terms.push_back(scaled_term(product));
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

/// A sum as text. A NaN shows its bits, which come from the model.
std::string sum_text(float x, const mma_model& m) {
  return std::isnan(x) ? number(formats::fp32, m.keeps_nan ? fp32_bits(x) : m.nan_bits)
                       : format_text("%.9g", static_cast<double>(x));
}
std::string sum_text(double x) {
  return std::isnan(x) ? number(formats::fp64, bit_cast<std::uint64_t>(x)) : format_text("%.17g", x);
}

std::string accumulator_text(float before, float after, const mma_model& m) {
  return "; accumulator " + sum_text(before, m) + " -> " + sum_text(after, m);
}

/// Text of one step.
std::string step_line(const mma_model& m, const std::vector<mma_product>& p, const std::vector<index_t>& k,
                      float before, float after) {
  std::string products;
  int terms = 0;
  for (const mma_product& product : p) {
    const mma_term t = scaled_term(product);
    if (t.kind != value_class::zero && ++terms <= 4)
      products += (products.empty() ? "" : " ") + format_text("%.9g", term_value(t));
  }
  if (terms > 4) products += " ... (" + std::to_string(terms) + " not zero)";
  const format acc = m.result == mma_result::fp16_nearest ? formats::fp16 : formats::fp32;
  const mma_term c = to_term(unpack(formats::fp32, fp32_bits(before)), acc.min_exponent());
  return "k " + k_text(k) + ": products " + (products.empty() ? "all zero" : products) + alignment(m, p, c) +
         accumulator_text(before, after, m);
}

std::string heading(const gemm_case& x, const difference& d) {
  const output_index at = index_of(x, d.element);
  return "batch " + std::to_string(at.batch) + " row " + std::to_string(at.row) + " column " +
         std::to_string(at.column) + ": model " + number(x.output, d.want) + ", kernel " + number(x.output, d.got);
}

std::string c_line(const output_tensor& c, index_t e, const gemm_options& o) {
  return "c = " + number(c.element(), c.code(e)) +
         (o.start_from_c ? ", where the accumulator starts" : ", added at the end");
}

std::string positions(index_t begin, index_t end) { return std::to_string(begin) + ".." + std::to_string(end - 1); }

/// Collects lines up to a limit.
class line_list {
 public:
  bool is_full() const { return lines_.size() >= max_lines; }
  void add(const std::string& line) {
    if (!is_full()) lines_.push_back(line);
  }
  std::vector<std::string> with_result(const std::string& line) && {
    if (is_full()) lines_.push_back("...");
    lines_.push_back(line);
    return std::move(lines_);
  }

 private:
  std::vector<std::string> lines_;
};

/// accumulator_ref that writes a line of text for each event.
class tracer : public accumulator_ref {
 public:
  tracer(line_list& lines, const gemm_operand& a, index_t i, const gemm_operand& b, index_t j, const gemm_options& o,
         float c)
      : accumulator_ref(a, i, b, j, o, c), lines_(lines), o_(o) {}

  void begin_part(index_t first, index_t last) {
    if (o_.split_k != 1) lines_.add("part of K, " + positions(first, last) + ":");
    accumulator_ref::begin_part(first, last);
  }
  void step(const k_step& k) {
    const float before = accumulator();
    accumulator_ref::step(k);
    if (lines_.is_full()) return;
    std::vector<mma_product> products;
    std::vector<index_t> ks;
    for (index_t n = 0; n < k.size(); ++n) {
      ks.push_back(k[n]);
      products.push_back(product(k[n]));
    }
    lines_.add(step_line(o_.model, products, ks, before, accumulator()));
  }
  void end_instruction() {
    const float own = accumulator(), before = before_instruction();
    accumulator_ref::end_instruction();
    if (o_.model.c_last) {
      lines_.add("their sum " + sum_text(own, o_.model) + " is added" +
                 accumulator_text(before, accumulator(), o_.model));
    }
  }
  void end_chain() {
    accumulator_ref::end_chain();
    if (o_.promotion != 0) {
      lines_.add("promoted: FP32 sum " + sum_text(part(), o_.model) + ", accumulator emptied");
    }
  }
  void add_parts() {
    const float x = top(1), y = top();
    accumulator_ref::add_parts();
    lines_.add("parts added: " + sum_text(x, o_.model) + " + " + sum_text(y, o_.model) + " = " +
               sum_text(top(), o_.model));
  }

 private:
  line_list& lines_;
  const gemm_options& o_;
};

/// fp64_accumulator_ref that writes a line for each fused multiply-add.
class fp64_tracer : public fp64_accumulator_ref {
 public:
  fp64_tracer(line_list& lines, const gemm_operand& a, index_t i, const gemm_operand& b, index_t j, double c)
      : fp64_accumulator_ref(a, i, b, j, c), lines_(lines), a_(a), b_(b), i_(i), j_(j) {}

  void step(const k_step& k) {
    fp64_accumulator_ref::step(k);
    if (lines_.is_full()) return;
    lines_.add("k " + std::to_string(k[0]) + ": " + sum_text(bit_cast<double>(operand_code(a_, i_, k[0]))) + " * " +
               sum_text(bit_cast<double>(operand_code(b_, j_, k[0]))) + "; accumulator " + sum_text(accumulator()));
  }

 private:
  line_list& lines_;
  const gemm_operand &a_, &b_;
  index_t i_, j_;
};

}  // namespace

std::vector<std::string> trace(const gemm_case& x, const gemm_options& o, const difference& d) {
  const output_index at = index_of(x, d.element);
  const gemm_operand a = batch_operand(x.a, x.k, at.batch), b = batch_operand(x.b, x.k, at.batch);
  line_list lines;
  lines.add(heading(x, d));
  if (x.c) lines.add(c_line(*x.c, d.element, o));
  if (x.is_fp64()) {
    fp64_tracer acc(lines, a, at.row, b, at.column, x.c_at(d.element));
    walk_k(x.k, o, acc);
    return std::move(lines).with_result((o.split_k == 1 ? "result " : std::to_string(o.split_k) + " parts, together ") +
                                        number(formats::fp64, bit_cast<std::uint64_t>(acc.top())) +
                                        " before it is scaled");
  }
  tracer acc(lines, a, at.row, b, at.column, o, x.fp32_c_at(d.element));
  walk_k(x.k, o, acc);
  return std::move(lines).with_result(
      "result " +
      number(formats::fp32, std::isnan(acc.top()) && !o.model.keeps_nan ? o.model.nan_bits : fp32_bits(acc.top())) +
      " before it is scaled and rounded");
}

}  // namespace rotoscale::validate
