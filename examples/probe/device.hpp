// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the probe asks of a device: which matrix instructions it has, the results of one of them on many tiles, and
// whole GEMMs, by kernels made of one instruction and by the vendor's library. device.hip and library.cpp implement it
// for GPUs, model.cpp for none: there the models answer, which tests everything around them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rotoscale/format.hpp"

namespace rotoscale::probe {

/// What an instruction does besides D = A · Bᵀ + C.
struct instruction_form {
  bool sparse = false;                      ///< A holds k / 2 kept elements a row and their metadata (sparse.hpp)
  bool negate_a = false, negate_b = false;  ///< it multiplies -A, -B
  bool zero_c = false;                      ///< it does not read C
  bool scaled = false;                      ///< E8M0 scales for every scale_block elements of k
};

inline constexpr int scale_block = 32;

/// One instruction: D [rows × cols] = A [rows × k] · B [cols × k]ᵀ + C.
struct probed_instruction {
  const char* unit;  ///< its mma_unit by name
  const char* name;  ///< the instruction's
  format a, b;
  format accumulator;  ///< of C and D
  int rows, cols, k;
  instruction_form form = {};
  bool has_gemm = false;  ///< run_gemm_on_device takes it
};

/// `tiles` cases of one instruction, row-major and dense: codes of a and b (FP32 words for TF32), metadata of a sparse
/// A, scales, bits of c and d.
struct probe_cases {
  int tiles = 0;
  std::vector<std::uint8_t> a, metadata, b, c, d, scales_a, scales_b;
};

/// Bytes of an element in memory.
inline int element_bytes(const format& f) { return f.bits() <= 8 ? 1 : f.bits() <= 16 ? 2 : f.bits() <= 32 ? 4 : 8; }

/// The same in a device's memory.
struct tile_pointers {
  const std::uint8_t *a, *metadata, *b, *c;
  std::uint8_t* d;
  int tiles;
  const std::uint8_t *scales_a, *scales_b;
};

/// Device, driver and toolkit in words; empty if there is no device, with `why`.
std::string device_description(std::string& why);

std::vector<probed_instruction> device_instructions();

/// Fills cases.d, which has its size. Empty if it worked, else what went wrong.
std::string run_on_device(const probed_instruction& instruction, probe_cases& cases);

/// ex2.approx.ftz.f32 of the FP32 numbers with bits first, first + stride, ...: fills `results`. Empty if it worked,
/// else what went wrong; devices that are not NVIDIA's have no such instruction.
std::string run_exp2_on_device(std::uint32_t first, std::uint32_t stride, std::vector<float>& results);

/// A whole GEMM: D [m × n] = A [m × k] · B [n × k]ᵀ, codes row by row.
struct probed_gemm {
  std::int64_t m = 0, n = 0, k = 0;
  format a, b, d;
  std::vector<std::uint8_t> codes_a, codes_b, codes_d;
};

/// How a kernel goes along K: in parts that start from +0 and are added in FP32, ascending; in a part the accumulator
/// moves to an FP32 sum every `promotion` (0: never). Both are multiples of the instruction's k; part divides K.
struct gemm_schedule {
  std::int64_t part = 0;  ///< 0: all of K
  std::int64_t promotion = 0;
};

/// Runs a kernel made of one instruction, a tile a warp or warpgroup; d is its accumulator's format. m, n and k are
/// multiples of the tile's; FP16 and FP64 accumulators take no schedule. Fills codes_d. Empty if it worked.
std::string run_gemm_on_device(const probed_instruction& instruction, const gemm_schedule& schedule,
                               probed_gemm& problem);

/// What the vendor's library can be asked to multiply.
struct library_gemm {
  const char* name;
  format a, b, d;
  bool fast_accumulate = false;  ///< FP8: as the library's option of that name says
  format accumulator = formats::fp32;
  bool transposed_a = false, transposed_b = false;  ///< in memory A is k × m, B is k × n, instead of m × k and n × k
};

/// The library and its version in words; empty if there is none.
std::string library_description();
std::vector<library_gemm> library_gemms();

/// Runs the library's first `algorithms` choices for this problem; after each, codes_d is filled and `answer` is called
/// with what the library says of the algorithm. Empty if it worked.
std::string run_library(const library_gemm& what, probed_gemm& problem, int algorithms,
                        const std::function<void(const std::string&)>& answer);

}  // namespace rotoscale::probe
