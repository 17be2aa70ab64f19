// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "prediction.hpp"

#include <algorithm>
#include <cmath>
#include <regex>

#include "format_text.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/nn/microbatch_tree.hpp"

namespace rotoscale::program {
namespace {

/// One GPU's step.
struct profiled_step {
  std::string name;  ///< device and recipe
  double tokens = 0, seconds = 0, optimizer = 0;
  double flops_per_token = 0;  ///< 0: not said
};

/// Reads what `profile` printed, from a file.
profiled_step read_profile(const std::string& path) {
  std::string text;
  try {
    text = io::read_file(path);
  } catch (const io::error& e) {
    throw io::error("--profile", e.what());
  }
  const auto number = [&](const char* pattern) {
    std::smatch found;
    return std::regex_search(text, found, std::regex(pattern)) ? std::stod(found[1]) : 0.0;
  };
  profiled_step p;
  p.name = text.substr(0, text.find(", ", text.find("recipe ")));
  p.tokens = number(R"(, (\d+) tokens a step)");
  p.seconds = number(R"(step ([\d.]+) ms, )") * 1e-3;
  p.optimizer = number(R"(optimizer +\d+ +([\d.]+))") * 1e-6;
  p.flops_per_token = number(R"(, ([\d.]+) GFLOP a token)") * 1e9;
  if (!(p.tokens > 0 && p.optimizer > 0 && p.seconds > p.optimizer))
    throw io::error("--profile", path + " is no output of profile");
  return p;
}

/// A rank of a cluster that is only planned.
class planned_rank final : public nn::communicator {
 public:
  planned_rank(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  int rank_, size_;
};

/// Seconds of a step.
struct predicted_step {
  double compute = 0, optimizer = 0;
  double reduced = 0, gathered = 0;  ///< bytes that a rank sends, and receives
  double reduce = 0, gather = 0;
  double shown_reduce = 0, shown_gather = 0;  ///< exchanges that no pass hides
  double frozen = 0, shown_frozen = 0;        ///< gathers of divided operands, in all passes
  double all() const { return compute + optimizer + shown_reduce + shown_gather + shown_frozen; }
};

predicted_step predict_step(const cluster& c, const predicted_run& run, const profiled_step& p, double scale, int own) {
  const double ranks = c.gpus * c.nodes, arena = 4 * run.trained;
  const double micro = (p.seconds - p.optimizer) * scale * run.tokens / p.tokens;
  const auto v = static_cast<std::uint32_t>(own * c.gpus * c.nodes);
  std::size_t nodes = 0;  // most exchanges of a rank
  for (std::uint32_t first = 0, n = static_cast<std::uint32_t>(own); first < v; first += n) {
    nodes = std::max(nodes, nn::microbatch_sums({first, first + n}, v).nodes().size());
  }
  /// Time in which a rank gets the other ranks' parts of `bytes`.
  const auto seconds_of = [&](double bytes) {
    const double near = bytes * (c.gpus - 1) / ranks, far = bytes * (ranks - c.gpus) / ranks;
    return (near > 0 ? near / (c.link * 1e9) : 0) + (far > 0 ? far / (c.node_link * 1e9) : 0);
  };
  predicted_step s;
  s.compute = micro * own;
  s.optimizer = p.optimizer * scale / ranks;
  const double reductions = run.reduces_each ? own : run.reduces_once ? 1 : static_cast<double>(nodes);
  s.reduced = arena * reductions * (ranks - 1) / ranks;
  s.gathered = run.gathered * (ranks - 1) / ranks;
  s.gather = seconds_of(run.gathered);
  s.reduce = seconds_of(arena) * reductions;
  const double passes = run.reduces_each ? own : 1;  // that hide the reductions
  s.shown_reduce = std::max(s.reduce - passes * micro * run.backward, s.reduce / run.groups);
  s.shown_gather = std::max(s.gather - micro * (1 - run.backward), s.gather / run.groups);
  const double pass = seconds_of(run.frozen);
  s.frozen = 2 * own * pass;
  s.shown_frozen = own * (std::max(pass - micro * (1 - run.backward), pass / run.groups) +
                          std::max(pass - micro * run.backward, 0.0));
  return s;
}

void print_memory(int ranks, int own, const predicted_run& run, std::ostream& out) {
  for (const int r : {0, ranks - 1}) {
    planned_rank rank(r, ranks);
    const nn::memory_plan plan = run.memory(rank, own);
    const auto gib = [](std::size_t bytes) { return static_cast<double>(bytes) * 0x1p-30; };
    const double arenas = gib(plan[nn::memory_category::masters] + plan[nn::memory_category::gradients] +
                              plan[nn::memory_category::moments]);
    const double all = gib(plan.of_kind(nn::memory_kind::device));
    out << format_text("%-12s %.1f GiB on the device: %.1f of FP32 arenas, %.1f of operands, %.1f of activations\n",
                       ("rank " + std::to_string(r)).c_str(), all, arenas, gib(plan[nn::memory_category::quantized]),
                       gib(plan[nn::memory_category::activations]));
    if (ranks == 1) return;
  }
}

}  // namespace

void predict(const cluster& c, const predicted_run& run, std::ostream& out) {
  const profiled_step p = read_profile(c.profile);
  const int ranks = c.gpus * c.nodes;
  if (c.gpus > 1 && c.link <= 0) throw io::error("--link", "is required: GB/s of a GPU to those of its node, each way");
  if (c.nodes > 1 && c.node_link <= 0) throw io::error("--node-link", "is required: GB/s of a GPU to other nodes");
  if (run.microbatches > ranks && run.microbatches % ranks != 0) {
    throw io::error("--accumulate",
                    std::to_string(run.microbatches) + " is no multiple of " + std::to_string(ranks) + " GPUs");
  }
  const int own = std::max(1, run.microbatches / ranks);
  const double scale = p.flops_per_token > 0 ? run.flops_per_token / p.flops_per_token : 1;
  const predicted_step s = predict_step(c, run, p, scale, own);
  const double tokens = static_cast<double>(run.tokens) * own * ranks;
  const double alone = s.compute + p.optimizer * scale,
               worst = s.compute + s.optimizer + s.reduce + s.gather + s.frozen;
  const auto line = [&](const char* name, const std::string& text) {
    out << format_text("%-12s ", name) << text << "\n";
  };
  line("prediction", format_text("%d nodes of %d GPUs, %d of %.0f microbatches each", c.nodes, c.gpus, own,
                                 static_cast<double>(own) * ranks));
  line("profile", p.name + format_text(", times %.3f for this model's FLOP a token", scale));
  line("compute", format_text("%.2f ms, optimizer %.2f ms", s.compute * 1e3, s.optimizer * 1e3));
  line("reduce", format_text("%.3f GB a rank each way, %.2f ms, %.2f of them after the backward pass", s.reduced * 1e-9,
                             s.reduce * 1e3, s.shown_reduce * 1e3));
  line("gather", format_text("%.3f GB a rank each way, %.2f ms, %.2f of them outside the next forward pass",
                             s.gathered * 1e-9, s.gather * 1e3, s.shown_gather * 1e3));
  if (s.frozen > 0) {
    line("frozen", format_text("%.3f GB gathered a pass, %.2f ms a step, %.2f of them not under the passes",
                               run.frozen * (1 - 1.0 / ranks) * 1e-9, s.frozen * 1e3, s.shown_frozen * 1e3));
  }
  line("step", format_text("%.2f ms, %.0f tokens/s; %.2f ms if nothing overlaps", s.all() * 1e3, tokens / s.all(),
                           worst * 1e3));
  line("efficiency", format_text("%.3f of one GPU with as many microbatches; %.3f if nothing overlaps", alone / s.all(),
                                 alone / worst));
  print_memory(ranks, own, run, out);
  line("assumed",
       format_text("links at full rate, no latency; near and far bytes one after the other; exchanges slow no kernel; "
                   "FP32 gradients; the last group of each exchange is waited for; any memory; backward pass %.2f of a "
                   "microbatch",
                   run.backward));
  if (own * ranks > static_cast<int>(nn::most_microbatches)) {
    line("limit", "train adds at most " + std::to_string(nn::most_microbatches) + " microbatches a step");
  }
}

}  // namespace rotoscale::program
