// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention's pipelines with TMA and with ping-pong scheduling, which host mode's units do not have. A mock unit
// records the calls in place of sm_90's. A copy completes when a thread waits for it, and threads spend several turns
// in their products.
#include "gpu/nn/attention_copies.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace nn_attention_copies_test {

using namespace rotoscale;
namespace tiles = gpu::tiles;
namespace host = gpu::host;

constexpr int tiles_of_block = 3, threads_of_block = 12;

/// Record of a block's threads, and the first violation.
struct block_log {
  int loads = 0;                        ///< copies started: positions 0, 1, ...
  int computed[threads_of_block] = {};  ///< positions started by a thread
  int left[threads_of_block] = {};      ///< positions that the thread has finished reading
  int pauses = 0;
  struct {
    int arrived = 0, phase = 0;
  } turns[tiles_of_block];  ///< named barriers
  std::string wrong;

  void demand(bool fulfilled, const char* what) {
    if (!fulfilled && wrong.empty()) wrong = what;
  }
  /// Lets other threads run. Returns false after too many calls.
  bool pause() {
    demand(++pauses < 100000, "a thread waits for what does not come");
    if (pauses < 100000) host::detail::state().suspend(host::detail::wait::ready, __FILE__, __LINE__);
    return pauses < 100000;
  }
};
block_log block;

/// A buffer and its barrier. A phase ends when the one copy into the buffer completes.
struct buffer_log {
  static constexpr int nothing = -1;
  bool is_initialized = false;
  unsigned phases = 0;  ///< completed phases
  int holds = nothing, coming = nothing;
};
struct log_engine {
  static constexpr bool exists = true;
  struct maps {};
  template <int Stages>
  struct barriers {
    buffer_log full[Stages];
  };
  template <int Stages>
  static void init(barriers<Stages>& b) {
    for (buffer_log& buffer : b.full) {
      block.demand(!buffer.is_initialized, "a barrier is initialized twice");
      buffer.is_initialized = true;
    }
  }
  template <int D, class Tile>
  static void load(const maps&, int, int position, int, Tile&, Tile&, buffer_log& to) {
    block.demand(to.is_initialized, "a copy before its barrier is there");
    block.demand(position == block.loads++, "positions are not loaded once each, in order");
    block.demand(to.coming == buffer_log::nothing, "two copies into a buffer");
    for (const int left : block.left) block.demand(to.holds < left, "a copy over what is still read");
    to.holds = buffer_log::nothing;
    to.coming = position;
  }
  static void wait(buffer_log& full, unsigned parity) {
    while (full.phases % 2 == parity) {
      if (full.coming != buffer_log::nothing) {
        full.holds = full.coming;
        full.coming = buffer_log::nothing;
        ++full.phases;
      } else if (!block.pause()) {
        return;
      }
    }
  }
};
struct log_unit {
  static constexpr int lanes = 1;
  using engine = log_engine;
  template <int D>
  struct tile {};
  static void publish() {}
  static void arrive(int tile) {
    if (++block.turns[tile].arrived < 2 * tiles::threads<log_unit>) return;
    block.turns[tile].arrived = 0;
    ++block.turns[tile].phase;
  }
  static void wait_for_turn(int tile) {
    const int phase = block.turns[tile].phase;
    arrive(tile);
    while (block.turns[tile].phase == phase && block.pause()) {
    }
  }
  static void signal_turn(int tile) { arrive(tile); }
};

template <int Stages, bool PingPong>
struct log_layout : tiles::block_layout<log_unit, gpu::tile_plan{tiles_of_block, 1, Stages, false, PingPong}> {
  static constexpr bool kept = false;
};

/// Runs a thread's pipeline over `count` positions.
template <class Layout, int Kept>
void run_thread(log_engine::barriers<Layout::plan.stages>& barriers, int count) {
  constexpr int stages = Layout::plan.stages;
  const int thread = static_cast<int>(gpu::thread_index().x), tile = thread / tiles::threads<log_unit>;
  const log_engine::maps maps;
  const tiles::tile_copies<log_unit, stages> copies{maps, barriers, Layout::producer};
  log_unit::tile<64> x, y;
  const auto load = [&](int position, int buffer) {
    const gpu::head_tensor<const bf16> none{};
    copies.template load<64, Layout::threads>(none, none, 0, 0, position, {}, true, x, y, buffer);
  };
  const auto next = [&](int& position) { return ++position < count; };
  const auto prepare = [&] {
    constexpr int ahead = stages - 1 - Kept;
    if (thread == Layout::producer) block.demand(block.loads == std::min(count, ahead), "no copies run ahead");
    gpu::block_barrier();
  };
  const auto compute = [&](int position, int buffer, const auto& signal_next) {
    const auto read = [&] {
      for (int k = 0; k <= std::min(Kept, position); ++k) {
        block.demand(barriers.full[(buffer + stages - k) % stages].holds == position - k,
                     "a buffer holds something else");
      }
      block.pause();
    };
    block.demand(position == block.computed[thread]++, "positions are not computed once each, in order");
    read();
    signal_next();
    for (int i = 0; i < 3 + tile; ++i) read();
    block.left[thread] = std::max(0, position - Kept + 1);
  };
  tiles::run_pipeline<Layout, Kept>(copies, tile, 0, load, next, prepare, compute);
}

template <int Stages, int Kept, bool PingPong>
void check_pipeline() {
  using layout = log_layout<Stages, PingPong>;
  static_assert(layout::threads == threads_of_block);
  for (const auto order : {host::thread_order::forward, host::thread_order::reverse, host::thread_order::shuffled}) {
    host::set_thread_order(order);
    for (int count = 1; count <= 9; ++count) {
      CAPTURE(Stages);
      CAPTURE(Kept);
      CAPTURE(PingPong);
      CAPTURE(count);
      block = {};
      log_engine::barriers<Stages> barriers;
      const char* const error =
          host::run_blocks({1, 1, 1}, {layout::threads, 1, 1}, 0, [&] { run_thread<layout, Kept>(barriers, count); });
      CHECK_MESSAGE(error == nullptr, error);
      CHECK(block.wrong == "");
      CHECK(block.loads == count);
      for (const int computed : block.computed) CHECK(computed == count);
      for (const buffer_log& buffer : barriers.full) CHECK(buffer.coming == buffer_log::nothing);
      for (const auto& turn : block.turns) CHECK(turn.arrived == 0);
    }
  }
  host::set_thread_order(host::thread_order::forward);
}

TEST_CASE("a queue of tiles loads each once, into a buffer that nobody reads, and waits for it") {
  check_pipeline<2, 0, false>();
  check_pipeline<3, 0, false>();
  check_pipeline<4, 1, false>();
}

TEST_CASE("the same where tiles take turns; none is left over") {
  check_pipeline<2, 0, true>();
  check_pipeline<3, 0, true>();
  check_pipeline<4, 1, true>();
  check_pipeline<6, 2, true>();
}

}  // namespace nn_attention_copies_test
