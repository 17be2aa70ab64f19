// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a plan: one allocation of a backend for each category.
#pragma once

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::nn {

/// A backend's memory by category. The destructor releases it, even if the owner's constructor throws.
class arena_memory {
 public:
  /// Empty. `ops` must outlive it.
  explicit arena_memory(backend& ops) : ops_(&ops) {}
  arena_memory(const arena_memory&) = delete;
  arena_memory& operator=(const arena_memory&) = delete;
  ~arena_memory() {
    for (std::size_t c = 0; c < bases_.size(); ++c) {
      if (bases_[c] != nullptr) ops_->release(bases_[c], kind_of(static_cast<memory_category>(c)));
    }
  }

  /// Allocates `bytes` for an empty category. Throws std::bad_alloc if the backend refuses.
  void allocate(memory_category c, std::size_t bytes) {
    std::byte*& base = bases_[static_cast<std::size_t>(c)];
    ROTOSCALE_ASSERT(base == nullptr);
    base = static_cast<std::byte*>(ops_->allocate(bytes, kind_of(c)));
  }
  /// Address of each category.
  const arena_bases& bases() const { return bases_; }

 private:
  backend* ops_;
  arena_bases bases_{};
};

}  // namespace rotoscale::nn
