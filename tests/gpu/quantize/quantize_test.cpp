// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fused block quantizers against quantize_ref, place_codes and place_scales, by bytes, in host mode or, linked with a
// device library (ROTOSCALE_TEST_DEVICE), on a device.
#include "gpu/api/quantize.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "rotoscale/quantize_ref.hpp"
#include "tests/gpu/device_memory.hpp"
#if !defined(ROTOSCALE_TEST_DEVICE)
#include "gpu/quantize/block.hpp"
#endif

namespace quantize_quantize_test {

using namespace rotoscale;
using namespace gpu_test;

/// Request for one orientation.
struct wanted {
  bool any = true;
  block_options options = presets::te_rocm;
  placement code_order = placement::row_major, scale_order = placement::row_major;
  index_t extra_code_stride = 0, extra_scale_stride = 0, scale_skew = 0;
};

/// One orientation on the device, and the expected bytes.
struct orientation {
  orientation(block_format f, const wanted& w, index_t vectors, index_t k)
      : format(f), want(w), vectors(vectors), k(k), codes(layout_bytes(true)), scales(layout_bytes(false)) {
    out.options = w.options;
    out.code_order = w.code_order;
    out.scale_order = w.scale_order;
    if (w.extra_code_stride != 0) out.code_stride = code_stride();
    if (w.extra_scale_stride != 0) out.scale_stride = scale_stride();
    if (w.any) {
      out.codes = codes.data();
      out.scales = scales.data() + want.scale_skew;
    }
  }

  index_t code_stride() const { return packed_bytes(format.element, k) + want.extra_code_stride; }
  index_t scale_stride() const { return k / format.length + want.extra_scale_stride; }
  std::size_t layout_bytes(bool of_codes) const {
    if (of_codes) return static_cast<std::size_t>(vectors * code_stride());
    if (want.scale_order == placement::row_major)
      return static_cast<std::size_t>(vectors / format.rows * scale_stride() + want.scale_skew);
    return static_cast<std::size_t>(scale_layout(want.scale_order, format, vectors, k).size_bytes());
  }

  /// Bytes between rows must keep their poison.
  template <class T>
  void check(matrix<const T> source, block_axis axis) const {
    if (!want.any) {
      CHECK(codes.read() == std::vector<std::uint8_t>(codes.read().size(), 0xA5));
      return;
    }
    std::vector<std::uint8_t> plain_codes(static_cast<std::size_t>(vectors * packed_bytes(format.element, k)));
    std::vector<std::uint8_t> plain_scales(static_cast<std::size_t>(vectors / format.rows * (k / format.length)));
    const auto blocks = dense_blocks(format, vectors, k, plain_codes.data(), plain_scales.data());
    quantize_ref(format, want.options, source, axis, blocks);
    std::vector<std::uint8_t> expected_codes(codes.read().size(), 0xA5), expected_scales(scales.read().size(), 0xA5);
    if (want.code_order == placement::row_major) {
      copy_rows(code_bytes<const std::uint8_t>(format, blocks), code_stride(), expected_codes.data());
    } else {
      place_codes(format, blocks, want.code_order, expected_codes.data());
    }
    if (want.scale_order == placement::row_major) {
      copy_rows(scale_bytes<const std::uint8_t>(format, blocks), scale_stride(),
                expected_scales.data() + want.scale_skew);
    } else {
      place_scales(format, blocks, want.scale_order, expected_scales.data());
    }
    CHECK(codes.read() == expected_codes);
    CHECK(scales.read() == expected_scales);
    CHECK(codes.guards_hold());
    CHECK(scales.guards_hold());
  }

  static void copy_rows(matrix<const std::uint8_t> from, index_t stride, std::uint8_t* to) {
    for (index_t r = 0; r < from.extent(0); ++r) {
      for (index_t c = 0; c < from.extent(1); ++c) to[r * stride + c] = from(r, c);
    }
  }

