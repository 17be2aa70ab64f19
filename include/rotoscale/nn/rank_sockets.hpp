// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// TCP sockets (IPv4) between the processes of a run. A listener speaks first, so a foreign program's port receives
// nothing.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

namespace rotoscale::nn {

/// Owns a socket.
class rank_socket {
 public:
  rank_socket() = default;
  /// Of a descriptor.
  explicit rank_socket(int fd) : fd_(fd) {}
  /// Leaves the other one empty.
  rank_socket(rank_socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  /// Closes what it had.
  rank_socket& operator=(rank_socket&& other) noexcept {
    rank_socket old(std::exchange(fd_, std::exchange(other.fd_, -1)));
    return *this;
  }
  ~rank_socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  /// Its descriptor, or -1.
  int get() const { return fd_; }
  /// True if it has a descriptor.
  bool is_open() const { return fd_ >= 0; }

#ifdef POLLRDHUP
  static constexpr short ended = POLLRDHUP;  ///< poll's event
#else
  static constexpr short ended = 0;  ///< POLLHUP comes unasked
#endif

 private:
  int fd_ = -1;
};

/// Wakes a thread in poll.
class wake_pipe {
 public:
  wake_pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
    for (std::size_t i = 0; i < 2; ++i) {
      ends_[i] = rank_socket(ends[i]);
      ::fcntl(ends[i], F_SETFL, O_NONBLOCK);
      ::fcntl(ends[i], F_SETFD, FD_CLOEXEC);
    }
  }
  /// Descriptors that the thread polls.
  int get() const { return ends_[0].get(); }
  /// Wakes it.
  void ring() { (void)!::write(ends_[1].get(), "", 1); }
  /// After it woke.
  void silence() {
    char bytes[64];
    while (::read(get(), bytes, sizeof bytes) > 0) {
    }
  }

 private:
  std::array<rank_socket, 2> ends_;
};

/// Listening address of a rank.
struct rank_address {
  std::uint32_t host = 0;  ///< IPv4, in the network's order; 0: this host
  std::uint16_t port = 0;  ///< TCP
};

namespace detail {

using clock = std::chrono::steady_clock;

inline constexpr std::array<char, 16> rank_greeting = {'r', 'o', 't', 'o', 's', 'c', 'a', 'l',
                                                       'e', ' ', 'r', 'a', 'n', 'k', 's', '2'};
inline int milliseconds_until(clock::time_point t) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(t - clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, std::min<std::int64_t>(left, 1 << 30)));
}

/// Waits for an event. Returns false after the time limit.
inline bool await(int fd, short event, clock::time_point until) {
  pollfd p{fd, event, 0};
  for (;;) {
    const int n = ::poll(&p, 1, milliseconds_until(until));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

/// Reads or writes all bytes. Returns false if the connection or the time limit ends.
inline bool receive_all(const rank_socket& s, void* to, std::size_t bytes, clock::time_point until) {
  for (auto* at = static_cast<char*>(to); bytes > 0;) {
    if (!await(s.get(), POLLIN, until)) return false;
    const ssize_t n = ::recv(s.get(), at, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n > 0) at += n, bytes -= static_cast<std::size_t>(n);
  }
  return true;
}
inline bool send_all(const rank_socket& s, const void* from, std::size_t bytes, clock::time_point until) {
  for (const auto* at = static_cast<const char*>(from); bytes > 0;) {
    if (!await(s.get(), POLLOUT, until)) return false;
    const ssize_t n = ::send(s.get(), at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (n > 0) at += n, bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

/// Connections to a vanished host end within 25 s.
inline void settle(const rank_socket& s) {
  const auto set = [&](int level, int name, int value) { ::setsockopt(s.get(), level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_USER_TIMEOUT
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 25000);
#endif
}

inline rank_socket new_socket() {
  rank_socket s(::socket(AF_INET, SOCK_STREAM, 0));
  if (!s.is_open()) throw std::system_error(errno, std::generic_category(), "cannot open a socket");
  ::fcntl(s.get(), F_SETFD, FD_CLOEXEC);
  return s;
}
inline sockaddr_in to_sockaddr(rank_address a) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(a.port);
  at.sin_addr.s_addr = a.host == 0 ? htonl(INADDR_LOOPBACK) : a.host;
  return at;
}

/// Connects and reads the greeting. Not open if there is no listener, or another program.
inline rank_socket connect_to(rank_address a, clock::time_point until) {
  rank_socket s = new_socket();
  const sockaddr_in at = to_sockaddr(a);
  ::fcntl(s.get(), F_SETFL, O_NONBLOCK);
  if (::connect(s.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
    int code = errno;
    socklen_t length = sizeof code;
    if (code != EINPROGRESS || !await(s.get(), POLLOUT, until)) return {};
    if (::getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0 || code != 0) return {};
  }
  std::array<char, 16> heard{};
  if (!receive_all(s, heard.data(), heard.size(), until) || heard != rank_greeting) return {};
  settle(s);
  return s;
}

}  // namespace detail

/// Listening port of a rank.
class rank_listener {
 public:
  /// Port 0: any. Throws std::system_error, also if the port is taken.
  explicit rank_listener(bool is_local, std::uint16_t port = 0) : socket_(detail::new_socket()) {
    sockaddr_in at = detail::to_sockaddr({0, port});
    if (!is_local) at.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof at;
    const int yes = 1;
    if (port != 0) ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    if (::bind(socket_.get(), address, length) != 0 || ::listen(socket_.get(), 256) != 0 ||
        ::getsockname(socket_.get(), address, &length) != 0) {
      throw std::system_error(errno, std::generic_category(), "cannot listen on port " + std::to_string(port));
    }
    port_ = ntohs(at.sin_port);
    ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);  // a client may disconnect before accept
  }
  /// Where it listens.
  std::uint16_t port() const { return port_; }
  /// Its descriptor.
  int get() const { return socket_.get(); }

  /// Accepts a connection and greets. Not open if the client has left.
  rank_socket take() const {
    rank_socket s(::accept(socket_.get(), nullptr, nullptr));
    if (!s.is_open()) return s;
    ::fcntl(s.get(), F_SETFD, FD_CLOEXEC);
    detail::settle(s);
    const auto until = detail::clock::now();  // a new socket has room
    return detail::send_all(s, detail::rank_greeting.data(), detail::rank_greeting.size(), until) ? std::move(s)
                                                                                                  : rank_socket();
  }

 private:
  rank_socket socket_;
  std::uint16_t port_ = 0;
};

}  // namespace rotoscale::nn
