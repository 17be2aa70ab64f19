// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory of large results. A freed block serves the next result of its size, because new pages cost as much time as
// quantization.
#pragma once

#include <cstddef>

namespace rotoscale::python {

/// Results of this size or more take memory from here.
inline constexpr std::size_t large_result = std::size_t{1} << 20;

/// A block of memory in huge pages, if the system has them.
struct memory_block {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// An uninitialised block of at least `bytes`. Throws std::bad_alloc.
memory_block take_memory(std::size_t bytes);

/// Keeps the block for a later result. At most 128 MiB are kept.
void give_memory(memory_block block);

}  // namespace rotoscale::python
