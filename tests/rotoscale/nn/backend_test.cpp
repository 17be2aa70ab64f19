// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Queues, faults, graphs and planned memory, on the CPU.
#include "rotoscale/nn/backend.hpp"

#include <doctest/doctest.h>

#include "backend_memory.hpp"
#include "rotoscale/nn/cpu/make_backend.hpp"

namespace backend_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;

TEST_CASE("memory is zero at first, and copies go in and out") {
  const auto ops = nn::make_cpu_backend(1);
  const device_array<float> a(*ops, 5);
  CHECK(a.get() == std::vector<float>(5, 0.0f));
  a.set({1, 2, 3, 4, 5});
  const device_array<float> b(*ops, 5);
  ops->copy({}, b.data(), a.data(), 20);
  ops->fill_zero({}, a.data(), 20);
  CHECK(a.get() == std::vector<float>(5, 0.0f));
  CHECK(b.get() == std::vector<float>{1, 2, 3, 4, 5});
  CHECK(ops->allocations() == 2);
}

TEST_CASE("a fault shows at the next wait, with the operation's name, and the queue does nothing more") {
  const auto ops = nn::make_cpu_backend(1);
  const nn::queue q = ops->make_queue("compute"), other = ops->make_queue("copies");
  const device_array<float> table(*ops, 4 * 2), y(*ops, 3 * 2);
  const device_array<std::int32_t> tokens(*ops, std::vector<std::int32_t>{0, 4, 1});
  const device_array<nn::step_state> state(*ops, 1);
  table.set(std::vector<float>(8, 1.0f));
  const auto t = nn::dense_tensor(table.data(), nn::dtype::fp32, {4, 2});
  const auto out = nn::dense_tensor(y.data(), nn::dtype::fp32, {3, 2});
  ops->embedding_forward(q, {{tokens.data(), 3}, t, state.data()}, {out});  // does not throw yet
  ops->copy(q, y.data(), table.data(), 8);
  CHECK(y.get() == std::vector<float>(6, 0.0f));
  for (int i = 0; i < 2; ++i) {
    try {
      ops->synchronize(q);
      FAIL("no error");
    } catch (const nn::backend_error& e) {
      CHECK(e.operation() == "embedding_forward");
      CHECK(std::string(e.what()) == "embedding_forward: number 4 at 1 is outside a vocabulary of 4");
    }
  }
  ops->synchronize(other);  // the fault is of another queue
  const nn::event failed = ops->record(q);
  ops->order(other, failed);
  CHECK_THROWS_AS(ops->synchronize(other), nn::backend_error);
}

TEST_CASE("a queue that was given back is made again, without its fault") {
  const auto ops = nn::make_cpu_backend(1);
  nn::queue first, second;
  {
    const nn::owned_queue q(*ops, "one"), other(*ops, "two");
    first = q;
    second = other;
    ops->sum_losses(q, {nullptr, 8}, {nullptr});  // without workspace
    CHECK_THROWS_AS(ops->synchronize(first), nn::backend_error);
  }
  nn::owned_queue again(*ops, "one");
  CHECK(again == first);
  ops->synchronize(again);
  nn::owned_queue moved(std::move(again));
  again = {*ops, "three"};
  CHECK(moved == first);
  CHECK(again == second);
  CHECK(nn::owned_queue() == nn::queue{});
}

TEST_CASE("workspace that is too small is a fault") {
  const auto ops = nn::make_cpu_backend(1);
  const device_array<float> loss(*ops, 8);
  const device_array<nn::step_state> state(*ops, 1);
  ops->sum_losses({}, {loss.data(), 8}, {state.data()});
  CHECK_THROWS_WITH_AS(ops->synchronize(nn::queue{}), "sum_losses: needs 64 bytes of workspace, has 0",
                       nn::backend_error);
}

TEST_CASE("a graph sees memory as it is when it is launched") {
  const auto ops = nn::make_cpu_backend(1);
  const device_array<float> from(*ops, 1), to(*ops, 1);
  const auto graph = ops->capture({}, [&] { ops->copy({}, to.data(), from.data(), sizeof(float)); });
  CHECK(to.get()[0] == 0.0f);
  for (const float x : {1.0f, 2.0f}) {
    from.set({x});
    ops->launch({}, *graph);
    CHECK(to.get()[0] == x);
  }
}

