// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, or processes with sockets: bytes arrive, all ranks see a failure. The tree of microbatches is
// one tree for all ranks.
#include "rotoscale/nn/host_ranks.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <future>
#include <string>

#include "rotoscale/nn/process_ranks.hpp"
#include "rotoscale/nn/rank_meeting.hpp"
#include "rotoscale/nn/reduce_scatter_check.hpp"
#include "rotoscale/nn/thread_ranks.hpp"

namespace host_ranks_test {

using namespace rotoscale;
namespace nn = rotoscale::nn;

using part = std::function<void(nn::communicator&)>;
constexpr std::chrono::milliseconds minute = std::chrono::minutes(1);

/// Ranks that are threads.
void run_threads(int size, std::chrono::milliseconds timeout, const part& body) {
  nn::rank_group group(size, timeout);
  nn::run_ranks(group, body);
}

/// Sockets between all ranks, in any order of their coming.
std::vector<std::vector<nn::rank_socket>> connect_all(int size) {
  const nn::rank_listener first(true);
  const std::pair place{nn::rank_address{0, first.port()}, std::string("nonce")};
  std::vector<std::future<std::vector<nn::rank_socket>>> met;
  for (int r = size - 1; r >= 0; --r) {
    const nn::rank_meeting m{r, size, true, "nonce", minute};
    met.push_back(std::async(std::launch::async, [=, &first] {
      return r == 0 ? nn::meet_as_first(m, first) : nn::meet_first(m, [&] { return std::vector{place}; });
    }));
  }
  std::vector<std::vector<nn::rank_socket>> all;
  for (auto m = met.rbegin(); m != met.rend(); ++m) all.push_back(m->get());
  return all;
}

/// Ranks with sockets, which are processes elsewhere. Throws what rank 0 throws.
void run_sockets(int size, std::chrono::milliseconds timeout, const part& body) {
  auto sockets = connect_all(size);
  std::vector<std::future<void>> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::async(std::launch::async, [&, r] {
      nn::process_rank rank(r, std::move(sockets[static_cast<std::size_t>(r)]), {.timeout = timeout});
      nn::run_rank(rank, [&] { body(rank); });
    }));
  }
  for (auto& rank : ranks) rank.wait();
  ranks[0].get();
}

constexpr auto transports = {run_threads, run_sockets};

TEST_CASE("bytes arrive where they are meant, integers are added, maxima are those of all") {
  for (const auto& run : transports) {
    for (const int size : {1, 2, 4}) {
      run(size, minute, [&](nn::communicator& rank) {
        const auto n = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank.rank());
        // Rank r sends 99 999 r + s bytes to each rank s, each 16 r + s. Sockets hold fewer; rank 0 sends itself none.
        std::vector<std::vector<std::byte>> out, in;
        std::vector<std::span<const std::byte>> send;
        std::vector<std::span<std::byte>> receive;
        for (std::size_t s = 0; s < n; ++s) {
          send.emplace_back(out.emplace_back(9'999'999 * own + s, static_cast<std::byte>(16 * own + s)));
          receive.emplace_back(in.emplace_back(9'999'999 * s + own));
        }
        std::int64_t whole[] = {rank.rank(), -7};
        float most[] = {static_cast<float>(3 * rank.rank() % 4), 2.5f};
        for (int again = 0; again < 3; ++again) rank.transfer({}, send, receive);
        nn::check_reduce_scatter(rank);
        rank.sum({}, nn::dense_tensor(whole, nn::dtype::i64, {2}));
        rank.max({}, nn::dense_tensor(most, nn::dtype::fp32, {2}));
        for (std::size_t s = 0; s < n; ++s) {
          CHECK(in[s] == std::vector<std::byte>(9'999'999 * s + own, static_cast<std::byte>(16 * s + own)));
        }
        CHECK((whole[0] == size * (size - 1) / 2 && whole[1] == -7 * size));
        CHECK((most[0] == (size == 1 ? 0.0f : 3.0f) && most[1] == 2.5f));
      });
    }
  }
}

