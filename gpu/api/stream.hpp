// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The queue that a launcher puts its work on.
#pragma once

namespace rotoscale::gpu {

/// A runtime's own stream (cudaStream_t, hipStream_t) without its type. The default is the null stream. In a build for
/// the host there is one stream, and work is done when the call returns.
struct stream {
  void* handle = nullptr;  ///< the runtime's: cudaStream_t, hipStream_t; null: the null stream
};

}  // namespace rotoscale::gpu
