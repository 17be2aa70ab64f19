// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The FP4 GEMM kernels against the CPU's models, by bytes: small shapes in host mode, large ones (sampled outputs) on a
// device. Compiled by a host compiler or nvcc.
#include "gpu/api/gemm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "gpu/gemm/data.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace gemm_gemm_test {

using namespace gpu_test;

struct options {
  gemm_choice choice;
  format output = formats::bf16;
  int extra_stride = 0;
  float alpha = 1.0f;
  bool accumulate = false, bias = false;
};

/// Expected accumulator of output (i, j). `wide`: in a tile outside the FP8 window.
model_output expected(const matrix_data& a, const matrix_data& b, const options& o, bool wide,
                      const device_info& device, index_t i, index_t j) {
  const gemm_mode mode = o.choice.mode;
  const bool fp8 = a.element != gemm_element::e2m1;
  const gemm_options how = contract_options(mode, device, o.choice.split_k, fp8 || wide);
  float sum = 0.0f;
  if (mode == gemm_mode::reference) {
    sum = accumulate_ref(make_operand(a.blocks(), a.here()), i, make_operand(b.blocks(), b.here()), j, how, 0.0f);
  } else if (fp8 || wide) {
    sum = model_sum(upconvert_bf16_row(a.blocks(), a.here(), i), upconvert_bf16_row(b.blocks(), b.here(), j), how);
  } else {
    sum = model_sum(upconvert_e5m2_row(a.here(), i), upconvert_e5m2_row(b.here(), j), how);
  }
  return {sum, how.model.nan_bits};
}

/// Runs a GEMM into poisoned memory with every kernel that takes it, and compares all outputs, or `samples`, with the
/// model.
void compare(const matrix_data& a, const matrix_data& b, const options& o, int samples = 0) {
  judged_output out(a.rows, b.rows, o);
  const gemm_call call = call_of(out.result(), a.view(), b.view(), o.choice);
  const bool fp8 = a.element != gemm_element::e2m1;
  const bool folds = o.choice.mode != gemm_mode::reference && !fp8;
  std::vector<bool> outside_a, outside_b;
  if (folds) {
    outside_a = tiles_outside_window(a.here());
    outside_b = tiles_outside_window(b.here());
  }
  const auto model = [&](index_t i, index_t j) {
    const bool wide = folds && (outside_a[static_cast<std::size_t>(i / window_tile)] ||
                                outside_b[static_cast<std::size_t>(j / window_tile)]);
    return expected(a, b, o, wide, device, i, j);
  };
  each_kernel(call, [&](const gpu::detail::gemm_kernel& kernel) {
    const std::size_t size = kernel.workspace(call);
    const array<std::uint8_t> workspace(bytes(size, 0xC3));
    out.poison();
    const status s = gpu::detail::run_kernel(kernel, call, device, workspace.there, size, {});
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(workspace.guards_hold());
    out.check(model, samples);
  });
}

constexpr gemm_mode modes[] = {gemm_mode::reference, gemm_mode::accurate, gemm_mode::fast};

TEST_CASE("MXFP8") {
  for (const gemm_element element : {gemm_element::e4m3, gemm_element::e5m2}) {
    const matrix_data a = random_matrix(10, 96, 30, scales_of::ordinary, gemm_element::e4m3);
    const matrix_data b = random_matrix(12, 96, 31, scales_of::special, element);
    for (const gemm_mode contract : modes) {
      compare(a, b, {{contract}, formats::fp32});
      compare(b, a, {{contract}, formats::bf16, 3, 0.5f, true, true});
    }
    compare(a, b, {{gemm_mode::fast, 2}});
  }
}

TEST_CASE("small GEMMs, every contract and output, whole results") {
  const matrix_data a = random_matrix(24, 192, 1, scales_of::ordinary);
  const matrix_data b = random_matrix(40, 192, 2, scales_of::ordinary);
  for (const gemm_mode contract : modes) {
    CAPTURE(static_cast<int>(contract));
    compare(a, b, {{contract}});
    compare(a, b, {{contract}, formats::fp32, 3});
    compare(a, b, {{contract}, formats::bf16, 5, 0.7f, true, true});
    compare(a, b, {{contract}, formats::fp32, 0, -1.1f, true, false});
    compare(a, b, {{contract}, formats::bf16, 8, 3.1f, false, true});
    compare(a, b, {{contract}, formats::fp32, 0, 3.1f, false, true});
    compare(a, b, {{contract}, formats::fp32, 0, 0.7f, true, true});
  }
}

