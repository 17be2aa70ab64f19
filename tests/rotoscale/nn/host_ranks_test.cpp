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
  const auto deadline = std::chrono::steady_clock::now() + minute;
  const nn::rank_listener first(true);
  const std::pair place{nn::rank_address{0, first.port()}, std::string("nonce")};
  std::vector<std::future<std::vector<nn::rank_socket>>> met;
  for (int r = size - 1; r >= 0; --r) {
    const nn::rank_meeting m{r, size, true, "nonce", deadline};
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
  const nn::process_rank_options options{minute, std::chrono::milliseconds(0),
                                         [&](const nn::rank_failure& e) { lost.set_value(e.what()); }};
  nn::process_rank computes(0, std::move(sockets[0]), options), waits(1, std::move(sockets[1]), {minute});
  auto waiting = std::async(std::launch::async, [&] { waits.barrier(); });
  sockets[2].clear();  // as the system does after kill -9
  CHECK(lost.get_future().get() == "rank 2 has ended");
  CHECK_THROWS_WITH_AS(waiting.get(), "rank 2 has ended", nn::rank_failure);
  CHECK_THROWS_WITH_AS(computes.check(), "rank 2 has ended", nn::rank_failure);
  CHECK_THROWS_WITH_AS(computes.barrier(), "rank 2 has ended", nn::rank_failure);
}

TEST_CASE("ranks of another start, of another number or started twice are refused") {
  const auto deadline = std::chrono::steady_clock::now() + minute;
  const auto start = [&](const std::vector<nn::rank_meeting>& others, int size) {
    const nn::rank_listener first(true);
    std::vector<std::future<void>> come;
    for (const nn::rank_meeting& m : others) {
      come.push_back(std::async(std::launch::async, [&] {
        int asked = 0;  // an old file first, then the present one
        (void)nn::meet_first(m, [&] {
          return std::vector{std::pair{nn::rank_address{0, first.port()}, std::string(asked++ == 0 ? "old" : m.nonce)}};
        });
      }));
    }
    std::string said = "all are here";
    std::vector<nn::rank_socket> met;
    try {
      met = nn::meet_as_first({0, size, true, "new", deadline}, first);
    } catch (const nn::rank_failure& e) {
      said = e.what();
    }
    for (auto& c : come) {
      try {
        c.get();
      } catch (const nn::rank_failure& e) {
        CHECK((e.what() == said || e.rank() == 0));
      }
    }
    return said;
  };
  const auto rank = [&](int r, int size) { return nn::rank_meeting{r, size, true, "new", deadline}; };
  CHECK(start({rank(2, 3), rank(1, 3)}, 3) == "all are here");
  CHECK(start({rank(1, 2)}, 3) == "rank 1 counts 2 ranks, rank 0 counts 3");
  CHECK(start({rank(1, 3), rank(1, 3)}, 3) == "rank 1 was started twice");
  CHECK(start({rank(3, 3)}, 3) == "rank 3 is no rank of this run");
  CHECK_THROWS_WITH_AS((void)nn::meet_as_first({0, 2, true, "new", {}}, nn::rank_listener(true)),
                       "rank 1 did not come to the start in time", nn::rank_failure);
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
