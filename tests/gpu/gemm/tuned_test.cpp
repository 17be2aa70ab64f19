// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Table of measured schedules: accepted rows, the choice of a row by shape, the heuristic.
#include "gpu/gemm/tuned.hpp"

#include <doctest/doctest.h>

#include <thread>

#include "gpu/gemm/arguments.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace gemm_tuned_test {

using namespace rotoscale;
using namespace rotoscale::gpu;

// Statistics of training runs count the same windows that decide a GEMM's path.
static_assert(nn::int8_window_binades == int8_window && nn::e5m2_window_binades == fold_window);

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

/// A call of a kernel's shape, without memory.
gemm_call call_of(const gpu::detail::gemm_kernel& kernel, int m, int n, int k, int split_k = 1) {
  const bool fp4 =
      (kernel.operands & gpu::detail::mxfp4_blocks) != 0 && std::string_view(kernel.name).starts_with("mxfp4");
  const format f = fp4 ? formats::e2m1 : formats::e4m3;
  gemm_call c;
  for (gemm_operand* x : {&c.a, &c.b}) {
    *x = {.element = f, .rows = x == &c.a ? m : n, .k = k, .code_stride = packed_bytes(f, k), .block = 32};
    x->scale_stride = k / 32;
  }
  c.contract = gpu::detail::options_of(kernel);
  c.contract.split_k = split_k;
  return c;
}
/// The stages of the row that is chosen, which mark it; 0: the heuristic's.
int chosen(const std::vector<tuned_row>& rows, const char* name, int m, int n, int k, int split_k) {
  const gpu::detail::gemm_kernel& kernel = *kernel_of(name, arch::sm_90);
  gemm_selection c;
  choose_schedule(rows, h200, kernel, call_of(kernel, m, n, k, split_k), c);
  return c.from == gemm_selection::source::table ? c.schedule.stages : 0;
}