TEST_CASE("ragged shapes; NaN, zero and extreme scales") {
  for (const gemm_mode contract : modes) {
    CAPTURE(static_cast<int>(contract));
    compare(random_matrix(1, 32, 3, scales_of::ordinary), random_matrix(1, 32, 4, scales_of::ordinary), {{contract}});
    compare(random_matrix(9, 96, 5, scales_of::special), random_matrix(19, 96, 6, scales_of::special),
            {{contract}, formats::fp32});
    compare(random_matrix(2, 2112, 25, scales_of::ordinary), random_matrix(3, 2112, 26, scales_of::ordinary),
            {{contract}, formats::fp32});
    compare(random_matrix(17, 160, 7, scales_of::special), random_matrix(9, 160, 8, scales_of::ordinary), {{contract}});
  }
}

TEST_CASE("split-K: parts are added in ascending order, and there may be fewer than asked for") {
  const matrix_data a = random_matrix(10, 416, 9, scales_of::ordinary);
  const matrix_data b = random_matrix(12, 416, 10, scales_of::special);
  for (const gemm_mode contract : {gemm_mode::accurate, gemm_mode::fast}) {
    for (const int split : {2, 3, 5, 64}) {
      compare(a, b, {{contract, split}});
      compare(a, b, {{contract, split}, formats::fp32, 2, 2.0f, true, true});
    }
    const matrix_data c = random_matrix(20, 1024, 70, scales_of::far), d = random_matrix(20, 1024, 71, scales_of::far);
    for (const int split : {2, 4, 8}) compare(c, d, {{contract, split}, formats::fp32});
  }
}

TEST_CASE("operands of int8: whole results, ragged shapes, parts of K") {
  const matrix_data a = random_matrix(24, 192, 80, scales_of::narrow),
                    b = random_matrix(40, 192, 81, scales_of::narrow);
  CHECK(width_ref(a.here(), 3) == operand_width::int8);
  constexpr auto accurate = gemm_mode::accurate;
  compare(a, b, {{accurate}});
  compare(a, b, {{accurate}, formats::fp32, 3});
  compare(a, b, {{accurate}, formats::bf16, 5, 0.7f, true, true});
  compare(a, b, {{accurate}, formats::fp32, 0, -1.1f, true, false});
  compare(a, b, {{accurate}, formats::bf16, 8, 3.1f, false, true});
  compare(random_matrix(1, 32, 82, scales_of::narrow), random_matrix(1, 32, 83, scales_of::narrow), {{accurate}});
  compare(random_matrix(3, 2112, 84, scales_of::narrow), random_matrix(9, 2112, 85, scales_of::narrow),
          {{accurate}, formats::fp32});
  const matrix_data c = random_matrix(10, 416, 86, scales_of::narrow),
                    d = random_matrix(12, 416, 87, scales_of::narrow);
  for (const int split : {2, 3, 64}) {
    compare(c, d, {{accurate, split}});
    compare(c, d, {{accurate, split}, formats::fp32, 2, 2.0f, true, true});
  }
}

TEST_CASE("int8 at both ends of FP32, and zeros") {
  for (const int sum : {508, 385, 384, 383, 258, 130, 110, 109, 108, 107, 106, 104, 60, 0}) {
    CAPTURE(sum);
    const auto row = [](int scale, unsigned seed) {
      matrix_data m = random_matrix(4, 96, seed, scales_of::narrow);
      bytes scales(m.scales.here);
      for (auto& s : scales) {  // at most 4 binades, up to 254
        const int byte = scale + static_cast<int>(s) - 118;
        s = static_cast<std::uint8_t>(byte > 254 ? 254 : byte);
      }
      bytes codes(m.codes.here);
      for (std::size_t i = 0; i < 48; ++i) codes[i] = i % 2 == 0 ? 0x80 : 0x08;  // zeros of both signs
      return matrix_data(4, 96, codes, scales);
    };
    const matrix_data a = row(sum / 2, 88), b = row(sum - sum / 2, 89);
    for (index_t r = 0; r < 4; ++r) CHECK(width_ref(a.here(), r) == operand_width::int8);
    compare(a, b, {{gemm_mode::accurate}, formats::fp32});
    compare(a, b, {{gemm_mode::accurate}, formats::bf16, 0, -0.5f});
  }
}