/// The message that every rank ends with, after a prefix that names the rank that failed itself.
template <class Run>
std::string failure_of(const Run& run, int size, const part& body, std::chrono::milliseconds timeout = minute) {
  std::mutex mutex;
  std::vector<std::string> said;
  try {
    run(size, timeout, [&](nn::communicator& rank) {
      try {
        body(rank);
        rank.barrier();
      } catch (const nn::rank_failure& e) {
        const std::lock_guard lock(mutex);
        said.push_back(e.what());
        throw;
      }
    });
  } catch (const std::exception& e) {
    for (const std::string& other : said) CHECK(other.ends_with(e.what()));
    return e.what();
  }
  return "";
}

TEST_CASE("a rank that fails, sleeps or does something else ends all others with one line") {
  const auto at = [](nn::communicator& rank, int number, const std::function<void()>& f) {
    if (rank.rank() == number) f();
  };
  const auto fail = [] { throw std::domain_error("no more"); };
  for (const auto& run : transports) {
    CHECK(failure_of(run, 3, [](nn::communicator&) {}) == "");
    CHECK(failure_of(run, 3, [&](nn::communicator& rank) { at(rank, 2, fail); }) == "rank 2 failed: no more");
    CHECK(failure_of(run, 3, [&](nn::communicator& rank) { at(rank, 0, fail); }) == "no more");
    std::promise<void> failed;
    const auto sleep = [&](nn::communicator& rank) {
      at(rank, 1, [&] { failed.get_future().wait(); });
      try {
        rank.barrier();
      } catch (...) {
        at(rank, 0, [&] { failed.set_value(); });
        throw;
      }
    };
    CHECK(failure_of(run, 2, sleep, std::chrono::milliseconds(50)) == "rank 1 did not come to gather within 50 ms");
    CHECK(failure_of(run, 3, [&](nn::communicator& rank) {
            std::int64_t n = 0;
            float x = 0;
            if (rank.rank() == 1) rank.max({}, nn::dense_tensor(&x, nn::dtype::fp32, {1}));
            rank.sum({}, nn::dense_tensor(&n, nn::dtype::i64, {1}));
          }) == "rank 1 is in max, rank 0 is in sum");
    CHECK(failure_of(run, 2, [](nn::communicator& rank) {
            std::vector<std::byte> bytes(6);
            const std::span<std::byte> own(bytes);
            const auto sent = own.first(rank.rank() == 1 ? 5 : 6);
            rank.transfer({}, std::vector<std::span<const std::byte>>{sent, own}, std::vector{own, own});
          }) == "rank 1 sends 5 bytes to rank 0, which takes 6");
    CHECK(failure_of(run, 3, [](nn::communicator& rank) {
            nn::require_equal_ranks(rank, {{"build", "a"}, {"seed", rank.rank() == 2 ? "7" : "5"}});
          }) == "rank 2 has seed 7, rank 0 has seed 5");
  }
}

TEST_CASE("a process that ends names itself to ranks that wait, and to those that compute") {
  auto sockets = connect_all(3);
  std::promise<std::string> lost;
  const nn::process_rank_options options{.timeout = minute,
                                         .grace = std::chrono::milliseconds(0),
                                         .lost = [&](const nn::rank_failure& e) { lost.set_value(e.what()); }};
  nn::process_rank computes(0, std::move(sockets[0]), options), waits(1, std::move(sockets[1]), {minute});
  auto waiting = std::async(std::launch::async, [&] { waits.barrier(); });
  sockets[2].clear();  // as the system does after kill -9
  CHECK(lost.get_future().get() == "rank 2 has ended");
  CHECK_THROWS_WITH_AS(waiting.get(), "rank 2 has ended", nn::rank_failure);
  CHECK_THROWS_WITH_AS(computes.check(), "rank 2 has ended", nn::rank_failure);
  CHECK_THROWS_WITH_AS(computes.barrier(), "rank 2 has ended", nn::rank_failure);
}

