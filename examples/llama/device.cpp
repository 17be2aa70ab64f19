// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <cstdlib>
#include <utility>

#include "examples/standard_streams.hpp"
#include "examples/threads.hpp"
#include "exit_codes.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"

#if defined(ROTOSCALE_LLAMA_DEVICES)
#include "gpu/api/train.hpp"
#endif

namespace rotoscale::llama_program {

#if defined(ROTOSCALE_LLAMA_DEVICES)
namespace {

/// Does the environment say that no device is to be seen? Whoever hides them knows what `auto` comes to.
bool hides_devices() {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && (value[0] == '\0' || std::string(value) == "-1")) return true;
  }
  return false;
}

}  // namespace
#endif

void chosen_backend::say_note() const {
  if (!note.empty()) print_error(program_name, note);
}

chosen_backend choose_backend(const device_choice& choice) {
  const std::string where = "--device " + choice.name;
  std::string note;
  const auto make_cpu = [&] { return naming_threads([&] { return nn::make_cpu_backend(choice.threads); }); };
  if (choice.name == "cpu") return {make_cpu(), note};
#if defined(ROTOSCALE_LLAMA_DEVICES)
  const std::string built_for = gpu::build_mode();
  const bool any = choice.name == "auto";
  if (choice.name == built_for || (any && built_for != "host")) {
    gpu::train_options o;
    o.device = choice.number;
    o.graphs = choice.graphs;
    o.wait_for_each = choice.wait_for_each;
    std::unique_ptr<nn::backend> made;
    const gpu::status s = gpu::make_device_backend(o, made);
    if (s.ok()) return {std::move(made), note};
    if (!any) throw io::error(where, s.message() + "; --device cpu needs no device");
    if (!hides_devices()) note = where + ": " + s.message() + "; going on with the CPU";
  } else if (!any) {
    throw io::error(where, "this program was built for cpu and " + built_for + " (Meson option gpu)");
  }
#else
  if (choice.name != "auto") throw io::error(where, "this program was built for the CPU alone (Meson option gpu)");
#endif
  return {make_cpu(), note};
}

}  // namespace rotoscale::llama_program
