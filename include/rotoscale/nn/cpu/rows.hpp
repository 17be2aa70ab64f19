// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// CPU bodies of all operations: compute(in, out, pool) names the storage types and calls the arithmetic. These bodies
// define every contract. Threads own outputs, so results do not depend on their number. workspace(in, out) is the
// workspace of a body that takes more than rows of its tensors.
#pragma once

#include "rotoscale/gemm.hpp"
#include "rotoscale/nn/cpu/attention.hpp"
#include "rotoscale/nn/cpu/dropout.hpp"
#include "rotoscale/nn/cpu/layers.hpp"
#include "rotoscale/nn/cpu/operands.hpp"
#include "rotoscale/nn/cpu/optimizer.hpp"
#include "rotoscale/nn/cpu/statistics.hpp"
#include "rotoscale/nn/cpu/tiled_attention.hpp"
#include "rotoscale/nn/operations.hpp"

namespace rotoscale::nn::cpu {

/// n values of the running queue's workspace.
template <class T>
scratch_array<T> work(index_t n) {
  const std::size_t needed = static_cast<std::size_t>(n) * sizeof(T), rest = scratch_stack::of_thread().rest().size();
  if (needed <= rest) return scratch_array<T>(n);
  throw std::length_error("needs " + std::to_string(needed) + " bytes of workspace, has " + std::to_string(rest));
}

/// Workspace of an operation in bytes: shared by its threads, and of each thread.
struct room {
  std::size_t shared = 0, thread = 0;
};
/// The shared part that work<T>(n) takes.
template <class T>
room room_for(index_t n, std::size_t thread = 0) {
  return {scratch_array<T>::bytes(n), thread};
}
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
  ++o.state->micro_batch;
}

// GEMM operands.

inline void compute(const op::quantize::in& i, const op::quantize::out& o, thread_pool& pool) {
  static_cast<operands&>(*o.to.set).quantize(i.source, o.to, i.state, pool);
}
inline void compute(const op::dequantize::in& i, const op::dequantize::out& o, thread_pool& pool) {
  with_storage(o.to.type,
               [&](auto t) { dequantize_operand(form_of(i.what), i.what.form, as_matrix<decltype(t)>(o.to), pool); });
}
inline void compute(const op::update_scales::in& i, const op::update_scales::out& o, thread_pool&) {
  update_scales(o.state, i.rule);
}
inline void compute(const op::observe::in& i, const op::observe::out& o, thread_pool& pool) {
  const gemm_operand& stored = form_of(i.what);
  const rotation rotated = block_options_for(resolve_form(i.what.set->request(), i.what.form, i.state)).rotation;
  with_storage(i.source.type, [&](auto t) {
    observe_operand(as_matrix<const decltype(t)>(i.source), stored, i.what.form, rotated,
                    work<operand_statistics>(stored.rows).data(), *o.to, pool);
  });
}
inline void compute(const op::compare::in& i, const op::compare::out& o, thread_pool& pool) {
  compare_tensors(i.value, i.reference, i.n, work<double>(4 * chunk_count(i.n)).data(), *o.to, pool);
}

inline room workspace(const op::observe::in& i, const op::observe::out&) {
  const index_t rows = std::max(i.source.extent(0), i.source.extent(1));
  return room_for<operand_statistics>(rows, observed_bytes(rows));
}
inline room workspace(const op::compare::in& i, const op::compare::out&) {
  return room_for<double>(4 * chunk_count(i.n));
}

/// True if the contract's unit multiplies the operand as BF16 numbers.
inline bool becomes_bf16(const gemm_operand& o, const gemm_contract& contract) {
  if (!expands_to_bf16(o.element, o.scale)) return false;
  const mma_unit* const unit = nn::detail::find_unit_and_kernel(contract.name).unit;
  return unit != nullptr && unit->block == 0 && takes(*unit, formats::bf16) && !takes(*unit, o.element);
}

/// The GEMM of operands as they are stored.
inline void multiply_stored(const gemm_operand& a, const gemm_operand& b, const op::gemm::in& i, const tensor_view& c,
                            thread_pool& pool) {
  gemm_options o = i.contract.options;
  o.accumulate = i.accumulate;
  if (c.type == dtype::fp32) {
    o.output = element_format(i.output);
    return rotoscale::gemm(a, b, o, as_matrix<float>(c), pool);
  }
  // Stored as BF16, so rounded to BF16 whatever the recipe's output is.
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
  multiply_stored(a, b, i, c, pool);
}
inline void compute(const op::gemm::in& i, const op::gemm::out& o, thread_pool& pool) {
  multiply(form_of(i.a), form_of(i.b), i, o.c, pool);
}

/// FP32 sums of a BF16 result. The GEMM's own workspace is added: see gemm_workspace_bytes.
inline room workspace(const op::gemm::in&, const op::gemm::out& o) {
  return room_for<float>(o.c.type == dtype::bf16 ? o.c.extent(0) * o.c.extent(1) : 0);
}

