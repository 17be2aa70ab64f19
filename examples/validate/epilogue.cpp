// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "epilogue.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "compare.hpp"
#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/names.hpp"

namespace rotoscale::validate {

namespace {

/// Interval of an unknown factor that is consistent with all elements.
struct interval {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  double middle() const { return (low + high) / 2; }
};

/// d = known + unknown * of, up to the rounding of d.
struct equation {
  double d, known, of;
};

/// Interval of the unknown that d's rounding leaves open, from the equations in which it has the largest weight.
/// Outliers from the median (overflow, cancellation) are left out.
interval solve(std::vector<equation> all, int precision, bool truncated) {
  std::erase_if(all, [](const equation& e) {
    return !std::isfinite(e.d) || !std::isfinite(e.known) || !std::isfinite(e.of) || e.of == 0 || e.d == 0;
  });
  if (all.empty()) return {1, 1};
  // Weights are whole powers of two. With finer weights, elements whose d was rounded down would come first.
  const auto weight = [](const equation& e) { return std::ilogb(e.of) - std::ilogb(e.d); };
  std::vector<int> weights;
  for (const equation& e : all) weights.push_back(weight(e));
  const auto quarter = weights.end() - 1 - static_cast<std::ptrdiff_t>(weights.size() / 4);
  std::nth_element(weights.begin(), quarter, weights.end());
  std::erase_if(all, [&, least = *quarter - 1](const equation& e) { return weight(e) < least; });
  const auto value = [](const equation& e) { return (e.d - e.known) / e.of; };
  std::vector<double> values;
  for (const equation& e : all) values.push_back(value(e));
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  interval found;
  for (const equation& e : all) {
    const double unit = std::copysign(std::ldexp(1.0, std::ilogb(e.d) + 1 - precision), e.d);
    const double twice = precision < 24 ? std::abs(e.d) * 0x1p-24 : 0;  // d was rounded to FP32 first
    const double below = (truncated ? 0 : unit / 2) + std::copysign(twice, unit),
                 above = (truncated ? unit : unit / 2) + std::copysign(twice, unit);
    const double a = (e.d - e.known - below) / e.of, b = (e.d - e.known + above) / e.of;
    if (std::abs(value(e) - *half) > 2 * std::abs(a - b)) continue;
    const double low = std::max(found.low, std::min(a, b)), high = std::min(found.high, std::max(a, b));
    if (low <= high) found = {low, high};
  }
  return found.low == -std::numeric_limits<double>::infinity() ? interval{*half, *half} : found;
}

/// Likely values within the interval: few digits, 1 / n, 1 / sqrt(n), and the middle.
std::vector<float> likely_numbers(const interval& i) {
  const double v = i.middle();
  std::vector<float> all;
  const auto add = [&](double x) {
    const auto f = static_cast<float>(x);
    if (std::isfinite(f) && std::find(all.begin(), all.end(), f) == all.end()) all.push_back(f);
  };
  if (!std::isfinite(v)) return all;
  const double slack = std::max((i.high - i.low) / 2, std::abs(v) * 0x1p-24);
  const auto is_near = [&](double x) { return std::abs(x - v) <= slack; };
  for (int digits = 1; digits <= 9 && all.empty() && v != 0; ++digits) {
    const double unit = std::pow(10.0, std::floor(std::log10(std::abs(v))) + 1 - digits);
    const double nearest = std::round(v / unit), inside = std::ceil((v - slack) / unit);
    if (is_near(nearest * unit))
      add(nearest * unit);
    else if (is_near(inside * unit))
      add(inside * unit);
  }
  if (v != 0 && is_near(1 / std::round(1 / v))) add(1 / std::round(1 / v));
  if (v != 0 && is_near(std::copysign(1 / std::sqrt(std::round(1 / (v * v))), v)))
    add(std::copysign(1 / std::sqrt(std::round(1 / (v * v))), v));
  add(v);
  return all;
}

/// Finds alpha and beta of d = alpha * sum + beta * c + bias.
class factor_finder {
 public:
  factor_finder(const gemm_case& x, const kernel_use& u, const sampled_sums& s) : u_(u) {
    constexpr std::size_t most = 4096;  // more elements do not narrow the intervals further
    for (std::size_t i = 0; i < std::min(most, s.elements.size()); ++i) {
      const index_t e = s.elements[i];
      const auto column = static_cast<std::size_t>(index_of(x, e).column);
      rows_.push_back({x.d.value(e), static_cast<double>(s.of(u)[i]), u.gemm.accumulate ? x.c_at(e) : 0.0,
                       u.gemm.bias != nullptr ? static_cast<double>(u.gemm.bias[column]) : 0.0});
    }
    truncated_ = u.gemm.output_rounding == rounding::toward_zero;
    precision_ = u.gemm.output == formats::fp32 ? 24 : u.gemm.output == formats::fp16 ? 11 : 8;
  }

