// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fibers of host mode: stacks that one CPU thread changes between. POSIX ucontext begins them; where GCC's and Clang's
// non-local jumps may cross stacks they make every later change, since swapcontext asks the kernel for the signal mask
// each time, which took three quarters of what host mode took.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdlib>

// Sanitizers follow swapcontext.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROTOSCALE_JUMPS_BETWEEN_STACKS 0
#elif defined(__has_feature)
#define ROTOSCALE_JUMPS_BETWEEN_STACKS \
  (__x86_64__ && !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#elif defined(__x86_64__)
#define ROTOSCALE_JUMPS_BETWEEN_STACKS 1
#else
#define ROTOSCALE_JUMPS_BETWEEN_STACKS 0
#endif

namespace rotoscale::gpu::host::detail {

/// Where a stack was left. Stays at its address.
struct fiber_context {
  /// The next change to it begins `entry`, which never returns, on `stack`.
  void begin(unsigned char* stack, std::size_t bytes, void (*entry)()) {
    if (getcontext(&state) != 0) std::abort();
    state.uc_stack.ss_sp = stack;
    state.uc_stack.ss_size = bytes;
    state.uc_link = nullptr;
    makecontext(&state, entry, 0);
    is_new = true;
  }

  ucontext_t state;
  bool is_new = false;
  void* jump[5] = {};
};

#if ROTOSCALE_JUMPS_BETWEEN_STACKS
/// Not part of change_stack: a function may not hold both halves of a jump.
[[gnu::noinline, noreturn]] inline void leave_for(fiber_context& to) {
  if (to.is_new) {
    to.is_new = false;
    setcontext(&to.state);
    std::abort();
  }
  __builtin_longjmp(to.jump, 1);
}
/// Leaves the current stack, to be returned to through `from`, for `to`.
[[gnu::noinline]] inline void change_stack(fiber_context& from, fiber_context& to) {
  if (__builtin_setjmp(from.jump) == 0) leave_for(to);
}
#else
inline void change_stack(fiber_context& from, fiber_context& to) {
  if (swapcontext(&from.state, &to.state) != 0) std::abort();
}
#endif
#undef ROTOSCALE_JUMPS_BETWEEN_STACKS

}  // namespace rotoscale::gpu::host::detail
