// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The version, stated once: meson.build and CMake read it from here.
#pragma once

#if __cplusplus < 202002L
#error "Rotoscale needs C++20: -std=c++20 or newer."
#endif

#define ROTOSCALE_VERSION_MAJOR 0
#define ROTOSCALE_VERSION_MINOR 1
#define ROTOSCALE_VERSION_PATCH 0
#define ROTOSCALE_VERSION "0.1.0"

/// For comparisons: `#if ROTOSCALE_VERSION_NUMBER >= 200` is 0.2.0 or newer.
#define ROTOSCALE_VERSION_NUMBER \
  (ROTOSCALE_VERSION_MAJOR * 10000 + ROTOSCALE_VERSION_MINOR * 100 + ROTOSCALE_VERSION_PATCH)