TEST_CASE("rows whose sums could be rounded are not int8's") {
  // 9216 units from each of `top` products, then 1 from each of 200 blocks. 1821 products exceed 2^24, 1820 do not.
  // FP32 sums lose units above it.
  const auto row = [](int top) {
    constexpr int k = 1824 + 200 * 32;
    bytes codes(k / 2), scales(k / 32, 100);
    for (int i = 0; i < top; ++i) codes[static_cast<std::size_t>(i / 2)] |= static_cast<std::uint8_t>(7 << (i % 2 * 4));
    for (std::size_t i = 0; i < 57; ++i) scales[i] = 103;
    for (std::size_t i = 57; i < scales.size(); ++i) codes[16 * i + 5] = 0x01;
    return matrix_data(1, k, codes, scales);
  };
  const matrix_data below = row(1820), beyond = row(1821);
  CHECK(width_ref(below.here(), 0) == operand_width::int8);
  CHECK(width_ref(beyond.here(), 0) == operand_width::e5m2);
  for (const matrix_data* a : {&below, &beyond}) {
    for (const matrix_data* b : {&below, &beyond}) {
      compare(*a, *b, {{gemm_mode::accurate}, formats::fp32});
      compare(*a, *b, {{gemm_mode::accurate, 3}, formats::fp32});
    }
  }
}

TEST_CASE("tiles of all three kinds in one matrix: each is written, once") {
  matrix_data a = random_matrix(532, 160, 90, scales_of::narrow), b = random_matrix(276, 160, 91, scales_of::narrow);
  const auto spread = [](matrix_data& m, int row, std::uint8_t scale) {
    bytes scales(m.scales.here);
    scales[static_cast<std::size_t>(row * (m.k / 32))] = scale;
    return matrix_data(m.rows, m.k, m.codes.here, scales);
  };
  // The second tile of A has rows of all kinds: no NaN, one binade too many, far outside.
  const matrix_data a1 = spread(a, 300, 255), b1 = spread(b, 275, 114), a2 = spread(a, 531, 60);
  matrix_data a3 = spread(a, 531, 60);
  const matrix_data a4 = spread(a3, 290, 126), a5 = spread(a3, 512, 126);
  CHECK(width_ref(a4.here(), 0) == operand_width::int8);
  CHECK(width_ref(a4.here(), 290) == operand_width::e5m2);
  CHECK(width_ref(a4.here(), 531) == operand_width::bf16);
  CHECK(width_ref(b1.here(), 275) == operand_width::e5m2);
  constexpr auto accurate = gemm_mode::accurate;
  compare(a4, b1, {{accurate}, formats::fp32, 1, 0.5f, true, true}, 4000);
  compare(a5, b, {{accurate, 2}, formats::bf16, 0, 0.5f, true, true}, 3000);
  compare(b1, a2, {{accurate}, formats::bf16, 0, 1.0f, true, false}, 3000);
  compare(a1, b, {{accurate}, formats::fp32}, 2000);
}

/// Every tile of the call's kernel, with the fewest and the default stages, in bands of rows and of columns.
std::vector<gemm_schedule> schedules(const gemm_call& call) {
  std::vector<gemm_schedule> all;
  const gpu::detail::gemm_kernel* kernel = nullptr;
  REQUIRE(gpu::detail::find_kernel(call, device, kernel).ok());
  for (const tile_shape& t : kernel->tiles) {
    all.push_back({t.m, t.n, t.min_stages, 1, true});
    all.push_back({t.m, t.n, 0, 2, false});
  }
  return all;
}

/// Returns the output of a GEMM with poisoned output and workspace.
bytes output_of(const matrix_data& a, const matrix_data& b, const options& o) {
  judged_output out(a.rows, b.rows, o);
  const gemm_call call = call_of(out.result(), a.view(), b.view(), o.choice);
  const std::size_t size = gemm_workspace_bytes(call, device);
  const array<std::uint8_t> workspace(bytes(size, 0xC3));
  const status s = gemm(call, workspace.there, size, {});
  REQUIRE_MESSAGE(s.ok(), s.message());
  CHECK(workspace.guards_hold());
  return out.fetched();
}

