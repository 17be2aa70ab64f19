// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Pipeline of attention tiles into shared memory, by all threads (cp.async) or by TMA. It runs with a block barrier per
// pair of tiles, or with ping-pong scheduling.
#pragma once

#include "gpu/dialect/async_copy.hpp"
#include "gpu/nn/attention_tiles.hpp"

namespace rotoscale::gpu::tiles {

template <class T>
__device__ inline std::uint32_t load_two(const T* x) {
  return bf16_pair(attention_load(x), attention_load(x + 1));
}
__device__ inline std::uint32_t load_two(const bf16* x) {
  return x[0].bits() | static_cast<std::uint32_t>(x[1].bits()) << 16;
}

/// Loads rows [first, first + 64) of a head as BF16, zero outside the tensor, which starts at row `begin`. The tile is
/// there after wait_for_copies and a barrier. `thread`: index of the caller among Threads. `vectors`: rows are aligned
/// to 16 bytes.
template <class Unit, int D, int Threads, class T>
__device__ void load_tile(int thread, const head_tensor<const T>& x, int b, int h, int first, const attention_shape& n,
                          bool vectors, tile_of<Unit, D>& to, int begin = 0) {
  constexpr int vectors_of_row = D / 8, across = Threads / vectors_of_row;  // rows per step
  static_assert(Threads % vectors_of_row == 0);
  const int row0 = thread / vectors_of_row, column = thread % vectors_of_row * 8;
  const T* from = x.row(b, first + row0, h) + column;
  // Whole tile, whole rows: no bounds checks.
  if (sizeof(T) == 2 && vectors && first >= begin && first + tile <= n.seq && n.dim == D) {
    ROTOSCALE_UNROLL
    for (int row = 0; row < tile; row += across, from += across * x.token) {
      if (tile % across != 0 && row0 + row >= tile) break;
      copy_async(reinterpret_cast<vec16*>(to.codes + to.place(row0 + row, column)), from);
    }
    return;
  }
  ROTOSCALE_UNROLL
  for (int row = 0; row < tile; row += across, from += across * x.token) {
    if (tile % across != 0 && row0 + row >= tile) break;
    auto* const place = reinterpret_cast<vec16*>(to.codes + to.place(row0 + row, column));
    const bool inside = has_row(first + row0 + row, begin, n.seq) && column < n.dim;
    if (sizeof(T) == 2 && vectors && inside) {
      copy_async(place, from);
      continue;
    }
    vec16 v = {};
    if (inside) {
      ROTOSCALE_UNROLL
      for (int w = 0; w < 4; ++w) v.word[w] = load_two(from + 2 * w);
    }
    *place = v;
  }
}

/// Waits until the block's copies are visible to all of its threads.
template <class Unit>
__device__ void finish_copies() {
  wait_for_copies();
  Unit::publish();
  block_barrier();
}

/// Copies pairs of tiles into buffers: by TMA if the unit has it, otherwise by all threads.
template <class Unit, int Stages>
struct tile_copies {
  using engine = typename Unit::engine;
  const typename engine::maps& maps;
  typename engine::template barriers<Stages>& barriers;
  int producer = 0;  ///< the thread that starts TMA copies

  /// Call it before a block barrier.
  __device__ void init() const {
    if constexpr (engine::exists) {
      if (static_cast<int>(thread_index().x) == producer) engine::init(barriers);
    }
  }
  /// Starts copies of rows [first, first + 64) of head h of x and y.
  template <int D, int Threads, class T>
  [[gnu::always_inline]] __device__ void load(const head_tensor<const T>& x, const head_tensor<const T>& y, int b,
                                              int h, int first, const attention_shape& n, bool vectors,
                                              tile_of<Unit, D>& to_x, tile_of<Unit, D>& to_y, int buffer) const {
    const int thread = static_cast<int>(thread_index().x);
    if constexpr (engine::exists) {
      if (thread == producer) engine::template load<D>(maps, h, first, b, to_x, to_y, barriers.full[buffer]);
    } else {
      load_tile<Unit, D, Threads>(thread, x, b, h, first, n, vectors, to_x);
      load_tile<Unit, D, Threads>(thread, y, b, h, first, n, vectors, to_y);
    }
  }
  /// Ends a group of cp.async copies. TMA needs none.
  __device__ void end_group() const {
    if constexpr (!engine::exists) end_copy_group();
  }
  /// Waits for TMA copies into `buffer`: for the phase of its barrier with this parity.
  __device__ void wait(int buffer, unsigned parity) const {
    if constexpr (engine::exists) engine::wait(barriers.full[buffer], parity);
  }
};

/// Ring of Stages buffers for pairs of tiles that load(position, buffer) copies. Stages - 1 - Kept pairs are in flight;
/// the current pair and the last Kept pairs are readable. `next` advances a position and returns false at the end.
template <int Kept, class Unit, int Stages, class Position, class Load, class Next>
struct tile_queue {
  static constexpr int ahead = Stages - 1 - Kept;
  static_assert(ahead >= 1);
  const tile_copies<Unit, Stages>& copies;
  const Load& load;
  const Next& next;
  Position at;                // next position to load, if `more`
  Position loaded[ahead];     // positions loaded, oldest first; `count` are valid
  int count = 0, buffer = 0;  // buffer: of the oldest pair
  bool more = true;
  unsigned parity = 0;

