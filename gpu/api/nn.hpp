// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers, loss and optimizer of nn::backend on a device. Each follows its contract of docs/reference/layers.md, so
// its bytes are the CPU's (except which NaN a result is).
//
// Rules for all launchers:
// - Name and arguments are those of the operation. All pointers, also in views, are device memory.
// - A launcher puts its kernels on `s`, allocates nothing, waits for nothing and can be captured.
// - Views have contiguous rows of FP32 or BF16. Access is 16 bytes wide if rows begin at multiples of 16 bytes, else
//   per element.
// - A workspace is device memory aligned to 16 bytes, used by this call only. X_workspace_bytes gives its size in
//   bytes.
#pragma once

#include "quantize.hpp"
#include "quantize_fp8.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

// Step state.
/// Counts the valid targets of `targets` [count] and zeroes the step's sums.
status begin_step(const std::int32_t* targets, index_t count, nn::step_state* state, stream s);
/// Computes gradient_scale from valid_tokens.
status set_gradient_scale(nn::step_state* state, stream s);
/// Increments the microbatch counter.
status next_micro_batch(nn::step_state* state, stream s);

// An id outside [0, vocabulary) counts as masked (its row of y is zero) and is recorded: `fault` (a word of device
// memory, or null) becomes max(*fault, 1 + its position). Zero it before the first launch.
/// y [tokens, features] from rows of the table [vocabulary, features], FP32.
status embedding_forward(const nn::token_source& tokens, nn::const_tensor_view table, nn::tensor_view y,
                         const nn::step_state* state, std::uint32_t* fault, stream s);
/// Workspace of embedding_backward in bytes.
std::size_t embedding_backward_workspace_bytes(index_t tokens, index_t vocabulary);
/// Adds each row of dy [tokens, features] to its token's row of dtable [vocabulary, features], FP32, tokens ascending.
status embedding_backward(const nn::token_source& tokens, nn::const_tensor_view dy, nn::tensor_view dtable,
                          const nn::step_state* state, void* workspace, std::size_t workspace_bytes, stream s);

/// y = x * rstd * gain for x [rows, cols] and gain [cols]; writes rstd [rows]. x and y have one storage.
status rmsnorm_forward(nn::const_tensor_view x, const float* gain, float eps, nn::tensor_view y, float* rstd, stream s);
/// RMSNorm, or with a bias LayerNorm, of sum = x + branch. An empty view of branch means sum = x. An empty view of y
/// means that only mean and rstd are written.
status residual_norm(const nn::residual_norm_args& args, stream s);
/// residual_norm and quantize(f, y, rows, columns) in two launches. The second computes y from the sum and quantizes
/// both orientations from one read. An empty y is not written. One orientation may be null, as in quantize.
status residual_norm_quantize(const nn::residual_norm_args& args, block_format f, const quantized_output& rows,
                              const quantized_output& columns, stream s);
/// The same with cast_transpose_fp8(o, y, scale, out) instead of blocks. o.rounding must be nearest_even.
status residual_norm_quantize(const nn::residual_norm_args& args, const fp8_options& o, const float* scale,
                              const fp8_output& out, stream s);
/// Workspace of rmsnorm_backward in bytes.
std::size_t rmsnorm_backward_workspace_bytes(index_t rows, index_t cols);
/// Adds x's gradient to dx [rows, cols] and the gain's to dgain [cols]. With a null dgain, the gain's is not computed.
status rmsnorm_backward(nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain, const float* rstd,
                        nn::tensor_view dx, float* dgain, void* workspace, std::size_t workspace_bytes, stream s);

/// y = (x - mean) * rstd * gain + bias for x [rows, cols]; writes mean and rstd [rows]. x and y have one storage.
status layernorm_forward(nn::const_tensor_view x, const float* gain, const float* bias, float eps, nn::tensor_view y,
                         float* mean, float* rstd, stream s);
/// Workspace of layernorm_backward in bytes.
std::size_t layernorm_backward_workspace_bytes(index_t rows, index_t cols);
/// Adds x's gradient to dx [rows, cols], the gain's to dgain and the bias's to dbias [cols]. With a null dgain, neither
/// is computed.
status layernorm_backward(nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain, const float* mean,
                          const float* rstd, nn::tensor_view dx, float* dgain, float* dbias, void* workspace,
                          std::size_t workspace_bytes, stream s);

/// Adds row t mod r of the table [r, features], FP32, to row t of x [tokens, features].
status bias_forward(nn::const_tensor_view table, nn::tensor_view x, stream s);
/// Workspace of bias_backward for a table of `period` rows, in bytes.
std::size_t bias_backward_workspace_bytes(index_t rows, index_t cols, index_t period);
/// Adds dy [tokens, features] to dtable [r, features], FP32 and contiguous: row t to row t mod r, tokens ascending.
status bias_backward(nn::const_tensor_view dy, nn::tensor_view dtable, void* workspace, std::size_t workspace_bytes,
                     stream s);

