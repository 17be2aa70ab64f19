// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands of a tensor on the CPU.
// - Without blocks: in the source's order; the column form is read transposed. FP32, and BF16 of a BF16 source, is the
//   source itself. Other BF16 and FP8 are one copy for both forms.
// - With blocks: two forms, each along its blocks. One pass makes both if their blocks are equal.
#pragma once

#include "rotoscale/dequantize.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/nn/cpu/kept_values.hpp"
#include "rotoscale/nn/cpu/quantize.hpp"

namespace rotoscale::nn::cpu {

class operands final : public operand_set {
 public:
  operands(operand_request request, void* memory, const_tensor_view source)
      : operand_set(std::move(request)), plan_(plan_for(this->request())) {
    auto* const codes = static_cast<std::uint8_t*>(memory);
    if (this->request().row) row_ = describe(operand_form::row, codes, source);
    if (this->request().column) column_ = describe(operand_form::column, codes, source);
  }

  static operand_layout layout(const operand_request& r) {
    const placement_plan p = plan_for(r);
    return {p.bytes, p.row.in_place || p.column.in_place};
  }

  /// A form of rows × k without its memory: the source's type, if it is the source itself. `column`: the form is read
  /// transposed where it has no blocks.
  static gemm_operand describe(const operand_recipe& own, dtype source, index_t rows, index_t k, bool column) {
    gemm_operand o;
    o.rows = rows;
    o.k = k;
    const operand_format stored = stored_format(own);
    o.element = element_format(stored);
    if (is_source(own, source)) {
      o.element = source == dtype::bf16 ? formats::bf16 : formats::fp32;
      o.transposed = column;
      return o;
    }
    if (has_blocks(stored)) {
      const block_format f = block_format_of(own);
      o.code_stride = packed_bytes(o.element, o.k);
      o.block = f.length;
      o.block_rows = f.rows;
      o.scale = f.scale;
      o.scale_stride = o.k / o.block;
      return o;
    }
    o.transposed = column;
    o.code_stride = (column ? rows : k) * o.element.bits() / 8;
    return o;
  }

  const gemm_operand& form(operand_form f) const { return f == operand_form::row ? row_ : column_; }

  /// A backend's quantize.
  void quantize(const_tensor_view source, const quantize_target& to, const step_state* state, thread_pool& pool) {
    with_storage(source.type, [&](auto storage) { fill(as_matrix<const decltype(storage)>(source), to, state, pool); });
  }

 private:
  static constexpr std::size_t alignment = 64;
  /// Offsets of a form's parts.
  struct form_location {
    std::size_t codes = 0, scales = 0, factor = 0;
    bool in_place = false;
  };
  struct placement_plan {
    form_location row, column;
    std::size_t bytes = 0;
    bool shared = false;  ///< the column form reads the row form's codes

    const form_location& of(operand_form form) const { return form == operand_form::row ? row : column; }
  };

