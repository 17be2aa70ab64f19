// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's GEMM kernels in host mode: launcher, kernel source, and models of the matrix cores. Results are compared by
// bytes with the contracts, which are independent of fragments, LDS and waves. With hipcc the same runs on a device and
// also tests the models.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "gpu/api/gemm.hpp"
#include "gpu/dialect/amd_matrix.hpp"
#include "gpu/gemm/data.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/simt.hpp"
#include "oracle/share.hpp"

namespace gemm_amd_test {

using namespace gpu_test;
namespace amd = rotoscale::gpu::amd;

#if defined(ROTOSCALE_GPU_HOST)
using gpu::host::thread_order;
struct order_scope {
  explicit order_scope(thread_order o) { gpu::host::set_thread_order(o); }
  ~order_scope() { gpu::host::set_thread_order(thread_order::forward); }
};
bool runs_here(const device_info&) { return true; }
#else
enum class thread_order { forward, reverse, shuffled };
struct order_scope {  // host mode only
  explicit order_scope(thread_order) {}
};
bool runs_here(const device_info& device) { return gpu_test::device.arch == device.arch; }
#endif

constexpr device_info gfx950{arch::gfx950, 256}, gfx942{arch::gfx942, 304};
constexpr thread_order orders[] = {thread_order::forward, thread_order::reverse, thread_order::shuffled};

/// random_matrix with finite FP8 codes except in row 9. Random codes would put a NaN in every row.
matrix_data blocks_for(int rows, int k, unsigned seed, scales_of kind, gemm_element element) {
  const matrix_data m = random_matrix(rows, k, seed, kind, element);
  bytes codes = m.codes.here;
  const std::size_t row_bytes = static_cast<std::size_t>(m.code_stride());
  for (std::size_t i = 0; element != gemm_element::e2m1 && i < codes.size(); ++i) {
    if (i / row_bytes == 9) continue;
    if (element == gemm_element::e4m3 && (codes[i] & 0x7F) == 0x7F) codes[i] ^= 0x40;
    if (element == gemm_element::e5m2 && (codes[i] & 0x7C) == 0x7C) codes[i] ^= 0x40;
  }
  return {rows, k, std::move(codes), m.scales.here, element};
}

/// Row-major blocks with 48 bytes between rows, and the same in AITER's orders.
struct operand {
  matrix_data plain;
  array<std::uint8_t> spaced, codes, scales;
  operand(int rows, int k, unsigned seed, scales_of kind, gemm_element element = gemm_element::e2m1)
      : plain(blocks_for(rows, k, seed, kind, element)),
        spaced(spaced_codes(plain)),
        codes(placed_codes(plain)),
        scales(placed_scales(plain)) {}

  static constexpr index_t gap = 48;
  static bytes spaced_codes(const matrix_data& m) {
    const index_t row_bytes = m.code_stride();
    bytes to(static_cast<std::size_t>(m.rows * (row_bytes + gap) - gap), 0xA5);
    for (index_t i = 0; i < m.rows; ++i) {
      std::copy_n(m.codes.here.data() + i * row_bytes, row_bytes, to.data() + i * (row_bytes + gap));
    }
    return to;
  }

