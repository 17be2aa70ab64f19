// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// For backend tests: backend memory with host access, and operands in it.
#pragma once

#include <vector>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::testing {

/// n elements of backend memory.
template <class T>
class device_array {
 public:
  device_array(nn::backend& ops, index_t n)
      : ops_(&ops), size_(n), memory_(static_cast<T*>(ops.allocate(bytes(), nn::memory_kind::device))) {}
  device_array(nn::backend& ops, const std::vector<T>& values)
      : device_array(ops, static_cast<index_t>(values.size())) {
    set(values);
  }
  device_array(device_array&& other) noexcept : ops_(other.ops_), size_(other.size_), memory_(other.memory_) {
    other.memory_ = nullptr;
  }
  ~device_array() {
    if (memory_ != nullptr) ops_->release(memory_, nn::memory_kind::device);
  }

  T* data() const { return memory_; }
  index_t size() const { return size_; }
  void set(const std::vector<T>& values) const {
    ops_->upload({}, memory_, values.data(), values.size() * sizeof(T));
    ops_->synchronize(nn::queue{});
  }
  std::vector<T> get() const {
    std::vector<T> host(static_cast<std::size_t>(size_));
    ops_->download({}, host.data(), memory_, host.size() * sizeof(T));
    ops_->synchronize(nn::queue{});
    return host;
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

  nn::backend* ops_;
  index_t size_;
  T* memory_;
};

/// The default queue's workspace.
class queue_workspace {
 public:
  explicit queue_workspace(nn::backend& ops, index_t bytes = 1 << 20) : memory_(ops, bytes) {
    ops.set_workspace({}, memory_.data(), static_cast<std::size_t>(memory_.size()));
  }

 private:
  device_array<std::byte> memory_;
};

/// Operands with their memory.
struct made_operands {
  device_array<std::byte> memory;
  std::unique_ptr<nn::operand_set> set;

  made_operands(nn::backend& ops, const nn::operand_request& request, nn::const_tensor_view source)
      : memory(ops, static_cast<index_t>(ops.layout_operands(request).bytes) + 1),
        set(ops.make_operands(request, memory.data(), source)) {}

  nn::operand row() const { return {set.get(), nn::operand_form::row}; }
  nn::operand column() const { return {set.get(), nn::operand_form::column}; }
};

}  // namespace rotoscale::testing
