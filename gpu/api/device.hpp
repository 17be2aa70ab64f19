// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The current device, its memory and its streams, so that a program needs no toolkit's header: thin functions over the
// runtime that the library was built for. In a build for the host, memory is the process's own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// The architectures that have kernels of their own. `host`: a build without a toolkit, whose kernels run on the CPU.
enum class arch : std::uint8_t { other, host, sm_90, gfx942, gfx950 };

/// "sm_90", "gfx942", "gfx950", "host" or "other".
const char* to_text(arch a);

/// What launchers need to know of a device.
struct device_info {
  gpu::arch arch = gpu::arch::other;  ///< which kernels it runs
  int processors = 0;                 ///< multiprocessors or compute units
};

/// What this library was built for: "cuda", "hip" or "host".
const char* build_mode();
/// How many devices there are; no_device where there is none, or no driver.
status count_devices(int& count);
/// Makes a device the calling thread's current one.
status select_device(int index);
/// What the runtime calls the current device, e.g. "NVIDIA H200".
status device_name(std::string& name);
/// The driver and the newest interface that it knows, e.g. "driver 580.159.04, CUDA 13.0" or "HIP 7.0"; "no driver" on
/// the host.
status driver_version(std::string& version);
/// What launchers know of the current device. The runtime is asked once a device.
status current_device(device_info& device);

/// Device memory, aligned to 256 bytes. Zero bytes give a pointer that may be null.
status allocate(void*& memory, std::size_t bytes);
/// Memory for `count` elements.
template <class T>
status allocate(T*& memory, std::size_t count) {
  void* raw = nullptr;
  const status s = allocate(raw, count * sizeof(T));
  memory = static_cast<T*>(raw);
  return s;
}
/// Bytes of the current device that are free, and that it has; unsupported_device in a build for the host.
status memory_info(std::size_t& free, std::size_t& total);
/// Waits for the device's work first; null is ok.
status release(void* memory);

/// Host memory that the device's copy engines reach: uploads from it and downloads to it do not hold up the caller.
status allocate_pinned(void*& memory, std::size_t bytes);
/// Of allocate_pinned; null is ok.
status release_pinned(void* memory);

/// Copies on a stream. Host memory may be written again, or read, after synchronize.
status upload(void* device, const void* host, std::size_t bytes, stream s = {});
/// From device to host memory.
status download(void* host, const void* device, std::size_t bytes, stream s = {});
status copy(void* to, const void* from, std::size_t bytes, stream s = {});  ///< within the device
/// Every byte of device memory becomes `byte`.
status fill(void* memory, std::uint8_t byte, std::size_t bytes, stream s = {});

/// Creates a stream without implicit synchronization with the null stream; `joins_null_stream`: with it.
status create(stream& s, bool joins_null_stream = false);
/// Waits for its work.
status destroy(stream s);
/// Waits for the stream's work, and says what went wrong in it or before.
status synchronize(stream s);
/// Waits for all work of the current device.
status synchronize();

/// A point in a stream. In a build for the host, whose work is done at once, it is nothing, or a time if it is timed.
struct event {
  void* handle = nullptr;  ///< the runtime's
};
/// An event; `timed`: elapsed can ask for its time, which costs a little.
status create(event& e, bool timed = false);
status destroy(event e);           ///< null is ok
status record(event e, stream s);  ///< what was put on the stream so far
status wait(stream s, event e);    ///< what comes on the stream waits for the event
status synchronize(event e);       ///< waits for it, and says what went wrong before
/// Microseconds between two timed events that are past.
status elapsed(event from, event to, float& microseconds);

/// Begins a named range of this thread's work, for a profiler to show with what is launched in it: NVTX on CUDA, rocTX
/// on HIP where its library is found. Nothing happens without them, or in a build for the host. Ranges nest.
void begin_range(const char* name);
/// Ends the range that this thread began last.
void end_range();

/// Work that was recorded on a stream, to be run as often as wanted.
struct graph {
  void* handle = nullptr;  ///< the runtime's
};
/// From here to end_capture, what is put on `s` is recorded and not run. A build for the host has no graphs
/// (unsupported_device).
status begin_capture(stream s);
/// What was recorded since begin_capture; a null graph where that failed.
status end_capture(stream s, graph& g);
/// Runs the recorded work on `s`.
status replay(graph g, stream s);
/// Frees it.
status destroy(graph g);

}  // namespace rotoscale::gpu
