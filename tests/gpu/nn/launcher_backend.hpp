// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A backend with device memory whose operations call the launchers of gpu/api, so that the cases of backend_ops test
// them without device_backend. Operations without a launch are the CPU's and have no cases.
#pragma once

#include "../device_memory.hpp"
#include "gpu/train/rows.hpp"
#include "rotoscale/nn/cpu/backend.hpp"

namespace gpu_test {

namespace op = nn::op;

template <class In, class Out>
std::size_t workspace_bytes(const In&, const Out&) {
  return 0;
}
inline std::size_t workspace_bytes(const op::embedding_backward::in& i, const op::embedding_backward::out& o) {
  return gpu::embedding_backward_workspace_bytes(i.dy.extent(0), o.dtable.extent(0));
}
inline std::size_t workspace_bytes(const op::rmsnorm_backward::in& i, const op::rmsnorm_backward::out&) {
  return gpu::rmsnorm_backward_workspace_bytes(i.x.extent(0), i.x.extent(1));
}
inline std::size_t workspace_bytes(const op::layernorm_backward::in& i, const op::layernorm_backward::out&) {
  return gpu::layernorm_backward_workspace_bytes(i.x.extent(0), i.x.extent(1));
}
inline std::size_t workspace_bytes(const op::bias_backward::in& i, const op::bias_backward::out& o) {
  return gpu::bias_backward_workspace_bytes(i.dy.extent(0), i.dy.extent(1), o.dtable.extent(0));
}
inline std::size_t workspace_bytes(const op::cross_entropy::in&, const op::cross_entropy::out& o) {
  return gpu::cross_entropy_workspace_bytes(o.logits.extent(0), o.logits.extent(1));
}
inline std::size_t workspace_bytes(const op::sum_losses::in& i, const op::sum_losses::out&) {
  return gpu::sum_losses_workspace_bytes(i.n);
}
inline std::size_t workspace_bytes(const op::sum_squares::in& i, const op::sum_squares::out&) {
  return gpu::sum_squares_workspace_bytes(i.arena.size);
}
inline std::size_t workspace_bytes(const op::gradient_norm::in& i, const op::gradient_norm::out&) {
  return gpu::sum_squares_workspace_bytes(i.arena.size);
}

class launcher_backend : public nn::cpu_backend {
 public:
  launcher_backend() : nn::cpu_backend(1, rows) {}
  ~launcher_backend() override { (void)gpu::release(room_); }

  void* allocate(std::size_t bytes, nn::memory_kind) override {
    void* memory = nullptr;
    gpu_test::expect(gpu::allocate(memory, bytes + 1));
    gpu_test::expect(gpu::fill(memory, 0, bytes));
    return memory;
  }
  void release(void* memory, nn::memory_kind) noexcept override { (void)gpu::release(memory); }
  void transfer(nn::queue, nn::copy_kind kind, void* to, const void* from, std::size_t bytes) override {
    gpu_test::expect(gpu::synchronize());
    gpu_test::expect(kind == nn::copy_kind::upload ? gpu::upload(to, from, bytes) : gpu::download(to, from, bytes));
    gpu_test::expect(gpu::synchronize());
  }
  using nn::backend::synchronize;
  void synchronize(const nn::event&) override { gpu_test::expect(gpu::synchronize()); }

 private:
  template <class Op>
  static void row(nn::backend& ops, nn::queue, const typename Op::in& i, const typename Op::out& o) {
    gpu::device_call call;
    call.bytes = gpu_test::workspace_bytes(i, o);
    call.workspace = static_cast<launcher_backend&>(ops).room(call.bytes);
    gpu_test::expect(gpu_test::run([&](gpu::stream s) {
      call.s = s;
      return gpu::launch(call, i, o);
    }));
  }
  template <class Op>
  static constexpr nn::op_row<Op> row_of() {
    if constexpr (requires(const gpu::device_call& c, const typename Op::in& i, const typename Op::out& o) {
                    gpu::launch(c, i, o);
                  }) {
      return &row<Op>;
    } else {
      return &nn::cpu::row<Op>;
    }
  }
  static const nn::operation_table rows;

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

#define ROTOSCALE_LAUNCHER_ROW(name) row_of<op::name>(),
inline const nn::operation_table launcher_backend::rows{ROTOSCALE_OPERATIONS(ROTOSCALE_LAUNCHER_ROW)};
#undef ROTOSCALE_LAUNCHER_ROW

}  // namespace gpu_test
