// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Feeds files to a fuzz target without libFuzzer, so that any compiler can replay a corpus or a failing input.
//
// `replay TARGET PATH...`   A folder stands for its files, in order of name.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "target.hpp"

int main(int argc, char** argv) {
  const auto* const target = argc < 2 ? nullptr : rotoscale::fuzz::target::find(argv[1]);
  if (target == nullptr) {
    std::printf("usage: replay TARGET PATH...\n");
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (int i = 2; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      paths.emplace_back(argv[i]);
      continue;
    }
    const auto first = paths.size();
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) paths.push_back(entry.path());
    std::sort(paths.begin() + static_cast<std::ptrdiff_t>(first), paths.end());
  }
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    if (!file.is_open()) {
      std::printf("cannot open %s\n", path.c_str());
      return 1;
    }
    std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());  // before the call: a failure aborts
    std::fflush(stdout);
    (*target)(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs\n", paths.size());
  return paths.empty() ? 1 : 0;
}
