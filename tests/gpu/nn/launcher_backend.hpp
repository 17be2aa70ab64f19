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
    call.bytes = gpu::workspace(i, o);
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

#define ROTOSCALE_LAUNCHER_ROW(name) row_of<op::name>(), &nn::cpu::workspace_of<op::name>,
inline const nn::operation_table launcher_backend::rows{ROTOSCALE_OPERATIONS(ROTOSCALE_LAUNCHER_ROW)};
#undef ROTOSCALE_LAUNCHER_ROW

}  // namespace gpu_test