  __device__ tile_queue(const tile_copies<Unit, Stages>& c, Position first, const Load& l, const Next& n)
      : copies(c), load(l), next(n), at(first) {}
  /// Starts the first copies.
  __device__ void start() {
    ROTOSCALE_UNROLL
    for (int i = 0; i < ahead; ++i) {
      loaded[i] = at;
      if (more) {
        load(at, i);
        ++count;
        more = next(at);
      }
      copies.end_group();
    }
  }
  __device__ bool has_another() const { return count > 1 || more; }
  /// Pops the oldest pair, whose buffer stays readable, and starts the next copy. It goes to the buffer released Kept +
  /// 1 steps ago.
  __device__ void load_next() {
    ROTOSCALE_UNROLL
    for (int i = 0; i < ahead - 1; ++i) loaded[i] = loaded[i + 1];
    loaded[ahead - 1] = at;
    if (more) {
      load(at, buffer + ahead < Stages ? buffer + ahead : buffer + ahead - Stages);
      more = next(at);
    } else {
      --count;
    }
    copies.end_group();
  }
  __device__ void wait() const { copies.wait(buffer, parity); }
  /// Moves to the next buffer. The parity flips after the last buffer.
  __device__ void advance() {
    if (++buffer < Stages) return;
    buffer = 0;
    parity ^= 1;
  }
};

/// Runs compute(position, buffer, signal_next) for every pair of tiles. First `prepare()` loads the block's own tiles
/// and ends with a barrier; TMA already loads the first pairs meanwhile.
template <int Kept = 0, class Unit, int Stages, class Position, class Load, class Next, class Prepare, class Compute>
__device__ void pipeline(const tile_copies<Unit, Stages>& copies, Position at, const Load& load, const Next& next,
                         const Prepare& prepare, const Compute& compute) {
  const auto nothing = [] {};
  if constexpr (Stages == 1) {
    static_assert(!Unit::engine::exists && Kept == 0);
    prepare();
    do {
      block_barrier();
      load(at, 0);
      finish_copies<Unit>();
      compute(at, 0, nothing);
    } while (next(at));
  } else {
    tile_queue<Kept, Unit, Stages, Position, Load, Next> queue(copies, at, load, next);
    if constexpr (Unit::engine::exists) {
      copies.init();
      queue.start();
      prepare();
    } else {
      prepare();
      queue.start();
    }
    while (queue.count > 0) {
      if constexpr (!Unit::engine::exists) {
        wait_for_all_but<queue.ahead - 1>();
        Unit::publish();
      }
      block_barrier();
      const Position now = queue.loaded[0];
      queue.load_next();
      queue.wait();
      compute(now, queue.buffer, nothing);
      queue.advance();
    }
  }
}

/// The same with ping-pong scheduling by named barriers (FlashAttention-3) in place of a block barrier per pair.
///
/// 1. Tile i of the block waits for its turn and starts its products.
/// 2. Then `compute` calls signal_next(): the next tile starts its products, which overlap this tile's exponentials.
/// 3. The producer, a thread of the last tile, loads when it passes the turn back to the first tile. By then all tiles
///    have left the buffer that is loaded into.
template <int Kept, int Tiles, class Unit, int Stages, class Position, class Load, class Next, class Prepare,
          class Compute>
__device__ void pingpong_pipeline(const tile_copies<Unit, Stages>& copies, int tile, Position at, const Load& load,
                                  const Next& next, const Prepare& prepare, const Compute& compute) {
  static_assert(Unit::engine::exists);
  tile_queue<Kept, Unit, Stages, Position, Load, Next> queue(copies, at, load, next);
  copies.init();
  queue.start();
  prepare();
  bool has_turn = tile == 0;
  while (queue.count > 0) {
    queue.wait();
    if (!has_turn) Unit::wait_for_turn(tile);
    has_turn = false;
    compute(queue.loaded[0], queue.buffer, [&] {
      if (tile + 1 < Tiles) {
        Unit::signal_turn(tile + 1);
      } else if (queue.has_another()) {
        Unit::signal_turn(0);
      }
      queue.load_next();
    });
    queue.advance();
  }
}

/// Constants derived from a kernel's tile_plan.
template <class Unit, tile_plan Plan>
struct block_layout {
  static constexpr tile_plan plan = Plan;
  static constexpr bool pingpong = plan.pingpong && Unit::engine::exists;
  static constexpr int threads = plan.tiles * tiles::threads<Unit>;
  static constexpr int producer = pingpong ? threads - tiles::threads<Unit> : 0;  ///< see tile_copies
};
/// Runs the pipeline of a layout for tile `tile` of a block.
template <class Layout, int Kept = 0, class Unit, int Stages, class Position, class Load, class Next, class Prepare,
          class Compute>
__device__ void run_pipeline(const tile_copies<Unit, Stages>& copies, [[maybe_unused]] int tile, Position at,
                             const Load& load, const Next& next, const Prepare& prepare, const Compute& compute) {
  // TMA fills the buffers while prepare() still reads the block's own tiles, which `kept` would put into the same
  // buffers.
  static_assert(!(Unit::engine::exists && Layout::kept));
  if constexpr (Layout::pingpong) {
    pingpong_pipeline<Kept, Layout::plan.tiles>(copies, tile, at, load, next, prepare, compute);
  } else {
    pipeline<Kept>(copies, at, load, next, prepare, compute);
  }
}

/// Buffers of key and value tiles.
template <class Unit, int D, int Stages>
struct key_memory {
  tile_of<Unit, D> k[Stages], v[Stages];
  typename Unit::engine::template barriers<Stages> barriers;
};
/// Returns the place of the block's `Own` own tiles: after `memory`, or its first tiles if Kept, since they then move
/// to registers.
template <bool Kept, int Own, class Tile, class Memory>
__device__ Tile* own_tiles(Memory& memory) {
  static_assert(!Kept || Own * sizeof(Tile) <= sizeof(Memory));
  return reinterpret_cast<Tile*>(Kept ? &memory : &memory + 1);
}
template <bool Kept, int Own, class Tile, class Memory>
inline constexpr std::size_t shared_bytes = sizeof(Memory) + (Kept ? 0 : Own * sizeof(Tile)) + alignof(Memory);
/// A tensor of own tiles, and the operand that receives them.
template <class T, class Operand>
struct own_rows {
  const head_tensor<const T>& from;
  Operand& to;
};
template <class T, class Operand>
own_rows(const head_tensor<const T>&, Operand&) -> own_rows<T, Operand>;  // clang 14 does not deduce aggregates
/// Loads rows [first, first + 64) of a head of each `own` tensor, by the threads of the tile. Contains block barriers.
template <class Layout, int D, class Unit, class Memory, class... Own>
__device__ void load_own_tiles(const place_in_block<Unit>& place, Memory& memory, int b, int h, int first,
                               const attention_shape& n, bool vectors, int begin, const Own&... own) {
  constexpr int count = sizeof...(Own);
  auto* const tiles =
      own_tiles<Layout::kept, count * Layout::plan.tiles, tile_of<Unit, D>>(memory) + count * place.tile;
  int i = 0;
  (load_tile<Unit, D, threads<Unit>>(place.in_tile, own.from, b, h, first, n, vectors, tiles[i++], begin), ...);
  finish_copies<Unit>();
  i = 0;
  (own.to.take(tiles[i++], place.group), ...);
  if (Layout::kept) block_barrier();  // before copies overwrite own tiles
}
/// Returns the block's shared memory, aligned for T.
template <class T>
__device__ T& aligned_shared() {
  auto* const memory = dynamic_shared<unsigned char>();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return *reinterpret_cast<T*>(memory + (alignof(T) - address % alignof(T)) % alignof(T));
}

}  // namespace rotoscale::gpu::tiles
