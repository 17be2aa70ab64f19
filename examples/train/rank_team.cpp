// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rank_team.hpp"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "examples/standard_streams.hpp"
#include "examples/threads.hpp"
#include "front.hpp"
#include "launch.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"

namespace rotoscale::program {

namespace {

/// Why ranks would not leave the bytes of one rank; nullopt: they do.
std::optional<std::string> find_scale_fault(const nn::recipe& r) {
  if (!nn::has_delayed(r) || (r.fp8.update == nn::scale_update::step && r.fp8.reduce_amax)) return std::nullopt;
  return "recipe " + r.name +
         ": FP8 scales change after each microbatch of a rank; \"fp8\": {\"update\": \"step\", \"reduce_amax\": true} "
         "leaves the same bytes on any number of ranks";
}

}  // namespace

rank_team::rank_team(arguments& a)
    : size_(a.session.ranks), group_(size_, std::chrono::seconds(a.timeout)), first_(group_, 0) {
  if (!a.rendezvous.empty()) join(a);
  if (size_ == 1 || process_) return;
  if (a.device.name != "auto" && a.device.name != "cpu") {
    throw io::error("--ranks", std::to_string(size_) + ": are threads of the CPU (--device cpu)");
  }
  a.device.name = "cpu";
  const int all = a.device.threads > 0 ? a.device.threads : static_cast<int>(std::thread::hardware_concurrency());
  a.device.threads = std::max(1, all / size_);
  a.session.communicator = &first_;
}

/// Becomes one of the processes of a launcher.
void rank_team::join(arguments& a) {
  if (a.device.name != "auto" && a.device.name != "cpu") {
    throw io::error("--rendezvous", "its ranks are of the CPU (--device cpu)");
  }
  const launch_place place = find_launch();
  a.device.name = "cpu";
  if (a.device.threads == 0) {
    a.device.threads =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, place.local_size));
  }
  const std::chrono::seconds timeout(a.timeout);
  const auto end = [](const nn::rank_failure& e) {
    print_error(program_name, e.what());
    std::_Exit(exit_bad_input);  // the run's thread computes; a kill leaves as little
  };
  process_.emplace(place.rank, meet_ranks(place, a.rendezvous, timeout),
                   nn::process_rank_options{.timeout = timeout, .lost = end});
  a.session.ranks = size_ = place.size;
  a.session.communicator = &*process_;
  a.session.own_process = true;
  if (place.rank != 0) a.session.roof.clear();
}

int rank_team::run_process(const std::function<int()>& body) {
  if (!process_) return body();
  std::optional<int> code;
  try {
    nn::run_rank(*process_, [&] { code = body(); });
  } catch (const nn::rank_failure&) {
    if (!code || *code == exit_ok) throw;  // else this process has said why
  }
  return *code;
}

void rank_team::check(const trainer_state& state, const arguments& a) const {
  if (size_ == 1) return;
  if (!a.digest_steps.empty()) throw io::error("--digest-steps", "digests are of one rank (--ranks)");
  const int microbatches = state.run.train.accumulate;
  const std::string flag = "--ranks " + std::to_string(size_);
  if (microbatches % size_ != 0) {
    throw io::error(flag, "must divide the " + std::to_string(microbatches) + " microbatches of a step (" +
                              a.names.name("train.accumulate") + ")");
  }
  for (const nn::resolved_phase& phase : state.phases) {
    if (const auto fault = find_scale_fault(phase.recipe)) throw io::error(flag, *fault);
  }
}

std::string rank_team::memory_lines(const std::function<nn::memory_plan(nn::communicator*)>& plan_of) {
  std::string lines;
  for (int r = 1; r < size_; ++r) {
    nn::thread_rank rank(group_, r);
    lines += "rank " + std::to_string(r) + ": " + std::to_string(plan_of(&rank).total()) + " bytes\n";
  }
  return lines;
}

int rank_team::run(trainer& first, const arguments& a, const trainer_state& state,
                   const std::optional<resume_point>& from) {
  if (size_ == 1 || process_) return first.run();
  std::optional<int> code;
  try {
    nn::run_ranks(group_, [&](nn::thread_rank& rank) {
      if (rank.rank() == 0) {
        code = first.run();
        return;
      }
      session_options own = a.session;
      own.communicator = &rank;
      own.progress = false;
      own.roof.clear();
      const auto ops = naming_threads([&] { return nn::make_cpu_backend(a.device.threads); });
      trainer(*ops, state, own, from).run();
    });
  } catch (const nn::rank_failure&) {
    if (!code || *code == 0) throw;  // else rank 0 has said why
  }
  return *code;
}

}  // namespace rotoscale::program
