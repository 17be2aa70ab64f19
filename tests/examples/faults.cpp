// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD that traces a program's calls on files below its working directory, and fails at a chosen
// call. mini_llama_kill.py uses it to kill runs at every call and to fill their disk. Environment:
//
//   FAULTS_TRACE=FILE    one line per call: its name, the path, and the number of bytes or the new path
//   FAULTS_KILL_AT=N     SIGKILL instead of call N (from 1); a write or pwrite is done by half
//   FAULTS_MEMORY=N      aligned allocations of at least N bytes, a model's arenas, fail
//   FAULTS_THREADS=N     starting thread N (from 0) and later ones fails
//   FAULTS_FULL_AT=N     writes fail with ENOSPC from byte N on, counted over all calls
//   FAULTS_FULL_IN=PART  only in paths that contain PART
//   FAULTS_HOLD=N        fsync of checkpoint K < N waits until step K + 1 is logged, at most 20 s
//   FAULTS_SIGNAL_IN=TEXT, FAULTS_SIGNAL="N ..."
//                        signals N ... after the first write, or path of pwrite or mkdtemp, that contains TEXT

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

namespace {

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

long number_in(const char* name) {
  const char* text = ::getenv(name);
  return text == nullptr ? -1 : ::atol(text);
}

const std::string& folder() {
  static const std::string path = [] {
    char text[4096];
    return std::string(::getcwd(text, sizeof text) == nullptr ? "" : text) + "/";
  }();
  return path;
}

std::string path_of(int fd) {
  char text[4096];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text, sizeof text);
  return std::string(text, static_cast<std::size_t>(n < 0 ? 0 : n));
}

std::string path_at(int directory, const char* path) {
  if (path[0] == '/') return path;
  return (directory == AT_FDCWD ? folder() : path_of(directory) + "/") + path;
}

std::atomic<long> calls{0}, bytes{0}, threads{0}, logged{0};
std::atomic<bool> signalled{false};

/// Traces the call. True if the process is to be killed here. Calls on other files are not counted.
bool is_due(const char* call, const std::string& path, const std::string& more = "") {
  if (!path.starts_with(folder())) return false;
  static const char* const trace = ::getenv("FAULTS_TRACE");
  const long number = ++calls;
  if (trace != nullptr) {
    static const int fd = next<int (*)(const char*, int, ...)>("open")(trace, O_WRONLY | O_CREAT | O_APPEND, 0666);
    const std::string line = std::string(call) + "\t" + path.substr(folder().size()) + "\t" + more + "\n";
    if (next<ssize_t (*)(int, const void*, size_t)>("write")(fd, line.data(), line.size()) < 0) ::abort();
  }
  static const long kill_at = number_in("FAULTS_KILL_AT");
  return number == kill_at;
}

void visit(const char* call, const std::string& path, const std::string& more = "") {
  if (is_due(call, path, more)) ::raise(SIGKILL);
}

template <class Write>
ssize_t write_with_faults(const char* call, int fd, std::size_t count, const Write& write) {
  const std::string path = path_of(fd);
  if (!path.starts_with(folder())) return write(count);
  if (is_due(call, path, std::to_string(count))) {
    if (write(count / 2) >= 0) ::raise(SIGKILL);
  }
  static const long full_at = number_in("FAULTS_FULL_AT");
  static const char* const part = ::getenv("FAULTS_FULL_IN");
  if (part != nullptr && path.find(part) == path.npos) return write(count);
  const long before = bytes.fetch_add(static_cast<long>(count));
  if (full_at < 0 || before + static_cast<long>(count) <= full_at) return write(count);
  if (before < full_at) return write(static_cast<std::size_t>(full_at - before));
  errno = ENOSPC;
  return -1;
}

