// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// State that all calls share: the kernels for this processor and the thread pool.
#pragma once

#include <memory>

#include "kernels.hpp"

namespace rotoscale::python {

/// The kernels for the processor's instruction set.
const kernel_table& kernels();

/// The pool that calls use. It is made at the first call, with a thread per processor.
std::shared_ptr<thread_pool> pool();

/// Replaces the pool. 0 means one thread per processor. Calls in flight keep theirs.
void set_threads(int threads);

}  // namespace rotoscale::python
