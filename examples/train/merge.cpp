// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rotoscale/train/merge.hpp"

#include <iostream>

#include "data/tokenizer_files.hpp"
#include "front.hpp"
#include "merge.hpp"
#include "progress.hpp"
#include "rotoscale/models/any.hpp"
#include "trainer/state.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

fs::path find_adapter(const fs::path& path) {
  fs::path found = train::find_checkpoint(path);
  if (!train::is_adapter(found)) throw io::error(found.string(), "holds no adapters (adapter_model.safetensors)");
  return found;
}

train::lora_config read_adapter_options(const fs::path& directory) {
  std::error_code failed;
  const train::lora_config from_files = train::read_adapter_config(directory);
  if (!fs::exists(directory / "trainer_state.json", failed)) return from_files;
  return read_trainer_state(directory).run.lora.value_or(from_files);
}

std::optional<std::string> find_difference(const train::lora_config& wanted, const fs::path& directory) {
  const train::lora_config own = train::read_adapter_config(directory);
  const auto number = [](double x) { return nlohmann::ordered_json(x).dump(); };
  const auto list = [](const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ",") + name;
    return all;
  };
  const std::string whose = " of " + directory.string();
  if (wanted.rank != own.rank) {
    return "rank: " + std::to_string(wanted.rank) + " is not the " + std::to_string(own.rank) + whose;
  }
  if (wanted.alpha != own.alpha) return "alpha: " + number(wanted.alpha) + " is not the " + number(own.alpha) + whose;
  if (train::unfused_targets(wanted) != train::unfused_targets(own)) {
    return "targets: " + list(wanted.targets) + " are not the " + list(own.targets) + whose;
  }
  return std::nullopt;
}

int merge(const merge_options& o) {
  const train::weights_location base = train::find_weights(o.base);
  const train::merged_weights merged(
      models::architecture_of(models::read_config(io::read_json(base.config()), base.config().string(), o.passed_keys)),
      base, find_adapter(o.adapter));
  std::error_code failed;
  if (fs::exists(o.out, failed)) throw io::error(o.out, "exists");
  progress_line line;
  const auto files = read_tokenizer_files(base.directory);
  train::write_merged(merged, o.out, o.dtype, line.counter(o.out, "merging"), [&](const fs::path& directory) {
    for (const auto& [name, bytes] : files) io::write_file_atomically(directory / name, bytes);
  });
  line.end();
  std::cout << o.out << ": " << merged.parameters().base_count() << " weights\n";
  return exit_ok;
}

}  // namespace rotoscale::program
