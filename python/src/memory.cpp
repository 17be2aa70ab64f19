// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace rotoscale::python {
namespace {

constexpr std::size_t most_kept = std::size_t{128} << 20, huge_page = std::size_t{2} << 20;

struct kept_blocks {
  std::mutex mutex;
  std::vector<memory_block> blocks;  ///< oldest first
  std::size_t bytes = 0;

  memory_block remove(std::vector<memory_block>::iterator at) {
    const memory_block block = *at;
    bytes -= block.bytes;
    blocks.erase(at);
    return block;
  }
};

/// Never destroyed: arrays may be freed while the process exits.
kept_blocks& kept() {
  static kept_blocks& all = *new kept_blocks;
  return all;
}

memory_block new_block(std::size_t bytes) {
  bytes = (bytes + huge_page - 1) / huge_page * huge_page;
  void* data = std::aligned_alloc(huge_page, bytes);
  if (data == nullptr) throw std::bad_alloc();
#ifdef __linux__
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
  return {data, bytes};
}

}  // namespace

memory_block take_memory(std::size_t bytes) {
  {
    kept_blocks& k = kept();
    const std::lock_guard lock(k.mutex);
    for (std::size_t i = k.blocks.size(); i-- > 0;) {  // the newest is most likely in a cache
      const std::size_t size = k.blocks[i].bytes;
      if (size >= bytes && size - bytes <= bytes / 4 + huge_page) {
        return k.remove(k.blocks.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  return new_block(bytes);
}

void give_memory(memory_block block) {
  kept_blocks& k = kept();
  const std::lock_guard lock(k.mutex);
  k.blocks.push_back(block);
  k.bytes += block.bytes;
  while (k.bytes > most_kept) std::free(k.remove(k.blocks.begin()).data);
}

}  // namespace rotoscale::python
