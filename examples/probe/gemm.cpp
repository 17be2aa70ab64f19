// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/probe/gemm.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <ostream>

#include "rotoscale/names.hpp"

namespace rotoscale::probe {

namespace {

constexpr std::int64_t sample_rows = 64, search_rows = 4;

std::size_t row_bytes(const probed_gemm& p) {
  return static_cast<std::size_t>(p.k * element_bytes(stored_format(p.a)));
}

/// Results of gemm(), one code per element.
std::vector<std::uint64_t> results_of(const probed_gemm& p, const gemm_options& o, const std::vector<std::uint8_t>& a,
                                      const std::vector<std::uint8_t>& b, thread_pool& pool) {
  std::vector<float> c(static_cast<std::size_t>(p.m * p.n));
  gemm(make_operand(p.a, a, p.m, p.k), make_operand(p.b, b, p.n, p.k), o, row_major(c.data(), p.m, p.n), pool);
  std::vector<std::uint64_t> codes;
  for (const float x : c) codes.push_back(output_code(x, o));
  return codes;
}

/// The same for FP64, which gemm() does not support.
std::vector<std::uint64_t> fp64_results(const probed_gemm& p, const gemm_options& o, thread_pool& pool) {
  const gemm_operand a = make_operand(p.a, p.codes_a, p.m, p.k), b = make_operand(p.b, p.codes_b, p.n, p.k);
  std::vector<std::uint64_t> codes(static_cast<std::size_t>(p.m * p.n));
  pool.for_each(p.m * p.n, [&](index_t e) {
    const double d = accumulate_fp64_ref(a, e / p.n, b, e % p.n, o, 0.0);
    codes[static_cast<std::size_t>(e)] = bit_cast<std::uint64_t>(d);
  });
  return codes;
}

/// FP32 words rounded to TF32.
std::vector<std::uint8_t> rounded_to_tf32(std::vector<std::uint8_t> codes, rounding r) {
  for (std::size_t i = 0; i < codes.size(); i += 4) {
    store_little_endian(codes, i, convert(formats::fp32, load_little_endian(codes, i, 4), formats::tf32, r) << 13, 4);
  }
  return codes;
}

/// Row-major codes of rows × k normal numbers, with an occasional large one.
std::vector<std::uint8_t> make_matrix(const format& element, std::int64_t rows, std::int64_t k, std::uint64_t seed,
                                      std::uint64_t stream, thread_pool& pool) {
  const format f = stored_format(element);
  const int bytes = element_bytes(f);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * k * bytes));
  pool.for_each(rows, [&](index_t r) {
    case_source source(seed, stream + static_cast<std::uint64_t>(r));
    for (std::int64_t i = 0; i < k; ++i) {
      store_little_endian(codes, static_cast<std::size_t>((r * k + i) * bytes), source.code(f, case_kind::outliers),
                          bytes);
    }
  });
  return codes;
}

probed_gemm make_problem(std::int64_t m, std::int64_t n, std::int64_t k, const format& a, const format& b,
                         const format& d, std::uint64_t seed, thread_pool& pool) {
  probed_gemm p{m, n, k, a, b, d, {}, {}, {}};
  p.codes_a = make_matrix(a, m, k, seed, 0, pool);
  p.codes_b = make_matrix(b, n, k, seed, 1u << 20, pool);
  p.codes_d.resize(static_cast<std::size_t>(m * n * element_bytes(d)));
  return p;
}

std::string extents(const probed_gemm& p) {
  return std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
}