TEST_CASE("every tile, number of stages and raster order gives the same bytes, at ragged edges too") {
  const int m = on_device ? 715 : 67, n = on_device ? 1034 : 130, k = on_device ? 1184 : 160;
  const matrix_data narrow = random_matrix(m, k, 100, scales_of::narrow),
                    ordinary = random_matrix(m, k, 101, scales_of::ordinary),
                    wide = random_matrix(m, k, 102, scales_of::wide),
                    fp8 = random_matrix(m, k, 103, scales_of::special, gemm_element::e4m3),
                    b = random_matrix(n, k, 104, scales_of::narrow),
                    b8 = random_matrix(n, k, 105, scales_of::ordinary, gemm_element::e5m2);
  const struct {
    const matrix_data *a, *b;
    gemm_mode contract;
  } cases[] = {{&narrow, &b, gemm_mode::accurate},
               {&ordinary, &b, gemm_mode::accurate},
               {&ordinary, &b, gemm_mode::fast},
               {&wide, &b, gemm_mode::fast},
               {&fp8, &b8, gemm_mode::accurate}};
  const array<std::uint8_t> out(bytes(16));
  int turn = -1;
  for (const auto& c : cases) {
    ++turn;
    options outputs[] = {{{c.contract}, formats::bf16, 6},
                         {{c.contract}, formats::fp32, 0, 0.7f, true},
                         {{c.contract, 2}},
                         {{c.contract}, formats::bf16, 1, -1.5f, true, true}};
    for (options& o : outputs) {
      // Host mode has one stand-in kernel for all tiles: one output per case, and every tile once.
      if (!on_device && &o != outputs + turn % 4) continue;
      const bytes expected = output_of(*c.a, *c.b, o);
      const auto all = schedules(call_of({out.there}, c.a->view(), c.b->view(), o.choice));
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!on_device && i % 2 != static_cast<std::size_t>(turn % 2)) continue;
        const gemm_schedule& s = o.choice.schedule = all[i];
        CAPTURE(s.tile_m);
        CAPTURE(s.tile_n);
        CAPTURE(s.stages);
        CHECK(output_of(*c.a, *c.b, o) == expected);
      }
    }
  }
}

TEST_CASE("small tiles against the model: vectors, edges inside a tile, parts of K, all widths") {
  const matrix_data a = random_matrix(72, 288, 110, scales_of::narrow),
                    b = random_matrix(88, 288, 111, scales_of::narrow),
                    wide = random_matrix(72, 288, 112, scales_of::wide),
                    ordinary = random_matrix(72, 288, 113, scales_of::ordinary);
  const array<std::uint8_t> out(bytes(16));
  for (const gemm_schedule& s : schedules(call_of({out.there}, a.view(), b.view(), {}))) {
    if (!on_device && (s.tile_m != 64 || s.stages == 0)) continue;
    CAPTURE(s.tile_m);
    CAPTURE(s.tile_n);
    compare(a, b, {{gemm_mode::accurate, 1, s}}, 500);
    compare(b, ordinary, {{gemm_mode::accurate, 2, s}, formats::fp32}, 500);
    compare(ordinary, b, {{gemm_mode::fast, 1, s}, formats::fp32, 2, 0.5f, true, false}, 500);
    compare(b, wide, {{gemm_mode::fast, 1, s}}, 500);
  }
}

TEST_CASE("only tiles with a row outside the window are computed from BF16") {
  const matrix_data a = random_matrix(260, 256, 11, scales_of::wide);
  const matrix_data b = random_matrix(20, 256, 12, scales_of::ordinary);
  CHECK(tiles_outside_window(a.here()) == std::vector<bool>{true, false});
  CHECK(tiles_outside_window(b.here()) == std::vector<bool>{false});
  for (const gemm_mode contract : {gemm_mode::accurate, gemm_mode::fast}) {
    compare(a, b, {{contract}, formats::fp32});
    compare(b, a, {{contract, 2}, formats::bf16});
  }
}