  static bytes placed_codes(const matrix_data& m) {
    const layout l = code_layout(placement::aiter_data_16x16, m.blocks(), m.rows, m.k);
    if (!l.is_defined()) return bytes(1);  // not read
    bytes to(static_cast<std::size_t>(l.size_bytes()));
    place_codes(m.blocks(), m.here(), placement::aiter_data_16x16, to.data());
    return to;
  }
  static bytes placed_scales(const matrix_data& m) {
    bytes to(static_cast<std::size_t>(scale_layout(placement::aiter_scale, m.blocks(), m.rows, m.k).size_bytes()));
    place_scales(m.blocks(), m.here(), placement::aiter_scale, to.data());
    return to;
  }
  /// The operand as kernels of `device` read it.
  gemm_operand view(const device_info& device, bool shuffled) const {
    gemm_operand v = plain.view();
    if (&device == &gfx942) return v;
    v.scales = scales.there;
    v.scale_order = placement::aiter_scale;
    v.codes = shuffled ? codes.there : spaced.there;
    v.code_stride += shuffled ? 0 : gap;
    if (shuffled) v.code_order = placement::aiter_data_16x16;
    return v;
  }
};

struct options {
  format output = formats::bf16;
  int extra_stride = 0;
  float alpha = 1.0f;
  bool accumulate = false, bias = false, shuffled_a = true, shuffled_b = true;
  int split_k = 1, samples = 0;
  gemm_schedule schedule{};
};

/// Runs a GEMM of `device` into poisoned memory and compares all outputs, or `samples`, with its contract. Returns all
/// of the output's memory.
bytes compare(const device_info& device, const operand& a, const operand& b, const options& o) {
  if (!runs_here(device)) return {};
  judged_output out(a.plain.rows, b.plain.rows, o);
  const gemm_choice choice{gemm_mode::accurate, o.split_k, o.schedule};
  const gemm_call call =
      call_of(out.result(), a.view(device, o.shuffled_a), b.view(device, o.shuffled_b), choice, device);
  const std::size_t size = gemm_workspace_bytes(call, device);
  const array<std::uint8_t> workspace(bytes(size, 0xC3));
  const bool fp8 = a.plain.element != gemm_element::e2m1;
  const status s = gpu::detail::run_gemm(call, device, workspace.there, size, {});
  REQUIRE_MESSAGE(s.ok(), s.message());
  CHECK(workspace.guards_hold());

  const gemm_options how = contract_options(choice.mode, device, o.split_k, fp8);
  const gemm_operand left = make_operand(a.plain.blocks(), a.plain.here()),
                     right = make_operand(b.plain.blocks(), b.plain.here());
  const auto model = [&](index_t i, index_t j) -> model_output {
    const float sum = fp8 && &device == &gfx942
                          ? model_sum(upconvert_bf16_row(a.plain.blocks(), a.plain.here(), i),
                                      upconvert_bf16_row(b.plain.blocks(), b.plain.here(), j), how)
                          : accumulate_ref(left, i, right, j, how, 0.0f);
    return {sum, how.model.nan_bits};
  };
  out.check(model, o.samples);
  return out.fetched();
}

/// The same with every tile shape of `device`. All give the same bytes. Each call starts its share of the tiles at
/// another one.
void compare_tiles(const device_info& device, const operand& a, const operand& b, options o) {
  static int calls = 0;
  int number = calls++;
  bytes first;
  const gpu::detail::gemm_kernel* kernel = nullptr;
  const gemm_operand left = a.view(device, o.shuffled_a), right = b.view(device, o.shuffled_b);
  const array<std::uint8_t> out(bytes(16));
  REQUIRE(gpu::detail::find_kernel(call_of({out.there}, left, right, {}, device), device, kernel).ok());
  for (const tile_shape& t : kernel->tiles) {
    if (!oracle::in_share(number++)) continue;
    CAPTURE(t.m);
    CAPTURE(t.n);
    o.schedule = {t.m, t.n};
    const bytes found = compare(device, a, b, o);
    if (first.empty()) first = found;
    CHECK(found == first);
    o.samples = 50;  // the bytes of the first tile cover the others
  }
}

#if defined(ROTOSCALE_GPU_HOST)  // on a device the probe compares instructions

/// Operands of one instruction in memory: 16 rows with contiguous k, scales of four blocks, C or D.
struct instruction_data {
  std::uint8_t a[16][128], b[16][128], scales_a[16][4], scales_b[16][4];
  float d[16][16];
};

/// Distribution over the lanes, written independently: the row position of byte `i` of a lane.
struct lane_layout {
  int bytes, runs;
  int place(int lane, int i) const { return runs == 2 ? i / 16 * 64 + lane / 16 * 16 + i % 16 : lane / 16 * bytes + i; }
};

template <class Instruction>
__global__ void one_wave(instruction_data* data, lane_layout at) {
  const int lane = static_cast<int>(thread_index().x);
  alignas(32) std::uint8_t a[32] = {}, b[32] = {};
  for (int i = 0; i < at.bytes; ++i) {
    a[i] = data->a[lane % 16][at.place(lane, i)];
    b[i] = data->b[lane % 16][at.place(lane, i)];
  }
  amd::float4 d;
  for (int e = 0; e < 4; ++e) d[e] = data->d[4 * (lane / 16) + e][lane % 16];
  d = Instruction::run(a, b, d, data->scales_a[lane % 16][lane / 16], data->scales_b[lane % 16][lane / 16]);
  for (int e = 0; e < 4; ++e) data->d[4 * (lane / 16) + e][lane % 16] = d[e];
}

template <class T>
T load(const std::uint8_t* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

struct fp8 {
  static amd::float4 run(const std::uint8_t* a, const std::uint8_t* b, amd::float4, int, int) {
    return amd::multiply_fp8(load<std::int64_t>(a), load<std::int64_t>(b));
  }
};
struct bf16_products {
  static amd::float4 run(const std::uint8_t* a, const std::uint8_t* b, amd::float4 d, int, int) {
    return amd::multiply_bf16(load<amd::short4>(a), load<amd::short4>(b), d);
  }
};
template <gemm_element A, gemm_element B, int ByteA, int ByteB>
struct scaled {
  static amd::float4 run(const std::uint8_t* a, const std::uint8_t* b, amd::float4 d, int scale_a, int scale_b) {
    const int others_a = 0x11223344 & ~(0xFF << (8 * ByteA)), others_b = 0x55667788 & ~(0xFF << (8 * ByteB));
    return amd::multiply_scaled<ByteA, ByteB>(load<amd::scaled_fragment<A>>(a), load<amd::scaled_fragment<B>>(b), d,
                                              others_a | scale_a << (8 * ByteA), others_b | scale_b << (8 * ByteB));
  }
};

/// Compares the instruction with its unit's definition: random codes, scales `spread` binades apart, every kind of C.
template <class Instruction>
void check_instruction(const char* unit, format a, format b, int k, lane_layout at, bool takes_c, int spread) {
  std::mt19937 random(static_cast<unsigned>(spread + k + a.exponent_bits + 8 * b.exponent_bits));
  gemm_options o;
  o.model = find_unit(unit)->model;
  o.start_from_c = true;
  int wrong = 0;
  for (int round = 0; round < 8; ++round) {
    instruction_data x{};
    const auto fill = [&](auto& rows, auto& scales) {
      for (auto& row : rows) {
        for (std::uint8_t& byte : row) byte = static_cast<std::uint8_t>(random());
      }
      for (auto& row : scales) {
        for (std::uint8_t& s : row) {
          s = static_cast<std::uint8_t>(127 - spread / 2 + static_cast<int>(random() % static_cast<unsigned>(spread)));
        }
      }
      scales[3][1] = round % 2 == 0 ? 255 : 0;
      std::memset(rows[5], 0x80 * (round % 2), sizeof rows[5]);
    };
    fill(x.a, x.scales_a);
    fill(x.b, x.scales_b);
    for (auto& row : x.d) {
      for (float& c : row) {
        const auto bits = static_cast<std::uint32_t>(random());
        c = !takes_c || round == 0 ? 0.0f
            : round % 3 == 0       ? fp32_from_bits(bits)
                                   : fp32_from_bits((bits & 0x8FFFFFFFu) | 0x38000000u) * 0x1p4f;
      }
    }
    const auto operand = [&](format f, auto& rows, auto& scales) {
      gemm_operand m{f, 16, k, rows[0], 128};
      if (at.bytes * 4 * 8 / f.bits() == 128) {
        m.block = 32;
        m.scales = scales[0];
        m.scale_stride = 4;
      }
      return m;
    };
    instruction_data got = x;
    REQUIRE(gpu::launch(one_wave<Instruction>, dim3{1}, dim3{64}, 0, {}, &got, at).ok());
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        const float want = accumulate_ref(operand(a, x.a, x.scales_a), i, operand(b, x.b, x.scales_b), j, o, x.d[i][j]);
        if (fp32_bits(want) != fp32_bits(got.d[i][j]) && wrong++ < 3) {
          MESSAGE("(" << i << ", " << j << "): " << got.d[i][j] << " instead of " << want);
        }
      }
    }
  }
  CHECK(wrong == 0);
}

