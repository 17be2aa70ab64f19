// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fibers of host mode: stacks between which one CPU thread switches. ucontext starts a fiber. Later switches use
// __builtin_setjmp where it may cross stacks, because swapcontext makes a system call for the signal mask.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdlib>

// Sanitizers can follow swapcontext alone.
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

/// Saved context of a fiber. The object must not move.
struct fiber_context {
  /// Makes the next switch to this context call `entry`, which never returns, on `stack`.
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
/// Separate from change_stack, because a function must not contain both setjmp and longjmp.
[[gnu::noinline, noreturn]] inline void leave_for(fiber_context& to) {
  if (to.is_new) {
    to.is_new = false;
    setcontext(&to.state);
    std::abort();
  }
  __builtin_longjmp(to.jump, 1);
}
/// Saves the current stack in `from` and continues `to`.
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
