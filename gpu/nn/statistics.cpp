// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api/statistics.hpp.
#include "gpu/nn/statistics.hpp"

#include <algorithm>

#include "gpu/api/statistics.hpp"
#include "gpu/gemm/simt_operand.hpp"
#include "gpu/nn/check.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

index_t chunk_count(index_t n) { return (n + compare_chunk - 1) / compare_chunk; }

/// Largest finite number of a format.
float largest_number(const format& f) { return static_cast<float>(decode(f, f.max_code())); }

}  // namespace

std::size_t observe_workspace_bytes(index_t rows) {
  return static_cast<std::size_t>(rows) * (2 * sizeof(double) + sizeof(observed_row));
}

status observe(nn::const_tensor_view source, const gemm_operand& stored, const observed_form& how,
               nn::operand_statistics* to, void* workspace, std::size_t workspace_bytes, stream s) {
  if (status c = check_rows(source, 2, "source"); !c.ok()) return c;
  observe_args a;
  if (status c = take_operand(stored, names_of_stored, a.stored); !c.ok()) return c;
  if (stored.rows != source.extent(how.columns ? 1 : 0) || stored.k != source.extent(how.columns ? 0 : 1)) {
    return {error_code::bad_extent, "stored", "must have the extents of the source in its orientation"};
  }
  const bool known = how.points == 16 || how.points == 32 || how.points == 64 || how.points == 128;
  if (how.points != 0 && (!known || stored.k % how.points != 0)) {
    return {error_code::bad_option, "how.points", "must be 0, or 16, 32, 64 or 128 that divide k"};
  }
  if (status c = check_pointer(to, "to"); !c.ok()) return c;
  if (status c = check_optional(how.state, "how.state"); !c.ok()) return c;
  const std::size_t needed = observe_workspace_bytes(stored.rows);
  if (status c = check_workspace(workspace, workspace_bytes, needed, 16); !c.ok()) return c;
  a.source = source.data;
  a.row_step = source.stride(how.columns ? 1 : 0);
  a.k_step = source.stride(how.columns ? 0 : 1);
  a.rows = static_cast<unsigned>(stored.rows);
  a.k = static_cast<unsigned>(stored.k);
  a.block = static_cast<unsigned>(stored.block);
  a.largest = largest_number(stored.element);
  a.points = how.points;
  a.run = std::max(static_cast<unsigned>(how.points), a.block);
  a.draws = how.draws;
  a.state = how.state;
  a.signal = static_cast<double*>(workspace);
  a.noise = a.signal + stored.rows;
  a.found = reinterpret_cast<observed_row*>(a.noise + stored.rows);
  a.to = to;
  if (status c = check_ready(s); !c.ok()) return c;
  if (status c = check_code(observe_sum_kernel); !c.ok()) return c;
  const status launched = with_storage(source.type, [&](auto t) {
    const auto grid = static_cast<std::uint64_t>((stored.rows + observed_rows - 1) / observed_rows);
    const auto kernel = a.points > 32 ? observe_kernel<decltype(t), 8> : observe_kernel<decltype(t), 2>;
    return launch_rows(kernel, grid, row_threads, s, a);
  });
  return launched.ok() ? launch_rows(observe_sum_kernel, 1, tree_threads, s, a) : launched;
}

template <>
std::size_t workspace_bytes<op::compare>(const op::compare::in& i, const op::compare::out&) {
  return static_cast<std::size_t>(compare_sums * chunk_count(i.n)) * sizeof(double);
}

template <>
status launch<op::compare>(const device_call& call, const op::compare::in& i, const op::compare::out& o) {
  if (i.n < 0) return {error_code::bad_extent, "n", "must not be negative"};
  if (i.n != 0) {
    if (status c = check_pointer(i.value, "value"); !c.ok()) return c;
    if (status c = check_pointer(i.reference, "reference"); !c.ok()) return c;
  }
  if (status c = check_pointer(o.to, "to"); !c.ok()) return c;
  const std::size_t needed = workspace_bytes<op::compare>(i, o);
  if (status c = check_workspace(call.workspace, call.bytes, needed, 16); !c.ok()) return c;
  if (status c = check_ready(call.s); !c.ok()) return c;
  if (status c = check_code(compare_sum_kernel); !c.ok()) return c;
  const compare_args a{i.value, i.reference, i.n, chunk_count(i.n), static_cast<double*>(call.workspace), o.to};
  const auto grid = static_cast<std::uint64_t>((a.chunks + observed_rows - 1) / observed_rows);
  if (status c = launch_rows(compare_kernel, grid, row_threads, call.s, a); !c.ok()) return c;
  return launch_rows(compare_sum_kernel, 1, tree_threads, call.s, a);
}

}  // namespace rotoscale::gpu
