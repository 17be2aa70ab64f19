// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// FP8 in blocks with an FP32 scale each (DeepSeek's 1 x 128 and 128 x 128). Here are dumps, the variants of such
// quantizers, and the search for a dump's variant. Other blocks have scales of one byte (dump.hpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "check.hpp"

namespace rotoscale::validate {

/// What --quantizer calls them.
inline constexpr const char* fp32_scaled_name = "fp8_blocks";

/// One way to quantize a block, in FP32 arithmetic. The default: scale = amax / largest, code = x / scale.
struct fp32_scaling {
  enum class scale_of { quotient, product, inverse } scale = scale_of::quotient;
  enum class code_of { quotient, product, factor } code = code_of::quotient;
  bool power_of_two = false;   ///< scales are rounded up to powers of two
  bool stores_factor = false;  ///< the tensor holds what multiplies x, not what multiplies codes
  float least_amax = 0;        ///< amax is at least this

  /// Names in --detail, in order; empty for the default.
  std::vector<std::string> details() const;
};
/// All variants, those with fewer details first.
std::vector<fp32_scaling> all_fp32_scalings();
/// The variant with these details. Throws io::error naming --detail.
fp32_scaling find_fp32_scaling(const std::vector<std::string>& details);
/// A line of each detail, for --list-quantizers.
std::string list_fp32_details();

/// A block's scale as stored, and its codes. `scale` is the stored one where `codes_under` is given.
struct fp32_scaled_block {
  float scale = 0;
  std::vector<std::uint8_t> codes;
};
fp32_scaled_block quantize_fp32_scaled(const fp32_scaling& how, format element, const std::vector<float>& x);

/// A dump of x, codes and scales, codes_t and scales_t.
class fp32_scaled_dump {
 public:
  /// Are the scales of a file FP32?
  static bool is_one(const io::safetensors_file& file);
  /// Throws io::error naming file and tensor.
  explicit fp32_scaled_dump(const io::safetensors_file& file);

  /// Compares all blocks with a variant.
  dump_report check(const fp32_scaling& how, thread_pool& pool) const;
  /// Runs (blocks) of a sample that each variant explains, best first.
  struct explanation {
    fp32_scaling how;
    index_t explained = 0;
  };
  std::vector<explanation> identify(index_t sample, thread_pool& pool) const;
  /// Blocks of all orientations.
  index_t blocks() const;

 private:
  struct side {
    dump_side named;  ///< axis, extents and codes
    index_t block_rows = 1, block_columns = 1;
    std::vector<float> scales;  ///< by rows of blocks
    index_t blocks_across() const { return named.k / block_columns; }
    index_t blocks() const { return named.rows / block_rows * blocks_across(); }
  };
  void load_side(const io::safetensors_file& file, block_axis axis);
  std::vector<float> values(const side& s, index_t block) const;
  std::vector<std::uint8_t> codes(const side& s, index_t block) const;
  bool explains(const fp32_scaling& how, const side& s, index_t block) const;

  index_t rows_ = 0, cols_ = 0;
  format element_ = formats::e4m3;
  std::vector<float> source_;
  std::vector<side> sides_;
};

}  // namespace rotoscale::validate