/// Adds `chain` on 2 to 64 equal parts, each a multiple of `grain`.
void add_parts(std::int64_t k, std::int64_t grain, const k_order& chain, std::vector<k_order>& orders) {
  std::int64_t last = k;
  const bool fp16 = chain.options.model.result == mma_result::fp16_nearest;
  for (std::int64_t parts = 2; parts <= 64; ++parts) {
    k_order o = chain;
    o.options.split_k = parts;
    o.options.split_grain = grain;
    const std::int64_t part = part_length(k, o.options);
    if (part == last || chain.options.promotion > part || chain.options.model.group > part) continue;
    last = part;
    for (const auto how : {split_order::ascending, split_order::descending, split_order::pairwise}) {
      if (2 * part >= k && how != split_order::ascending) break;  // two parts
      o.options.order = how;
      orders.push_back(o);
      if (!fp16) continue;
      orders.push_back(o);
      orders.back().options.split_sum = formats::fp16;
    }
  }
}

/// Adds `chain` on interleaved slices of K.
void add_slices(std::int64_t k, const k_order& chain, std::vector<k_order>& orders) {
  for (const index_t slices : {2, 4, 8}) {
    for (const index_t run : {16, 32, 64, 128}) {
      if (run % chain.unit->instruction_k != 0 || k % (slices * run) != 0) continue;
      k_order o = chain;
      o.options.split_k = slices;
      o.options.split_run = run;
      orders.push_back(o);
      if (chain.options.model.result == mma_result::fp16_nearest) {
        o.options.split_sum = formats::fp16;
        orders.push_back(o);
      }
    }
  }
}

/// A chain with promotion, on parts of the schedule's length.
k_order order_of(const mma_unit& unit, const probed_gemm& p, const gemm_schedule& schedule) {
  k_order o;
  o.unit = &unit;
  o.options = contract_options(*find_contract("single-accumulator"), unit.model);
  o.options.promotion = schedule.promotion;
  o.options.output = p.d;
  if (schedule.part != 0) {
    o.options.split_k = (p.k + schedule.part - 1) / schedule.part;
    o.options.split_grain = schedule.part;
  }
  return o;
}

/// Compares the probe's kernels: without a schedule, with promotion, in parts, and with both.
bool compare_own(const gemm_run& run, thread_pool& pool, std::ostream& out) {
  bool all = true;
  for (const probed_instruction& instruction : device_instructions()) {
    if (!instruction.has_gemm || std::string_view(instruction.name).find(run.filter) == std::string_view::npos)
      continue;
    for (const std::int64_t size : run.sizes) {
      probed_gemm p =
          make_problem(size, size, size, instruction.a, instruction.b, instruction.accumulator, run.seed, pool);
      const gemm_sample sample = make_sample(p, sample_rows, run.seed);
      std::vector<gemm_schedule> schedules{{}};
      if (instruction.accumulator == formats::fp32 && size >= 256) {
        schedules.push_back({0, 128});
        schedules.push_back({size / 2, 0});
        schedules.push_back({size / 4, 32});
      }
      for (const gemm_schedule& s : schedules) {
        const std::string problem = run_gemm_on_device(instruction, s, p);
        const probed_gemm small = gathered(p, sample);
        const k_order order = order_of(*find_unit(instruction.unit), p, s);
        const std::int64_t right = problem.empty() ? explained(small, order, pool) : 0;
        all = all && right == small.m * small.n;
        out << "own | " << instruction.name << " | " << extents(p) << " | " << right << " of " << small.m * small.n
            << " | " << (problem.empty() ? to_text(order, p.k) : problem) << std::endl;
      }
    }
  }
  return all;
}

/// First order that gives all of d; candidates are filtered by the results `few`. `best` describes the candidate that
/// gives most of them.
std::optional<k_order> find_order(const probed_gemm& few, const probed_gemm& all, const std::vector<k_order>& orders,
                                  std::string& best, thread_pool& pool) {
  std::int64_t most = -1;
  for (const k_order& order : orders) {
    const gemm_options& o = order.options;
    if (o.split_run != 0 ? all.k % (o.split_k * o.split_run) != 0 : o.split_k > 1 && part_length(all.k, o) >= all.k)
      continue;
    const std::int64_t right = explained(few, order, pool);
    if (right == few.m * few.n && explained(all, order, pool) == all.m * all.n) return order;
    if (right > most) {
      most = right;
      best = std::to_string(right) + " of " + std::to_string(few.m * few.n) + " by " + to_text(order, all.k);
    }
  }
  return {};
}

