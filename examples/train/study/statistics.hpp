// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Statistics of a study, as plain functions: Student's t, intervals, bootstrap, sample size, interpolation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rotoscale/philox.hpp"

namespace rotoscale::study_statistics {

struct interval {
  double low = 0;
  double high = 0;
};

/// Arithmetic mean; `values` is not empty.
inline double mean(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

/// Standard deviation of a sample (divisor n - 1); n >= 2.
inline double deviation(std::span<const double> values) {
  const double center = mean(values);
  double squares = 0;
  for (const double x : values) squares += (x - center) * (x - center);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

/// P(|T| < t) of Student's distribution, freedom >= 1. Abramowitz and Stegun, 26.7.3 and 26.7.4.
inline double student_probability(double t, int freedom) {
  const bool is_odd = freedom % 2 == 1;
  const double angle = std::atan(t / std::sqrt(static_cast<double>(freedom)));
  const double cosine = std::cos(angle), odd = is_odd ? 1.0 : 0.0;
  double term = is_odd ? cosine : 1.0, sum = freedom == 1 ? 0.0 : term;
  for (int k = 2; k + static_cast<int>(odd) < freedom; k += 2) {
    term *= cosine * cosine * (static_cast<double>(k) - 1 + odd) / (static_cast<double>(k) + odd);
    sum += term;
  }
  return is_odd ? 2 / std::numbers::pi * (angle + std::sin(angle) * sum) : std::sin(angle) * sum;
}

/// t with P(|T| < t) = level, 0 < level < 1.
inline double student_quantile(double level, int freedom) {
  double low = 0, high = 1;
  while (student_probability(high, freedom) < level) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (student_probability(middle, freedom) < level ? low : high) = middle;
  }
  return high;
}

/// Interval of the mean by Student's t; n >= 2.
inline interval student_interval(std::span<const double> values, double level = 0.95) {
  const double n = static_cast<double>(values.size()), center = mean(values);
  const double half = student_quantile(level, static_cast<int>(values.size()) - 1) * deviation(values) / std::sqrt(n);
  return {center - half, center + half};
}

/// Percentile bootstrap of the mean (Efron 1979): quantiles of the means of 10 000 resamples. The random stream is
/// fixed, so that equal values give equal bytes.
inline interval bootstrap_interval(std::span<const double> values, double level = 0.95) {
  constexpr std::size_t resamples = 10000;
  constexpr random_stream random{0x5374756479, 0};
  std::vector<double> means(resamples);
  std::uint64_t word = 0;
  philox_block block{};
  for (double& m : means) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i, ++word) {
      if (word % 4 == 0) block = random.block(word / 4);
      sum += values[static_cast<std::size_t>(std::uint64_t{block.word[word % 4]} * values.size() >> 32)];
    }
    m = sum / static_cast<double>(values.size());
  }
  std::sort(means.begin(), means.end());
  const auto at = [&](double share) {
    return means[std::min(resamples - 1, static_cast<std::size_t>(share * static_cast<double>(resamples)))];
  };
  return {at((1 - level) / 2), at((1 + level) / 2)};
}

/// Least number of pairs, at least 3, whose two-sided test at 5 % finds a mean difference with a power of 80 %.
/// `n >= ((t(0.975, n - 1) + t(0.80, n - 1)) * deviation / difference)^2`. Above 1000 pairs normal quantiles and 2
/// pairs more replace t's.
inline double pairs_needed(double deviation, double difference) {
  constexpr double normal = 1.959964 + 0.841621;  // of 0.975 and of 0.80
  const double ratio = deviation / difference, least = normal * normal * ratio * ratio;
  if (!(least <= 1000)) return std::ceil(least) + 2;
  for (int n = std::max(3, static_cast<int>(least));; ++n) {
    const double t = student_quantile(0.95, n - 1) + student_quantile(0.60, n - 1);  // one-sided 0.975 and 0.80
    if (t * t * ratio * ratio <= static_cast<double>(n)) return n;
  }
}

struct curve_point {
  double tokens = 0;
  double loss = 0;
};

/// Tokens after which a curve first reaches `target`, by linear interpolation between two evaluations; nothing if it
/// never does.
inline std::optional<double> tokens_to(std::span<const curve_point> curve, double target) {
  for (std::size_t i = 0; i < curve.size(); ++i) {
    if (!(curve[i].loss <= target)) continue;
    if (i == 0) return curve[0].tokens;
    const curve_point &a = curve[i - 1], &b = curve[i];
    return a.tokens + (b.tokens - a.tokens) * (a.loss - target) / (a.loss - b.loss);
  }
  return std::nullopt;
}

}  // namespace rotoscale::study_statistics
