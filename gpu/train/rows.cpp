// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The device's table of operations. Operations on operand sets are launched here, others by gpu/api. An operation
// without a launcher is composed of others.
#include <algorithm>

#include "gpu/api/attention.hpp"
#include "gpu/api/dequantize.hpp"
#include "gpu/api/gemm.hpp"
#include "gpu/api/nn.hpp"
#include "gpu/api/quantize_state.hpp"
#include "gpu/api/statistics.hpp"
#include "gpu/train/backend.hpp"

namespace rotoscale::gpu {

namespace {

const operands& set_of(const nn::operand_set* set) { return static_cast<const operands&>(*set); }
/// Workspace of observe's sums.
std::size_t observed_sums(const nn::const_tensor_view& source) {
  return (observe_workspace_bytes(std::max(source.extent(0), source.extent(1))) + 255) / 256 * 256;
}
device_backend& device_of(nn::backend& ops) { return static_cast<device_backend&>(ops); }

}  // namespace

namespace {

gemm_call call_of(const op::gemm::in& i, const op::gemm::out& o) {
  gemm_call call;
  call.a = set_of(i.a.set).form(i.a.form);
  call.b = set_of(i.b.set).form(i.b.form);
  call.contract = i.contract.options;
  call.out = o.c.data;
  call.stored = o.c.type == nn::dtype::bf16 ? formats::bf16 : formats::fp32;
  call.output = nn::element_format(i.output);
  call.out_stride = o.c.stride(0);
  call.accumulate = i.accumulate;
  return call;
}

}  // namespace

template <>
status launch<op::gemm>(const device_call& c, const op::gemm::in& i, const op::gemm::out& o) {
  return gemm(call_of(i, o), c.workspace, c.bytes, c.s);
}
template <>
status launch<op::quantize>(const device_call& c, const op::quantize::in& i, const op::quantize::out& o) {
  return set_of(o.to.set).quantize(i.source, o.to, i.state, c.s);
}
template <>
status launch<op::dequantize>(const device_call& c, const op::dequantize::in& i, const op::dequantize::out& o) {
  const bool transposed = i.what.form == nn::operand_form::column;
  return decode_operand(set_of(i.what.set).form(i.what.form), transposed, o.to.data,
                        o.to.type == nn::dtype::bf16 ? formats::bf16 : formats::fp32, o.to.stride(0), c.s);
}
template <>
std::size_t workspace_bytes<op::observe>(const op::observe::in& i, const op::observe::out&) {
  return observed_sums(i.source) + operands::bytes_of_codes(i.source.extent(0), i.source.extent(1));
}
template <>
status launch<op::estimate_gradient>(const device_call& c, const op::estimate_gradient::in& i,
                                     const op::estimate_gradient::out& o) {
  return estimate_gradient(set_of(i.w.set).form(i.w.form), static_cast<const float*>(i.values.data),
                           static_cast<float*>(o.gradient.data), c.s);
}
template <>
status launch<op::observe>(const device_call& c, const op::observe::in& i, const op::observe::out& o) {
  const operands& set = set_of(i.what.set);
  const observed_form how{i.what.form == nn::operand_form::column, set.request().recipe(i.what.form)->rotation.points,
                          nn::draws_of(set.request(), i.what.form), i.state};
  const std::size_t sums = observed_sums(i.source);
  gemm_operand stored = set.form(i.what.form);
  if (set.is_in_bf16(i.what.form)) {
    if (c.bytes < workspace_bytes<op::observe>(i, o))
      return {error_code::bad_extent, "workspace_bytes", "is too small"};
    auto* const codes = static_cast<std::uint8_t*>(c.workspace) + sums;
    if (status s = set.quantize_again(i.source, i.what.form, i.state, codes, stored, c.s); !s.ok()) return s;
  }
  return observe(i.source, stored, how, o.to, c.workspace, c.bytes, c.s);
}

namespace {

template <class Op>
void row(nn::backend& ops, nn::queue q, const typename Op::in& i, const typename Op::out& o) {
  device_of(ops).run_operation<Op>(q, i, o, [&](const device_call& c) { return launch<Op>(c, i, o); });
}

/// Op with its quantizer in one call of a launcher. `written`: o, without results that are not kept.
template <class Op>
void fused_row(nn::backend& ops, nn::queue q, const typename Op::in& i, const typename Op::out& o,
               const operands::fused_target& target, const typename Op::out& written) {
  device_of(ops).run_operation<Op>(q, i, o, [&](const device_call& c) {
    return std::visit([&](const auto& to) { return launch_quantized<Op>(c, i, written, to); }, target);
  });
}
/// The tensor if it is kept, else an empty view, which launchers do not write.
nn::tensor_view kept(const nn::quantize_target& to, const nn::tensor_view& x) {
  return to.keeps_source ? x : nn::tensor_view{};
}

template <>
void row<op::residual_norm>(nn::backend& ops, nn::queue q, const op::residual_norm::in& i,
                            const op::residual_norm::out& o) {
  if (const auto target = operands::one_launch(o.to, i.state)) {
    return fused_row<op::residual_norm>(ops, q, i, o, *target, {o.sum, kept(o.to, o.y), o.rstd, {}, o.mean});
  }
  const op::residual_norm::out norm{o.sum, o.y, o.rstd, {}, o.mean};
  device_of(ops).run_operation<op::residual_norm>(
      q, i, norm, [&](const device_call& c) { return launch<op::residual_norm>(c, i, norm); });
  if (o.to.set != nullptr) ops.quantize(q, {o.y, i.state}, {o.to});
}

template <>
void row<op::gemm_bias>(nn::backend& ops, nn::queue q, const op::gemm_bias::in& i, const op::gemm_bias::out& o) {
  gemm_call call = call_of({i.a, i.b, i.contract, i.output, false}, {o.c});
  call.output_bias = static_cast<const float*>(i.bias.data);
  if (!check_gemm(call, device_of(ops).info()).ok()) return op::gemm_bias::compose(ops, q, i, o);
  device_of(ops).run_operation<op::gemm_bias>(
      q, i, o, [&](const device_call& c) { return gemm(call, c.workspace, c.bytes, c.s); });
}

template <>
void row<op::activation_quantize>(nn::backend& ops, nn::queue q, const op::activation_quantize::in& i,
                                  const op::activation_quantize::out& o) {
  const auto target = operands::one_launch(o.to, i.state);
  if (!target) return op::activation_quantize::compose(ops, q, i, o);
  fused_row<op::activation_quantize>(ops, q, i, o, *target, {kept(o.to, o.h), {}});
}

template <>
void row<op::activation_backward_quantize>(nn::backend& ops, nn::queue q, const op::activation_backward_quantize::in& i,
                                           const op::activation_backward_quantize::out& o) {
  const auto target = operands::one_launch(o.to, i.state);
  const auto* const blocks = target ? std::get_if<block_target>(&*target) : nullptr;
  // A block of a row lies in one half, and the rows of a half begin aligned.
  if (!target || (blocks != nullptr && (i.dh.extent(1) % 32 != 0 || blocks->blocks.rows != 1))) {
    return op::activation_backward_quantize::compose(ops, q, i, o);
  }
  fused_row<op::activation_backward_quantize>(ops, q, i, o, *target, {kept(o.to, o.dx), {}});
  if (!o.dtable.empty()) ops.bias_backward(q, {o.dx}, {o.dtable});
}

template <>
void row<op::cross_entropy_quantize>(nn::backend& ops, nn::queue q, const op::cross_entropy_quantize::in& i,
                                     const op::cross_entropy_quantize::out& o) {
  bf16* const narrow = o.to.keeps_source ? nullptr : operands::only_bf16(o.to);
  if (narrow == nullptr) return op::cross_entropy_quantize::compose(ops, q, i, o);
  device_of(ops).run_operation<op::cross_entropy_quantize>(q, i, o, [&](const device_call& c) {
    return cross_entropy(c, {i.targets, i.first, true, i.state}, {o.logits, o.loss}, narrow);
  });
}

}  // namespace

#define ROTOSCALE_DEVICE_ROW(name)                                                        \
  &row<op::name>, [](const nn::backend&, const op::name::in& i, const op::name::out& o) { \
    return workspace_bytes<op::name>(i, o);                                               \
  },
constexpr nn::operation_table device_operations{ROTOSCALE_OPERATIONS(ROTOSCALE_DEVICE_ROW)};
#undef ROTOSCALE_DEVICE_ROW

}  // namespace rotoscale::gpu
