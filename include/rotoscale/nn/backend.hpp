// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The operations that a model and a training loop are written against. Pointers and views passed here are the backend's
// memory: only it may touch them. One call is about one kernel launch. cpu_backend.hpp implements it; a GPU backend
// derives from the same class, and neither model, recipes nor trainer change.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/gemm_options.hpp"
#include "rotoscale/nn/recipe.hpp"

namespace rotoscale::nn {

/// How one operand is to be quantized, with everything a recipe leaves open resolved.
struct quantize_args {
  operand_recipe recipe;
  block_axis axis = block_axis::row;
  std::uint32_t signs = 0;               ///< of the rotation, as rotation::signs
  random_stream random = {};             ///< for stochastic rounding
  const float* scale = nullptr;          ///< FP8: elements are multiplied by *scale; null is 1
  const float* scale_inverse = nullptr;  ///< FP8: what the operand's factor becomes
  float* amax = nullptr;                 ///< FP8: *amax becomes max(*amax, largest finite |x|); null to leave it
};

/// AdamW with decoupled weight decay (Loshchilov and Hutter), as PyTorch computes it.
struct adamw_args {
  float learning_rate = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  float gradient_scale = 1.0f;    ///< multiplies the gradient first (clipping)
  float bias_correction1 = 1.0f;  ///< 1 - beta1^t
  float bias_correction2 = 1.0f;  ///< 1 - beta2^t
};

/// Shapes of attention: queries [batch, seq, heads, head_dim], keys and values [batch, seq, kv_heads, head_dim].
template <class T>
using heads_view = view<T, 4>;

/// State of delayed scaling for `count` tensors, all in backend memory; history is count × history_length.
struct scaling_state {
  index_t count = 0;
  int history_length = 0;
  float* scale = nullptr;
  float* scale_inverse = nullptr;
  float* amax = nullptr;
  float* history = nullptr;
  const float* largest = nullptr;  ///< largest number of each tensor's format
};

/// Target of masked positions in cross_entropy.
inline constexpr std::int32_t ignored_target = -100;

class backend {
 public:
  backend() = default;
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;
  virtual ~backend() = default;

  /// For logs: what runs this, e.g. "cpu (2 threads, avx512)".
  virtual std::string description() const = 0;

  // Memory. Fresh memory is zero.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void copy_in(void* to, const void* from_host, std::size_t bytes) = 0;
  virtual void copy_out(void* to_host, const void* from, std::size_t bytes) = 0;
  virtual void fill_zero(void* memory, std::size_t bytes) = 0;

  // GEMM operands. `out` describes memory for the result, rows of codes of the recipe's format, and of block scales for
  // MX formats; FP8 operands have a factor, one float, which `out_factor` receives.
  virtual void quantize(matrix<const float> source, const quantize_args& args, const block_matrix<std::uint8_t>& out,
                        float* out_factor) = 0;
  virtual void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& options, matrix<float> c) = 0;
  virtual void update_scales(const scaling_state& state, const delayed_scaling& rule) = 0;

  // Layers. x, y, ... are [tokens, features]; gradients of inputs are overwritten unless said otherwise, gradients of
  // weights are added to.
  virtual void embedding_forward(const std::int32_t* tokens, matrix<const float> table, matrix<float> y) = 0;
  virtual void embedding_backward(const std::int32_t* tokens, matrix<const float> dy, matrix<float> dtable) = 0;
  /// y = x * rstd * weight, rstd[t] = 1 / sqrt(mean(x²) + eps).
  virtual void rmsnorm_forward(matrix<const float> x, const float* weight, float eps, matrix<float> y, float* rstd) = 0;
  /// dx is added to (it joins the residual's gradient).
  virtual void rmsnorm_backward(matrix<const float> dy, matrix<const float> x, const float* weight, const float* rstd,
                                matrix<float> dx, float* dweight) = 0;
  /// In place on [batch, seq, heads, head_dim]; cosine and sine are [seq, head_dim / 2]. inverse = the backward pass.
  virtual void rope(heads_view<float> x, const float* cosine, const float* sine, bool inverse) = 0;
  /// Causal, grouped-query; lse [batch, heads, seq] keeps log Σ exp of the scaled scores for the backward pass.
  virtual void attention_forward(heads_view<const float> q, heads_view<const float> k, heads_view<const float> v,
                                 heads_view<float> o, float* lse) = 0;
  virtual void attention_backward(heads_view<const float> q, heads_view<const float> k, heads_view<const float> v,
                                  heads_view<const float> o, const float* lse, heads_view<const float> d_o,
                                  heads_view<float> dq, heads_view<float> dk, heads_view<float> dv) = 0;
  /// h = silu(gate) * up.
  virtual void swiglu_forward(matrix<const float> gate, matrix<const float> up, matrix<float> h) = 0;
  virtual void swiglu_backward(matrix<const float> dh, matrix<const float> gate, matrix<const float> up,
                               matrix<float> dgate, matrix<float> dup) = 0;
  /// x += y.
  virtual void add(matrix<float> x, matrix<const float> y) = 0;
  /// loss[t] = -log softmax(logits[t])[targets[t]], 0 where ignored. The logits are used
  /// up: with a gradient_scale other than 0 they become their gradients times it.
  virtual void cross_entropy(matrix<float> logits, const std::int32_t* targets, float* loss, float gradient_scale) = 0;

