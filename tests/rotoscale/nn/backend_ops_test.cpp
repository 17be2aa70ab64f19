// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every operation of every backend of this build against the CPU's on one thread, by bytes, and fused operations
// against their compositions.
#include <doctest/doctest.h>

#include <set>

#include "backend_ops_all.hpp"
#include "rotoscale/nn/cpu/backend.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"

namespace backend_ops_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

/// The tested backends. A device's backend is added here.
std::vector<std::unique_ptr<nn::backend>> tested_backends() {
  std::vector<std::unique_ptr<nn::backend>> all;
  all.push_back(nn::make_cpu_backend(3));
  return all;
}

/// Operations that ran on the reference.
std::set<const nn::op_info*> ran;
template <class Op>
void noted(nn::backend& ops, nn::queue q, const typename Op::in& i, const typename Op::out& o) {
  ran.insert(&Op::info);
  nn::cpu::row<Op>(ops, q, i, o);
}
#define ROTOSCALE_NOTED(name) &noted<nn::op::name>, &nn::cpu::workspace_of<nn::op::name>,
constexpr nn::operation_table noted_rows{ROTOSCALE_OPERATIONS(ROTOSCALE_NOTED)};
#undef ROTOSCALE_NOTED

TEST_CASE("every operation has a case and leaves the CPU's bytes") {
  nn::cpu_backend reference(1, noted_rows);
  for (const auto& tested : tested_backends()) {
    CAPTURE(tested->description());
    for (const op_case& c : all_cases()) {
      CAPTURE(c.name);
      CHECK(c.runs_on(*tested));
      const auto want = bytes_of(c, reference);
      CHECK_FALSE(want.empty());
      CHECK(want == bytes_of(c, *tested));
    }
  }
#define ROTOSCALE_RAN(name) CHECK_MESSAGE(ran.contains(&nn::op::name::info), #name " has no case");
  ROTOSCALE_OPERATIONS(ROTOSCALE_RAN)
#undef ROTOSCALE_RAN
}

TEST_CASE("a coarse operation leaves the bytes of its composition") {
  for (const auto& tested : tested_backends()) {
    CAPTURE(tested->description());
    int coarse = 0;
    for (const op_case& c : coarse_and_raw_cases()) {
      if (!c.coarse) continue;
      CAPTURE(c.name);
      CHECK(bytes_of(c, *tested) == bytes_of(c, *tested, true));
      ++coarse;
    }
    CHECK(coarse > 50);
  }
}

TEST_CASE("a backend's GEMM has the contract that was asked for") {
  for (const auto& tested : tested_backends()) {
    nn::gemm_recipe g;
    g.accumulate = "hopper-fp8-promoted";
    const auto agreed = tested->contract(g, 64, 64, 64);
    if (agreed) CHECK(agreed->name == g.accumulate);
  }
}

}  // namespace backend_ops_test
