// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The probe's device side. With clang and no SDK only the kernels are compiled.
#include "gpu/hip.hpp"
#include "gpu/probe/device.hpp"

#if defined(__CUDACC__)
#include "gpu/probe/nvidia.hpp"
#else
#include "gpu/probe/amd.hpp"
#endif

#if !defined(ROTOSCALE_NO_HIP_SDK)

namespace rotoscale::gpu {

namespace {

/// Device memory for the length of a call.
class device_bytes {
 public:
  explicit device_bytes(std::size_t size) { status = hipMalloc(&data, size == 0 ? 1 : size); }
  device_bytes(const device_bytes&) = delete;
  device_bytes& operator=(const device_bytes&) = delete;
  ~device_bytes() {
    if (status == hipSuccess) (void)hipFree(data);
  }
  void* data = nullptr;
  hipError_t status;
};

}  // namespace

std::string device_description(std::string& why) {
  int count = 0;
  const hipError_t status = hipGetDeviceCount(&count);
  if (status != hipSuccess || count == 0) {
    why = status != hipSuccess ? hipGetErrorString(status) : "no device";
    return {};
  }
  hipDeviceProp_t properties;
  int driver = 0, runtime = 0;
  (void)hipGetDeviceProperties(&properties, 0);
  (void)hipDriverGetVersion(&driver);
  (void)hipRuntimeGetVersion(&runtime);
  return std::string(properties.name) + ", compute " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor) + ", driver API " + std::to_string(driver) + ", runtime " +
         std::to_string(runtime);
}

std::vector<probed_instruction> device_instructions() {
  std::vector<probed_instruction> all;
  for (const device_entry& e : entries) {
    if (runs_here(e)) all.push_back(e.what);
  }
  return all;
}

std::string run_on_device(const probed_instruction& instruction, probe_cases& cases) {
  device_bytes a(cases.a.size()), b(cases.b.size()), c(cases.c.size()), d(cases.d.size());
  for (const device_bytes* m : {&a, &b, &c, &d}) {
    if (m->status != hipSuccess) return hipGetErrorString(m->status);
  }
  const auto copy = [](device_bytes& to, const std::vector<std::uint8_t>& from) {
    return hipMemcpy(to.data, from.data(), from.size(), hipMemcpyHostToDevice) == hipSuccess;
  };
  if (!copy(a, cases.a) || !copy(b, cases.b) || !copy(c, cases.c)) return "copying to the device failed";
  if (hipMemset(d.data, 0xA5, cases.d.size()) != hipSuccess) return "poisoning the results failed";
  for (const device_entry& e : entries) {
    if (std::string(e.what.name) != instruction.name) continue;
    const auto bytes = [](device_bytes& m) { return static_cast<std::uint8_t*>(m.data); };
    e.launch({bytes(a), bytes(b), bytes(c), bytes(d), cases.tiles});
    hipError_t status = hipGetLastError();
    if (status == hipSuccess) status = hipDeviceSynchronize();
    if (status == hipSuccess) status = hipMemcpy(cases.d.data(), d.data, cases.d.size(), hipMemcpyDeviceToHost);
    return status == hipSuccess ? std::string() : hipGetErrorString(status);
  }
  return "this device has no such instruction";
}

}  // namespace rotoscale::gpu

#endif
