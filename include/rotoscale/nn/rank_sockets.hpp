// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Connects the processes of a run: each gets a TCP socket (IPv4) to every other. Rank 0 listens. Others connect to it
// with the nonce of this start, and receive the addresses of the ranks between. A listener speaks first, so a foreign
// program's port receives nothing.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "rotoscale/nn/communicator.hpp"

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

/// Who meets.
struct rank_meeting {
  int rank = 0;                                    ///< this one
  int size = 1;                                    ///< number of ranks
  bool is_local = false;                           ///< all ranks are on this host: listens on it only
  std::string nonce;                               ///< of this start
  std::chrono::steady_clock::time_point deadline;  ///< time limit for all ranks to connect
};

namespace detail {

using clock = std::chrono::steady_clock;

inline constexpr std::array<char, 16> rank_greeting = {'r', 'o', 't', 'o', 's', 'c', 'a', 'l',
                                                       'e', ' ', 'r', 'a', 'n', 'k', 's', '1'};
/// A rank's message after the greeting.
struct rank_hello {
  std::array<char, 64> nonce{};
  std::int32_t rank = 0, size = 0;
  std::uint32_t port = 0;  ///< where it listens
  std::uint32_t order = 1;
};
/// Rank 0's answer, before a table of addresses or a text.
struct rank_answer {
  enum : std::uint32_t { table, refusal, failure } kind = table;
  std::uint32_t rank = 0, bytes = 0;
};

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

  /// Accepts a connection and reads its hello. Not open without a valid hello within 5 s.
  std::pair<rank_socket, detail::rank_hello> take(detail::clock::time_point deadline) const {
    rank_socket s(::accept(socket_.get(), nullptr, nullptr));
    detail::rank_hello hello;
    const auto until = std::min(deadline, detail::clock::now() + std::chrono::seconds(5));
    if (!s.is_open() || !detail::send_all(s, detail::rank_greeting.data(), detail::rank_greeting.size(), until) ||
        !detail::receive_all(s, &hello, sizeof hello, until) || hello.order != 1) {
      return {};
    }
    ::fcntl(s.get(), F_SETFD, FD_CLOEXEC);
    detail::settle(s);
    return {std::move(s), hello};
  }

 private:
  rank_socket socket_;
  std::uint16_t port_ = 0;
};

namespace detail {

inline rank_hello hello_of(const rank_meeting& m, std::uint16_t port) {
  rank_hello h{.rank = m.rank, .size = m.size, .port = port};
  std::memcpy(h.nonce.data(), m.nonce.data(), std::min(m.nonce.size(), h.nonce.size()));
  return h;
}
inline void answer(const rank_socket& s, rank_answer a, const void* bytes, std::size_t count) {
  const auto until = clock::now() + std::chrono::seconds(5);
  a.bytes = static_cast<std::uint32_t>(count);
  (void)(send_all(s, &a, sizeof a, until) && send_all(s, bytes, count, until));
}
/// Address of the peer; 0: this host.
inline std::uint32_t host_of(const rank_socket& s) {
  sockaddr_in at{};
  socklen_t length = sizeof at;
  ::getpeername(s.get(), reinterpret_cast<sockaddr*>(&at), &length);
  return (ntohl(at.sin_addr.s_addr) >> 24) == 127 ? 0 : at.sin_addr.s_addr;
}
/// First rank above `rank` that has not connected; `size`: all have.
inline int find_missing(const std::vector<rank_socket>& all, int rank) {
  int s = rank + 1;
  while (s < static_cast<int>(all.size()) && all[static_cast<std::size_t>(s)].is_open()) ++s;
  return s;
}
[[noreturn]] inline void fail_late(int rank) { throw rank_failure(rank, "did not come to the start in time"); }

/// Waits for a connection. Throws rank_failure if a connected rank ends, or after the time limit.
inline void await_visitor(const rank_meeting& m, const rank_listener& here, const std::vector<rank_socket>& all) {
  std::vector<pollfd> waits = {{here.get(), POLLIN, 0}};
  for (const rank_socket& s : all) waits.push_back({s.get(), rank_socket::ended, 0});
  const int n = ::poll(waits.data(), static_cast<nfds_t>(waits.size()), milliseconds_until(m.deadline));
  if (n == 0) fail_late(find_missing(all, m.rank));
  for (std::size_t i = 1; n > 0 && i < waits.size(); ++i) {
    if (waits[i].revents != 0) throw rank_failure(static_cast<int>(i) - 1, "has ended");
  }
}

/// Accepts the connections of all ranks above this one. `visit` receives each hello, and may throw.
template <class Visit>
void take_higher(const rank_meeting& m, const rank_listener& here, std::vector<rank_socket>& all, const Visit& visit) {
  const rank_hello own = hello_of(m, 0);
  while (find_missing(all, m.rank) < m.size) {
    await_visitor(m, here, all);
    auto [s, hello] = here.take(m.deadline);
    if (!s.is_open()) continue;
    if (hello.nonce != own.nonce) {
      answer(s, {rank_answer::refusal, 0, 0}, nullptr, 0);
      continue;
    }
    if (hello.size != m.size) {
      throw rank_failure(hello.rank, "counts " + std::to_string(hello.size) + " ranks, rank " + std::to_string(m.rank) +
                                         " counts " + std::to_string(m.size));
    }
    if (hello.rank <= m.rank || hello.rank >= m.size) throw rank_failure(hello.rank, "is no rank of this run");
    rank_socket& place = all[static_cast<std::size_t>(hello.rank)];
    if (place.is_open()) throw rank_failure(hello.rank, "was started twice");
    place = std::move(s);
    visit(place, hello);
  }
}

/// Waits for rank 0's table. Nullopt: the listener is rank 0 of another start. Throws rank_failure.
inline std::optional<std::vector<rank_address>> read_table(const rank_meeting& m, const rank_socket& first) {
  rank_answer a;
  std::string text;
  const bool heard = receive_all(first, &a, sizeof a, m.deadline);
  if (heard) text.resize(a.bytes);
  if (!heard || !receive_all(first, text.data(), text.size(), m.deadline)) {
    if (clock::now() >= m.deadline) fail_late(0);
    throw rank_failure(0, "has ended");
  }
  if (a.kind == rank_answer::refusal) return std::nullopt;
  if (a.kind == rank_answer::failure) throw rank_failure(static_cast<int>(a.rank), text);
  std::vector<rank_address> table(static_cast<std::size_t>(m.size));
  if (text.size() != table.size() * sizeof(rank_address)) throw rank_failure(0, "has another version");
  std::memcpy(table.data(), text.data(), text.size());
  const std::uint32_t host = host_of(first);  // address of ranks on rank 0's host
  for (rank_address& t : table) t.host = t.host == 0 ? host : t.host;
  return table;
}

}  // namespace detail

