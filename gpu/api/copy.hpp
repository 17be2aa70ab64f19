// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Copies of rows within device memory.
#pragma once

#include "gpu/api/device.hpp"

namespace rotoscale::gpu {

/// Copies `rows` rows of `width` bytes. Strides are in bytes.
status copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t width,
                 std::size_t rows, stream s = {});

}  // namespace rotoscale::gpu