  // Optimizer.
  /// Σ x² over n values: FP32 within chunks of 4096, FP64 over the chunks in order.
  virtual double sum_squares(const float* x, index_t n) = 0;
  virtual void adamw(float* weight, const float* gradient, float* m, float* v, index_t n, const adamw_args& args) = 0;
};

/// Owned backend memory.
template <class T>
class buffer {
 public:
  buffer() = default;
  buffer(backend& owner, index_t size)
      : owner_(&owner),
        data_(static_cast<T*>(owner.allocate(static_cast<std::size_t>(size) * sizeof(T)))),
        size_(size) {}
  buffer(buffer&& other) noexcept { swap(other); }
  buffer& operator=(buffer&& other) noexcept {
    buffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~buffer() {
    if (owner_) owner_->release(data_);
  }

  T* data() const { return data_; }
  index_t size() const { return size_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

  void fill_zero() const { owner_->fill_zero(data_, bytes()); }
  void copy_in(const std::vector<T>& host) const {
    ROTOSCALE_ASSERT(static_cast<index_t>(host.size()) == size_);
    owner_->copy_in(data_, host.data(), bytes());
  }
  std::vector<T> copy_out() const {
    std::vector<T> host(static_cast<std::size_t>(size_));
    owner_->copy_out(host.data(), data_, bytes());
    return host;
  }

 private:
  void swap(buffer& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  backend* owner_ = nullptr;
  T* data_ = nullptr;
  index_t size_ = 0;
};

/// An owned row-major matrix of FP32.
class tensor {
 public:
  tensor() = default;
  tensor(backend& owner, index_t rows, index_t cols) : memory_(owner, rows * cols), rows_(rows), cols_(cols) {}

  matrix<float> view() const { return row_major(memory_.data(), rows_, cols_); }
  float* data() const { return memory_.data(); }
  const buffer<float>& memory() const { return memory_; }

 private:
  buffer<float> memory_;
  index_t rows_ = 0;
  index_t cols_ = 0;
};

/// A quantized operand that owns its memory and grows it as needed.
class operand {
 public:
  /// Quantizes `source`; the result is rows × k with k along the axis of the blocks.
  const gemm_operand& quantize(backend& ops, matrix<const float> source, const quantize_args& args) {
    const bool row = args.axis == block_axis::row;
    const format element = element_format(args.recipe.format);
    gemm_operand& o = described_;
    o.element = element;
    o.rows = source.extent(row ? 0 : 1);
    o.k = source.extent(row ? 1 : 0);
    o.code_stride = packed_bytes(element, o.k);
    o.block = is_mx(args.recipe.format) ? block_format_of(args.recipe.format).length : 0;
    o.scale_stride = o.block ? o.k / o.block : 0;
    reserve(ops, codes_, o.rows * o.code_stride);
    reserve(ops, scales_, o.rows * o.scale_stride);
    reserve(ops, factor_, 1);
    o.codes = codes_.data();
    o.scales = scales_.data();
    o.factor = is_fp8(args.recipe.format) ? factor_.data() : nullptr;
    ops.quantize(source, args, {o.rows, o.k, codes_.data(), o.code_stride, scales_.data(), o.scale_stride},
                 factor_.data());
    return o;
  }
  const gemm_operand& get() const { return described_; }

 private:
  template <class T>
  static void reserve(backend& ops, buffer<T>& memory, index_t size) {
    if (memory.size() < size) memory = buffer<T>(ops, size);
  }

  buffer<std::uint8_t> codes_, scales_;
  buffer<float> factor_;
  gemm_operand described_;
};

}  // namespace rotoscale::nn
