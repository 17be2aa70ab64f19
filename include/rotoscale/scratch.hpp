// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Scratch memory for the duration of a call. Each thread has a stack: memory lent by a caller first, then blocks that
// the thread allocates and keeps. A repeated call allocates nothing.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "rotoscale/config.hpp"

namespace rotoscale {

/// Scratch memory of one thread. scratch_array takes from it, lent_scratch adds to it.
class scratch_stack {
 public:
  static constexpr std::size_t alignment = 64;  ///< bytes: a cache line, the largest vector register

  ROTOSCALE_ISA_TAG scratch_stack() {}
  scratch_stack(const scratch_stack&) = delete;
  scratch_stack& operator=(const scratch_stack&) = delete;
  ROTOSCALE_ISA_TAG ~scratch_stack() {
    while (top_ != nullptr) drop_top();
  }

  /// The stack of the calling thread.
  ROTOSCALE_ISA_TAG static scratch_stack& of_thread() {
    static thread_local scratch_stack own;
    return own;
  }

  /// Lent memory that is free, which a thread can share with others.
  ROTOSCALE_ISA_TAG std::span<std::byte> rest() const { return lent_.subspan(lent_used_); }

  /// Bytes that a scratch_array of this size takes.
  ROTOSCALE_ISA_TAG static constexpr std::size_t rounded(std::size_t bytes) {
    return bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  }

 private:
  template <class T>
  friend class scratch_array;
  friend class lent_scratch;

  /// An allocated block; its memory follows this header.
  struct alignas(alignment) block {
    block* below;
    std::size_t size, used;

    ROTOSCALE_ISA_TAG std::byte* memory() { return reinterpret_cast<std::byte*>(this + 1); }
  };

  ROTOSCALE_ISA_TAG void* take(std::size_t bytes) {
    if (bytes <= lent_.size() - lent_used_) {
      lent_used_ += bytes;
      return lent_.data() + (lent_used_ - bytes);
    }
    if (top_ == nullptr || bytes > top_->size - top_->used) add_block(bytes);
    top_->used += bytes;
    used_ += bytes;
    most_ = std::max(most_, used_);
    return top_->memory() + (top_->used - bytes);
  }
  /// Returns the most recent allocation.
  ROTOSCALE_ISA_TAG void give_back(const void* memory, std::size_t bytes) {
    if (top_ == nullptr || top_->used < bytes || memory != top_->memory() + (top_->used - bytes)) {
      lent_used_ -= bytes;
      return;
    }
    top_->used -= bytes;
    used_ -= bytes;
    // When the stack is empty, several blocks are replaced by one that holds all.
    if (top_->used == 0 && (top_->below != nullptr || top_->size < most_)) drop_top();
  }
  ROTOSCALE_ISA_TAG void add_block(std::size_t bytes) {
    if (top_ != nullptr && top_->used == 0) drop_top();  // the lowest block, too small
    if (top_ == nullptr) bytes = std::max(bytes, most_);
    void* const memory = ::operator new (sizeof(block) + bytes, std::align_val_t{alignment});
    top_ = ::new (memory) block{top_, bytes, 0};
  }
  ROTOSCALE_ISA_TAG void drop_top() {
    block* const gone = top_;
    top_ = gone->below;
    ::operator delete (gone, std::align_val_t{alignment});
  }

  std::span<std::byte> lent_;
  std::size_t lent_used_ = 0;
  block* top_ = nullptr;
  std::size_t used_ = 0, most_ = 0;  ///< of allocated blocks
};

/// Lends memory to the calling thread until destruction. Allocations from it must end before that.
class lent_scratch {
 public:
  /// Lends from construction on.
  ROTOSCALE_ISA_TAG explicit lent_scratch(std::span<std::byte> memory) {
    void* at = memory.data();
    std::size_t bytes = memory.size();
    if (std::align(scratch_stack::alignment, 0, at, bytes) == nullptr) bytes = 0;
    scratch_stack& own = scratch_stack::of_thread();
    before_ = own.lent_;
    before_used_ = own.lent_used_;
    own.lent_ = {static_cast<std::byte*>(at), bytes};
    own.lent_used_ = 0;
  }
  lent_scratch(const lent_scratch&) = delete;
  lent_scratch& operator=(const lent_scratch&) = delete;
  ROTOSCALE_ISA_TAG ~lent_scratch() {
    scratch_stack& own = scratch_stack::of_thread();
    own.lent_ = before_;
    own.lent_used_ = before_used_;
  }

 private:
  std::span<std::byte> before_;
  std::size_t before_used_ = 0;
};

/// `count` uninitialized elements from the calling thread's stack. Arrays must be destroyed in reverse order.
template <class T>
class scratch_array {
 public:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

  /// Takes the elements.
  ROTOSCALE_ISA_TAG explicit scratch_array(index_t count)
      : data_(static_cast<T*>(scratch_stack::of_thread().take(bytes(count)))), bytes_(bytes(count)) {}
  scratch_array(const scratch_array&) = delete;
  scratch_array& operator=(const scratch_array&) = delete;
  ROTOSCALE_ISA_TAG ~scratch_array() { scratch_stack::of_thread().give_back(data_, bytes_); }

  /// Bytes that an array of this length takes from a stack.
  ROTOSCALE_ISA_TAG static constexpr std::size_t bytes(index_t count) {
    return scratch_stack::rounded(static_cast<std::size_t>(count) * sizeof(T));
  }

  /// First element, aligned to a cache line.
  ROTOSCALE_ISA_TAG T* data() const { return data_; }
  /// Element `i`.
  ROTOSCALE_ISA_TAG T& operator[](index_t i) const { return data_[i]; }

 private:
  T* data_;
  std::size_t bytes_;
};

}  // namespace rotoscale