/// Records the step of a log record, and sends the signals waiting for it.
void read_record(std::string_view record) {
  constexpr std::string_view step = "{\"event\":\"step\",\"step\":";
  if (const std::size_t at = record.rfind(step); at != record.npos) logged = ::atol(record.data() + at + step.size());
  static const char *const text = ::getenv("FAULTS_SIGNAL_IN"), *const numbers = ::getenv("FAULTS_SIGNAL");
  if (text == nullptr || numbers == nullptr || record.find(text) == record.npos || signalled.exchange(true)) return;
  char* end = nullptr;
  for (long number = ::strtol(numbers, &end, 10); number != 0; number = ::strtol(end, &end, 10)) {
    ::kill(::getpid(), static_cast<int>(number));
  }
}

/// Delays a checkpoint's completion until the run's next step.
void hold(const std::string& path) {
  static const long most = number_in("FAULTS_HOLD");
  const std::size_t at = path.find("/.step-");
  if (most < 0 || at == path.npos) return;
  const long step = ::atol(path.c_str() + at + std::string_view("/.step-").size());
  for (int i = 0; step < most && logged <= step && i < 100000; ++i) ::usleep(1000);
}

bool is_refused(std::size_t bytes) {
  static const long most = number_in("FAULTS_MEMORY");
  return most >= 0 && bytes >= static_cast<std::size_t>(most);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) != 0) visit("create", path_at(AT_FDCWD, path));
  return next<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}

// Aligned `operator new` calls different functions in different standard libraries.
void* aligned_alloc(size_t alignment, size_t size) {
  if (is_refused(size)) return nullptr;
  return next<void* (*)(size_t, size_t)>("aligned_alloc")(alignment, size);
}

int posix_memalign(void** memory, size_t alignment, size_t size) {
  if (is_refused(size)) return ENOMEM;
  return next<int (*)(void**, size_t, size_t)>("posix_memalign")(memory, alignment, size);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  static const long most = number_in("FAULTS_THREADS");
  if (most >= 0 && threads++ >= most) return EAGAIN;
  return next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create")(thread, attributes,
                                                                                                     run, argument);
}

int mkdir(const char* path, mode_t mode) {
  visit("mkdir", path_at(AT_FDCWD, path));
  return next<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}

char* mkdtemp(char* path) {
  char* const made = next<char* (*)(char*)>("mkdtemp")(path);
  if (made != nullptr) read_record(made);
  return made;
}

ssize_t write(int fd, const void* data, size_t count) {
  const ssize_t written = write_with_faults("write", fd, count, [&](std::size_t n) {
    return next<ssize_t (*)(int, const void*, size_t)>("write")(fd, data, n);
  });
  if (written > 0) read_record({static_cast<const char*>(data), static_cast<std::size_t>(written)});
  return written;
}

ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  read_record(path_of(fd));
  return write_with_faults("write", fd, count, [&](std::size_t n) {
    return next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(fd, data, n, offset);
  });
}

int ftruncate(int fd, off_t size) {
  visit("truncate", path_of(fd), std::to_string(size));
  return next<int (*)(int, off_t)>("ftruncate")(fd, size);
}

int fsync(int fd) {
  visit("fsync", path_of(fd));
  hold(path_of(fd));
  return next<int (*)(int)>("fsync")(fd);
}

int rename(const char* from, const char* to) {
  visit("rename", path_at(AT_FDCWD, from), path_at(AT_FDCWD, to).substr(folder().size()));
  return next<int (*)(const char*, const char*)>("rename")(from, to);
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) {
  visit("exchange", path_at(from_directory, from), path_at(to_directory, to).substr(folder().size()));
  return next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(from_directory, from, to_directory,
                                                                                  to, flags);
}

int remove(const char* path) {
  visit("remove", path_at(AT_FDCWD, path));
  return next<int (*)(const char*)>("remove")(path);
}

int unlink(const char* path) {
  visit("remove", path_at(AT_FDCWD, path));
  return next<int (*)(const char*)>("unlink")(path);
}

int rmdir(const char* path) {
  visit("remove", path_at(AT_FDCWD, path));
  return next<int (*)(const char*)>("rmdir")(path);
}

int unlinkat(int directory, const char* path, int flags) {
  visit("remove", path_at(directory, path));
  return next<int (*)(int, const char*, int)>("unlinkat")(directory, path, flags);
}

}  // extern "C"
