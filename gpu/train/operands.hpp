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
      amax_[index(f)] = reinterpret_cast<std::uint32_t*>(bytes + plan_.of(f).amax);
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
  static std::optional<fused_target> one_launch(const nn::quantize_target& to, const nn::step_state* state) {
    if (to.set == nullptr) return std::nullopt;
    const auto& set = static_cast<const operands&>(*to.set);
    const bool row = to.row && set.request().row, column = to.column && set.request().column;
    if (set.wants_fp8_alone(row, column)) {
      return set.fp8_target_of(row ? nn::operand_form::row : nn::operand_form::column, row && column, to.scaling,
                               state);
    }
    return to.scaling.amax == nullptr ? set.blocks_alone(row, column, state) : std::nullopt;
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
    std::size_t codes = 0, scales = 0, factor = 0, amax = 0;
    bool in_place = false;
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
      at.codes = take(rows * code_stride(own, k));
      if (nn::has_blocks(own.format)) {
        const block_format f = nn::block_format_of(own);
        at.scales = take(rows / f.rows * (k / f.length));
      }
      // The second-level factor is computed from the tensor's amax in every step.
      if (own.format == nn::operand_format::nvfp4) {
        at.factor = take(sizeof(float));
        at.amax = take(amax_words * sizeof(std::uint32_t));
      }
      // Both forms of a tensor have one scale.
      const bool has_factor = !row && r.row && nn::is_fp8(r.row->format);
      if (nn::is_fp8(own.format)) at.factor = has_factor ? p.forms[0].factor : take(sizeof(float));
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
    status done = fill_fp8(source, row, column, to.scaling, state, s);
    if (done.ok()) done = fill_blocks(source, row, column, state, s);
    if (done.ok() && again) done = dequantize_row_form(state, s);
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
  status dequantize_row_form(const nn::step_state* state, stream s) const {
    const gemm_operand& from = form(nn::operand_form::row);
    auto* const to = reinterpret_cast<bf16*>(codes(nn::operand_form::column));
    if (from.block == 0) return decode_operand(from, false, to, formats::bf16, from.k, s);
    const drawn_form drawn = draws(nn::operand_form::row, state);
    return unrotate_operand(from, request().row->rotation.points, drawn.draws, drawn.state, to, from.k, s);
  }
  bool copies_bf16(nn::operand_form f) const { return is_bf16(request().recipe(f)) && !plan_.of(f).in_place; }

  /// Where the words and signs of a form come from: a state in device memory, or step 0 without one.
  struct drawn_form {
    nn::form_draws draws;
    const nn::step_state* state = nullptr;
  };
  bool is_random(nn::operand_form f) const {
    const nn::operand_recipe& own = *request().recipe(f);
    return own.rounding == rounding::stochastic || draws_of(request(), f).draws_signs;
  }
  drawn_form draws(nn::operand_form f, const nn::step_state* state) const {
    nn::form_draws of_form = draws_of(request(), f);
    if (state == nullptr) of_form.given_signs = of_form.mask({});
    return {of_form, is_random(f) ? state : nullptr};
  }

  /// Blocks of one kind are all that is wanted.
  std::optional<fused_target> blocks_alone(bool row, bool column, const nn::step_state* state) const {
    std::optional<block_target> t;
    for (const nn::operand_form f : {nn::operand_form::row, nn::operand_form::column}) {
      if (!(f == nn::operand_form::row ? row : column)) continue;
      const nn::operand_recipe& own = *request().recipe(f);
      if (!nn::has_blocks(own.format)) return std::nullopt;
      const block_format blocks = nn::block_format_of(own);
      if ((t && blocks != t->blocks) || !is_fused(blocks, own)) return std::nullopt;
      if (!t) t = block_target{blocks, {}, {}};
      (f == nn::operand_form::row ? t->rows : t->columns) = block_output_of(f, state);
    }
    return t ? std::optional<fused_target>(*t) : std::nullopt;
  }

  /// Blocks that the layers' kernels make: no factor of the tensor, no 6-bit codes, whole runs of 32 and squares.
  bool is_fused(const block_format& f, const nn::operand_recipe& own) const {
    const bool whole = f.length == 32 || (request().rows % 32 == 0 && request().cols % 32 == 0);
    return has_tile_kernel(f, own.rotation.points) && f.has_e8m0_scale() && f.element.bits() != 6 && whole;
  }

  bool is_fp8(nn::operand_form f) const { return request().recipe(f) && nn::is_fp8(request().recipe(f)->format); }
  /// Both forms' codes are the same numbers, none of them drawn.
  bool forms_are_alike() const {
    return !is_random(nn::operand_form::row) && !is_random(nn::operand_form::column) &&
           request().row->format == request().column->format && request().row->rounding == request().column->rounding;
  }
  /// FP8 is all that is wanted, rounded to nearest, in one launch.
  bool wants_fp8_alone(bool row, bool column) const {
    const auto is_plain = [&](nn::operand_form f) {
      return is_fp8(f) && request().recipe(f)->rounding == rounding::nearest_even;
    };
    return (row || column) && (!row || is_plain(nn::operand_form::row)) &&
           (!column || is_plain(nn::operand_form::column)) && (!(row && column) || forms_are_alike());
  }
  /// The cast of form f, or of both with the options of f.
  fp8_target fp8_target_of(nn::operand_form f, bool both, const nn::scaling_ref& scaling,
                           const nn::step_state* state) const {
    const nn::operand_recipe& own = *request().recipe(f);
    fp8_target t{{nn::element_format(own.format), formats::bf16, own.rounding}, scaling.scale, {}};
    const drawn_form drawn = draws(f, state);
    t.options.draws = drawn.draws;
    t.options.state = drawn.state;
    t.options.random = drawn.draws.words({});
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
  status fill_fp8(matrix<const T> source, bool row, bool column, nn::scaling_ref scaling, const nn::step_state* state,
                  stream s) const {
    const bool rows = row && is_fp8(nn::operand_form::row), columns = column && is_fp8(nn::operand_form::column);
    const auto cast = [&](nn::operand_form f, bool both) {
      const fp8_target t = fp8_target_of(f, both, scaling, state);
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

  quantized_output block_output_of(nn::operand_form f, const nn::step_state* state) const {
    quantized_output q;
    q.codes = codes(f);
    q.scales = const_cast<std::uint8_t*>(form(f).scales);
    q.options = nn::block_options_for(nn::resolve_form(request(), f, nullptr));
    const drawn_form drawn = draws(f, state);
    q.draws = drawn.draws;
    q.state = drawn.state;
    if (request().recipe(f)->format != nn::operand_format::nvfp4) return q;
    q.amax = amax_[index(f)];
    q.factor = const_cast<float*>(form(f).factor);
    return q;
  }
  /// Blocks of one orientation, or of both; first their amax, where a factor of the tensor follows from it.
  template <class T>
  static status make_blocks(block_format f, matrix<const T> source, const quantized_output& rows,
                            const quantized_output& columns, stream s) {
    status done;
    if (rows.amax != nullptr || columns.amax != nullptr) done = measure_amax(f, source, rows, columns, s);
    return done.ok() ? gpu::quantize(f, source, rows, columns, s) : done;
  }
  template <class T>
  status fill_blocks(matrix<const T> source, bool row, bool column, const nn::step_state* state, stream s) const {
    row = row && nn::has_blocks(request().row->format);
    column = column && nn::has_blocks(request().column->format);
    const auto blocks = [&](nn::operand_form f) { return nn::block_format_of(*request().recipe(f)); };
    const quantized_output none, rows = row ? block_output_of(nn::operand_form::row, state) : none,
                                 columns = column ? block_output_of(nn::operand_form::column, state) : none;
    if (row && column && blocks(nn::operand_form::row) == blocks(nn::operand_form::column)) {
      return make_blocks(blocks(nn::operand_form::row), source, rows, columns, s);
    }
    status done;
    if (row) done = make_blocks(blocks(nn::operand_form::row), source, rows, none, s);
    if (done.ok() && column) done = make_blocks(blocks(nn::operand_form::column), source, none, columns, s);
    return done;
  }
  std::uint8_t* codes(nn::operand_form f) const { return const_cast<std::uint8_t*>(form(f).codes); }

  plan plan_;
  gemm_operand forms_[2];
  std::uint32_t* amax_[2] = {};
};

}  // namespace rotoscale::gpu
