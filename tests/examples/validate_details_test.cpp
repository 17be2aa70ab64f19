// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// --identify finds each detail that no preset has, and names the options that reproduce it. Options without a meaning
// for the task are refused.
#include <cmath>
#include <string>
#include <vector>

#include "../rotoscale/io/scratch.hpp"
#include "doctest/doctest.h"
#include "examples/validate/applicable.hpp"
#include "examples/validate/compare.hpp"
#include "examples/validate/kernel_options.hpp"
#include "examples/validate/make_case.hpp"
#include "examples/validate/quantizer/check.hpp"
#include "examples/validate/quantizer/fp32_scales.hpp"
#include "examples/validate/quantizer/presets.hpp"
#include "examples/validate/quantizer/report.hpp"
#include "examples/validate/quantizer/write.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::validate {

using io::testing::message_of;

namespace {

/// Normal numbers. Every eighth is a tie of E2M1 in a block with a 6, and one block in eight is far below the others.
quantizer_dump source(index_t rows, index_t cols, format stored) {
  quantizer_dump dump;
  dump.rows = rows;
  dump.cols = cols;
  dump.source_format = stored;
  const random_stream random{3, 4};
  for (index_t i = 0; i < rows * cols; ++i) {
    const auto word = [&](index_t n) { return static_cast<float>(random.word(static_cast<std::uint64_t>(n)) >> 8); };
    const float u = (word(2 * i) + 1) * 0x1p-25f, v = word(2 * i + 1) * 0x1p-24f;
    float x = std::sqrt(-2.0f * std::log(u)) * std::cos(6.2831853f * v);
    if (i % 64 == 0) x = 6.0f;
    if (i % 64 != 0 && i / 64 % 2 == 0 && i % 8 == 0) x = 0.25f + 0.5f * static_cast<float>(i / 8 % 3);
    if (i % 64 == 32) x = i / 64 % 2 == 0 ? 3.9999f : 3.75f;  // 4 in BF16; not for rule even
    if (i % 256 == 96) x = 4.375f;  // nearest and nearest_log2 differ
    if (i / 64 % 8 == 7) x *= 0x1p-18f;
    dump.source.push_back(round_to_format(stored, x));
  }
  return dump;
}

/// Quantizes a source with the options, stores and reloads it, and identifies what made it.
dump_explanation identified(const quantizer_options& o, format stored) {
  thread_pool pool(1);
  quantizer_dump dump = source(32, 128, stored);
  quantizer q = quantizer_of(o, find_blocks(o.format, 1));
  dump.sides.push_back({block_axis::row, dump.rows, dump.cols, {}, {}});
  if (q.is_per_tensor() || !q.blocks.has_e8m0_scale()) q.options.encode_factor = o.factor.value_or(64.0f);
  io::safetensors_writer writer;
  add_source(writer, dump);
  add_side(writer, q, dump.sides[0], quantize_side(q, dump, dump.sides[0], pool));
  if (q.is_per_tensor() || !q.blocks.has_e8m0_scale())
    writer.add("factor", "F32", {1}, std::as_bytes(std::span(&q.options.encode_factor, 1)));
  quantizer_options unknown;
  unknown.format = o.format;
  const auto [loaded, base] = load_case(unknown, io::safetensors_file::from_bytes("x", writer.bytes("x")), pool);
  const dump_ranking ranking = identify_dump(nullptr, base, {}, loaded, 64, 4, pool);
  CHECK(ranking.all.front().explained == static_cast<index_t>(ranking.all.front().which.size()));
  return ranking.all.front();
}

quantizer_options with_preset(const char* preset, const char* format = "mxfp4") {
  quantizer_options o;
  o.preset = preset;
  o.format = format;
  return o;
}

}  // namespace

TEST_CASE("each detail is found") {
  const auto found = [](quantizer_options o, const char* detail, format stored) {
    o.details = {detail};
    const dump_explanation e = identified(o, stored);
    for (const named_detail& d : all_details)
      CHECK_MESSAGE(e.how.details.*d.member == (d.name == std::string(detail)), e.text);
  };
  found(with_preset("te_rocm"), "rotated_bf16", formats::bf16);
  found(with_preset("torchao_floor"), "amax_bf16", formats::fp32);
  found(with_preset("ocp"), "nearest_scale", formats::bf16);
  found(with_preset("ocp"), "nearest_log2", formats::bf16);
  found(with_preset("ocp"), "ties_to_zero", formats::bf16);
  found(with_preset("nvidia", "nvfp4"), "zero_under_zero", formats::bf16);
  quantizer_options fp8 = with_preset("fp8", "fp8_e4m3");
  fp8.factor = 128.0f;  // 6 * 128 is beyond 448
  found(fp8, "overflow_nan", formats::bf16);
}

