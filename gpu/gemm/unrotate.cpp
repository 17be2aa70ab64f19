// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launcher unrotate_operand of gpu/api/dequantize.hpp.
#include "gpu/gemm/unrotate.hpp"

#include "gpu/api/dequantize.hpp"
#include "gpu/gemm/simt_operand.hpp"

namespace rotoscale::gpu {

using namespace detail;

status unrotate_operand(const gemm_operand& from, int points, const nn::form_draws& draws, const nn::step_state* state,
                        bf16* to, index_t stride, stream stream) {
  unrotate_arguments a;
  if (status s = take_operand(from, names_of_from, a.from); !s.ok()) return s;
  if (from.block == 0) return {error_code::bad_option, "from.block", "must not be 0"};
  if (points != 0 && points != 16 && points != 32 && points != 64 && points != 128) {
    return {error_code::bad_option, "points", "must be 0, 16, 32, 64 or 128"};
  }
  a.points = points;
  a.run = points > from.block ? points : from.block;
  if (from.k % a.run != 0) return {error_code::bad_extent, "from.k", "must be whole rotations"};
  if (from.rows == 0 || from.k == 0) return {};
  if (stride < from.k) return {error_code::bad_extent, "stride", "must not be less than a row"};
  if (status s = check_optional(state, "state"); !s.ok()) return s;
  if (status s = check_pointer(to, "to"); !s.ok()) return s;
  if (status s = check_ready(stream); !s.ok()) return s;
  a.k = static_cast<int>(from.k);
  a.draws = draws;
  a.state = state;
  a.to = reinterpret_cast<std::uint16_t*>(to);
  a.stride = stride;
  const index_t width = a.points > 32 ? 4 * subgroup_lanes : subgroup_lanes;
  const index_t items = from.rows * ((from.k + width - 1) / width);
  const index_t needed = (items * subgroup_lanes + simt_threads - 1) / simt_threads;
  return launch(a.points > 32 ? unrotate_kernel<4> : unrotate_kernel<1>, blocks(needed < 8192 ? needed : 8192),
                blocks(simt_threads), 0, stream, a);
}

}  // namespace rotoscale::gpu
