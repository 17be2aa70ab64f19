// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operations of a training step: step state, loss and optimizer.
#pragma once

#include "rotoscale/nn/deoscillation.hpp"
#include "rotoscale/nn/operations/use.hpp"
#include "rotoscale/nn/step_state.hpp"

/// Calls X(name) for each operation of a training step.
#define ROTOSCALE_TRAINING_OPERATIONS(X) \
  X(begin_step)                          \
  X(set_gradient_scale)                  \
  X(next_micro_batch)                    \
  X(cross_entropy)                       \
  X(sum_losses)                          \
  X(sum_squares)                         \
  X(square_chunks)                       \
  X(gradient_norm)                       \
  X(adamw)                               \
  X(deoscillate)                         \
  X(draw_normal)

namespace rotoscale::nn {

/// The step state without the losses of single microbatches.
inline const_tensor_view record_bytes(const step_state* state) {
  return dense_tensor(const_cast<step_state*>(state), dtype::u8, {index_t{offsetof(step_state, losses)}});
}

}  // namespace rotoscale::nn

// One line for `in`, one for `out`.
// clang-format off
namespace rotoscale::nn::op {

/// Counts the valid ones of `count` targets and zeroes the step's sums. The inputs are uploaded before.
struct begin_step {
  static constexpr op_info info{"begin_step", op_class::other};
  struct in { const std::int32_t* targets; index_t count; };
  struct out { step_state* state; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, dense_tensor(const_cast<std::int32_t*>(i.targets), dtype::i32, {i.count})});
    use({access::update, "begin_step", record_bytes(o.state)});
  }
};

/// gradient_scale from valid_tokens, which count the targets of all ranks.
struct set_gradient_scale {
  static constexpr op_info info{"set_gradient_scale", op_class::other};
  struct in {};
  struct out { step_state* state; };
  static void uses(const auto& use, const in&, const out& o) {
    use({access::update, "set_gradient_scale", record_bytes(o.state)});
  }
};

/// Adds the losses of all microbatches by the tree. Increments the microbatch counter.
struct next_micro_batch {
  static constexpr op_info info{"next_micro_batch", op_class::other};
  struct in {};
  struct out { step_state* state; };
  static void uses(const auto& use, const in&, const out& o) { use({access::update, nullptr, record_bytes(o.state)}); }
};

/// loss[t] = -log softmax(logits[t])[target] in nats, 0 for masked targets. Targets are those of tokens
/// [first, first + rows). With `gradients`, the logits become their gradients times the state's gradient_scale.
/// Otherwise they are lost.
struct cross_entropy {
  static constexpr op_info info{"cross_entropy", op_class::loss,
                                {"softmax_loss", "softmax-loss-fp32-lanes16-chunks4096"}};
  struct in { token_source targets; index_t first; bool gradients; const step_state* state; };
  struct out { tensor_view logits; float* loss; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::write, "cross_entropy", numbers(o.loss, o.logits.extent(0))});
    if (i.gradients) use({access::update, "cross_entropy's gradient", o.logits});
    if (!i.gradients) use({access::read, nullptr, o.logits});
  }
};

/// cross_entropy with gradients, quantize.
struct cross_entropy_quantize {
  static constexpr op_info info{"cross_entropy", op_class::loss};
  struct in { token_source targets; index_t first; const step_state* state; };
  struct out { tensor_view logits; float* loss; quantize_target to; };
  static void uses(const auto& use, const in&, const out& o) {
    use({access::write, "cross_entropy", numbers(o.loss, o.logits.extent(0))});
    use({access::read, nullptr, o.logits});
    if (is_written(o.to)) use({access::write, "cross_entropy's gradient", o.logits});
    use_forms(use, o.to);
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    ops.cross_entropy(q, {i.targets, i.first, true, i.state}, {o.logits, o.loss});
    ops.quantize(q, {o.logits, i.state}, {o.to});
  }
};

/// Sums n losses of the current microbatch into the state.
struct sum_losses {
  static constexpr op_info info{"sum_losses", op_class::loss, {"loss_sum", "loss-fp64-tree"}};
  struct in { const float* loss; index_t n; };
  struct out { step_state* state; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, numbers(i.loss, i.n)});
    use({access::update, "sum_losses", record_bytes(o.state)});
  }
};

/// squares[i] = Σ x² over segment i of the arena: chunks of 4096 in FP32, a tree in FP64 over them.
struct sum_squares {
  static constexpr op_info info{"sum_squares", op_class::optimizer, {"squares", "squares-fp32-chunks4096-fp64-tree"}};
  struct in { const float* x; const parameter_arena& arena; };
  struct out { double* squares; };
  static void uses(const auto& use, const in& i, const out&) {
    use({access::read, nullptr, numbers(i.x, i.arena.size)});
  }
};

/// squares[i] = Σ x² over chunk i of 4096 of n numbers, in FP32.
struct square_chunks {
  static constexpr op_info info{"square_chunks", op_class::optimizer};
  struct in { const float* x; index_t n; };
  struct out { double* squares; };
  static void uses(const auto& use, const in& i, const out&) { use({access::read, nullptr, numbers(i.x, i.n)}); }
};

/// Squares, norm and clip factor, from the squares of `chunks` chunks, which are used up. Counts what is not finite
/// among n gradients, this rank's.
struct gradient_norm {
  static constexpr op_info info{"gradient_norm", op_class::optimizer};
  struct in { const float* gradient; index_t n; index_t chunks; const optimizer_config& config; };
  struct out { double* squares; step_state* state; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, numbers(i.gradient, i.n)});
    use({access::update, "gradient_norm", record_bytes(o.state)});
  }
};

/// Updates every parameter, and its moving average, once. No update if loss or norm is not finite.
struct adamw {
  static constexpr op_info info{"adamw", op_class::optimizer, {"adamw", "adamw-fp32-fma"}};
  struct in { const optimizer_config& config; const step_state* state; };
  struct out { const parameter_arena& arena; };
  static void uses(const auto& use, const in&, const out& o) {
    const parameter_arena& a = o.arena;
    use({access::read, nullptr, numbers(a.gradient, a.size)});
    use({access::update, "adamw's weights", numbers(a.weight, a.size)});
    use({access::update, "adamw's first moments", numbers(a.m, a.size)});
    use({access::update, "adamw's second moments", numbers(a.v, a.size)});
    if (a.average != nullptr) use({access::update, "adamw's average", numbers(a.average, a.size)});
  }
};

/// Tracks the movement of n weights and of their quantized values. Sets weights when a window ends.
struct deoscillate {
  static constexpr op_info info{"deoscillate", op_class::optimizer};
  struct in { const_tensor_view quantized; deoscillation_step step; };
  struct out { float* weight; oscillation_state state; };
  static void uses(const auto& use, const in& i, const out& o) {
    const index_t n = i.quantized.size();
    use({access::read, nullptr, i.quantized});
    use({access::update, "deoscillate", numbers(o.weight, n)});
    for (float* x : {o.state.last, o.state.last_quantized, o.state.moved, o.state.moved_quantized}) {
      use({access::update, nullptr, numbers(x, n)});
    }
  }
};

/// Approximately normal numbers: FP32, dense.
struct draw_normal {
  static constexpr op_info info{"draw_normal", op_class::other};
  struct in { normal_draw how; };
  struct out { tensor_view x; };
  static void uses(const auto& use, const in&, const out& o) { use({access::write, nullptr, o.x}); }
};

}  // namespace rotoscale::nn::op
// clang-format on
