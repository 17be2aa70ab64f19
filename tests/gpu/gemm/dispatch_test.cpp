// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The table of tuned GEMM kernels: what it accepts, how a shape finds its row, what the environment overrides.
#include "gpu/gemm/dispatch.hpp"

#include <doctest/doctest.h>

#include "gpu/gemm/arguments.hpp"
#include "rotoscale/nn/statistics.hpp"

using namespace rotoscale;
using namespace rotoscale::gpu;

// What statistics of training runs count is what decides a GEMM's path.
static_assert(nn::int8_window_binades == int8_window && nn::e5m2_window_binades == fold_window);

namespace {

std::string error_of(const std::string& text) {
  std::istringstream in(text);
  std::string why;
  const auto rows = parse_tuned(in, why);
  if (!why.empty()) CHECK(rows.empty());
  return why;
}

std::vector<tuned_row> table(const std::string& lines) {
  std::istringstream in(std::string(tuned_header) + "\n" + lines);
  std::string why;
  const auto rows = parse_tuned(in, why);
  REQUIRE(why == "");
  return rows;
}

/// Sets a variable for the length of a scope.
struct variable {
  const char* name;
  variable(const char* n, const std::string& value) : name(n) { setenv(n, value.c_str(), 1); }
  ~variable() { unsetenv(name); }
};

const device_info h200{arch::sm_90, 132};

gemm_choice chosen(const std::vector<tuned_row>& rows, gemm_contract contract, int m, int n, int k) {
  gemm_choice c;
  const status s = choose_gemm(rows, h200, contract, m, n, k, c);
  CHECK_MESSAGE(s.ok(), s.message());
  return c;
}

}  // namespace

TEST_CASE("a table is read whole or not at all") {
  const std::string header = std::string(tuned_header) + "\n", row = "sm_90,132,8192,4096,512,fast,2,10.5,1300,1e-3\n";
  CHECK(error_of(header) == "");
  CHECK(error_of("# comment\n" + header + "\n" + row) == "");
  CHECK(error_of("") == "no header");
  CHECK(error_of(row) == "line 1: the header is not the one of this version");
  CHECK(error_of(header + row + "sm_90,132\n") == "line 3: ten columns are needed");
  CHECK(error_of(header + "sm_90,132,0,4096,512,fast,2,10.5,1300,0\n") ==
        "line 2: a whole number above zero is needed");
  CHECK(error_of(header + "sm_90,132,8x,4096,512,fast,2,10.5,1300,0\n") ==
        "line 2: a whole number above zero is needed");
  CHECK(error_of(header + "sm_90,132,8,4096,512,fast,2,ten,1300,0\n") == "line 2: a number is needed");
  CHECK(error_of(header + "sm_90,132,8,4096,512,quick,2,10,1300,0\n") == "line 2: no kernel has this name");
  const auto rows = table("sm_90,132,8192,4096,512,fast,2,10.5,1300,1e-3\r\n");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].m == 8192);
  CHECK(rows[0].n == 4096);
  CHECK(rows[0].k == 512);
  CHECK(rows[0].split_k == 2);
  CHECK(rows[0].us == 10.5);
  CHECK(rows[0].error == 1e-3);
}

TEST_CASE("M is rounded up as AITER rounds it") {
  CHECK(padded_m(1, 64, 0) == 16);
  CHECK(padded_m(257, 64, 0) == 288);
  CHECK(padded_m(1025, 64, 0) == 1088);
  CHECK(padded_m(4097, 64, 0) == 4224);
  CHECK(padded_m(300, 64, 1) == 512);
  CHECK(padded_m(8193, 4096, 1) == 16384);
  CHECK(padded_m(8193, 4097, 1) == 8192);
}

TEST_CASE("the exact shape, then padded M, then the heuristic; contracts and devices apart; the fastest row") {
  const auto rows = table(
      "sm_90,132,100,4096,4096,fast,3,10,1,0\n"
      "sm_90,132,112,4096,4096,fast,4,10,1,0\n"
      "sm_90,132,128,4096,4096,fast,5,10,1,0\n"
      "sm_90,132,128,4096,4096,fast,6,9,1,0\n"
      "sm_90,132,128,4096,4096,accurate,7,9,1,0\n"
      "sm_90,114,90,4096,4096,fast,8,9,1,0\n"
      "gfx950,132,90,4096,4096,fast,9,9,1,0\n");
  CHECK(chosen(rows, gemm_contract::fast, 100, 4096, 4096).split_k == 3);
  CHECK(chosen(rows, gemm_contract::fast, 99, 4096, 4096).split_k == 4);
  CHECK(chosen(rows, gemm_contract::fast, 65, 4096, 4096).split_k == 6);
  CHECK(chosen(rows, gemm_contract::accurate, 128, 4096, 4096).split_k == 7);
  CHECK(chosen(rows, gemm_contract::fast, 90, 4096, 4096).split_k == 6);
  CHECK(chosen(rows, gemm_contract::fast, 90, 4096, 4096).contract == gemm_contract::fast);
  CHECK(chosen(rows, gemm_contract::fast, 90, 4096, 2048).split_k == 2);
}

TEST_CASE("the heuristic fills the device with parts of K, none shorter than 1024") {
  CHECK(heuristic_choice(h200, gemm_contract::fast, 8192, 8192, 8192).split_k == 1);
  CHECK(heuristic_choice(h200, gemm_contract::fast, 256, 8192, 8192).split_k == 2);
  CHECK(heuristic_choice(h200, gemm_contract::accurate, 16, 2048, 8192).split_k == 8);
  CHECK(heuristic_choice(h200, gemm_contract::accurate, 16, 256, 32).split_k == 1);
  CHECK(heuristic_choice(h200, gemm_contract::reference, 16, 256, 8192).split_k == 1);
}

TEST_CASE("the environment forces a kernel, and names another table") {
  const auto rows = table("sm_90,132,128,4096,4096,fast,6,9,1,0\n");
  gemm_choice c;
  {
    const variable force("ROTOSCALE_GPU_KERNEL", "accurate/4");
    CHECK(chosen(rows, gemm_contract::fast, 128, 4096, 4096).contract == gemm_contract::accurate);
    CHECK(chosen(rows, gemm_contract::fast, 128, 4096, 4096).split_k == 4);
  }
  for (const char* wrong : {"quick", "fast/", "fast/0", "fast/x", ""}) {
    const variable force("ROTOSCALE_GPU_KERNEL", wrong);
    CHECK(choose_gemm(rows, h200, gemm_contract::fast, 1, 1, 32, c).message() ==
          "ROTOSCALE_GPU_KERNEL: no kernel has this name");
  }
  std::vector<tuned_row> loaded = rows;
  CHECK(load_tuned("/nonexistent", loaded).ok());
  CHECK(loaded.empty());
  {
    const variable other("ROTOSCALE_GPU_TUNED", "/nonexistent");
    CHECK(load_tuned("/also-nonexistent", loaded).message() == "ROTOSCALE_GPU_TUNED: cannot open it");
  }
  const variable other("ROTOSCALE_GPU_TUNED", __FILE__);
  CHECK(load_tuned("/nonexistent", loaded).message() == "ROTOSCALE_GPU_TUNED: is no table of tuned kernels");
}