/// Errors: half of the wave diverges, or an incomplete wave executes a wave instruction.
__global__ void half_multiplies(int* out) {
  const unsigned t = thread_index().x;
  if (t % 2 == 0) *out = amd::uniform(7);
}

TEST_CASE("matrix instructions: the layout of lanes and the unit's model") {
  constexpr gemm_element e2m1 = gemm_element::e2m1;
  for (const thread_order order : orders) {
    const order_scope scope(order);
    check_instruction<fp8>("cdna3-mfma-fp8-f32", formats::e4m3fnuz, formats::e4m3fnuz, 32, {8, 1}, false, 1);
    check_instruction<scaled<e2m1, e2m1, 0, 3>>("cdna4-mfma-scale-f8f6f4-f32", formats::e2m1, formats::e2m1, 128,
                                                {16, 1}, true, 8);
  }
  constexpr gemm_element e4m3 = gemm_element::e4m3, e5m2 = gemm_element::e5m2;
  check_instruction<bf16_products>("cdna3-mfma-fp16-f32", formats::bf16, formats::bf16, 16, {8, 1}, true, 1);
  check_instruction<scaled<e4m3, e4m3, 1, 0>>("cdna4-mfma-scale-f8f6f4-f32", formats::e4m3, formats::e4m3, 128, {32, 2},
                                              true, 8);
  check_instruction<scaled<e4m3, e5m2, 3, 2>>("cdna4-mfma-scale-f8f6f4-f32", formats::e4m3, formats::e5m2, 128, {32, 2},
                                              true, 254);
  check_instruction<scaled<e2m1, e2m1, 2, 1>>("cdna4-mfma-scale-f8f6f4-f32", formats::e2m1, formats::e2m1, 128, {16, 1},
                                              true, 254);
}

