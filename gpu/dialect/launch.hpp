// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernel launches and argument checks, with one interface in every mode that has host code. A launch allocates nothing
// and does not wait, so it can be captured in a graph. In host mode the kernel has run when it returns.
#pragma once

#include <cstdint>

#include "gpu/api/device.hpp"
#include "gpu/api/status.hpp"
#include "gpu/api/stream.hpp"
#include "gpu/dialect/hip.hpp"
#include "rotoscale/bits.hpp"

#if !defined(ROTOSCALE_NO_HIP_SDK)

namespace rotoscale::gpu {

// One namespace per mode: a test compiled in host mode may be linked with a library built for a device.
inline namespace ROTOSCALE_GPU_MODE {

inline hipStream_t native(stream s) { return static_cast<hipStream_t>(s.handle); }

/// Returns a grid or block of `count` along x, at most 2^31 - 1.
inline dim3 blocks(std::int64_t count) {
  ROTOSCALE_ASSERT(count >= 0 && count <= 0x7FFFFFFF);
  return {static_cast<unsigned>(count), 1, 1};
}

/// Checks that `pointer` is not null and a multiple of `alignment` (1, 2, 4, 8 or 16). The error names `argument`.
inline status check_pointer(const void* pointer, std::uintptr_t alignment, const char* argument) {
  if (pointer == nullptr) return {error_code::bad_pointer, argument, "must not be null"};
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    return {error_code::bad_pointer, argument,
            alignment == 16  ? "must be aligned to 16 bytes"
            : alignment == 8 ? "must be aligned to 8 bytes"
            : alignment == 4 ? "must be aligned to 4 bytes"
                             : "must be aligned to 2 bytes"};
  }
  return {};
}
/// The same with T's alignment.
template <class T>
status check_pointer(const T* pointer, const char* argument) {
  return check_pointer(pointer, alignof(T), argument);
}
/// The same, but the argument may be null.
template <class T>
status check_optional(const T* pointer, const char* argument) {
  return pointer == nullptr ? status{} : check_pointer(pointer, argument);
}

/// Checks that the workspace has `needed` bytes and is aligned to `alignment` (16 or 256).
inline status check_workspace(const void* workspace, std::size_t bytes, std::size_t needed, std::uintptr_t alignment) {
  if (needed == 0) return {};
  if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % alignment != 0) {
    return {
        error_code::bad_pointer, "workspace",
        alignment == 16 ? "must be device memory aligned to 16 bytes" : "must be device memory aligned to 256 bytes"};
  }
  if (bytes < needed) return {error_code::out_of_memory, "workspace_bytes", "less than the workspace that is needed"};
  return {};
}

inline status to_status(hipError_t error) {
  switch (error) {
    case hipSuccess: return {};
    case hipErrorInvalidDeviceFunction:
    case hipErrorNoBinaryForGpu:
      return {error_code::unsupported_device, "", "the build has no code for this device's architecture"};
    case hipErrorMemoryAllocation: return {error_code::out_of_memory, "", hipGetErrorString(error)};
    default: return {error_code::device_error, "", hipGetErrorString(error)};
  }
}

#if defined(ROTOSCALE_GPU_HOST)

/// Always succeeds in host mode.
inline status check_stream(stream) { return {}; }

/// Always succeeds in host mode.
template <class... Parameter>
status check_code(void (*)(Parameter...)) {
  return {};
}

template <class... Parameter, class... Argument>
status launch(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, stream,
              Argument... arguments) {
  const char* error_text = host::run_blocks(grid, block, shared_bytes, [&] { kernel(arguments...); });
  if (error_text != nullptr) return {error_code::device_error, "", error_text};
  return {};
}

/// Host mode runs kernels one after the other, so both are `launch`.
template <class... Parameter, class... Argument>
status launch_behind(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, stream s,
                     Argument... arguments) {
  return launch(kernel, grid, block, shared_bytes, s, arguments...);
}
template <class... Parameter, class... Argument>
status launch_behind_any(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, stream s,
                         Argument... arguments) {
  return launch(kernel, grid, block, shared_bytes, s, arguments...);
}

#else

/// Checks that the stream accepts work. Errors: its capture has failed, or it is the null stream while another stream
/// that synchronizes with it is being captured.
inline status check_stream(stream s) {
  hipStreamCaptureStatus capture;
  const hipError_t error = hipStreamIsCapturing(native(s), &capture);
  if (error != hipSuccess) return {error_code::bad_option, "stream", hipGetErrorString(error)};
  if (capture == hipStreamCaptureStatusInvalidated) return {error_code::bad_option, "stream", "its capture has failed"};
  return {};
}

/// Checks that the build has code of this kernel for the current device. For launchers whose first launch is another
/// kernel or a library call.
template <class... Parameter>
status check_code(void (*kernel)(Parameter...)) {
  hipFuncAttributes attributes;
  return to_status(hipFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

/// Permits shared memory above 48 KiB, of which a kernel may use up to 16 KiB statically.
inline status allow_shared(const void* function, std::size_t shared_bytes) {
  if (shared_bytes <= 32 * 1024) return {};
  return to_status(
      hipFuncSetAttribute(function, hipFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
}

/// Launches the kernel, with arguments converted to its parameters. Shared memory above 48 KiB is permitted first.
template <class... Parameter, class... Argument>
status launch(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, stream s,
              Argument... arguments) {
  const auto function = reinterpret_cast<const void*>(kernel);
  if (status allowed = allow_shared(function, shared_bytes); !allowed.ok()) return allowed;
  return [&](Parameter... parameters) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    return to_status(hipLaunchKernel(function, grid, block, addresses, shared_bytes, native(s)));
  }(arguments...);
}

/// Launches with programmatic dependent launch (PDL): on NVIDIA the kernel may start while the previous kernel ends.
/// Requires that the kernel calls wait_for_kernel_before, and that the previous launch is `launch` or of such a kernel.
template <class... Parameter, class... Argument>
status launch_behind(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, stream s,
                     Argument... arguments) {
#if defined(ROTOSCALE_CUDA)
  const auto function = reinterpret_cast<const void*>(kernel);
  if (status allowed = allow_shared(function, shared_bytes); !allowed.ok()) return allowed;
  return [&](Parameter... parameters) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = native(s);
    config.attrs = &early;
    config.numAttrs = 1;
    return to_status(cudaLaunchKernelExC(&config, function, addresses));
  }(arguments...);
#else
  return launch(kernel, grid, block, shared_bytes, s, arguments...);
#endif
}

/// launch_behind for the first kernel of a launcher, after any work of the caller. During capture it is `launch`,
/// because the previous work may be several graph nodes or no kernel.
template <class... Parameter, class... Argument>
status launch_behind_any(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, stream s,
                         Argument... arguments) {
  hipStreamCaptureStatus capture;
  if (status asked = to_status(hipStreamIsCapturing(native(s), &capture)); !asked.ok()) return asked;
  return capture == hipStreamCaptureStatusNone ? launch_behind(kernel, grid, block, shared_bytes, s, arguments...)
                                               : launch(kernel, grid, block, shared_bytes, s, arguments...);
}

#endif

/// Checks that there is a device and that the stream accepts work. Launchers call it after all other checks.
inline status check_ready(stream s) {
  device_info device;
  if (status found = current_device(device); !found.ok()) return found;
  return check_stream(s);
}

}  // namespace ROTOSCALE_GPU_MODE
}  // namespace rotoscale::gpu

#endif
