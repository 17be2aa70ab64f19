// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Element types of MX blocks that GEMM kernels are compiled for.
#pragma once

#include "rotoscale/format.hpp"

namespace rotoscale::gpu {

enum class gemm_element : int { e2m1, e4m3, e5m2 };

constexpr format format_of(gemm_element e) {
  return e == gemm_element::e2m1 ? formats::e2m1 : e == gemm_element::e4m3 ? formats::e4m3 : formats::e5m2;
}

}  // namespace rotoscale::gpu
