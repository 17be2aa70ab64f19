// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "rank_team.hpp"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "examples/standard_streams.hpp"
#include "front.hpp"
#include "launch.hpp"

#if defined(ROTOSCALE_TRAIN_DEVICES)
#include "gpu/api/device.hpp"
#endif

namespace rotoscale::program {

void end(const nn::rank_failure& e) {
  print_error(program_name, e.what());
  std::_Exit(exit_bad_input);
}

namespace {

/// Why ranks would not leave the bytes of one rank; nullopt: they do.
std::optional<std::string> find_scale_fault(const nn::recipe& r) {
  if (!nn::has_delayed(r) || (r.fp8.update == nn::scale_update::step && r.fp8.reduce_amax)) return std::nullopt;
  return "recipe " + r.name +
         ": each rank would have FP8 scales of its own; \"fp8\": {\"update\": \"step\", \"reduce_amax\": true} leaves "
         "the same bytes on any number of ranks, and --reduce library allows others";
}

/// Has the host more than one of these?
bool has_numbers(const device_choice& d) { return d.name == "cuda" || d.name == "hip"; }

/// Ranks of the CPU share its threads.
void choose_threads(const std::string& flag, int ranks, device_choice& d) {
  if (d.name != "auto" && d.name != "cpu") {
    throw io::error(flag, "are threads of the CPU (--device cpu); --gpus takes devices");
  }
  d.name = "cpu";
  const int all = d.threads > 0 ? d.threads : static_cast<int>(std::thread::hardware_concurrency());
  d.threads = std::max(1, all / ranks);
}

/// Throws io::error if this build or machine has fewer devices.
void choose_devices(const std::string& flag, int ranks, device_choice& d) {
#if defined(ROTOSCALE_TRAIN_DEVICES)
  if (d.name == "cpu") throw io::error(flag, "are devices, not --device cpu; --ranks takes threads");
  if (d.name == "auto") d.name = gpu::build_mode();
  int count = 0;
  const bool is_host = d.name == "host" || !gpu::count_devices(count).ok();  // the second is refused later
  if (!is_host && d.number + ranks > count) {
    throw io::error(flag, "from number " + std::to_string(d.number) + " (--device-number): there are " +
                              std::to_string(count) + " devices");
  }
#else
  (void)ranks, (void)d;
  throw io::error(flag, "this program was built for the CPU alone (Meson option gpu)");
#endif
}

}  // namespace

rank_team::rank_team(arguments& a)
    : size_(a.gpus > 0 ? a.gpus : a.session.ranks),
      flag_((a.gpus > 0 ? "--gpus " : "--ranks ") + std::to_string(size_)),
      timeout_(a.timeout),
      reduces_(a.session.reduce == "library"),
      group_(size_, timeout_),
      first_(group_, 0) {
  if (a.gpus > 0 && a.session.ranks > 1) throw io::error(flag_, "excludes --ranks");
  members_.resize(static_cast<std::size_t>(size_));
  if (!a.rendezvous.empty()) {
    join(a);
  } else if (a.gpus > 0) {
    choose_devices(flag_, size_, a.device);
  } else if (size_ > 1) {
    choose_threads(flag_, size_, a.device);
  }
  a.session.ranks = size_;
  if (size_ > 1 && !process_) a.session.communicator = &first_;
}

/// Becomes one of the processes of a launcher.
void rank_team::join(arguments& a) {
  const launch_place place = find_launch();
  if (a.device.name == "auto") a.device.name = "cpu";
  if (has_numbers(a.device)) a.device.number += place.local_rank;
  if (a.device.threads == 0) {
    a.device.threads =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, place.local_size));
  }
  process_.emplace(place.rank, meet_ranks(place, a.rendezvous, timeout_),
                   nn::process_rank_options{.timeout = timeout_, .lost = end});
  a.session.ranks = size_ = place.size;
  a.session.communicator = &*process_;
  a.session.own_process = true;
  flag_ = "--rendezvous of " + std::to_string(size_) + " ranks";
  if (place.rank != 0) a.session.roof.clear();
}

const chosen_backend& rank_team::open(const device_choice& choice) {
  choice_ = choice;
  members_[0].device = choose_backend(choice_);
  return members_[0].device;
}

