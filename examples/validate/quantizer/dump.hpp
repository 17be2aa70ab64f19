// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a quantizer was given and what it wrote.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rotoscale/block.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::validate {

/// What NVFP4's factor is taken to come of where neither the dump nor an option says it.
enum class assumed_factor {
  none,             ///< it is known, or has no meaning
  source,           ///< the source's amax
  rotated_rows,     ///< the amax of the source after the rotation, its runs along rows
  rotated_columns,  ///< the same along columns
  amax,             ///< tensor 'amax', of FP8
  one,              ///< nothing: 1, of FP8
};

/// One way to quantize a tensor.
struct quantizer {
  std::string name;                               ///< of the preset that it began as
  block_format blocks;                            ///< length 0: FP8 with one factor a tensor, and no scales
  block_options options;                          ///< encode_factor is the factor of NVFP4 and of FP8
  assumed_factor assumed = assumed_factor::none;  ///< what encode_factor comes of
  bool hadamard_factor = true;                    ///< false: the butterflies alone, without 1 / sqrt(points)
  bool has_words = false;                         ///< stochastic rounding's words are known: the file's, or a seed's
  bool low_nibble_first = true;                   ///< which half of a byte holds the element of even index
  placement code_order = placement::row_major;    ///< order of the codes' bytes
  placement scale_order = placement::row_major;   ///< order of the scales' bytes

  bool is_per_tensor() const { return blocks.length == 0; }
  bool has_unknown_words() const { return options.rounding == rounding::stochastic && !has_words; }
  /// Rows and elements along k that are quantized together.
  index_t tile_rows() const { return is_per_tensor() ? 1 : blocks.rows; }
  index_t tile_k() const { return is_per_tensor() ? 1 : run_length(blocks, options.rotation); }
};

/// One orientation as it lies in the file: rows × k elements, blocks along k.
struct dump_side {
  block_axis axis = block_axis::row;
  index_t rows = 0, k = 0;
  std::vector<std::uint8_t> codes, scales;                ///< bytes in the file's order, padding included
  std::vector<std::int64_t> code_shape{}, scale_shape{};  ///< of the tensors, as the file has them; empty: any
  /// Of a tensor with a code a byte, whose pairs along k are not bytes of its transpose: packed as if it lay
  /// transposed.
  std::vector<std::uint8_t> turned_codes{};
  bool has_code_a_byte() const { return !turned_codes.empty(); }
  const std::vector<std::uint8_t>& codes_in(placement order) const {
    return has_code_a_byte() && order == placement::column_major ? turned_codes : codes;
  }
  /// Names of the tensors, for messages.
  const char* code_name() const { return axis == block_axis::row ? "codes" : "codes_t"; }
  const char* scale_name() const { return axis == block_axis::row ? "scales" : "scales_t"; }
};

/// The source and what became of it.
struct quantizer_dump {
  std::string where;           ///< the file, for messages
  index_t rows = 0, cols = 0;  ///< of the source
  format source_format = {};   ///< as which it was stored
  std::vector<float> source;   ///< its values, exact
  std::vector<dump_side> sides;
  std::optional<float> factor, amax;  ///< tensors of one FP32 number
  std::vector<std::uint32_t> random;  ///< words of stochastic rounding, [rows, cols]; may be empty

  matrix<const float> source_view() const { return row_major<const float>(source.data(), rows, cols); }
};

/// Reads x [M, N] (F32, BF16 or F16), codes and scales (along rows), codes_t and scales_t (along columns, N × M), of
/// which at least one pair, factor and amax (F32 [1]), random (U32 [M, N]). `blocks` has been completed with what the
/// file says of the format: --format where its tensors do not say. Throws io::error naming file and tensor.
quantizer_dump load_dump(const io::safetensors_file& file, const std::string& format_name, int block_rows,
                         block_format& blocks, thread_pool& pool);

/// Where a side's scales lie: a scale of several rows is stored once, or `repeat` times, as GEMM kernels read it.
struct stored_scales {
  layout where;
  index_t repeat = 1;
};
/// Nothing where the tensor's size or shape does not fit the placement.
std::optional<stored_scales> find_scales(const quantizer& q, const dump_side& side);

