// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "rotoscale/io/error.hpp"

namespace rotoscale::llama_program {

namespace fs = std::filesystem;

fs::path run_directory::checkpoint(std::int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(step));
  return checkpoints() / name;
}

void run_directory::create() const {
  std::error_code failed;
  fs::create_directories(path_, failed);
  if (!fs::is_directory(path_)) throw io::error(path_.string(), "cannot create the directory");
}

void run_directory::require_unused(const std::string& advice) const {
  for (const fs::path& file : {log(), checkpoints(), config()}) {
    if (fs::exists(file)) throw io::error(file.string(), "exists" + advice);
  }
}

void run_directory::prune(std::int64_t step, int keep) const {
  std::error_code failed;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoints())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < names.size(); ++i) {
    const fs::path old = checkpoints() / names[i];
    if (old != checkpoint(step)) fs::remove_all(old, failed);
  }
}

}  // namespace rotoscale::llama_program
