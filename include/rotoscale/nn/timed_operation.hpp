// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A line of a backend's timing. Profiles are made of these.
#pragma once

#include "rotoscale/nn/operations.hpp"

namespace rotoscale::nn {

/// Time of one operation, in the order of its queue.
struct timed_operation {
  const char* name = "";            ///< of its row
  op_class kind = op_class::other;  ///< class of the operation
  double microseconds = 0.0;        ///< on the device; 0 in a build of device code for the host
  std::size_t bytes = 0;            ///< minimum bytes read and written; 0: not counted
  double operations = 0.0;          ///< multiplications and additions of a GEMM, else 0
};

/// An operation without its time. Bytes and products are counted if `counted`.
template <class Op>
timed_operation describe_operation(const typename Op::in& i, const typename Op::out& o, bool counted) {
  timed_operation what{Op::info.name, Op::info.kind};
  if (!counted) return what;
  what.bytes = bytes_moved<Op>(i, o);
  if constexpr (requires { Op::products(i, o); }) what.operations = 2.0 * Op::products(i, o);
  return what;
}

}  // namespace rotoscale::nn
