// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rotoscale/dequantize.hpp"

namespace rotoscale {

template void dequantize<float>(block_format, block_matrix<const std::uint8_t>, block_axis, matrix<float>, thread_pool&,
                                float);
template void dequantize<bf16>(block_format, block_matrix<const std::uint8_t>, block_axis, matrix<bf16>, thread_pool&,
                               float);

}  // namespace rotoscale
