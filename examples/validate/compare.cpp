// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "compare.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>

#include "examples/threads.hpp"
#include "rotoscale/gemm.hpp"

namespace rotoscale::validate {

namespace {

/// Statistics of the differences of some elements.
class difference_tally {
 public:
  void add(const difference& d) {
    if (count_ == 0) first_ = d;
    ++count_;
    ++bins_[bin_of(d.ulps)];
    const auto at = std::upper_bound(worst_.begin(), worst_.end(), d, is_worse);
    if (worst_.size() == kept && at == worst_.end()) return;
    worst_.insert(at, d);
    if (worst_.size() > kept) worst_.pop_back();
  }

  /// Adds the differences of later elements.
  void add(const difference_tally& later) {
    if (later.count_ == 0) return;
    if (count_ == 0) first_ = later.first_;
    count_ += later.count_;
    for (std::size_t b = 0; b < bins_.size(); ++b) bins_[b] += later.bins_[b];
    std::vector<difference> all;
    std::merge(worst_.begin(), worst_.end(), later.worst_.begin(), later.worst_.end(), std::back_inserter(all),
               is_worse);
    all.resize(std::min(all.size(), kept));
    worst_ = std::move(all);
  }

  void move_to(comparison& result) {
    result.different = count_;
    if (count_ != 0) result.first = first_;
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      if (bins_[b] != 0) result.histogram.emplace_back(name_of(b), bins_[b]);
    }
    result.worst = std::move(worst_);
  }

  /// Adds the error of a finite pair.
  void add_error(double want, double got) {
    if (!std::isfinite(want) || !std::isfinite(got)) return;
    squares += (got - want) * (got - want);
    if (want != 0) relative = std::max(relative, std::abs((got - want) / want));
  }
  double squares = 0, relative = 0;

 private:
  static constexpr std::size_t kept = 10, not_finite = 65;

  /// NaN and Inf have distance -1 and are the worst: as unsigned numbers they are the largest.
  static bool is_worse(const difference& p, const difference& q) {
    return static_cast<std::uint64_t>(p.ulps) > static_cast<std::uint64_t>(q.ulps);
  }
  /// 0, 1, 2, 3-4, 5-8, ...
  static std::size_t bin_of(std::int64_t ulps) {
    if (ulps < 0) return not_finite;
    return ulps == 0 ? 0 : static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(ulps - 1))) + 1;
  }
  static std::string name_of(std::size_t bin) {
    if (bin == not_finite) return "Inf or NaN";
    if (bin <= 2) return std::to_string(bin);
    const std::uint64_t half = std::uint64_t{1} << (bin - 2);
    return std::to_string(half + 1) + "-" + std::to_string(2 * half);
  }

  index_t count_ = 0;
  std::array<index_t, not_finite + 1> bins_{};
  std::vector<difference> worst_;
  difference first_{};
};

}  // namespace

output_index index_of(const gemm_case& x, index_t element) {
  return {element / (x.m * x.n), element / x.n % x.m, element % x.n};
}

std::string number(const format& f, std::uint64_t code) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*g (0x%0*llx)", f == formats::fp64 ? 17 : 9, value_of(f, code),
                (f.bits() + 3) / 4, static_cast<unsigned long long>(code));
  return text;
}

std::uint64_t model_code(const gemm_case& x, const kernel_use& u, index_t e) {
  const gemm_options& o = u.gemm;
  const output_index at = index_of(x, e);
  const gemm_operand a = batch_operand(x.a, x.k, at.batch), b = batch_operand(x.b, x.k, at.batch);
  if (!x.is_fp64()) {
    const float start = x.fp32_c_at(e);
    const float acc = accumulate_ref(a, at.row, b, at.column, o, start);
    return finisher(x, u)(acc, start, at.column);
  }
  const double c = x.c_at(e), acc = accumulate_fp64_ref(a, at.row, b, at.column, o, c);
  if (o.alpha == 1.0f && !o.accumulate) return bit_cast<std::uint64_t>(acc);
  const double alpha = static_cast<double>(o.alpha), beta = static_cast<double>(o.beta);
  return bit_cast<std::uint64_t>(o.accumulate ? __builtin_fma(acc, alpha, beta * c) : acc * alpha);
}

