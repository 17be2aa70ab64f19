// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The probe without a GPU: the models themselves answer. It tests the generators, the comparison and the files.
#include "gpu/probe/check.hpp"

namespace rotoscale::gpu {

std::string device_description(std::string&) { return "no device: answers come from the models"; }

std::vector<probed_instruction> device_instructions() {
  return {{"hopper-mma-fp16-f32", "model m16n8k16 f16 f32", formats::fp16, formats::fp16, false, 16, 8, 16},
          {"hopper-mma-tf32-f32", "model m16n8k8 tf32 f32", formats::tf32, formats::tf32, false, 16, 8, 8},
          {"hopper-wgmma-fp8-f32", "model m64n8k32 e4m3 e5m2 f32", formats::e4m3, formats::e5m2, false, 64, 8, 32},
          {"hopper-wgmma-fp8-f16", "model m64n8k32 e4m3 e4m3 f16", formats::e4m3, formats::e4m3, true, 64, 8, 32},
          {"cdna3-mfma-fp16-f32", "model 16x16x16 f16 f32", formats::fp16, formats::fp16, false, 16, 16, 16}};
}

std::string run_on_device(const probed_instruction& instruction, probe_cases& cases) {
  const mma_unit* unit = find_unit(instruction.unit);
  const int bytes = instruction.fp16_accumulator ? 2 : 4;
  std::vector<std::uint32_t> d;
  for (std::size_t tile = 0; tile < static_cast<std::size_t>(cases.tiles); ++tile) {
    model_tile(unit->model, instruction, cases, tile, d);
    for (std::size_t i = 0; i < d.size(); ++i) {
      store_little_endian(cases.d, (tile * d.size() + i) * static_cast<std::size_t>(bytes), d[i], bytes);
    }
  }
  return {};
}

}  // namespace rotoscale::gpu
