// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// All numerics headers but test inputs (mma_cases.hpp) and the opt-in bridges eigen.hpp and dlpack.hpp. Files, layers and
// models (io/, nn/, llama/) are included by name, too.
#pragma once

#include "rotoscale/bits.hpp"
#include "rotoscale/block.hpp"
#include "rotoscale/config.hpp"
#include "rotoscale/format.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/gemm_fast.hpp"
#include "rotoscale/hadamard.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/limits.hpp"
#include "rotoscale/mma.hpp"
#include "rotoscale/mma_models.hpp"
#include "rotoscale/mma_ref.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/quantize.hpp"
#include "rotoscale/round.hpp"
#include "rotoscale/scale.hpp"
#include "rotoscale/small_float.hpp"
#include "rotoscale/sparse.hpp"
#include "rotoscale/version.hpp"
#include "rotoscale/view.hpp"