TEST_CASE("Transformer Engine's signs and ggml's nibbles are found") {
  quantizer_options o = with_preset("te_rocm");
  o.signs = "d7e8";
  CHECK(identified(o, formats::bf16).how.options.rotation.signs[0] == 0xD7E8D7E8u);
  o = with_preset("ocp");
  o.nibbles = "halves";
  CHECK(identified(o, formats::bf16).how.nibbles == nibble_order::halves);
}

TEST_CASE("nibbles in halves: elements j and j + 16 of a block share a byte") {
  quantizer q;
  q.blocks = mxfp4;
  q.nibbles = nibble_order::halves;
  std::vector<std::uint8_t> dense(16), codes;
  for (index_t e = 0; e < 32; ++e) store_code(formats::e2m1, dense.data(), e, static_cast<std::uint32_t>(e * 5 % 16));
  codes = dense;
  turn_nibbles(q, codes, false);
  for (index_t j = 0; j < 16; ++j) CHECK(codes[static_cast<std::size_t>(j)] == ((j * 5 % 16) | (j + 16) * 5 % 16 << 4));
  turn_nibbles(q, codes, true);
  CHECK(codes == dense);
}

TEST_CASE("each option is refused by name where it has no meaning") {
  // Tasks on a GEMM and on a dump that an option is for: compare, identify, fit, make.
  const struct {
    std::string gemm, dump;
    std::vector<std::string> options;
  } groups[] = {{"cfm", "", {"model"}},
                {"cif", "ci", {"input", "tensor", "report"}},
                {"cif",
                 "",
                 {"kernel", "nan", "scale-format", "scale-layout", "promotion", "split-k", "split-grain", "split-run",
                  "split-order", "split-sum", "output-rounding", "epilogue-c", "alpha", "beta", "output",
                  "add-after-rounding", "transposed-d"}},
                {"cifm", "", {"a-format", "b-format", "ignore"}},
                {"i", "i", {"identify"}},
                {"if", "i", {"sample"}},
                {"if", "", {"tell-apart"}},
                {"f", "", {"fit"}},
                {"m", "m", {"make-case", "m", "k", "seed", "with-d"}},
                {"m", "", {"n", "kind"}},
                {"",
                 "cim",
                 {"quantizer", "format", "rotation", "signs", "scale-rule", "policy", "rounding", "source", "factor",
                  "block-rows", "code-placement", "scale-placement", "nibbles", "detail", "random-seed",
                  "random-stream", "random-bits"}},
                {"", "m", {"x-format", "axis"}},
                {"", "c", {"scale-padding"}},
                {"cifm", "cifm", {"threads", "version"}}};
  for (const auto& group : groups) {
    for (const std::string& name : group.options) {
      for (const bool dump : {false, true}) {
        for (const char task : {'c', 'i', 'f', 'm'}) {
          const std::string said =
              message_of([&] { refuse_idle_options({"--" + name}, dump, static_cast<verb>(task)); });
          CAPTURE(said);
          const bool meant = (dump ? group.dump : group.gemm).find(task) != std::string::npos;
          CHECK_MESSAGE((said == "(no error)") == meant, name, dump, task);
          if (!meant) CHECK(said.starts_with("--" + name + ": is for "));
        }
      }
    }
  }
}

TEST_CASE("options that a format, a rotation or a rounding leaves idle are refused") {
  const auto said = [](const quantizer_options& o, option_names given, verb task) {
    return message_of([&] { refuse_idle_options(given, quantizer_of(o, find_blocks(o.format, 1)), {}, task); });
  };
  quantizer_options unrotated = with_preset("te_rocm"), stochastic = unrotated;
  unrotated.rotation = "0";
  stochastic.rounding = "stochastic";
  const quantizer_options fp8 = with_preset("fp8", "fp8_e4m3"), mxfp8 = with_preset("ocp", "mxfp8_e4m3"),
                          nvfp4 = with_preset("nvidia", "nvfp4"), mxfp4 = with_preset("te_rocm");
  for (const verb task : {verb::compare, verb::make}) {
    for (const char* option :
         {"--rotation", "--signs", "--scale-rule", "--policy", "--scale-placement", "--scale-padding", "--block-rows"})
      CHECK(said(fp8, {option}, task).starts_with(std::string(option) + ": is for blocks"));
    for (const quantizer_options& o : {fp8, mxfp8})
      CHECK(said(o, {"--nibbles"}, task) == "--nibbles: is for elements of 4 bits");
    CHECK(said(nvfp4, {"--scale-rule"}, task) == "--scale-rule: is for scales of powers of two");
    CHECK(said(mxfp4, {"--factor"}, task) == "--factor: is for NVFP4 and for FP8 with one factor a tensor");
    for (const quantizer_options& o : {nvfp4, unrotated})
      CHECK(said(o, {"--signs"}, task) == "--signs: is for a rotation");
    for (const char* option : {"--random-seed", "--random-bits", "--random-stream"})
      CHECK(said(mxfp4, {option}, task).starts_with(std::string(option) + ": is for --rounding stochastic"));
    CHECK(said(stochastic, {"--random-stream"}, task).starts_with("--random-stream: is for --random-seed"));
    CHECK(said(mxfp4, {"--rotation", "--signs", "--policy", "--nibbles"}, task) == "(no error)");
  }
}

