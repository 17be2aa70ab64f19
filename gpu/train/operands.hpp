// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// How a device keeps a tensor's operands. FP32 (and BF16 of a BF16 source) is the source itself, BF16 one copy whose
// column form is read transposed. FP8 and MX forms have k contiguous: codes, transposed codes and block scales of both
// forms come from one launch wherever both are made alike.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "gpu/api/dequantize.hpp"
#include "gpu/api/quantize.hpp"
#include "gpu/api/quantize_fp8.hpp"
#include "gpu/api/quantize_state.hpp"
#include "rotoscale/nn/operand.hpp"

namespace rotoscale::gpu {

/// Bytes between rows of codes: FP8 as matrix kernels read it.
inline index_t code_stride(const nn::operand_recipe& r, index_t k) {
  const index_t bytes = packed_bytes(nn::element_format(r.format), k);
  return nn::is_fp8(r.format) ? (bytes + 15) / 16 * 16 : bytes;
}

/// An operand of a recipe with k contiguous, without memory.
inline gemm_operand operand_of(const nn::operand_recipe& r, index_t rows, index_t k) {
  gemm_operand o;
  o.element = nn::element_format(r.format);
  o.rows = rows;
  o.k = k;
  o.code_stride = code_stride(r, k);
  if (!nn::has_blocks(r.format)) return o;
  const block_format blocks = nn::block_format_of(r);
  o.block = blocks.length;
  o.block_rows = blocks.rows;
  o.scale = blocks.scale;
  o.scale_stride = k / o.block;
  return o;
}

class operands final : public nn::operand_set {
 public:
  operands(nn::operand_request request, void* memory, nn::const_tensor_view source)
      : operand_set(std::move(request)), plan_(plan_for(this->request())) {
    auto* const bytes = static_cast<std::uint8_t*>(memory);
    for (const nn::operand_form f : {nn::operand_form::row, nn::operand_form::column}) {
      if (!this->request().recipe(f)) continue;
      forms_[index(f)] = describe(f, bytes, source);
      amax_[index(f)] = bytes + plan_.of(f).amax;
      if (plan_.of(f).is_drawn) drawn_[index(f)] = reinterpret_cast<block_options*>(bytes + plan_.of(f).drawn);
    }
  }

  static nn::operand_layout layout(const nn::operand_request& r) {
    const plan p = plan_for(r);
    return {p.bytes, p.forms[0].in_place || p.forms[1].in_place};
  }

  const gemm_operand& form(nn::operand_form f) const { return forms_[index(f)]; }

  /// What one launch writes, as the last arguments of the launchers that quantize what they make.
  struct block_target {
    block_format blocks;
    quantized_output rows, columns;  ///< no codes: not wanted
    template <class Launch>
    status apply(const Launch& launch) const {
      return launch(blocks, rows, columns);
    }
  };
  struct fp8_target {
    fp8_options options;
    const float* scale;
    fp8_output out;
    template <class Launch>
    status apply(const Launch& launch) const {
      return launch(options, scale, out);
    }
  };
  using fused_target = std::variant<block_target, fp8_target>;
  /// Where quantizing writes if one launch makes all of it, both orientations included.
  static std::optional<fused_target> one_launch(const nn::quantize_target& to) {
    if (to.set == nullptr) return std::nullopt;
    const auto& set = static_cast<const operands&>(*to.set);
    const bool row = to.row && set.request().row, column = to.column && set.request().column;
    if (set.wants_fp8_alone(row, column)) {
      return set.fp8_target_of(row ? nn::operand_form::row : nn::operand_form::column, row && column, to.scaling);
    }
    return to.scaling.amax == nullptr ? set.blocks_alone(row, column) : std::nullopt;
  }
  /// Target of an FP32 tensor's BF16 copy, if quantizing writes nothing else; else null.
  static bf16* only_bf16(const nn::quantize_target& to) {
    if (to.set == nullptr || to.scaling.amax != nullptr) return nullptr;
    const auto& set = static_cast<const operands&>(*to.set);
    const nn::operand_request& r = set.request();
    const bool narrow = r.source == nn::dtype::fp32 && (!to.row || is_bf16(r.row)) && (!to.column || is_bf16(r.column));
    if (!narrow || (to.row && to.column && set.codes(nn::operand_form::row) != set.codes(nn::operand_form::column))) {
      return nullptr;
    }
    return reinterpret_cast<bf16*>(set.codes(to.row ? nn::operand_form::row : nn::operand_form::column));
  }
  /// Draws the random words and signs of the requested forms; call before writing one_launch's outputs.
  status draw(const nn::quantize_target& to, const nn::step_state* state, stream s) const {
    return draw(to.row && request().row, to.column && request().column, state, s);
  }

