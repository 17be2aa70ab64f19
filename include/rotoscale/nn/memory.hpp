// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory is planned before it is allocated. A layout function walks a memory_cursor twice. Without memory it counts
// bytes by category. Over the arenas of that size it returns addresses. The plan is therefore exact.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "rotoscale/names.hpp"
#include "rotoscale/nn/tensor.hpp"

namespace rotoscale::nn {

/// Kind of memory.
enum class memory_kind {
  device,  ///< for operations
  pinned   ///< of the host, for asynchronous copies
};

/// Uses of memory: each category is one allocation.
enum class memory_category {
  weights,      ///< FP32 weights that do not train, tables
  masters,      ///< FP32 weights that train
  gradients,    ///< FP32
  moments,      ///< of the optimizer, FP32
  quantized,    ///< operands made of weights, with the state of their scales
  adapters,     ///< operands made of adapters' matrices
  stash,        ///< operands of other recipes, kept in pinned memory for a later switch
  activations,  ///< saved by the forward pass for the backward pass
  workspace,    ///< lives within a pass, or holds a step's inputs and results
  snapshot,     ///< copies for a checkpoint that is written while steps continue, in pinned memory
  transfers     ///< inputs and results of the steps in flight, in pinned memory
};
ROTOSCALE_ENUM_NAMES(memory_category, weights, masters, gradients, moments, quantized, adapters, stash, activations,
                     workspace, snapshot, transfers)
ROTOSCALE_ENUM_NAMES(dtype, fp32, bf16, fp64, e4m3, e5m2, u8, i32, i64)
inline constexpr int memory_categories = 11;  ///< how many there are
/// Kind of a category's memory.
constexpr memory_kind kind_of(memory_category c) {
  const bool of_host = c == memory_category::stash || c == memory_category::snapshot || c == memory_category::transfers;
  return of_host ? memory_kind::pinned : memory_kind::device;
}

/// Bytes by category.
struct memory_plan {
  std::array<std::size_t, memory_categories> bytes{};  ///< by number of the category

  /// Bytes of a category.
  std::size_t operator[](memory_category c) const { return bytes[static_cast<std::size_t>(c)]; }
  /// Bytes of a category.
  std::size_t& operator[](memory_category c) { return bytes[static_cast<std::size_t>(c)]; }
  /// Bytes of all categories, on the device and pinned on the host, which session_options::memory_limit bounds.
  std::size_t total() const { return of_kind(memory_kind::device) + of_kind(memory_kind::pinned); }
  /// Bytes of all categories of a kind.
  std::size_t of_kind(memory_kind kind) const {
    std::size_t sum = 0;
    for (std::size_t c = 0; c < bytes.size(); ++c) {
      if (kind_of(static_cast<memory_category>(c)) == kind) sum += bytes[c];
    }
    return sum;
  }
  /// Enough for either.
  void cover(const memory_plan& other) {
    for (std::size_t c = 0; c < bytes.size(); ++c) bytes[c] = std::max(bytes[c], other.bytes[c]);
  }
  /// True if no category is larger than in `room`.
  bool fits(const memory_plan& room) const {
    for (std::size_t c = 0; c < bytes.size(); ++c) {
      if (bytes[c] > room.bytes[c]) return false;
    }
    return true;
  }
};

/// Bytes in use, and their peak, by category: sums over living `resident`s.
class memory_ledger {
 public:
  /// Now.
  const memory_plan& now() const { return now_; }
  /// Peak since restart_peak().
  const memory_plan& peak() const { return peak_; }
  /// Restarts the peak.
  void restart_peak() { peak_ = now_; }

 private:
  friend class resident;
  memory_plan now_, peak_;
};

/// Counts bytes in a ledger while it lives.
class resident {
 public:
  resident() = default;
  /// Counts from now on. Null: no ledger.
  resident(memory_ledger* ledger, memory_category c, std::size_t bytes) : ledger_(ledger), category_(c), bytes_(bytes) {
    if (ledger_ == nullptr) return;
    ledger_->now_[c] += bytes;
    ledger_->peak_.cover(ledger_->now_);
  }
  /// Takes over the count of `other`.
  resident(resident&& other) noexcept { *this = std::move(other); }
  /// Exchanges the counts.
  resident& operator=(resident&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(category_, other.category_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~resident() {
    if (ledger_ != nullptr) ledger_->now_[category_] -= bytes_;
  }

 private:
  memory_ledger* ledger_ = nullptr;
  memory_category category_ = memory_category::quantized;
  std::size_t bytes_ = 0;
};

/// Where each category begins; null: nothing is allocated, only counted.
using arena_bases = std::array<std::byte*, memory_categories>;

/// Hands out a category's memory from its beginning on.
class memory_cursor {
 public:
  static constexpr std::size_t alignment = 256;  ///< bytes
  /// `bytes` rounded up to whole alignments.
  static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

  memory_cursor() = default;
  /// Hands out memory of these arenas. A ledger, if given, counts it.
  explicit memory_cursor(const arena_bases& bases, memory_ledger* ledger = nullptr)
      : bases_(bases), ledger_(ledger), counts_only_(false) {}

  /// True if it only counts bytes, without memory.
  bool counts_only() const { return counts_only_; }

  /// Ledger that counts the memory.
  memory_ledger* ledger() const { return ledger_; }

  /// Null while counting.
  void* take(memory_category c, std::size_t bytes) {
    const auto i = static_cast<std::size_t>(c);
    const std::size_t at = used_[i];
    used_[i] = aligned(at + bytes);
    peak_[c] = std::max(peak_[c], used_[i]);
    return counts_only_ ? nullptr : bases_[i] + at;
  }
  /// A dense matrix.
  tensor_view tensor(memory_category c, dtype type, index_t rows, index_t cols) {
    return dense_tensor(take(c, static_cast<std::size_t>(rows * cols * size_of(type))), type, {rows, cols});
  }
  /// `n` elements.
  template <class T>
  T* array(memory_category c, index_t n) {
    return static_cast<T*>(take(c, static_cast<std::size_t>(n) * sizeof(T)));
  }

  /// Position for rewind(): memory after it may be reused at another time.
  std::size_t mark(memory_category c) const { return used_[static_cast<std::size_t>(c)]; }
  /// Frees the memory handed out since `mark`.
  void rewind(memory_category c, std::size_t mark) { used_[static_cast<std::size_t>(c)] = mark; }

  /// Largest use of each category.
  const memory_plan& plan() const { return peak_; }

 private:
  arena_bases bases_{};
  memory_ledger* ledger_ = nullptr;
  bool counts_only_ = true;
  std::array<std::size_t, memory_categories> used_{};
  memory_plan peak_;
};

}  // namespace rotoscale::nn