TEST_CASE("square blocks are found where their scales are repeated for every row") {
  thread_pool pool(1);
  for (const int rows : {1, 16}) {
    quantizer_options o = with_preset("nvidia", "nvfp4");
    quantizer_dump dump = source(32, 128, formats::bf16);
    dump.sides.push_back({block_axis::row, dump.rows, dump.cols, {}, {}});
    quantizer made = quantizer_of(o, find_blocks("nvfp4", rows), 64.0f);
    dense_side result = quantize_side(made, dump, dump.sides[0], pool);
    std::vector<std::uint8_t> scales;
    for (index_t r = 0; r < 32; ++r) {
      const auto first = result.scales.begin() + r / rows * 8;
      scales.insert(scales.end(), first, first + 8);
    }
    result.scales = scales;
    io::safetensors_writer writer;
    add_source(writer, dump);
    add_side(writer, quantizer_of(o, find_blocks("nvfp4", 1), 64.0f), dump.sides[0], result);
    writer.add("factor", "F32", {1}, std::as_bytes(std::span(&made.options.encode_factor, 1)));
    const auto file = io::safetensors_file::from_bytes("x", writer.bytes("x"));
    quantizer_options unknown;
    unknown.format = "nvfp4";
    const identified_dump found = identify_quantizer(unknown, file, 64, pool);
    CHECK(found.accepted);
    const std::string options = options_to_paste(found.all()[found.best]);
    CHECK((options.find("--block-rows 16") != std::string::npos) == (rows == 16));
  }
}

namespace {

/// A case with its own model's result, and the use of the unit that made it.
std::pair<gemm_case, kernel_use> made_case(thread_pool& pool) {
  make_options o;
  o.m = o.n = 16;
  o.kind = "normal";
  o.with_d = true;
  o.with_c = false;
  const gemm_case x = load_case(io::safetensors_file::from_bytes("x", make_case(o, pool).bytes("x")), {});
  return {x, chosen_use({}, x, find_unit(o.model)->model)};
}

}  // namespace

TEST_CASE("a transposed result and split-K with BF16 partial sums are found") {
  thread_pool pool(1);
  const auto [x, given] = made_case(pool);
  const auto best_of = [&, &use = given](const gemm_case& changed) {
    const explanation e = identify(changed, use, false, false, 256, pool).front();
    CHECK(e.explained == static_cast<index_t>(e.which.size()));
    return e.use;
  };
  CHECK(!best_of(x).transposed_d);
  gemm_case turned = x;
  for (index_t e = 0; e < 256; ++e) turned.d.set(e, x.d.code(e % 16 * 16 + e / 16));
  CHECK(best_of(turned).transposed_d);
  CHECK(options_of(given, best_of(turned)).find("--transposed-d") != std::string::npos);
  kernel_use split = given;
  split.gemm.split_k = 4;
  split.gemm.split_sum = formats::bf16;
  gemm_case parted = x;
  parted.d = model_outputs(x, split, pool);
  const kernel_use found = best_of(parted);
  CHECK(found.gemm.split_k == 4);
  CHECK(found.gemm.split_sum == formats::bf16);
}

TEST_CASE("differences of a GEMM are summed up as rms and largest relative error") {
  thread_pool pool(1);
  auto [x, use] = made_case(pool);
  CHECK(compare(x, use, false, pool).rms == 0);
  const double want = value_of(x.output, x.d.code(5));
  x.d.set(5, fp32_bits(static_cast<float>(1.5 * want)));
  const comparison r = compare(x, use, false, pool);
  CHECK(r.different == 1);
  CHECK(r.rms == doctest::Approx(std::fabs(0.5 * want) / 16));
  CHECK(r.relative == doctest::Approx(0.5));
}

