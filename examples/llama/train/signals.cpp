// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "train/signals.hpp"

namespace rotoscale::llama_program {

namespace {

volatile sig_atomic_t noted = 0;

extern "C" void note_signal(int signal) {
  if (noted != 0) {
    // Blocked until this handler returns, and deadly then.
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  noted = signal;
}

}  // namespace

signal_guard::signal_guard() {
  noted = 0;
  for (std::size_t i = 0; i < handled.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(handled[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(handled[i], &action, nullptr);
  }
}

signal_guard::~signal_guard() {
  for (std::size_t i = 0; i < handled.size(); ++i) ::sigaction(handled[i], &before_[i], nullptr);
}

void throw_if_interrupted() {
  if (noted != 0) throw interruption{noted};
}

std::string signal_name(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "a signal";
}

}  // namespace rotoscale::llama_program
