// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mma_model values. gemm_ref_test and gemm_test test their meaning.
#include "rotoscale/mma.hpp"

#include <doctest/doctest.h>

namespace mma_test {

using namespace rotoscale;

TEST_CASE("the named models") {
  CHECK(fp32_fma_chain.group == 1);
  CHECK(fp32_blockwise.group == 32);
  CHECK(fp64_fma_chain.result == mma_result::fp64_nearest);
  CHECK(fp32_fma_chain == mma_model{});
  CHECK_FALSE(fp32_fma_chain == fp32_blockwise);
}

}  // namespace mma_test
