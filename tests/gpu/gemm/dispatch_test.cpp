// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Table of tuned GEMM kernels: accepted rows, the choice of a row by shape, overrides by environment variables.
#include "gpu/gemm/dispatch.hpp"

#include <doctest/doctest.h>

#include <thread>

#include "gpu/gemm/arguments.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace gemm_dispatch_test {

using namespace rotoscale;
using namespace rotoscale::gpu;

// Statistics of training runs count the same windows that decide a GEMM's path.
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

/// Sets an environment variable within a scope.
struct variable {
  const char* name;
  variable(const char* n, const std::string& value) : name(n) { setenv(n, value.c_str(), 1); }
  ~variable() { unsetenv(name); }
};

const device_info h200{arch::sm_90, 132};

gemm_selection selected(const std::vector<tuned_row>& rows, gemm_contract contract, const gemm_shape& shape) {
  gemm_selection c;
  const status s = choose_gemm(rows, h200, contract, shape, c);
  CHECK_MESSAGE(s.ok(), s.message());
  return c;
}
gemm_choice chosen(const std::vector<tuned_row>& rows, gemm_contract contract, int m, int n, int k) {
  return selected(rows, contract, {false, m, n, k}).choice;
}

}  // namespace

TEST_CASE("a table is read whole or not at all") {
  const std::string header = std::string(tuned_header) + "\n",
                    row = "sm_90,132,mxfp4,8192,4096,512,fast,256x256,4,2,m8,10.5,1300,1e-3\n";
  CHECK(error_of(header) == "");
  CHECK(error_of("# comment\n" + header + "\n" + row) == "");
  CHECK(error_of("") == "no header");
  CHECK(error_of(row) == "line 1: the header is not the one of this version");
  CHECK(error_of(header + row + "sm_90,132\n") == "line 3: fourteen columns are needed");
  CHECK(error_of(header + "sm_90,132,mxfp4,0,4096,512,fast,256x256,4,2,m8,10.5,1300,0\n") ==
        "line 2: a whole number above zero is needed");
  CHECK(error_of(header + "sm_90,132,mxfp4,8x,4096,512,fast,256x256,4,2,m8,10.5,1300,0\n") ==
        "line 2: a whole number above zero is needed");
  CHECK(error_of(header + "sm_90,132,mxfp4,8,4096,512,fast,256x256,4,2,m8,ten,1300,0\n") ==
        "line 2: a number is needed");
  const auto with = [&](const std::string& tile, const std::string& stages, const std::string& raster) {
    return error_of(header + "sm_90,132,mxfp4,8,4096,512,fast," + tile + "," + stages + ",2," + raster +
                    ",10,1300,0\n");
  };
  CHECK(with("64x256", "5", "n16") == "");
  CHECK(with("64x256", "5", "-") == "");
  CHECK(with("64x0", "5", "n16") == "line 2: the tile must be MxN");
  CHECK(with("64", "5", "n16") == "line 2: the tile must be MxN");
  CHECK(with("64x256x1", "5", "n16") == "line 2: the tile must be MxN");
  CHECK(with("64x256", "five", "n16") == "line 2: a whole number above zero is needed");
  CHECK(with("64x256", "5", "x16") == "line 2: the raster must be mBAND, nBAND or -");
  CHECK(with("64x256", "5", "m") == "line 2: the raster must be mBAND, nBAND or -");
  // Also refuses a choice without a kernel on the row's device.
  CHECK(with("300x300", "5", "n16") == "line 2: no kernel of this device has this tile");
  CHECK(with("64x256", "9", "n16") == "line 2: the tile's kernel has not so few or so many");
  CHECK(with("64x256", "5", "n128") == "line 2: must be 0 or a power of two up to 64");
  CHECK(error_of(header + "sm_90,132,mxfp4,8,4096,512,fast,256x256,4,65,m8,10,1300,0\n") ==
        "line 2: the device has no such split-K");
  CHECK(error_of(header + "gfx950,256,mxfp4,8,4096,512,fast,96x256,2,1,-,10,1300,0\n") == "");
  CHECK(error_of(header + "gfx950,256,mxfp8,8,4096,512,accurate,96x256,2,1,-,10,1300,0\n") ==
        "line 2: this device has this tile for MXFP4 alone");
  CHECK(error_of(header + "gfx942,304,mxfp8,8,4096,512,accurate,96x64,1,1,-,10,1300,0\n") == "");
  CHECK(error_of(header + "gfx942,304,mxfp4,8,4096,512,accurate,96x64,1,1,-,10,1300,0\n") ==
        "line 2: this device has this tile for MXFP8 alone");
  for (const char* time : {"nan", "inf", "-5", "0", " 5", ""}) {
    CHECK(error_of(header + "sm_90,132,mxfp4,8,4096,512,fast,256x256,4,2,m8," + time + ",1300,0\n")
              .starts_with("line 2: "));
  }
  CHECK(error_of(header + "sm_90,132,nvfp4,8,4096,512,fast,256x256,4,2,m8,10,1300,0\n") ==
        "line 2: the format must be mxfp4 or mxfp8");
  CHECK(error_of(header + "sm_90,132,mxfp4,8,4096,512,quick,256x256,4,2,m8,10,1300,0\n") ==
        "line 2: no kernel has this name");
  const auto rows = table("sm_90,132,mxfp4,8192,4096,512,fast,256x256,4,2,m8,10.5,1300,1e-3\r\n");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].shape == gemm_shape{false, 8192, 4096, 512});
  CHECK(rows[0].choice.contract == gemm_contract::fast);
  CHECK(rows[0].choice.split_k == 2);
  CHECK(rows[0].choice.schedule == gemm_schedule{256, 256, 4, 8, false});
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
      "sm_90,132,mxfp4,100,4096,4096,fast,256x256,4,3,m8,10,1,0\n"
      "sm_90,132,mxfp4,112,4096,4096,fast,256x256,4,4,m8,10,1,0\n"
      "sm_90,132,mxfp4,128,4096,4096,fast,256x256,4,5,m8,10,1,0\n"
      "sm_90,132,mxfp4,128,4096,4096,fast,256x256,4,6,m8,9,1,0\n"
      "sm_90,132,mxfp4,128,4096,4096,accurate,256x256,4,7,m8,9,1,0\n"
      "sm_90,114,mxfp4,90,4096,4096,fast,256x256,4,8,m8,9,1,0\n"
      "gfx950,132,mxfp4,90,4096,4096,fast,256x256,2,1,-,9,1,0\n"
      "sm_90,132,mxfp8,100,4096,4096,fast,256x256,4,10,m8,9,1,0\n");
  CHECK(chosen(rows, gemm_contract::fast, 100, 4096, 4096).split_k == 3);
  CHECK(chosen(rows, gemm_contract::fast, 99, 4096, 4096).split_k == 4);
  CHECK(chosen(rows, gemm_contract::fast, 65, 4096, 4096).split_k == 6);
  CHECK(chosen(rows, gemm_contract::accurate, 128, 4096, 4096).split_k == 7);
  CHECK(chosen(rows, gemm_contract::fast, 90, 4096, 4096).split_k == 6);
  CHECK(chosen(rows, gemm_contract::fast, 90, 4096, 4096).contract == gemm_contract::fast);
  CHECK(chosen(rows, gemm_contract::fast, 90, 4096, 2048).split_k == 2);
  CHECK(selected(rows, gemm_contract::fast, {true, 100, 4096, 4096}).choice.split_k == 10);
}