void compare_library(const gemm_run& run, thread_pool& pool, std::ostream& out) {
  if (library_description().empty()) {
    out << "library | none" << std::endl;
    return;
  }
  out << "library | " << library_description() << std::endl;
  for (const library_gemm& what : library_gemms()) {
    if (std::string_view(what.name).find(run.filter) == std::string_view::npos) continue;
    std::vector<k_order> known;
    struct extent {
      std::int64_t m, n, k;
    };
    std::vector<extent> shapes;
    for (const std::int64_t size : run.sizes) shapes.push_back({size, size, size});
    const std::int64_t largest = *std::max_element(run.sizes.begin(), run.sizes.end());
    shapes.push_back({64, 64, largest});
    shapes.push_back({128, 256, largest});
    shapes.push_back({208, 272, 336});  // not multiples of a tile
    for (const extent& e : shapes) {
      probed_gemm p = make_problem(e.m, e.n, e.k, what.a, what.b, what.d, run.seed, pool);
      const gemm_sample sample = make_sample(p, sample_rows, run.seed), few = make_sample(p, search_rows, run.seed + 1);
      const std::vector<k_order> candidates = candidate_orders(p, what.accumulator == formats::fp16);
      int number = 0;
      const std::string problem = run_library(what, p, run.algorithms, [&](const std::string& algorithm) {
        const probed_gemm little = gathered(p, few), small = gathered(p, sample);
        std::string best;
        // the order of an earlier algorithm
        std::optional<k_order> order = find_order(little, small, known, best, pool);
        if (!order) {
          order = find_order(little, small, candidates, best, pool);
          if (order) known.push_back(*order);
        }
        out << what.name << " | " << extents(p) << " | " << number << " | " << algorithm << " | ";
        if (order) {
          out << small.m * small.n << " of " << small.m * small.n << " | " << to_text(*order, p.k) << std::endl;
        } else {
          out << "not found | " << best << std::endl;
          if (run.unexplained)
            run.unexplained(std::string(what.name) + "_" + extents(p) + "_" + std::to_string(number), small);
        }
        ++number;
      });
      if (!problem.empty()) out << what.name << " | " << extents(p) << " | - | " << problem << std::endl;
    }
  }
}

}  // namespace

std::string to_text(const k_order& order, std::int64_t k) {
  const gemm_options& o = order.options;
  std::string text = order.unit->name;
  if (order.operands == rounding::nearest_away) text += " of operands rounded to nearest, ties away";
  if (order.operands == rounding::nearest_even) text += " of operands rounded to nearest even";
  if (o.promotion != 0) text += ", promoted every " + std::to_string(o.promotion);
  if (o.split_k == 1) return text + (o.promotion == 0 ? ", one chain" : "");
  if (o.split_run != 0) {
    text += ", " + std::to_string(o.split_k) + " slices of runs of " + std::to_string(o.split_run);
  } else {
    text += ", parts of " + std::to_string(part_length(k, o));
  }
  return text + ", added " + std::string(to_string(o.order)) + (o.split_sum == formats::fp16 ? " in FP16" : "");
}

gemm_sample make_sample(const probed_gemm& p, std::int64_t count, std::uint64_t seed) {
  case_source source(seed, 1u << 30);
  const auto choose = [&](std::int64_t extent) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(extent));
    std::iota(all.begin(), all.end(), std::int64_t{0});
    if (extent <= count) return all;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      std::swap(all[i], all[i + source.word() % (all.size() - i)]);
    }
    all.resize(static_cast<std::size_t>(count));
    return all;
  };
  return {choose(p.m), choose(p.n)};
}