// Layers.

/// Throws std::out_of_range for an id outside the vocabulary.
inline void check_tokens(const std::int32_t* tokens, index_t n, index_t vocabulary, bool may_mask) {
  for (index_t t = 0; t < n; ++t) {
    if ((may_mask && tokens[t] == ignored_target) || (tokens[t] >= 0 && tokens[t] < vocabulary)) continue;
    throw std::out_of_range("number " + std::to_string(tokens[t]) + " at " + std::to_string(t) +
                            " is outside a vocabulary of " + std::to_string(vocabulary));
  }
}

inline void compute(const op::embedding_forward::in& i, const op::embedding_forward::out& o, thread_pool& pool) {
  const std::int32_t* const now = i.tokens.now(*i.state);
  check_tokens(now, o.y.extent(0), i.table.extent(0), false);
  with_storage(o.y.type, [&](auto t) {
    embedding_forward(now, as_matrix<const float>(i.table), as_matrix<decltype(t)>(o.y), pool);
  });
}
inline void compute(const op::embedding_backward::in& i, const op::embedding_backward::out& o, thread_pool& pool) {
  const auto room = work<index_t>(token_order::room(i.dy.extent(0), o.dtable.extent(0)));
  with_storage(i.dy.type, [&](auto t) {
    embedding_backward(i.tokens.now(*i.state), as_matrix<const decltype(t)>(i.dy), as_matrix<float>(o.dtable),
                       room.data(), pool);
  });
}
inline room workspace(const op::embedding_backward::in& i, const op::embedding_backward::out& o) {
  return room_for<index_t>(token_order::room(i.dy.extent(0), o.dtable.extent(0)));
}
inline void compute(const op::rmsnorm_forward::in& i, const op::rmsnorm_forward::out& o, thread_pool& pool) {
  with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    rmsnorm_forward<T>(as_matrix<const T>(i.x), {}, i.gain, i.epsilon, {}, as_matrix<T>(o.y), o.rstd, pool);
  });
}
inline void compute(const op::rmsnorm_backward::in& i, const op::rmsnorm_backward::out& o, thread_pool& pool) {
  const auto partial = work<float>(layernorm_partials(i.x.extent(0), i.x.extent(1)) / 2);
  with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    rmsnorm_backward(as_matrix<const T>(i.dy), as_matrix<const T>(i.x), i.gain, i.rstd, as_matrix<T>(o.dx), o.dgain,
                     partial.data(), pool);
  });
}
inline room workspace(const op::rmsnorm_backward::in& i, const op::rmsnorm_backward::out&) {
  return room_for<float>(layernorm_partials(i.x.extent(0), i.x.extent(1)) / 2, row_bytes(i.x.extent(1)));
}
inline void compute(const op::layernorm_forward::in& i, const op::layernorm_forward::out& o, thread_pool& pool) {
  with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    layernorm_forward<T>(as_matrix<const T>(i.x), {}, i.gain, i.bias, i.epsilon, {}, as_matrix<T>(o.y), o.mean, o.rstd,
                         pool);
  });
}
inline void compute(const op::layernorm_backward::in& i, const op::layernorm_backward::out& o, thread_pool& pool) {
  const auto partial = work<float>(layernorm_partials(i.x.extent(0), i.x.extent(1)));
  with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    layernorm_backward<T>(as_matrix<const T>(i.dy), as_matrix<const T>(i.x), i.gain, i.mean, i.rstd, as_matrix<T>(o.dx),
                          o.dgain, o.dbias, partial.data(), pool);
  });
}
inline room workspace(const op::layernorm_backward::in& i, const op::layernorm_backward::out&) {
  return room_for<float>(layernorm_partials(i.x.extent(0), i.x.extent(1)), row_bytes(i.x.extent(1)));
}
inline void compute(const op::bias_forward::in& i, const op::bias_forward::out& o, thread_pool& pool) {
  with_storage(o.x.type,
               [&](auto t) { bias_forward(as_matrix<const float>(i.table), as_matrix<decltype(t)>(o.x), pool); });
}
inline void compute(const op::bias_backward::in& i, const op::bias_backward::out& o, thread_pool& pool) {
  const auto partial = work<float>(bias_partials(i.dy.extent(0), i.dy.extent(1), o.dtable.extent(0)));
  with_storage(i.dy.type, [&](auto t) {
    using T = decltype(t);
    bias_backward<T>(as_matrix<const T>(i.dy), as_matrix<float>(o.dtable), partial.data(), pool);
  });
}
inline room workspace(const op::bias_backward::in& i, const op::bias_backward::out& o) {
  return room_for<float>(bias_partials(i.dy.extent(0), i.dy.extent(1), o.dtable.extent(0)), row_bytes(i.dy.extent(1)));
}
/// With a branch and without the quantizer.
inline void compute(const op::residual_norm::in& i, const op::residual_norm::out& o, thread_pool& pool) {
  with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    if (i.bias != nullptr) {
      return layernorm_forward<T>(as_matrix<const T>(i.x), as_matrix<const T>(i.branch), i.gain, i.bias, i.epsilon,
                                  as_matrix<T>(o.sum), as_matrix<T>(o.y), o.mean, o.rstd, pool);
    }
    rmsnorm_forward<T>(as_matrix<const T>(i.x), as_matrix<const T>(i.branch), i.gain, i.epsilon, as_matrix<T>(o.sum),
                       as_matrix<T>(o.y), o.rstd, pool);
  });
}
inline void compute(const op::rope::in& i, const op::rope::out& o, thread_pool& pool) {
  with_storage(o.x.type, [&](auto t) { rope(as<decltype(t), 4>(o.x), i.cosine, i.sine, i.inverse, pool); });
}

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