TEST_CASE("the heuristic takes the tile that leaves the fewest multiprocessors idle") {
  const auto tile = [](int m, int n, int k) {
    const gemm_choice c = heuristic_choice(h200, gemm_contract::accurate, {false, m, n, k});
    CHECK(c.schedule == whole_schedule(traits_of(arch::sm_90), c.schedule, false));
    return tile_text(c.schedule) + "/" + std::to_string(c.split_k);
  };
  CHECK(tile(8192, 8192, 8192) == "256x256/1");
  CHECK(tile(4096, 6144, 4096) == "256x256/1");
  CHECK(tile(256, 8192, 8192) == "128x128/1");   // 128 tiles
  CHECK(tile(1024, 2048, 4096) == "128x128/1");  // 128 tiles, only 32 of 256 x 256
  CHECK(tile(16, 8192, 8192) == "64x256/4");
  CHECK(tile(64, 28672, 4096) == "64x256/1");
  CHECK(tile(8192, 16, 8192) == "256x64/4");
  const auto amd = [](int m, int n, int k, bool fp8 = false) {
    const gemm_choice c = heuristic_choice({arch::gfx950, 256}, gemm_contract::fast, {fp8, m, n, k});
    CHECK(c.schedule.stages == 2);
    CHECK(tile_of(traits_of(arch::gfx950), c.schedule, fp8) != nullptr);
    return tile_text(c.schedule) + "/" + std::to_string(c.split_k);
  };
  CHECK(amd(8192, 8192, 8192) == "256x256/1");
  CHECK(amd(4096, 14336, 4096) == "256x256/1");
  CHECK(amd(1024, 4096, 4096) == "128x128/1");  // 256 tiles, only 64 of 256 x 256
  CHECK(amd(64, 65536, 4096) == "64x256/1");
  CHECK(amd(256, 8192, 8192) == "64x128/1");  // 256 tiles, only 128 of 128 x 128
  CHECK(amd(16, 8192, 8192) == "32x128/4");
  CHECK(amd(8192, 8192, 8192, true) == "192x256/1");  // FP8 has no 256 x 256
  CHECK(amd(256, 8192, 8192, true) == "128x128/2");
  CHECK(heuristic_choice({arch::gfx942, 304}, gemm_contract::fast, {false, 16, 16, 8192}).schedule ==
        gemm_schedule{32, 128, 1});
  CHECK(heuristic_choice({arch::gfx942, 304}, gemm_contract::fast, {false, 4096, 4096, 8192}).schedule ==
        gemm_schedule{128, 128, 1});
  const auto bf16 = [](int m, int n, int k) {  // MXFP8 expanded to BF16
    return tile_text(heuristic_choice({arch::gfx942, 304}, gemm_contract::fast, {true, m, n, k}).schedule);
  };
  CHECK(bf16(8192, 8192, 8192) == "128x128");
  CHECK(bf16(16, 8192, 8192) == "32x64");
  CHECK(bf16(48, 16384, 4096) == "48x64");
  CHECK(bf16(1024, 1024, 4096) == "64x64");  // 256 tiles, only 64 of 128 x 128
}

