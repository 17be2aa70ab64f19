// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Every operation of every backend of this build against the CPU's on one thread, by bytes, and fused operations
// against their compositions.
#include <doctest/doctest.h>

#include <set>

#include "backend_ops_all.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"

namespace backend_ops_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

namespace {

/// The tested backends. A device's backend is added here.
std::vector<std::unique_ptr<nn::backend>> tested_backends() {
  std::vector<std::unique_ptr<nn::backend>> all;
  all.push_back(nn::make_cpu_backend(3));
  return all;
}

}  // namespace

TEST_CASE("every operation of the table has a case") {
#define ROTOSCALE_NAME(name) #name,
  const std::set<std::string> declared{ROTOSCALE_OPERATIONS(ROTOSCALE_NAME)};
#undef ROTOSCALE_NAME
  std::set<std::string> listed;
  const auto cases = all_cases();
  for (const operation_cases& row : cases_of_operations) {
    listed.insert(row.operation);
    CAPTURE(row.operation);
    CHECK(std::any_of(cases.begin(), cases.end(),
                      [&](const op_case& c) { return c.name.find(row.name) != std::string::npos; }));
  }
  CHECK(declared == listed);
}

TEST_CASE("every operation leaves the CPU's bytes") {
  const auto reference = nn::make_cpu_backend(1);
  for (const auto& tested : tested_backends()) {
    CAPTURE(tested->description());
    for (const op_case& c : all_cases()) {
      CAPTURE(c.name);
      CHECK(c.runs_on(*tested));
      const auto want = bytes_of(c, *reference);
      CHECK_FALSE(want.empty());
      CHECK(want == bytes_of(c, *tested));
    }
  }
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
