// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A device that fails before a session has made a pass: whoever reports it has no session to ask for its memory.
#pragma once

#include "rotoscale/llama/session.hpp"

namespace rotoscale::llama_program {

class loading_failure : public nn::backend_error {
 public:
  loading_failure(const nn::backend_error& e, const nn::memory_plan& plan) : backend_error(e), plan_(plan) {}

  /// What the session takes, by category.
  const nn::memory_plan& plan() const { return plan_; }

 private:
  nn::memory_plan plan_;
};

/// Calls f; a device's failure in it becomes a loading_failure.
template <class Function>
void with_plan(const nn::memory_plan& plan, const Function& f) {
  try {
    f();
  } catch (const nn::backend_error& e) {
    if (!e.of_device()) throw;
    throw loading_failure(e, plan);
  }
}

}  // namespace rotoscale::llama_program
