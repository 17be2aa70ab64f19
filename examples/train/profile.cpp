// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama profile: time of a training step on a device or the CPU, by class of kernel and by operation.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "clock.hpp"
#include "commands.hpp"
#include "device_failure.hpp"
#include "format_text.hpp"
#include "front.hpp"
#include "random_run.hpp"
#include "rotoscale/io/file.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"
#include "rotoscale/parallel.hpp"

#if defined(ROTOSCALE_TRAIN_DEVICES)
#include "gpu/api/gemm_library.hpp"
#include "gpu/api/train.hpp"
#endif

namespace rotoscale::program {

namespace {

/// By nn::op_class.
constexpr const char* class_names[] = {"GEMM", "quantize",  "attention", "norm and activation",
                                       "loss", "optimizer", "copies",    "other"};
constexpr int name_width = 26;  // of the tables: no operation's name is longer

/// Measured without a session, whose model may leave no memory.
struct measured_rates {
  double copy = 0;    ///< bytes read and written a second
  double matrix = 0;  ///< operations a second of BF16's product; 0: not measured
};

/// Seconds of the fastest of five runs of `work`.
template <class Work>
double best_seconds(const Work& work) {
  double best = 1e30;
  for (int i = 0; i < 6; ++i) {
    const double start = now_seconds();
    work();
    if (i > 0) best = std::min(best, now_seconds() - start);
  }
  return best;
}

measured_rates measure_cpu_rates(int threads) {
  constexpr index_t bytes = index_t{1} << 27, part = index_t{1} << 20;
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
  thread_pool pool(threads);
  return {2.0 * static_cast<double>(bytes) / best_seconds([&] {
            for_each_chunk(pool, bytes, part, [&](index_t first, index_t last) {
              std::memcpy(to.data() + first, from.data() + first, static_cast<std::size_t>(last - first));
            });
          }),
          0};
}

#if defined(ROTOSCALE_TRAIN_DEVICES)

void expect(const gpu::status& s) {
  if (!s.ok()) throw nn::backend_error("profile", s.message(), gpu::is_of_device(s));
}

/// Device memory, freed by the destructor.
class device_memory {
 public:
  explicit device_memory(std::size_t bytes) { expect(gpu::allocate(data_, bytes)); }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory() { (void)gpu::release(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// best_seconds of a launch on the null stream.
template <class Launch>
double best_device_seconds(const Launch& launch) {
  return best_seconds([&] {
    expect(launch());
    expect(gpu::synchronize());
  });
}

/// Bytes read and written a second by the device's own copy.
double measure_copy_rate() {
  const std::size_t bytes = std::size_t{1} << (std::string_view(gpu::build_mode()) == "host" ? 24 : 30);
  const device_memory from(bytes), to(bytes);
  expect(gpu::fill(from.data(), 1, bytes));
  return 2.0 * static_cast<double>(bytes) /
         best_device_seconds([&] { return gpu::copy(to.data(), from.data(), bytes); });
}

/// Operations a second of the vendor library's BF16 GEMM; 0 in a build without one.
double measure_matrix_rate() {
  constexpr index_t n = 8192;
  if (std::string_view(gpu::build_mode()) == "host") return 0;
  const device_memory a(2 * n * n), b(2 * n * n), c(2 * n * n);
  for (const device_memory* m : {&a, &b}) expect(gpu::fill(m->data(), 0x3C, 2 * n * n));
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
         best_device_seconds([&] { return plan.run(p, workspace.data(), plan.workspace_bytes(), {}); });
}

measured_rates measure_device_rates() {
  // The driver clears freed memory, which would slow the measurement.
  if (std::string(gpu::build_mode()) != "host") std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double copy = measure_copy_rate();
  return {copy, measure_matrix_rate()};
}

#endif

/// Makes the backend to profile. `timing`: appends every operation that is waited for, or null.
using make_backend = std::function<std::unique_ptr<nn::backend>(bool graphs, std::vector<nn::timed_operation>* timing)>;

/// A run and its backend.
struct device_run {
  device_run(const trainer_state& state, std::unique_ptr<nn::backend> made, const train::session_options& options)
      : ops(std::move(made)), steps(state, *ops, options) {}
  std::unique_ptr<nn::backend> ops;
  random_run steps;
};

/// A line of a table: operations of one class or name, per step.
struct timing_row {
  std::string name;
  double microseconds = 0, bytes = 0, operations = 0;
  int launches = 0;
};

/// Rows of `names`. `row_of` maps an operation to the number of its row.
template <class RowOf>
std::vector<timing_row> rows_of(const std::vector<nn::timed_operation>& timing, int steps,
                                const std::vector<std::string>& names, const RowOf& row_of) {
  std::vector<timing_row> rows;
  for (const std::string& name : names) rows.push_back({name});
  for (const nn::timed_operation& t : timing) {
    timing_row& s = rows[row_of(t)];
    s.microseconds += t.microseconds / steps;
    s.bytes += static_cast<double>(t.bytes) / steps;
    s.operations += t.operations / steps;
    ++s.launches;
  }
  return rows;
}

std::vector<timing_row> rows_by_class(const std::vector<nn::timed_operation>& timing, int steps) {
  return rows_of(timing, steps, {std::begin(class_names), std::end(class_names)},
                 [](const nn::timed_operation& t) { return static_cast<std::size_t>(t.kind); });
}

/// The longest first.
std::vector<timing_row> rows_by_operation(const std::vector<nn::timed_operation>& timing, int steps) {
  std::set<std::string> found;
  for (const nn::timed_operation& t : timing) found.emplace(t.name);
  const std::vector<std::string> names(found.begin(), found.end());
  auto rows = rows_of(timing, steps, names, [&](const nn::timed_operation& t) {
    return static_cast<std::size_t>(std::lower_bound(names.begin(), names.end(), t.name) - names.begin());
  });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const timing_row& x, const timing_row& y) { return x.microseconds > y.microseconds; });
  return rows;
}

/// `head` is the title of the first column.
void print_rows(const char* head, const std::vector<timing_row>& rows, int steps, const measured_rates& rates,
                std::ostream& out) {
  double total = 0;
  for (const timing_row& s : rows) total += s.microseconds;
  out << format_text("%-*s  calls        us   share     GB/s  of copy  TFLOP/s   of BF16\n", name_width, head);
  for (const timing_row& s : rows) {
    if (s.launches == 0) continue;
    const double seconds = std::max(s.microseconds, 1e-3) * 1e-6;
    out << format_text("%-*s %6d %9.1f %6.1f%% %8.0f %7.1f%%", name_width, s.name.c_str(),
                       (s.launches + steps - 1) / steps, s.microseconds, 100 * s.microseconds / std::max(total, 1e-3),
                       s.bytes / seconds * 1e-9, 100 * s.bytes / seconds / rates.copy);
    if (s.operations > 0) {  // a build without the vendor's library measures no rate
      out << format_text(" %8.1f", s.operations / seconds * 1e-12)
          << (rates.matrix > 0 ? format_text(" %8.1f%%", 100 * s.operations / seconds / rates.matrix) : "         -");
    }
    out << "\n";
  }
}

/// Bytes of the plan. If the device's runtime tells: bytes in use on it, other programs included.
std::string memory_line(const nn::memory_plan& plan, [[maybe_unused]] bool on_cpu) {
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) * 0x1p-20; };
  std::string line = format_text("memory %.1f MiB on the device by plan", mib(plan.of_kind(nn::memory_kind::device)));
#if defined(ROTOSCALE_TRAIN_DEVICES)
  std::size_t free = 0, total = 0;
  if (!on_cpu && gpu::memory_info(free, total).ok()) line += format_text(", %.1f MiB in use on it", mib(total - free));
#endif
  return line + "\n";
}

constexpr int timed_steps = 2;

/// Returns the seconds of a training step and prints the profile. `memory` becomes the line about memory after these
/// steps.
double profile_steps(random_run& run, const device_choice& device, std::string& memory, std::ostream& out) {
  run.train(warm_steps);
  const double seconds = run.train(measured_steps);
  memory = memory_line(run.plan(), device.name == "cpu");
  out << run.step_lines(seconds) << (device.graphs ? "" : ", without graphs") << "\n";
  return seconds;
}

/// `eager_seconds`: of a step without graphs; 0: the profile is of one.
void print_rates(double eager_seconds, const measured_rates& rates, std::ostream& out) {
  if (eager_seconds > 0) out << format_text("without graphs %.3f ms a step; ", eager_seconds * 1e3);
  out << format_text("copy %.0f GB/s", rates.copy * 1e-9);
  if (rates.matrix > 0) out << format_text(", BF16 matrix product %.0f TFLOP/s", rates.matrix * 1e-12);
  out << "\n";
}

void print_profile(const trainer_state& state, const device_choice& device, const profile_options& o,
                   const make_backend& make, const std::function<measured_rates()>& measure_rates, std::ostream& out) {
  // One session at a time, because memory may hold only one.
  const auto begin = [&](bool graphs, std::vector<nn::timed_operation>* timing) {
    return std::make_unique<device_run>(state, make(graphs, timing),
                                        session_options_for(state.run, o.memory_limit, false));
  };
  std::string memory;
  auto run = begin(device.graphs, nullptr);
  const nn::memory_plan plan = run->steps.plan();
  const double step_seconds = profile_steps(run->steps, device, memory, out);
  run.reset();
  double eager_seconds = 0;
  if (device.graphs && device.name != "cpu") {
    run = begin(false, nullptr);
    run->steps.train(warm_steps);
    eager_seconds = run->steps.train(measured_steps);
    run.reset();
  }
  std::vector<nn::timed_operation> timing;
  run = begin(false, &timing);
  run->steps.train(1);
  timing.clear();
  run->steps.train(timed_steps);
  run.reset();
  const measured_rates rates = with_plan(plan, "while its rates were measured", measure_rates);
  print_rates(eager_seconds, rates, out);
  out << memory << "\n";
  const auto classes = rows_by_class(timing, timed_steps);
  print_rows("class", classes, timed_steps, rates, out);
  double gaps = step_seconds * 1e6;
  for (const timing_row& row : classes) gaps -= row.microseconds;
  out << format_text("%-*s        %9.1f\n", name_width, "gaps", std::max(0.0, gaps));
  if (o.operations) {
    out << "\n";
    print_rows("operation", rows_by_operation(timing, timed_steps), timed_steps, rates, out);
  }
}

}  // namespace

