// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes with a TCP socket to each other (rank_sockets.hpp). A thread sends, receives and watches the
// sockets: a rank that is killed, fails, stops or calls another collective ends all ranks with one message. A rank that
// waits says so to all, since it is not to be named when others wait for it in vain.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "rotoscale/nn/host_ranks.hpp"
#include "rotoscale/nn/rank_sockets.hpp"

namespace rotoscale::nn {

/// Timeouts of a rank.
struct process_rank_options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);     ///< of each collective
  std::chrono::milliseconds tell = std::chrono::milliseconds(100);  ///< in a collective, before all hear of the wait
  std::chrono::milliseconds grace = std::chrono::seconds(10);       ///< after a failure, before `lost`
  /// Called by the watching thread if the own thread does not notice a failure within `grace`, because it computes or
  /// waits for a device.
  std::function<void(const rank_failure&)> lost = {};
};

/// One rank, with sockets to all others.
class process_rank final : public host_ranks {
 public:
  /// `sockets` has a connection to each rank, and an empty one for this rank.
  process_rank(int rank, std::vector<rank_socket> sockets, process_rank_options options = {})
      : rank_(rank), options_(std::move(options)), links_(sockets.size()) {
    for (std::size_t s = 0; s < sockets.size(); ++s) links_[s].socket = std::move(sockets[s]);
    thread_ = std::thread([this] { watch(); });
  }
  /// Without leave(), all other ranks fail.
  ~process_rank() override {
    {
      std::unique_lock lock(mutex_);
      if (!has_left_) fail(rank_, "has ended");
      is_seen_ = true;
      // Sends the reason before the sockets close: closing a socket with unread bytes discards sent ones.
      closing_ = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      wake_.ring();
    }
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(links_.size()); }

