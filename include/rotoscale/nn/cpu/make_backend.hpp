// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Makes a CPU backend for users of the interface alone. With ROTOSCALE_COMPILED programs link the class, compiled once.
// Otherwise it is compiled where this header is included.
#pragma once

#if defined(ROTOSCALE_COMPILED)
#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/timed_operation.hpp"

namespace rotoscale::nn {
/// threads = 0: one for every hardware thread. `timing`: appends every operation, or null.
std::unique_ptr<backend> make_cpu_backend(int threads = 0, std::vector<timed_operation>* timing = nullptr);
}  // namespace rotoscale::nn
#else
#include "rotoscale/nn/cpu/backend.hpp"

namespace rotoscale::nn {
/// threads = 0: one for every hardware thread. `timing`: appends every operation, or null.
inline std::unique_ptr<backend> make_cpu_backend(int threads = 0, std::vector<timed_operation>* timing = nullptr) {
  return std::make_unique<cpu_backend>(threads, timing);
}
}  // namespace rotoscale::nn
#endif