  std::vector<std::pair<float, float>> pairs() const {
    std::vector<std::pair<float, float>> all{{u_.gemm.alpha, u_.gemm.beta}, {1.0f, 1.0f}};
    const auto with_alphas = [&](float beta) {
      for (const float alpha : likely_numbers(solve(equations(false, beta), precision_, truncated_)))
        all.push_back({alpha, beta});
    };
    const auto with_betas = [&](float alpha) {
      for (const float beta : likely_numbers(solve(equations(true, alpha), precision_, truncated_)))
        all.push_back({alpha, beta});
    };
    with_alphas(u_.gemm.beta);
    if (!u_.gemm.accumulate) return all;
    with_betas(u_.gemm.alpha);
    const auto [alpha, beta] = least_squares();
    for (const float a : likely_numbers(around(alpha))) with_betas(a);
    for (const float b : likely_numbers(around(beta))) with_alphas(b);
    return all;
  }

 private:
  struct row {
    double d, sum, c, bias;
  };
  std::vector<equation> equations(bool beta_is_unknown, float known) const {
    std::vector<equation> all;
    for (const row& r : rows_) {
      const double by = static_cast<double>(known);
      all.push_back(beta_is_unknown ? equation{r.d, r.bias + by * r.sum, r.c}
                                    : equation{r.d, r.bias + by * r.c, r.sum});
    }
    return all;
  }
  interval around(double x) const {
    const double slack = std::abs(x) * std::ldexp(1.0, -precision_);
    return {x - slack, x + slack};
  }
  std::pair<double, double> least_squares() const {
    double ss = 0, sc = 0, cc = 0, sd = 0, cd = 0;
    for (const row& r : rows_) {
      if (!std::isfinite(r.d) || !std::isfinite(r.sum) || !std::isfinite(r.c) || !std::isfinite(r.bias)) continue;
      const double size = std::abs(r.sum) + std::abs(r.c) + std::abs(r.bias) + std::abs(r.d);
      if (size == 0) continue;
      const double s = r.sum / size, c = r.c / size, d = (r.d - r.bias) / size;
      ss += s * s, sc += s * c, cc += c * c, sd += s * d, cd += c * d;
    }
    const double determinant = ss * cc - sc * sc;
    if (determinant == 0) return {1, 1};
    return {(sd * cc - cd * sc) / determinant, (cd * ss - sd * sc) / determinant};
  }