namespace {

/// Calls use(e, code) with the model's code of every element of D under `u`, in parallel, one row per thread. Codes
/// come from gemm(), and from model_code for F64.
template <class Use>
void for_each_model_code(const gemm_case& x, const kernel_use& u, thread_pool& pool, const Use& use) {
  if (x.is_fp64()) {
    output_tensor codes(x.output, x.outputs());
    for_each_or_throw(pool, x.outputs(), [&](index_t e) { codes.set(e, model_code(x, u, e)); });
    for (index_t e = 0; e < x.outputs(); ++e) use(e, codes.code(e));
    return;
  }
  // Compute only the sums; one function applies all kinds of epilogues.
  gemm_options sums = u.gemm;
  sums.output = formats::fp32;
  sums.accumulate = false;
  sums.alpha = 1.0f;
  sums.bias = nullptr;
  const finisher finish(x, u);
  std::vector<float> c(static_cast<std::size_t>(x.m * x.n));
  const auto for_each_of_batch = [&](index_t first, const auto& of) {
    for_each_or_throw(pool, x.m, [&](index_t row) {
      for (index_t i = row * x.n; i < (row + 1) * x.n; ++i) of(first + i, c[static_cast<std::size_t>(i)], i % x.n);
    });
  };
  for (index_t i = 0; i < x.batch; ++i) {
    const index_t first = i * x.m * x.n;
    if (sums.start_from_c) {
      for_each_of_batch(first, [&](index_t e, float& start, index_t) { start = x.fp32_c_at(e); });
    }
    gemm(batch_operand(x.a, x.k, i), batch_operand(x.b, x.k, i), sums, row_major(c.data(), x.m, x.n), pool);
    for_each_of_batch(first, [&](index_t e, float sum, index_t column) {
      use(e, finish(sum, u.gemm.accumulate ? x.fp32_c_at(e) : 0.0f, column));
    });
  }
}

}  // namespace

output_tensor model_outputs(const gemm_case& x, const kernel_use& u, thread_pool& pool) {
  output_tensor all(x.output, x.outputs());
  for_each_model_code(x, u, pool, [&](index_t e, std::uint64_t code) { all.set(e, code); });
  return all;
}

bool same_result(const format& f, std::uint64_t want, std::uint64_t got, bool any_nan) {
  return want == got || (any_nan && f.is_nan(want) && f.is_nan(got));
}

comparison compare(const gemm_case& x, const kernel_use& u, bool any_nan, thread_pool& pool) {
  comparison result;
  result.elements = x.outputs();
  std::vector<std::unique_ptr<difference_tally>> of_rows(
      static_cast<std::size_t>(x.batch * x.m));  // few differ, as a rule
  for_each_model_code(x, u, pool, [&](index_t e, std::uint64_t want) {
    const std::uint64_t got = u.written(x, e);
    if (same_result(x.output, want, got, any_nan)) return;
    std::unique_ptr<difference_tally>& row = of_rows[static_cast<std::size_t>(e / x.n)];
    if (row == nullptr) row = std::make_unique<difference_tally>();
    row->add({e, want, got, code_distance(x.output, want, got)});
    row->add_error(value_of(x.output, want), value_of(x.output, got));
  });
  double squares = 0;
  difference_tally all;
  for (const std::unique_ptr<difference_tally>& row : of_rows) {
    if (row == nullptr) continue;
    all.add(*row);
    squares += row->squares;
    result.relative = std::max(result.relative, row->relative);
  }
  result.rms = std::sqrt(squares / static_cast<double>(x.outputs()));
  all.move_to(result);
  return result;
}

}  // namespace rotoscale::validate
