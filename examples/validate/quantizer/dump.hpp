// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A quantizer's dump: its source and its result. Loading, and the values that a quantizer gives for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rotoscale/block.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::validate {

/// Assumed origin of NVFP4's or FP8's factor, if neither the dump nor an option states it.
enum class assumed_factor {
  none,             ///< the factor is known or has no meaning
  source,           ///< the source's amax
  rotated_rows,     ///< amax after the rotation of runs along rows
  rotated_columns,  ///< amax after the rotation of runs along columns
  amax,             ///< FP8: the tensor 'amax'
  one,              ///< FP8: no origin, the factor is 1
};

/// Order of two 4-bit codes in a byte.
enum class nibble_order {
  low,    ///< the element of even index is in the low nibble
  high,   ///< it is in the high nibble
  halves  ///< element j of a block is in the low nibble, element j + length / 2 in the high one (ggml)
};

/// Details of quantizers that block_options does not have.
struct quantizer_details {
  bool rotated_bf16 = false;     ///< rotated values are rounded to BF16
  bool amax_bf16 = false;        ///< amax is rounded to BF16 before the scale
  bool nearest_scale = false;    ///< E8M0 scale: amax / (largest element), rounded to the nearest power of two
  bool nearest_log2 = false;     ///< the same by its logarithm: up from sqrt(2), where nearest_scale is from 1.5 (MLX)
  bool ties_to_zero = false;     ///< elements are rounded to nearest, ties toward zero
  bool zero_under_zero = false;  ///< elements under a floating-point scale of 0 are 0
  bool overflow_nan = false;     ///< FP8 with one factor: NaN beyond the largest number

  /// The scale does not follow from a scale_rule.
  bool replaces_rule() const { return nearest_scale || nearest_log2; }
  bool operator==(const quantizer_details&) const = default;
};
/// A detail by its name in --detail, with its text in lists.
struct named_detail {
  const char* name;
  bool quantizer_details::*member;
  const char* text;
};
inline constexpr named_detail all_details[] = {
    {"rotated_bf16", &quantizer_details::rotated_bf16, "rotated values rounded to BF16"},
    {"amax_bf16", &quantizer_details::amax_bf16, "amax rounded to BF16"},
    {"nearest_scale", &quantizer_details::nearest_scale, "scales of the nearest power of two"},
    {"nearest_log2", &quantizer_details::nearest_log2, "scales of the nearest binary logarithm"},
    {"ties_to_zero", &quantizer_details::ties_to_zero, "ties toward zero"},
    {"zero_under_zero", &quantizer_details::zero_under_zero, "zeros under a scale of 0"},
    {"overflow_nan", &quantizer_details::overflow_nan, "NaN beyond the range"}};

/// One way to quantize a tensor.
struct quantizer {
  std::string name;                               ///< preset from which it was derived
  block_format blocks;                            ///< length 0: FP8 with one factor per tensor and no scales
  block_options options;                          ///< encode_factor is also FP8's factor
  assumed_factor assumed = assumed_factor::none;  ///< origin of encode_factor
  bool hadamard_factor = true;                    ///< false: only butterflies, without 1 / sqrt(points)
  bool has_words = false;                         ///< words of stochastic rounding are known, from the file or a seed
  nibble_order nibbles = nibble_order::low;       ///< of 4-bit codes
  quantizer_details details = {};                 ///< none: as quantize() computes
  placement code_order = placement::row_major;    ///< order of the codes' bytes
  placement scale_order = placement::row_major;   ///< order of the scales' bytes

  bool is_per_tensor() const { return blocks.length == 0; }
  bool has_unknown_words() const { return options.rounding == rounding::stochastic && !has_words; }
  /// Rows, and elements along k, that are quantized together.
  index_t tile_rows() const { return is_per_tensor() ? 1 : blocks.rows; }
  index_t tile_k() const { return is_per_tensor() ? 1 : run_length(blocks, options.rotation); }
};

/// One orientation as stored in the file: rows × k elements, blocks along k.
struct dump_side {
  block_axis axis = block_axis::row;
  index_t rows = 0, k = 0;
  std::vector<std::uint8_t> codes, scales;                ///< bytes in the file's order, padding included
  std::vector<std::int64_t> code_shape{}, scale_shape{};  ///< shapes of the tensors in the file; empty: any
  /// Codes stored one per byte, packed as if the tensor were transposed: pairs along k are not pairs of the transpose.
  std::vector<std::uint8_t> turned_codes{};
  bool has_code_a_byte() const { return !turned_codes.empty(); }
  const std::vector<std::uint8_t>& codes_in(placement order) const {
    return has_code_a_byte() && order == placement::column_major ? turned_codes : codes;
  }
  /// Names of the tensors, for messages.
  const char* code_name() const { return axis == block_axis::row ? "codes" : "codes_t"; }
  const char* scale_name() const { return axis == block_axis::row ? "scales" : "scales_t"; }
};

/// A source and its quantized results.
struct quantizer_dump {
  std::string where;           ///< the file, for messages
  index_t rows = 0, cols = 0;  ///< extents of the source
  format source_format = {};   ///< type in which the source was stored
  std::vector<float> source;   ///< exact values of the source
  std::vector<dump_side> sides;
  std::optional<float> factor, amax;  ///< tensors of one FP32 number
  std::vector<std::uint32_t> random;  ///< words of stochastic rounding, [rows, cols], or empty

