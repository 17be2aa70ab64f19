// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Which kernel of dense BF16 and FP8 operands a build has, in the manner of kernels.hpp.
#pragma once

#include "gpu/dialect/hip.hpp"

#if defined(ROTOSCALE_CUDA)
#include "gpu/gemm/sm90/dense.hpp"
#elif defined(ROTOSCALE_AMD)
#include "gpu/gemm/no_dense.hpp"
#else
#include "gpu/gemm/dense_stand_in.hpp"
#endif