/// Start of rank 0, which all others find at `here`. Throws rank_failure.
inline std::vector<rank_socket> meet_as_first(const rank_meeting& m, const rank_listener& here) {
  std::vector<rank_socket> all(static_cast<std::size_t>(m.size));
  std::vector<rank_address> table(all.size());
  try {
    detail::take_higher(m, here, all, [&](const rank_socket& s, const detail::rank_hello& hello) {
      table[static_cast<std::size_t>(hello.rank)] = {detail::host_of(s), static_cast<std::uint16_t>(hello.port)};
    });
  } catch (const rank_failure& e) {
    for (const rank_socket& s : all) {
      const detail::rank_answer a{detail::rank_answer::failure, static_cast<std::uint32_t>(e.rank()), 0};
      if (s.is_open()) detail::answer(s, a, e.reason().data(), e.reason().size());
    }
    throw;
  }
  for (const rank_socket& s : all) {
    if (s.is_open()) detail::answer(s, {}, table.data(), table.size() * sizeof(rank_address));
  }
  return all;
}

/// Start of another rank. `find` returns possible addresses of rank 0, each with a nonce. It is called until rank 0
/// answers at one. Throws rank_failure.
template <class Find>
std::vector<rank_socket> meet_first(rank_meeting m, const Find& find) {
  const rank_listener here(m.is_local);
  std::vector<rank_socket> all(static_cast<std::size_t>(m.size));
  std::optional<std::vector<rank_address>> table;
  while (!table) {
    for (const auto& [place, nonce] : find()) {
      m.nonce = nonce;
      all[0] = detail::connect_to(place, std::min(m.deadline, detail::clock::now() + std::chrono::seconds(2)));
      if (!all[0].is_open()) continue;
      const detail::rank_hello own = detail::hello_of(m, here.port());
      if (!detail::send_all(all[0], &own, sizeof own, m.deadline)) continue;
      table = detail::read_table(m, all[0]);
      if (table) break;
    }
    if (table) break;
    if (detail::clock::now() >= m.deadline) detail::fail_late(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (int s = 1; s < m.rank; ++s) {
    rank_socket& to = all[static_cast<std::size_t>(s)];
    to = detail::connect_to((*table)[static_cast<std::size_t>(s)], m.deadline);
    const detail::rank_hello own = detail::hello_of(m, 0);
    if (!to.is_open() || !detail::send_all(to, &own, sizeof own, m.deadline))
      throw rank_failure(s, "cannot be reached");
  }
  detail::take_higher(m, here, all, [](const rank_socket&, const detail::rank_hello&) {});
  return all;
}

}  // namespace rotoscale::nn
