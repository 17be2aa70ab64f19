// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A GEMM to validate: the inputs of a kernel and its result, as loaded from a file.
#pragma once

#include <filesystem>
#include <optional>

#include "format_names.hpp"
#include "output_tensor.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/gemm_options.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/sparse.hpp"

namespace rotoscale::validate {

/// A or B: batch × rows × k codes with their scales, row-major.
struct operand_data {
  format element = {};
  index_t rows = 0;
  std::vector<std::uint8_t> codes;
  int block = 0;  ///< elements per scale; 0: no scales
  format scale = formats::e8m0;
  std::vector<std::uint8_t> scales;
};

/// D [batch, m, n] = A [batch, m, k] · B [batch, n, k]ᵀ + C + bias.
struct gemm_case {
  index_t batch = 0, m = 0, n = 0, k = 0;
  operand_data a, b;
  std::optional<output_tensor> c;
  std::optional<std::vector<float>> bias;  ///< n numbers, added to each row
  format output = formats::fp32;           ///< format of d
  output_tensor d;
  bool compressed = false;  ///< a was given as kept elements and metadata_a, and is expanded here

  bool is_fp64() const { return output == formats::fp64; }
  index_t outputs() const { return batch * m * n; }
  /// Value of c at element e of D; 0 without c.
  double c_at(index_t e) const { return c ? c->value(e) : 0.0; }
  /// The same as FP32. A NaN keeps its bits.
  float fp32_c_at(index_t e) const {
    return c && c->element() == formats::fp32 ? fp32_from_bits(static_cast<std::uint32_t>(c->code(e)))
                                              : static_cast<float>(c_at(e));
  }
};

/// Properties of the tensors that the file does not state.
struct case_options {
  std::string a_format, b_format;      ///< element formats of U8 and I8 tensors
  std::string scale_format;            ///< format of U8 and I8 scales: e8m0 or ue4m3; empty: decided by their number
  std::string scale_layout = "plain";  ///< plain, nvidia, hipblaslt or aiter
  std::vector<std::string> ignored;    ///< c, bias: checked, but not used, as if the kernel did not read them
};

/// Formats of operands.
inline constexpr format gemm_formats[] = {formats::fp16,     formats::bf16,     formats::e4m3, formats::e5m2,
                                          formats::e4m3fnuz, formats::e5m2fnuz, formats::e2m1, formats::e2m3,
                                          formats::e3m2,     formats::fp32,     formats::fp64};

/// Loads a case. Throws io::error naming file and tensor.
gemm_case load_case(const io::safetensors_file& file, const case_options& options);

/// Is every element of d NaN, as in memory that was never written?
bool is_all_nan(const gemm_case& x);

/// Operand `i` of the batch.
gemm_operand batch_operand(const operand_data& x, index_t k, index_t i);

}  // namespace rotoscale::validate
