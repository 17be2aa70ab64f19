// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Command-line options on a kernel's use of its unit.
#pragma once

#include <optional>
#include <string>

#include "epilogue.hpp"

namespace rotoscale::validate {

struct use_options {
  std::string kernel = "instruction";  ///< name in gemm_contracts
  std::optional<index_t> promotion, split_grain;
  index_t split_k = 1, split_run = 0;
  std::string split_order = "ascending", split_sum = "fp32", output_rounding = "nearest_even", output;
  float alpha = 1, beta = 1;
  bool epilogue_c = false, add_after_rounding = false, transposed_d = false;
};

kernel_use chosen_use(const use_options& o, const gemm_case& x, const mma_model& model);

/// Throws io::error for options that do not apply to this case: an FP64 unit has one model and no FP32 sums.
void check_use(const use_options& o, const gemm_options& g, const gemm_case& x);

}  // namespace rotoscale::validate
