// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama profile --gpus: time of a step on several GPUs, and of their exchanges by class. An exchange is hidden
// while the compute queue does not wait. Times are time stamps of the queues.
#include <algorithm>
#include <ostream>
#include <stdexcept>
#include <vector>

#include "commands.hpp"
#include "format_text.hpp"
#include "front.hpp"
#include "random_run.hpp"
#include "rank_team.hpp"

namespace rotoscale::program {

#if defined(ROTOSCALE_TRAIN_DEVICES)

namespace {

using gpu::queue_interval;
using kind = queue_interval::kind;
constexpr int stamped_steps = 3;

/// Of a rank.
struct rank_profile {
  std::string head;  ///< device, recipe, tokens and time of a step
  double eager_seconds = 0;
  bool at_once = false;  ///< operations run when they are queued, so that exchanges are waited for
  std::vector<queue_interval> times;
};

/// Microseconds of an interval in which the compute queue did not wait.
double hidden_of(const queue_interval& x, const rank_profile& p) {
  if (p.at_once || x.what == kind::small) return 0;
  double waited = 0;
  for (const queue_interval& w : p.times) {
    if (w.what == kind::wait) waited += std::max(0.0, std::min(w.end, x.end) - std::max(w.begin, x.begin));
  }
  return x.end - x.begin - waited;
}

/// Microseconds of all collectives of a kind, each on its fastest rank. Throws std::logic_error if ranks have other
/// numbers of them.
double fastest_of(const char* name, kind what, const std::vector<rank_profile>& ranks) {
  std::vector<std::vector<double>> lengths;  // by rank
  for (const rank_profile& r : ranks) {
    std::vector<double>& own = lengths.emplace_back();
    for (const queue_interval& x : r.times) {
      if (x.what == what) own.push_back(x.end - x.begin);
    }
    if (own.size() == lengths[0].size()) continue;
    throw std::logic_error(format_text("%s: rank %zu has %zu of them, rank 0 has %zu", name, lengths.size() - 1,
                                       own.size(), lengths[0].size()));
  }
  double sum = 0;
  for (std::size_t i = 0; i < lengths[0].size(); ++i) {
    double least = lengths[0][i];
    for (const std::vector<double>& own : lengths) least = std::min(least, own[i]);
    sum += least;
  }
  return sum;
}

/// A line of the table: per step, of rank 0. Collectives alone are compared with those of other ranks.
void print_row(const char* name, kind what, const std::vector<rank_profile>& ranks, std::ostream& out) {
  const rank_profile& own = ranks.front();
  int calls = 0;
  double time = 0, bytes = 0, hidden = 0;
  for (const queue_interval& x : own.times) {
    if (x.what != what) continue;
    ++calls;
    time += x.end - x.begin;
    bytes += static_cast<double>(x.bytes);
    hidden += hidden_of(x, own);
  }
  const bool is_collective = what != kind::other && what != kind::wait;
  const double fastest = is_collective ? fastest_of(name, what, ranks) : time;
  if (calls == 0) return;
  const auto per_step = [](double x) { return x / stamped_steps; };
  out << format_text("%-17s %6d %9.1f", name, (calls + stamped_steps - 1) / stamped_steps, per_step(time));
  if (what != kind::wait) {
    out << (is_collective ? format_text(" %9.1f", per_step(fastest)) : std::string(10, ' '))
        << format_text(" %9.2f %7.1f %9.1f %6.1f%%", per_step(bytes) * 1e-6, bytes / std::max(fastest, 1e-3) * 1e-3,
                       per_step(hidden), 100 * hidden / std::max(time, 1e-3));
  }
  out << "\n";
}

rank_profile profile_rank(const trainer_state& state, const train::session_options& options, nn::backend& ops,
                          nn::communicator& ranks) {
  rank_profile p;
  p.at_once = ops.runs_at_once();
  const auto times = gpu::make_rank_times(ops, ranks);
  random_run run(state, ops, options, times.get());
  run.train(warm_steps);
  p.head = run.step_lines(run.train(measured_steps));
  const auto stamped = [&] {
    times->begin(run.session().queue());
    p.eager_seconds = run.train(stamped_steps);
    return with_plan(run.plan(), "in a step", [&] { return times->end(); });
  };
  (void)stamped();  // the first launches
  p.times = stamped();
  return p;
}

}  // namespace

int profile_ranks(arguments& a, const trainer_state& state, std::ostream& out) {
  rank_team team(a);
  team.check(state, a);
  train::session_options options = session_options_for(state.run, a.session.memory_limit, false);
  options.divides_frozen = a.session.divide_frozen;
  from_string(a.session.shard, options.shard);
  from_string(a.session.reduce, options.reduce);
  team.open(a.device);
  team.link(a);
  std::vector<rank_profile> ranks(static_cast<std::size_t>(a.session.ranks));
  team.run_each([&](nn::backend& ops, nn::communicator& own) {
    ranks[static_cast<std::size_t>(own.rank())] = profile_rank(state, options, ops, own);
  });
  out << a.gpus << " x " << ranks[0].head << (a.device.graphs ? "" : ", without graphs") << "\n"
      << format_text("with time stamps, without graphs %.3f ms a step\n\n", ranks[0].eager_seconds * 1e3)
      << "exchange           calls        us   fastest        MB    GB/s    hidden us\n";
  print_row("reduce", kind::reduce, ranks, out);
  print_row("gather", kind::gather, ranks, out);
  print_row("small exchanges", kind::small, ranks, out);
  print_row("sums and copies", kind::other, ranks, out);
  print_row("waits", kind::wait, ranks, out);
  return exit_ok;
}

#else

int profile_ranks(arguments& a, const trainer_state&, std::ostream&) {
  rank_team refuses(a);
  return exit_ok;
}

#endif

}  // namespace rotoscale::program
