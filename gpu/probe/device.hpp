// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the probe asks of a device: which matrix instructions it has, and the results of one of them on many tiles.
// device.hip implements it for GPUs, model.cpp for none: there the models answer, which tests everything around them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rotoscale/format.hpp"

namespace rotoscale::gpu {

/// One instruction: D [rows × cols] = A [rows × k] · B [cols × k]ᵀ + C.
struct probed_instruction {
  const char* unit;  ///< its mma_unit by name
  const char* name;  ///< the instruction's
  format a, b;
  bool fp16_accumulator;  ///< C and D are FP16 instead of FP32
  int rows, cols, k;
};

/// `tiles` cases of one instruction, row-major and dense: codes of a and b (FP32 words for TF32), bits of c and d.
struct probe_cases {
  int tiles = 0;
  std::vector<std::uint8_t> a, b, c, d;
};

/// Bytes of an element in memory.
inline int element_bytes(const format& f) { return f.bits() <= 8 ? 1 : f.bits() <= 16 ? 2 : 4; }

/// The same in a device's memory.
struct tile_pointers {
  const std::uint8_t *a, *b, *c;
  std::uint8_t* d;
  int tiles;
};

/// Device, driver and toolkit in words; empty if there is no device, with `why`.
std::string device_description(std::string& why);

std::vector<probed_instruction> device_instructions();

/// Fills cases.d, which has its size. Empty if it worked, else what went wrong.
std::string run_on_device(const probed_instruction& instruction, probe_cases& cases);

}  // namespace rotoscale::gpu