  static bool deterministic(const operand_recipe& r) { return r.rounding != rounding::stochastic; }
  static placement_plan plan_for(const operand_request& r) {
    placement_plan p;
    const auto take = [&](index_t bytes) {
      const std::size_t at = p.bytes;
      p.bytes += (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
      return at;
    };
    p.shared = r.row && r.column && r.row->format == r.column->format && !has_blocks(r.row->format) &&
               !keeps_values(*r.row) && !keeps_values(*r.column) &&
               (!is_fp8(r.row->format) || (r.row->rounding == r.column->rounding && deterministic(*r.row)));
    const auto place = [&](const operand_recipe& own, index_t rows, index_t k) {
      form_location at;
      at.in_place = is_source(own, r.source);
      if (at.in_place) return at;
      const operand_format stored = stored_format(own);
      const format element = element_format(stored);
      if (has_blocks(stored)) {
        const block_format f = block_format_of(own);
        at.codes = take(rows * packed_bytes(element, k));
        at.scales = take(rows / f.rows * (k / f.length));
      } else {
        at.codes = take(rows * k * element.bits() / 8);
      }
      if (has_factor(stored)) at.factor = take(sizeof(float));
      return at;
    };
    if (r.row) p.row = place(*r.row, r.rows, r.cols);
    if (r.column) p.column = p.shared ? p.row : place(*r.column, r.cols, r.rows);
    return p;
  }

  gemm_operand describe(operand_form form, std::uint8_t* memory, const_tensor_view source) const {
    const operand_request& r = request();
    const form_location& at = plan_.of(form);
    const bool row = form == operand_form::row;
    gemm_operand o = describe(*r.recipe(form), r.source, row ? r.rows : r.cols, row ? r.cols : r.rows, !row);
    if (at.in_place) {
      o.codes = static_cast<const std::uint8_t*>(source.data);
      o.code_stride = source.stride(0) * size_of(r.source);
      return o;
    }
    o.codes = memory + at.codes;
    if (has_factor(stored_format(*r.recipe(form)))) o.factor = reinterpret_cast<const float*>(memory + at.factor);
    if (o.block != 0) o.scales = memory + at.scales;
    return o;
  }

  block_matrix<std::uint8_t> memory_of(operand_form form) {
    const gemm_operand& o = this->form(form);
    return {o.rows,        o.k, const_cast<std::uint8_t*>(o.codes), o.code_stride, const_cast<std::uint8_t*>(o.scales),
            o.scale_stride};
  }

  template <class T>
  void fill(matrix<const T> source, const quantize_target& to, const step_state* state, thread_pool& pool) {
    ROTOSCALE_ASSERT(source.stride(1) == 1 && source.extent(0) == request().rows && source.extent(1) == request().cols);
    const bool row = to.row && request().row, column = to.column && request().column;
    record_amax(source, to.scaling, pool);
    if (row && column && has_blocks(stored_format(*request().row)) && has_blocks(stored_format(*request().column)) &&
        !takes_row_form(*request().column) && block_format_of(*request().row) == block_format_of(*request().column)) {
      const block_options a = quantizer_options(source, operand_form::row, state, pool),
                          b = quantizer_options(source, operand_form::column, state, pool);
      return rotoscale::quantize_both(block_format_of(*request().row), a, memory_of(operand_form::row), b,
                                      memory_of(operand_form::column), source, pool);
    }
    if (row) fill_form(source, operand_form::row, to.scaling, state, pool);
    if (column && !(row && plan_.shared)) fill_form(source, operand_form::column, to.scaling, state, pool);
  }

  /// Only tensors with an FP8 form have anything to record.
  template <class T>
  void record_amax(matrix<const T> source, const scaling_ref& scaling, thread_pool& pool) {
    if (scaling.amax != nullptr) *scaling.amax = std::fmax(*scaling.amax, detail::finite_amax(source, pool));
  }

  template <class T>
  void fill_form(matrix<const T> source, operand_form form, const scaling_ref& scaling, const step_state* state,
                 thread_pool& pool) {
    if (plan_.of(form).in_place) return;
    const operand_recipe& own = *request().recipe(form);
    const block_matrix<std::uint8_t> out = memory_of(form);
    if (keeps_values(own)) return fill_values(source, resolve_form(request(), form, state), out.codes, pool);
    if (own.format == operand_format::bf16) {
      detail::convert_matrix<std::uint16_t>(
          source, out.codes, [](float x) { return detail::bf16_bits(x); }, pool);
    } else if (own.format == operand_format::dequantized) {
      dequantize_row_form(reinterpret_cast<bf16*>(out.codes), state, pool);
    } else if (is_fp8(own.format)) {
      const form_options how = resolve_form(request(), form, state);
      if (is_current(own)) {
        const format f = element_format(own.format);
        const float scale = current_fp8_scale(decode(f, f.max_code()), detail::finite_amax(source, pool));
        factor_of(form) = 1.0f / scale;
        return quantize_fp8(source, how, scale, out.codes, pool);
      }
      factor_of(form) = scaling.scale_inverse != nullptr ? *scaling.scale_inverse : 1.0f;
      quantize_fp8(source, how, scaling.scale != nullptr ? *scaling.scale : 1.0f, out.codes, pool);
    } else if (own.source == operand_source::forward) {
      const scratch_array<bf16> values(request().rows * request().cols);
      dequantize_row_form(values.data(), state, pool);
      fill_blocks(row_major<const bf16>(values.data(), request().rows, request().cols), form, state, pool);
    } else {
      fill_blocks(source, form, state, pool);
    }
  }
  template <class T>
  void fill_blocks(matrix<const T> source, operand_form form, const step_state* state, thread_pool& pool) {
    const block_axis axis = form == operand_form::row ? block_axis::row : block_axis::column;
    rotoscale::quantize(block_format_of(*request().recipe(form)), quantizer_options(source, form, state, pool), source,
                        axis, memory_of(form), pool);
  }

  /// Options of a form with blocks. A tensor factor is computed from the present source.
  template <class T>
  block_options quantizer_options(matrix<const T> source, operand_form form, const step_state* state,
                                  thread_pool& pool) {
    const form_options how = resolve_form(request(), form, state);
    const block_format f = block_format_of(how.recipe);
    block_options o = block_options_for(how);
    if (!has_factor(how.recipe.format)) return o;
    o.encode_factor = tensor_encode_factor(tensor_amax(f, o, source, how.axis, pool), f.element, f.scale, o.choice);
    factor_of(form) = 1.0f / o.encode_factor;
    return o;
  }

  /// Values of the row form, rotation undone, rounded to BF16.
  void dequantize_row_form(bf16* target, const step_state* state, thread_pool& pool) const {
    const gemm_operand& from = row_;
    const matrix<bf16> to = row_major(target, from.rows, from.k);
    const float factor = from.factor != nullptr ? *from.factor : 1.0f;
    if (from.block != 0) {
      const block_matrix<const std::uint8_t> in{from.rows,        from.k,      from.codes,
                                                from.code_stride, from.scales, from.scale_stride};
      const rotation turn = block_options_for(resolve_form(request(), operand_form::row, state)).rotation;
      if (turn.points == 0) return rotoscale::dequantize(from.blocks(), in, block_axis::row, to, pool, factor);
      const rotoscale::detail::decode_table table(from.element);
      const int run = run_length_of(*request().row);
      return pool.for_each(from.rows, [&](index_t r) {
        float values[max_run_length];
        for (index_t c = 0; c < from.k; c += run) {
          for (index_t b = 0; b < run; b += from.block) {
            rotoscale::detail::dequantize_block(from.blocks(), table, in, r, c + b, from.block, factor, values + b);
          }
          unrotate_run(values, run, turn);
          rotoscale::detail::store_values(values, run, &to(r, c));
        }
      });
    }
    pool.for_each(from.rows, [&](index_t r) {
      for (index_t c = 0; c < from.k; ++c) {
        const std::uint8_t* const at = from.codes + r * from.code_stride + c * from.element.bits() / 8;
        const float x = from.element == formats::bf16 ? load_element(*reinterpret_cast<const bf16*>(at))
                                                      : decode(from.element, *at) * factor;
        store_element(to(r, c), x);
      }
    });
  }

  float& factor_of(operand_form form) { return *const_cast<float*>(this->form(form).factor); }

  placement_plan plan_;
  gemm_operand row_, column_;
};

}  // namespace rotoscale::nn::cpu