TEST_CASE("a table is read whole or not at all") {
  const std::string header = std::string(tuned_header) + "\n",
                    row = "sm_90,132,mxfp4-fast,8192,4096,512,256x256,4,2,m8,10.5,1300,1e-3\n";
  CHECK(error_of(header) == "");
  CHECK(error_of("# comment\n" + header + "\n" + row) == "");
  CHECK(error_of("") == "no header");
  CHECK(error_of(row) == "line 1: the header is not the one of this version");
  CHECK(error_of(header + row + "sm_90,132\n") == "line 3: thirteen columns are needed");
  CHECK(error_of(header + "sm_90,132,mxfp4-fast,0,4096,512,256x256,4,2,m8,10.5,1300,0\n") ==
        "line 2: a whole number above zero is needed");
  CHECK(error_of(header + "sm_90,132,mxfp4-fast,8x,4096,512,256x256,4,2,m8,10.5,1300,0\n") ==
        "line 2: a whole number above zero is needed");
  CHECK(error_of(header + "sm_90,132,mxfp4-fast,8,4096,512,256x256,4,2,m8,ten,1300,0\n") ==
        "line 2: a number is needed");
  const auto with = [&](const std::string& tile, const std::string& stages, const std::string& raster) {
    return error_of(header + "sm_90,132,mxfp4-fast,8,4096,512," + tile + "," + stages + ",2," + raster +
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
  CHECK(with("300x300", "5", "n16") == "line 2: this kernel has no such tile");
  CHECK(with("64x256", "9", "n16") == "line 2: the tile's kernel has not so few or so many");
  CHECK(with("64x256", "5", "n128") == "line 2: must be 0 or a power of two up to 64");
  CHECK(error_of(header + "sm_90,132,mxfp4-fast,8,4096,512,256x256,4,65,m8,10,1300,0\n") ==
        "line 2: the kernel has no such split-K");
  CHECK(error_of(header + "gfx950,256,mxfp4-gfx950,8,4096,512,96x256,2,1,-,10,1300,0\n") == "");
  CHECK(error_of(header + "gfx950,256,mxfp8-gfx950,8,4096,512,96x256,2,1,-,10,1300,0\n") ==
        "line 2: this kernel has no such tile");
  CHECK(error_of(header + "gfx942,304,upconvert-gfx942,8,4096,512,96x64,1,1,-,10,1300,0\n") == "");
  CHECK(error_of(header + "gfx942,304,mxfp4-gfx942,8,4096,512,96x64,1,1,-,10,1300,0\n") ==
        "line 2: this kernel has no such tile");
  for (const char* time : {"nan", "inf", "-5", "0", " 5", ""}) {
    CHECK(error_of(header + "sm_90,132,mxfp4-fast,8,4096,512,256x256,4,2,m8," + time + ",1300,0\n")
              .starts_with("line 2: "));
  }
  for (const char* name : {"mxfp4-quick", "mxfp4-gfx950"}) {
    CHECK(error_of(header + "sm_90,132," + name + ",8,4096,512,256x256,4,2,m8,10,1300,0\n") ==
          "line 2: no kernel of this architecture has this name");
  }
  const auto rows = table("sm_90,132,mxfp4-fast,8192,4096,512,256x256,4,2,m8,10.5,1300,1e-3\r\n");
  REQUIRE(rows.size() == 1);
  CHECK(std::array{rows[0].m, rows[0].n, rows[0].k} == std::array{8192, 4096, 512});
  CHECK(rows[0].kernel == kernel_of("mxfp4-fast", arch::sm_90));
  CHECK(rows[0].split_k == 2);
  CHECK(rows[0].schedule == gemm_schedule{256, 256, 4, 8, false});
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

TEST_CASE("the exact shape, then padded M, then the heuristic; kernels, devices, split-K apart; the fastest row") {
  const auto rows = table(
      "sm_90,132,mxfp4-fast,100,4096,4096,64x256,2,1,m8,10,1,0\n"
      "sm_90,132,mxfp4-fast,112,4096,4096,64x256,3,1,m8,10,1,0\n"
      "sm_90,132,mxfp4-fast,128,4096,4096,128x128,4,1,m8,10,1,0\n"
      "sm_90,132,mxfp4-fast,128,4096,4096,128x128,5,1,m8,9,1,0\n"
      "sm_90,132,mxfp4-fast,128,4096,4096,128x128,6,2,m8,8,1,0\n"
      "sm_90,132,mxfp4-accurate,128,4096,4096,128x128,3,1,m8,9,1,0\n"
      "sm_90,114,mxfp4-fast,90,4096,4096,128x128,2,1,m8,9,1,0\n"
      "gfx950,132,mxfp4-gfx950,90,4096,4096,256x256,2,1,-,9,1,0\n"
      "sm_90,132,mxfp8-bf16,100,4096,4096,64x256,4,1,m8,9,1,0\n");
  CHECK(chosen(rows, "mxfp4-fast", 100, 4096, 4096, 1) == 2);
  CHECK(chosen(rows, "mxfp4-fast", 99, 4096, 4096, 1) == 3);
  CHECK(chosen(rows, "mxfp4-fast", 65, 4096, 4096, 1) == 5);
  CHECK(chosen(rows, "mxfp4-fast", 128, 4096, 4096, 2) == 6);
  CHECK(chosen(rows, "mxfp4-fast", 128, 4096, 4096, 3) == 0);
  CHECK(chosen(rows, "mxfp4-accurate", 128, 4096, 4096, 1) == 3);
  CHECK(chosen(rows, "mxfp4-fast", 90, 4096, 4096, 1) == 5);
  CHECK(chosen(rows, "mxfp4-fast", 90, 4096, 2048, 1) == 0);
  CHECK(chosen(rows, "mxfp8-bf16", 100, 4096, 4096, 1) == 4);
  const gpu::detail::gemm_kernel& fast = *kernel_of("mxfp4-fast", arch::sm_90);
  CHECK(choose_split_k(rows, h200, fast, call_of(fast, 128, 4096, 4096)) == 2);
  CHECK(choose_split_k(rows, h200, fast, call_of(fast, 90, 4096, 2048)) == 2);  // the heuristic's
}

/// Tile and split-K of the heuristic, with as many parts of K as fill the device.
std::string heuristic(const char* name, const device_info& device, int m, int n, int k) {
  const gpu::detail::gemm_kernel& kernel = *kernel_of(name, device.arch);
  gemm_call c = call_of(kernel, m, n, k);
  c.contract.split_k = kernel.max_parts == 1 ? 1 : choose_split_k({}, device, kernel, c);
  gemm_selection chosen;
  choose_schedule({}, device, kernel, c, chosen);
  CHECK(chosen.from == gemm_selection::source::heuristic);
  CHECK(chosen.schedule == gpu::detail::whole_schedule(kernel, chosen.schedule));
  return tile_text(chosen.schedule) + "/" + std::to_string(c.contract.split_k);
}

TEST_CASE("the heuristic takes the tile that leaves the fewest multiprocessors idle") {
  const device_info gfx950{arch::gfx950, 256}, gfx942{arch::gfx942, 304};
  const char *sm90 = "mxfp4-accurate", *amd = "mxfp4-gfx950";
  CHECK(heuristic(sm90, h200, 8192, 8192, 8192) == "256x256/1");
  CHECK(heuristic(sm90, h200, 1024, 2048, 4096) == "128x128/1");  // 128 tiles, only 32 of 256 x 256
  CHECK(heuristic(sm90, h200, 16, 8192, 8192) == "64x256/4");
  CHECK(heuristic(sm90, h200, 8192, 16, 8192) == "256x64/4");
  CHECK(heuristic(amd, gfx950, 4096, 14336, 4096) == "256x256/1");
  CHECK(heuristic(amd, gfx950, 256, 8192, 8192) == "64x128/1");               // 256 tiles, only 128 of 128 x 128
  CHECK(heuristic("mxfp8-gfx950", gfx950, 8192, 8192, 8192) == "192x256/1");  // FP8 has no 256 x 256
  CHECK(heuristic("mxfp4-gfx942", gfx942, 16, 16, 8192) == "32x128/1");
}

TEST_CASE("the heuristic fills the device with parts of K, none shorter than 1024") {
  CHECK(filling_parts({arch::gfx950, 256}, gfx950_fp4_tiles[0], 256, 8192, 8192) == 8);
  const auto parts = [](int m, int n, int k) {
    const gpu::detail::gemm_kernel& kernel = *kernel_of("mxfp4-accurate", arch::sm_90);
    return choose_split_k({}, h200, kernel, call_of(kernel, m, n, k));
  };
  CHECK(parts(8192, 8192, 8192) == 1);
  CHECK(parts(16, 2048, 8192) == 8);
  CHECK(parts(16, 256, 32) == 1);
}

TEST_CASE("select_gemm answers from the library's own table, of which every row can be launched") {
  std::vector<tuned_row> rows;
  std::string reason;
  REQUIRE(load_tuned(tuned_text, rows, reason).ok());
  REQUIRE(rows.size() >= 32);
  for (const tuned_row& r : rows) {
    const device_info device{r.arch, r.processors};
    gemm_selection c;
    const status s = select_gemm(call_of(*r.kernel, r.m, r.n, r.k, r.split_k), device, c);
    CHECK_MESSAGE(s.ok(), s.message());
    CHECK(c.from == gemm_selection::source::table);
    CHECK(std::string(c.kernel) == r.kernel->name);
    CHECK(c.microseconds <= r.us);
  }
}

TEST_CASE("names of kernels are unique per architecture, and earlier rows are not hidden") {
  const auto kernels = gpu::detail::gemm_kernels();
  for (const gpu::detail::gemm_kernel& x : kernels) {
    REQUIRE(find_contract(x.contract) != nullptr);
    CHECK(x.max_parts >= 1);
    for (const gpu::detail::gemm_kernel& y : kernels) {
      if (&x != &y) CHECK((std::string_view(x.name) != y.name || (x.archs & y.archs) == 0));
    }
  }
}

TEST_CASE("what no kernel takes is refused before it is looked up") {
  const gpu::detail::gemm_kernel& fast = *kernel_of("mxfp4-fast", arch::sm_90);
  gemm_selection c;
  gemm_call p = call_of(fast, 128, 4096, 4096);
  p.b.k = 2048;
  CHECK(select_gemm(p, h200, c).message() == "b.k: must equal a.k");
  CHECK(gemm_workspace_bytes(p, h200) == 0);
  p = call_of(fast, 128, 4096, 4096);
  CHECK(select_gemm(p, {arch::other, 1}, c).message() ==
        "contract: this device has no kernel of it for these operands");
}

}  // namespace gemm_tuned_test
