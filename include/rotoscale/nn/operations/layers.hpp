// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operations of layers, with their fused forms. x, y, ... are (tokens, features), FP32 or BF16. Sums and functions are
// FP32. Gradients of inputs are overwritten unless stated otherwise. Gradients of weights (FP32) are formed from zero
// and then added. A result that is quantized need not be written if the target does not keep its source.
#pragma once

#include "rotoscale/nn/operations/use.hpp"

/// Calls X(name) for each operation of layers. ROTOSCALE_FUSED_OPERATIONS lists operations that always quantize.
#define ROTOSCALE_LAYER_OPERATIONS(X) \
  X(embedding_forward)                \
  X(embedding_backward)               \
  X(norm_forward)                     \
  X(norm_backward)                    \
  X(bias_forward)                     \
  X(bias_backward)                    \
  X(residual_norm)                    \
  X(rope)                             \
  X(attention_forward)                \
  X(attention_backward)               \
  X(activation_forward)               \
  X(activation_backward)              \
  X(add)                              \
  X(dropout)

// One line for `in`, one for `out`.
// clang-format off
namespace rotoscale::nn::op {

/// Rows of the table, (vocabulary, features), by token.
struct embedding_forward {
  static constexpr op_info info{"embedding_forward", op_class::layer, {"embedding", "embedding-fp32-tokens-ascending"}};
  struct in { token_source tokens; const_tensor_view table; const step_state* state; };
  struct out { tensor_view y; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.table, {}, o.y.size()});
    use({access::write, "embedding_forward", o.y});
  }
};

/// Adds each token's gradient to its row of the table's gradient, tokens ascending.
struct embedding_backward {
  static constexpr op_info info{"embedding_backward", op_class::layer};
  struct in { token_source tokens; const_tensor_view dy; const step_state* state; };
  struct out { tensor_view dtable; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.dy});
    use({access::update, "embedding_backward", o.dtable, {}, i.dy.size()});
  }
};

/// RMSNorm: y = x * rstd * gain, rstd[t] = 1 / sqrt(mean(x²) + eps). With a bias LayerNorm:
/// y = (x - mean) * rstd * gain + bias, rstd[t] = 1 / sqrt(variance + eps).
struct norm_forward {
  static constexpr op_info info{"norm_forward", op_class::layer, {"rmsnorm", "rmsnorm-fp32-lanes16-rows64"}};
  struct in { const_tensor_view x; const float* gain; float epsilon; const float* bias = nullptr; };
  struct out { tensor_view y; float* rstd; float* mean = nullptr; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    use({access::write, i.bias == nullptr ? "rmsnorm_forward" : "layernorm_forward", o.y});
    if (i.bias != nullptr) use({access::write, nullptr, numbers(o.mean, i.x.extent(0))});
    use({access::write, nullptr, numbers(o.rstd, i.x.extent(0))});
  }
};

/// Adds to dx, which holds the residual's gradient. With a mean the norm is LayerNorm. A null dgain means that gain and
/// bias are frozen. With a dtable (1, features), bias_backward of dx follows: x is a sum with a term that has a bias.
struct norm_backward {
  static constexpr op_info info{"norm_backward", op_class::layer, {"layernorm", "layernorm-fp32-lanes16-rows64"}};
  struct in { const_tensor_view dy, x; const float *gain, *rstd, *mean = nullptr; };
  struct out { tensor_view dx; float *dgain, *dbias = nullptr; tensor_view dtable = {}; };
  static void uses(const auto& use, const in& i, const out& o) {
    const bool centred = i.mean != nullptr;
    reads(use, i.dy, i.x);
    use({access::update, centred ? "layernorm_backward" : "rmsnorm_backward", o.dx});
    use({access::update, centred ? "layernorm_backward's gain" : "rmsnorm_backward's gain",
         numbers(o.dgain, i.x.extent(1))});
    if (o.dbias != nullptr) use({access::update, "layernorm_backward's bias", numbers(o.dbias, i.x.extent(1))});
    if (!o.dtable.empty()) use({access::update, "bias_backward", o.dtable});
  }
};

/// Adds row t mod r of a table (r, features), FP32, to row t of x. A bias has one row; learned positions have the rows
/// of a sequence.
struct bias_forward {
  static constexpr op_info info{"bias_forward", op_class::layer, {"bias", "bias-fp32-rows64"}};
  struct in { const_tensor_view table; };
  struct out { tensor_view x; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.table});
    use({access::update, "bias_forward", o.x});
  }
};

/// Adds the gradient of each row to the table's, tokens ascending.
struct bias_backward {
  static constexpr op_info info{"bias_backward", op_class::layer};
  struct in { const_tensor_view dy; };
  struct out { tensor_view dtable; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.dy});
    use({access::update, "bias_backward", o.dtable});
  }
};

/// y = norm(sum) with sum = x + branch, then quantized. An empty branch means sum = x. With a bias the norm is
/// LayerNorm, otherwise RMSNorm.
struct residual_norm {
  static constexpr op_info info{"residual_norm", op_class::layer};
  struct in {
    const_tensor_view x, branch; const float* gain; float epsilon; const step_state* state; const float* bias = nullptr;
  };
  struct out { tensor_view sum, y; float* rstd; quantize_target to; float* mean = nullptr; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    if (!i.branch.empty()) {
      use({access::read, nullptr, i.branch});
      use({access::write, "add", o.sum});
    }
    const bool centred = i.bias != nullptr;
    if (is_written(o.to)) use({access::write, centred ? "layernorm_forward" : "rmsnorm_forward", o.y});
    if (centred) use({access::write, "layernorm_forward's mean", numbers(o.mean, i.x.extent(0))});
    use({access::write, centred ? "layernorm_forward's rstd" : "rmsnorm_forward's rstd",
         numbers(o.rstd, i.x.extent(0))});
    use_forms(use, o.to);
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    if (!i.branch.empty()) ops.add(q, {i.x, i.branch}, {o.sum});
    const const_tensor_view x = i.branch.empty() ? i.x : const_tensor_view(o.sum);
    ops.norm_forward(q, {x, i.gain, i.epsilon, i.bias}, {o.y, o.rstd, o.mean});
    if (o.to.set != nullptr) ops.quantize(q, {o.y, i.state}, {o.to});
  }
};

