// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// --device of a program built for a missing device. The error names the device and the alternatives; `auto` continues
// on the CPU and says so. This file replaces the device library and the front.
#define ROTOSCALE_TRAIN_DEVICES
#include "examples/train/device.cpp"

#include <doctest/doctest.h>

#include <sstream>

namespace {
std::string mode;
rotoscale::gpu::status answer;
int made_for = -1, devices = 0;
}  // namespace

const char* const rotoscale::program::program_name = "mini-llama";

namespace rotoscale::gpu {
const char* build_mode() { return mode.c_str(); }
status count_devices(int& count) {
  count = devices;
  return devices > 0 ? status{} : status{error_code::no_device, "", "no device"};
}
status make_device_backend(const train_options& options, std::unique_ptr<nn::backend>& made) {
  made_for = options.device;
  if (answer.ok()) made = nn::make_cpu_backend(3);
  return answer;
}
}  // namespace rotoscale::gpu

namespace device_test {

using namespace rotoscale;
using program::device_choice;

void show_devices() {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) unsetenv(name);
}

/// Result of choose_backend: its error, the device's failure, or the line of its note.
struct result {
  std::string refusal, failure, line;
  int threads = 0;
};
result choose(const std::string& built_for, const gpu::status& device, const std::string& name) {
  mode = built_for;
  answer = device;
  made_for = -1;
  const std::ostringstream said;
  std::streambuf* const before = std::cerr.rdbuf(said.rdbuf());
  result r;
  try {
    const program::chosen_backend chosen = program::choose_backend({name, 5, 1});
    r.threads = chosen.ops->threads();
    CHECK(said.str().empty());
    chosen.say_note();
  } catch (const io::error& e) {
    r.refusal = e.what();
  } catch (const nn::backend_error& e) {
    CHECK(e.of_device());
    r.failure = e.what();
  }
  std::cerr.rdbuf(before);
  r.line = said.str();
  return r;
}
const gpu::status none{gpu::error_code::no_device, "", "no CUDA-capable device is detected"},
    lost{gpu::error_code::device_error, "", "is lost"}, full{gpu::error_code::out_of_memory, "", "out of memory"},
    missing{gpu::error_code::no_device, "index", "there are not so many devices"},
    other{gpu::error_code::unsupported_device, "", "this build has kernels for sm_90, gfx942 and gfx950 alone"};

TEST_CASE("a device that is not there, or has no kernels, is refused, with what would do") {
  CHECK(choose("cuda", none, "cuda").refusal ==
        "--device cuda: no CUDA-capable device is detected; --device cpu needs no device");
  CHECK(made_for == 5);
  CHECK(choose("hip", other, "hip").refusal ==
        "--device hip: this build has kernels for sm_90, gfx942 and gfx950 alone; --device cpu needs no device");
  CHECK(choose("cuda", {}, "hip").refusal ==
        "--device hip: this program was built for cpu and cuda (Meson option gpu)");
  CHECK(made_for == -1);
}

TEST_CASE("a device that fails, or has no memory, is no bad input") {
  show_devices();
  CHECK(choose("cuda", lost, "cuda").failure == "--device cuda: is lost; --device cpu needs no device");
  CHECK(choose("hip", full, "hip").failure == "--device hip: out of memory; --device cpu needs no device");
  CHECK(choose("hip", full, "auto").line == "mini-llama: --device auto: out of memory; going on with the CPU\n");
}

TEST_CASE("a number of no device is refused by its flag, with how many there are") {
  show_devices();
  devices = 1;
  CHECK(choose("cuda", missing, "cuda").refusal ==
        "--device-number 5: there is 1 device, number 0; --device cpu needs no device");
  CHECK(choose("cuda", other, "cuda").refusal.starts_with("--device cuda: this build has kernels for "));
  devices = 4;
  CHECK(choose("hip", missing, "auto").line ==
        "mini-llama: --device-number 5: there are 4 devices, from 0; going on with the CPU\n");
  devices = 0;
}

TEST_CASE("auto takes the device, or the CPU and says why in a line, unless devices are hidden") {
  show_devices();
  for (const gpu::status& device : {none, other}) {
    const result r = choose("cuda", device, "auto");
    CHECK(r.refusal.empty());
    CHECK(r.threads == 1);
    CHECK(r.line == "mini-llama: --device auto: " + device.message() + "; going on with the CPU\n");
  }
  for (const char* name : {"auto", "cuda"}) {
    const result there = choose("cuda", {}, name);
    CHECK(there.threads == 3);
    CHECK(there.line.empty());
  }
  for (const char* hidden : {"", "-1"}) {
    setenv("HIP_VISIBLE_DEVICES", hidden, 1);
    const result quiet = choose("hip", none, "auto");
    CHECK(quiet.threads == 1);
    CHECK(quiet.line.empty());
    CHECK_FALSE(choose("hip", none, "hip").refusal.empty());
  }
  unsetenv("HIP_VISIBLE_DEVICES");
  // Host mode is for tests: auto never chooses it.
  const result host = choose("host", {}, "auto");
  CHECK(host.threads == 1);
  CHECK(host.line.empty());
  CHECK(made_for == -1);
  CHECK(choose("host", {}, "host").threads == 3);
  CHECK(choose("cuda", none, "cpu").line.empty());
}

}  // namespace device_test
