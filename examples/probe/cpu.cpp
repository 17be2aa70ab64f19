// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Intel's BF16 instructions: TDPBF16PS of AMX and VDPBF16PS of AVX512_BF16. The functions carry their instruction sets,
// so that the program needs no -march and starts on every processor.
#include "examples/probe/cpu.hpp"

#include <cstring>
#include <fstream>

#if defined(__x86_64__) && defined(__linux__) && __has_include(<amxbf16intrin.h>)
#define ROTOSCALE_PROBE_AMX
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rotoscale::probe {

#if defined(ROTOSCALE_PROBE_AMX)

namespace {

constexpr const char* amx_name = "tdpbf16ps 16x16x32";
constexpr const char* avx512_name = "vdpbf16ps 16x16x2";

/// True if the processor has AMX's BF16 products and Linux permits use of the tile registers.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned bf16_and_tiles = 1u << 22 | 1u << 24;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & bf16_and_tiles) == bf16_and_tiles &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
bool has_avx512_bf16() { return __builtin_cpu_supports("avx512bf16") != 0; }

/// Operand of LDTILECFG.
struct alignas(64) tile_configuration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16};
};

/// d [16 × 16] = c + a [16 × 32] · pairs [16 × 16 columns × 2].
__attribute__((target("amx-tile,amx-bf16"))) void multiply_tiles(const std::uint8_t* a, const std::uint8_t* pairs,
                                                                 const std::uint8_t* c, std::uint8_t* d) {
  static constexpr tile_configuration configuration;
  asm volatile("" : : : "memory");  // GCC's tile loads do not say that they read memory
  _tile_loadconfig(&configuration);
  _tile_loadd(0, c, 64);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, pairs, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, d, 64);
  _tile_release();
}

/// d [16 × 16] = c + a [16 × 2] · pairs [16 columns × 2].
__attribute__((target("avx512f,avx512bf16"))) void multiply_pairs(const std::uint8_t* a, const std::uint8_t* pairs,
                                                                  const std::uint8_t* c, std::uint8_t* d) {
  for (int row = 0; row < 16; ++row) {
    int pair;
    std::memcpy(&pair, a + 4 * row, sizeof pair);
    const __m512 sum = _mm512_dpbf16_ps(_mm512_loadu_ps(c + 64 * row), (__m512bh)_mm512_set1_epi32(pair),
                                        (__m512bh)_mm512_loadu_si512(pairs));
    _mm512_storeu_ps(d + 64 * row, sum);
  }
}

}  // namespace

std::string cpu_description(std::string& why) {
  if (cpu_instructions().empty()) {
    why = "the processor has neither AMX-BF16 nor AVX512_BF16, or the system refuses them";
    return {};
  }
  std::ifstream file("/proc/cpuinfo");
  std::string line, family, model;
  for (std::string text; std::getline(file, text) && !text.empty();) {
    const std::size_t colon = text.find(": ");
    if (colon == std::string::npos) continue;
    if (text.starts_with("model name")) line = text.substr(colon + 2);
    if (text.starts_with("cpu family")) family = text.substr(colon + 2);
    if (text.starts_with("model\t")) model = text.substr(colon + 2);
  }
  return line + ", family " + family + ", model " + model;
}

std::vector<probed_instruction> cpu_instructions() {
  constexpr format bf16 = formats::bf16, fp32 = formats::fp32;
  const instruction_form low{.low = true};
  std::vector<probed_instruction> all;
  if (has_amx()) all.push_back({"intel-amx-bf16", amx_name, bf16, bf16, fp32, 16, 16, 32, low});
  if (has_avx512_bf16()) all.push_back({"intel-avx512-bf16", avx512_name, bf16, bf16, fp32, 16, 16, 2, low});
  return all;
}

std::string run_on_cpu(const probed_instruction& instruction, probe_cases& cases, thread_pool& pool) {
  const bool amx = instruction.name == std::string_view(amx_name);
  const auto operand = static_cast<std::size_t>(16 * 2 * instruction.k);
  pool.for_each(cases.tiles, [&](index_t t) {
    const auto tile = static_cast<std::size_t>(t);
    const std::uint8_t *a = cases.a.data() + tile * operand, *b = cases.b.data() + tile * operand;
    alignas(64) std::uint8_t pairs[1024];
    for (int pair = 0; pair < instruction.k / 2; ++pair) {
      for (int j = 0; j < 16; ++j) std::memcpy(pairs + 64 * pair + 4 * j, b + 2 * instruction.k * j + 4 * pair, 4);
    }
    (amx ? multiply_tiles : multiply_pairs)(a, pairs, cases.c.data() + tile * 1024, cases.d.data() + tile * 1024);
  });
  return {};
}

#else

std::string cpu_description(std::string& why) {
  why = "this build has no matrix instructions of a processor";
  return {};
}
std::vector<probed_instruction> cpu_instructions() { return {}; }
std::string run_on_cpu(const probed_instruction&, probe_cases&, thread_pool&) { return "not built"; }

#endif

}  // namespace rotoscale::probe
