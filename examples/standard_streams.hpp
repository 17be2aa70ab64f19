// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a program that writes files does before anything else about its standard streams and about signals that would
// end it because it writes, and how every program says what is wrong. POSIX.
#pragma once

#include <fcntl.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "rotoscale/io/error.hpp"

namespace rotoscale {

/// The next file to be opened would take the descriptor of a standard stream that is closed, and messages would go into
/// it. Such a descriptor is opened here the wrong way round: to read from or write to the stream fails as before.
inline void occupy_standard_streams() {
  for (int stream = 0; stream < 3; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest number that is free, which is this one.
    if (::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY) != stream) std::abort();
  }
}

/// A write beyond the largest file that is allowed fails with EFBIG, which is reported.
inline void fail_beyond_file_limit() { ::signal(SIGXFSZ, SIG_IGN); }

/// A write to a pipe that nobody reads fails with EPIPE: work that can go on without its messages does.
inline void fail_at_closed_pipe() { ::signal(SIGPIPE, SIG_IGN); }

/// At a program's end: writes what is left of standard output, from streams and from stdio. Throws io::error where any
/// of it was lost, as on a full disk or where the stream is closed, so that the exit code says so.
inline void finish_standard_output() {
  const bool written = static_cast<bool>(std::cout.flush());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !written)
    throw io::error("standard output", "cannot write");
}

/// "program: what", one line on standard error whatever file names and arguments hold.
inline void print_error(const std::string& program, const std::string& what) {
  std::cerr << program << ": " << io::printable(what, what.size()) << "\n";
}

}  // namespace rotoscale
