// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The stream on which a launcher puts its work.
#pragma once

namespace rotoscale::gpu {

/// A runtime's stream (cudaStream_t, hipStream_t) without its type. The default is the null stream. In a build for the
/// host there is one stream, and work is complete when the call returns.
struct stream {
  void* handle = nullptr;  ///< cudaStream_t or hipStream_t; null: the null stream
};

}  // namespace rotoscale::gpu
