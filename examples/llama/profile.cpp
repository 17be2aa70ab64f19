// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <algorithm>
#include <cstdio>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "clock.hpp"
#include "exit_codes.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/philox.hpp"

#if defined(ROTOSCALE_LLAMA_DEVICES)
#include "gpu/api/gemm_library.hpp"
#include "gpu/api/train.hpp"
#endif

namespace rotoscale::llama_program {

#if !defined(ROTOSCALE_LLAMA_DEVICES)

int profile(const trainer_state&, const device_choice& device, bool, std::ostream&) {
  throw io::error("--device " + device.name, "this program was built for the CPU alone (Meson option gpu)");
}

#else

namespace {

constexpr const char* class_names[] = {"GEMM", "quantize",  "attention", "norm and activation",
                                       "loss", "optimizer", "copies",    "other"};
constexpr std::size_t class_count = std::size(class_names);
constexpr int name_width = 26;  // of the tables: no operation's name is longer

/// Which class an operation of nn::backend belongs to.
std::size_t class_of(std::string_view name) {
  constexpr struct {
    std::string_view begins;
    std::size_t number;
  } table[] = {{"gemm", 0},          {"quantize", 1},      {"dequantize", 1}, {"observe", 1},       {"compare", 1},
               {"update_scales", 1}, {"attention", 2},     {"rmsnorm", 3},    {"residual_norm", 3}, {"swiglu", 3},
               {"rope", 3},          {"add", 3},           {"dropout", 3},    {"embedding", 3},     {"cross", 4},
               {"sum_losses", 4},    {"gradient_norm", 5}, {"adamw", 5},      {"sum_squares", 5},   {"upload", 6},
               {"download", 6},      {"copy", 6},          {"fill_zero", 6}};
  for (const auto& entry : table) {
    // "add" is no beginning of another name, "adamw" none of add's.
    if (name.starts_with(entry.begins)) return entry.number;
  }
  return class_count - 1;
}

void expect(const gpu::status& s, const char* what) {
  if (!s.ok()) throw io::error(what, s.message());
}

/// Device memory that is given back.
class device_memory {
 public:
  explicit device_memory(std::size_t bytes) { expect(gpu::allocate(data_, bytes), "profile"); }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory() { (void)gpu::release(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Seconds of the fastest of five runs of `work`, which puts itself on the null stream.
template <class Work>
double best_seconds(const Work& work) {
  double best = 1e30;
  for (int i = 0; i < 6; ++i) {
    const double start = now_seconds();
    work();
    expect(gpu::synchronize(), "profile");
    if (i > 0) best = std::min(best, now_seconds() - start);
  }
  return best;
}

/// Bytes read and written a second by the device's own copy.
double measure_copy_rate() {
  const std::size_t bytes = std::size_t{1} << (std::string_view(gpu::build_mode()) == "host" ? 24 : 30);
  const device_memory from(bytes), to(bytes);
  expect(gpu::fill(from.data(), 1, bytes), "profile");
  return 2.0 * static_cast<double>(bytes) /
         best_seconds([&] { expect(gpu::copy(to.data(), from.data(), bytes), "profile"); });
}

/// Operations a second of the vendor library's BF16 GEMM; 0 in a build without one.
double measure_matrix_rate() {
  constexpr index_t n = 8192;
  if (std::string_view(gpu::build_mode()) == "host") return 0;
  const device_memory a(2 * n * n), b(2 * n * n), c(2 * n * n);
  for (const device_memory* m : {&a, &b}) expect(gpu::fill(m->data(), 0x3C, 2 * n * n), "profile");
  gpu::plain_problem p;
  const auto operand = [](const device_memory& m) {
    return gemm_operand{formats::bf16, n, n, static_cast<const std::uint8_t*>(m.data()), 2 * n};
  };
  p.a = operand(a);
  p.b = operand(b);
  p.out = c.data();
  gpu::plain_gemm plan;
  if (!gpu::plain_gemm::make(p, plan).ok()) return 0;
  const device_memory workspace(plan.workspace_bytes() + 1);
  return 2.0 * n * n * n /
         best_seconds([&] { expect(plan.run(p, workspace.data(), plan.workspace_bytes(), {}), "profile"); });
}

gpu::train_options options_for(const device_choice& device) {
  gpu::train_options o;
  o.device = device.number;
  o.graphs = device.graphs;
  return o;
}

/// A session on random tokens and targets, new ones in each step: a model that learns its tokens by heart has gradients
/// of a wider and wider range, which not every kernel takes as fast.
class random_run {
 public:
  random_run(const trainer_state& state, const gpu::train_options& options) : state_(state) {
    expect(gpu::make_device_backend(options, ops_), "--device");
    session_ = std::make_unique<llama::session>(*ops_, state.run.model, session_options_for(state.run, 0, false),
                                                std::vector{state.phases.front().recipe});
    session_->initialize(state.run.train.seed);
  }
  /// Seconds of a step, the median of `steps`. A step begins where the one before it ends: the next one is queued
  /// before the host waits, so that no step waits for the host.
  double train(int steps) {
    std::vector<std::vector<std::int32_t> > tokens, targets;
    for (int i = 0; i < steps; ++i) {
      tokens.push_back(draw());
      targets.push_back(draw());
    }
    std::vector<double> ends = {now_seconds()};
    for (std::size_t i = 0; i < tokens.size(); ++i, ++state_.step) {
      session_->train_step(step_inputs_for(state_), tokens[i], targets[i]);
      if (i > 0) end_step(session_->queued_steps() - 2, ends);
    }
    end_step(session_->queued_steps() - 1, ends);
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) ends[i] = ends[i + 1] - ends[i];
    ends.pop_back();
    std::sort(ends.begin(), ends.end());
    return 0.5 * (ends[(ends.size() - 1) / 2] + ends[ends.size() / 2]);
  }
  nn::backend& ops() const { return *ops_; }
  const llama::session& session() const { return *session_; }

 private:
  void end_step(std::uint64_t number, std::vector<double>& ends) {
    session_->finish_step(number);
    ends.push_back(now_seconds());
  }
  /// Tokens of a step that no other call returned.
  std::vector<std::int32_t> draw() {
    const random_stream words{state_.run.train.seed, 77};
    std::vector<std::int32_t> some(static_cast<std::size_t>(session_->step_tokens()));
    for (std::int32_t& token : some) {
      token = static_cast<std::int32_t>(words.word(drawn_++) % static_cast<std::uint32_t>(state_.run.model.vocab_size));
    }
    return some;
  }

  trainer_state state_;
  std::unique_ptr<nn::backend> ops_;
  std::unique_ptr<llama::session> session_;
  std::uint64_t drawn_ = 0;
};

/// A line of a table: what two steps' operations of one class or name took, a step.
struct timing_row {
  std::string name;
  double microseconds = 0, bytes = 0, operations = 0;
  int launches = 0;
};

/// Rows of `names`, each with the operations whose name `row_of` finds to be its number.
template <class RowOf>
std::vector<timing_row> rows_of(const std::vector<gpu::timed_operation>& timing, int steps,
                                const std::vector<std::string>& names, const RowOf& row_of) {
  std::vector<timing_row> rows;
  for (const std::string& name : names) rows.push_back({name});
  for (const gpu::timed_operation& t : timing) {
    timing_row& s = rows[row_of(t.name)];
    s.microseconds += t.microseconds / steps;
    s.bytes += static_cast<double>(t.bytes) / steps;
    s.operations += t.operations / steps;
    ++s.launches;
  }
  return rows;
}

std::vector<timing_row> rows_by_class(const std::vector<gpu::timed_operation>& timing, int steps) {
  return rows_of(timing, steps, {std::begin(class_names), std::end(class_names)}, class_of);
}

/// The longest first.
std::vector<timing_row> rows_by_operation(const std::vector<gpu::timed_operation>& timing, int steps) {
  std::set<std::string> found;
  for (const gpu::timed_operation& t : timing) found.emplace(t.name);
  const std::vector<std::string> names(found.begin(), found.end());
  auto rows = rows_of(timing, steps, names, [&](std::string_view name) {
    return static_cast<std::size_t>(std::lower_bound(names.begin(), names.end(), name) - names.begin());
  });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const timing_row& x, const timing_row& y) { return x.microseconds > y.microseconds; });
  return rows;
}

/// `head`: what rows are of.
void print_rows(const char* head, const std::vector<timing_row>& rows, int steps, double copy_rate, double matrix_rate,
                std::ostream& out) {
  char line[192];
  double total = 0;
  for (const timing_row& s : rows) total += s.microseconds;
  std::snprintf(line, sizeof line, "%-*s  calls        us   share     GB/s  of copy  TFLOP/s  of matrix\n", name_width,
                head);
  out << line;
  for (const timing_row& s : rows) {
    if (s.launches == 0) continue;
    const double seconds = std::max(s.microseconds, 1e-3) * 1e-6;
    std::snprintf(line, sizeof line, "%-*s %6d %9.1f %6.1f%% %8.0f %7.1f%%", name_width, s.name.c_str(),
                  (s.launches + steps - 1) / steps, s.microseconds, 100 * s.microseconds / std::max(total, 1e-3),
                  s.bytes / seconds * 1e-9, 100 * s.bytes / seconds / copy_rate);
    out << line;
    if (s.operations > 0) {
      std::snprintf(line, sizeof line, " %8.1f", s.operations / seconds * 1e-12);
      out << line;
      std::snprintf(line, sizeof line, " %8.1f%%", 100 * s.operations / seconds / matrix_rate);
      out << (matrix_rate > 0 ? line : "         -");  // a build without the vendor's library measures none
    }
    out << "\n";
  }
}

}  // namespace

int profile(const trainer_state& state, const device_choice& device, bool operations, std::ostream& out) {
  const std::string mode = gpu::build_mode();
  if (device.name == "cpu" || (device.name != "auto" && device.name != mode)) {
    throw io::error("--device " + device.name, "a profile is of a device; this program was built for " + mode);
  }
  constexpr int warm = 3, steps = 10, timed = 2;
  gpu::train_options o = options_for(device);
  double step_seconds = 0, eager_seconds = 0;
  const std::size_t phases = state.phases.size();
  const std::string phase = phases == 1 ? "" : " (the first of " + std::to_string(phases) + " phases)";
  char line[192];
  {
    random_run run(state, o);
    run.train(warm);
    step_seconds = run.train(steps);
    const auto tokens = static_cast<double>(run.session().step_tokens());
    std::snprintf(line, sizeof line, "%s, recipe %s%s, %.0f tokens a step\nstep %.3f ms, %.0f tokens/s\n",
                  run.ops().description().c_str(), state.phases.front().recipe.name.c_str(), phase.c_str(), tokens,
                  step_seconds * 1e3, tokens / step_seconds);
    out << line;
  }
  {
    gpu::train_options eager = o;
    eager.graphs = false;
    random_run run(state, eager);
    run.train(warm);
    eager_seconds = run.train(steps);
  }
  std::vector<gpu::timed_operation> timing;
  o.timing = &timing;
  random_run run(state, o);
  run.train(1);
  timing.clear();
  run.train(timed);
  const double copy_rate = measure_copy_rate(), matrix_rate = measure_matrix_rate();
  std::snprintf(line, sizeof line, "without graphs %.3f ms a step; copy %.0f GB/s", eager_seconds * 1e3,
                copy_rate * 1e-9);
  out << line;
  if (matrix_rate > 0) {
    std::snprintf(line, sizeof line, ", BF16 matrix product %.0f TFLOP/s", matrix_rate * 1e-12);
    out << line;
  }
  out << "\n\n";
  const auto classes = rows_by_class(timing, timed);
  print_rows("class", classes, timed, copy_rate, matrix_rate, out);
  double gaps = step_seconds * 1e6;
  for (const timing_row& row : classes) gaps -= row.microseconds;
  std::snprintf(line, sizeof line, "%-*s        %9.1f\n", name_width, "gaps", std::max(0.0, gaps));
  out << line;
  if (operations) {
    out << "\n";
    print_rows("operation", rows_by_operation(timing, timed), timed, copy_rate, matrix_rate, out);
  }
  return exit_ok;
}

#endif

}  // namespace rotoscale::llama_program
