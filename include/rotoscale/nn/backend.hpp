// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The operations that a model and a training loop are written against. Whatever takes a queue is asynchronous: it sees
// backend memory as it is when its turn comes, and errors show at the next synchronize. Pointers and views passed here
// are backend memory, which only the backend may touch. Primitives are pure virtual; each coarse operation has a body
// here that composes primitives, and a backend that fuses it must leave the same bytes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/nn/queue.hpp"
#include "rotoscale/nn/random_streams.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace rotoscale::nn {

/// Memory, queues and operations of one device, or of the CPU.
class backend {
 public:
  backend() = default;
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;
  virtual ~backend() = default;

  /// For logs: what runs this, e.g. "cpu (2 threads, avx512)".
  virtual std::string description() const = 0;
  /// Threads of the host that compute.
  virtual int threads() const = 0;
  /// Does a queue run an operation when it is put there? Otherwise the host goes on meanwhile.
  virtual bool runs_at_once() const { return false; }
  /// The contracts of all operations but GEMMs and attention.
  virtual std::span<const operation_contract> contracts() const = 0;
  /// The contract that a GEMM of rows × cols over k will run under, asked before the first step; null: refused.
  virtual std::optional<gemm_contract> contract(const gemm_recipe& gemm, index_t rows, index_t cols,
                                                index_t k) const = 0;
  /// The contract that attention will run under, asked before the first step; null: refused.
  virtual std::optional<attention_contract> contract(const std::string& attention, index_t head_dim) const = 0;
  /// What a GEMM of rows × cols over k under a contract of this backend's uses of its queue's workspace.
  virtual std::size_t gemm_workspace_bytes(const gemm_contract& contract, const gemm_recipe& gemm, gemm_kind kind,
                                           index_t rows, index_t cols, index_t k) const = 0;

  // Memory: zero at first; before the first step only. Throws std::bad_alloc.
  /// Zeroed memory. Before the first step only. Throws std::bad_alloc.
  virtual void* allocate(std::size_t bytes, memory_kind kind) = 0;
  /// Gives it back; no operation may use it any more.
  virtual void release(void* memory, memory_kind kind) noexcept = 0;
  /// How often allocate was called.
  virtual std::size_t allocations() const = 0;
  /// Memory that the operations of a queue use while they run.
  virtual std::size_t workspace_bytes(const workspace_request& request) const = 0;
  /// `bytes` are at least workspace_bytes of what the queue will run.
  virtual void set_workspace(queue q, void* memory, std::size_t bytes) = 0;

  // Queues.
  /// A queue besides queue{}; `name` is for logs. Throws backend_error where the device has no room for it, or fails.
  virtual queue make_queue(const char* name) = 0;
  /// Gives one of make_queue back, once its work is done: another may get its number. No graph or event of it may be
  /// used any more.
  virtual void release_queue(queue q) noexcept = 0;
  /// What was put on the queue so far.
  virtual event record(queue on) = 0;
  /// What comes on the queue waits for the event.
  virtual void order(queue after, const event& before) = 0;
  /// The only wait. Throws backend_error with the name of the operation that failed, if one did.
  virtual void synchronize(const event& until) = 0;
  /// Waits for everything on the queue.
  void synchronize(queue q) { synchronize(record(q)); }
  /// Between host memory and backend memory; host memory must be pinned, or not change until the queue is synchronized.
  virtual void upload(queue q, void* to, const void* host, std::size_t bytes) = 0;
  /// From backend memory to the host's.
  virtual void download(queue q, void* host, const void* from, std::size_t bytes) = 0;
  /// Within backend memory; the two must not overlap.
  virtual void copy(queue q, void* to, const void* from, std::size_t bytes) = 0;
  /// Zero bytes.
  virtual void fill_zero(queue q, void* memory, std::size_t bytes) = 0;
  /// What `operations` puts on the queue, to be launched any number of times.
  virtual std::unique_ptr<graph> capture(queue q, std::function<void()> operations) = 0;
  /// Puts the recorded operations on the queue.
  virtual void launch(queue q, graph& what) = 0;