probed_gemm gathered(const probed_gemm& p, const gemm_sample& sample) {
  probed_gemm small{static_cast<std::int64_t>(sample.rows.size()),
                    static_cast<std::int64_t>(sample.columns.size()),
                    p.k,
                    p.a,
                    p.b,
                    p.d,
                    {},
                    {},
                    {}};
  const auto row = static_cast<std::ptrdiff_t>(row_bytes(p)), bytes = static_cast<std::ptrdiff_t>(element_bytes(p.d));
  const auto take = [](std::vector<std::uint8_t>& to, const std::vector<std::uint8_t>& from, std::ptrdiff_t at,
                       std::ptrdiff_t count) { to.insert(to.end(), from.begin() + at, from.begin() + at + count); };
  for (const std::int64_t r : sample.rows) take(small.codes_a, p.codes_a, r * row, row);
  for (const std::int64_t c : sample.columns) take(small.codes_b, p.codes_b, c * row, row);
  for (const std::int64_t r : sample.rows) {
    for (const std::int64_t c : sample.columns) take(small.codes_d, p.codes_d, (r * p.n + c) * bytes, bytes);
  }
  return small;
}

std::int64_t explained(const probed_gemm& p, const k_order& order, thread_pool& pool) {
  std::vector<std::uint8_t> a = p.codes_a, b = p.codes_b;
  if (order.operands != rounding::toward_zero) {
    a = rounded_to_tf32(a, order.operands);
    b = rounded_to_tf32(b, order.operands);
  }
  const std::vector<std::uint64_t> d =
      p.d == formats::fp64 ? fp64_results(p, order.options, pool) : results_of(p, order.options, a, b, pool);
  const int bytes = element_bytes(p.d);
  std::int64_t right = 0;
  for (std::size_t i = 0; i < d.size(); ++i) {
    right += d[i] == load_little_endian(p.codes_d, i * static_cast<std::size_t>(bytes), bytes);
  }
  return right;
}

std::vector<k_order> candidate_orders(const probed_gemm& p, bool fp16_accumulator) {
  const mma_result result = fp16_accumulator ? mma_result::fp16_nearest : mma_result::fp32_truncate;
  std::vector<const mma_unit*> units;
  for (const mma_unit& u : models::all) {
    const bool hopper = std::string_view(u.name).starts_with("hopper-") && !u.model.sparse;
    const bool fp32 = u.model.result == mma_result::fp32_truncate || u.model.result == mma_result::e8m13;
    const bool accumulates = p.d == formats::fp64 || u.model.result == result || (!fp16_accumulator && fp32);
    const bool seen = std::any_of(units.begin(), units.end(), [&](const mma_unit* v) { return v->model == u.model; });
    if (hopper && accumulates && !seen && takes(u, p.a) && takes(u, p.b)) units.push_back(&u);
  }
  // Native FP8 instructions before expanded ones, larger K before smaller.
  std::stable_sort(units.begin(), units.end(),
                   [](const mma_unit* x, const mma_unit* y) { return x->model.group > y->model.group; });
  std::vector<std::int64_t> promotions{0};
  if (p.a.bits() == 8) promotions = {0, 128, 64, 256, 512, 32};
  std::vector<rounding> operands{rounding::toward_zero};
  if (p.a == formats::tf32) operands = {rounding::toward_zero, rounding::nearest_away, rounding::nearest_even};
  std::vector<k_order> chains;
  for (const mma_unit* u : units) {
    for (const std::int64_t promotion : promotions) {
      for (const rounding r : operands) {
        chains.push_back(order_of(*u, p, {0, promotion}));
        chains.back().operands = r;
      }
    }
  }
  std::vector<k_order> orders = chains;
  for (const std::int64_t grain : {64, 16, 8}) {
    for (const k_order& chain : chains) {
      if (chain.unit != units[0] || chain.options.promotion > 128) continue;
      add_parts(p.k, grain, chain, orders);
      if (grain == 64) add_slices(p.k, chain, orders);
    }
  }
  return orders;
}

bool compare_gemms(const gemm_run& run, thread_pool& pool, std::ostream& out) {
  const bool all = compare_own(run, pool, out);
  compare_library(run, pool, out);
  return all;
}

}  // namespace rotoscale::probe
