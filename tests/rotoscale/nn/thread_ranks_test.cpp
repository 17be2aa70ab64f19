// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads: bytes arrive, all ranks see a failure. The tree of microbatches is one tree for all ranks.
#include "rotoscale/nn/thread_ranks.hpp"

#include <doctest/doctest.h>

#include <atomic>
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

TEST_CASE("a rank that gives up does not leave the others waiting") {
  nn::rank_group group(3);
  std::atomic<int> failed = 0;
  const auto body = [&](nn::thread_rank& rank) {
    if (rank.rank() == 2) throw std::domain_error("no more");
    std::int64_t x = 1;
    try {
      rank.sum({}, nn::dense_tensor(&x, nn::dtype::i64, {1}));
    } catch (const std::runtime_error&) {
      ++failed;
      throw;
    }
  };
  CHECK_THROWS_AS(nn::run_ranks(group, body), std::domain_error);
  CHECK(failed == 2);
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