/// In place on queries and keys, (batch, seq, heads, head_dim), which differ only in their number of heads. Keys may be
/// empty. Cosine and sine are (seq, head_dim / 2). `inverse`: the backward pass.
struct rope {
  static constexpr op_info info{"rope", op_class::layer, {"rope", "rope-fp32-fma"}};
  struct in { const float *cosine, *sine; bool inverse; };
  struct out { tensor_view queries, keys; };
  static void uses(const auto& use, const in&, const out& o) {
    use({access::update, "rope", o.queries});
    if (!o.keys.empty()) use({access::update, "rope", o.keys});
  }
};

/// Causal grouped-query attention within documents. Shapes: q and o (batch, queries, heads, head_dim), k and v (batch,
/// seq, kv_heads, head_dim), lse (batch, heads, queries): log Σ exp of the scaled scores. Queries are the last tokens
/// of a sequence. A query sees the keys of its document up to its own position. starts (batch, seq) of a microbatch:
/// position where each token's document begins. Null data: a sequence is one document.
struct attention_forward {
  static constexpr op_info info{"attention_forward", op_class::attention};
  struct in {
    const_tensor_view q, k, v; token_source starts; const attention_contract& contract; const step_state* state;
  };
  struct out { tensor_view o; float* lse; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.q, i.k, i.v);
    use({access::write, "attention_forward", o.o});
    use({access::write, "attention_forward's lse", numbers(o.lse, o.o.extent(0) * o.o.extent(1) * o.o.extent(2))});
  }
};

/// Gradients of q, k and v from the gradient of o. Queries cover all tokens.
struct attention_backward {
  static constexpr op_info info{"attention_backward", op_class::attention};
  struct in {
    const_tensor_view q, k, v;
    const_tensor_view o;
    const float* lse;
    const_tensor_view d_o;
    token_source starts;
    const attention_contract& contract;
    const step_state* state;
  };
  struct out { tensor_view dq, dk, dv; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.q, i.k, i.v, i.o, i.d_o);
    use({access::write, "attention_backward's dq", o.dq});
    use({access::write, "attention_backward's dk", o.dk});
    use({access::write, "attention_backward's dv", o.dv});
  }
};

/// h = activation(x). x is (tokens, gate | up) if the activation is gated.
struct activation_forward {
  static constexpr op_info info{"activation_forward", op_class::layer};
  struct in { const_tensor_view x; activation which; };
  struct out { tensor_view h; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    use({access::write, forward_name(i.which), o.h});
  }
};

/// The gradient of x. With a dtable (1, columns of x), bias_backward of dx follows.
struct activation_backward {
  static constexpr op_info info{"activation_backward", op_class::layer};
  struct in { const_tensor_view dh, x; activation which; };
  struct out { tensor_view dx, dtable = {}; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.dh, i.x);
    use({access::write, backward_name(i.which), o.dx});
    if (!o.dtable.empty()) use({access::update, "bias_backward", o.dtable});
  }
};

/// activation_forward, quantize.
struct activation_quantize {
  static constexpr op_info info{"activation_quantize", op_class::layer};
  struct in { const_tensor_view x; activation which; const step_state* state; };
  struct out { tensor_view h; quantize_target to; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    if (is_written(o.to)) use({access::write, forward_name(i.which), o.h});
    use_forms(use, o.to);
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    ops.activation_forward(q, {i.x, i.which}, {o.h});
    if (o.to.set != nullptr) ops.quantize(q, {o.h, i.state}, {o.to});
  }
};

/// activation_backward, quantize. With a dtable the target keeps its source.
struct activation_backward_quantize {
  static constexpr op_info info{"activation_backward_quantize", op_class::layer};
  struct in { const_tensor_view dh, x; activation which; const step_state* state; };
  struct out { tensor_view dx; quantize_target to; tensor_view dtable = {}; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.dh, i.x);
    if (is_written(o.to)) use({access::write, backward_name(i.which), o.dx});
    use_forms(use, o.to);
    if (!o.dtable.empty()) use({access::update, "bias_backward", o.dtable});
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    ops.activation_backward(q, {i.dh, i.x, i.which}, {o.dx, o.dtable});
    if (o.to.set != nullptr) ops.quantize(q, {o.dx, i.state}, {o.to});
  }
};

/// sum = x + y; sum may be x or y.
struct add {
  static constexpr op_info info{"add", op_class::layer, {"add", "add-fp32"}};
  struct in { const_tensor_view x, y; };
  struct out { tensor_view sum; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.x, i.y);
    use({access::write, "add", o.sum});
  }
};

/// y = factor · x for kept elements, else 0. With `accumulate`, y = fma(x, factor, y) for kept elements. x and y may
/// have different storage types.
struct dropout {
  static constexpr op_info info{"dropout", op_class::layer, {"dropout", "dropout-philox-fp32-fma"}};
  struct in { const_tensor_view x; dropout_args args; bool accumulate; const step_state* state; };
  struct out { tensor_view y; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    use({i.accumulate ? access::update : access::write, "dropout", o.y});
  }
};

}  // namespace rotoscale::nn::op
// clang-format on
