// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Protects programs that write files: closed standard streams, SIGPIPE, lost output. Also prints their errors. POSIX.
#pragma once

#include <fcntl.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "rotoscale/io/error.hpp"

namespace rotoscale {

/// If a standard stream is closed, the next opened file would take its descriptor and receive messages. So the
/// descriptor is opened here in the wrong direction: reads from it or writes to it still fail.
inline void occupy_standard_streams() {
  for (int stream = 0; stream < 3; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest number that is free, which is this one.
    if (::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY) != stream) std::abort();
  }
}

/// A write beyond the largest file that is allowed fails with EFBIG, which is reported.
inline void fail_beyond_file_limit() { ::signal(SIGXFSZ, SIG_IGN); }

/// Ignores SIGPIPE: a write to a closed pipe fails with EPIPE, and work may continue.
inline void fail_at_closed_pipe() { ::signal(SIGPIPE, SIG_IGN); }

/// Flushes standard output at the end of a program. Throws io::error if any of it was lost (full disk, closed stream),
/// so that the exit code tells.
inline void finish_standard_output() {
  const bool written = static_cast<bool>(std::cout.flush());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !written)
    throw io::error("standard output", "cannot write");
}

/// Prints "program: what" as one line, for any characters in file names and arguments. One write, since other processes
/// may share standard error.
inline void print_error(const std::string& program, const std::string& what) {
  std::cerr << program + ": " + io::printable(what, what.size()) + "\n";
}

}  // namespace rotoscale