TEST_CASE("an instruction that not all lanes of the wave come to is an error") {
  int out = 0;
  CHECK(gpu::launch(half_multiplies, dim3{1}, dim3{64}, 0, {}, &out).message().find("lanes of its wave") !=
        std::string::npos);
  CHECK(!gpu::launch(half_multiplies, dim3{1}, dim3{1}, 0, {}, &out).ok());
}

#endif

TEST_CASE("gfx950, MXFP4: both orders of A, ragged rows and columns, every output") {
  const operand wide(48, 512, 1, scales_of::ordinary), tall(272, 512, 2, scales_of::special);
  const operand ragged(261, 256, 3, scales_of::special), small(16, 256, 4, scales_of::ordinary);
  compare(gfx950, wide, tall, {.samples = 1000});
  compare(gfx950, small, small, {.output = formats::fp32, .extra_stride = 3, .alpha = -1.1f});
  compare(gfx950, small, small, {.output = formats::fp32, .extra_stride = 4, .accumulate = true});
  compare(gfx950, small, small, {.extra_stride = 3, .accumulate = true, .bias = true});
  compare(gfx950, small, small, {.extra_stride = 4, .bias = true});
  const order_scope reverse(thread_order::reverse);
  compare(gfx950, ragged, small, {.shuffled_a = false, .samples = 2000});
  const order_scope shuffled(thread_order::shuffled);
  compare(gfx950, ragged, small,
          {.alpha = 0.7f, .accumulate = true, .bias = true, .shuffled_a = false, .samples = 500});
}

TEST_CASE("gfx950, MXFP4: parts of K") {
  const operand a(48, 768, 5, scales_of::far), b(16, 768, 6, scales_of::far);
  compare(gfx950, a, b, {.output = formats::fp32, .split_k = 3, .samples = 300});
  const order_scope shuffled(thread_order::shuffled);
  compare(gfx950, a, b, {.accumulate = true, .split_k = 2, .samples = 300});
}