TEST_CASE("folding cannot be seen: the same sums from scaled codes, without an expansion") {
  // The model treats E2M1 as numbers of a wider format (0.5 is normal), so block scales only shift exponents.
  const matrix_data a = random_matrix(4, 256, 13, scales_of::ordinary);
  const matrix_data b = random_matrix(6, 256, 14, scales_of::ordinary);
  struct way {
    gemm_mode contract;
    bool wide;
  };
  for (const way w : {way{gemm_mode::accurate, false}, way{gemm_mode::fast, false}, way{gemm_mode::fast, true}}) {
    const gemm_options o = contract_options(w.contract, device, 1, w.wide);
    gemm_options scaled = o;
    scaled.model.operand = w.wide ? formats::bf16 : formats::e5m2;
    for (index_t i = 0; i < 4; ++i) {
      for (index_t j = 0; j < 6; ++j) {
        const float direct =
            accumulate_ref(make_operand(mxfp4, a.here()), i, make_operand(mxfp4, b.here()), j, scaled, 0.0f);
        const float converted =
            w.wide ? model_sum(upconvert_bf16_row(mxfp4, a.here(), i), upconvert_bf16_row(mxfp4, b.here(), j), o)
                   : model_sum(upconvert_e5m2_row(a.here(), i), upconvert_e5m2_row(b.here(), j), o);
        CHECK(fp32_bits(direct) == fp32_bits(converted));
      }
    }
  }
}

TEST_CASE("bad input names the argument and writes nothing") {
  const matrix_data a = random_matrix(8, 64, 15, scales_of::ordinary),
                    b = random_matrix(8, 64, 16, scales_of::ordinary);
  array<std::uint8_t> out(bytes(8 * 8 * 2, 0xA5)), workspace(bytes(1 << 16));
  const gemm_call good = call_of({out.there}, a.view(), b.view(), {});
  const auto message = [&](auto change, gemm_choice choice = {}, std::size_t size = 1 << 16) {
    gemm_call p = call_of(good, a.view(), b.view(), choice);
    change(p);
    return gemm(p, workspace.there, size, {}).message();
  };
  CHECK(message([](gemm_call& p) { p.a.k = 48; }) == "a.k: must be a multiple of 32 up to 2^20");
  CHECK(message([](gemm_call& p) { p.b.k = 32; }) == "b.k: must equal a.k");
  CHECK(message([](gemm_call& p) { p.b.rows = 0; }) == "b.rows: must be 1 to 2^20");
  CHECK(message([](gemm_call& p) { p.a.codes = nullptr; }) == "a.codes: must not be null");
  CHECK(message([](gemm_call& p) { ++p.b.codes; }) == "b.codes: must be aligned to 16 bytes");
  CHECK(message([](gemm_call& p) { p.b.scales = nullptr; }) == "b.scales: must not be null");
  CHECK(message([](gemm_call& p) { p.a.code_stride = 40; }) ==
        "a.code_stride: must be a multiple of 16, at least a row's bytes");
  CHECK(message([](gemm_call& p) { p.b.scale_stride = 1; }) == "b.scale_stride: must be at least k / 32");
  CHECK(message([](gemm_call& p) { p.a.code_order = placement::aiter_data_16x16; }) ==
        "a.code_order: this kernel takes row-major codes");
  CHECK(message([](gemm_call& p) { p.b.scale_order = placement::aiter_scale; }) ==
        "b.scale_order: this kernel takes row-major scales");
  const std::string no_kernel = "contract: this device has no kernel of it for these operands";
  CHECK(message([](gemm_call& p) { p.b.element = formats::e4m3; }) == no_kernel);
  CHECK(message([](gemm_call& p) { p.a.block = 16; }) == no_kernel);
  CHECK(message([](gemm_call& p) { p.b.scale = formats::ue4m3; }) == no_kernel);
  CHECK(message([](gemm_call& p) { p.contract.promotion = 64; }) == no_kernel);
  CHECK(message([](gemm_call& p) { p.groups.count = 1; }) == no_kernel);
  CHECK(message([](gemm_call& p) { p.a.block_rows = 32; }) ==
        "a.block: must be 32 elements of a row, with E8M0 scales");
  CHECK(message([](gemm_call& p) { p.b.transposed = true; }) ==
        "b: must be one matrix, not transposed, without a factor");
  CHECK(message([](gemm_call& p) { p.out = nullptr; }) == "out: must not be null");
  const auto misaligned = [](const gemm_call& p) { return reinterpret_cast<float*>(static_cast<char*>(p.out) + 2); };
  CHECK(message([&](gemm_call& p) { p.bias = misaligned(p); }) == "bias: must be aligned to 4 bytes");
  CHECK(message([](gemm_call& p) { p.output_bias = static_cast<float*>(p.out); }) ==
        "output_bias: needs a BF16 output, and sm_90 with dense or upconverted operands");
  CHECK(message([](gemm_call& p) { p.out = static_cast<char*>(p.out) + 1; }) == "out: must be aligned to 2 bytes");
  CHECK(message([](gemm_call& p) { p.out_stride = 7; }) == "out_stride: must be at least n");
  CHECK(message([](gemm_call& p) { p.stored = formats::fp16; }) == "stored: must be BF16 or FP32");
  CHECK(message([](gemm_call& p) { p.output = formats::fp16; }) == "output: must be BF16 or FP32");
  CHECK(message([](gemm_call&) {}, {gemm_mode::fast, 0}) == "contract.split_k: must be 1 to 64");
  CHECK(message([](gemm_call&) {}, {gemm_mode::reference, 2}) == "contract.split_k: must be 1 for this kernel");
  CHECK(message([](gemm_call& p) { p.contract.split_k = 2, p.contract.split_grain = 64; }) ==
        "contract.split_grain: must be that of the contract");
  const auto schedule = [&](const gemm_schedule& s, gemm_mode mode = gemm_mode::accurate) {
    return message([](gemm_call&) {}, {mode, 1, s});
  };
  for (const auto& [tile_m, tile_n] : {std::pair{64, 64}, {256, 128}, {0, 256}, {-64, 256}, {256, 512}}) {
    CHECK(schedule({tile_m, tile_n}) == "schedule.tile_m: this kernel has no such tile");
  }
  for (const auto& [tile, stages] : {std::pair{256, 5}, {256, 1}, {256, -1}, {128, 7}}) {
    CHECK(schedule({tile, tile, stages}) == "schedule.stages: the tile's kernel has not so few or so many");
  }
  for (const int band : {3, -8, 128}) {
    CHECK(schedule({0, 0, 0, band}) == "schedule.band: must be 0 or a power of two up to 64");
  }
  CHECK(schedule({0, 0, 0, 0, true}) == "schedule.band: must be 0 or a power of two up to 64");
  CHECK(schedule({128, 128}, gemm_mode::reference) == "schedule: this kernel has none");
  CHECK(message([](gemm_call&) {}, {gemm_mode::fast}, 100) ==
        "workspace_bytes: less than the workspace that is needed");
  CHECK(gemm(good, nullptr, 0, {}).message() == "workspace: must be device memory aligned to 256 bytes");
  out.fetch();
  CHECK(out.here == bytes(8 * 8 * 2, 0xA5));
}

