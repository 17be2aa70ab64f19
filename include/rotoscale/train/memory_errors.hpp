// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Exceptions of a session that does not get its memory.
#pragma once

#include <stdexcept>
#include <string>

#include "rotoscale/nn/memory.hpp"

namespace rotoscale::train {

/// A session needs more memory than it gets.
class memory_refused : public std::runtime_error {
 public:
  /// `plan`: bytes needed, by category.
  memory_refused(const nn::memory_plan& plan, const std::string& what) : std::runtime_error(what), plan_(plan) {}
  /// Bytes needed, by category.
  const nn::memory_plan& plan() const { return plan_; }

 private:
  nn::memory_plan plan_;
};

/// The plan does not fit the limit.
class over_budget : public memory_refused {
 public:
  /// Both numbers are in the message.
  over_budget(const nn::memory_plan& plan, std::size_t limit)
      : memory_refused(plan,
                       "needs " + std::to_string(plan.total()) + " bytes, " + std::to_string(limit) + " are allowed") {}
};

/// The backend has less memory than the plan takes.
class out_of_memory : public memory_refused {
 public:
  /// `what`: the allocation that was refused.
  out_of_memory(const nn::memory_plan& plan, const std::string& what, std::size_t bytes)
      : memory_refused(plan, "out of memory at " + std::to_string(bytes) + " bytes for " + what) {}
};

}  // namespace rotoscale::train
