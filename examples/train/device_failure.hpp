// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Failure of a device or of memory, with the session's memory plan: the reporter may have no session.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "rotoscale/nn/queue.hpp"
#include "rotoscale/train/memory_errors.hpp"

namespace rotoscale::program {

class device_failure : public std::runtime_error {
 public:
  /// The message is "KIND WHEN (DETAIL)"; an empty detail is left out.
  device_failure(std::string kind, const std::string& when, std::string detail, const nn::memory_plan& plan)
      : std::runtime_error(kind + " " + when + in_brackets(detail)),
        kind_(std::move(kind)),
        detail_(std::move(detail)),
        plan_(plan) {}

  /// The message with another `when`.
  std::string at(const std::string& when) const { return kind_ + " " + when + in_brackets(detail_); }
  /// Memory of the session by category.
  const nn::memory_plan& plan() const { return plan_; }

 private:
  static std::string in_brackets(const std::string& detail) { return detail.empty() ? "" : " (" + detail + ")"; }

  std::string kind_, detail_;
  nn::memory_plan plan_;
};

/// Returns f(). A failure of the device or of memory in f becomes a device_failure.
template <class Function>
std::invoke_result_t<Function> with_plan(const nn::memory_plan& plan, const std::string& when, const Function& f) {
  try {
    return f();
  } catch (const nn::backend_error& e) {
    if (!e.of_device()) throw;
    throw device_failure("the device failed", when, e.what(), plan);
  } catch (const train::out_of_memory& e) {
    throw device_failure(e.what(), when, "", e.plan());
  } catch (const std::bad_alloc&) {
    throw device_failure("out of memory", when, "", plan);
  }
}

}  // namespace rotoscale::program
