// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operations on GEMM operands: quantization, products, scales and error statistics.
#pragma once

#include "rotoscale/nn/operations/use.hpp"

/// Calls X(name) for each operation on operands.
#define ROTOSCALE_OPERAND_OPERATIONS(X) \
  X(quantize)                           \
  X(gemm)                               \
  X(dequantize)                         \
  X(update_scales)                      \
  X(observe)                            \
  X(compare)                            \
  X(estimate_gradient)

// One line for `in`, one for `out`.
// clang-format off
namespace rotoscale::nn::op {

/// Makes both forms of an operand from one read of the source. Random words and signs derive from the state. A
/// requested amax is recorded for every format.
struct quantize {
  static constexpr op_info info{"quantize", op_class::quantize};
  struct in { const_tensor_view source; const step_state* state; };
  struct out { quantize_target to; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.source});
    use_forms(use, o.to);
  }
};

/// c = round(a · bᵀ) or c = round(a · bᵀ + c), rounded to `output` for every storage of c.
struct gemm {
  static constexpr op_info info{"gemm", op_class::gemm};
  struct in { operand a, b; const gemm_contract& contract; operand_format output; bool accumulate; };
  struct out { tensor_view c; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, {}, i.a});
    use({access::read, nullptr, {}, i.b});
    use({i.accumulate ? access::update : access::write, "gemm", o.c});
  }
  /// Number of products that are added.
  static double products(const in& i, const out&) {
    return static_cast<double>(rows_of(i.a)) * static_cast<double>(rows_of(i.b)) * static_cast<double>(k_of(i.a));
  }
};

/// gemm, bias_forward: c is rounded before the bias, (1, cols), is added, and after it.
struct gemm_bias {
  static constexpr op_info info{"gemm_bias", op_class::gemm, {}, true};
  struct in { operand a, b; const gemm_contract& contract; operand_format output; const_tensor_view bias; };
  struct out { tensor_view c; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, i.bias);
    gemm::uses(use, {i.a, i.b, i.contract, i.output, false}, {o.c});
  }
  static double products(const in& i, const out& o) {
    return gemm::products({i.a, i.b, i.contract, i.output, false}, {o.c});
  }
  static void compose(auto& ops, queue q, const in& i, const out& o) {
    ops.gemm(q, {i.a, i.b, i.contract, i.output, false}, {o.c});
    ops.bias_forward(q, {i.bias}, {o.c});
  }
};

/// Values of an operand in its source's orientation, (rows, cols): code · block scale · factor. Rotations are kept.
struct dequantize {
  static constexpr op_info info{"dequantize", op_class::quantize, {"dequantize", "dequantize-fp32-code-scale-factor"}};
  struct in { operand what; };
  struct out { tensor_view to; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, {}, i.what});
    use({access::write, "dequantize", o.to});
  }
};

/// Appends recorded maxima to the histories and computes the next scales.
struct update_scales {
  static constexpr op_info info{"update_scales", op_class::quantize, {"update_scales", "delayed-scaling-fp32"}};
  struct in { const delayed_scaling& rule; };
  struct out { const scaling_state& state; };
  static void uses(const auto& use, const in&, const out& o) {
    use({access::update, nullptr, numbers(o.state.history, o.state.count * o.state.history_length)});
    use({access::write, "update_scales", numbers(o.state.scale, o.state.count)});
  }
};

/// Error of an operand against its source. It was quantized from the source in this microbatch.
struct observe {
  static constexpr op_info info{"observe", op_class::quantize, {"observe", "observe-fp64-lanes16-tree"}};
  struct in { const_tensor_view source; operand what; const step_state* state; };
  struct out { operand_statistics* to; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, i.source});
    use({access::read, nullptr, {}, i.what});
    use({access::write, "observe", record_bytes(o.to)});
  }
};

/// Error of n values against a reference.
struct compare {
  static constexpr op_info info{"compare", op_class::quantize, {"compare", "compare-fp64-lanes16-chunks4096-tree"}};
  struct in { const float *value, *reference; index_t n; };
  struct out { comparison_statistics* to; };
  static void uses(const auto& use, const in& i, const out& o) {
    reads(use, numbers(i.value, i.n), numbers(i.reference, i.n));
    use({access::write, "compare", record_bytes(o.to)});
  }
};

/// Multiplies the gradient of w (rows, cols) by the slope of its soft quantizer: dge_slope of the elements of its row
/// form.
struct estimate_gradient {
  static constexpr op_info info{"estimate_gradient", op_class::quantize};
  struct in { operand w; const_tensor_view values; };
  struct out { tensor_view gradient; };
  static void uses(const auto& use, const in& i, const out& o) {
    use({access::read, nullptr, {}, i.w});
    use({access::read, nullptr, i.values});
    use({access::update, "estimate_gradient", o.gradient});
  }
};

}  // namespace rotoscale::nn::op
// clang-format on
