// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Snapshots: a checkpoint written from a snapshot has the bytes of the moment it was taken, whenever a device copies.
#include "rotoscale/train/snapshot.hpp"

#include "rotoscale/io/scratch.hpp"
#include "rotoscale/nn/cpu/backend.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "session_case.hpp"

namespace snapshot_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace fs = std::filesystem;
namespace llama = rotoscale::llama;
namespace nn = rotoscale::nn;

/// Delays copies to the host on all queues but the first two until a thread waits for them, as a device may.
struct late_backend final : nn::cpu_backend {
  late_backend() : cpu_backend(1) {}
  void order(nn::queue after, const nn::event& before) override {
    run(before.of);
    cpu_backend::order(after, before);
    if (after.id == 2) ordered = true;
  }
  void synchronize(const nn::event& until) override {
    run(until.of);
    cpu_backend::synchronize(until);
  }
  void transfer(nn::queue q, nn::copy_kind kind, void* to, const void* from, std::size_t bytes) override {
    if (q.id < 2 || kind != nn::copy_kind::download) return cpu_backend::transfer(q, kind, to, from, bytes);
    CHECK(ordered);  // ordered after the steps so far
    waiting.push_back([=, this] { cpu_backend::transfer(q, kind, to, from, bytes); });
  }
  void run(nn::queue q) {
    if (q.id < 2) return;
    for (const auto& copy : waiting) copy();
    waiting.clear();
    ordered = false;
  }

  std::vector<std::function<void()>> waiting;
  bool ordered = false;
};

llama::session_options with_snapshot(llama::snapshot_use use) {
  auto options = session_case::options(1, 32, nullptr);
  options.snapshot = use;
  return options;
}

void check_same_files(const fs::path& a, const fs::path& b) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(a)) {
    CAPTURE(entry.path().filename().string());
    CHECK(io::testing::get(entry.path()) == io::testing::get(b / entry.path().filename()));
    ++files;
  }
  CHECK(files == 4);
}

TEST_CASE("a checkpoint of a snapshot has the bytes of when it was taken, and steps those without one") {
  const io::testing::scratch_directory folder;
  const batch data(1, 32, 64, false);
  const std::vector<nn::recipe> recipes = {preset("fp8_delayed"), preset("bf16")};
  late_backend ops;
  llama::session s(ops, small_config(false), with_snapshot(llama::snapshot_use::required), recipes);
  s.initialize(3);
  const auto count = ops.allocations();
  const auto step = [&](std::uint64_t number) {
    nn::step_inputs inputs;
    inputs.step = number;
    inputs.learning_rate = 0.01f;
    inputs.bias_correction1 = inputs.bias_correction2 = 1.0f;
    s.train_step(inputs, data.tokens, data.targets);
  };
  const auto write = [&](const std::string& name, const llama::checkpoint_tensors& tensors) {
    llama::write_checkpoint(folder / name, tensors, {{"step", 1}});
  };
  step(0);
  step(1);
  write("live", s);
  const auto taken = llama::checkpoint_tensors::snapshot_of(s);
  SUBCASE("steps follow") {
    step(2);
    step(3);
  }
  SUBCASE("another recipe follows") { s.use(recipes[1]); }
  SUBCASE("a load follows") { s.initialize(4); }
  SUBCASE("a reset follows") { s.reset(recipes[0]); }
  s.finish_snapshot();
  write("taken", taken);
  check_same_files(folder / "live", folder / "taken");
  CHECK(ops.allocations() == count);
  CHECK(s.in_use().fits(s.plan()));
}

}  // namespace snapshot_test