  // Step state.
  /// Counts the valid targets of `count` numbers, and starts sums anew; the inputs are uploaded.
  virtual void begin_step(queue q, const std::int32_t* targets, index_t count, step_state* state) = 0;
  /// gradient_scale from valid_tokens, which by now counts those of all ranks.
  virtual void set_gradient_scale(queue q, step_state* state) = 0;
  /// Counts one more micro-batch.
  virtual void next_micro_batch(queue q, step_state* state) = 0;

  // GEMM operands.
  /// What make_operands will need.
  virtual operand_layout layout_operands(const operand_request& request) const = 0;
  /// `memory` has the layout's bytes; `source` is read through it if the layout says so.
  virtual std::unique_ptr<operand_set> make_operands(const operand_request& request, void* memory,
                                                     const_tensor_view source) = 0;
  /// Where the codes, block scales and factor of a form lie in backend memory, for whoever downloads them.
  virtual const gemm_operand& described(operand what) const = 0;
  /// Both forms in one pass over the source. Random words and signs derive from the state. A maximum that is asked for
  /// is recorded whatever the formats are.
  virtual void quantize(queue q, const_tensor_view source, const quantize_target& to, const step_state* state) = 0;
  /// c = round(a · bᵀ) or c = round(a · bᵀ + c); `output` says to which numbers, whatever c stores them as.
  virtual void gemm(queue q, operand a, operand b, const gemm_contract& contract, operand_format output, tensor_view c,
                    bool accumulate) = 0;
  /// An operand's values in its source's orientation, [rows, cols]: code · block scale · factor, a rotation left in.
  virtual void dequantize(queue q, operand what, tensor_view to) = 0;
  /// Recorded maxima enter the histories, and the next scales come of them (docs/reference/layers.md).
  virtual void update_scales(queue q, const scaling_state& state, const delayed_scaling& rule) = 0;

  // Layers. x, y, ... are [tokens, features], FP32 or BF16; sums and functions are FP32. Gradients of inputs are
  // overwritten unless said otherwise, gradients of weights (FP32) are formed from zero and then added.
  /// Rows of the table, [vocabulary, features], by token.
  virtual void embedding_forward(queue q, const token_source& tokens, const_tensor_view table, tensor_view y,
                                 const step_state* state) = 0;
  /// Adds each token's gradient to its row, tokens ascending.
  virtual void embedding_backward(queue q, const token_source& tokens, const_tensor_view dy, tensor_view dtable,
                                  const step_state* state) = 0;
  /// y = x * rstd * gain, rstd[t] = 1 / sqrt(mean(x²) + eps).
  virtual void rmsnorm_forward(queue q, const_tensor_view x, const float* gain, float eps, tensor_view y,
                               float* rstd) = 0;
  /// dx is added to (it joins the residual's gradient); no dgain where the gain is frozen.
  virtual void rmsnorm_backward(queue q, const_tensor_view dy, const_tensor_view x, const float* gain,
                                const float* rstd, tensor_view dx, float* dgain) = 0;
  /// In place on [batch, seq, heads, head_dim]; cosine and sine are [seq, head_dim / 2]. inverse = the backward pass.
  virtual void rope(queue q, tensor_view x, const float* cosine, const float* sine, bool inverse) = 0;
  /// Causal, grouped-query, within documents.
  virtual void attention_forward(queue q, const attention_tensors& t, const attention_contract& contract,
                                 const step_state* state) = 0;
  /// Gradients of q, k and v from that of o.
  virtual void attention_backward(queue q, const attention_tensors& t, const attention_gradients& d,
                                  const attention_contract& contract, const step_state* state) = 0;
  /// h = silu(gate) * up; gate_up is [tokens, gate | up].
  virtual void swiglu_forward(queue q, const_tensor_view gate_up, tensor_view h) = 0;
  /// The gradient of gate_up.
  virtual void swiglu_backward(queue q, const_tensor_view dh, const_tensor_view gate_up, tensor_view d_gate_up) = 0;
  /// sum = x + y; sum may be x.
  virtual void add(queue q, const_tensor_view x, const_tensor_view y, tensor_view sum) = 0;
  /// y = factor · x where an element is kept, else 0; with `accumulate` y = fma(x, factor, y) where it is kept. x and y
  /// may be stored differently.
  virtual void dropout(queue q, const_tensor_view x, const dropout_args& args, tensor_view y, bool accumulate,
                       const step_state* state) = 0;
  /// loss[t] = -log softmax(logits[t])[target], 0 where masked; targets are those of tokens [first, first + rows). The
  /// logits are used up: with gradients they become their gradients times the state's gradient_scale.
  virtual void cross_entropy(queue q, tensor_view logits, const token_source& targets, index_t first, float* loss,
                             bool gradients, const step_state* state) = 0;
  /// Adds n losses to the state's sum.
  virtual void sum_losses(queue q, const float* loss, index_t n, step_state* state) = 0;

