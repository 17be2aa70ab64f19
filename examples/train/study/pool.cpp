// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "study/pool.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"
#include "trainer/signals.hpp"

namespace rotoscale::program {

namespace {

/// In the child: becomes the program. Calls nothing that may lock.
[[noreturn]] void become(const char* program, char* const* arguments, const char* output, pid_t parent) {
#ifdef __linux__
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
  if (::getppid() != parent) ::_exit(127);  // killed before the line above
  const int out = ::open(output, O_WRONLY | O_CREAT | O_TRUNC, 0666), in = ::open("/dev/null", O_RDONLY);
  if (out >= 0 && in >= 0) {
    ::dup2(in, STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(program, arguments);
  }
  ::_exit(127);
}

pid_t start(const process& p) {
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) throw io::error("/proc/self/exe", failed.message());
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& a : p.arguments) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) become(program.c_str(), arguments.data(), p.output.c_str(), parent);
  if (child < 0) throw io::error(program.string(), "cannot start a process: " + std::generic_category().message(errno));
  return child;
}

struct running {
  pid_t id = 0;  ///< 0: the slot is free
  std::size_t number = 0;
};

/// Asks all to end, and waits for them.
void end_all(std::vector<running>& slots) {
  for (const running& r : slots) {
    if (r.id != 0) ::kill(r.id, SIGTERM);
  }
  for (running& r : slots) {
    if (r.id == 0) continue;
    int status = 0;
    while (::waitpid(r.id, &status, 0) < 0 && errno == EINTR) continue;
    r.id = 0;
  }
}

}  // namespace

void run_processes(std::size_t slots, const std::function<std::optional<process>(std::size_t)>& next,
                   const std::function<void(std::size_t, int)>& ended) {
  const signal_guard signals;
  std::vector<running> all(slots);
  try {
    for (bool any = true; any;) {
      any = false;
      for (std::size_t i = 0; i < slots; ++i) {
        if (all[i].id == 0) {
          if (const auto p = next(i)) all[i] = {start(*p), p->number};
        }
        any = any || all[i].id != 0;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      throw_if_interrupted();
      for (running& r : all) {
        int status = 0;
        if (r.id == 0 || ::waitpid(r.id, &status, WNOHANG) != r.id) continue;
        r.id = 0;
        ended(r.number, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
      }
    }
  } catch (...) {
    end_all(all);
    throw;
  }
}

}  // namespace rotoscale::program