  matrix<const float> source_view() const { return row_major<const float>(source.data(), rows, cols); }
};

/// Reads a dump from these tensors:
/// - `x` [M, N]: F32, BF16 or F16.
/// - `codes` and `scales` (blocks along rows), or codes_t and scales_t (along columns, N × M), or both pairs.
/// - `factor` and `amax`, F32 [1]; `random`, U32 [M, N]: optional.
///
/// Sets `blocks` from the file's tensors, and from --format where they do not determine it. Throws io::error naming
/// file and tensor.
quantizer_dump load_dump(const io::safetensors_file& file, const std::string& format_name, int block_rows,
                         block_format& blocks, thread_pool& pool);

/// Layout of a side's scales. A scale of several rows is stored once, or `repeat` times as GEMM kernels read it.
struct stored_scales {
  layout where;
  index_t repeat = 1;
};
/// Layout of the scales; nullopt if the tensor's size or shape does not fit the placement.
std::optional<stored_scales> find_scales(const quantizer& q, const dump_side& side);

/// A side in dense order (dense_blocks).
struct dense_side {
  std::vector<std::uint8_t> codes, scales;
};
/// Codes or scales in dense order, read in the placement of `q`; nullopt if the tensor's size or shape does not fit.
std::optional<std::vector<std::uint8_t>> dense_codes(const quantizer& q, const dump_side& side);
std::optional<std::vector<std::uint8_t>> dense_scales(const quantizer& q, const dump_side& side);

/// The reason why the shape of codes or scales contradicts the placement, or an empty string. Row-major tensors have
/// the rows in their first extents; column-major ones may have the columns there. Flat tensors and tiled placements may
/// have any shape.
std::string shape_fault(const quantizer& q, const dump_side& side, bool of_scales);

/// Throws io::error for codes or scales whose size or shape fits not this placement, or fits none.
[[noreturn]] void refuse_extents(const quantizer& q, const quantizer_dump& dump, const dump_side& side, bool of_scales,
                                 std::optional<placement> order);

/// Converts codes of whole blocks from the quantizer's order of nibbles to the dense one, or back (`to_dense` false).
void turn_nibbles(const quantizer& q, std::vector<std::uint8_t>& codes, bool to_dense);

/// The result of `q` on the source, in dense order.
dense_side quantize_side(const quantizer& q, const quantizer_dump& dump, const dump_side& side, thread_pool& pool);

/// A tile (f.rows rows of a run) with all intermediate values.
struct tile_values {
  std::vector<float> x;              ///< [rows, run], after source rounding and rotation
  std::vector<std::uint32_t> amax;   ///< FP32 bits per block; no_amax if no element took part
  std::vector<std::uint8_t> scales;  ///< one per block
  std::vector<std::uint8_t> codes;   ///< [rows, run], one per byte

  /// The scale of element `e` of x; 0 for FP8 with one factor.
  std::uint8_t scale_of(const quantizer& q, index_t e) const {
    return scales.empty() ? std::uint8_t{0} : scales[static_cast<std::size_t>(e % q.tile_k() / q.blocks.length)];
  }
};
tile_values quantize_tile(const quantizer& q, const quantizer_dump& dump, const dump_side& side, index_t tile,
                          index_t first_k);
/// Only the values of a tile, as its blocks see them. Scales and codes are computed separately, if needed.
std::vector<float> load_tile(const quantizer& q, const quantizer_dump& dump, const dump_side& side, index_t tile,
                             index_t first_k);
tile_values scale_tile(const quantizer& q, std::vector<float> x);

/// Code of x under a scale with the options' rounding. `index` is the element's number in the rows × k result.
std::uint8_t code_under(const quantizer& q, const quantizer_dump& dump, const dump_side& side, float x,
                        std::uint8_t scale, index_t index);

/// Possible codes of an element: the two neighbours of its value, or one code twice.
struct code_pair {
  std::uint8_t toward_zero = 0, away = 0;
  bool contains(std::uint8_t code) const { return code == toward_zero || code == away; }
};

/// Possible codes: both neighbours for stochastic rounding with unknown words, else the code of code_under.
class code_choices {
 public:
  explicit code_choices(const quantizer& q);
  code_pair under(const quantizer_dump& dump, const dump_side& side, float x, std::uint8_t scale, index_t index) const;
  /// Quantizers that always choose the upper, and the lower neighbour.
  const quantizer& up() const { return up_; }
  const quantizer& down() const { return down_; }

 private:
  quantizer up_, down_;
};

/// The exact value that code_under rounds.
double scaled_value(const quantizer& q, float x, std::uint8_t scale);
/// Distance of an element from its neighbour toward zero, as a share of the distance between both (which must differ).
double fraction_between(const quantizer& q, float x, std::uint8_t scale, const code_pair& neighbours);

/// Factor that maps `amax` to the element's largest number; 1 if that is not a finite number above zero.
float fp8_factor(format element, float amax);
/// The largest finite magnitude of the source after the quantizer's source rounding.
float source_amax(const quantizer& q, const quantizer_dump& dump);

/// Sets the factor from the dump's amax; without one, from what the blocks of the first orientation see, which is then
/// the assumed origin. FP8 without an amax, and formats without a factor, get 1.
void take_own_factor(quantizer& q, const quantizer_dump& dump, thread_pool& pool);

}  // namespace rotoscale::validate
