// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rotoscale/llama/merge.hpp"

#include <iostream>

#include "exit_codes.hpp"
#include "merge.hpp"

namespace rotoscale::llama_program {

namespace fs = std::filesystem;

fs::path find_adapter(const fs::path& path) {
  fs::path found = llama::find_checkpoint(path);
  if (!llama::is_adapter(found)) throw io::error(found.string(), "holds no adapters (adapter_model.safetensors)");
  return found;
}

int merge(const merge_options& o) {
  const llama::merged_weights merged(llama::find_weights(o.base), find_adapter(o.adapter));
  std::error_code failed;
  if (fs::exists(o.out, failed)) throw io::error(o.out, "exists");
  llama::write_merged(merged, o.out, o.dtype);
  std::cout << o.out << ": " << merged.parameters().base_count() << " weights\n";
  return exit_ok;
}

}  // namespace rotoscale::llama_program
