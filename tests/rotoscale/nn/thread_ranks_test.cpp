// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads: bytes arrive, all ranks see a failure. The tree of microbatches is one tree for all ranks.
#include "rotoscale/nn/thread_ranks.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <future>
#include <string>

namespace thread_ranks_test {

using namespace rotoscale;
namespace nn = rotoscale::nn;

TEST_CASE("bytes arrive where they are meant, integers are added, maxima are those of all") {
  for (const int size : {1, 2, 4}) {
    nn::rank_group group(size);
    nn::run_ranks(group, [&](nn::thread_rank& rank) {
      const auto n = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank.rank());
      // Rank r sends r + 1 bytes to each rank s, all of them 16 r + s.
      std::vector<std::vector<std::byte>> out, in;
      std::vector<std::span<const std::byte>> send;
      std::vector<std::span<std::byte>> receive;
      for (std::size_t s = 0; s < n; ++s) {
        send.emplace_back(out.emplace_back(own + 1, static_cast<std::byte>(16 * own + s)));
        receive.emplace_back(in.emplace_back(s + 1));
      }
      std::int64_t whole[] = {rank.rank(), -7};
      float most[] = {static_cast<float>(3 * rank.rank() % 4), 2.5f};
      for (int again = 0; again < 3; ++again) rank.transfer({}, send, receive);
      rank.sum({}, nn::dense_tensor(whole, nn::dtype::i64, {2}));
      rank.max({}, nn::dense_tensor(most, nn::dtype::fp32, {2}));
      for (std::size_t s = 0; s < n; ++s) {
        CHECK(in[s] == std::vector<std::byte>(s + 1, static_cast<std::byte>(16 * s + own)));
      }
      CHECK((whole[0] == size * (size - 1) / 2 && whole[1] == -7 * size));
      CHECK((most[0] == (size == 1 ? 0.0f : 3.0f) && most[1] == 2.5f));
    });
  }
}

/// The message that every rank ends with.
std::string failure_of(int size, const std::function<void(nn::thread_rank&)>& body,
                       std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  nn::rank_group group(size, timeout);
  std::mutex mutex;
  std::vector<std::string> said;
  try {
    nn::run_ranks(group, [&](nn::thread_rank& rank) {
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
  std::int64_t n = 0;
  float x = 0;
  const auto at = [](nn::thread_rank& rank, int number, const std::function<void()>& f) {
    if (rank.rank() == number) f();
  };
  const auto fail = [] { throw std::domain_error("no more"); };
  CHECK(failure_of(3, [](nn::thread_rank&) {}) == "");
  CHECK(failure_of(3, [&](nn::thread_rank& rank) { at(rank, 2, fail); }) == "rank 2 failed: no more");
  CHECK(failure_of(3, [&](nn::thread_rank& rank) { at(rank, 0, fail); }) == "no more");
  std::promise<void> failed;
  const auto sleep = [&](nn::thread_rank& rank) {
    at(rank, 1, [&] { failed.get_future().wait(); });
    try {
      rank.barrier();
    } catch (...) {
      at(rank, 0, [&] { failed.set_value(); });
      throw;
    }
  };
  CHECK(failure_of(2, sleep, std::chrono::milliseconds(50)) == "rank 1 did not come to gather within 50 ms");
  CHECK(failure_of(2, [&](nn::thread_rank& rank) {
          at(rank, 0, [&] { rank.sum({}, nn::dense_tensor(&n, nn::dtype::i64, {1})); });
          at(rank, 1, [&] { rank.max({}, nn::dense_tensor(&x, nn::dtype::fp32, {1})); });
        }) == "rank 1 is in max, rank 0 is in sum");
  CHECK(failure_of(3, [](nn::thread_rank& rank) {
          nn::require_equal_ranks(rank, {{"build", "a"}, {"seed", rank.rank() == 2 ? "7" : "5"}});
        }) == "rank 2 has seed 7, rank 0 has seed 5");
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

}  // namespace thread_ranks_test
