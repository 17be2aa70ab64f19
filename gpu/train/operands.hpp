// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// How a device keeps a tensor's operands.
// - FP32, and BF16 of a BF16 source, is the source itself. Other BF16 is one copy; its column form is read transposed.
// - FP8 and forms with blocks have k contiguous. One launch makes both forms if their options are equal.
// - A form with blocks whose GEMM multiplies BF16 is BF16 in the source's orientation, without codes.
#pragma once

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/api/dequantize.hpp"
#include "gpu/api/device.hpp"
#include "gpu/api/kept_values.hpp"
#include "gpu/api/nn.hpp"
#include "gpu/api/quantize_state.hpp"
#include "rotoscale/nn/operand.hpp"

namespace rotoscale::gpu {

/// Bytes between rows of codes: FP8 as matrix kernels read it.
inline index_t code_stride(const nn::operand_recipe& r, index_t k) {
  const nn::operand_format stored = nn::stored_format(r);
  const index_t bytes = packed_bytes(nn::element_format(stored), k);
  return nn::is_fp8(stored) ? (bytes + 15) / 16 * 16 : bytes;
}

/// An operand of a recipe with k contiguous, without memory.
inline gemm_operand operand_of(const nn::operand_recipe& r, index_t rows, index_t k) {
  gemm_operand o;
  o.element = nn::element_format(nn::stored_format(r));
  o.rows = rows;
  o.k = k;
  o.code_stride = code_stride(r, k);
  if (!nn::has_blocks(nn::stored_format(r))) return o;
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
      values_[index(f)] = reinterpret_cast<bf16*>(bytes + plan_.of(f).values);
      numbers_[index(f)] = reinterpret_cast<float*>(bytes + plan_.of(f).numbers);
      inner_[index(f)] = bytes + plan_.of(f).inner;
      inner_scales_[index(f)] = bytes + plan_.of(f).scales;
      if (nn::is_current(*this->request().recipe(f))) scale_ = reinterpret_cast<float*>(bytes + plan_.of(f).scale);
    }
    for (const unsigned forms : {1u, 2u, 3u}) {
      const bool row = (forms & 1u) != 0, column = (forms & 2u) != 0;
      if ((!row || this->request().row) && (!column || this->request().column)) launches_[forms] = plan_launches(forms);
    }
  }

  static nn::operand_layout layout(const nn::operand_request& r) {
    const plan p = plan_for(r);
    return {p.bytes, p.forms[0].in_place || p.forms[1].in_place};
  }

  const gemm_operand& form(nn::operand_form f) const { return forms_[index(f)]; }

  /// True if a form with blocks is stored as BF16 numbers.
  bool is_in_bf16(nn::operand_form f) const { return plan_.of(f).in_bf16; }
  /// Bytes for codes and scales of a form of a matrix.
  static std::size_t bytes_of_codes(index_t rows, index_t cols) {
    return static_cast<std::size_t>(rows * cols + rows * cols / 16) + 2 * alignment;
  }
  /// Quantizes a form that is stored as BF16 numbers to codes in `memory`, bytes_of_codes aligned to 16 bytes, from the
  /// values and with the factor that made it. `made`: the codes.
  status quantize_again(nn::const_tensor_view source, nn::operand_form f, const nn::step_state* state,
                        std::uint8_t* memory, gemm_operand& made, stream s) const {
    const bool row = f == nn::operand_form::row;
    const nn::operand_recipe& own = *request().recipe(f);
    const float* const factor = made.factor;
    made = operand_of(own, row ? request().rows : request().cols, row ? request().cols : request().rows);
    made.codes = memory;
    made.scales = memory + padded(made.rows * made.code_stride);
    made.factor = factor;
    quantized_output q = block_output_of(f, state), none;
    q.codes = memory;
    q.scales = const_cast<std::uint8_t*>(made.scales);
    const auto make = [&](const auto& from) {
      return gpu::quantize(made.blocks(), from, row ? q : none, row ? none : q, s);
    };
    if (own.source == nn::operand_source::forward) {
      return make(row_major<const bf16>(values_[1], request().rows, request().cols));
    }
    return source.type == nn::dtype::bf16 ? make(as_matrix<const bf16>(source)) : make(as_matrix<const float>(source));
  }

  /// Outputs of one launch.
  using fused_target = std::variant<block_target, fp8_target>;
  /// Where quantizing writes if one launch makes all of it, both orientations included.
  static std::optional<fused_target> one_launch(const nn::quantize_target& to, const nn::step_state* state) {
    if (to.set == nullptr) return std::nullopt;
    const auto& set = static_cast<const operands&>(*to.set);
    const launch_plan& plan = set.launches_of(to);
    if (!plan.fused) return std::nullopt;
    const quantizer_launch& l = plan.launches[0];
    if (l.kind == launch_kind::cast) return set.fp8_target_of(l, to.scaling, state);
    if (l.kind != launch_kind::blocks || set.plan_.of(l.form).in_bf16 || to.scaling.amax != nullptr)
      return std::nullopt;
    return set.block_target_of(l, state);
  }
  /// Target of an FP32 tensor's BF16 copy, if quantizing writes nothing else; else null.
  static bf16* only_bf16(const nn::quantize_target& to) {
    if (to.set == nullptr || to.scaling.amax != nullptr) return nullptr;
    const auto& set = static_cast<const operands&>(*to.set);
    const launch_plan& plan = set.launches_of(to);
    const bool known = (!to.row || set.request().row) && (!to.column || set.request().column);
    const bool copies = known && plan.fused && plan.launches[0].kind == launch_kind::bf16_copy;
    return copies ? set.bf16_codes(plan.launches[0].form) : nullptr;
  }
  /// A backend's quantize.
  status quantize(nn::const_tensor_view source, const nn::quantize_target& to, const nn::step_state* state,
                  stream s) const {
    ROTOSCALE_ASSERT(source.stride(1) == 1 && source.extent(0) == request().rows && source.extent(1) == request().cols);
    return source.type == nn::dtype::bf16 ? launch_all(as_matrix<const bf16>(source), to, state, s)
                                          : launch_all(as_matrix<const float>(source), to, state, s);
  }

 private:
  static constexpr std::size_t alignment = 256;
  static std::size_t padded(index_t bytes) {
    return (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
  }
  struct place {
    std::size_t codes = 0, scales = 0, factor = 0, amax = 0, values = 0, scale = 0, numbers = 0, inner = 0;
    bool in_place = false;
    bool in_bf16 = false;  ///< numbers in place of codes
  };
  struct plan {
    place forms[2];  ///< row, column
    std::size_t bytes = 0;
    const place& of(nn::operand_form f) const { return forms[index(f)]; }
  };

  /// A launch that makes one form, or both. dequantize_row makes the column form: the row form's values in BF16.
  /// requantize_row quantizes those values into the column form. values makes the BF16 of quantized values, in several
  /// launches.
  enum class launch_kind { cast, blocks, values, dequantize_row, requantize_row, bf16_copy };
  struct quantizer_launch {
    launch_kind kind;
    nn::operand_form form;
    bool both = false;
    bool makes(nn::operand_form f) const { return both || f == form; }
  };
  /// Launches that make a set of forms, in order.
  struct launch_plan {
    std::vector<quantizer_launch> launches;
    bool fused = false;  ///< the only launch makes all forms, and kernels that make the tensor can do it
  };

  static int index(nn::operand_form f) { return f == nn::operand_form::column; }
  const launch_plan& launches_of(const nn::quantize_target& to) const {
    return launches_[(to.row && request().row ? 1 : 0) + (to.column && request().column ? 2 : 0)];
  }
  /// True if a form's codes and scales are stored as BF16 numbers.
  static bool is_stored_in_bf16(const nn::operand_request& r, nn::operand_form f) {
    const nn::operand_recipe& own = *r.recipe(f);
    const bool row = f == nn::operand_form::row;
    if (!(row ? r.row_in_bf16 : r.column_in_bf16) || !nn::has_blocks(own.format)) return false;
    // A rotated row form is unrotated for the column form from its codes.
    if (row && r.column && nn::takes_row_form(*r.column) && own.rotation.points != 0) return false;
    const block_format blocks = nn::block_format_of(own);
    const index_t rows = row ? r.rows : r.cols, k = row ? r.cols : r.rows;
    const bool whole = k % 32 == 0 && (blocks.rows == 1 || rows % 32 == 0) && r.cols % 8 == 0;
    return whole && has_values_kernel(blocks, own.rotation.points, own.choice);
  }
  static bool is_bf16(const std::optional<nn::operand_recipe>& r) { return r && r->format == nn::operand_format::bf16; }

  static plan plan_for(const nn::operand_request& r) {
    plan p;
    const auto take = [&](index_t bytes) {
      const std::size_t at = p.bytes;
      p.bytes += padded(bytes);
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
      if (nn::keeps_values(own)) {
        at.codes = take(rows * code_stride(own, k));
        place_values(at, own, rows, k, take);
        continue;
      }
      at.in_bf16 = is_stored_in_bf16(r, f);
      at.codes = take(at.in_bf16 ? rows * k * index_t{sizeof(bf16)} : rows * code_stride(own, k));
      if (own.source == nn::operand_source::forward) at.values = take(rows * k * index_t{sizeof(bf16)});
      if (nn::has_blocks(own.format) && !at.in_bf16) {
        const block_format f = nn::block_format_of(own);
        at.scales = take(rows / f.rows * (k / f.length));
      }
      // The second-level factor is computed from the tensor's amax in every step.
      if (own.format == nn::operand_format::nvfp4) {
        at.factor = take(sizeof(float));
        at.amax = take(amax_words * sizeof(std::uint32_t));
      }
      // Both forms of a tensor have one scale.
      const bool has_factor = !row && r.row && nn::is_fp8(nn::stored_format(*r.row));
      if (nn::is_fp8(own.format)) at.factor = has_factor ? p.forms[0].factor : take(sizeof(float));
      if (nn::is_current(own)) at.scale = has_factor ? p.forms[0].scale : take(3 * sizeof(float));
    }
    return p;
  }

  /// Memory that makes kept values: numbers of groups, and codes of an inner quantizer with the values that it takes.
  template <class Take>
  static void place_values(place& at, const nn::operand_recipe& own, index_t rows, index_t k, const Take& take) {
    const nn::value_recipe v = nn::value_recipe_of(own, rows, k);
    at.numbers = take(2 * v.groups * index_t{sizeof(float)});
    if (v.kind == nn::value_kind::scaled) return;
    const block_format f = nn::block_format_of(own);
    at.values = take(rows * k * index_t{sizeof(bf16)});
    at.inner = take(rows * packed_bytes(f.element, k));
    at.scales = take(rows / f.rows * (k / f.length));
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
    if (at.in_bf16) {
      o = gemm_operand{};
      o.element = formats::bf16;
      o.rows = row ? r.rows : r.cols;
      o.k = row ? r.cols : r.rows;
    }
    o.codes = memory + at.codes;
    if (o.element == formats::bf16) {
      o.code_stride = r.cols * 2;
      o.transposed = !row;
    }
    if (nn::has_factor(nn::stored_format(own))) o.factor = reinterpret_cast<const float*>(memory + at.factor);
    if (o.block != 0) o.scales = memory + at.scales;
    return o;
  }

  launch_plan plan_launches(unsigned forms) const {
    launch_plan p;
    const bool requantizes = (forms & 2u) != 0 && request().column->source == nn::operand_source::forward;
    const auto add = [&](launch_kind kind, bool (*has)(const nn::operand_recipe&), bool alike) {
      const bool row = (forms & 1u) != 0 && has(*request().row);
      const bool column = (forms & 2u) != 0 && !requantizes && has(*request().column);
      const bool both = row && column && alike;
      if (row) p.launches.push_back({kind, nn::operand_form::row, both});
      if (column && !both) p.launches.push_back({kind, nn::operand_form::column});
    };
    add(
        launch_kind::cast, [](auto& o) { return nn::is_fp8(nn::stored_format(o)); }, have_same_codes());
    add(
        launch_kind::blocks, [](auto& o) { return nn::has_blocks(nn::stored_format(o)); }, have_same_blocks());
    add(
        launch_kind::values, [](auto& o) { return nn::keeps_values(o); }, false);
    add(
        launch_kind::dequantize_row, [](auto& o) { return o.format == nn::operand_format::dequantized; }, false);
    if (requantizes) p.launches.push_back({launch_kind::requantize_row, nn::operand_form::column});
    if (request().source == nn::dtype::fp32) {
      add(
          launch_kind::bf16_copy, [](auto& o) { return o.format == nn::operand_format::bf16; }, true);
    }
    p.fused = p.launches.size() == 1 && (forms != 3 || p.launches[0].both) && is_fused(p.launches[0]);
    return p;
  }
  /// True if both forms have the same FP8 codes, none of them drawn.
  bool have_same_codes() const {
    const auto &row = request().row, &column = request().column;
    return row && column && row->format == column->format && row->rounding == column->rounding &&
           !is_random(nn::operand_form::row) && !is_random(nn::operand_form::column);
  }
  bool have_same_blocks() const {
    const auto &row = request().row, &column = request().column;
    return row && column && nn::has_blocks(row->format) && nn::has_blocks(column->format) &&
           plan_.forms[0].in_bf16 == plan_.forms[1].in_bf16 && !nn::takes_row_form(*column) &&
           nn::block_format_of(*row) == nn::block_format_of(*column);
  }
  /// True if the tensor's producer can fuse this launch: BF16 copies, casts to nearest without a current scale, and
  /// E8M0 blocks (not of 6-bit codes) in whole runs and squares of 32.
  bool is_fused(const quantizer_launch& l) const {
    const auto fuses = [&](nn::operand_form form) {
      const nn::operand_recipe& own = *request().recipe(form);
      if (l.kind == launch_kind::cast) return own.rounding == rounding::nearest_even && !nn::is_current(own);
      if (l.kind != launch_kind::blocks) return l.kind == launch_kind::bf16_copy;
      const block_format f = nn::block_format_of(own);
      const bool whole = f.length == 32 || (request().rows % 32 == 0 && request().cols % 32 == 0);
      return has_tile_kernel(f, own.rotation.points) && f.has_e8m0_scale() && f.element.bits() != 6 && whole;
    };
    return fuses(l.form) && (!l.both || fuses(nn::operand_form::column));
  }

  template <class T>
  status launch_all(matrix<const T> source, const nn::quantize_target& to, const nn::step_state* state,
                    stream s) const {
    nn::scaling_ref scaling = to.scaling;  // amax comes with the first cast
    const launch_plan& plan = launches_of(to);
    if (scaling.amax != nullptr && (plan.launches.empty() || plan.launches[0].kind != launch_kind::cast)) {
      fp8_output only;
      only.amax = scaling.amax;
      if (status done = cast_transpose_fp8({}, source, nullptr, only, s); !done.ok()) return done;
    }
    for (const quantizer_launch& l : plan.launches) {
      if (status done = launch(l, source, scaling, state, s); !done.ok()) return done;
      scaling.amax = nullptr;
    }
    return {};
  }
  template <class T>
  status launch(const quantizer_launch& l, matrix<const T> source, const nn::scaling_ref& scaling,
                const nn::step_state* state, stream s) const {
    if (l.kind == launch_kind::cast) {
      nn::scaling_ref scales = scaling;
      if (nn::is_current(*request().recipe(l.form))) {
        scales = {scale_ + 1, scale_ + 2, scaling.amax};
        if (status done = measure_scale(l, source, s); !done.ok()) return done;
      }
      const fp8_target t = fp8_target_of(l, scales, state);
      return cast_transpose_fp8(t.options, source, t.scale, t.out, s);
    }
    if (l.kind == launch_kind::values) return make_values(l, source, state, s);
    if (l.kind == launch_kind::dequantize_row) return dequantize_row_form(bf16_codes(l.form), state, s);
    if (l.kind == launch_kind::requantize_row) {
      const status done = dequantize_row_form(values_[1], state, s);
      return done.ok() ? launch_blocks(l, row_major<const bf16>(values_[1], request().rows, request().cols), state, s)
                       : done;
    }
    if (l.kind == launch_kind::bf16_copy) {
      if constexpr (std::is_same_v<T, float>) return round_bf16(source, bf16_codes(l.form), s);
      return {};
    }
    return launch_blocks(l, source, state, s);
  }
  /// Makes BF16 of quantized values: before the quantizer, the quantizer, back, and after it.
  template <class T>
  status make_values(const quantizer_launch& l, matrix<const T> source, const nn::step_state* state, stream s) const {
    const bool column = l.form == nn::operand_form::column;
    const gemm_operand& made = form(l.form);
    const nn::operand_recipe& own = *request().recipe(l.form);
    const value_form how{nn::value_recipe_of(own, made.rows, made.k), column, numbers_[index(l.form)]};
    bf16* const to = bf16_codes(l.form);
    if (status done = measure_values(how, source, s); !done.ok()) return done;
    if (how.how.kind == nn::value_kind::scaled) return prepare_values(how, source, to, s);
    bf16* const values = values_[index(l.form)];
    if (status done = prepare_values(how, source, values, s); !done.ok()) return done;
    quantized_output q = block_output_of(l.form, state);
    q.codes = inner_[index(l.form)];
    q.scales = inner_scales_[index(l.form)];
    const block_format f = nn::block_format_of(own);
    const auto from = row_major<const bf16>(values, request().rows, request().cols);
    const quantized_output none;
    if (status done = gpu::quantize(f, from, column ? none : q, column ? q : none, s); !done.ok()) return done;
    const gemm_operand inner = make_operand(f, q, made.rows, made.k);
    if (status done = decode_operand(inner, column, to, formats::bf16, request().cols, s); !done.ok()) return done;
    return finish_values(how, source, to, s);
  }
  /// Makes the scale of an FP8 tensor from its own maximum.
  template <class T>
  status measure_scale(const quantizer_launch& l, matrix<const T> source, stream s) const {
    if (status done = fill(scale_, 0, sizeof(float), s); !done.ok()) return done;
    fp8_output only;
    only.amax = scale_;
    if (status done = cast_transpose_fp8({}, source, nullptr, only, s); !done.ok()) return done;
    return current_scale(scale_, nn::element_format(request().recipe(l.form)->format), scale_ + 1, scale_ + 2, s);
  }
  template <class T>
  status launch_blocks(const quantizer_launch& l, matrix<const T> source, const nn::step_state* state, stream s) const {
    const block_target t = block_target_of(l, state);
    if (plan_.of(l.form).in_bf16) return quantize_values(t.blocks, source, t.rows, t.columns, s);
    status done;
    if (t.rows.amax != nullptr || t.columns.amax != nullptr) {
      done = measure_amax(t.blocks, source, t.rows, t.columns, s);  // a factor of the tensor follows from it
    }
    return done.ok() ? gpu::quantize(t.blocks, source, t.rows, t.columns, s) : done;
  }
  /// Values of the row form, rotation undone, rounded to BF16.
  status dequantize_row_form(bf16* to, const nn::step_state* state, stream s) const {
    const gemm_operand& from = form(nn::operand_form::row);
    if (from.block == 0) return decode_operand(from, false, to, formats::bf16, from.k, s);
    const drawn_form drawn = draws(nn::operand_form::row, state);
    return unrotate_operand(from, request().row->rotation.points, drawn.draws, drawn.state, to, from.k, s);
  }

  /// Where the words and signs of a form come from: a state in device memory, or step 0 without one.
  struct drawn_form {
    nn::form_draws draws;
    const nn::step_state* state = nullptr;
  };
  bool is_random(nn::operand_form f) const {
    const nn::operand_recipe& own = *request().recipe(f);
    return nn::draws_words(own) || draws_of(request(), f).draws_signs;
  }
  drawn_form draws(nn::operand_form f, const nn::step_state* state) const {
    nn::form_draws of_form = draws_of(request(), f);
    for (int i = 0; i < nn::sign_words && state == nullptr; ++i) of_form.given_signs[i] = of_form.mask({}, i);
    return {of_form, is_random(f) ? state : nullptr};
  }
  /// Outputs of a cast, both with the options of its form.
  fp8_target fp8_target_of(const quantizer_launch& l, const nn::scaling_ref& scaling,
                           const nn::step_state* state) const {
    const nn::operand_recipe& own = *request().recipe(l.form);
    fp8_target t{{nn::element_format(own.format), formats::bf16, own.rounding}, scaling.scale, {}};
    const drawn_form drawn = draws(l.form, state);
    t.options.draws = drawn.draws;
    t.options.state = drawn.state;
    t.options.random = drawn.draws.words({});
    if (l.makes(nn::operand_form::row)) t.out.rows = codes(nn::operand_form::row);
    if (l.makes(nn::operand_form::column)) t.out.columns = codes(nn::operand_form::column);
    t.out.row_stride = code_stride(own, request().cols);
    t.out.column_stride = code_stride(own, request().rows);
    t.out.amax = scaling.amax;
    t.out.factor = const_cast<float*>(form(l.form).factor);
    t.out.scale_inverse = scaling.scale_inverse;
    return t;
  }
  block_target block_target_of(const quantizer_launch& l, const nn::step_state* state) const {
    block_target t{nn::block_format_of(*request().recipe(l.form)), {}, {}};
    if (l.makes(nn::operand_form::row)) t.rows = block_output_of(nn::operand_form::row, state);
    if (l.makes(nn::operand_form::column)) t.columns = block_output_of(nn::operand_form::column, state);
    return t;
  }
  quantized_output block_output_of(nn::operand_form f, const nn::step_state* state) const {
    quantized_output q;
    if (plan_.of(f).in_bf16) {
      q.values = bf16_codes(f);
    } else {
      q.codes = codes(f);
    }
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
  std::uint8_t* codes(nn::operand_form f) const { return const_cast<std::uint8_t*>(form(f).codes); }
  bf16* bf16_codes(nn::operand_form f) const { return reinterpret_cast<bf16*>(codes(f)); }

  plan plan_;
  gemm_operand forms_[2];
  std::uint32_t* amax_[2] = {};
  bf16* values_[2] = {};    ///< that a form is quantized from: of the row form, or prepared
  float* numbers_[2] = {};  ///< of groups of kept values
  std::uint8_t *inner_[2] = {}, *inner_scales_[2] = {};  ///< of their inner quantizer
  float* scale_ = nullptr;                               ///< amax, scale and inverse of an FP8 tensor that has its own
  launch_plan launches_[4];                              ///< by set of forms: 1 row, 2 column
};

}  // namespace rotoscale::gpu
