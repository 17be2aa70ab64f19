// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A backend with device memory that calls the launchers of gpu/api/nn.hpp for rows, losses and arenas, so that the
// cases of backend_ops test them. Other operations are the CPU's and have no cases.
#pragma once

#include "../device_memory.hpp"
#include "gpu/api/nn.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace gpu_test {

class launcher_backend : public nn::cpu_backend {
 public:
  launcher_backend() : nn::cpu_backend(1) {}
  ~launcher_backend() override { (void)gpu::release(room_); }
  std::string description() const override { return std::string("launchers on ") + gpu::to_text(device.arch); }

  void* allocate(std::size_t bytes, nn::memory_kind) override {
    void* memory = nullptr;
    expect(gpu::allocate(memory, bytes + 1));
    expect(gpu::fill(memory, 0, bytes));
    return memory;
  }
  void release(void* memory, nn::memory_kind) noexcept override { (void)gpu::release(memory); }
  void upload(nn::queue, void* to, const void* host, std::size_t bytes) override {
    expect(gpu::upload(to, host, bytes));
    expect(gpu::synchronize());
  }
  void download(nn::queue, void* host, const void* from, std::size_t bytes) override {
    expect(gpu::synchronize());
    expect(gpu::download(host, from, bytes));
    expect(gpu::synchronize());
  }
  using nn::backend::synchronize;
  void synchronize(const nn::event&) override { expect(gpu::synchronize()); }

  void begin_step(nn::queue, const std::int32_t* targets, index_t count, nn::step_state* state) override {
    launch([=](gpu::stream s) { return gpu::begin_step(targets, count, state, s); });
  }
  void set_gradient_scale(nn::queue, nn::step_state* state) override {
    launch([=](gpu::stream s) { return gpu::set_gradient_scale(state, s); });
  }
  void next_micro_batch(nn::queue, nn::step_state* state) override {
    launch([=](gpu::stream s) { return gpu::next_micro_batch(state, s); });
  }
  void embedding_forward(nn::queue, const nn::token_source& tokens, nn::const_tensor_view table, nn::tensor_view y,
                         const nn::step_state* state) override {
    launch([=](gpu::stream s) { return gpu::embedding_forward(tokens, table, y, state, nullptr, s); });
  }
  void embedding_backward(nn::queue, const nn::token_source& tokens, nn::const_tensor_view dy, nn::tensor_view dtable,
                          const nn::step_state* state) override {
    const std::size_t bytes = gpu::embedding_backward_workspace_bytes(dy.extent(0), dtable.extent(0));
    launch([=, room = room(bytes)](gpu::stream s) {
      return gpu::embedding_backward(tokens, dy, dtable, state, room, bytes, s);
    });
  }
  void rmsnorm_forward(nn::queue, nn::const_tensor_view x, const float* gain, float eps, nn::tensor_view y,
                       float* rstd) override {
    launch([=](gpu::stream s) { return gpu::rmsnorm_forward(x, gain, eps, y, rstd, s); });
  }
  void rmsnorm_backward(nn::queue, nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain,
                        const float* rstd, nn::tensor_view dx, float* dgain) override {
    const std::size_t bytes = gpu::rmsnorm_backward_workspace_bytes(x.extent(0), x.extent(1));
    launch([=, room = room(bytes)](gpu::stream s) {
      return gpu::rmsnorm_backward(dy, x, gain, rstd, dx, dgain, room, bytes, s);
    });
  }
  void residual_norm(nn::queue, const nn::residual_norm_args& args, const nn::step_state*) override {
    launch([=](gpu::stream s) { return gpu::residual_norm(args, s); });
  }
  void rope(nn::queue, nn::tensor_view x, const float* cosine, const float* sine, bool inverse) override {
    launch([=](gpu::stream s) { return gpu::rope(x, cosine, sine, inverse, s); });
  }
  void rope_both(nn::queue, nn::tensor_view queries, nn::tensor_view keys, const float* cosine, const float* sine,
                 bool inverse) override {
    launch([=](gpu::stream s) { return gpu::rope_both(queries, keys, cosine, sine, inverse, s); });
  }
  void swiglu_forward(nn::queue, nn::const_tensor_view gate_up, nn::tensor_view h) override {
    launch([=](gpu::stream s) { return gpu::swiglu_forward(gate_up, h, s); });
  }
  void swiglu_backward(nn::queue, nn::const_tensor_view dh, nn::const_tensor_view gate_up,
                       nn::tensor_view d_gate_up) override {
    launch([=](gpu::stream s) { return gpu::swiglu_backward(dh, gate_up, d_gate_up, s); });
  }
  void add(nn::queue, nn::const_tensor_view x, nn::const_tensor_view y, nn::tensor_view sum) override {
    launch([=](gpu::stream s) { return gpu::add(x, y, sum, s); });
  }
  void cross_entropy(nn::queue, nn::tensor_view logits, const nn::token_source& targets, index_t first, float* loss,
                     bool gradients, const nn::step_state* state) override {
    const std::size_t bytes = gpu::cross_entropy_workspace_bytes(logits.extent(0), logits.extent(1));
    launch([=, room = room(bytes)](gpu::stream s) {
      return gpu::cross_entropy(logits, targets, first, loss, gradients, state, nullptr, room, bytes, s);
    });
  }
  void sum_losses(nn::queue, const float* loss, index_t n, nn::step_state* state) override {
    const std::size_t bytes = gpu::sum_losses_workspace_bytes(n);
    launch([=, room = room(bytes)](gpu::stream s) { return gpu::sum_losses(loss, n, state, room, bytes, s); });
  }
  void dropout(nn::queue, nn::const_tensor_view x, const nn::dropout_args& args, nn::tensor_view y, bool accumulate,
               const nn::step_state* state) override {
    launch([=](gpu::stream s) { return gpu::dropout(x, args, y, accumulate, state, s); });
  }
  void sum_squares(nn::queue, const float* x, const nn::parameter_arena& arena, double* out) override {
    const std::size_t bytes = gpu::sum_squares_workspace_bytes(arena.size);
    launch([=, room = room(bytes)](gpu::stream s) { return gpu::sum_squares(x, arena, out, room, bytes, s); });
  }
  void gradient_norm(nn::queue, const nn::parameter_arena& arena, const nn::optimizer_config& config,
                     nn::step_state* state) override {
    const std::size_t bytes = gpu::sum_squares_workspace_bytes(arena.size);
    launch([=, room = room(bytes)](gpu::stream s) { return gpu::gradient_norm(arena, config, state, room, bytes, s); });
  }
  void adamw(nn::queue, const nn::parameter_arena& arena, const nn::optimizer_config& config,
             const nn::step_state* state) override {
    launch([=](gpu::stream s) { return gpu::adamw(arena, config, state, s); });
  }

 private:
  template <class Launch>
  static void launch(const Launch& what) {
    gpu_test::expect(gpu_test::run(what));
  }
  /// Poisoned, to detect reads of memory that the kernel did not write.
  void* room(std::size_t bytes) {
    gpu_test::expect(gpu::synchronize());
    gpu_test::expect(gpu::release(room_));
    room_ = nullptr;
    gpu_test::expect(gpu::allocate(room_, bytes));
    gpu_test::expect(gpu::fill(room_, 0xA5, bytes));
    return room_;
  }
  void* room_ = nullptr;
};

}  // namespace gpu_test