  /// A backend's quantize.
  status quantize(nn::const_tensor_view source, const nn::quantize_target& to, const nn::step_state* state,
                  stream s) const {
    ROTOSCALE_ASSERT(source.stride(1) == 1 && source.extent(0) == request().rows && source.extent(1) == request().cols);
    return source.type == nn::dtype::bf16 ? fill(as_matrix<const bf16>(source), to, state, s)
                                          : fill(as_matrix<const float>(source), to, state, s);
  }

 private:
  static constexpr std::size_t alignment = 256;
  struct place {
    std::size_t codes = 0, scales = 0, factor = 0, amax = 0, drawn = 0;
    bool in_place = false;
    bool is_drawn = false;  ///< options are made on the device, step by step
  };
  struct plan {
    place forms[2];  ///< row, column
    std::size_t bytes = 0;
    const place& of(nn::operand_form f) const { return forms[index(f)]; }
  };

  static int index(nn::operand_form f) { return f == nn::operand_form::column; }
  static bool is_bf16(const std::optional<nn::operand_recipe>& r) { return r && r->format == nn::operand_format::bf16; }

  static plan plan_for(const nn::operand_request& r) {
    plan p;
    const auto take = [&](index_t bytes) {
      const std::size_t at = p.bytes;
      p.bytes += (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
      return at;
    };
    for (const nn::operand_form f : {nn::operand_form::row, nn::operand_form::column}) {
      if (!r.recipe(f)) continue;
      const nn::operand_recipe& own = *r.recipe(f);
      const bool row = f == nn::operand_form::row;
      const index_t rows = row ? r.rows : r.cols, k = row ? r.cols : r.rows;
      place& at = p.forms[index(f)];
      at.in_place = nn::is_source(own, r.source);
      if (at.in_place) continue;
      if (!row && is_bf16(r.row) && is_bf16(r.column)) {
        at.codes = p.forms[0].codes;
        continue;
      }
      const format element = nn::element_format(own.format);
      at.codes = take(rows * code_stride(own, k));
      if (nn::has_blocks(own.format)) {
        const block_format f = nn::block_format_of(own);
        at.scales = take(rows / f.rows * (k / f.length));
      }
      // The second-level factor is computed from the tensor's amax in every step.
      const bool own_factor = own.format == nn::operand_format::nvfp4;
      if (own_factor) {
        at.factor = take(sizeof(float));
        at.amax = take(sizeof(std::uint32_t));
      }
      // Both forms of a tensor have one scale.
      const bool has_factor = !row && r.row && nn::is_fp8(r.row->format);
      if (nn::is_fp8(own.format)) at.factor = has_factor ? p.forms[0].factor : take(sizeof(float));
      at.is_drawn = element.bits() <= 8 &&
                    (own_factor || own.rounding == rounding::stochastic || own.rotation.signs != nn::sign_kind::none);
      if (at.is_drawn) at.drawn = take(sizeof(block_options));
    }
    return p;
  }

  gemm_operand describe(nn::operand_form f, std::uint8_t* memory, nn::const_tensor_view source) const {
    const nn::operand_request& r = request();
    const place& at = plan_.of(f);
    const nn::operand_recipe& own = *r.recipe(f);
    const bool row = f == nn::operand_form::row;
    gemm_operand o = operand_of(own, row ? r.rows : r.cols, row ? r.cols : r.rows);
    if (at.in_place) {
      o.element = r.source == nn::dtype::bf16 ? formats::bf16 : formats::fp32;
      o.codes = static_cast<const std::uint8_t*>(source.data);
      o.code_stride = source.stride(0) * size_of(r.source);
      o.transposed = !row;
      return o;
    }
    o.codes = memory + at.codes;
    if (o.element == formats::bf16) {
      o.code_stride = r.cols * 2;
      o.transposed = !row;
    }
    if (nn::has_factor(own.format)) o.factor = reinterpret_cast<const float*>(memory + at.factor);
    if (o.block != 0) o.scales = memory + at.scales;
    return o;
  }

  template <class T>
  status fill(matrix<const T> source, const nn::quantize_target& to, const nn::step_state* state, stream s) const {
    const bool row = to.row && request().row, column = to.column && request().column;
    const bool again = column && request().column->format == nn::operand_format::dequantized;
    status done = draw(row || again, column, state, s);
    if (done.ok()) done = fill_fp8(source, row, column, to.scaling, s);
    if (done.ok()) done = fill_blocks(source, row, column, s);
    if (done.ok() && again) done = dequantize_row_form(s);
    const bool copies =
        (row && copies_bf16(nn::operand_form::row)) || (column && copies_bf16(nn::operand_form::column));
    if constexpr (std::is_same_v<T, float>) {
      if (done.ok() && copies) {
        const auto f = is_bf16(request().row) ? nn::operand_form::row : nn::operand_form::column;
        done = round_bf16(source, reinterpret_cast<bf16*>(const_cast<std::uint8_t*>(form(f).codes)), s);
      }
    }
    return done;
  }
  /// What the row form holds, its rotation undone, rounded to BF16.
  status dequantize_row_form(stream s) const {
    const gemm_operand& from = form(nn::operand_form::row);
    auto* const to = reinterpret_cast<bf16*>(codes(nn::operand_form::column));
    if (from.block == 0) return decode_operand(from, false, to, formats::bf16, from.k, s);
    return unrotate_operand(from, request().row->rotation.points, drawn_[index(nn::operand_form::row)], to, from.k, s);
  }
  bool copies_bf16(nn::operand_form f) const { return is_bf16(request().recipe(f)) && !plan_.of(f).in_place; }

  block_options quantizer_options(nn::operand_form f) const {
    nn::form_options how;
    how.recipe = *request().recipe(f);
    return nn::block_options_for(how);
  }
  status draw(bool row, bool column, const nn::step_state* state, stream s) const {
    for (const nn::operand_form f : {nn::operand_form::row, nn::operand_form::column}) {
      if (drawn_[index(f)] == nullptr || !(f == nn::operand_form::row ? row : column)) continue;
      const status done = draw_options(quantizer_options(f), draws_of(request(), f), state, drawn_[index(f)], s);
      if (!done.ok()) return done;
    }
    return {};
  }

  /// Blocks of one kind are all that is wanted.
  std::optional<fused_target> blocks_alone(bool row, bool column) const {
    std::optional<block_target> t;
    for (const nn::operand_form f : {nn::operand_form::row, nn::operand_form::column}) {
      if (!(f == nn::operand_form::row ? row : column)) continue;
      const nn::operand_recipe& own = *request().recipe(f);
      if (!nn::has_blocks(own.format)) return std::nullopt;
      const block_format blocks = nn::block_format_of(own);
      if ((t && blocks != t->blocks) || !has_tile_kernel(blocks, own.rotation.points)) return std::nullopt;
      if (!t) t = block_target{blocks, {}, {}};
      (f == nn::operand_form::row ? t->rows : t->columns) = block_output_of(f);
    }
    return t ? std::optional<fused_target>(*t) : std::nullopt;
  }

  bool is_fp8(nn::operand_form f) const { return request().recipe(f) && nn::is_fp8(request().recipe(f)->format); }
  /// Both forms' codes are the same numbers, none of them drawn.
  bool forms_are_alike() const {
    return drawn_[0] == nullptr && drawn_[1] == nullptr && request().row->format == request().column->format &&
           request().row->rounding == request().column->rounding;
  }
  /// FP8 is all that is wanted, rounded to nearest, in one launch.
  bool wants_fp8_alone(bool row, bool column) const {
    const auto is_plain = [&](nn::operand_form f) {
      return is_fp8(f) && drawn_[index(f)] == nullptr && request().recipe(f)->rounding == rounding::nearest_even;
    };
    return (row || column) && (!row || is_plain(nn::operand_form::row)) &&
           (!column || is_plain(nn::operand_form::column)) && (!(row && column) || forms_are_alike());
  }
  /// The cast of form f, or of both with the options of f.
  fp8_target fp8_target_of(nn::operand_form f, bool both, const nn::scaling_ref& scaling) const {
    const nn::operand_recipe& own = *request().recipe(f);
    fp8_target t{{nn::element_format(own.format), formats::bf16, own.rounding}, scaling.scale, {}};
    if (drawn_[index(f)] != nullptr) t.options.drawn = &drawn_[index(f)]->random;
    if (both || f == nn::operand_form::row) t.out.rows = codes(nn::operand_form::row);
    if (both || f == nn::operand_form::column) t.out.columns = codes(nn::operand_form::column);
    t.out.row_stride = code_stride(own, request().cols);
    t.out.column_stride = code_stride(own, request().rows);
    t.out.amax = scaling.amax;
    t.out.factor = const_cast<float*>(form(f).factor);
    t.out.scale_inverse = scaling.scale_inverse;
    return t;
  }

  /// Codes of one form, or of both where they are of one kind; amax with the first launch.
  template <class T>
  status fill_fp8(matrix<const T> source, bool row, bool column, nn::scaling_ref scaling, stream s) const {
    const bool rows = row && is_fp8(nn::operand_form::row), columns = column && is_fp8(nn::operand_form::column);
    const auto cast = [&](nn::operand_form f, bool both) {
      const fp8_target t = fp8_target_of(f, both, scaling);
      scaling.amax = nullptr;
      return cast_transpose_fp8(t.options, source, t.scale, t.out, s);
    };
    if (rows || columns) {
      const bool both = rows && columns && forms_are_alike();
      status done = cast(rows ? nn::operand_form::row : nn::operand_form::column, both);
      if (done.ok() && rows && columns && !both) done = cast(nn::operand_form::column, false);
      if (!done.ok()) return done;
    }
    if (scaling.amax == nullptr) return {};
    fp8_output only;
    only.amax = scaling.amax;
    return cast_transpose_fp8({}, source, nullptr, only, s);
  }

  quantized_output block_output_of(nn::operand_form f) const {
    quantized_output q;
    q.codes = codes(f);
    q.scales = const_cast<std::uint8_t*>(form(f).scales);
    q.options = quantizer_options(f);
    q.drawn = drawn_[index(f)];
    return q;
  }
  template <class T>
  status fill_blocks(matrix<const T> source, bool row, bool column, stream s) const {
    quantized_output none;
    row = row && nn::has_blocks(request().row->format);
    column = column && nn::has_blocks(request().column->format);
    for (const nn::operand_form f : {nn::operand_form::row, nn::operand_form::column}) {
      if (!(f == nn::operand_form::row ? row : column) || request().recipe(f)->format != nn::operand_format::nvfp4)
        continue;
      const status drawn =
          draw_encode_factor(nn::block_format_of(*request().recipe(f)), quantizer_options(f),
                             f == nn::operand_form::row ? source : transposed(source), drawn_[index(f)],
                             reinterpret_cast<std::uint32_t*>(amax_[index(f)]), const_cast<float*>(form(f).factor), s);
      if (!drawn.ok()) return drawn;
    }
    if (row && column && nn::block_format_of(*request().row) == nn::block_format_of(*request().column)) {
      return gpu::quantize(nn::block_format_of(*request().row), source, block_output_of(nn::operand_form::row),
                           block_output_of(nn::operand_form::column), s);
    }
    status done;
    if (row) {
      done =
          gpu::quantize(nn::block_format_of(*request().row), source, block_output_of(nn::operand_form::row), none, s);
    }
    if (done.ok() && column) {
      done = gpu::quantize(nn::block_format_of(*request().column), source, none,
                           block_output_of(nn::operand_form::column), s);
    }
    return done;
  }
  std::uint8_t* codes(nn::operand_form f) const { return const_cast<std::uint8_t*>(form(f).codes); }

  plan plan_;
  gemm_operand forms_[2];
  block_options* drawn_[2] = {};
  std::uint8_t* amax_[2] = {};
};

}  // namespace rotoscale::gpu