  void check() override {
    const std::lock_guard lock(mutex_);
    if (!failure_) return;
    is_seen_ |= std::this_thread::get_id() == own_;
    throw rank_failure(*failure_);
  }
  using host_ranks::abort;
  /// Tells all ranks of a failure that this one has found.
  void abort(const rank_failure& found) noexcept { end_all(found.rank(), found.reason()); }
  void note_wait(bool waits) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      tell({.kind = frame::device, .rank = waits ? 1u : 0u});
    } catch (...) {  // no memory for a message
    }
  }
  /// Leaves without a failure, together with all ranks. Throws rank_failure.
  void leave() {
    std::unique_lock lock(mutex_);
    throw_if_failed();
    const header bye{.kind = frame::leave, .number = ++now_.number};
    for (int s = 0; s < size(); ++s) {
      if (s != rank_) of(s).send(bye, {});
    }
    wake_.ring();
    const auto is_done = [&](int s) { return of(s).has_left && of(s).is_body_sent(); };
    await(lock, "end", is_done);
    has_left_ = true;
  }

 protected:
  void end_all(int rank, const std::string& what) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      fail(rank, what);
      is_seen_ |= std::this_thread::get_id() == own_;
    } catch (...) {  // no memory for a message: the socket closes
    }
  }
  int find_idle() noexcept override {
    const std::lock_guard lock(mutex_);
    return idle_or(rank_);
  }
  void exchange(const char* what, std::span<const std::span<const std::byte>> send,
                const place_function& place) override {
    const std::span<const std::byte> own = send[static_cast<std::size_t>(rank_)];
    const std::span<std::byte> to = place(rank_, own.size());
    if (!to.empty() && to.data() != own.data()) std::memcpy(to.data(), own.data(), own.size());
    std::unique_lock lock(mutex_);
    throw_if_failed();
    place_ = &place;
    now_ = {.kind = frame::data, .number = now_.number + 1};
    std::strncpy(now_.what.data(), what, now_.what.size() - 1);
    for (int s = 0; s < size() && !failure_; ++s) {
      if (s == rank_) continue;
      if (of(s).has_left) {
        fail(s, std::string("has left before ") + what);
        break;
      }
      header mine = now_;
      mine.bytes = send[static_cast<std::size_t>(s)].size();
      of(s).send(mine, send[static_cast<std::size_t>(s)]);
      of(s).is_expected = true;
      if (of(s).is_whole) deliver(s);
    }
    wake_.ring();
    await(lock, what, [&](int s) { return !of(s).is_expected && of(s).is_body_sent(); });
  }

 private:
  enum class frame : std::uint32_t { data = 1, failure, leave, wait, device };
  /// Before each message.
  struct header {
    frame kind = frame::data;
    std::uint32_t rank = 0;       ///< that failed, or that the sender waits for (itself: none); 1: it waits for devices
    std::uint64_t number = 0;     ///< of the collective
    std::uint64_t bytes = 0;      ///< that follow
    std::array<char, 16> what{};  ///< name of the collective
  };
  /// Next input: a header, bytes, bytes to discard.
  enum class input { header, body, dropped };
  struct link {
    rank_socket socket;
    // Output: a header, bytes of the collective, zeros in place of freed bytes, then waits and a failure.
    std::vector<std::byte> head, tail;
    std::span<const std::byte> body;
    std::size_t zeros = 0;
    // Input.
    header in;
    input state = input::header;
    std::size_t received = 0;  ///< of the header or the bytes
    std::span<std::byte> to;
    std::vector<std::byte> message;  ///< of a failure
    // A collective that this rank has not reached. Reading continues, to see an end or a failure after the bytes.
    std::optional<header> came;
    std::vector<std::byte> early;
    bool is_whole = false;
    bool is_expected = false, has_left = false;
    std::uint64_t latest = 0;     ///< its latest collective, as far as this rank knows
    std::optional<int> awaited;   ///< the rank that it waits for
    std::uint64_t awaits_in = 0;  ///< the collective in which it does
    std::optional<std::chrono::steady_clock::time_point> device_wait;  ///< when it said last that it waits for devices

    bool waits_for_device() const {
      return device_wait && std::chrono::steady_clock::now() - *device_wait < 3 * repeat_of_waits;
    }

    /// Is the collective sent? Words about waiting may follow.
    bool is_body_sent() const { return !socket.is_open() || (head.empty() && body.empty()); }
    bool is_sent() const { return !socket.is_open() || (is_body_sent() && zeros == 0 && tail.empty()); }
    void send(const header& h, std::span<const std::byte> bytes) {
      ROTOSCALE_ASSERT(head.empty() && body.empty());
      head.swap(tail);
      append(head, &h, sizeof h);
      body = bytes;
    }
    void send_wait(const header& h) { append(tail, &h, sizeof h); }
    void send_failure(const header& h, const std::string& what) {
      zeros = body.size();
      body = {};
      append(tail, &h, sizeof h);
      append(tail, what.data(), what.size());
    }
    /// Sends once. Returns false if there is no room, or if the connection has ended; reading reports an end.
    bool send_some() {
      static constexpr std::array<std::byte, 4096> nothing{};
      std::span<const std::byte> now = head.empty() ? body : head;
      if (now.empty()) now = zeros > 0 ? std::span(nothing).first(std::min(zeros, nothing.size())) : tail;
      const ssize_t n = ::send(socket.get(), now.data(), now.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) return errno == EINTR;
      const auto count = static_cast<std::size_t>(n);
      if (!head.empty()) {
        head.erase(head.begin(), head.begin() + n);
      } else if (!body.empty()) {
        body = body.subspan(count);
      } else if (zeros > 0) {
        zeros -= count;
      } else {
        tail.erase(tail.begin(), tail.begin() + n);
      }
      return true;
    }
    /// Bytes after the header are discarded.
    void drop() {
      state = received == in.bytes ? input::header : input::dropped;
      if (state == input::header) received = 0;
    }

   private:
    static void append(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
      const auto* first = static_cast<const std::byte*>(from);
      to.insert(to.end(), first, first + bytes);
    }
  };

  link& of(int s) { return links_[static_cast<std::size_t>(s)]; }
  void throw_if_failed() {
    if (!failure_) return;
    is_seen_ = true;
    throw rank_failure(*failure_);
  }
  /// Waits until is_done(s) for each other rank. Throws rank_failure, after the timeout too.
  template <class Done>
  void await(std::unique_lock<std::mutex>& lock, const char* what, const Done& is_done) {
    const auto began = std::chrono::steady_clock::now();
    const auto missing = [&] {
      int s = 0;
      while (s < size() && (s == rank_ || is_done(s))) ++s;
      return s;
    };
    const auto is_over = [&] { return failure_ || missing() == size(); };
    int told = rank_;
    while (!is_over()) {
      const bool has_told = told != rank_;
      const auto limit = began + (has_told ? options_.timeout : std::min(options_.timeout / 2, options_.tell));
      const auto is_new = [&] { return is_over() || (has_told && missing() != told); };
      if (!changed_.wait_until(lock, limit, is_new) && has_told) {
        catch_up(lock);
        if (is_over()) break;
        fail(find_cause(missing()),
             std::string("did not come to ") + what + " within " + std::to_string(options_.timeout.count()) + " ms");
      } else if (!is_over()) {
        tell_wait(told = missing());
      }
    }
    if (told != rank_ && !failure_) tell_wait(rank_);
    place_ = nullptr;
    throw_if_failed();
  }
  /// Waits until all that has arrived is read: this process may have been stopped.
  void catch_up(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t whole = rounds_ + 2;
    while (!failure_ && rounds_ < whole) {
      wake_.ring();
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    }
  }
  void tell(const header& h) {
    for (link& l : links_) {
      if (l.socket.is_open()) l.send_wait(h);
    }
    wake_.ring();
  }
  /// Tells all ranks which one this rank waits for: itself for none.
  void tell_wait(int s) { tell({.kind = frame::wait, .rank = static_cast<std::uint32_t>(s), .number = now_.number}); }
  /// Another rank that does not wait, or s.
  int idle_or(int s) {
    for (int r = 0; r < size(); ++r) {
      if (r != rank_ && !of(r).awaited && !of(r).waits_for_device()) return r;
    }
    return s;
  }
  /// Rank s, or the one that it waits for, directly or through others. A rank that does not notice that its wait is
  /// over waits for nobody.
  int find_cause(int s) {
    for (int steps = 0; steps < size() && of(s).awaited; ++steps) {
      const int next = *of(s).awaited;
      if (next == rank_ || of(next).latest > of(s).awaits_in) break;
      s = next;
    }
    return of(s).waits_for_device() ? idle_or(s) : s;
  }
  /// The first call counts: tells all ranks.
  void fail(int rank, const std::string& what) {
    if (failure_) return;
    failure_.emplace(rank, what);
    failed_at_ = std::chrono::steady_clock::now();
    const header h{.kind = frame::failure, .rank = static_cast<std::uint32_t>(rank), .bytes = what.size()};
    for (link& l : links_) {
      l.send_failure(h, what);
      if (l.state == input::body && l.in.kind == frame::data) l.drop();
    }
    changed_.notify_all();
    wake_.ring();
  }

  /// The watching thread.
  void watch() {
    std::unique_lock lock(mutex_);
    while (!is_closed()) {
      std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
      for (const link& l : links_) {
        waits.push_back(
            {l.socket.get(), static_cast<short>(rank_socket::ended | POLLIN | (l.is_sent() ? 0 : POLLOUT)), 0});
      }
      const int wait = milliseconds_to_wait();
      lock.unlock();
      ::poll(waits.data(), static_cast<nfds_t>(waits.size()), wait);
      lock.lock();
      wake_.silence();
      for (int s = 0; s < size(); ++s) serve(s, waits[static_cast<std::size_t>(s) + 1].revents);
      ++rounds_;
      changed_.notify_all();
      if (failure_ && !is_seen_ && std::chrono::steady_clock::now() >= failed_at_ + options_.grace) {
        is_seen_ = true;
        if (options_.lost) options_.lost(*failure_);
      }
    }
  }
  bool is_closed() {
    if (!closing_) return false;
    if (std::chrono::steady_clock::now() >= *closing_) return true;
    bool all = true;
    for (link& l : links_) {
      if (l.socket.is_open() && l.is_sent()) ::shutdown(l.socket.get(), SHUT_WR);
      all &= !l.socket.is_open();
    }
    return all;
  }
  int milliseconds_to_wait() const {
    if (closing_) return 50;
    if (!failure_ || is_seen_) return -1;
    const auto left = failed_at_ + options_.grace - std::chrono::steady_clock::now();
    return std::max(1, static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count()) + 1);
  }
  void serve(int s, short events) {
    link& l = of(s);
    if (events == 0 || !l.socket.is_open()) return;
    while ((events & POLLOUT) != 0 && !l.is_sent() && l.send_some()) {
    }
    while (l.socket.is_open() && receive_some(s)) {
    }
  }
  /// Reads once. Returns false if no bytes are available.
  bool receive_some(int s) {
    link& l = of(s);
    std::array<std::byte, 4096> nobody;
    std::span<std::byte> to(reinterpret_cast<std::byte*>(&l.in), sizeof l.in);
    if (l.state == input::body) to = l.to;
    if (l.state == input::dropped)
      to = std::span(nobody).first(std::min<std::size_t>(nobody.size(), l.in.bytes - l.received));
    if (l.state != input::dropped) to = to.subspan(l.received);
    const ssize_t n = ::recv(l.socket.get(), to.data(), to.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) {
      l.socket = {};
      if (!l.has_left) fail(s, "has ended");
      return false;
    }
    l.received += static_cast<std::size_t>(n);
    if (l.state == input::header && l.received == sizeof l.in) {
      take_header(s);
    } else if (l.state != input::header && l.received == l.in.bytes) {
      take_body(s);
    }
    return true;
  }
  void take_header(int s) {
    link& l = of(s);
    l.received = 0;
    l.latest = std::max(l.latest, l.in.number);
    if (l.in.kind == frame::leave) {
      l.has_left = true;
      l.state = input::header;
      if (l.is_expected) fail(s, std::string("has left before ") + now_.what.data());
    } else if (l.in.kind == frame::wait) {
      l.awaited.reset();
      if (static_cast<int>(l.in.rank) != s) l.awaited = static_cast<int>(l.in.rank);
      l.awaits_in = l.in.number;
      l.state = input::header;
    } else if (l.in.kind == frame::device) {
      l.device_wait.reset();
      if (l.in.rank != 0) l.device_wait = std::chrono::steady_clock::now();
      l.state = input::header;
    } else if (l.in.kind == frame::failure) {
      l.message.resize(l.in.bytes);
      l.to = l.message;
      l.state = input::body;
    } else if (failure_) {
      l.drop();
    } else if (l.is_expected) {
      begin_body(s);
    } else {
      l.came = l.in;
      l.early.resize(l.in.bytes);
      l.to = l.early;
      l.state = input::body;
      if (l.in.bytes == 0) take_body(s);
    }
  }
  /// Both this rank and rank s are in a collective. Rank 0 decides if they differ. Nullopt: no bytes are taken.
  std::optional<std::span<std::byte>> place_of(int s, const header& h) {
    try {
      if (h.number == now_.number && h.what == now_.what) return (*place_)(s, static_cast<std::size_t>(h.bytes));
      if (rank_ == 0) fail(s, std::string("is in ") + h.what.data() + ", rank 0 is in " + now_.what.data());
    } catch (const rank_failure& e) {
      fail(e.rank(), e.reason());
    } catch (const std::exception& e) {
      fail(rank_, std::string("failed: ") + e.what());
    }
    return std::nullopt;
  }
  void begin_body(int s) {
    link& l = of(s);
    const auto to = place_of(s, l.in);
    if (!to) return l.drop();
    l.to = *to;
    l.state = input::body;
    if (l.in.bytes == 0) take_body(s);
  }
  void deliver(int s) {
    link& l = of(s);
    const auto to = place_of(s, *l.came);
    if (to && !to->empty()) std::memcpy(to->data(), l.early.data(), to->size());
    if (to) l.is_expected = false;
    l.came.reset();
    l.is_whole = false;
  }
  void take_body(int s) {
    link& l = of(s);
    if (l.state == input::body && l.in.kind == frame::data) {
      l.is_whole = l.came.has_value();
      if (!l.is_whole) l.is_expected = false;
      if (l.is_whole && l.is_expected) deliver(s);
    }
    if (l.state == input::body && l.in.kind == frame::failure) {
      fail(static_cast<int>(l.in.rank), std::string(reinterpret_cast<const char*>(l.message.data()), l.message.size()));
    }
    l.received = 0;
    l.state = input::header;
  }

  int rank_;
  process_rank_options options_;
  const std::thread::id own_ = std::this_thread::get_id();
  std::mutex mutex_;  ///< of all below
  std::condition_variable changed_;
  wake_pipe wake_;
  std::vector<link> links_;
  header now_;  ///< the latest collective
  const place_function* place_ = nullptr;
  std::uint64_t rounds_ = 0;  ///< of the watching thread, in each of which it reads all sockets
  std::optional<rank_failure> failure_;
  std::chrono::steady_clock::time_point failed_at_;
  bool is_seen_ = false;  ///< failure_, by the own thread
  bool has_left_ = false;
  std::optional<std::chrono::steady_clock::time_point> closing_;  ///< time limit of the destructor's wait
  std::thread thread_;
};

/// Calls body() as one rank. If it throws, all ranks fail with its message.
template <class Body>
void run_rank(process_rank& rank, const Body& body) {
  try {
    body();
    rank.leave();
  } catch (const rank_failure& e) {
    rank.abort(e);
    throw;
  } catch (const std::exception& e) {
    rank.abort(std::string("failed: ") + e.what());
    throw;
  } catch (...) {
    rank.abort("failed");
    throw;
  }
}

}  // namespace rotoscale::nn
