// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// How attention's tiles come to shared memory: by all threads or by the device's copy engine, in a pipeline.
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

/// Rows [first, first + 64) of a head as BF16, zero beyond the tensor, which begins at row `begin`; there after
/// wait_for_copies and a barrier. `thread`: the caller among the Threads that copy. `vectors`: 16 bytes of a row may be
/// loaded at once.
template <class Unit, int D, int Threads, class T>
__device__ void load_tile(int thread, const head_tensor<const T>& x, int b, int h, int first, const attention_shape& n,
                          bool vectors, tile_of<Unit, D>& to, int begin = 0) {
  constexpr int vectors_of_row = D / 8, across = Threads / vectors_of_row;  // rows at a time
  static_assert(Threads % vectors_of_row == 0);
  const int row0 = thread / vectors_of_row, column = thread % vectors_of_row * 8;
  const T* from = x.row(b, first + row0, h) + column;
  // A whole tile of whole rows: nothing but copies.
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

/// Waits until what the block's threads have copied is there for all of them.
template <class Unit>
__device__ void finish_copies() {
  wait_for_copies();
  Unit::publish();
  block_barrier();
}

/// Copies of pairs of tiles into buffers: by the unit's copy engine if it has one, else by all threads.
template <class Unit, int Stages>
struct tile_copies {
  using engine = typename Unit::engine;
  const typename engine::maps& maps;
  typename engine::template barriers<Stages>& barriers;
  int producer = 0;  ///< the thread that starts the engine's copies

  /// Before a barrier of the block.
  __device__ void init() const {
    if constexpr (engine::exists) {
      if (static_cast<int>(thread_index().x) == producer) engine::init(barriers);
    }
  }
  /// Starts copies of rows [first, first + 64) of a head of x and y.
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
  /// What the caller's threads have copied since the last one is a group; the engine's copies need none.
  __device__ void end_group() const {
    if constexpr (!engine::exists) end_copy_group();
  }
  /// Waits for the engine's copies into a buffer: for the phase of its barrier that has this parity.
  __device__ void wait(int buffer, unsigned parity) const {
    if constexpr (engine::exists) engine::wait(barriers.full[buffer], parity);
  }
};

/// A ring of Stages buffers for pairs of tiles that load(position, buffer) copies: the current pair, Stages - 1 - Kept
/// pairs in flight, and the last Kept pairs, still readable. `next` moves a position on, false at the end.
template <int Kept, class Unit, int Stages, class Position, class Load, class Next>
struct tile_queue {
  static constexpr int ahead = Stages - 1 - Kept;
  static_assert(ahead >= 1);
  const tile_copies<Unit, Stages>& copies;
  const Load& load;
  const Next& next;
  Position at;                // what is loaded next, if there is more
  Position loaded[ahead];     // and what has been, the oldest first: `count` of them, behind which any position stands
  int count = 0, buffer = 0;  // that of the oldest one
  bool more = true;
  unsigned parity = 0;

  __device__ tile_queue(const tile_copies<Unit, Stages>& c, Position first, const Load& l, const Next& n)
      : copies(c), load(l), next(n), at(first) {}
  /// Loads the first ones.
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
  /// Pops the oldest pair, whose buffer stays valid, and starts the next copy, into the buffer released Kept + 1 steps
  /// ago.
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
  /// Moves to the next buffer; behind the last one the barriers' next phase begins.
  __device__ void advance() {
    if (++buffer < Stages) return;
    buffer = 0;
    parity ^= 1;
  }
};

/// Runs compute(position, buffer, give) for pairs of tiles, after prepare(), which loads what stays and ends with a
/// barrier. Copies of the first pairs are on their way meanwhile if the unit's engine makes them.
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

/// The same without a barrier of the block for each pair: the Tiles tiles of a block take turns. In its turn compute
/// starts a tile's products, then it calls give(), which gives the turn to the next tile; so the products of one run
/// while others are at their exponentials. One of the last tile's threads is the producer: it loads when it gives the
/// turn back to the first tile, and by then all of them have left the buffer that is loaded into.
template <int Kept, int Tiles, class Unit, int Stages, class Position, class Load, class Next, class Prepare,
          class Compute>
__device__ void pipeline_in_turn(const tile_copies<Unit, Stages>& copies, int tile, Position at, const Load& load,
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
        Unit::give_turn(tile + 1);
      } else if (queue.has_another()) {
        Unit::give_turn(0);
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
  static constexpr bool in_turn = plan.in_turn && Unit::engine::exists;
  static constexpr int threads = plan.tiles * tiles::threads<Unit>;
  static constexpr int producer = in_turn ? threads - tiles::threads<Unit> : 0;  ///< see tile_copies
};
/// The pipeline of a layout, for the tile-th tile of a block.
template <class Layout, int Kept = 0, class Unit, int Stages, class Position, class Load, class Next, class Prepare,
          class Compute>
__device__ void run_pipeline(const tile_copies<Unit, Stages>& copies, [[maybe_unused]] int tile, Position at,
                             const Load& load, const Next& next, const Prepare& prepare, const Compute& compute) {
  // The engine's first copies are on their way while prepare() still reads own tiles, which `kept` puts into the same
  // buffers.
  static_assert(!(Unit::engine::exists && Layout::kept));
  if constexpr (Layout::in_turn) {
    pipeline_in_turn<Kept, Layout::plan.tiles>(copies, tile, at, load, next, prepare, compute);
  } else {
    pipeline<Kept>(copies, at, load, next, prepare, compute);
  }
}

/// Tiles of keys and values on their way and in use.
template <class Unit, int D, int Stages>
struct key_memory {
  tile_of<Unit, D> k[Stages], v[Stages];
  typename Unit::engine::template barriers<Stages> barriers;
};
/// Where tiles that stay, `Own` of them, are loaded to: behind `memory`, or into its first tiles, if Kept says that
/// they are then taken to registers.
template <bool Kept, int Own, class Tile, class Memory>
__device__ Tile* own_tiles(Memory& memory) {
  static_assert(!Kept || Own * sizeof(Tile) <= sizeof(Memory));
  return reinterpret_cast<Tile*>(Kept ? &memory : &memory + 1);
}
template <bool Kept, int Own, class Tile, class Memory>
inline constexpr std::size_t shared_bytes = sizeof(Memory) + (Kept ? 0 : Own * sizeof(Tile)) + alignof(Memory);
/// A tensor that own tiles are of, and what takes them.
template <class T, class Operand>
struct own_rows {
  const head_tensor<const T>& from;
  Operand& to;
};
template <class T, class Operand>
own_rows(const head_tensor<const T>&, Operand&) -> own_rows<T, Operand>;  // clang 14 deduces none of an aggregate
/// Loads rows [first, first + 64) of a head of each `own`: a tile's own ones, by its threads. Passes barriers of the
/// block.
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
  if (Layout::kept) block_barrier();  // before copies come in place of own tiles
}
/// The block's shared memory, aligned as T.
template <class T>
__device__ T& aligned_shared() {
  auto* const memory = dynamic_shared<unsigned char>();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return *reinterpret_cast<T*>(memory + (alignof(T) - address % alignof(T)) % alignof(T));
}

}  // namespace rotoscale::gpu::tiles
