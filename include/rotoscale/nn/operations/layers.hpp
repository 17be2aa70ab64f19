// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operations of layers, with their fused forms. x, y, ... are (tokens, features), FP32 or BF16. Sums and functions are
// FP32. Gradients of inputs are overwritten unless stated otherwise. Gradients of weights (FP32) are formed from zero
// and then added. A result that is quantized need not be written if the target does not keep its source.
#pragma once

#include "rotoscale/nn/operations/use.hpp"

// One line for `in`, one for `out`.
// clang-format off
namespace rotoscale::nn::op {

/// Rows of the table, (vocabulary, features), by token.
struct embedding_forward {
  static constexpr op_info info{"embedding_forward", op_class::layer};
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

/// y = x * rstd * gain, rstd[t] = 1 / sqrt(mean(x²) + eps).
struct rmsnorm_forward {
  static constexpr op_info info{"rmsnorm_forward", op_class::layer};
  struct in { const_tensor_view x; const float* gain; float epsilon; };
  struct out { tensor_view y; float* rstd; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    use({access::write, "rmsnorm_forward", o.y});
    use({access::write, nullptr, numbers(o.rstd, i.x.extent(0))});
  }
};

/// Adds to dx, which holds the residual's gradient. A null dgain means that the gain is frozen.
struct rmsnorm_backward {
  static constexpr op_info info{"rmsnorm_backward", op_class::layer};
  struct in { const_tensor_view dy, x; const float *gain, *rstd; };
  struct out { tensor_view dx; float* dgain; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.dy, i.x);
    use({access::update, "rmsnorm_backward", o.dx});
    use({access::update, "rmsnorm_backward's gain", numbers(o.dgain, i.x.extent(1))});
  }
};

/// y = norm(sum) with sum = x + branch, then quantized. An empty branch means sum = x.
struct residual_norm {
  static constexpr op_info info{"residual_norm", op_class::layer};
  struct in { const_tensor_view x, branch; const float* gain; float epsilon; const step_state* state; };
  struct out { tensor_view sum, y; float* rstd; quantize_target to; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    if (!i.branch.empty()) {
      use({access::read, nullptr, i.branch});
      use({access::write, "add", o.sum});
    }
    if (is_written(o.to)) use({access::write, "rmsnorm_forward", o.y});
    use({access::write, "rmsnorm_forward's rstd", numbers(o.rstd, i.x.extent(0))});
    use_forms(use, o.to);
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    if (!i.branch.empty()) ops.add(q, {i.x, i.branch}, {o.sum});
    ops.rmsnorm_forward(q, {i.branch.empty() ? i.x : const_tensor_view(o.sum), i.gain, i.epsilon}, {o.y, o.rstd});
    if (o.to.set != nullptr) ops.quantize(q, {o.y, i.state}, {o.to});
  }
};

/// In place on (batch, seq, heads, head_dim). Cosine and sine are (seq, head_dim / 2). `inverse`: the backward pass.
struct rope {
  static constexpr op_info info{"rope", op_class::layer};
  struct in { const float *cosine, *sine; bool inverse; };
  struct out { tensor_view x; };
  static void uses(const auto& use, const in&, const out& o) { use({access::update, "rope", o.x}); }
};

/// rope of queries and keys.
struct rope_both {
  static constexpr op_info info{"rope", op_class::layer};
  using in = rope::in;  ///< of both
  struct out { tensor_view queries, keys; };
  static void uses(const auto& use, const in&, const out& o) {
    use({access::update, "rope", o.queries});
    use({access::update, "rope", o.keys});
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    ops.rope(q, i, {o.queries});
    ops.rope(q, i, {o.keys});
  }
};

/// Causal grouped-query attention within documents: see attention_tensors.
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

/// Gradients of q, k and v from that of o.
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

/// h = silu(gate) * up; gate_up is (tokens, gate | up).
struct swiglu_forward {
  static constexpr op_info info{"swiglu_forward", op_class::layer};
  struct in { const_tensor_view gate_up; };
  struct out { tensor_view h; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.gate_up});
    use({access::write, "swiglu_forward", o.h});
  }
};

/// The gradient of gate_up.
struct swiglu_backward {
  static constexpr op_info info{"swiglu_backward", op_class::layer};
  struct in { const_tensor_view dh, gate_up; };
  struct out { tensor_view d_gate_up; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.dh, i.gate_up);
    use({access::write, "swiglu_backward", o.d_gate_up});
  }
};

/// swiglu_forward, quantize.
struct swiglu_quantize {
  static constexpr op_info info{"swiglu_quantize", op_class::layer};
  struct in { const_tensor_view gate_up; const step_state* state; };
  struct out { tensor_view h; quantize_target to; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.gate_up});
    if (is_written(o.to)) use({access::write, "swiglu_forward", o.h});
    use_forms(use, o.to);
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    ops.swiglu_forward(q, {i.gate_up}, {o.h});
    if (o.to.set != nullptr) ops.quantize(q, {o.h, i.state}, {o.to});
  }
};

/// swiglu_backward, quantize.
struct swiglu_backward_quantize {
  static constexpr op_info info{"swiglu_backward_quantize", op_class::layer};
  struct in { const_tensor_view dh, gate_up; const step_state* state; };
  struct out { tensor_view d_gate_up; quantize_target to; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.dh, i.gate_up);
    if (is_written(o.to)) use({access::write, "swiglu_backward", o.d_gate_up});
    use_forms(use, o.to);
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    ops.swiglu_backward(q, {i.dh, i.gate_up}, {o.d_gate_up});
    if (o.to.set != nullptr) ops.quantize(q, {o.d_gate_up, i.state}, {o.to});
  }
};

/// sum = x + y; sum may be x.
struct add {
  static constexpr op_info info{"add", op_class::layer};
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
  static constexpr op_info info{"dropout", op_class::layer};
  struct in { const_tensor_view x; dropout_args args; bool accumulate; const step_state* state; };
  struct out { tensor_view y; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.x});
    use({i.accumulate ? access::update : access::write, "dropout", o.y});
  }
};

}  // namespace rotoscale::nn::op
// clang-format on
