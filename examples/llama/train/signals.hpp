// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// SIGTERM, SIGINT and SIGHUP, and a batch system's early warnings SIGUSR1, SIGUSR2 and SIGXCPU, as a request to end at
// the next safe place. POSIX.
#pragma once

#include <signal.h>

#include <array>
#include <string>

namespace rotoscale::llama_program {

/// Thrown where a run may end because a signal has come.
struct interruption {
  int signal = 0;
};

/// What ends a run at the next safe place; those from first_warning on announce another one.
inline constexpr std::array<int, 6> handled_signals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
inline constexpr std::size_t first_warning = 3;

/// While one exists, the first of these signals is only noted; a second one ends the process at once, as if nobody had
/// handled it. Warnings end nothing at once, and the signal that they announce counts as the first. A signal that was
/// ignored before (nohup) stays ignored. One within another adds nothing to it, and what has been noted stays so until
/// the outer one goes.
class signal_guard {
 public:
  signal_guard();
  signal_guard(const signal_guard&) = delete;
  signal_guard& operator=(const signal_guard&) = delete;
  ~signal_guard();

 private:
  std::array<struct sigaction, handled_signals.size()> before_{};
};

/// While one exists, this thread and those that it starts leave these signals to others.
class signals_blocked {
 public:
  signals_blocked();
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;
  ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// Throws interruption if a signal has been noted.
void throw_if_interrupted();

/// "SIGTERM"
std::string signal_name(int signal);

}  // namespace rotoscale::llama_program
