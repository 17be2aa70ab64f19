// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Device side of the probe. With clang and no SDK, only the kernels are compiled.
#include <cstring>

#include "gpu/dialect/hip.hpp"
#include "examples/probe/device.hpp"

#if defined(__CUDACC__)
#include "examples/probe/nvidia.hpp"
#else
#include "examples/probe/amd.hpp"
#endif

#if !defined(ROTOSCALE_NO_HIP_SDK)

namespace rotoscale::probe {

namespace {

/// Device memory, freed with the object.
class device_bytes {
 public:
  explicit device_bytes(std::size_t size) { status = hipMalloc(&data, size == 0 ? 1 : size); }
  explicit device_bytes(const std::vector<std::uint8_t>& from) : device_bytes(from.size()) {
    if (status == hipSuccess && !from.empty()) {
      status = hipMemcpy(data, from.data(), from.size(), hipMemcpyHostToDevice);
    }
  }
  device_bytes(const device_bytes&) = delete;
  device_bytes& operator=(const device_bytes&) = delete;
  ~device_bytes() {
    if (data != nullptr) (void)hipFree(data);
  }
  std::uint8_t* bytes() const { return static_cast<std::uint8_t*>(data); }
  void* data = nullptr;
  hipError_t status;
};

/// Waits for the kernel and copies its results. Returns an error message, empty on success.
std::string fetched(const device_bytes& from, std::vector<std::uint8_t>& to) {
  hipError_t status = hipGetLastError();
  if (status == hipSuccess) status = hipDeviceSynchronize();
  if (status == hipSuccess) status = hipMemcpy(to.data(), from.data, to.size(), hipMemcpyDeviceToHost);
  return status == hipSuccess ? std::string() : hipGetErrorString(status);
}

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
  device_bytes a(cases.a), metadata(cases.metadata), b(cases.b), c(cases.c), d(cases.d.size()),
      scales_a(cases.scales_a), scales_b(cases.scales_b);
  for (const device_bytes* m : {&a, &metadata, &b, &c, &d, &scales_a, &scales_b}) {
    if (m->status != hipSuccess) return hipGetErrorString(m->status);
  }
  if (hipMemset(d.data, 0xA5, cases.d.size()) != hipSuccess) return "poisoning the results failed";
  for (const device_entry& e : entries) {
    if (std::string(e.what.name) != instruction.name) continue;
    e.launch({a.bytes(), metadata.bytes(), b.bytes(), c.bytes(), d.bytes(), cases.tiles,
              instruction.form.scaled ? scales_a.bytes() : nullptr,
              instruction.form.scaled ? scales_b.bytes() : nullptr});
    return fetched(d, cases.d);
  }
  return "this device has no such instruction";
}

std::string run_exp2_on_device([[maybe_unused]] std::uint32_t first, [[maybe_unused]] std::uint32_t stride,
                               [[maybe_unused]] std::vector<float>& results) {
#if defined(__CUDACC__)
  std::vector<std::uint8_t> bytes(results.size() * sizeof(float));
  const device_bytes y(bytes.size());
  if (y.status != hipSuccess) return hipGetErrorString(y.status);
  if (hipMemset(y.data, 0xA5, bytes.size()) != hipSuccess) return "poisoning the results failed";
  const auto count = static_cast<std::uint32_t>(results.size());
  exp2_kernel<<<(count + 255) / 256, 256>>>(first, stride, count, static_cast<float*>(y.data));
  const std::string problem = fetched(y, bytes);
  std::memcpy(results.data(), bytes.data(), bytes.size());
  return problem;
#else
  return "this device has no ex2.approx";
#endif
}

std::string run_gemm_on_device(const probed_instruction& instruction, [[maybe_unused]] const gemm_schedule& schedule,
                               [[maybe_unused]] probed_gemm& problem) {
#if defined(__CUDACC__)
  device_bytes a(problem.codes_a), b(problem.codes_b), d(problem.codes_d.size());
  for (const device_bytes* m : {&a, &b, &d}) {
    if (m->status != hipSuccess) return hipGetErrorString(m->status);
  }
  if (hipMemset(d.data, 0xA5, problem.codes_d.size()) != hipSuccess) return "poisoning the results failed";
  const auto bytes = [&](std::int64_t k) { return k * element_bytes(instruction.a); };
  for (const device_entry& e : entries) {
    if (std::string(e.what.name) != instruction.name || e.launch_gemm == nullptr) continue;
    const std::int64_t part = schedule.part == 0 ? problem.k : schedule.part;
    const std::int64_t promotion = schedule.promotion == 0 ? part : schedule.promotion;
    e.launch_gemm({a.bytes(), b.bytes(), d.bytes(), problem.m, problem.n, bytes(problem.k), bytes(part),
                   bytes(promotion)});
    return fetched(d, problem.codes_d);
  }
#endif
  return std::string("no GEMM is made of ") + instruction.name;
}

}  // namespace rotoscale::probe

#endif