void rank_team::link(member& own, nn::communicator& host) const {
#if defined(ROTOSCALE_TRAIN_DEVICES)
  if (size_ == 1 || own.device.ops->runs_at_once()) return;
  const gpu::rank_options options{.timeout = timeout_, .reduces = reduces_};
  const gpu::status s = gpu::make_device_rank(*own.device.ops, host, options, own.link);
  if (!s.ok()) throw io::error(flag_, s.message());
#else
  (void)own, (void)host;
#endif
}

void rank_team::link(arguments& a) {
  link(members_[0], process_ ? static_cast<nn::communicator&>(*process_) : first_);
  if (members_[0].link) a.session.communicator = members_[0].link.get();
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
  if (!a.digest_steps.empty()) throw io::error("--digest-steps", "digests are of one rank (" + flag_ + ")");
  const int microbatches = state.run.train.accumulate;
  if (microbatches % size_ != 0) {
    throw io::error(flag_, "must divide the " + std::to_string(microbatches) + " microbatches of a step (" +
                               a.names.name("train.accumulate") + ")");
  }
  for (const nn::resolved_phase& phase : state.phases) {
    if (reduces_) break;  // bits depend on ranks anyway
    if (const auto fault = find_scale_fault(phase.recipe)) throw io::error(flag_, *fault);
  }
}

std::string rank_team::memory_lines(const std::function<nn::memory_plan(nn::communicator*)>& plan_of) {
  using category = nn::memory_category;
  std::string lines;
  for (int r = 1; r < size_; ++r) {
    nn::thread_rank rank(group_, r);
    const nn::memory_plan plan = plan_of(&rank);
    lines += "rank " + std::to_string(r) + ": " + std::to_string(plan.total()) + " bytes, " +
             std::to_string(plan.of_kind(nn::memory_kind::device)) + " of them on the device";
    for (const auto c : {category::masters, category::gradients, category::moments, category::quantized}) {
      lines += ", " + std::string(to_string(c)) + " " + std::to_string(plan[c]);
    }
    lines += "\n";
  }
  return lines;
}

/// Trains as this process's first rank. `code` also holds if another rank fails later.
void rank_team::run_first(trainer& first, std::optional<int>& code) const {
  const auto& link = members_[0].link;
  if (link) link->connect();
  code = first.run();
  if (link) link->close();
}

/// Calls body(backend, communicator) as a rank of this process. Opens the device of another rank than the first.
void rank_team::run_as(nn::thread_rank& rank, const rank_body& body) {
  member& own = members_[static_cast<std::size_t>(rank.rank())];
  if (rank.rank() != 0) {
    device_choice choice = choice_;
    if (has_numbers(choice)) choice.number += rank.rank();
    own.device = choose_backend(choice);
    own.host = std::make_unique<nn::thread_rank>(group_, rank.rank());
    link(own, *own.host);
  }
  if (own.link) own.link->connect();
  body(*own.device.ops, own.link ? static_cast<nn::communicator&>(*own.link) : rank);
  if (own.link) own.link->close();
}

/// Trains as one of the other ranks.
void rank_team::run_other(nn::thread_rank& rank, const arguments& a, const trainer_state& state,
                          const std::optional<resume_point>& from) {
  run_as(rank, [&](nn::backend& ops, nn::communicator& link) {
    session_options session = a.session;
    session.communicator = &link;
    session.progress = false;
    session.roof.clear();
    trainer(ops, state, session, from).run();
  });
}

void rank_team::run_each(const rank_body& body) {
  nn::run_ranks(group_, [&](nn::thread_rank& rank) { run_as(rank, body); }, {.lost = end});
}

int rank_team::run(trainer& first, const arguments& a, const trainer_state& state,
                   const std::optional<resume_point>& from) {
  std::optional<int> code;
  if (size_ == 1 || process_) {
    run_first(first, code);
    return *code;
  }
  const auto body = [&](nn::thread_rank& rank) {
    if (rank.rank() != 0) return run_other(rank, a, state, from);
    run_first(first, code);
  };
  try {
    nn::run_ranks(group_, body, {.lost = end});
  } catch (const nn::rank_failure&) {
    if (!code || *code == 0) throw;  // else rank 0 has said why
  }
  return *code;
}

}  // namespace rotoscale::program