TEST_CASE("FP8 in blocks with FP32 scales: the numbers by hand") {
  const std::vector<float> x{896, 1, -3, 0};
  const auto check = [&](const fp32_scaling& how, const std::vector<float>& values, float scale,
                         const std::vector<std::uint8_t>& codes) {
    const fp32_scaled_block block = quantize_fp32_scaled(how, formats::e4m3, values);
    CHECK(block.scale == scale);
    CHECK(block.codes == codes);
  };
  const std::vector<std::uint8_t> halves{0x7E, 0x30, 0xBC, 0}, quarters{0x76, 0x28, 0xB4, 0};
  check({}, x, 2, halves);
  check(find_fp32_scaling({"stored_factor"}), x, 0.5f, halves);
  check(find_fp32_scaling({"scale_inverse", "code_factor"}), x, 2, halves);
  check(find_fp32_scaling({"power_of_two"}), x, 2, halves);
  check(find_fp32_scaling({"power_of_two"}), {900, 2, -6, 0}, 4, {0x76, 0x30, 0xBC, 0});
  check(find_fp32_scaling({"scale_inverse", "power_of_two", "code_factor"}), {900, 1, -3, 0}, 4, quarters);
  check(find_fp32_scaling({"scale_inverse", "code_factor"}), {0, 0}, 1, {0, 0});
  check(find_fp32_scaling({"least_1e-4"}), {0, 0}, 1e-4f / 448, {0, 0});
  CHECK_THROWS_AS(find_fp32_scaling({"scale_product", "scale_inverse"}), io::error);
  CHECK_THROWS_AS(find_fp32_scaling({"power"}), io::error);
}

TEST_CASE("FP8 in 1 x 128 and 32 x 128 blocks with FP32 scales is found") {
  thread_pool pool(1);
  quantizer_dump dump = source(32, 256, formats::bf16);
  for (index_t i = 0; i < 32 * 256; ++i) {  // many maxima, and one under every least amax
    float& x = dump.source[static_cast<std::size_t>(i)];
    x = i < 128 ? 0x1p-45f : round_to_format(formats::bf16, x * (1.0f + static_cast<float>(i / 256) / 32));
  }
  const auto made = [&](const fp32_scaling& how, index_t rows, bool turned, int wrong) {
    std::vector<std::uint8_t> codes(dump.source.size());
    std::vector<float> scales;
    for (index_t b = 0; b < 32 / rows * 2; ++b) {
      std::vector<float> x;
      const auto place = [&](index_t e) {
        return static_cast<std::size_t>((b / 2 * rows + e / 128) * 256 + b % 2 * 128 + e % 128);
      };
      for (index_t e = 0; e < rows * 128; ++e) x.push_back(dump.source[place(e)]);
      const fp32_scaled_block block = quantize_fp32_scaled(how, formats::e4m3, x);
      scales.push_back(block.scale);
      for (index_t e = 0; e < rows * 128; ++e) codes[place(e)] = block.codes[static_cast<std::size_t>(e)];
    }
    codes[300] = static_cast<std::uint8_t>(codes[300] ^ wrong);
    std::vector<float> stored = scales;
    for (index_t i = 0; turned && i < 64; ++i)
      stored[static_cast<std::size_t>(i % 2 * 32 + i / 2)] = scales[static_cast<std::size_t>(i)];
    io::safetensors_writer writer;
    add_source(writer, dump);
    writer.add("codes", "F8_E4M3", {32, 256}, std::as_bytes(std::span(codes)));
    writer.add("scales", "F32", turned ? std::vector<std::int64_t>{2, 32} : std::vector<std::int64_t>{32 / rows, 2},
               std::as_bytes(std::span(stored)));
    const auto file = io::safetensors_file::from_bytes("x", writer.bytes("x"));
    CHECK(fp32_scaled_dump::is_one(file));
    return fp32_scaled_dump(file);
  };
  for (const std::vector<std::string>& details : {std::vector<std::string>{},
                                                  {"scale_product"},
                                                  {"power_of_two"},
                                                  {"stored_factor"},
                                                  {"least_1e-12"},
                                                  {"least_1e-10"},
                                                  {"least_1e-4"},
                                                  {"power_of_two", "least_1e-4"},
                                                  {"scale_inverse", "code_factor"}}) {
    const fp32_scaling how = find_fp32_scaling(details);
    for (const bool turned : {false, true}) {
      const fp32_scaled_dump d = made(how, 1, turned, 0);
      CHECK(d.check(how, pool).identical());
      const auto best = d.identify(1000, pool).front();
      CHECK(best.explained == 64);
      if (details.size() < 2) CHECK(best.how.details() == details);  // others may be told apart by no element
    }
  }
  CHECK(made({}, 32, false, 0).identify(1000, pool).front().explained == 2);
  const dump_report wrong = made({}, 1, false, 1).check({}, pool);
  CHECK(wrong.sides[0].blocks_different == 1);
  CHECK(wrong.sides[0].kinds == std::map<std::string, index_t>{{"code: neighbour", 1}});
}

}  // namespace rotoscale::validate
