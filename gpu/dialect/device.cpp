// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Implements gpu/api/device.hpp with the runtime of the build's mode.
#include "gpu/api/device.hpp"

#include <chrono>
#include <mutex>
#include <vector>

#include "gpu/dialect/arch.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/dialect/ranges.hpp"

#if defined(ROTOSCALE_CUDA)  // defined by hip.hpp
#include <dlfcn.h>
#endif

namespace rotoscale::gpu {

namespace {

#if defined(ROTOSCALE_GPU_HOST)

hipError_t query(int, device_info& device) {
  device = {arch::host, 2};  // few, so that a block of a small test computes several tiles
  return hipSuccess;
}

#elif defined(ROTOSCALE_CUDA)

hipError_t query(int index, device_info& device) {
  int major = 0, minor = 0;
  hipError_t error = hipDeviceGetAttribute(&device.processors, hipDeviceAttributeMultiprocessorCount, index);
  if (error == hipSuccess) error = hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, index);
  if (error == hipSuccess) error = hipDeviceGetAttribute(&minor, hipDeviceAttributeComputeCapabilityMinor, index);
  device.arch = major == 9 && minor == 0 ? arch::sm_90 : arch::other;
  return error;
}

#else

hipError_t query(int index, device_info& device) {
  hipDeviceProp_t properties;
  const hipError_t error = hipGetDeviceProperties(&properties, index);
  if (error != hipSuccess) return error;
  device = {arch_from_name(properties.gcnArchName), properties.multiProcessorCount};
  return hipSuccess;
}

#endif

}  // namespace

const char* build_mode() {
#if defined(ROTOSCALE_GPU_HOST)
  return "host";
#elif defined(ROTOSCALE_CUDA)
  return "cuda";
#else
  return "hip";
#endif
}

const char* to_text(arch a) { return traits_of(a).name; }

status count_devices(int& count) {
  count = 0;
  const hipError_t error = hipGetDeviceCount(&count);
  if (error != hipSuccess) return {error_code::no_device, "", hipGetErrorString(error)};
  if (count == 0) return {error_code::no_device, "", "no device"};
  return {};
}

status select_device(int index) {
  int count = 0;
  if (status s = count_devices(count); !s.ok()) return s;
  if (index < 0 || index >= count) return {error_code::no_device, "index", "there are not so many devices"};
  return to_status(hipSetDevice(index));
}

status current_device(device_info& device) {
  static std::mutex mutex;
  static std::vector<device_info> known;  // by index; 0 processors: not queried yet
  const std::scoped_lock lock(mutex);
  if (known.empty()) {
    int count = 0;
    if (status s = count_devices(count); !s.ok()) return s;
    known.resize(static_cast<std::size_t>(count));
  }
  int index = 0;
  hipError_t error = hipGetDevice(&index);
  if (error != hipSuccess) return to_status(error);
  device_info& here = known[static_cast<std::size_t>(index)];
  if (here.processors == 0) {
    device_info found;
    error = query(index, found);
    if (error != hipSuccess) return to_status(error);
    here = {found.arch, found.processors < 1 ? 1 : found.processors};
  }
  device = here;
  return {};
}

status allocate(void*& memory, std::size_t bytes) {
  memory = nullptr;
  return bytes == 0 ? status{} : to_status(hipMalloc(&memory, bytes));
}
status release(void* memory) { return memory == nullptr ? status{} : to_status(hipFree(memory)); }

status allocate_pinned(void*& memory, std::size_t bytes) {
  memory = nullptr;
  return bytes == 0 ? status{} : to_status(hipHostMalloc(&memory, bytes, 0));
}
status release_pinned(void* memory) { return memory == nullptr ? status{} : to_status(hipHostFree(memory)); }

status upload(void* device, const void* host, std::size_t bytes, stream s) {
  return bytes == 0 ? status{} : to_status(hipMemcpyAsync(device, host, bytes, hipMemcpyHostToDevice, native(s)));
}
status download(void* host, const void* device, std::size_t bytes, stream s) {
  return bytes == 0 ? status{} : to_status(hipMemcpyAsync(host, device, bytes, hipMemcpyDeviceToHost, native(s)));
}
status copy(void* to, const void* from, std::size_t bytes, stream s) {
  return bytes == 0 ? status{} : to_status(hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToDevice, native(s)));
}
status copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t width,
                 std::size_t rows, stream s) {
  if (width == 0 || rows == 0) return {};
  return to_status(hipMemcpy2DAsync(to, to_stride, from, from_stride, width, rows, hipMemcpyDeviceToDevice, native(s)));
}
status fill(void* memory, std::uint8_t byte, std::size_t bytes, stream s) {
  return bytes == 0 ? status{} : to_status(hipMemsetAsync(memory, byte, bytes, native(s)));
}

void begin_range(const char* name) { begin_native_range(name); }
void end_range() { end_native_range(); }

status create(stream& s, bool joins_null_stream) {
  hipStream_t made = nullptr;
  const hipError_t error = hipStreamCreateWithFlags(&made, joins_null_stream ? 0u : hipStreamNonBlocking);
  s.handle = made;
  return to_status(error);
}
status destroy(stream s) { return s.handle == nullptr ? status{} : to_status(hipStreamDestroy(native(s))); }
status synchronize(stream s) { return to_status(hipStreamSynchronize(native(s))); }
status synchronize() { return to_status(hipDeviceSynchronize()); }

