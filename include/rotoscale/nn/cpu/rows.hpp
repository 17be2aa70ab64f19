// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// CPU bodies of all operations: compute(in, out, pool) names the storage types and calls the arithmetic. These bodies
// define every contract. Threads own outputs, so results do not depend on their number. workspace(in, out) is the
// workspace of a body that takes more than rows of its tensors.
#pragma once

#include "rotoscale/gemm.hpp"
#include "rotoscale/nn/cpu/attention.hpp"
#include "rotoscale/nn/cpu/dropout.hpp"
#include "rotoscale/nn/cpu/exact_steps.hpp"
#include "rotoscale/nn/cpu/layers.hpp"
#include "rotoscale/nn/cpu/operands.hpp"
#include "rotoscale/nn/cpu/optimizer.hpp"
#include "rotoscale/nn/cpu/statistics.hpp"
#include "rotoscale/nn/cpu/tiled_attention.hpp"
#include "rotoscale/nn/gradient_estimator.hpp"
#include "rotoscale/nn/operations.hpp"

namespace rotoscale::nn::cpu {

/// Columns of the widest tensor of a call.
template <class Op>
index_t widest(const typename Op::in& i, const typename Op::out& o) {
  index_t cols = 0;
  Op::uses([&](const op_use& u) { cols = u.at.rank < 2 ? cols : std::max(cols, u.at.extent(u.at.rank - 1)); }, i, o);
  return cols;
}

/// Addresses of an operand's codes, block scales and factor.
inline const gemm_operand& form_of(const operand& o) { return static_cast<const operands&>(*o.set).form(o.form); }

// Step state.

inline void compute(const op::begin_step::in& i, const op::begin_step::out& o, thread_pool&) {
  step_state fresh;
  fresh.inputs = o.state->inputs;
  for (index_t t = 0; t < i.count; ++t) fresh.valid_tokens += i.targets[t] != ignored_target;
  *o.state = fresh;
}
inline void compute(const op::set_gradient_scale::in&, const op::set_gradient_scale::out& o, thread_pool&) {
  o.state->gradient_scale = gradient_scale_of(o.state->valid_tokens);
}
inline void compute(const op::next_micro_batch::in&, const op::next_micro_batch::out& o, thread_pool&) {
  o.state->end_micro_batch();
}

// GEMM operands.

inline void compute(const op::quantize::in& i, const op::quantize::out& o, thread_pool& pool) {
  static_cast<operands&>(*o.to.set).quantize(i.source, o.to, i.state, pool);
}
inline void compute(const op::dequantize::in& i, const op::dequantize::out& o, thread_pool& pool) {
  with_storage(o.to.type,
               [&](auto t) { dequantize_operand(form_of(i.what), i.what.form, as_matrix<decltype(t)>(o.to), pool); });
}
inline void compute(const op::observe::in& i, const op::observe::out& o, thread_pool& pool) {
  const gemm_operand& stored = form_of(i.what);
  const rotation rotated = block_options_for(resolve_form(i.what.set->request(), i.what.form, i.state)).rotation;
  with_storage(i.source.type, [&](auto t) {
    observe_operand(as_matrix<const decltype(t)>(i.source), stored, i.what.form, rotated,
                    work<operand_statistics>(stored.rows).data(), *o.to, pool);
  });
}
inline void compute(const op::estimate_gradient::in& i, const op::estimate_gradient::out& o, thread_pool& pool) {
  const gemm_operand& w = form_of(i.w);
  const float factor = w.factor != nullptr ? *w.factor : 1.0f;
  const matrix<const float> values = as_matrix<const float>(i.values);
  const matrix<float> gradient = as_matrix<float>(o.gradient);
  detail::for_each_element(w.rows, w.k, pool, [&](index_t r, index_t c) {
    const std::uint8_t scale = w.scales[r / w.block_rows * w.scale_stride + c / w.block];
    gradient(r, c) *= dge_slope(bf16_value(values(r, c)) * element_factor(w.scale, scale, factor));
  });
}
inline room workspace(const op::observe::in& i, const op::observe::out&) {
  const index_t rows = std::max(i.source.extent(0), i.source.extent(1));
  return room_for<operand_statistics>(rows, observed_bytes(rows));
}

/// True if the contract's unit multiplies the operand as BF16 numbers.
inline bool becomes_bf16(const gemm_operand& o, const gemm_contract& contract) {
  if (!expands_to_bf16(o.element, o.scale)) return false;
  const mma_unit* const unit = nn::detail::find_unit_and_kernel(contract.name).unit;
  return unit != nullptr && unit->block == 0 && takes(*unit, formats::bf16) && !takes(*unit, o.element);
}

/// The GEMM of operands as they are stored.
inline void multiply_stored(const gemm_operand& a, const gemm_operand& b, const op::gemm::in& i, gemm_options o,
                            const tensor_view& c, thread_pool& pool) {
  o.accumulate = i.accumulate;
  if (c.type == dtype::fp32) {
    o.output = element_format(i.output);
    return rotoscale::gemm(a, b, o, as_matrix<float>(c), pool);
  }
  // Stored as BF16, so rounded to BF16 for every output of the recipe.
  o.output = formats::bf16;
  const matrix<bf16> to = as_matrix<bf16>(c);
  const auto sums = work<float>(a.rows * b.rows);
  const matrix<float> wide = row_major(sums.data(), a.rows, b.rows);
  const auto each_row = [&](const auto& body) {
    for_each_chunk(pool, a.rows, row_chunk, [&](index_t first, index_t last) {
      for (index_t r = first; r < last; ++r) body(r);
    });
  };
  if (i.accumulate) each_row([&](index_t r) { read_row(&to(r, 0), b.rows, &wide(r, 0)); });
  rotoscale::gemm(a, b, o, wide, pool);
  each_row([&](index_t r) { write_row(&wide(r, 0), b.rows, &to(r, 0)); });
}

/// A BF16 unit aligns a product by the exponents of BF16 numbers, which differ from those of subnormal codes. So such
/// operands are converted first. The operand's factor multiplies the sum.
inline void multiply(const gemm_operand& a, const gemm_operand& b, const op::gemm::in& i, const tensor_view& c,
                     thread_pool& pool) {
  const gemm_options& o = i.contract.options;
  if (has_exact_steps(a, b, o)) return multiply_stored(a, b, i, blockwise_options(o), c, pool);
  for (const gemm_operand* const x : {&a, &b}) {
    if (!becomes_bf16(*x, i.contract)) continue;
    const auto values = work<bf16>(x->rows * x->k);
    gemm_operand codes = *x;
    codes.factor = nullptr;
    dequantize_operand(codes, operand_form::row, row_major(values.data(), x->rows, x->k), pool);
    gemm_operand converted = make_operand(row_major<const bf16>(values.data(), x->rows, x->k));
    converted.factor = x->factor;
    return multiply(x == &a ? converted : a, x == &b ? converted : b, i, c, pool);
  }
  multiply_stored(a, b, i, o, c, pool);
}
inline void compute(const op::gemm::in& i, const op::gemm::out& o, thread_pool& pool) {
  multiply(form_of(i.a), form_of(i.b), i, o.c, pool);
}

/// FP32 sums of a BF16 result. The GEMM's own workspace is added: see gemm_workspace_bytes.
inline room workspace(const op::gemm::in&, const op::gemm::out& o) {
  return room_for<float>(o.c.type == dtype::bf16 ? o.c.extent(0) * o.c.extent(1) : 0);
}

// Layers.

/// Document starts of the microbatch's tokens, or null. Throws for a start after its token, which would see no key.
template <class In>
const std::int32_t* document_starts(const In& i) {
  if (i.starts.data == nullptr) return nullptr;
  const std::int32_t* const starts = i.starts.now(*i.state);
  const index_t seq = i.k.extent(1);
  for (index_t t = 0; t < i.k.extent(0) * seq; ++t) {
    if (starts[t] >= 0 && starts[t] <= t % seq) continue;
    throw std::out_of_range("document start " + std::to_string(starts[t]) + " of token " + std::to_string(t % seq));
  }
  return starts;
}
inline void compute(const op::attention_forward::in& i, const op::attention_forward::out& o, thread_pool& pool) {
  const std::int32_t* const starts = document_starts(i);
  with_storage(o.o.type, [&](auto t) {
    using T = decltype(t);
    const auto x = [](const const_tensor_view& v) { return as<const T, 4>(v); };
    if (i.contract.tiled) {
      tiled_attention_forward(i.contract, x(i.q), x(i.k), x(i.v), as<T, 4>(o.o), o.lse, starts, pool);
    } else {
      attention_forward(x(i.q), x(i.k), x(i.v), as<T, 4>(o.o), o.lse, starts, pool);
    }
  });
}
inline void compute(const op::attention_backward::in& i, const op::attention_backward::out& o, thread_pool& pool) {
  ROTOSCALE_ASSERT(i.k.extent(1) == i.q.extent(1));
  const std::int32_t* const starts = document_starts(i);
  with_storage(i.o.type, [&](auto t) {
    using T = decltype(t);
    const auto x = [](const const_tensor_view& v) { return as<const T, 4>(v); };
    const auto y = [](const tensor_view& v) { return as<T, 4>(v); };
    if (i.contract.tiled) {
      tiled_attention_backward(i.contract, x(i.q), x(i.k), x(i.v), x(i.o), i.lse, x(i.d_o), y(o.dq), y(o.dk), y(o.dv),
                               starts, pool);
    } else {
      attention_backward(x(i.q), x(i.k), x(i.v), x(i.o), i.lse, x(i.d_o), y(o.dq), y(o.dk), y(o.dv), starts, pool);
    }
  });
}

inline room workspace(const op::attention_forward::in& i, const op::attention_forward::out&) {
  const index_t keys = i.k.extent(1), dim = i.k.extent(3);
  return {0, i.contract.tiled ? detail::tiled_scratch::bytes(i.contract.model, keys, dim)
                              : detail::attention_scratch::bytes(keys, dim)};
}
inline room workspace(const op::attention_backward::in& i, const op::attention_backward::out&) {
  return workspace(op::attention_forward::in{i.q, i.k, i.v, i.starts, i.contract, i.state}, {});
}

}  // namespace rotoscale::nn::cpu
