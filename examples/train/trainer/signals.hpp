// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// SIGTERM, SIGINT, SIGHUP, and the early warnings SIGUSR1, SIGUSR2 and SIGXCPU of batch systems. Each asks the run to
// stop at the next safe place. POSIX.
#pragma once

#include <signal.h>

#include <array>
#include <string>

namespace rotoscale::program {

/// Thrown at a safe place after a signal.
struct interruption {
  int signal = 0;
};

/// Signals that stop a run at the next safe place. From first_warning on they are warnings, which precede another
/// signal.
inline constexpr std::array<int, 6> handled_signals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
inline constexpr std::size_t first_warning = 3;

/// While a guard exists, the first signal is noted. A second one ends the process at once, as without the guard.
/// Warnings never end it at once, and the signal after a warning counts as the first. Signals ignored before (nohup)
/// stay ignored. Nested guards have no effect; a noted signal stays noted until the outer guard ends.
class signal_guard {
 public:
  signal_guard();
  signal_guard(const signal_guard&) = delete;
  signal_guard& operator=(const signal_guard&) = delete;
  ~signal_guard();

 private:
  std::array<struct sigaction, handled_signals.size()> before_{};
};

/// While one exists, this thread and its new threads block these signals.
class signals_blocked {
 public:
  signals_blocked();
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;
  ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// The signal that has been noted; 0: none.
int noted_signal();

/// Throws interruption if a signal has been noted.
void throw_if_interrupted();

/// "SIGTERM"
std::string signal_name(int signal);

}  // namespace rotoscale::program
