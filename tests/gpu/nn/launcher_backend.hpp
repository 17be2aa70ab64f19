// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A backend with device memory whose operations call the launchers of gpu/api, so that the cases of backend_ops test
// them without device_backend. Operations without a launch are the CPU's and have no cases.
#pragma once

#include <doctest/doctest.h>

#include <cstring>

#include "../device_memory.hpp"
#include "gpu/api/launch.hpp"
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
    call.bytes = gpu::workspace_bytes<Op>(i, o);
    call.workspace = static_cast<launcher_backend&>(ops).room(call.bytes);
    if (static_cast<launcher_backend&>(ops).refusing) refuse<Op>(call, i, o);
    gpu_test::expect(gpu_test::run([&](gpu::stream s) {
      call.s = s;
      return gpu::launch<Op>(call, i, o);
    }));
  }
  /// Replaces an address in a struct of arguments. Returns how often it was there.
  template <class T>
  static int replace(T& arguments, const void* from, const void* to) {
    auto* const bytes = reinterpret_cast<std::byte*>(&arguments);
    int found = 0;
    for (std::size_t at = 0; at + sizeof from <= sizeof arguments; at += alignof(const void*)) {
      if (std::memcmp(bytes + at, &from, sizeof from) != 0) continue;
      std::memcpy(bytes + at, &to, sizeof to);
      ++found;
    }
    return found;
  }
  /// Launches with too little workspace, then with each address null or odd. Every launch must be refused, unless the
  /// argument is optional.
  template <class Op>
  static void refuse(const gpu::device_call& call, const typename Op::in& i, const typename Op::out& o) {
    CAPTURE(std::string(Op::info.name));
    bool is_frozen = false;
    if constexpr (requires { o.dgain; }) is_frozen = o.dgain == nullptr;
    gpu::device_call small = call;
    if (call.bytes != 0 && !is_frozen) {
      --small.bytes;
      CHECK(std::string(gpu::launch<Op>(small, i, o).argument) == "workspace_bytes");
    }
    std::vector<nn::op_use> uses;
    Op::uses([&](const nn::op_use& u) { uses.push_back(u); }, i, o);
    for (const nn::op_use& u : uses) {
      for (const bool null : {true, false}) {
        typename Op::in in = i;
        typename Op::out out = o;
        const void* const bad = null ? nullptr : static_cast<const std::byte*>(u.at.data) + 1;
        if (u.at.data == nullptr || replace(in, u.at.data, bad) + replace(out, u.at.data, bad) == 0) continue;
        const gpu::status s = gpu::launch<Op>(call, in, out);
        const std::string label = u.digest == nullptr ? "" : u.digest;
        const bool optional = null && (label.ends_with("'s gain") || label.ends_with("'s bias") ||
                                       std::is_same_v<Op, op::rope> || label.ends_with("norm_forward") ||
                                       (label == "bias_backward" && !std::is_same_v<Op, op::bias_backward>) ||
                                       (std::is_same_v<Op, op::residual_norm> && label.empty()));
        CAPTURE(s.message());
        CHECK((s.code == gpu::error_code::bad_pointer || (optional && s.ok())));
      }
    }
  }
  template <class Op>
  static constexpr nn::op_row<Op> row_of() {
    if constexpr (requires(const gpu::device_call& c, const typename Op::in& i, const typename Op::out& o) {
                    gpu::launch<Op>(c, i, o);
                  }) {
      return &row<Op>;
    } else {
      return &nn::cpu::row<Op>;
    }
  }
  static const nn::operation_table rows;

 public:
  bool refusing = false;  ///< also launch with bad arguments, which must be refused

 private:
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
