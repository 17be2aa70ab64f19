// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "kernel_options.hpp"

#include "rotoscale/names.hpp"

namespace rotoscale::validate {

kernel_use chosen_use(const use_options& o, const gemm_case& x, const mma_model& model) {
  const gemm_contract_entry* kernel = find_contract(o.kernel);
  kernel_use use{contract_options(*kernel, model), o.add_after_rounding, o.transposed_d};
  gemm_options& g = use.gemm;
  g.promotion = o.promotion.value_or(g.promotion);
  g.split_grain = o.split_grain.value_or(g.split_grain);
  g.split_k = o.split_k;
  g.split_run = o.split_run;
  from_string(o.split_order, g.order);
  from_string(o.split_sum, g.split_sum);
  from_string(o.output_rounding, g.output_rounding);
  g.output = x.output;
  if (!o.output.empty()) from_string(o.output, g.output);
  g.alpha = o.alpha;
  g.beta = o.beta;
  if (o.epilogue_c) g.start_from_c = false;
  g.accumulate = x.c.has_value() && !g.start_from_c;
  g.start_from_c = g.start_from_c && x.c.has_value();
  if (x.bias) g.bias = x.bias->data();
  return use;
}

void check_use(const use_options& o, const gemm_options& g, const gemm_case& x) {
  if (g.split_run != 0 && x.k % (g.split_k * g.split_run) != 0) {
    throw io::error("--split-run", std::to_string(g.split_k) + " parts in runs of " + std::to_string(g.split_run) +
                                       " do not divide K = " + std::to_string(x.k));
  }
  if (o.transposed_d && x.m != x.n) throw io::error("--transposed-d", "is for a square d; give another one transposed");
  if (!x.is_fp64() && x.output != formats::fp32 && !(g.output == x.output))
    throw io::error("--output", "d is " + std::string(to_string(x.output)) + ", which cannot hold it");
  if (!x.is_fp64()) return;
  if (g.promotion != 0) throw io::error("--promotion", "not for F64");
  if (g.split_sum != formats::fp32) throw io::error("--split-sum", "not for F64");
  if (g.output_rounding != rounding::nearest_even) throw io::error("--output-rounding", "not for F64");
  if (!o.output.empty()) throw io::error("--output", "not for F64");
  if (o.add_after_rounding) throw io::error("--add-after-rounding", "not for F64");
}

}  // namespace rotoscale::validate