TEST_CASE("threads that do not notice a failure are lost") {
  for (const int asleep : {0, 1, 2}) {
    nn::rank_group group(3, std::chrono::milliseconds(50));
    std::promise<std::string> lost;
    const auto lose = [&](const nn::rank_failure& e) { lost.set_value(e.what()); };
    auto said = lost.get_future();
    const auto body = [&](nn::thread_rank& rank) { rank.rank() == asleep ? said.wait() : rank.barrier(); };
    const std::string want = "rank " + std::to_string(asleep) + " did not come to gather within 50 ms";
    CHECK_THROWS_WITH_AS(nn::run_ranks(group, body, {std::chrono::milliseconds(0), lose}), want.c_str(),
                         nn::rank_failure);
    CHECK(said.get() == want);
  }
  // A rank that has noticed may take its time.
  nn::rank_group group(2);
  std::promise<void> noticed;
  const auto body = [&](nn::thread_rank& rank) {
    if (rank.rank() == 0) noticed.get_future().wait();
    try {
      rank.barrier();
    } catch (const nn::rank_failure&) {
      if (rank.rank() == 1) noticed.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      throw;
    }
  };
  bool is_lost = false;
  group.fail(1, "is late");
  CHECK_THROWS_WITH_AS(
      nn::run_ranks(group, body, {std::chrono::milliseconds(0), [&](const nn::rank_failure&) { is_lost = true; }}),
      "rank 1 is late", nn::rank_failure);
  CHECK(!is_lost);
}

TEST_CASE("the rank is named that waits for nobody") {
  const nn::process_rank_options soon{std::chrono::seconds(2)}, late{minute};
  const auto begin = [](nn::process_rank& rank, int barriers) {
    return std::async(std::launch::async, [&rank, barriers] {
      for (int i = 0; i < barriers; ++i) rank.barrier();
    });
  };
  const auto check = [](std::vector<std::future<void>> all, const std::string& said) {
    for (auto& rank : all) CHECK_THROWS_WITH_AS(rank.get(), said.c_str(), nn::rank_failure);
  };
  {  // rank 3 computes
    auto s = connect_all(4);
    nn::process_rank zero(0, std::move(s[0]), soon), one(1, std::move(s[1]), soon), two(2, std::move(s[2]), soon);
    nn::process_rank three(3, std::move(s[3]), late);
    std::vector<std::future<void>> all;
    for (nn::process_rank* const rank : {&zero, &one, &two}) all.push_back(begin(*rank, 1));
    check(std::move(all), "rank 3 did not come to gather within 2000 ms");
  }
  {  // rank 1 sleeps in a barrier that it has announced to rank 2 alone; rank 0 waits for rank 1, and rank 2 for both
    auto s = connect_all(3);
    const nn::rank_socket unused = std::exchange(s[1][0], {});
    nn::process_rank zero(0, std::move(s[0]), late), two(2, std::move(s[2]), soon);
    nn::process_rank one(1, std::move(s[1]), {minute, minute});
    std::vector<std::future<void>> all;
    all.push_back(begin(zero, 1));
    all.push_back(begin(one, 1));
    all.push_back(begin(two, 2));
    check(std::move(all), "rank 1 did not come to gather within 2000 ms");
    ::shutdown(unused.get(), SHUT_RDWR);
  }
  {  // rank 1 has said that it waits for rank 0, and sleeps since
    auto s = connect_all(3);
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const nn::rank_socket of_zero = std::exchange(s[1][0], nn::rank_socket(ends[0])), heard(ends[1]);
    nn::process_rank zero(0, std::move(s[0]), soon), one(1, std::move(s[1]), late), two(2, std::move(s[2]), soon);
    auto asleep = begin(one, 1);
    std::array<char, 80> frames;  // the barrier, and whom it waits for
    REQUIRE(nn::detail::receive_all(heard, frames.data(), frames.size(), std::chrono::steady_clock::now() + minute));
    REQUIRE(nn::detail::send_all(of_zero, frames.data(), frames.size(), std::chrono::steady_clock::now() + minute));
    std::vector<std::future<void>> all;
    for (nn::process_rank* const rank : {&zero, &two}) all.push_back(begin(*rank, 2));
    all.push_back(std::move(asleep));
    check(std::move(all), "rank 1 did not come to gather within 2000 ms");
    ::shutdown(of_zero.get(), SHUT_RDWR);
    ::shutdown(heard.get(), SHUT_RDWR);
  }
}

