// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "compare.hpp"

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

/// One step in words. Alignment is shown for the models that align.
std::string step_line(const mma_model& m, const std::vector<mma_product>& p, index_t first, const unpacked& before,
                      const unpacked& after) {
  std::string products;
  int exponent = m.least_exponent, cut = 0, terms = 0;
  const mma_term c = detail::term_of(before, formats::fp32.min_exponent());
  if (c.kind == value_class::finite) exponent = std::max(exponent, c.exponent);
  for (const mma_product& product : p) {
    const mma_term t = detail::scaled(product);
    if (t.kind == value_class::finite) exponent = std::max(exponent, t.exponent);
    if (t.kind != value_class::zero && ++terms <= 4)
      products += (products.empty() ? "" : " ") + format_text("%.9g", value_of(t));
  }
  if (terms > 4) products += " ... (" + std::to_string(terms) + " not zero)";
  std::string line = "k " + std::to_string(first) + ".." + std::to_string(first + static_cast<index_t>(p.size()) - 1) +
                     ": products " + (products.empty() ? "all zero" : products);
  if (m.sum == mma_sum::aligned) {
    const int unit = exponent - m.fraction_bits;
    const auto loses = [&](const mma_term& t) { return t.kind == value_class::finite && t.low < unit; };
    for (const mma_product& product : p) cut += loses(detail::scaled(product));
    line += format_text("; aligned to 2^%d, unit 2^%d, %d of %d products cut%s", exponent, unit, cut,
                        static_cast<int>(p.size()), loses(c) ? ", c cut" : "");
  }
  return line + format_text("; accumulator %.9g -> %.9g", static_cast<double>(fp32_value(before)),
                            static_cast<double>(fp32_value(after)));
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
        std::vector<mma_product> p;
        for (index_t k = first; k < last; ++k)
          p.push_back(detail::product_ref(m, a, at.row, b, at.column, detail::k_at(x.k, o, k)));
        const unpacked before = acc;
        acc = detail::chain_ref(o, a, at.row, b, at.column, first, last, acc);
        add(step_line(m, p, detail::k_at(x.k, o, first), before, acc));
      }
      promoted = interval_begin == begin ? fp32_value(acc) : promoted + fp32_value(acc);
      if (o.promotion == 0) continue;
      add(format_text("promoted: FP32 sum %.9g, accumulator emptied", static_cast<double>(promoted)));
      acc = {};
    }
    return o.split_k == 1 ? promoted : round_source(o.split_sum, promoted);
  };
  const auto join = [&](float p, float q) {
    const float sum = round_source(o.split_sum, p + q);
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
