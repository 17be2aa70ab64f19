// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The current device, its memory and its streams, for programs without a toolkit's headers.
// Thin functions over the runtime that the library was built for. In a build for the host, device memory is process
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Architectures with their own kernels. `host`: a build without a toolkit, whose kernels run on the CPU.
enum class arch : std::uint8_t { other, host, sm_90, gfx942, gfx950 };

/// "sm_90", "gfx942", "gfx950", "host" or "other".
const char* to_text(arch a);

/// Properties of a device that launchers use.
struct device_info {
  gpu::arch arch = gpu::arch::other;  ///< which kernels it runs
  int processors = 0;                 ///< number of SMs or CUs
};

/// The build's backend: "cuda", "hip" or "host".
const char* build_mode();
/// Number of devices. no_device without a device or driver.
status count_devices(int& count);
/// Sets the calling thread's current device.
status select_device(int index);
/// The runtime's name of the current device, e.g. "NVIDIA H200".
status device_name(std::string& name);
/// The driver and the newest API version that it supports, e.g. "driver 580.159.04, CUDA 13.0" or "HIP 7.0". "no
/// driver" on the host.
status driver_version(std::string& version);
/// Properties of the current device. The runtime is queried once per device.
status current_device(device_info& device);

/// Allocates device memory aligned to 256 bytes. With zero bytes the pointer may be null.
status allocate(void*& memory, std::size_t bytes);
/// Allocates `count` elements.
template <class T>
status allocate(T*& memory, std::size_t count) {
  void* raw = nullptr;
  const status s = allocate(raw, count * sizeof(T));
  memory = static_cast<T*>(raw);
  return s;
}
/// Free and total bytes of the current device. unsupported_device in a build for the host.
status memory_info(std::size_t& free, std::size_t& total);
/// Frees memory after the device's work has completed. Null is ok.
status release(void* memory);

/// Allocates pinned host memory. Uploads from it and downloads to it are asynchronous.
status allocate_pinned(void*& memory, std::size_t bytes);
/// Frees memory of allocate_pinned. Null is ok.
status release_pinned(void* memory);

/// Copies host to device on a stream. The host memory must not change before synchronize.
status upload(void* device, const void* host, std::size_t bytes, stream s = {});
/// Copies device to host. The host memory is valid after synchronize.
status download(void* host, const void* device, std::size_t bytes, stream s = {});
status copy(void* to, const void* from, std::size_t bytes, stream s = {});  ///< device to device
/// Copies `rows` rows of `width` bytes, device to device. Strides are in bytes.
status copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t width,
                 std::size_t rows, stream s = {});
/// Sets every byte of device memory to `byte`.
status fill(void* memory, std::uint8_t byte, std::size_t bytes, stream s = {});

/// Creates a stream. It synchronizes implicitly with the null stream only if `joins_null_stream`.
status create(stream& s, bool joins_null_stream = false);
/// Waits for the stream's work, then destroys the stream.
status destroy(stream s);
/// Waits for the stream's work. Returns its error, or an earlier one.
status synchronize(stream s);
/// Waits for all work of the current device.
status synchronize();

/// An event on a stream. In a build for the host work completes at once, so an event is empty or holds a time.
struct event {
  void* handle = nullptr;  ///< the runtime's
};
/// Creates an event. `timed` events support `elapsed`, at a small cost.
status create(event& e, bool timed = false);
status destroy(event e);           ///< null is ok
status record(event e, stream s);  ///< marks the stream's work so far
status wait(stream s, event e);    ///< later work on the stream waits for the event
status synchronize(event e);       ///< waits for the event; returns an earlier error
/// Microseconds between two completed timed events.
status elapsed(event from, event to, float& microseconds);

/// Begins a named range of this thread's work for a profiler: NVTX on CUDA, rocTX on HIP if its library is found.
/// Ranges nest. No effect without such a library, or in a build for the host.
void begin_range(const char* name);
/// Ends this thread's innermost range.
void end_range();

/// Recorded work of a stream, which can be replayed any number of times.
struct graph {
  void* handle = nullptr;  ///< the runtime's
};
/// Starts recording `s`: work is recorded and not run, until end_capture. A build for the host has no graphs
/// (unsupported_device).
status begin_capture(stream s);
/// Returns the work recorded since begin_capture. A null graph if recording failed.
status end_capture(stream s, graph& g);
/// Runs the recorded work on `s`.
status replay(graph g, stream s);
/// Frees the graph.
status destroy(graph g);

}  // namespace rotoscale::gpu
