// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/quantize_state.hpp.
#include "gpu/api/quantize_state.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/dialect/packed.hpp"
#include "gpu/quantize/state_kernels.hpp"

namespace rotoscale::gpu {

status update_scales(const nn::scaling_state& state, const nn::delayed_scaling& rule, stream s) {
  if (state.count == 0) return {};
  if (state.history_length < 1) return {error_code::bad_extent, "state.history_length", "must be 1 or more"};
  const struct {
    const float* memory;
    const char* name;
  } arrays[] = {{state.scale, "state.scale"},
                {state.scale_inverse, "state.scale_inverse"},
                {state.amax, "state.amax"},
                {state.history, "state.history"},
                {state.largest, "state.largest"}};
  for (const auto& a : arrays) {
    if (status bad = check_pointer(a.memory, a.name); !bad.ok()) return bad;
  }
  if (status bad = check_ready(s); !bad.ok()) return bad;
  return launch(update_scales_kernel, blocks(state.count), blocks(state_threads), 0, s, state, rule);
}

status current_scale(const float* amax, const format& element, float* scale, float* scale_inverse, stream s) {
  if (status bad = check_pointer(amax, "amax"); !bad.ok()) return bad;
  if (status bad = check_pointer(scale, "scale"); !bad.ok()) return bad;
  if (status bad = check_pointer(scale_inverse, "scale_inverse"); !bad.ok()) return bad;
  if (status bad = check_ready(s); !bad.ok()) return bad;
  const float largest = decode(element, element.max_code());
  return launch(current_scale_kernel, blocks(1), blocks(1), 0, s, amax, largest, scale, scale_inverse);
}

status round_bf16(matrix<const float> source, bf16* to, stream s) {
  const index_t rows = source.extent(0), columns = source.extent(1);
  if (rows < 0 || columns < 0 || source.stride(1) != 1) {
    return {error_code::bad_extent, "source", "rows must be contiguous"};
  }
  if (rows == 0 || columns == 0) return {};
  if (status bad = check_pointer(source.data, "source"); !bad.ok()) return bad;
  if (status bad = check_pointer(to, "to"); !bad.ok()) return bad;
  if (status bad = check_ready(s); !bad.ok()) return bad;
  const bool vectors = reinterpret_cast<std::uintptr_t>(source.data) % 16 == 0 && source.stride(0) % 4 == 0 &&
                       columns % 4 == 0 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0;
  const index_t groups = rows * ((columns + 3) / 4), needed = (groups + state_threads - 1) / state_threads;
  const round_arguments a{source.data, source.stride(0), rows, columns, reinterpret_cast<std::uint16_t*>(to), vectors};
  return launch(round_bf16_kernel, blocks(needed < 4096 ? needed : 4096), blocks(state_threads), 0, s, a);
}

status estimate_gradient(const gemm_operand& w, const float* values, float* gradient, stream s) {
  if (w.block == 0) return {error_code::bad_option, "w.block", "must not be 0"};
  if (w.rows == 0 || w.k == 0) return {};
  if (status bad = check_pointer(w.scales, "w.scales"); !bad.ok()) return bad;
  if (status bad = check_pointer(values, "values"); !bad.ok()) return bad;
  if (status bad = check_pointer(gradient, "gradient"); !bad.ok()) return bad;
  if (status bad = check_ready(s); !bad.ok()) return bad;
  const index_t needed = (w.rows * w.k + state_threads - 1) / state_threads;
  const estimate_arguments a{w.scale,        w.rows,   w.k,      w.block_rows, w.block,
                             w.scale_stride, w.scales, w.factor, values,       gradient};
  return launch(estimate_gradient_kernel, blocks(needed < 8192 ? needed : 8192), blocks(state_threads), 0, s, a);
}

}  // namespace rotoscale::gpu
