// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api/nn.hpp for layers whose result is cast to FP8 in the same kernel.
#include "gpu/nn/fp8_rows.hpp"

#include "gpu/api/nn.hpp"
#include "gpu/nn/prepare_producers.hpp"
#include "gpu/quantize/prepare_fp8.hpp"

namespace rotoscale::gpu {

using namespace detail;

/// Casts m × n results of each output; codes of the outputs are adjacent in a row. Launches `before` first, after all
/// checks.
template <class Producer, class Before>
status quantize_produced(const produced_rows<Producer>& produced, const fp8_target& to, index_t m, index_t n, stream s,
                         const Before& before) {
  constexpr index_t outputs = Producer::outputs;
  const fp8_options& o = to.options;
  if (m > max_extent || outputs * n > max_extent) return {error_code::bad_extent, "x", "extents must be 0 to 2^24"};
  if (status c = check_fp8_options<typename Producer::storage>(o); !c.ok()) return c;
  if (o.rounding != rounding::nearest_even) return {error_code::bad_option, "options.rounding", "must be nearest_even"};
  if (status c = check_fp8_scale(to.scale); !c.ok()) return c;
  fp8_rows_args<Producer> a;
  static_cast<produced_rows<Producer>&>(a) = produced;
  a.rows = static_cast<unsigned>(m);
  a.columns = static_cast<unsigned>(n);
  a.cast = make_fp8_cast(o, to.scale);
  a.whole_vectors = a.vectors;
  for (index_t i = 0; i < outputs; ++i) {
    fp8_output& own = a.out[i];
    if (status c = prepare_fp8_output(to.out, m, outputs * n, own); !c.ok()) return c;
    if (own.rows != nullptr) own.rows += i * n;
    if (own.columns != nullptr) own.columns += i * n * own.column_stride;
    a.whole_vectors = a.whole_vectors && has_vectors(own);
  }
  unsigned tiles = 0;
  if (status c = count_fp8_tiles(m, n, a.tiles_across, tiles); !c.ok()) return c;
  if (status c = before(); !c.ok()) return c;
  const auto kernel = o.element == formats::e4m3 ? fp8_rows_kernel<Producer, e4m3> : fp8_rows_kernel<Producer, e5m2>;
  return launch_rows(kernel, tiles, fp8_threads, s, a);
}

ROTOSCALE_INSTANTIATE_QUANTIZED(fp8_target)

}  // namespace rotoscale::gpu
