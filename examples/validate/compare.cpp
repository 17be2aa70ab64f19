// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "compare.hpp"

#include <algorithm>
#include <cstdio>

#include "rotoscale/gemm.hpp"

namespace rotoscale::validate {

namespace {

/// Bins of distances: 0 (zeros of two signs), 1, 2, 3-4, 5-8, ...
std::string bin(std::int64_t ulps) {
  if (ulps < 0) return "Inf or NaN";
  if (ulps <= 2) return std::to_string(ulps);
  std::int64_t top = 4;
  while (top < ulps) top *= 2;
  return std::to_string(top / 2 + 1) + "-" + std::to_string(top);
}

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
  const double c = x.c ? (*x.c)[static_cast<std::size_t>(e)] : 0.0;
  if (!x.is_fp64()) {
    const auto start = static_cast<float>(c);
    const float acc = accumulate_ref(a, at.row, b, at.column, o, start);
    return finisher(x, u)(acc, start, at.column);
  }
  const double acc = accumulate_fp64_ref(a, at.row, b, at.column, o, c);
  if (o.alpha == 1.0f && !o.accumulate) return bit_cast<std::uint64_t>(acc);
  const double alpha = static_cast<double>(o.alpha), beta = static_cast<double>(o.beta);
  return bit_cast<std::uint64_t>(o.accumulate ? __builtin_fma(acc, alpha, beta * c) : acc * alpha);
}

std::vector<std::uint64_t> model_codes(const gemm_case& x, const kernel_use& u, thread_pool& pool) {
  std::vector<std::uint64_t> codes(static_cast<std::size_t>(x.batch * x.m * x.n));
  if (x.is_fp64()) {
    pool.for_each(x.batch * x.m * x.n, [&](index_t e) { codes[static_cast<std::size_t>(e)] = model_code(x, u, e); });
    return codes;
  }
  // The sums alone: one function finishes them, whatever stands between them and d.
  gemm_options sums = u.gemm;
  sums.output = formats::fp32;
  sums.accumulate = false;
  sums.alpha = 1.0f;
  sums.bias = nullptr;
  const finisher finish(x, u);
  std::vector<float> c(static_cast<std::size_t>(x.m * x.n));
  for (index_t i = 0; i < x.batch; ++i) {
    const std::size_t base = static_cast<std::size_t>(i) * c.size();
    for (std::size_t e = 0; e < c.size(); ++e) c[e] = x.c ? static_cast<float>((*x.c)[base + e]) : 0.0f;
    gemm(batch_operand(x.a, x.k, i), batch_operand(x.b, x.k, i), sums, row_major(c.data(), x.m, x.n), pool);
    pool.for_each(x.m, [&](index_t row) {
      for (index_t column = 0; column < x.n; ++column) {
        const auto e = static_cast<std::size_t>(row * x.n + column);
        const float start = x.c ? static_cast<float>((*x.c)[base + e]) : 0.0f;
        codes[base + e] = finish(c[e], start, column);
      }
    });
  }
  return codes;
}

bool same_result(const format& f, std::uint64_t want, std::uint64_t got, bool any_nan) {
  return want == got || (any_nan && f.is_nan(want) && f.is_nan(got));
}

comparison compare(const gemm_case& x, const kernel_use& u, bool any_nan, thread_pool& pool) {
  comparison result;
  result.elements = x.batch * x.m * x.n;
  const std::vector<std::uint64_t> wanted = model_codes(x, u, pool);
  std::vector<difference> all;
  for (index_t e = 0; e < result.elements; ++e) {
    const std::uint64_t want = wanted[static_cast<std::size_t>(e)], got = x.d[static_cast<std::size_t>(e)];
    if (!same_result(x.output, want, got, any_nan)) all.push_back({e, want, got, code_distance(x.output, want, got)});
  }
  result.different = static_cast<index_t>(all.size());
  if (!all.empty()) result.first = all.front();
  // NaN and Inf, of distance -1, are the worst: compared as unsigned numbers they are the largest.
  std::stable_sort(all.begin(), all.end(), [](const difference& p, const difference& q) {
    return static_cast<std::uint64_t>(p.ulps) > static_cast<std::uint64_t>(q.ulps);
  });
  for (auto d = all.rbegin(); d != all.rend(); ++d) {
    const std::string name = bin(d->ulps);
    if (result.histogram[name]++ == 0) result.histogram_order.push_back(name);
  }
  all.resize(std::min<std::size_t>(all.size(), 10));
  result.worst = std::move(all);
  return result;
}

}  // namespace rotoscale::validate
