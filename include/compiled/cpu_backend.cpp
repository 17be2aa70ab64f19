// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rotoscale/nn/cpu/backend.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"

namespace rotoscale::nn {

std::unique_ptr<backend> make_cpu_backend(int threads, std::vector<timed_operation>* timing) {
  return std::make_unique<cpu_backend>(threads, timing);
}

}  // namespace rotoscale::nn