TEST_CASE("gfx950: every tile, at the edges of each, the same bytes") {
  constexpr gemm_element e4m3 = gemm_element::e4m3, e5m2 = gemm_element::e5m2;
  // Three or five steps of K cover the three loops of the kernel (two or more, one, and no further steps). Each part of
  // K is one step. 261 rows and 272 columns end inside a tile of every shape; 16 columns are part of a tile.
  const operand a(261, 768, 31, scales_of::special), b(272, 768, 32, scales_of::special);
  const operand few(5, 768, 33, scales_of::far), narrow(16, 768, 34, scales_of::far);
  compare_tiles(gfx950, a, narrow, {.shuffled_a = false, .samples = 1000});
  compare_tiles(gfx950, few, b, {.output = formats::fp32, .shuffled_a = false, .split_k = 3, .samples = 500});
  const operand five(5, 256, 43, scales_of::ordinary), widest(1040, 256, 44, scales_of::ordinary);
  compare_tiles(gfx950, five, widest, {.shuffled_a = false, .samples = 1000});  // all waves of the widest tile
  compare_tiles(gfx950, few, b, {.shuffled_a = false, .shuffled_b = false, .samples = 500});
  const operand c(272, 512, 35, scales_of::special, e4m3), d(16, 512, 36, scales_of::special, e4m3);
  const operand e(37, 512, 37, scales_of::ordinary, e5m2), f(272, 512, 38, scales_of::ordinary, e5m2);
  compare_tiles(gfx950, c, d, {.samples = 500});
  compare_tiles(gfx950, e, d, {.accumulate = true, .bias = true, .shuffled_a = false, .split_k = 2, .samples = 300});
  compare_tiles(gfx950, d, f, {.samples = 300});
  compare_tiles(gfx950, d, f, {.shuffled_b = false, .split_k = 2, .samples = 300});
  compare_tiles(gfx950, e, f, {.shuffled_a = false, .samples = 300});
  const operand g(96, 1280, 39, scales_of::ordinary), h(144, 1280, 40, scales_of::ordinary);
  const operand i(80, 768, 41, scales_of::ordinary, e4m3), j(144, 768, 42, scales_of::ordinary, e5m2);
  const order_scope reverse(thread_order::reverse);
  compare_tiles(gfx950, i, j, {.samples = 200});
  const order_scope shuffled(thread_order::shuffled);
  compare_tiles(gfx950, g, h, {.samples = 200});
  compare_tiles(gfx950, i, j, {.samples = 200});
}

TEST_CASE("gfx942, MXFP4: ragged, every output, scales that one multiply-add does not take") {
  const operand a(37, 256, 7, scales_of::special), b(131, 256, 8, scales_of::special);
  const operand c(136, 128, 9, scales_of::ordinary), d(40, 128, 10, scales_of::special);
  for (const thread_order order : orders) {
    const order_scope scope(order);
    compare(gfx942, c, d, {});
  }
  compare(gfx942, a, b, {.output = formats::fp32});
  compare(gfx942, d, c, {.extra_stride = 5, .alpha = 0.7f, .accumulate = true, .bias = true});
}

TEST_CASE("gfx942: every tile, at the edges of each, the same bytes") {
  const operand a(133, 256, 43, scales_of::special), b(144, 256, 44, scales_of::special), c(5, 256, 45, scales_of::far);
  const operand d(165, 160, 46, scales_of::special, gemm_element::e4m3),
      e(72, 160, 47, scales_of::ordinary, gemm_element::e5m2);
  for (const thread_order order : orders) {
    const order_scope scope(order);
    compare_tiles(gfx942, a, b, {.samples = 500});
    compare_tiles(gfx942, a, c, {.output = formats::fp32, .samples = 500});
    compare_tiles(gfx942, c, b, {.samples = 300});
    compare_tiles(gfx942, d, e, {.accumulate = true, .bias = true, .samples = 500});
  }
}

/// Name of the kernel of fp32_blockwise.
std::string kernel_name(const gemm_operand& a, const gemm_operand& b, const device_info& device) {
  gemm_selection selected;
  const status s = select_gemm(call_of({}, a, b, {gemm_mode::reference}, device), device, selected);
  return s.ok() ? selected.kernel : s.message();
}

