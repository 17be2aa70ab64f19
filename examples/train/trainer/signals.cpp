// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/signals.hpp"

#include <algorithm>

namespace rotoscale::program {

namespace {

volatile sig_atomic_t noted = 0;
int guards = 0;  // that exist

bool is_warning(int signal) {
  for (std::size_t i = first_warning; i < handled_signals.size(); ++i) {
    if (signal == handled_signals[i]) return true;
  }
  return false;
}

extern "C" void note_signal(int signal) {
  if (is_warning(signal) && noted != 0) return;
  if (noted != 0 && !is_warning(noted)) {
    // Blocked until this handler returns, and deadly then.
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  noted = signal;
}

}  // namespace

signal_guard::signal_guard() {
  if (guards++ > 0) return;
  noted = 0;
  for (std::size_t i = 0; i < handled_signals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(handled_signals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(handled_signals[i], &action, nullptr);
  }
}

signal_guard::~signal_guard() {
  if (--guards > 0) return;
  for (std::size_t i = 0; i < handled_signals.size(); ++i) ::sigaction(handled_signals[i], &before_[i], nullptr);
}

signals_blocked::signals_blocked() {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int signal : handled_signals) ::sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

int noted_signal() { return noted; }

void throw_if_interrupted() {
  if (noted != 0) throw interruption{noted};
}

std::string signal_name(int signal) {
  constexpr const char* names[handled_signals.size()] = {"SIGTERM", "SIGINT",  "SIGHUP",
                                                         "SIGUSR1", "SIGUSR2", "SIGXCPU"};
  const auto* const found = std::find(handled_signals.begin(), handled_signals.end(), signal);
  return found == handled_signals.end() ? "a signal" : names[found - handled_signals.begin()];
}

}  // namespace rotoscale::program