/// Ranks 0 and 2 of three wait for devices. `all_meet` makes them meet.
void check_idle(const std::vector<nn::communicator*>& ranks, bool one_waits, const std::function<void()>& all_meet,
                const char* said) {
  ranks[2]->note_wait(true);
  ranks[1]->note_wait(true);
  ranks[1]->note_wait(one_waits);
  all_meet();
  ranks[0]->abort_late(std::chrono::milliseconds(5));
  CHECK_THROWS_WITH_AS(ranks[0]->check(), said, nn::rank_failure);
  CHECK_THROWS_WITH_AS(ranks[1]->barrier(), said, nn::rank_failure);
}

TEST_CASE("a rank is named that does not wait for a device") {
  for (const bool one_waits : {false, true}) {
    const char* const said = one_waits ? "rank 0 waited for another rank's device for 5 ms"
                                       : "rank 1 did not come to a device's exchange within 5 ms";
    nn::rank_group group(3);
    nn::thread_rank a(group, 0), b(group, 1), c(group, 2);
    check_idle(
        {&a, &b, &c}, one_waits, [] {}, said);
    auto s = connect_all(3);
    const nn::process_rank_options quiet{minute, minute};
    nn::process_rank zero(0, std::move(s[0]), quiet), one(1, std::move(s[1]), quiet), two(2, std::move(s[2]), quiet);
    const auto meet = [&] {
      std::vector<std::future<void>> all;
      for (auto* rank : {&zero, &one, &two}) all.push_back(std::async(std::launch::async, [rank] { rank->barrier(); }));
    };
    check_idle({&zero, &one, &two}, one_waits, meet, said);
  }
}

/// A start of `size` ranks, each with the message that it ends with.
struct meeting {
  explicit meeting(int ranks, std::chrono::milliseconds timeout = minute) : size(ranks) {
    rank_0 = std::async(std::launch::async, [this, timeout] {
      return ended([&] { return nn::meet_as_first({0, size, true, "new", timeout}, first); });
    });
  }
  template <class Meet>
  static std::string ended(const Meet& meet) {
    try {
      (void)meet();
    } catch (const nn::rank_failure& e) {
      return e.what();
    }
    return "all are here";
  }
  /// Another rank, which finds an old file first.
  void come(int rank, int counted) {
    others.push_back(std::async(std::launch::async, [=, this, asked = 0]() mutable {
      return ended([&] {
        return nn::meet_first({rank, counted, true, "", minute}, [&] {
          return std::vector{std::pair{nn::rank_address{0, first.port()}, std::string(asked++ == 0 ? "old" : "new")}};
        });
      });
    }));
  }
  /// The socket of a rank that does no more than to say who it is.
  nn::rank_socket greet(int rank) const {
    const auto until = std::chrono::steady_clock::now() + minute;
    nn::rank_socket s = nn::detail::connect_to({0, first.port()}, until);
    const nn::detail::rank_hello hello = nn::detail::hello_of({rank, size, true, "new", minute}, 1);
    CHECK(nn::detail::send_all(s, &hello, sizeof hello, until));
    return s;
  }
  static void hear_first(const nn::rank_socket& s) {
    CHECK(nn::detail::read_note(s, std::chrono::steady_clock::now() + minute));
  }
  /// The message of all ranks.
  std::string said() {
    const std::string all = rank_0.get();
    for (auto& other : others) CHECK(other.get() == all);
    return all;
  }

  int size;
  nn::rank_listener first{true};
  std::future<std::string> rank_0;
  std::vector<std::future<std::string>> others;
};

TEST_CASE("ranks of another start, of another number or started twice are refused") {
  meeting whole(3);
  whole.come(2, 3);
  whole.come(1, 3);
  CHECK(whole.said() == "all are here");
  meeting number(2);
  number.come(1, 3);
  CHECK(number.said() == "rank 1 counts 3 ranks, rank 0 counts 2");
  meeting twice(3);
  nn::rank_socket one = twice.greet(1);
  twice.greet(1);
  twice.come(2, 3);
  twice.hear_first(one);
  one = {};
  CHECK(twice.said() == "rank 1 was started twice");
  meeting more(2);
  more.greet(2);
  more.come(1, 2);
  CHECK(more.said() == "rank 2 is no rank of this run");
}

