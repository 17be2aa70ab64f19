// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rotoscale/quantize.hpp"

namespace rotoscale::detail {

template void quantize_part<float>(const output_plan&, matrix<const float>, const output_part&);
template void quantize_part<bf16>(const output_plan&, matrix<const bf16>, const output_part&);
template void quantize_part<fp16>(const output_plan&, matrix<const fp16>, const output_part&);
template void quantize_part_both<float>(const output_plan&, const output_plan&, matrix<const float>,
                                        const output_part&);
template void quantize_part_both<bf16>(const output_plan&, const output_plan&, matrix<const bf16>, const output_part&);
template void quantize_part_both<fp16>(const output_plan&, const output_plan&, matrix<const fp16>, const output_part&);

}  // namespace rotoscale::detail
