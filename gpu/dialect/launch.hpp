// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launching a kernel, the same in every mode that has host code. It allocates nothing and does not wait, so it can be
// captured in a graph; in host mode the kernel has run when it returns.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/api/status.hpp"

namespace rotoscale::gpu {

#if defined(ROTOSCALE_GPU_HOST)

/// Is there a device? The host always is one.
inline status check_device() { return {}; }
/// May work be put on this stream?
inline status check_stream(hipStream_t) { return {}; }
/// How many blocks run at once without sharing a processor; here, few enough that blocks of small tests work on several
/// tiles.
inline unsigned device_processors() { return 2; }

template <class... Parameter, class... Argument>
status launch(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, hipStream_t,
              Argument... arguments) {
  const char* wrong = host::run_blocks(grid, block, shared_bytes, [&] { kernel(arguments...); });
  if (wrong != nullptr) return {fault::device_error, "", wrong};
  return {};
}

#elif !defined(ROTOSCALE_NO_HIP_SDK)

inline status status_of(hipError_t error) {
  switch (error) {
    case hipSuccess: return {};
    case hipErrorInvalidDeviceFunction:
    case hipErrorNoBinaryForGpu:
      return {fault::unsupported_device, "", "the build has no code for this device's architecture"};
    case hipErrorMemoryAllocation: return {fault::out_of_memory, "", hipGetErrorString(error)};
    default: return {fault::device_error, "", hipGetErrorString(error)};
  }
}

/// Is there a device?
inline status check_device() {
  int count = 0;
  const hipError_t error = hipGetDeviceCount(&count);
  if (error != hipSuccess) return {fault::no_device, "", hipGetErrorString(error)};
  if (count == 0) return {fault::no_device, "", "no device"};
  return {};
}

/// May work be put on this stream? Not where its capture has failed; not on the null stream while another stream that
/// waits for it is being captured.
inline status check_stream(hipStream_t stream) {
  hipStreamCaptureStatus capture;
  const hipError_t error = hipStreamIsCapturing(stream, &capture);
  if (error != hipSuccess) return {fault::bad_option, "stream", hipGetErrorString(error)};
  if (capture == hipStreamCaptureStatusInvalidated) return {fault::bad_option, "stream", "its capture has failed"};
  return {};
}

/// Multiprocessors or compute units of the current device.
inline unsigned device_processors() {
  int device = 0, count = 0;
  if (hipGetDevice(&device) != hipSuccess ||
      hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device) != hipSuccess || count < 1) {
    return 1;  // slow, not wrong
  }
  return static_cast<unsigned>(count);
}

/// Has the build code of this kernel for the current device? For launchers that put work of others before it.
template <class... Parameter>
status check_code(void (*kernel)(Parameter...)) {
  hipFuncAttributes attributes;
  return status_of(hipFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

/// Arguments are converted to the kernel's parameters. Shared memory above 48 KiB is asked for.
template <class... Parameter, class... Argument>
status launch(void (*kernel)(Parameter...), dim3 grid, dim3 block, std::size_t shared_bytes, hipStream_t stream,
              Argument... arguments) {
  const auto function = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > 48 * 1024) {
    const hipError_t error =
        hipFuncSetAttribute(function, hipFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != hipSuccess) return status_of(error);
  }
  return [&](Parameter... parameters) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    return status_of(hipLaunchKernel(function, grid, block, addresses, shared_bytes, stream));
  }(arguments...);
}

#endif

}  // namespace rotoscale::gpu