/// fp32_blockwise by gfx942's kernel, as training calls it, against the CPU.
void compare_blockwise(const device_info& device, const operand& a, const operand& b, const gemm_result& form) {
  if (!runs_here(device)) return;
  const int m = a.plain.rows, n = b.plain.rows;
  const bool narrow = form.stored == formats::bf16;
  const index_t stride = form.out_stride == 0 ? n : form.out_stride;
  const auto elements = static_cast<std::size_t>(m * stride);
  const std::vector<std::uint32_t> words(elements, 0x40403F80u);  // two BF16 or one FP32 each
  array<std::uint32_t> found(words);
  gemm_call r = call_of(form, a.view(gfx942, false), b.view(gfx942, false), {gemm_mode::reference}, device);
  r.out = found.there;
  CHECK(kernel_name(r.a, r.b, device) == "mxfp4-gfx942");
  const status s = gpu::detail::run_gemm(r, device, nullptr, 0, {});
  REQUIRE_MESSAGE(s.ok(), s.message());
  found.fetch();
  CHECK(found.guards_hold());
  gemm_options o;
  o.model = fp32_blockwise;
  const gemm_operand rows = make_operand(a.plain.blocks(), a.plain.here()),
                     columns = make_operand(b.plain.blocks(), b.plain.here());
  const auto before = [&](index_t at) {
    const std::uint64_t word = words[static_cast<std::size_t>(narrow ? at / 2 : at)];
    return narrow ? word >> (16 * (at % 2)) & 0xFFFFu : word;
  };
  int wrong = 0;
  for (index_t i = 0; i < m; ++i) {
    for (index_t j = 0; j < stride; ++j) {
      const index_t at = i * stride + j;
      std::uint64_t want = before(at);
      if (j < n) {
        const float old = fp32_from_bits(static_cast<std::uint32_t>(narrow ? want << 16 : want));
        const float sum = accumulate_ref(rows, i, columns, j, o, 0.0f);
        want = finished_bits(sum, r.output, 1.0f, r.accumulate, 1.0f, old, nullptr, fp32_nan_bits);
        if (r.output == formats::bf16 && !narrow) want <<= 16;
      }
      const std::uint64_t word = found.here[static_cast<std::size_t>(narrow ? at / 2 : at)];
      wrong += want != (narrow ? word >> (16 * (at % 2)) & 0xFFFFu : word);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("gfx942 and gfx950: blockwise sums of training, from the operands themselves") {
  const operand a(37, 256, 51, scales_of::special), b(131, 256, 52, scales_of::special);
  const operand c(136, 384, 53, scales_of::far), d(40, 384, 54, scales_of::far);
  for (const device_info* device : {&gfx942, &gfx950}) {
    compare_blockwise(*device, a, b, {.stored = formats::fp32});
    compare_blockwise(*device, b, a,
                      {.stored = formats::fp32, .out_stride = 41, .accumulate = true, .output = formats::bf16});
    compare_blockwise(*device, c, d, {.output = formats::bf16});
    compare_blockwise(*device, d, c, {.accumulate = true, .output = formats::bf16});
    gemm_operand x = a.view(gfx942, false);
    x.k = 160;
    CHECK(kernel_name(x, x, *device) == "blockwise");
    x = a.view(gfx942, false);
    x.scales += 1;
    CHECK(kernel_name(a.view(gfx942, false), x, *device) == "blockwise");
    x = a.view(gfx942, false);
    x.scale_stride += 2;
    CHECK(kernel_name(x, a.view(gfx942, false), *device) == "blockwise");
  }
  const gemm_operand x = a.view(gfx942, false);
  CHECK(kernel_name(x, x, {arch::other, 1}) == "blockwise");
}

TEST_CASE("gfx950, MXFP8: every pair of elements, both orders of A, parts of K") {
  constexpr gemm_element e4m3 = gemm_element::e4m3, e5m2 = gemm_element::e5m2;
  const operand a(48, 512, 11, scales_of::ordinary, e4m3), b(272, 512, 12, scales_of::special, e4m3);
  const operand c(16, 512, 13, scales_of::special, e5m2), d(37, 512, 14, scales_of::ordinary, e5m2);
  compare(gfx950, a, b, {.samples = 800});
  compare(gfx950, a, c, {.output = formats::fp32, .extra_stride = 1, .samples = 300});
  const order_scope reverse(thread_order::reverse);
  compare(gfx950, d, b, {.shuffled_a = false, .samples = 300});
  const order_scope shuffled(thread_order::shuffled);
  compare(gfx950, d, c, {.accumulate = true, .bias = true, .shuffled_a = false, .split_k = 2, .samples = 300});
}

TEST_CASE("gfx942, MXFP8: ragged, every output, BF16 beyond its range") {
  constexpr gemm_element e4m3 = gemm_element::e4m3, e5m2 = gemm_element::e5m2;
  const operand a(37, 96, 15, scales_of::special, e4m3), b(131, 96, 16, scales_of::special, e5m2);
  const operand c(136, 160, 17, scales_of::ordinary, e4m3), d(40, 160, 18, scales_of::special, e4m3);
  for (const thread_order order : orders) {
    const order_scope scope(order);
    compare(gfx942, c, d, {.samples = 2000});
  }
  compare(gfx942, a, b, {.output = formats::fp32, .samples = 2000});
  compare(gfx942, d, c, {.extra_stride = 5, .alpha = 0.7f, .accumulate = true, .bias = true, .samples = 1000});
  compare(gfx942, d, c, {.extra_stride = 4, .alpha = 0.7f, .accumulate = true, .bias = true, .samples = 1000});
}

TEST_CASE("what AMD's kernels do not take is refused by name") {
  const operand a(32, 256, 19, scales_of::ordinary), b(32, 256, 20, scales_of::ordinary, gemm_element::e4m3);
  array<std::uint8_t> out(bytes(32 * 32 * 2, 0xA5));
  const auto message = [&](const operand& x, const device_info& device, auto change, gemm_choice choice = {}) {
    if (mode_contract(choice.mode, device) == nullptr) return std::string("no contract");
    gemm_call p = call_of({out.there}, x.view(device, true), x.view(device, true), choice, device);
    change(p);
    return gpu::detail::run_gemm(p, device, nullptr, 0, {}).message();
  };
  for (const operand* x : {&a, &b}) {
    CHECK(message(*x, gfx950, [](gemm_call& p) { p.a.k = p.b.k = 128; }) == "a.k: must be a multiple of 256 on gfx950");
    CHECK(message(*x, gfx950, [&](gemm_call& p) {
            p.b = x->view(gfx950, false);
            p.b.rows = 24;
          }) == "b.rows: must be a multiple of 16 on gfx950");
    CHECK(message(*x, gfx950, [&](gemm_call& p) {
            p.b = x->view(gfx950, false);
            p.b.code_stride = index_t{1} << 27;
          }) == "b.code_stride: must be below 2^27 on gfx950");
    CHECK(message(*x, gfx950, [&](gemm_call& p) { p.a = x->view(gfx942, false); }) ==
          "a.scale_order: must be aiter_scale on gfx950");
    CHECK(message(*x, gfx950, [](gemm_call& p) { p.b.rows = 17; }) == "b.rows: this order of codes needs whole tiles");
  }
  CHECK(message(b, gfx942, [&](gemm_call& p) { p.a = b.view(gfx950, true); }) ==
        "a.code_order: this kernel takes row-major codes");
  CHECK(message(a, gfx942, [](gemm_call&) {}, {gemm_mode::fast, 2}) == "contract.split_k: must be 1 for this kernel");
  CHECK(message(a, gfx950, [&](gemm_call& p) {
          p.a = a.view(gfx950, false);
          p.a.code_stride = index_t{1} << 27;
        }) == "a.code_stride: must be below 2^27 on gfx950");
  const gemm_choice large{gemm_mode::accurate, 1, {256, 256}};
  CHECK(message(
            b, gfx950, [](gemm_call&) {}, large) == "schedule.tile_m: this kernel has no such tile");
  CHECK(message(a, gfx942, [](gemm_call&) {}, {gemm_mode::accurate, 1, {64, 64}}) ==
        "schedule.tile_m: this kernel has no such tile");
  CHECK(message(a, gfx950, [](gemm_call&) {}, {gemm_mode::accurate, 1, {48, 256}}) ==
        "schedule.tile_m: this kernel has no such tile");
  CHECK(message(b, gfx942, [](gemm_call&) {}) == "workspace: must be device memory aligned to 256 bytes");
  CHECK(message(a, {arch::other, 1}, [](gemm_call&) {}) == "no contract");
  out.fetch();
  CHECK(out.here == bytes(out.here.size(), 0xA5));
}

TEST_CASE("large GEMMs on a device, sampled") {
  if (!on_device) return;
  for (const gemm_element element : {gemm_element::e2m1, gemm_element::e4m3, gemm_element::e5m2}) {
    const operand a(1040, 4096, 21, scales_of::special, element), b(2064, 4096, 22, scales_of::ordinary, element);
    for (const device_info* device : {&gfx950, &gfx942}) {
      compare(*device, a, b, {.samples = 300});
      compare(*device, a, b,
              {.output = formats::fp32, .accumulate = true, .bias = true, .shuffled_a = false, .samples = 300});
    }
    compare(gfx950, a, b, {.split_k = 4, .samples = 300});
  }
}

}  // namespace gemm_amd_test