TEST_CASE("all ranks name the one that is missing at the start") {
  meeting ended_early(4);
  ended_early.come(1, 4);
  ended_early.greet(3) = {};
  ended_early.come(2, 4);  // rank 0 knows by now, or soon
  CHECK(ended_early.said() == "rank 3 has ended");
  meeting late(3, std::chrono::seconds(1));
  const nn::rank_socket silent =
      nn::detail::connect_to({0, late.first.port()}, std::chrono::steady_clock::now() + minute);
  late.come(1, 3);
  CHECK(late.said() == "rank 2 did not come to the start in time");
  meeting connecting(4);  // all are here, but rank 2 does not connect to rank 1
  connecting.come(1, 4);
  connecting.come(3, 4);
  connecting.hear_first(connecting.greet(2));
  CHECK(connecting.said() == "rank 2 has ended");
  // A rank of another start is told so, even if it says who it is after all others.
  meeting other(2);
  const auto until = std::chrono::steady_clock::now() + minute;
  nn::rank_socket visitor = nn::detail::connect_to({0, other.first.port()}, until);
  other.come(1, 2);
  const auto note = nn::detail::read_note(visitor, until);
  CHECK((note && note->kind == nn::detail::rank_note::refusal));
  visitor = {};
  CHECK(other.said() == "all are here");
  meeting chain(4);  // rank 1 misses rank 2, which misses rank 3
  std::vector<nn::rank_socket> ranks;
  for (int r = 1; r < 4; ++r) ranks.push_back(chain.greet(r));
  for (const nn::rank_socket& r : ranks) chain.hear_first(r);
  for (int r = 1; r < 3; ++r) {
    nn::detail::send_failure(ranks[static_cast<std::size_t>(r) - 1], nn::rank_failure(r + 1, "cannot be reached"));
  }
  ranks.clear();
  CHECK(chain.said() == "rank 3 has ended");
}

/// The definition: the sum of the leaves below a node, as a text of parentheses.
std::string node(std::uint32_t first, std::uint32_t width, std::uint32_t leaves) {
  if (width == 1) return std::to_string(first);
  if (first + width / 2 >= leaves) return node(first, width / 2, leaves);
  return "(" + node(first, width / 2, leaves) + "+" + node(first + width / 2, width / 2, leaves) + ")";
}

TEST_CASE("a tree over any number of leaves has one order of additions, whichever ranks own them") {
  for (std::uint32_t leaves = 1; leaves <= nn::most_microbatches; ++leaves) {
    std::uint32_t width = 1;
    while (width < leaves) width *= 2;
    const std::string want = node(0, width, leaves);
    for (std::uint32_t ranks = 1; ranks <= leaves; ++ranks) {
      if (leaves % ranks != 0) continue;
      const std::uint32_t own = leaves / ranks;
      std::vector<std::pair<nn::leaf_range, std::string>> all;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        const nn::microbatch_sums sums({r * own, (r + 1) * own}, leaves);
        std::vector<std::string> waiting;
        for (std::uint32_t i = 0; i < own; ++i) {
          std::string sum = std::to_string(r * own + i);
          REQUIRE(sums.leaves()[i].waiting == static_cast<int>(waiting.size()));
          for (int m = 0; m < sums.leaves()[i].merges; ++m, waiting.pop_back())
            sum = "(" + waiting.back() + "+" + sum + ")";
          waiting.push_back(sum);
        }
        REQUIRE(sums.nodes().size() == waiting.size());
        if ((leaves & (leaves - 1)) == 0) CHECK((1u << sums.most_waiting() == own && waiting.size() == 1));
        for (std::size_t k = 0; k < waiting.size(); ++k) {
          std::pair now{sums.nodes()[k], waiting[k]};
          for (; !all.empty() && nn::are_siblings(all.back().first, now.first, leaves); all.pop_back()) {
            now = {{all.back().first.first, now.first.last}, "(" + all.back().second + "+" + now.second + ")"};
          }
          all.push_back(now);
        }
      }
      CHECK((all.size() == 1 && all[0].second == want));
    }
  }
}

}  // namespace host_ranks_test
