// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The probe without a GPU: the models answer. Tests use it for the generators, the comparison, the search for orders
// along K, and the files.
#include "examples/probe/check.hpp"
#include "examples/probe/gemm.hpp"
#include "rotoscale/ex2_approx.hpp"

namespace rotoscale::probe {

namespace {

void answer_gemm(const gemm_options& o, probed_gemm& p) {
  thread_pool pool(1);
  std::vector<float> d(static_cast<std::size_t>(p.m * p.n));
  gemm(make_operand(p.a, p.codes_a, p.m, p.k), make_operand(p.b, p.codes_b, p.n, p.k), o, row_major(d.data(), p.m, p.n),
       pool);
  const int bytes = element_bytes(p.d);
  for (std::size_t i = 0; i < d.size(); ++i) {
    store_little_endian(p.codes_d, i * static_cast<std::size_t>(bytes), encode(p.d, d[i]), bytes);
  }
}

}  // namespace

std::string device_description(std::string&) { return "no device: answers come from the models"; }

std::string run_exp2_on_device(std::uint32_t first, std::uint32_t stride, std::vector<float>& results) {
  for (float& y : results) {
    y = ex2_approx(fp32_from_bits(first));
    first += stride;
  }
  return {};
}

std::vector<probed_instruction> device_instructions() {
  constexpr format fp16 = formats::fp16, fp32 = formats::fp32, tf32 = formats::tf32, e4m3 = formats::e4m3,
                   e5m2 = formats::e5m2, e2m1 = formats::e2m1, fp64 = formats::fp64;
  const instruction_form sparse{true}, minus{false, true, true}, no_c{false, false, false, true},
      scaled{false, false, false, false, true};
  return {{"hopper-mma-fp16-f32", "model m16n8k16 f16 f32", fp16, fp16, fp32, 16, 8, 16, {}, true},
          {"hopper-mma-tf32-f32", "model m16n8k8 tf32 f32", tf32, tf32, fp32, 16, 8, 8},
          {"hopper-wgmma-fp8-f32", "model m64n8k32 e4m3 e5m2 f32", e4m3, e5m2, fp32, 64, 8, 32, {}, true},
          {"hopper-wgmma-fp8-f16", "model m64n8k32 e4m3 e4m3 f16", e4m3, e4m3, fp16, 64, 8, 32},
          {"hopper-sparse-fp16-f32", "model sparse m16n8k32 f16 f32", fp16, fp16, fp32, 16, 8, 32, sparse},
          {"hopper-sparse-tf32-f32", "model sparse m16n8k16 tf32 f32", tf32, tf32, fp32, 16, 8, 16, sparse},
          {"hopper-sparse-mma-fp8-f32", "model sparse m16n8k64 e4m3 f32", e4m3, e4m3, fp32, 16, 8, 64, sparse},
          {"hopper-mma-fp16-f32", "model m64n8k16 f16 f32 negated", fp16, fp16, fp32, 64, 8, 16, minus},
          {"hopper-mma-fp16-f16", "model m64n8k16 f16 f16 without c", fp16, fp16, fp16, 64, 8, 16, no_c},
          {"blackwell-mxf8f6f4-f32", "model m16n8k32 mxf8f6f4 e4m3 e5m2", e4m3, e5m2, fp32, 16, 8, 32, scaled},
          {"blackwell-mxf4-f32", "model m16n8k64 mxf4", e2m1, e2m1, fp32, 16, 8, 64, scaled},
          {"cdna4-mfma-scale-f8f6f4-f32", "model 16x16x128 e2m1", e2m1, e2m1, fp32, 16, 16, 128, scaled},
          {"hopper-mma-fp64-f64", "model m16n8k16 f64", fp64, fp64, fp64, 16, 8, 16},
          {"cdna3-mfma-fp16-f32", "model 16x16x16 f16 f32", fp16, fp16, fp32, 16, 16, 16}};
}

std::string run_on_device(const probed_instruction& instruction, probe_cases& cases) {
  const mma_unit* unit = find_unit(instruction.unit);
  const int bytes = element_bytes(instruction.accumulator);
  std::vector<std::uint64_t> d;
  for (std::size_t tile = 0; tile < static_cast<std::size_t>(cases.tiles); ++tile) {
    model_tile(unit->model, instruction, cases, tile, d);
    for (std::size_t i = 0; i < d.size(); ++i) {
      store_little_endian(cases.d, (tile * d.size() + i) * static_cast<std::size_t>(bytes), d[i], bytes);
    }
  }
  return {};
}

std::string run_gemm_on_device(const probed_instruction& instruction, const gemm_schedule& schedule, probed_gemm& p) {
  gemm_options o;
  o.model = find_unit(instruction.unit)->model;
  o.promotion = schedule.promotion;
  if (schedule.part != 0) {
    o.split_k = (p.k + schedule.part - 1) / schedule.part;
    o.split_grain = schedule.part;
  }
  answer_gemm(o, p);
  return {};
}

std::string library_description() { return "the models"; }

std::vector<library_gemm> library_gemms() {
  return {{"FP16 to FP32", formats::fp16, formats::fp16, formats::fp32},
          {"E4M3 to BF16", formats::e4m3, formats::e4m3, formats::bf16}};
}

/// Answers with one chain, then two parts, then sums that no candidate gives.
std::string run_library(const library_gemm& what, probed_gemm& p, int algorithms,
                        const std::function<void(const std::string&)>& answer) {
  const bool fp8 = what.a.bits() == 8;
  for (int i = 0; i < algorithms && i < 3; ++i) {
    gemm_options o = contract_options(*find_contract(fp8 ? "hopper-fp8-promoted" : "single-accumulator"),
                                      find_unit(fp8 ? "hopper-wgmma-fp8-f32" : "hopper-mma-fp16-f32")->model);
    if (i == 1) o.split_k = 2;
    if (i == 2) o.model.fraction_bits = 10;
    answer_gemm(o, p);
    answer("algorithm " + std::to_string(i));
  }
  return {};
}

}  // namespace rotoscale::probe
