// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The functions of NCCL that ranks use, with the values of its enumerations. RCCL has the same binary interface.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace rotoscale::gpu::nccl {

using comm = void*;  ///< ncclComm_t
using result = int;  ///< ncclResult_t
struct unique_id {   ///< ncclUniqueId
  char internal[128];
};
inline constexpr result success = 0, remote_error = 6, in_progress = 7;
enum data_type : int { int8 = 0, int64 = 4, float32 = 7 };  ///< ncclDataType_t
enum reduction : int { sum = 0, max = 2 };                  ///< ncclRedOp_t

/// Functions of nccl.h under their names there.
struct functions {
  result (*GetUniqueId)(unique_id*) = nullptr;
  result (*CommInitRank)(comm*, int ranks, unique_id, int rank) = nullptr;
  result (*CommAbort)(comm) = nullptr;
  result (*CommGetAsyncError)(comm, result*) = nullptr;
  const char* (*GetErrorString)(result) = nullptr;
  result (*GroupStart)() = nullptr;
  result (*GroupEnd)() = nullptr;
  result (*Send)(const void*, std::size_t, data_type, int peer, comm, void* stream) = nullptr;
  result (*Recv)(void*, std::size_t, data_type, int peer, comm, void* stream) = nullptr;
  result (*AllReduce)(const void*, void*, std::size_t, data_type, reduction, comm, void* stream) = nullptr;
  result (*ReduceScatter)(const void*, void*, std::size_t, data_type, reduction, comm, void* stream) = nullptr;
  result (*Reduce)(const void*, void*, std::size_t, data_type, reduction, int root, comm, void* stream) = nullptr;
};

/// Loads a library, which is never unloaded. Nullopt: it is not installed, or lacks a function.
inline std::optional<functions> load(const char* name) {
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  functions f;
  bool all = true;
  const auto find = [&](auto& function, const char* symbol) {
    void* const at = ::dlsym(library, symbol);
    all &= at != nullptr;
    std::memcpy(&function, &at, sizeof at);
  };
  find(f.GetUniqueId, "ncclGetUniqueId");
  find(f.CommInitRank, "ncclCommInitRank");
  find(f.CommAbort, "ncclCommAbort");
  find(f.CommGetAsyncError, "ncclCommGetAsyncError");
  find(f.GetErrorString, "ncclGetErrorString");
  find(f.GroupStart, "ncclGroupStart");
  find(f.GroupEnd, "ncclGroupEnd");
  find(f.Send, "ncclSend");
  find(f.Recv, "ncclRecv");
  find(f.AllReduce, "ncclAllReduce");
  find(f.ReduceScatter, "ncclReduceScatter");
  find(f.Reduce, "ncclReduce");
  // Two words a step need no multicast, whose state in the switch a killed process may leave behind. Ranks record
  // graphs by themselves, and registered buffers would make them wait for each other.
  for (const char* variable : {"NCCL_NVLS_ENABLE", "NCCL_GRAPH_REGISTER"}) (void)::setenv(variable, "0", 0);
  return all ? std::optional(f) : std::nullopt;
}

}  // namespace rotoscale::gpu::nccl