TEST_CASE("the reference at both ends of FP32") {
  // One product of 0.25 per block: 2^(sum of scale bytes - 256).
  for (const int sum : {382, 383, 384, 385, 508, 130, 108, 107, 106, 105, 60, 0}) {
    CAPTURE(sum);
    bytes codes(16);
    codes[3] = 0x10;
    const auto scale = static_cast<std::uint8_t>(sum / 2), other = static_cast<std::uint8_t>(sum - sum / 2);
    compare({1, 32, codes, bytes(1, scale)}, {1, 32, codes, bytes(1, other)}, {{gemm_mode::reference}, formats::fp32});
  }
}

TEST_CASE("the reference takes operands in the layouts of other kernels") {
  matrix_data a = random_matrix(32, 256, 17, scales_of::ordinary), b = random_matrix(16, 256, 18, scales_of::ordinary);
  const auto shuffled = [](const matrix_data& m, placement order, bool scales) {
    const layout l = scales ? scale_layout(order, mxfp4, m.rows, m.k) : code_layout(order, mxfp4, m.rows, m.k);
    bytes to(static_cast<std::size_t>(l.size_bytes()));
    if (scales) {
      place_scales(mxfp4, m.here(), order, to.data());
    } else {
      place_codes(mxfp4, m.here(), order, to.data());
    }
    return to;
  };
  array<std::uint8_t> codes(shuffled(b, placement::aiter_data_16x16, false));
  array<std::uint8_t> scales_a(shuffled(a, placement::aiter_scale, true));
  array<std::uint8_t> scales_b(shuffled(b, placement::nvidia_scale_128x4, true));
  array<std::uint8_t> plain(bytes(32 * 16 * 4)), other(bytes(32 * 16 * 4));
  gemm_call p = call_of({plain.there, formats::fp32}, a.view(), b.view(), {gemm_mode::reference});
  const array<std::uint8_t> workspace(bytes(gemm_workspace_bytes(p, device)));
  REQUIRE(gemm(p, workspace.there, workspace.here.size(), {}).ok());
  p.out = other.there;
  p.a.scales = scales_a.there;
  p.a.scale_order = placement::aiter_scale;
  p.b.codes = codes.there;
  p.b.code_order = placement::aiter_data_16x16;
  p.b.scales = scales_b.there;
  p.b.scale_order = placement::nvidia_scale_128x4;
  REQUIRE(gemm(p, nullptr, 0, {}).ok());
  plain.fetch();
  other.fetch();
  CHECK(plain.here == other.here);
}

