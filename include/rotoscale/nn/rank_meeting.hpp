// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Start of the processes of a run: each gets a socket to every other (rank_sockets.hpp). Others connect to rank 0 with
// the nonce of this start. Rank 0 sends them the addresses of all, and lets them go when all have connected. It tells
// all ranks of a failure, also those that come a few seconds later, so that all name the same rank.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rotoscale/nn/communicator.hpp"
#include "rotoscale/nn/rank_sockets.hpp"

namespace rotoscale::nn {

/// Who meets.
struct rank_meeting {
  int rank = 0;                       ///< this one
  int size = 1;                       ///< number of ranks
  bool is_local = false;              ///< all ranks are on this host: listens on it only
  std::string nonce;                  ///< of this start
  std::chrono::milliseconds timeout;  ///< of the wait for all ranks, and again until they have connected
};

namespace detail {

inline constexpr auto grace_of_others = std::chrono::seconds(2);  ///< rank 0's wait for their notes after a timeout
inline constexpr auto grace_of_first = std::chrono::seconds(5);   ///< their wait for rank 0's, and its for late ranks

/// A rank's message after the greeting.
struct rank_hello {
  std::array<char, 64> nonce{};
  std::int32_t rank = 0, size = 0;
  std::uint32_t port = 0;  ///< where it listens
  std::uint32_t order = 1;
};
/// From rank 0 to others or back.
struct rank_note {
  enum : std::uint32_t { table, refusal, failure, ready, go } kind = table;
  std::uint32_t rank = 0;  ///< that failed
  std::string text = {};   ///< reason of a failure, or a table of addresses
};

inline void send_note(const rank_socket& s, const rank_note& note) {
  const auto until = clock::now() + std::chrono::seconds(5);
  const std::array<std::uint32_t, 3> head = {note.kind, note.rank, static_cast<std::uint32_t>(note.text.size())};
  if (s.is_open() && send_all(s, head.data(), sizeof head, until)) send_all(s, note.text.data(), head[2], until);
}
inline void send_failure(const rank_socket& s, const rank_failure& e) {
  send_note(s, {rank_note::failure, static_cast<std::uint32_t>(e.rank()), e.reason()});
}
/// Sends no more, and reads until the peer leaves: closing a socket with unread bytes discards sent ones.
inline void drain(const rank_socket& s, clock::time_point until) {
  ::shutdown(s.get(), SHUT_WR);
  for (char byte; receive_all(s, &byte, 1, until);) {
  }
}
/// Nullopt: the connection or the time limit has ended.
inline std::optional<rank_note> read_note(const rank_socket& s, clock::time_point until) {
  std::array<std::uint32_t, 3> head;
  if (!receive_all(s, head.data(), sizeof head, until)) return std::nullopt;
  rank_note note{.rank = head[1], .text = std::string(head[2], 0)};
  std::memcpy(&note.kind, &head[0], sizeof head[0]);
  if (!receive_all(s, note.text.data(), note.text.size(), until)) return std::nullopt;
  return note;
}

[[noreturn]] inline void fail_late(int rank) { throw rank_failure(rank, "did not come to the start in time"); }

/// Next note of rank s. Throws rank_failure if there is none, or if it is one.
inline rank_note hear(int s, const rank_socket& socket, clock::time_point until) {
  auto note = read_note(socket, until);
  if (note && note->kind != rank_note::failure) return std::move(*note);
  if (note) throw rank_failure(static_cast<int>(note->rank), note->text);
  if (clock::now() >= until) fail_late(s);
  throw rank_failure(s, "has ended");
}

/// A failure that rank 0 has told, or its own.
struct rank_verdict : rank_failure {
  explicit rank_verdict(const rank_failure& e) : rank_failure(e) {}
};
/// Next note of rank 0. Throws rank_verdict.
inline rank_note hear_first(const rank_socket& first, clock::time_point until) {
  try {
    return hear(0, first, until);
  } catch (const rank_failure& e) {
    throw rank_verdict(e);
  }
}

inline rank_hello hello_of(const rank_meeting& m, std::uint16_t port) {
  rank_hello h{.rank = m.rank, .size = m.size, .port = port};
  std::memcpy(h.nonce.data(), m.nonce.data(), std::min(m.nonce.size(), h.nonce.size()));
  return h;
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

/// Connections to a rank's listener. Silent ones delay no other. Ranks of another start are refused.
class rank_visitors {
 public:
  rank_visitors(const rank_meeting& m, const rank_listener& here) : here_(&here), nonce_(hello_of(m, 0).nonce) {}

  /// What came first: a hello of this start, or an event of a watched socket. Neither: the time limit.
  struct event {
    std::optional<std::pair<rank_socket, rank_hello>> hello;
    std::optional<int> watched;
  };
  event await(std::span<const rank_socket> watched, clock::time_point until) {
    for (;;) {
      std::vector<pollfd> waits = {{here_->get(), POLLIN, 0}};
      for (const std::span<const rank_socket> all : {watched, std::span<const rank_socket>(silent_)}) {
        for (const rank_socket& s : all) waits.push_back({s.get(), static_cast<short>(POLLIN | rank_socket::ended), 0});
      }
      const int n = ::poll(waits.data(), static_cast<nfds_t>(waits.size()), milliseconds_until(until));
      if (n == 0) return {};
      if (n < 0) continue;
      for (std::size_t s = 0; s < watched.size(); ++s) {
        if (waits[s + 1].revents != 0) return {{}, static_cast<int>(s)};
      }
      for (std::size_t i = 0; i < silent_.size(); ++i) {
        if (waits[i + 1 + watched.size()].revents == 0) continue;
        rank_socket s = std::move(silent_[i]);
        silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(i));
        rank_hello hello;
        const bool is_whole = receive_all(s, &hello, sizeof hello, clock::now() + std::chrono::seconds(1));
        if (!is_whole || hello.order != 1) break;
        if (hello.nonce == nonce_) return {{{std::move(s), hello}}, {}};
        send_note(s, {rank_note::refusal});
        break;
      }
      if (waits[0].revents == 0) continue;
      if (rank_socket s = here_->take(); s.is_open()) silent_.push_back(std::move(s));
    }
  }

  /// Tells the silent ones to look elsewhere: they may be ranks of another start. Waits until they have left, or 1 s.
  void refuse_rest() {
    const auto until = clock::now() + std::chrono::seconds(1);
    for (const rank_socket& s : silent_) send_note(s, {rank_note::refusal});
    for (const rank_socket& s : silent_) drain(s, until);
    silent_.clear();
  }

 private:
  const rank_listener* here_;
  std::array<char, 64> nonce_;
  std::vector<rank_socket> silent_;
};

/// Next hello. Rank 0 watches all ranks, and others watch rank 0: a note would be of a failure. Throws rank_failure
/// then, or after the time limit.
inline std::pair<rank_socket, rank_hello> await_hello(const rank_meeting& m, rank_visitors& visitors,
                                                      const std::vector<rank_socket>& all, clock::time_point until) {
  auto came = visitors.await(std::span(all).first(m.rank == 0 ? all.size() : 1), until);
  if (came.watched) {
    const int s = *came.watched;
    const auto limit = clock::now() + grace_of_others;
    (void)(s == 0 ? hear_first(all[0], limit) : hear(s, all[static_cast<std::size_t>(s)], limit));
    throw rank_failure(s, "has another version");
  }
  if (!came.hello) fail_late(find_missing(all, m.rank));
  return std::move(*came.hello);
}

/// Accepts the connections of all ranks above this one. `visit` receives each hello.
template <class Visit>
void take_higher(const rank_meeting& m, rank_visitors& visitors, std::vector<rank_socket>& all, clock::time_point until,
                 const Visit& visit) {
  while (find_missing(all, m.rank) < m.size) {
    std::pair<rank_socket, rank_hello> came = await_hello(m, visitors, all, until);
    const rank_hello& hello = came.second;
    const auto refuse = [&](const std::string& why) {
      const rank_failure e(hello.rank, why);
      send_failure(came.first, e);
      throw e;
    };
    if (hello.size != m.size) {
      refuse("counts " + std::to_string(hello.size) + " ranks, rank " + std::to_string(m.rank) + " counts " +
             std::to_string(m.size));
    }
    if (hello.rank <= m.rank || hello.rank >= m.size) refuse("is no rank of this run");
    rank_socket& place = all[static_cast<std::size_t>(hello.rank)];
    if (place.is_open()) refuse("was started twice");
    place = std::move(came.first);
    visit(place, hello);
  }
}

/// Rank 0 waits until all ranks have connected to each other.
inline void await_ready(const std::vector<rank_socket>& all, clock::time_point until) {
  std::vector<pollfd> waits;
  for (const rank_socket& s : all) {
    waits.push_back({s.get(), static_cast<short>(POLLIN | rank_socket::ended), 0});
  }
  std::size_t connecting = all.size() - 1;
  while (connecting > 0) {
    const int n = ::poll(waits.data(), static_cast<nfds_t>(waits.size()), milliseconds_until(until));
    if (n == 0) {
      std::size_t s = 1;
      while ((waits[s].events & POLLIN) == 0) ++s;
      fail_late(static_cast<int>(s));
    }
    for (std::size_t s = 1; n > 0 && s < all.size(); ++s) {
      if (waits[s].revents == 0) continue;
      (void)hear(static_cast<int>(s), all[s], clock::now() + grace_of_others);
      waits[s].events = rank_socket::ended;
      --connecting;
    }
  }
}

/// What the named rank reports itself: it may have waited for another one.
inline rank_failure find_cause(rank_failure e, const std::vector<rank_socket>& all) {
  for (std::size_t steps = 1; steps < all.size(); ++steps) {
    const bool is_other = e.rank() > 0 && e.rank() < static_cast<int>(all.size());
    if (!is_other || !all[static_cast<std::size_t>(e.rank())].is_open()) break;
    const rank_socket& named = all[static_cast<std::size_t>(e.rank())];
    if (!await(named.get(), POLLIN, clock::now() + grace_of_others)) break;
    try {
      (void)hear(e.rank(), named, clock::now() + grace_of_others);
      break;
    } catch (const rank_failure& told) {
      e = told;
    }
  }
  return e;
}

/// await_ready, whose failure names the cause.
inline void await_all_ready(const std::vector<rank_socket>& all, clock::time_point until) {
  try {
    await_ready(all, until);
  } catch (const rank_failure& e) {
    throw find_cause(e, all);
  }
}

/// Tells all ranks of a failure, also those that come later.
inline void tell_all(const rank_meeting& m, rank_visitors& visitors, std::vector<rank_socket>& all,
                     const rank_failure& e) {
  const auto until = clock::now() + grace_of_first;
  for (const rank_socket& s : all) send_failure(s, e);
  const auto is_expected = [&](int s) { return s != e.rank() && !all[static_cast<std::size_t>(s)].is_open(); };
  for (int s = 1; s < m.size; ++s) {
    while (is_expected(s)) {
      auto came = visitors.await({}, until).hello;
      if (!came) break;
      auto& [late, hello] = *came;
      send_failure(late, e);
      if (hello.rank > 0 && hello.rank < m.size) all[static_cast<std::size_t>(hello.rank)] = std::move(late);
    }
  }
  for (const rank_socket& s : all) {
    if (s.is_open()) drain(s, until);
  }
}

/// Connects to rank 0 as soon as `find` finds it. Returns its note of the addresses.
template <class Find>
rank_note find_first(rank_meeting& m, const rank_listener& here, rank_socket& first, const Find& find) {
  const auto until = clock::now() + m.timeout;
  for (;;) {
    for (const auto& [place, nonce] : find()) {
      m.nonce = nonce;
      first = connect_to(place, std::min(until, clock::now() + std::chrono::seconds(2)));
      if (!first.is_open()) continue;
      const rank_hello own = hello_of(m, here.port());
      const auto limit = clock::now() + m.timeout + grace_of_first;  // rank 0 has waited before
      if (!send_all(first, &own, sizeof own, limit)) continue;
      rank_note note = hear_first(first, limit);
      if (note.kind != rank_note::refusal) return note;  // else rank 0 of another start
    }
    if (clock::now() >= until) fail_late(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Connects to rank s, which listens. Throws rank_failure, also if rank 0 reports one.
inline rank_socket reach(int s, rank_address at, const rank_socket& first, clock::time_point until) {
  for (int refusals = 0; refusals < 3;) {
    const auto limit = std::min(until, clock::now() + std::chrono::seconds(2));
    if (rank_socket to = connect_to(at, limit); to.is_open()) return to;
    if (clock::now() >= until) break;
    if (clock::now() < limit) ++refusals;
    if (await(first.get(), POLLIN, limit)) (void)hear_first(first, clock::now() + grace_of_others);
  }
  throw rank_failure(s, "cannot be reached");
}

/// Connects to the ranks between, and waits for those above and for rank 0's permission.
inline void connect_others(const rank_meeting& m, const rank_listener& here, std::vector<rank_socket>& all,
                           const std::string& addresses) {
  const auto until = clock::now() + m.timeout;
  std::vector<rank_address> table(all.size());
  if (addresses.size() != table.size() * sizeof(rank_address)) throw rank_failure(0, "has another version");
  std::memcpy(table.data(), addresses.data(), addresses.size());
  const std::uint32_t host = host_of(all[0]);  // address of ranks on rank 0's host
  for (int s = 1; s < m.rank; ++s) {
    rank_address& a = table[static_cast<std::size_t>(s)];
    if (a.host == 0) a.host = host;
    rank_socket& to = all[static_cast<std::size_t>(s)];
    to = reach(s, a, all[0], until);
    const rank_hello own = hello_of(m, 0);
    if (!send_all(to, &own, sizeof own, until)) throw rank_failure(s, "cannot be reached");
  }
  rank_visitors visitors(m, here);
  take_higher(m, visitors, all, until, [](const rank_socket&, const rank_hello&) {});
  send_note(all[0], {rank_note::ready});
  (void)hear_first(all[0], until + grace_of_first);
}

}  // namespace detail

/// Start of rank 0, which all others find at `here`. Throws rank_failure.
inline std::vector<rank_socket> meet_as_first(const rank_meeting& m, const rank_listener& here) {
  std::vector<rank_socket> all(static_cast<std::size_t>(m.size));
  std::vector<rank_address> table(all.size());
  detail::rank_visitors visitors(m, here);
  try {
    const auto record = [&](const rank_socket& s, const detail::rank_hello& hello) {
      table[static_cast<std::size_t>(hello.rank)] = {detail::host_of(s), static_cast<std::uint16_t>(hello.port)};
    };
    detail::take_higher(m, visitors, all, detail::clock::now() + m.timeout, record);
    visitors.refuse_rest();
    detail::rank_note addresses{.text = std::string(table.size() * sizeof(rank_address), 0)};
    std::memcpy(addresses.text.data(), table.data(), addresses.text.size());
    for (const rank_socket& s : all) detail::send_note(s, addresses);
    detail::await_all_ready(all, detail::clock::now() + m.timeout + detail::grace_of_others);
  } catch (const rank_failure& e) {
    detail::tell_all(m, visitors, all, e);
    throw;
  }
  for (const rank_socket& s : all) detail::send_note(s, {detail::rank_note::go});
  return all;
}

/// Start of another rank. `find` returns possible addresses of rank 0, each with a nonce. It is called until rank 0
/// answers at one. Throws rank_failure.
template <class Find>
std::vector<rank_socket> meet_first(rank_meeting m, const Find& find) {
  const rank_listener here(m.is_local);
  std::vector<rank_socket> all(static_cast<std::size_t>(m.size));
  const detail::rank_note addresses = detail::find_first(m, here, all[0], find);
  try {
    detail::connect_others(m, here, all, addresses.text);
  } catch (const detail::rank_verdict&) {
    throw;
  } catch (const rank_failure& found) {
    detail::send_failure(all[0], found);
    (void)detail::hear_first(all[0], detail::clock::now() + 2 * detail::grace_of_first);
    throw;
  }
  return all;
}

}  // namespace rotoscale::nn
