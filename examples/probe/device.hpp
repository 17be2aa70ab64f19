// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The probe's interface to a device. It lists matrix instructions, runs one instruction on many tiles, and runs whole
// GEMMs of the probe's kernels and of the vendor's library. device.hip and library.cpp implement it for GPUs. In
// model.cpp, for builds without a GPU, the models answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rotoscale/format.hpp"

namespace rotoscale::probe {

/// Variants of D = A · Bᵀ + C.
struct instruction_form {
  bool sparse = false;                      ///< A holds k / 2 kept elements a row and their metadata (sparse.hpp)
  bool negate_a = false, negate_b = false;  ///< multiplies -A, -B
  bool zero_c = false;                      ///< ignores C
  bool scaled = false;                      ///< E8M0 scales for every scale_block elements of k
  bool low = false;                         ///< every second round of kinds is near FP32's least normal number
};

inline constexpr int scale_block = 32;

/// One instruction: D [rows × cols] = A [rows × k] · B [cols × k]ᵀ + C.
struct probed_instruction {
  const char* unit;  ///< name of its mma_unit
  const char* name;  ///< name of the instruction
  format a, b;
  format accumulator;  ///< format of C and D
  int rows, cols, k;
  instruction_form form = {};
  bool has_gemm = false;  ///< supported by run_gemm_on_device
};

/// `tiles` cases of one instruction, row-major and dense. They hold codes of a and b (FP32 words for TF32), metadata of
/// a sparse A, scales, and bits of c and d.
struct probe_cases {
  int tiles = 0;
  std::vector<std::uint8_t> a, metadata, b, c, d, scales_a, scales_b;
};

/// Bytes of an element in memory.
inline int element_bytes(const format& f) { return f.bits() <= 8 ? 1 : f.bits() <= 16 ? 2 : f.bits() <= 32 ? 4 : 8; }

/// The cases in device memory.
struct tile_pointers {
  const std::uint8_t *a, *metadata, *b, *c;
  std::uint8_t* d;
  int tiles;
  const std::uint8_t *scales_a, *scales_b;
};

/// Names device, driver and toolkit. Without a device: empty, with the reason in `why`.
std::string device_description(std::string& why);

std::vector<probed_instruction> device_instructions();

/// Fills cases.d, which the caller has sized. Returns an error message, empty on success.
std::string run_on_device(const probed_instruction& instruction, probe_cases& cases);

/// Fills `results` with ex2.approx.ftz.f32 of the FP32 numbers with bits first, first + stride, ... Returns an error
/// message, empty on success. NVIDIA devices only.
std::string run_exp2_on_device(std::uint32_t first, std::uint32_t stride, std::vector<float>& results);

/// A whole GEMM: D [m × n] = A [m × k] · B [n × k]ᵀ, row-major codes.
struct probed_gemm {
  std::int64_t m = 0, n = 0, k = 0;
  format a, b, d;
  std::vector<std::uint8_t> codes_a, codes_b, codes_d;
};

/// Order of a kernel's sums along K. Parts of K start from +0 and are added in FP32, in ascending order. Within a part,
/// the accumulator is moved to an FP32 sum after every `promotion` elements (0: never). Both are multiples of the
/// instruction's k, and `part` divides K.
struct gemm_schedule {
  std::int64_t part = 0;  ///< 0: all of K
  std::int64_t promotion = 0;
};

/// Runs a kernel made of one instruction, with one tile per warp or warpgroup. Fills codes_d in the accumulator's
/// format. The problem's m, n and k are multiples of the tile's. FP16 and FP64 accumulators support no schedule.
/// Returns an error message, empty on success.
std::string run_gemm_on_device(const probed_instruction& instruction, const gemm_schedule& schedule,
                               probed_gemm& problem);

/// A GEMM of the vendor's library.
struct library_gemm {
  const char* name;
  format a, b, d;
  bool fast_accumulate = false;  ///< FP8: the library's option of that name
  format accumulator = formats::fp32;
  bool transposed_a = false, transposed_b = false;  ///< in memory A is k × m, B is k × n, instead of m × k and n × k
};

/// Names the library and its version; empty without a library.
std::string library_description();
std::vector<library_gemm> library_gemms();

/// Runs the library's first `algorithms` choices for this problem. After each run, codes_d holds the result and
/// `answer` gets the library's description of the algorithm. Returns an error message, empty on success.
std::string run_library(const library_gemm& what, probed_gemm& problem, int algorithms,
                        const std::function<void(const std::string&)>& answer);

}  // namespace rotoscale::probe
