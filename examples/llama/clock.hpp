// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Time that passes.
#pragma once

#include <chrono>

namespace rotoscale::llama_program {

/// Seconds since some moment.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace rotoscale::llama_program