TEST_CASE("a graph's replays give the bytes of a direct call, and follow what operands hold") {
  if (!on_device) return;
  array<std::uint8_t> workspace(bytes(std::size_t{32} << 20));
  const matrix_data b = random_matrix(520, 1024, 51, scales_of::narrow);
  const matrix_data a = random_matrix(300, 1024, 50, scales_of::ordinary);
  const matrix_data other = random_matrix(300, 1024, 52, scales_of::wide);
  const matrix_data narrow = random_matrix(300, 1024, 53, scales_of::narrow);
  for (const gemm_choice choice : {gemm_choice{gemm_mode::fast, 1}, gemm_choice{gemm_mode::fast, 3},
                                   gemm_choice{gemm_mode::accurate, 1}, gemm_choice{gemm_mode::reference, 1}}) {
    array<std::uint8_t> out(bytes(300 * 520 * 2, 0xA5));
    const gemm_call p = call_of({out.there}, a.view(), b.view(), choice);
    const auto call = [&](gpu::stream stream) { return gemm(p, workspace.there, 32 << 20, stream); };
    gpu::stream stream;
    gpu::graph graph;
    expect(gpu::create(stream));
    expect(gpu::begin_capture(stream));
    CHECK(call(stream).message() == "ok");
    expect(gpu::end_capture(stream, graph));
    out.fetch();
    CHECK(out.here == bytes(out.here.size(), 0xA5));           // capture runs no kernel
    for (const matrix_data* values : {&a, &other, &narrow}) {  // also moves from inside the window to outside
      expect(gpu::upload(a.codes.there, values->codes.here.data(), values->codes.here.size()));
      expect(gpu::upload(a.scales.there, values->scales.here.data(), values->scales.here.size()));
      expect(gpu::synchronize());
      for (int i = 0; i < 2; ++i) expect(gpu::replay(graph, stream));
      expect(gpu::synchronize(stream));
      out.fetch();
      const bytes replayed = out.here;
      expect(gpu::fill(out.there, 0xA5, out.bytes()));
      REQUIRE(call({}).ok());
      out.fetch();
      CHECK(replayed == out.here);
    }
    expect(gpu::destroy(graph));
    expect(gpu::destroy(stream));
  }
}

TEST_CASE("large GEMMs on a device, sampled") {
  if (!on_device) return;
  struct shape {
    int m, n, k;
  };
  for (const shape s :
       {shape{300, 520, 544}, shape{1024, 1536, 4096}, shape{4100, 1000, 8192}, shape{129, 8192, 2048}}) {
    CAPTURE(s.m);
    const matrix_data a = random_matrix(s.m, s.k, 20, scales_of::special);
    const matrix_data b = random_matrix(s.n, s.k, 21, s.n == 1000 ? scales_of::wide : scales_of::ordinary);
    for (const gemm_mode contract : modes) {
      compare(a, b, {{contract}}, 150);
      compare(a, b, {{contract}, formats::fp32, 1, 0.5f, true, true}, 60);
      if (contract != gemm_mode::reference) compare(a, b, {{contract, 4}}, 60);
    }
    const matrix_data e = random_matrix(s.m, s.k, 24, scales_of::narrow),
                      f = random_matrix(s.n, s.k, 25, scales_of::narrow);
    compare(e, f, {{gemm_mode::accurate}}, 150);
    compare(e, f, {{gemm_mode::accurate}, formats::fp32, 1, 0.5f, true, true}, 60);
    compare(e, f, {{gemm_mode::accurate, 4}}, 60);
    const matrix_data c = random_matrix(s.m, s.k, 22, scales_of::special, gemm_element::e4m3);
    const matrix_data d = random_matrix(s.n, s.k, 23, scales_of::ordinary, gemm_element::e5m2);
    compare(c, d, {{gemm_mode::accurate}, formats::fp32}, 60);
  }
}

}  // namespace gemm_gemm_test