  kernel_use u_;
  std::vector<row> rows_;
  int precision_;
  bool truncated_;
};

/// Formats that contain all of d's numbers, d's own format first.
std::vector<format> possible_outputs(const gemm_case& x) {
  std::vector<format> all{x.output};
  if (x.output != formats::fp32) return all;
  for (const format f : {formats::bf16, formats::fp16}) {
    const auto holds = [&](std::uint64_t code) {
      const float v = fp32_from_bits(static_cast<std::uint32_t>(code));
      return formats::fp32.is_nan(code) || fp32_bits(round_to_format(f, v)) == code;
    };
    index_t e = 0;
    while (e < x.d.size() && holds(x.d.code(e))) ++e;
    if (e == x.d.size()) all.push_back(f);
  }
  return all;
}

/// Rounding to nearest and truncation; FP32 results need no second rounding.
std::vector<rounding> possible_roundings(const kernel_use& u) {
  std::vector<rounding> all{u.gemm.output_rounding};
  if (u.gemm.output == formats::fp32) return all;
  for (const rounding r : {rounding::nearest_even, rounding::toward_zero}) {
    if (r != u.gemm.output_rounding) all.push_back(r);
  }
  return all;
}

/// Adds the use with the factors that the elements suggest.
void add_with_factors(const gemm_case& x, kernel_use u, const sampled_sums& sums, std::vector<kernel_use>& all) {
  const bool adds = u.gemm.accumulate || u.gemm.bias != nullptr, first = u.adds_after_rounding;
  for (const auto& [alpha, beta] : factor_finder(x, u, sums).pairs()) {
    u.gemm.alpha = alpha;
    u.gemm.beta = beta;
    for (const bool rounds_first : {first, !first}) {
      u.adds_after_rounding = rounds_first && adds;
      if (std::find(all.begin(), all.end(), u) == all.end()) all.push_back(u);
    }
  }
}

/// A number with enough digits to read it back exactly.
std::string number_text(float x) {
  char text[48];
  for (int digits = 1; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, static_cast<double>(x));
    if (std::strtof(text, nullptr) == x) break;
  }
  return text;
}

std::vector<std::string> option_list(const kernel_use& given, const kernel_use& u) {
  const gemm_options &a = given.gemm, &b = u.gemm;
  std::vector<std::string> all;
  if (b.accumulate && !a.accumulate) all.emplace_back("--epilogue-c");
  if (!b.accumulate && !b.start_from_c && (a.accumulate || a.start_from_c)) all.emplace_back("--ignore c");
  if (b.bias == nullptr && a.bias != nullptr) all.emplace_back("--ignore bias");
  if (fp32_bits(a.alpha) != fp32_bits(b.alpha)) all.push_back("--alpha " + number_text(b.alpha));
  if (fp32_bits(a.beta) != fp32_bits(b.beta)) all.push_back("--beta " + number_text(b.beta));
  if (!(a.output == b.output)) all.push_back("--output " + std::string(to_string(b.output)));
  if (a.output_rounding != b.output_rounding)
    all.push_back("--output-rounding " + std::string(to_string(b.output_rounding)));
  if (u.adds_after_rounding && !given.adds_after_rounding) all.emplace_back("--add-after-rounding");
  if (a.split_k != b.split_k) all.push_back("--split-k " + std::to_string(b.split_k));
  if (!(a.split_sum == b.split_sum)) all.push_back("--split-sum " + std::string(to_string(b.split_sum)));
  if (u.transposed_d && !given.transposed_d) all.emplace_back("--transposed-d");
  return all;
}

}  // namespace

bool kernel_use::operator==(const kernel_use& o) const {
  const gemm_options &a = gemm, &b = o.gemm;
  return adds_after_rounding == o.adds_after_rounding && transposed_d == o.transposed_d && a.split_k == b.split_k &&
         a.split_sum == b.split_sum && a.output == b.output && a.accumulate == b.accumulate &&
         a.start_from_c == b.start_from_c && a.bias == b.bias && fp32_bits(a.alpha) == fp32_bits(b.alpha) &&
         (fp32_bits(a.beta) == fp32_bits(b.beta) || !a.accumulate) && a.output_rounding == b.output_rounding;
}

finisher::finisher(const gemm_case& x, const kernel_use& u)
    : product_(u.gemm), all_(u.gemm), stored_(u.gemm), has_two_steps_(u.adds_after_rounding) {
  product_.accumulate = false;
  product_.bias = nullptr;
  stored_.output = x.output;
  if (has_two_steps_) all_.alpha = 1.0f;
}

std::uint64_t finisher::operator()(float sum, float c, index_t column) const {
  if (has_two_steps_) sum = finish_output(sum, product_.alpha, product_, 0.0f, column);
  return output_code(finish_output(sum, all_.alpha, all_, c, column), stored_);
}

std::vector<kernel_use> possible_epilogues(const gemm_case& x, const kernel_use& given, const sampled_sums& sums) {
  std::vector<kernel_use> all{given};
  std::vector<kernel_use> adding{given};
  if (x.c) {
    kernel_use at_end = given, without = given;
    at_end.gemm.accumulate = true;
    at_end.gemm.start_from_c = without.gemm.accumulate = without.gemm.start_from_c = false;
    adding.push_back(at_end);
    adding.push_back(without);
  }
  for (const kernel_use& with_c : adding) {
    for (const bool bias : {true, false}) {
      if (bias && !x.bias) continue;
      for (const format output : possible_outputs(x)) {
        kernel_use u = with_c;
        u.gemm.bias = bias ? x.bias->data() : nullptr;
        u.gemm.output = output;
        for (const rounding r : possible_roundings(u)) {
          u.gemm.output_rounding = r;
          add_with_factors(x, u, sums, all);
        }
      }
    }
  }
  return all;
}

std::string options_of(const kernel_use& given, const kernel_use& u) {
  std::string text;
  for (const std::string& option : option_list(given, u)) text += (text.empty() ? "" : " ") + option;
  return text;
}

int changes(const kernel_use& given, const kernel_use& u) { return static_cast<int>(option_list(given, u).size()); }

}  // namespace rotoscale::validate