  block_format format;
  wanted want;
  index_t vectors, k;
  device_array<std::uint8_t> codes, scales;
  gpu::quantized_output out;
};

struct source_shape {
  index_t rows, columns;
  index_t extra_stride = 0;
  std::size_t skew = 0;
  index_t column_stride = 1;
  bool transposed = false;
};

/// True if quantize_values takes an orientation.
template <class T>
bool takes_values(block_format f, const wanted& w, index_t vectors, index_t k) {
  const block_options& o = w.options;
  const bool by_error = o.choice == scale_choice::four_over_six || o.choice == scale_choice::eden;
  const bool quick = o.source == formats::fp32 || o.source == formats::bf16;
  return !w.any || (gpu::has_values_kernel(f, o.rotation.points, o.choice) && k % 32 == 0 &&
                    (f.rows == 1 || vectors % 32 == 0) && (!by_error || (quick && o.random_count == 32)));
}
/// quantize_values against quantize_ref and dequantize_ref.
template <class T>
void check_values(block_format f, const wanted& rows, const wanted& columns, matrix<const T> there,
                  matrix<const T> host) {
  const index_t m = host.extent(0), n = host.extent(1);
  if (!takes_values<T>(f, rows, m, n) || !takes_values<T>(f, columns, n, m) || n % 8 != 0) return;
  const device_array<bf16> by_rows(static_cast<std::size_t>(m * n)), by_columns(static_cast<std::size_t>(m * n));
  gpu::quantized_output out[2];
  for (const bool is_row : {true, false}) {
    const wanted& w = is_row ? rows : columns;
    out[!is_row].options = w.options;
    if (w.any) out[!is_row].values = (is_row ? by_rows : by_columns).data();
  }
  const gpu::status s = run([&](gpu::stream q) { return gpu::quantize_values(f, there, out[0], out[1], q); });
  CHECK_MESSAGE(s.ok(), s.message());
  for (const bool is_row : {true, false}) {
    const wanted& w = is_row ? rows : columns;
    const device_array<bf16>& made = is_row ? by_rows : by_columns;
    CHECK(made.guards_hold());
    if (!w.any) continue;
    const index_t vectors = is_row ? m : n, k = is_row ? n : m;
    const block_axis axis = is_row ? block_axis::row : block_axis::column;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(vectors * packed_bytes(f.element, k)));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(vectors / f.rows * (k / f.length)));
    quantize_ref(f, w.options, host, axis, dense_blocks(f, vectors, k, codes.data(), scales.data()));
    std::vector<bf16> expected(static_cast<std::size_t>(m * n));
    dequantize_ref(f, dense_blocks<const std::uint8_t>(f, vectors, k, codes.data(), scales.data()), axis,
                   row_major(expected.data(), m, n));
    CHECK(made.read() == expected);
  }
}

template <class T>
void check(block_format f, const wanted& rows, const wanted& columns, source_shape shape, unsigned seed = 1) {
  CAPTURE(shape.rows);
  CAPTURE(shape.columns);
  CAPTURE(seed);
  const index_t rows_in_memory = shape.transposed ? shape.columns : shape.rows;
  const index_t columns_in_memory = shape.transposed ? shape.rows : shape.columns;
  const index_t stride = columns_in_memory * shape.column_stride + shape.extra_stride;
  const std::vector<T> x = make_source<T>(rows_in_memory, stride, seed);
  const device_array<T> source(x, shape.skew);
  orientation row(f, rows, shape.rows, shape.columns), column(f, columns, shape.columns, shape.rows);
  const auto view_of = [&](const T* data) {
    const matrix<const T> memory{data, {rows_in_memory, columns_in_memory}, {stride, shape.column_stride}};
    return shape.transposed ? transposed(memory) : memory;
  };
  const auto view = view_of(source.data());
  const gpu::status s = run([&](gpu::stream stream) { return gpu::quantize(f, view, row.out, column.out, stream); });
  CHECK_MESSAGE(s.ok(), s.message());
  const auto host = view_of(x.data());
  row.check(host, block_axis::row);
  column.check(host, block_axis::column);
  if constexpr (!std::is_same_v<T, fp16>) check_values<T>(f, rows, columns, view, host);
  CHECK(source.guards_hold());
}

constexpr wanted absent{false};

block_options with(scale_rule rule, const block_policy& policy, int points, std::uint32_t signs = 0) {
  block_options o;
  o.rule = rule;
  o.policy = policy;
  o.rotation.points = points;
  o.rotation.signs[0] = signs;
  return o;
}