TEST_CASE("the heuristic fills the device with parts of K, none shorter than 1024") {
  CHECK(heuristic_choice({arch::gfx950, 256}, gemm_contract::fast, {false, 16, 8192, 8192}).split_k == 4);
  CHECK(filling_parts({arch::gfx950, 256}, gfx950_fp4_tiles[0], {false, 256, 8192, 8192}) == 8);
  CHECK(heuristic_choice(h200, gemm_contract::fast, {false, 8192, 8192, 8192}).split_k == 1);
  CHECK(heuristic_choice(h200, gemm_contract::accurate, {false, 16, 2048, 8192}).split_k == 8);
  CHECK(heuristic_choice(h200, gemm_contract::accurate, {false, 16, 256, 32}).split_k == 1);
  CHECK(heuristic_choice(h200, gemm_contract::reference, {false, 16, 256, 8192}).split_k == 1);
}

namespace {

/// Operands of a shape, whose data is not read.
gemm_problem problem_of(const gemm_shape& s) {
  static std::vector<std::uint8_t> memory(1 << 20);
  auto* const aligned = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256);
  const auto operand = [&](int rows) {
    const format f = s.fp8 ? formats::e4m3 : formats::e2m1;
    return gemm_operand{.element = f,
                        .rows = rows,
                        .k = s.k,
                        .codes = aligned,
                        .code_stride = packed_bytes(f, s.k),
                        .block = 32,
                        .scales = aligned,
                        .scale_stride = s.k / 32};
  };
  gemm_problem p{{}, operand(s.m), operand(s.n)};
  p.out = aligned;
  return p;
}

}  // namespace

TEST_CASE("select_gemm answers from the library's own table, of which every row can be launched") {
  std::vector<tuned_row> rows;
  std::string reason;
  REQUIRE(load_tuned(tuned_text, rows, reason).ok());
  REQUIRE(rows.size() >= 32);
  for (const tuned_row& r : rows) {
    const device_info device{r.arch, r.processors};
    gemm_selection c;
    const gemm_problem p = problem_of(r.shape);
    const status s = select_gemm(p, r.choice.contract, device, c);
    CHECK_MESSAGE(s.ok(), s.message());
    CHECK(c.from == gemm_selection::source::table);
    CHECK(c.choice.contract == r.choice.contract);
    CHECK(c.microseconds <= r.us);
    CHECK(gemm_workspace_bytes(p, r.choice.contract, device) == gemm_workspace_bytes(p, c.choice, device));
  }
}

TEST_CASE("what no kernel takes is refused before it is looked up") {
  gemm_selection c;
  gemm_problem p = problem_of({false, 128, 4096, 4096});
  p.b.k = 2048;
  CHECK(select_gemm(p, gemm_contract::fast, h200, c).message() == "b.k: must equal a.k");
  CHECK(gemm_workspace_bytes(p, gemm_contract::fast, h200) == 0);
  p = problem_of({false, 128, 4096, 4096});
  CHECK(select_gemm(p, gemm_contract::fast, {arch::other, 1}, c).message() ==
        "choice.contract: this device has the reference kernel only");
  const variable force("ROTOSCALE_GPU_KERNEL", "reference/4");
  CHECK(select_gemm(p, gemm_contract::fast, h200, c).message() == "ROTOSCALE_GPU_KERNEL: must be 1 for this kernel");
}

}  // namespace gemm_dispatch_test