/// Rotates x [batch, seq, heads, head_dim] in place. Cosine and sine are [seq, head_dim / 2]. `inverse` rotates back.
status rope(nn::tensor_view x, const float* cosine, const float* sine, bool inverse, stream s);
/// Queries and keys in one launch. They have one storage and differ only in their number of heads.
status rope_both(nn::tensor_view queries, nn::tensor_view keys, const float* cosine, const float* sine, bool inverse,
                 stream s);

/// h = activation(x). x is [tokens, gate | up] if the activation is gated, otherwise it has h's extents.
status activation_forward(nn::activation which, nn::const_tensor_view x, nn::tensor_view h, stream s);
/// The gradient of x.
status activation_backward(nn::activation which, nn::const_tensor_view dh, nn::const_tensor_view x, nn::tensor_view dx,
                           stream s);
/// activation_forward and quantize(f, h, rows, columns) in one launch. An empty h is not written.
status activation_quantize(nn::activation which, nn::const_tensor_view x, nn::tensor_view h, block_format f,
                           const quantized_output& rows, const quantized_output& columns, stream s);
/// activation_backward and quantize(f, dx, rows, columns) in one launch that reads dh and x once. An empty dx is not
/// written. dh's columns are a multiple of 32, blocks 1 × 32 and all orders row-major.
status activation_backward_quantize(nn::activation which, nn::const_tensor_view dh, nn::const_tensor_view x,
                                    nn::tensor_view dx, block_format f, const quantized_output& rows,
                                    const quantized_output& columns, stream s);
/// activation_forward and cast_transpose_fp8(o, h, scale, out) in one launch. An empty h is not written. o.rounding
/// must be nearest_even.
status activation_quantize(nn::activation which, nn::const_tensor_view x, nn::tensor_view h, const fp8_options& o,
                           const float* scale, const fp8_output& out, stream s);
/// activation_backward and cast_transpose_fp8(o, dx, scale, out) in one launch that reads dh and x once. An empty dx is
/// not written. o.rounding must be nearest_even.
status activation_backward_quantize(nn::activation which, nn::const_tensor_view dh, nn::const_tensor_view x,
                                    nn::tensor_view dx, const fp8_options& o, const float* scale, const fp8_output& out,
                                    stream s);
/// sum = x + y; sum may be x.
status add(nn::const_tensor_view x, nn::const_tensor_view y, nn::tensor_view sum, stream s);

/// y = factor · x for kept elements, else 0. With `accumulate` it is added to y. x and y may be stored differently.
status dropout(nn::const_tensor_view x, const nn::dropout_args& args, nn::tensor_view y, bool accumulate,
               const nn::step_state* state, stream s);

/// Workspace of cross_entropy in bytes.
std::size_t cross_entropy_workspace_bytes(index_t rows, index_t vocabulary);
/// Computes loss [rows], in nats, of FP32 logits [rows, vocabulary]. With `gradients` the logits are overwritten by
/// their gradients times the state's gradient_scale. With `narrow` [rows, vocabulary] the gradients go there as BF16,
/// and the logits are kept. `targets` are those of tokens [first, first + rows). A masked target has no loss and no
/// gradient.
status cross_entropy(nn::tensor_view logits, const nn::token_source& targets, index_t first, float* loss,
                     bool gradients, const nn::step_state* state, std::uint32_t* fault, void* workspace,
                     std::size_t workspace_bytes, stream s, bf16* narrow = nullptr);
/// Workspace of sum_losses in bytes.
std::size_t sum_losses_workspace_bytes(index_t n);
/// Adds n losses to the state's sum.
status sum_losses(const float* loss, index_t n, nn::step_state* state, void* workspace, std::size_t workspace_bytes,
                  stream s);

// The optimizer reads the arena's segments_in_backend. `segments` only gives extents.
/// Workspace of sum_squares and gradient_norm over an arena of `size` elements, in bytes.
std::size_t sum_squares_workspace_bytes(index_t size);
/// out[i] = Σ x² over the arena's segment i.
status sum_squares(const float* x, const nn::parameter_arena& arena, double* out, void* workspace,
                   std::size_t workspace_bytes, stream s);
/// Computes the state's sum of squares, norm, count of non-finite gradients and clip factor, over the whole arena. Gaps
/// between segments must be zero.
status gradient_norm(const nn::parameter_arena& arena, const nn::optimizer_config& config, nn::step_state* state,
                     void* workspace, std::size_t workspace_bytes, stream s);
/// Updates every parameter in one launch. No update if loss or norm is not finite.
status adamw(const nn::parameter_arena& arena, const nn::optimizer_config& config, const nn::step_state* state,
             stream s);

}  // namespace rotoscale::gpu