#if defined(ROTOSCALE_GPU_HOST)

namespace {
using time_point = std::chrono::steady_clock::time_point;
}  // namespace

status create(event& e, bool timed) {
  e.handle = timed ? new time_point : nullptr;
  return {};
}
status destroy(event e) {
  delete static_cast<time_point*>(e.handle);
  return {};
}
status record(event e, stream) {
  if (e.handle != nullptr) *static_cast<time_point*>(e.handle) = std::chrono::steady_clock::now();
  return {};
}
status wait(stream, event) { return {}; }
status synchronize(event) { return {}; }
status elapsed(event from, event to, float& microseconds) {
  if (from.handle == nullptr || to.handle == nullptr) return {error_code::bad_option, "event", "is not timed"};
  const auto time = *static_cast<const time_point*>(to.handle) - *static_cast<const time_point*>(from.handle);
  microseconds = std::chrono::duration<float, std::micro>(time).count();
  return {};
}
status device_name(std::string& name) {
  name = "the host";
  return {};
}
status driver_version(std::string& version) {
  version = "no driver";
  return {};
}
status memory_info(std::size_t&, std::size_t&) {
  return {error_code::unsupported_device, "", "a build for the host has no memory of its own"};
}

#else

namespace {

hipEvent_t native(event e) { return static_cast<hipEvent_t>(e.handle); }

#if defined(ROTOSCALE_CUDA)
/// Returns the driver version from NVML, or an empty string without NVML.
std::string driver_number() {
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  const auto begin = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
  const auto end = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlShutdown"));
  const auto number = reinterpret_cast<int (*)(char*, unsigned)>(::dlsym(library, "nvmlSystemGetDriverVersion"));
  char text[96] = "";
  if (begin != nullptr && end != nullptr && number != nullptr && begin() == 0) {
    if (number(text, sizeof text) != 0) text[0] = '\0';
    end();
  }
  ::dlclose(library);
  return text;
}
#endif

}  // namespace

status create(event& e, bool timed) {
  hipEvent_t made = nullptr;
  const hipError_t error = hipEventCreateWithFlags(&made, timed ? 0u : hipEventDisableTiming);
  e.handle = made;
  return to_status(error);
}
status destroy(event e) { return e.handle == nullptr ? status{} : to_status(hipEventDestroy(native(e))); }
status record(event e, stream s) { return to_status(hipEventRecord(native(e), native(s))); }
status wait(stream s, event e) { return to_status(hipStreamWaitEvent(native(s), native(e), 0)); }
status synchronize(event e) { return to_status(hipEventSynchronize(native(e))); }
status elapsed(event from, event to, float& microseconds) {
  float milliseconds = 0.0f;
  const hipError_t error = hipEventElapsedTime(&milliseconds, native(from), native(to));
  microseconds = milliseconds * 1000.0f;
  return to_status(error);
}
status device_name(std::string& name) {
  int index = 0;
  hipError_t error = hipGetDevice(&index);
  hipDeviceProp_t properties;
  if (error == hipSuccess) error = hipGetDeviceProperties(&properties, index);
  if (error == hipSuccess) name = properties.name;
  return to_status(error);
}
status driver_version(std::string& version) {
  int number = 0;
  const hipError_t error = hipDriverGetVersion(&number);
  const auto text = [](int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); };
#if defined(ROTOSCALE_CUDA)
  const std::string own = driver_number();
  version = (own.empty() ? "" : "driver " + own + ", ") + "CUDA " + text(number / 1000, number / 10 % 100);
#else
  version = "HIP " + text(number / 10000000, number / 100000 % 100);
#endif
  return to_status(error);
}
status memory_info(std::size_t& free, std::size_t& total) { return to_status(hipMemGetInfo(&free, &total)); }

#endif

#if defined(ROTOSCALE_GPU_HOST)

status begin_capture(stream) { return {error_code::unsupported_device, "", "a build for the host has no graphs"}; }
status end_capture(stream s, graph&) { return begin_capture(s); }
status replay(graph, stream s) { return begin_capture(s); }
status destroy(graph) { return {}; }

#else

status begin_capture(stream s) { return to_status(hipStreamBeginCapture(native(s), hipStreamCaptureModeThreadLocal)); }
status end_capture(stream s, graph& g) {
  hipGraph_t recorded = nullptr;
  hipGraphExec_t made = nullptr;
  hipError_t error = hipStreamEndCapture(native(s), &recorded);
  if (error == hipSuccess) error = hipGraphInstantiateWithFlags(&made, recorded, 0);
  if (recorded != nullptr) (void)hipGraphDestroy(recorded);
  g.handle = made;
  return to_status(error);
}
status replay(graph g, stream s) { return to_status(hipGraphLaunch(static_cast<hipGraphExec_t>(g.handle), native(s))); }
status destroy(graph g) {
  return g.handle == nullptr ? status{} : to_status(hipGraphExecDestroy(static_cast<hipGraphExec_t>(g.handle)));
}

#endif

}  // namespace rotoscale::gpu