TEST_CASE("step state: valid targets are counted, sums start anew, micro-batches advance") {
  const auto ops = nn::make_cpu_backend(1);
  const queue_workspace room(*ops);
  const device_array<std::int32_t> targets(*ops, std::vector<std::int32_t>{1, nn::ignored_target, 2, 3});
  const device_array<float> loss(*ops, std::vector<float>{0.5f, 0.0f, 1.0f, 2.0f});
  nn::step_state initial;
  initial.inputs.step = 7;
  initial.inputs.first_micro_batch = 1;
  initial.inputs.micro_batch_stride = 4;
  initial.inputs.last_micro_batch = 5;
  initial.loss_sum = 99.0;
  const device_array<nn::step_state> state(*ops, std::vector<nn::step_state>{initial});
  ops->begin_step({}, {targets.data(), 4}, {state.data()});
  ops->set_gradient_scale({}, {}, {state.data()});
  ops->sum_losses({}, {loss.data(), 4}, {state.data()});
  ops->next_micro_batch({}, {}, {state.data()});
  ops->next_micro_batch({}, {}, {state.data()});
  const nn::step_state s = state.get()[0];
  CHECK(s.inputs.step == 7);
  CHECK(s.valid_tokens == 3);
  CHECK(s.gradient_scale == static_cast<float>(1.0 / 3.0));
  CHECK(s.loss_sum == 3.5);
  CHECK(s.mean_loss() == 3.5 / 3);
  CHECK(s.micro_batch == 2);
  CHECK(s.global_micro_batch() == 9);
  // Only masked targets: no gradient, and no division by zero.
  const device_array<std::int32_t> masked(*ops, std::vector<std::int32_t>(4, nn::ignored_target));
  ops->begin_step({}, {masked.data(), 4}, {state.data()});
  ops->set_gradient_scale({}, {}, {state.data()});
  CHECK(state.get()[0].gradient_scale == 0.0f);
  CHECK(state.get()[0].mean_loss() == 0.0);
}

TEST_CASE("a memory cursor counts what it would give, and shares what is rewound") {
  using enum nn::memory_category;
  const auto lay_out = [](nn::memory_cursor& memory) {
    std::vector<void*> at{memory.take(masters, 100), memory.take(masters, 1), memory.take(workspace, 10)};
    const std::size_t mark = memory.mark(workspace);
    at.push_back(memory.take(workspace, 1000));
    memory.rewind(workspace, mark);
    at.push_back(memory.tensor(workspace, nn::dtype::bf16, 3, 5).data);
    return at;
  };
  nn::memory_cursor counting;
  for (void* at : lay_out(counting)) CHECK(at == nullptr);
  CHECK(counting.plan()[masters] == 512);
  CHECK(counting.plan()[workspace] == 256 + 1024);
  CHECK(counting.plan().total() == 512 + 1280);
  std::vector<std::byte> memory(4096);
  nn::arena_bases bases{};
  bases[static_cast<std::size_t>(masters)] = memory.data();
  bases[static_cast<std::size_t>(workspace)] = memory.data() + 1024;
  nn::memory_cursor giving(bases);
  const auto at = lay_out(giving);
  CHECK(at[1] == memory.data() + 256);
  CHECK(at[3] == memory.data() + 1024 + 256);
  CHECK(at[4] == at[3]);
  CHECK(giving.plan().bytes == counting.plan().bytes);
  nn::memory_plan more = counting.plan();
  more[stash] = 1;
  CHECK(counting.plan().fits(more));
  CHECK_FALSE(more.fits(counting.plan()));
  more.cover(counting.plan());
  CHECK(more.total() == 512 + 1280 + 1);
}

TEST_CASE("views: parts, heads, types") {
  std::vector<float> x(6 * 10);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const nn::tensor_view all = nn::dense_tensor(x.data(), nn::dtype::fp32, {6, 10});
  CHECK(all.size() == 60);
  const nn::const_tensor_view part = all.part(0, 2, 3).part(1, 4, 4);
  CHECK((part.extent(0) == 3 && part.extent(1) == 4));
  CHECK(nn::as_matrix<const float>(part)(1, 2) == 36.0f);
  const auto heads = nn::as<const float, 4>(nn::as_heads(all.part(1, 2, 6), 2, 3, 2));
  CHECK((heads.extent(0) == 2 && heads.extent(1) == 3 && heads.extent(2) == 3 && heads.extent(3) == 2));
  CHECK(heads(1, 2, 1, 1) == 5 * 10 + 2 + 2 + 1);
  CHECK(nn::size_of(nn::dtype_of<bf16>) == 2);
  CHECK(nn::size_of(nn::dtype::i64) == 8);
}

}  // namespace backend_test