  // Optimizer.
  /// out[i] = Σ x² over the arena's segment i, in FP64: chunks of 4096 in FP32, a tree in FP64 over them.
  virtual void sum_squares(queue q, const float* x, const parameter_arena& arena, double* out) = 0;
  /// Over the whole arena: squares, norm, count of what is not finite, clip factor.
  virtual void gradient_norm(queue q, const parameter_arena& arena, const optimizer_config& config,
                             step_state* state) = 0;
  /// One update of every parameter; none if loss or norm is not finite.
  virtual void adamw(queue q, const parameter_arena& arena, const optimizer_config& config,
                     const step_state* state) = 0;

  // Statistics: they read, and write nothing but their results.
  /// What a form of a tensor lost of its source, which `what` was quantized from in this micro-batch.
  virtual void observe(queue q, const_tensor_view source, operand what, const step_state* state,
                       operand_statistics* to) = 0;
  /// n values against a reference of them.
  virtual void compare(queue q, const float* value, const float* reference, index_t n, comparison_statistics* to) = 0;

  // Coarse operations: the bodies below compose the primitives above. What they quantize need not be written where the
  // target does not keep its source.
  /// add, rmsnorm_forward, quantize.
  virtual void residual_norm(queue q, const residual_norm_args& args, const step_state* state);
  /// swiglu_forward, quantize.
  virtual void swiglu_quantize(queue q, const_tensor_view gate_up, tensor_view h, const quantize_target& to,
                               const step_state* state);
  /// swiglu_backward, quantize.
  virtual void swiglu_backward_quantize(queue q, const_tensor_view dh, const_tensor_view gate_up, tensor_view d_gate_up,
                                        const quantize_target& to, const step_state* state);
  /// rope of queries and keys.
  virtual void rope_both(queue q, tensor_view queries, tensor_view keys, const float* cosine, const float* sine,
                         bool inverse);
  /// cross_entropy with gradients, quantize.
  virtual void cross_entropy_quantize(queue q, tensor_view logits, const token_source& targets, index_t first,
                                      float* loss, const quantize_target& to, const step_state* state);
  /// Output head, loss and their gradients, by chunks of tokens, so that the logits are never held whole:
  /// head_chunk_loss of each, sum_losses.
  virtual void head_loss(queue q, const head_args& args, step_state* state);
  /// head_loss of one chunk, of primitives.
  void head_chunk_loss(queue q, const head_args& args, std::size_t i, const step_state* state);
  /// gradient_norm, adamw.
  virtual void clip_and_update(queue q, const parameter_arena& arena, const optimizer_config& config,
                               step_state* state);
};

// What the coarse operations mean.

inline void backend::residual_norm(queue q, const residual_norm_args& a, const step_state* state) {
  if (!a.branch.empty()) add(q, a.x, a.branch, a.sum);
  rmsnorm_forward(q, a.branch.empty() ? a.x : const_tensor_view(a.sum), a.gain, a.epsilon, a.y, a.rstd);
  if (a.to.set != nullptr) quantize(q, a.y, a.to, state);
}

