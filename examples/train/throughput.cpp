// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "throughput.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "clock.hpp"
#include "examples/threads.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::program {

namespace {

/// Independent chains: more than a core has multiply-adds in flight.
constexpr std::size_t chains = 192;

/// Two operations a chain and round.
float run_chains(int rounds) {
  std::array<float, chains> sums{};
  for (std::size_t i = 0; i < chains; ++i) sums[i] = static_cast<float>(i);
  for (int r = 0; r < rounds; ++r) {
    for (float& s : sums) {
#if defined(FP_FAST_FMAF)
      s = std::fma(s, 0.99f, 0.5f);
#else
      s = s * 0.99f + 0.5f;
#endif
    }
  }
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

double measure(int threads) {
  constexpr int rounds = 200'000;
  thread_pool pool(threads);
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::vector<float> results(static_cast<std::size_t>(threads));
    const double start = now_seconds();
    pool.for_each(threads, [&](index_t i) { results[static_cast<std::size_t>(i)] = run_chains(rounds); });
    const double seconds = now_seconds() - start;
    const bool computed = std::all_of(results.begin(), results.end(), [](float x) { return std::isfinite(x); });
    if (computed) best = std::max(best, 2.0 * chains * rounds * threads / seconds);
  }
  return best;
}

}  // namespace

double model_flops_per_token(const train::model& m, int sequence) {
  double flops = 0;
  for (const train::weight_location& w : m.weights().locations()) {
    flops += (w.trains ? 6.0 : 4.0) * static_cast<double>(m.parameters()[w.number].size());
  }
  return flops + 6.0 * static_cast<double>(m.shape().attention_width) * sequence;
}

std::optional<roof> make_roof(const std::string& option, int threads) {
  if (option.empty()) return std::nullopt;
  if (option == "measure") {
    return roof{naming_threads([&] { return measure(threads); }),
                "measured: FP32 multiply-adds, " + std::to_string(threads) + " threads"};
  }
  char* end = nullptr;
  const double rate = std::strtod(option.c_str(), &end);
  if (*end != '\0' || !(rate > 0) || !std::isfinite(rate)) {
    throw io::error("--roof", "'" + option + "' is neither a rate in FLOP/s (such as 2.5e12) nor measure");
  }
  return roof{rate, "given"};
}

}  // namespace rotoscale::program