/// Input `at` of activation A: half of x if A is gated, otherwise x.
template <class A, class T, class View>
matrix<T> input_of(const View& x, index_t at) {
  const index_t n = x.extent(1) / 2;
  return as_matrix<T>(A::gated ? x.part(1, at * n, n) : x);
}
inline void compute(const op::activation_forward::in& i, const op::activation_forward::out& o, thread_pool& pool) {
  with_storage(o.h.type, [&](auto t) {
    with_activation(i.which, [&](auto a) {
      using T = decltype(t);
      using A = decltype(a);
      activation_forward(a, input_of<A, const T>(i.x, 0), input_of<A, const T>(i.x, 1), as_matrix<T>(o.h), pool);
    });
  });
}
inline void compute(const op::activation_backward::in& i, const op::activation_backward::out& o, thread_pool& pool) {
  with_storage(i.dh.type, [&](auto t) {
    with_activation(i.which, [&](auto a) {
      using T = decltype(t);
      using A = decltype(a);
      activation_backward(a, as_matrix<const T>(i.dh), input_of<A, const T>(i.x, 0), input_of<A, const T>(i.x, 1),
                          input_of<A, T>(o.dx, 0), input_of<A, T>(o.dx, 1), pool);
    });
  });
}
inline void compute(const op::add::in& i, const op::add::out& o, thread_pool& pool) {
  with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    add(as_matrix<const T>(i.x), as_matrix<const T>(i.y), as_matrix<T>(o.sum), pool);
  });
}
inline void compute(const op::dropout::in& i, const op::dropout::out& o, thread_pool& pool) {
  const random_stream words = i.args.words(*i.state);
  with_storage(i.x.type, [&](auto s) {
    with_storage(o.y.type, [&](auto t) {
      dropout(as_matrix<const decltype(s)>(i.x), i.args, words, as_matrix<decltype(t)>(o.y), i.accumulate, pool);
    });
  });
}

// Loss and optimizer.

inline void compute(const op::cross_entropy::in& i, const op::cross_entropy::out& o, thread_pool& pool) {
  const std::int32_t* const now = i.targets.now(*i.state) + i.first;
  check_tokens(now, o.logits.extent(0), o.logits.extent(1), true);
  cross_entropy(as_matrix<float>(o.logits), now, o.loss, i.gradients, i.state->gradient_scale, pool);
}
inline room workspace(const op::cross_entropy::in&, const op::cross_entropy::out& o) {
  return {0, softmax_bytes(o.logits.extent(1))};
}
inline void compute(const op::sum_losses::in& i, const op::sum_losses::out& o, thread_pool&) {
  const auto terms = work<double>(i.n);
  for (index_t t = 0; t < i.n; ++t) terms[t] = static_cast<double>(i.loss[t]);
  o.state->loss_sum += tree_sum(terms.data(), i.n);
}
inline room workspace(const op::sum_losses::in& i, const op::sum_losses::out&) { return room_for<double>(i.n); }
inline void compute(const op::sum_squares::in& i, const op::sum_squares::out& o, thread_pool& pool) {
  for (std::size_t s = 0; s < i.arena.segments.size(); ++s) {
    const parameter_arena::segment& own = i.arena.segments[s];
    o.squares[s] = sum_squares(i.x + own.first, own.count, work<double>(chunk_count(own.count)).data(), pool);
  }
}
inline void compute(const op::gradient_norm::in& i, const op::gradient_norm::out& o, thread_pool& pool) {
  gradient_norm(i.arena, i.config, *o.state, work<double>(chunk_count(i.arena.size)).data(), pool);
}
inline room workspace(const op::sum_squares::in& i, const op::sum_squares::out&) {
  return room_for<double>(chunk_count(i.arena.size));
}
inline room workspace(const op::gradient_norm::in& i, const op::gradient_norm::out&) {
  return room_for<double>(chunk_count(i.arena.size));
}
inline void compute(const op::adamw::in& i, const op::adamw::out& o, thread_pool& pool) {
  adamw(o.arena, i.config, *i.state, pool);
}

}  // namespace rotoscale::nn::cpu