inline void backend::swiglu_quantize(queue q, const_tensor_view gate_up, tensor_view h, const quantize_target& to,
                                     const step_state* state) {
  swiglu_forward(q, gate_up, h);
  if (to.set != nullptr) quantize(q, h, to, state);
}

inline void backend::swiglu_backward_quantize(queue q, const_tensor_view dh, const_tensor_view gate_up,
                                              tensor_view d_gate_up, const quantize_target& to,
                                              const step_state* state) {
  swiglu_backward(q, dh, gate_up, d_gate_up);
  if (to.set != nullptr) quantize(q, d_gate_up, to, state);
}

inline void backend::rope_both(queue q, tensor_view queries, tensor_view keys, const float* cosine, const float* sine,
                               bool inverse) {
  rope(q, queries, cosine, sine, inverse);
  rope(q, keys, cosine, sine, inverse);
}

inline void backend::cross_entropy_quantize(queue q, tensor_view logits, const token_source& targets, index_t first,
                                            float* loss, const quantize_target& to, const step_state* state) {
  cross_entropy(q, logits, targets, first, loss, true, state);
  quantize(q, logits, to, state);
}

inline void backend::head_chunk_loss(queue q, const head_args& a, std::size_t i, const step_state* state) {
  const head_chunk& chunk = a.chunks[i];
  const tensor_view logits = a.logits.part(0, 0, chunk.count);
  const bool wgrad = a.gradients && !a.dw.empty();
  quantize(q, a.x.part(0, chunk.first, chunk.count), {chunk.x, true, wgrad, a.x_scaling}, state);
  gemm(q, {chunk.x, operand_form::row}, {a.w, operand_form::row}, *a.contracts[0], operand_format::fp32, logits, false);
  float* const loss = a.loss + chunk.first;
  if (!a.gradients) return cross_entropy(q, logits, a.targets, chunk.first, loss, false, state);
  operand_set* const d = a.dlogits[i].get();
  const bool keeps = a.keeps_dlogits || layout_operands(d->request()).reads_source;
  cross_entropy_quantize(q, logits, a.targets, chunk.first, loss, {d, true, wgrad, a.dlogits_scaling, keeps}, state);
  gemm(q, {d, operand_form::row}, {a.w, operand_form::column}, *a.contracts[1], a.dx_output,
       a.dx.part(0, chunk.first, chunk.count), false);
  if (wgrad) {
    gemm(q, {d, operand_form::column}, {chunk.x, operand_form::column}, *a.contracts[2], operand_format::fp32, a.dw,
         true);
  }
}

inline void backend::head_loss(queue q, const head_args& a, step_state* state) {
  for (std::size_t i = 0; i < a.chunks.size(); ++i) head_chunk_loss(q, a, i, state);
  index_t tokens = 0;
  for (const head_chunk& chunk : a.chunks) tokens += chunk.count;
  sum_losses(q, a.loss, tokens, state);
}

inline void backend::clip_and_update(queue q, const parameter_arena& arena, const optimizer_config& config,
                                     step_state* state) {
  gradient_norm(q, arena, config, state);
  adamw(q, arena, config, state);
}

/// A queue of a backend's that is given back; the default is queue{}, which always is there.
class owned_queue {
 public:
  owned_queue() = default;
  /// `ops` must outlive it. Throws what make_queue does.
  owned_queue(backend& ops, const char* name) : ops_(&ops), queue_(ops.make_queue(name)) {}
  /// Takes the other's, which is left with queue{}.
  owned_queue(owned_queue&& other) noexcept { swap(other); }
  /// Exchanges the two.
  owned_queue& operator=(owned_queue&& other) noexcept {
    swap(other);
    return *this;
  }
  ~owned_queue() {
    if (ops_ != nullptr) ops_->release_queue(queue_);
  }
  /// The queue.
  operator queue() const { return queue_; }

 private:
  void swap(owned_queue& other) noexcept {
    std::swap(ops_, other.ops_);
    std::swap(queue_, other.queue_);
  }

  backend* ops_ = nullptr;
  queue queue_;
};

}  // namespace rotoscale::nn