constexpr scale_rule rules[] = {scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil};
constexpr block_policy all_policies[] = {policies::te_rocm,    policies::ocp,   policies::primus,
                                         policies::aiter_even, policies::aiter, policies::aiter_nonzero,
                                         policies::nvidia};

/// AITER's GEMM operand: codes in the matrix core's order, scales swizzled and padded.
wanted aiter(const block_options& o) { return {true, o, placement::aiter_data_16x16, placement::aiter_scale}; }

TEST_CASE_TEMPLATE("every rule, policy and rotation", T, bf16, fp16, float) {
  unsigned seed = 0;
  for (const scale_rule rule : rules) {
    for (const block_policy& policy : all_policies) {
      for (const std::uint32_t signs : {0u, 0x9E3779B9u}) {
        const block_options rotated = with(rule, policy, 16, signs), plain = with(rule, policy, 0);
        check<T>(mxfp4, {true, rotated}, {true, plain}, {64, 96}, ++seed);
        check<T>(mxfp4, {true, plain}, {true, rotated}, {64, 96}, ++seed);
      }
    }
  }
}

TEST_CASE_TEMPLATE("MXFP8", T, bf16, float) {
  unsigned seed = 100;
  for (const block_format f : {mxfp8_e4m3, mxfp8_e5m2}) {
    for (const scale_rule rule : rules) {
      for (const block_policy& policy : {policies::ocp, policies::nvidia}) {
        for (const int points : {0, 16}) {
          const block_options o = with(rule, policy, points, 0x1234u);
          check<T>(f, {true, o}, {true, o}, {64, 64}, ++seed);
        }
      }
    }
    check<T>(f, aiter(presets::nvidia), aiter(presets::ocp), {96, 160}, ++seed);
  }
}

