// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMX, x86's tile registers: whether this process may use them, and their configuration. ROTOSCALE_AMX=0 in the
// environment switches them off. Kernels: gemm_units.hpp (int8), gemm_tile_chains.hpp (BF16).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "rotoscale/config.hpp"

#if defined(__x86_64__) && __has_include(<amxint8intrin.h>) && !defined(__CUDACC__) && !defined(__HIP__)
#define ROTOSCALE_TILE_REGISTERS
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Operand of LDTILECFG: 8 tiles of up to 16 rows and 64 bytes a row.
struct alignas(64) tile_configuration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(int tile, int height, int bytes) {
    rows[tile] = static_cast<std::uint8_t>(height);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};

/// Products of tiles that this process may use.
struct tile_products {
  bool int8 = false, bf16 = false;

  tile_products() {
#if defined(ROTOSCALE_TILE_REGISTERS) && defined(__linux__)
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    const char* const wanted = std::getenv("ROTOSCALE_AMX");
    unsigned a = 0, b = 0, c = 0, features = 0;
    if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &features) == 0 || (features >> 24 & 1) == 0) return;
    if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0) return;  // granted to all threads
    int8 = (features >> 25 & 1) != 0;
    bf16 = (features >> 22 & 1) != 0;
#endif
  }
};
/// Asked once a process.
inline const tile_products& usable_tiles() {
  static const tile_products products;
  return products;
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
