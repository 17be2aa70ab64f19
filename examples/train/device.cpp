// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <cstdlib>
#include <utility>

#include "examples/standard_streams.hpp"
#include "examples/threads.hpp"
#include "front.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"

#if defined(ROTOSCALE_TRAIN_DEVICES)
#include "gpu/api/train.hpp"
#endif

namespace rotoscale::program {

#if defined(ROTOSCALE_TRAIN_DEVICES)
namespace {

/// Does the environment hide all devices? Then `auto` takes the CPU without a note.
bool hides_devices() {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && (value[0] == '\0' || std::string(value) == "-1")) return true;
  }
  return false;
}

/// Error for a device that could not be opened, named by its flag.
std::string fault_of(const device_choice& choice, const gpu::status& s) {
  int count = 0;
  if (s.code == gpu::error_code::no_device && gpu::count_devices(count).ok() && choice.number >= count) {
    const std::string there =
        count == 1 ? "is 1 device, number 0" : "are " + std::to_string(count) + " devices, from 0";
    return "--device-number " + std::to_string(choice.number) + ": there " + there;
  }
  return "--device " + choice.name + ": " + s.message();
}

}  // namespace

std::unique_ptr<nn::backend> make_device(const device_choice& choice, gpu::train_options options,
                                         const std::string& advice) {
  options.device = choice.number;
  options.graphs &= choice.graphs;
  std::unique_ptr<nn::backend> made;
  const gpu::status s = gpu::make_device_backend(options, made);
  if (s.ok()) return made;
  if (gpu::is_of_device(s)) throw nn::backend_error("--device " + choice.name, s.message() + advice, true);
  throw io::error(fault_of(choice, s) + advice);
}
#endif

void chosen_backend::say_note() const {
  if (!note.empty()) print_error(program_name, note);
}

chosen_backend choose_backend(const device_choice& choice) {
  const std::string where = "--device " + choice.name;
  std::string note;
  const auto make_cpu = [&] { return naming_threads([&] { return nn::make_cpu_backend(choice.threads); }); };
  if (choice.name == "cpu") return {make_cpu(), note};
#if defined(ROTOSCALE_TRAIN_DEVICES)
  const std::string built_for = gpu::build_mode();
  const bool any = choice.name == "auto";
  if (choice.name == built_for || (any && built_for != "host")) {
    gpu::train_options o;
    o.keeps_codes = choice.keeps_codes;
    o.wait_for_each = choice.wait_for_each;
    try {
      return {make_device(choice, o, any ? "; going on with the CPU" : "; --device cpu needs no device"), note};
    } catch (const std::runtime_error& e) {
      if (!any) throw;
      if (!hides_devices()) note = e.what();
    }
  } else if (!any) {
    throw io::error(where, "this program was built for cpu and " + built_for + " (Meson option gpu)");
  }
#else
  if (choice.name != "auto") throw io::error(where, "this program was built for the CPU alone (Meson option gpu)");
#endif
  return {make_cpu(), note};
}

}  // namespace rotoscale::program