TEST_CASE("layouts, shapes and strides") {
  const block_options o = presets::te_rocm;
  const wanted placed = aiter(o), dense{true, o};
  unsigned seed = 200;
  for (const source_shape shape : {source_shape{32, 32}, {32, 288}, {288, 32}, {160, 96}, {128, 128}, {256, 64}}) {
    check<bf16>(mxfp4, dense, dense, shape, ++seed);
    wanted scales = dense;
    for (const placement p : {placement::aiter_scale, placement::hipblaslt_scale_32x8, placement::nvidia_scale_128x4}) {
      scales.scale_order = p;
      check<bf16>(mxfp4, scales, dense, shape, ++seed);
      check<bf16>(mxfp4, absent, scales, shape, ++seed);
    }
  }
  for (const source_shape shape : {source_shape{64, 64}, {64, 320}, {320, 128}, {192, 192}}) {
    check<bf16>(mxfp4, placed, placed, shape, ++seed);
    check<float>(mxfp4, placed, placed, shape, ++seed);
  }
  // Any number of rows if only rows are wanted, any number of columns if only columns are.
  check<bf16>(mxfp4, dense, absent, {37, 96}, ++seed);
  check<bf16>(mxfp4, absent, dense, {96, 37}, ++seed);
  check<bf16>(mxfp4, absent, dense, {96, 37, 3}, ++seed);
  check<fp16>(mxfp8_e4m3, absent, dense, {32, 131, 5}, ++seed);
  // Strided views, aligned and not; padded output rows.
  check<bf16>(mxfp4, dense, dense, {64, 96, 8}, ++seed);
  check<bf16>(mxfp4, dense, dense, {64, 96, 3}, ++seed);
  check<bf16>(mxfp4, dense, dense, {64, 96, 8, 1}, ++seed);
  check<float>(mxfp4, dense, placed, {64, 96, 5, 1}, ++seed);
  wanted strided = dense;
  strided.extra_code_stride = 16;
  strided.extra_scale_stride = 3;
  check<bf16>(mxfp4, strided, strided, {64, 96}, ++seed);
  strided.extra_scale_stride = 2;
  check<bf16>(mxfp4, strided, strided, {288, 160}, ++seed);
  // A column's scales of four blocks, word-aligned and not.
  for (const index_t skew : {0, 1, 4}) {
    strided.extra_scale_stride = 4;
    strided.scale_skew = skew;
    check<bf16>(mxfp4, dense, strided, {256, 160}, ++seed);
    check<float>(mxfp8_e4m3, dense, strided, {128, 96}, ++seed);
  }

  const wanted random{true, [&] {
                        block_options r = o;
                        r.rounding = rounding::stochastic;
                        r.random = {7, 8};
                        return r;
                      }()};
  for (const bool is_transposed : {false, true}) {
    for (const index_t column_stride : {1, 3}) {
      const source_shape shape{96, 192, 8, 0, column_stride, is_transposed};
      check<bf16>(mxfp4, aiter(o), {true, o, placement::row_major, placement::nvidia_scale_128x4}, shape, ++seed);
      check<float>(mxfp8_e5m2, random, dense, shape, ++seed);
      check<fp16>(square_blocks(mxfp4), dense, random, shape, ++seed);
      check<bf16>(mxfp4, dense, absent, {33, 64, 0, 1, column_stride, is_transposed}, ++seed);
      check<bf16>(mxfp4, absent, dense, {160, 50, 16, 0, column_stride, is_transposed}, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("stochastic and other roundings, sources and bits", T, bf16, float) {
  unsigned seed = 300;
  block_options o = presets::te_rocm;
  for (const rounding r : {rounding::stochastic, rounding::toward_zero, rounding::nearest_away}) {
    o.rounding = r;
    o.random = {0x123456789ABCDEFull, 77};
    o.random_count = r == rounding::stochastic ? 32 : 1;
    check<T>(mxfp4, {true, o}, aiter(o), {64, 128}, ++seed);
    o.random_count = 11;
    check<T>(mxfp8_e4m3, {true, o}, {true, o}, {64, 64}, ++seed);
  }
  block_options rounded = presets::ocp;
  for (const format source : {formats::bf16, formats::fp16, formats::e5m2}) {
    rounded.source = source;
    check<T>(mxfp4, {true, rounded}, {true, rounded}, {32, 64}, ++seed);
  }
}

TEST_CASE_TEMPLATE("squares of 32 × 32", T, bf16, float) {
  unsigned seed = 400;
  for (const block_policy& policy : {policies::te_rocm, policies::aiter, policies::ocp}) {
    const block_options o = with(scale_rule::even, policy, 0), rotated = with(scale_rule::rceil, policy, 16, 7);
    check<T>(square_blocks(mxfp4), {true, o}, {true, o}, {64, 160}, ++seed);
    check<T>(square_blocks(mxfp4), aiter(o), aiter(rotated), {192, 64}, ++seed);
    check<T>(square_blocks(mxfp8_e5m2), {true, o}, absent, {32, 64}, ++seed);
  }
}

TEST_CASE_TEMPLATE("blocks of 16, and 6-bit codes", T, bf16, fp16, float) {
  unsigned seed = 420;
  const source_shape edges{160, 224, 8}, narrow{32, 96, 0, 1};
  for (const format& element : {formats::e2m1, formats::e2m3, formats::e3m2, formats::e4m3, formats::e5m2}) {
    for (const int length : {16, 32}) {
      const block_format f{element, length}, square = square_blocks(f);
      const block_options plain = with(rules[seed % 4], all_policies[seed % 7], 0);
      block_options turned = with(rules[(seed + 1) % 4], all_policies[(seed + 2) % 7], 16, 0x9E3779B9u),
                    random = turned;
      random.rounding = rounding::stochastic;
      random.random = {seed, 5};
      check<T>(f, {true, plain}, {true, random}, edges, ++seed);
      check<T>(f, {true, random}, {true, turned}, narrow, ++seed);
      check<T>(square, {true, plain}, {true, plain}, edges, ++seed);
      check<T>(square, {true, random}, {true, turned}, {64, 32}, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("NVFP4", T, bf16, fp16, float) {
  unsigned seed = 440;
  for (const int length : {16, 32}) {
    const block_format f{formats::e2m1, length, formats::ue4m3};
    for (const block_policy& policy : {policies::nvidia, policies::torchao_nvfp4, policies::ocp}) {
      for (const float factor : {1.0f, 0x1p-20f, 3000.0f, 0x1.234p100f}) {
        block_options plain = with(scale_rule::even, policy, 0),
                      turned = with(scale_rule::even, policy, 16, 0xD7E8D7E8u);
        plain.encode_factor = factor;
        turned.encode_factor = 2 * factor;
        block_options random = turned, unturned = plain;
        for (block_options* o : {&random, &unturned}) {
          o->rounding = rounding::stochastic;
          o->random = {seed, 9};
        }
        check<T>(f, {true, plain}, {true, turned}, {96, 160}, ++seed);
        check<T>(f, {true, unturned}, {true, random}, {160, 64, 8}, ++seed);
        check<T>(square_blocks(f), {true, plain}, {true, plain}, {64, 96}, ++seed);
        check<T>(square_blocks(f), {true, plain}, {true, unturned}, {160, 160}, ++seed);
      }
    }
  }
}

TEST_CASE("many tiles a block") {
  const index_t size = on_device ? 16 : 1;
  const wanted placed = aiter(presets::te_rocm);
  wanted nvidia{true, presets::nvidia};
  nvidia.scale_order = placement::nvidia_scale_128x4;
  check<bf16>(mxfp4, placed, placed, {256 * size, 384 * size}, 450);
  check<bf16>(mxfp4, nvidia, nvidia, {224 * size, 352 * size}, 451);
  check<float>(mxfp4, {true, presets::te_rocm}, placed, {192 * size, 320 * size, 8}, 452);
  check<fp16>(mxfp8_e4m3, {true, presets::ocp}, {true, presets::ocp}, {160 * size, 416 * size}, 453);
  check<bf16>(nvfp4, {true, presets::nvidia}, {true, with(scale_rule::even, policies::nvidia, 16, 5)},
              {224 * size, 352 * size}, 454);
}

TEST_CASE("captured in a graph") {
  through_graphs = true;
  check<bf16>(mxfp4, aiter(presets::te_rocm), aiter(presets::te_rocm), {192, 192}, 460);
  check<float>(square_blocks(mxfp8_e4m3), {true, presets::ocp}, absent, {64, 64}, 461);
  through_graphs = false;
}

#if !defined(ROTOSCALE_TEST_DEVICE)
TEST_CASE("the order of threads changes nothing") {
  const wanted placed = aiter(presets::te_rocm);
  for (const auto order : {gpu::host::thread_order::reverse, gpu::host::thread_order::shuffled}) {
    gpu::host::set_thread_order(order);
    check<bf16>(mxfp4, placed, placed, {192, 192}, 500);
    check<bf16>(square_blocks(mxfp4), placed, placed, {64, 64}, 501);
    check<float>(mxfp8_e4m3, {true, presets::ocp}, {true, presets::ocp}, {64, 64}, 502);
    check<bf16>(square_blocks(nvfp4), {true, presets::nvidia}, {true, presets::nvidia}, {160, 64}, 503);
    check<float>(mxfp6_e2m3, {true, presets::ocp}, {true, presets::ocp}, {64, 96}, 504);
  }
  gpu::host::set_thread_order(gpu::host::thread_order::forward);
}

/// encode_stochastic of one format.
template <format F>
void check_stochastic(std::uint32_t (*word)()) {
  for (int trial = 0; trial < 200000; ++trial) {
    const std::uint32_t u = word(), random = trial % 3 == 0 ? ~0u << word() % 32 : word();
    const std::uint32_t near = (u & 0x81FFFFFFu) + ((trial % 2 == 0 ? 0x1Bu : 0x1Fu) << 25);
    const float x = fp32_from_bits(trial % 4 == 0 ? u : near);
    if (x != x) continue;
    REQUIRE(gpu::encode_stochastic<F>(x, random) ==
            encode(F, x, rounding::stochastic, overflow::saturate, random_bits{random, 32}));
  }
}
TEST_CASE("stochastic rounding of one element is the definition's") {
  static std::mt19937 random(4);
  const auto word = +[] { return static_cast<std::uint32_t>(random()); };
  check_stochastic<formats::e2m1>(word);
  check_stochastic<formats::e2m3>(word);
  check_stochastic<formats::e3m2>(word);
  check_stochastic<formats::e4m3>(word);
  check_stochastic<formats::e5m2>(word);
}

TEST_CASE("the fast paths of one block agree with the definition and with each other") {
  std::mt19937 random(3);
  const auto word = [&] { return static_cast<std::uint32_t>(random()); };
  for (int trial = 0; trial < 2000; ++trial) {
    float y[2][16];
    std::uint8_t codes[16], scale;
    float all[32];
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t u = trial % 2 == 0 ? word() : word() % 512 << 20;
      all[i] = fp32_from_bits((u & 0x81FFFFFFu) + (0x1Fu << 25));
      if (word() % 8 == 0) all[i] = fp32_from_bits((fp32_bits(all[i]) & 0xFFF00000u) + word() % 3 - 1);
      y[i / 16][i % 16] = all[i];
    }
    const block_options o = with(rules[trial % 4], policies::ocp, 0);
    quantize_ref(mxfp4, o, row_major<const float>(all, 1, 32), block_axis::row,
                 dense_blocks(mxfp4, 1, 32, codes, &scale));
    gpu::packed_e2m1_block packed;
    gpu::float_e2m1_block floats;
    for (int half = 0; half < 2; ++half) {
      packed.put(half, y[half]);
      floats.put(half, y[half]);
    }
    const gpu::fast_rule rule = gpu::make_fast_rule(formats::e2m1, o);
    gpu::fast_scale s = gpu::choose_fast_scale<false>(rule, packed.amax());
    const gpu::fast_scale same = gpu::choose_fast_scale<false>(rule, floats.amax());
    s.saturates = true;
    REQUIRE(gpu::takes_fast_path(packed.amax()));
    REQUIRE(s.byte == scale);
    REQUIRE(same.byte == scale);
    for (int w = 0; w < 4; ++w) {
      std::uint32_t expected = 0;
      for (int b = 0; b < 4; ++b) expected |= static_cast<std::uint32_t>(codes[4 * w + b]) << (8 * b);
      REQUIRE(packed.codes(w, s) == expected);
      REQUIRE(floats.codes(w, s) == expected);
    }
  }
}
#endif

TEST_CASE("bad arguments are named before anything is launched") {
  const device_array<bf16> x(64 * 64);
  device_array<std::uint8_t> codes(64 * 64 + 16), scales(4096);
  const auto source = row_major<const bf16>(x.data(), 64, 64);
  gpu::quantized_output good;
  good.codes = codes.data();
  good.scales = scales.data();
  const auto names = [&](const std::string& argument, matrix<const bf16> m, const gpu::quantized_output& rows,
                         const gpu::quantized_output& columns, block_format f = mxfp4) {
    const std::string text = gpu::quantize(f, m, rows, columns, {}).message();
    CHECK_MESSAGE(text.rfind(argument + ": ", 0) == 0, text);
  };
  const auto of = [&](index_t rows, index_t cols) { return row_major<const bf16>(x.data(), rows, cols); };
  const auto bad = [&](auto change) {
    gpu::quantized_output o = good;
    change(o);
    return o;
  };
  names("rows.codes", source, {}, {});
  names("source", row_major<const bf16>(nullptr, 64, 64), good, {});
  names("source", of(64, 63), good, {});
  names("source", of(63, 64), {}, good);
  names("source", of(48, 64), good, {}, square_blocks(mxfp4));
  names("f", source, good, {}, {formats::e2m1, 64});
  const auto no_scales = bad([](auto& o) { o.scales = nullptr; });
  names("rows.scales", source, no_scales, {});
  names("columns.scales", source, {}, no_scales);
  names("columns.codes", source, {}, bad([](auto& o) { o.codes += 8; }));
  names("rows.options.rotation", source, bad([](auto& o) { o.options.rotation.points = 256; }), {});
  names("rows.options", source, bad([](auto& o) { o.options.random_count = 0; }), {});
  names("rows.options.choice", source, bad([](auto& o) { o.options.choice = scale_choice::headroom; }), {});
  names("rows.code_order", of(64, 32), bad([](auto& o) { o.code_order = placement::aiter_data_16x16; }), {});
  names("rows.code_order", source, bad([](auto& o) { o.code_order = placement::nvidia_scale_128x4; }), {});
  names("columns.scale_order", source, {}, bad([](auto& o) { o.scale_order = placement::aiter_data_16x16; }));
  names("rows.code_stride", source, bad([](auto& o) { o.code_stride = 24; }), {});
  names("rows.scale_stride", source, bad([](auto& o) { o.scale_stride = 1; }), {});
  // The same for blocks without a tile kernel.
  names("columns.code_stride", source, {}, bad([](auto& o) { o.code_stride = 31; }), nvfp4);
  names("rows.scale_stride", source, bad([](auto& o) { o.scale_stride = 3; }), {}, nvfp4);
  names("rows.scale_order", source, bad([](auto& o) { o.scale_order = placement::aiter_scale; }), {}, nvfp4);
  const auto state = bad([&](auto& o) { o.state = reinterpret_cast<const nn::step_state*>(codes.data() + 4); });
  for (const block_format& f : {mxfp4, nvfp4}) names("rows.state", source, state, {}, f);
  const auto amax = bad([&](auto& o) { o.amax = reinterpret_cast<std::uint32_t*>(codes.data()); });
  names("rows.amax", source, amax, {});
  names("rows.factor", source, amax, {}, nvfp4);
  const std::string unmeasured = gpu::measure_amax(nvfp4, source, good, {}, {}).message();
  CHECK_MESSAGE(unmeasured.rfind("rows.amax: ", 0) == 0, unmeasured);
  CHECK(codes.read() == std::vector<std::uint8_t>(codes.read().size(), 0xA5));
  CHECK(gpu::quantize(mxfp4, row_major<const bf16>(nullptr, 0, 64), good, {}, {}).ok());
}

TEST_CASE("NVFP4's factor is the tensor's, in tiles and by the definition") {
  const auto check = [](block_format f, block_options o, auto zero, index_t m, index_t n, bool draws) {
    using T = decltype(zero);
    const std::vector<T> source = gpu_test::make_source<T>(m, n, 11);
    const matrix<const T> host = row_major<const T>(source.data(), m, n);
    const gpu_test::device_array<T> in(source);
    const matrix<const T> there = row_major<const T>(in.data(), m, n);
    for (const block_axis axis : {block_axis::row, block_axis::column}) {
      const bool columns = axis == block_axis::column;
      const index_t rows = columns ? n : m, k = columns ? m : n;
      const gpu_test::device_array<std::uint32_t> amax(gpu::amax_words);
      const gpu_test::device_array<float> factor(1);
      gpu::quantized_output to, none;
      const gpu_test::device_array<std::uint8_t> codes(static_cast<std::size_t>(rows * packed_bytes(f.element, k))),
          scales(static_cast<std::size_t>(rows / f.rows * (k / f.length)));
      to.codes = codes.data();
      to.scales = scales.data();
      to.options = o;
      block_options want = o;
      if (draws) {
        to.amax = amax.data();
        to.factor = factor.data();
        if constexpr (!std::is_same_v<T, fp16>) {
          gpu_test::expect(gpu::measure_amax(f, there, columns ? none : to, columns ? to : none, {}));
        }
        want.encode_factor = tensor_encode_factor(tensor_amax(f, o, host, axis), f.element, f.scale, o.choice);
      }
      gpu_test::expect(gpu::quantize(f, there, columns ? none : to, columns ? to : none, {}));
      if (draws) CHECK(fp32_bits(factor.read()[0]) == fp32_bits(1.0f / want.encode_factor));
      std::vector<std::uint8_t> want_codes(codes.read().size()), want_scales(scales.read().size());
      quantize_ref(f, want, host, axis, dense_blocks(f, rows, k, want_codes.data(), want_scales.data()));
      CHECK(codes.read() == want_codes);
      CHECK(scales.read() == want_scales);
      CHECK(codes.guards_hold());
      CHECK(scales.guards_hold());
      const wanted absent{false}, made{true, want};
      if constexpr (!std::is_same_v<T, fp16>)
        check_values<T>(f, columns ? absent : made, columns ? made : absent, there, host);
    }
  };
  block_options plain{formats::bf16, {}, scale_rule::even, policies::nvidia};
  block_options random = plain;
  random.rounding = rounding::stochastic;
  random.random = {3, 9};
  random.rotation = {16, {0x9A5Cu}};
  block_options wide = plain;
  wide.rotation = {32, {0xF00DBEEFu}};
  check(nvfp4, plain, bf16{}, 48, 80, true);
  check(nvfp4, random, float{}, 48, 80, true);
  check(nvfp4, random, float{}, 160, 192, true);
  check(nvfp4, plain, bf16{}, 288, 160, true);
  check({formats::e2m1, 32, formats::ue4m3}, random, bf16{}, 64, 160, true);
  check(nvfp4, wide, bf16{}, 64, 96, true);
  check({formats::e2m1, 16, formats::ue5m3}, random, bf16{}, 64, 96, true);
  check({formats::e2m1, 16, formats::ue4m3, 16}, plain, float{}, 32, 48, true);
  for (const auto choice : {scale_choice::four_over_six, scale_choice::headroom, scale_choice::eden}) {
    for (block_options o : {plain, random, wide}) {
      o.choice = choice;
      if (choice != scale_choice::headroom) o.rounding = rounding::nearest_even;
      check(nvfp4, o, bf16{}, 64, 96, true);
      check(nvfp4, o, float{}, 32, 32, false);
      if (o.rounding == rounding::nearest_even && choice != scale_choice::eden)
        check(square_blocks(nvfp4), o, float{}, 96, 96, true);
    }
  }
  for (const int points : {64, 128}) {
    for (const auto choice : {scale_choice::amax, scale_choice::four_over_six, scale_choice::eden}) {
      block_options o = plain;
      o.rotation = {points, {0xF00DBEEFu, 0x12345678u, 0xDEADC0DEu, 0x0BADF00Du}};
      o.choice = choice;
      check(nvfp4, o, bf16{}, 128, 256, true);
    }
    block_options o = random;
    o.rotation = wide.rotation;
    o.rotation.points = points;
    check(square_blocks(mxfp4), o, float{}, 128, 256, false);
  }
  for (const int height : {1, 128}) {
    check({formats::e4m3, 128, formats::e8m0, height}, plain, bf16{}, 128, 384, false);
    check({formats::e2m1, 128, formats::e8m0, height}, plain, float{}, 256, 256, false);
  }
  check(mxfp6_e2m3, wide, bf16{}, 64, 96, false);
  check(mxfp6_e3m2, wide, fp16{}, 32, 64, false);
  check(mxfp4, wide, float{}, 64, 96, false);
  check({formats::e4m3, 16}, plain, bf16{}, 16, 48, false);
  block_options floored = plain;
  floored.policy = policies::torchao_nvfp4;  // minimum scale 2^-6
  check(nvfp4, floored, bf16{}, 48, 80, false);
}

TEST_CASE("beside an Inf under the largest scale finite elements keep their codes, in blocks of other kinds") {
  std::vector<float> source(64);
  for (int i = 0; i < 64; ++i) source[static_cast<std::size_t>(i)] = std::ldexp(i % 2 == 0 ? 1.5f : -1.0f, 127 - i / 4);
  source[5] = std::numeric_limits<float>::infinity();
  source[40] = -source[5];
  const gpu_test::device_array<float> in(source);
  for (const block_format& f : {mxfp6_e2m3, mxfp6_e3m2}) {
    const block_options o{formats::fp32, {}, scale_rule::even, policies::nvidia};
    gpu::quantized_output to;
    const gpu_test::device_array<std::uint8_t> codes(48), scales(2);
    to.codes = codes.data();
    to.scales = scales.data();
    to.options = o;
    gpu_test::expect(gpu::quantize(f, row_major<const float>(in.data(), 1, 64), to, {}, {}));
    std::vector<std::uint8_t> want_codes(48), want_scales(2);
    quantize_ref(f, o, row_major<const float>(source.data(), 1, 64), block_axis::row,
                 dense_blocks(f, 1, 64, want_codes.data(), want_scales.data()));
    CHECK(want_scales[0] == 254);
    CHECK(codes.read() == want_codes);
    CHECK(scales.read() == want_scales);
  }
}

}  // namespace quantize_quantize_test
