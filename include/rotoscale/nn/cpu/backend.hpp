// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The operations on the CPU: threads own outputs, so results do not depend on their number.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>

#include "rotoscale/gemm.hpp"
#include "rotoscale/nn/cpu/attention.hpp"
#include "rotoscale/nn/cpu/layers.hpp"
#include "rotoscale/nn/cpu/quantize.hpp"

namespace rotoscale::nn {

class cpu_backend final : public backend {
 public:
  /// threads = 0: one for every hardware thread.
  explicit cpu_backend(int threads = 0) : pool_(threads) {}

  std::string description() const override {
#if defined(__AVX512F__)
    const char* isa = "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
    const char* isa = "avx2";
#else
    const char* isa = "generic";
#endif
    return "cpu (" + std::to_string(pool_.threads()) + (pool_.threads() == 1 ? " thread, " : " threads, ") + isa + ")";
  }
  thread_pool& pool() { return pool_; }

  void* allocate(std::size_t bytes) override {
    const std::size_t size = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    void* memory = ::operator new (size, std::align_val_t{alignment});
    std::memset(memory, 0, size);
    return memory;
  }
  void release(void* memory) noexcept override { ::operator delete (memory, std::align_val_t{alignment}); }
  void copy_in(void* to, const void* from_host, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from_host, bytes);  // an empty vector has no address
  }
  void copy_out(void* to_host, const void* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to_host, from, bytes);
  }
  void fill_zero(void* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }

  void quantize(matrix<const float> source, const quantize_args& args, const block_matrix<std::uint8_t>& out,
                float* out_factor) override {
    cpu::quantize_operand(source, args, out, out_factor, pool_);
  }
  void gemm(const gemm_operand& a, const gemm_operand& b, const gemm_options& options, matrix<float> c) override {
    rotoscale::gemm(a, b, options, c, pool_);
  }
  void update_scales(const scaling_state& state, const delayed_scaling& rule) override {
    cpu::update_scales(state, rule);
  }

  void embedding_forward(const std::int32_t* tokens, matrix<const float> table, matrix<float> y) override {
    cpu::embedding_forward(tokens, table, y, pool_);
  }
  void embedding_backward(const std::int32_t* tokens, matrix<const float> dy, matrix<float> dtable) override {
    cpu::embedding_backward(tokens, dy, dtable, pool_);
  }
  void rmsnorm_forward(matrix<const float> x, const float* weight, float eps, matrix<float> y, float* rstd) override {
    cpu::rmsnorm_forward(x, weight, eps, y, rstd, pool_);
  }
  void rmsnorm_backward(matrix<const float> dy, matrix<const float> x, const float* weight, const float* rstd,
                        matrix<float> dx, float* dweight) override {
    cpu::rmsnorm_backward(dy, x, weight, rstd, dx, dweight, pool_);
  }
  void rope(heads_view<float> x, const float* cosine, const float* sine, bool inverse) override {
    cpu::rope(x, cosine, sine, inverse, pool_);
  }
  void attention_forward(heads_view<const float> q, heads_view<const float> k, heads_view<const float> v,
                         heads_view<float> o, float* lse) override {
    cpu::attention_forward(q, k, v, o, lse, pool_);
  }
  void attention_backward(heads_view<const float> q, heads_view<const float> k, heads_view<const float> v,
                          heads_view<const float> o, const float* lse, heads_view<const float> d_o,
                          heads_view<float> dq, heads_view<float> dk, heads_view<float> dv) override {
    cpu::attention_backward(q, k, v, o, lse, d_o, dq, dk, dv, pool_);
  }
  void swiglu_forward(matrix<const float> gate, matrix<const float> up, matrix<float> h) override {
    cpu::swiglu_forward(gate, up, h, pool_);
  }
  void swiglu_backward(matrix<const float> dh, matrix<const float> gate, matrix<const float> up, matrix<float> dgate,
                       matrix<float> dup) override {
    cpu::swiglu_backward(dh, gate, up, dgate, dup, pool_);
  }
  void add(matrix<float> x, matrix<const float> y) override { cpu::add(x, y, pool_); }
  void cross_entropy(matrix<float> logits, const std::int32_t* targets, float* loss, float gradient_scale) override {
    cpu::cross_entropy(logits, targets, loss, gradient_scale, pool_);
  }
  double sum_squares(const float* x, index_t n) override { return cpu::sum_squares(x, n, pool_); }
  void adamw(float* weight, const float* gradient, float* m, float* v, index_t n, const adamw_args& args) override {
    cpu::adamw(weight, gradient, m, v, n, args, pool_);
  }

 private:
  static constexpr std::size_t alignment = 64;
  thread_pool pool_;
};

}  // namespace rotoscale::nn