/// A side in dense order (dense_blocks), as `q` says that its bytes lie.
struct dense_side {
  std::vector<std::uint8_t> codes, scales;
};
/// Nothing where a tensor's size or shape does not fit the placement.
std::optional<std::vector<std::uint8_t>> dense_codes(const quantizer& q, const dump_side& side);
std::optional<std::vector<std::uint8_t>> dense_scales(const quantizer& q, const dump_side& side);

/// Why codes or scales of the placement's size have a shape that contradicts it; empty where they do not. Row-major
/// tensors have the rows in their first extents, column-major ones may have the columns there; a flat tensor, and the
/// tiles of other placements, may have any shape.
std::string shape_fault(const quantizer& q, const dump_side& side, bool of_scales);

/// Throws io::error for codes or scales whose size or shape is not that of a placement, or of none.
[[noreturn]] void refuse_extents(const quantizer& q, const quantizer_dump& dump, const dump_side& side, bool of_scales,
                                 std::optional<placement> order);

/// What `q` makes of the source, in dense order.
dense_side quantize_side(const quantizer& q, const quantizer_dump& dump, const dump_side& side, thread_pool& pool);

/// A tile: f.rows rows of a run, and everything on the way to its bytes.
struct tile_values {
  std::vector<float> x;              ///< [rows, run], after rounding to the source format and the rotation
  std::vector<std::uint32_t> amax;   ///< a block each, FP32 bits; no_amax where no element took part
  std::vector<std::uint8_t> scales;  ///< a block each
  std::vector<std::uint8_t> codes;   ///< [rows, run], one a byte

  /// The scale of element `e` of x; FP8 with one factor has none.
  std::uint8_t scale_of(const quantizer& q, index_t e) const {
    return scales.empty() ? std::uint8_t{0} : scales[static_cast<std::size_t>(e % q.tile_k() / q.blocks.length)];
  }
};
tile_values quantize_tile(const quantizer& q, const quantizer_dump& dump, const dump_side& side, index_t tile,
                          index_t first_k);
/// The same in parts, for whoever may need no codes, or not all: the source as its blocks see it, and their scales.
std::vector<float> load_tile(const quantizer& q, const quantizer_dump& dump, const dump_side& side, index_t tile,
                             index_t first_k);
tile_values scale_tile(const quantizer& q, std::vector<float> x);

/// Code of x under a scale, by the options' rounding; `index` is the element's number in the rows × k result.
std::uint8_t code_under(const quantizer& q, const quantizer_dump& dump, const dump_side& side, float x,
                        std::uint8_t scale, index_t index);

/// What an element's code may be: the two neighbours of its value, or one code twice.
struct code_pair {
  std::uint8_t toward_zero = 0, away = 0;
  bool contains(std::uint8_t code) const { return code == toward_zero || code == away; }
};

/// Of stochastic rounding by unknown words the two neighbours, otherwise code_under.
class code_choices {
 public:
  explicit code_choices(const quantizer& q);
  code_pair under(const quantizer_dump& dump, const dump_side& side, float x, std::uint8_t scale, index_t index) const;
  /// A quantizer that gives the upper ones and one that gives the lower ones.
  const quantizer& up() const { return up_; }
  const quantizer& down() const { return down_; }

 private:
  quantizer up_, down_;
};

/// The value that code_under rounds, exact.
double scaled_value(const quantizer& q, float x, std::uint8_t scale);
/// How far an element lies from its neighbour at zero's side, as a share of the distance between both, which differ.
double fraction_between(const quantizer& q, float x, std::uint8_t scale, const code_pair& neighbours);

/// What takes the largest magnitude `amax` to the element's largest number; 1 where that is no number to multiply with.
float fp8_factor(format element, float amax);
/// The largest finite magnitude of the source, after the quantizer's rounding of it.
float source_amax(const quantizer& q, const quantizer_dump& dump);

/// The factor that the amax of the dump gives, or else what the blocks of its first orientation see, which is then
/// what it is assumed to come of; 1 for FP8 without an amax, and for formats without a factor.
void take_own_factor(quantizer& q, const quantizer_dump& dump, thread_pool& pool);

}  // namespace rotoscale::validate