int profile(const trainer_state& state, const device_choice& choice, const profile_options& o, std::ostream& out) {
  device_choice device = choice;
#if !defined(ROTOSCALE_TRAIN_DEVICES)
  if (device.name == "auto") device.name = "cpu";
#endif
  if (device.name == "cpu") {
    const auto make = [&](bool, std::vector<nn::timed_operation>* timing) {
      return nn::make_cpu_backend(device.threads, timing);
    };
    print_profile(
        state, device, o, make, [&] { return measure_cpu_rates(device.threads); }, out);
    return exit_ok;
  }
#if defined(ROTOSCALE_TRAIN_DEVICES)
  const std::string mode = gpu::build_mode();
  if (device.name != "auto" && device.name != mode) {
    throw io::error("--device " + device.name, "this program was built for cpu and " + mode + " (Meson option gpu)");
  }
  const auto make = [&](bool graphs, std::vector<nn::timed_operation>* timing) {
    gpu::train_options options;
    options.graphs = graphs;
    options.timing = timing;
    return make_device(device, options, "");
  };
  print_profile(state, device, o, make, measure_device_rates, out);
  return exit_ok;
#else
  throw io::error("--device " + device.name, "this program was built for the CPU alone (Meson option gpu)");
#endif
}

}  // namespace rotoscale::program
