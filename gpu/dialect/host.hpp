// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host mode of hip.hpp: runs a thread block on the CPU, each thread a fiber (host_fiber.hpp).
//
// Blocks run one after the other. Threads run in a fixed order up to the next barrier or exchange, so a run is
// deterministic. Tests vary the order: a kernel without a race gives the same bytes in every order. A barrier, exchange
// or wave instruction that some threads skip, or reach at another source line, is an error and not a hang.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/dialect/host_fiber.hpp"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// The part of HIP's host API that tests and launchers use: one device with the process's memory, and no real streams.
enum hipError_t {
  hipSuccess = 0,
  hipErrorMemoryAllocation = 2,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoBinaryForGpu = 209,
  hipErrorUnknown = 999
};
enum hipMemcpyKind { hipMemcpyHostToDevice, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice };
enum : unsigned { hipStreamNonBlocking = 1 };
using hipStream_t = struct host_stream*;

inline hipError_t hipGetDeviceCount(int* count) {
  *count = 1;
  return hipSuccess;
}
inline hipError_t hipGetDevice(int* index) {
  *index = 0;
  return hipSuccess;
}
inline hipError_t hipSetDevice(int) { return hipSuccess; }
/// Simulates a lost device: with ROTOSCALE_HOST_LOST_AT=N, the N-th and every later allocation or stream copy fails.
inline bool host_is_lost() {
  static const long at = [] {
    const char* const text = std::getenv("ROTOSCALE_HOST_LOST_AT");
    return text == nullptr ? 0 : std::atol(text);
  }();
  static std::atomic<long> calls{0};
  return at > 0 && ++calls >= at;
}
template <class T>
hipError_t hipMalloc(T** pointer, std::size_t bytes) {
  *pointer = nullptr;
  if (host_is_lost()) return hipErrorUnknown;
  *pointer = static_cast<T*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  return *pointer == nullptr ? hipErrorMemoryAllocation : hipSuccess;
}
inline hipError_t hipHostMalloc(void** pointer, std::size_t bytes, unsigned) { return hipMalloc(pointer, bytes); }
inline hipError_t hipFree(void* pointer) {
  std::free(pointer);
  return hipSuccess;
}
inline hipError_t hipHostFree(void* pointer) { return hipFree(pointer); }
inline hipError_t hipMemcpy(void* to, const void* from, std::size_t bytes, hipMemcpyKind) {
  if (bytes != 0) std::memcpy(to, from, bytes);
  return hipSuccess;
}
inline hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t bytes, hipMemcpyKind kind, hipStream_t) {
  if (host_is_lost()) return hipErrorUnknown;
  return hipMemcpy(to, from, bytes, kind);
}
inline hipError_t hipMemcpy2DAsync(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                                   std::size_t width, std::size_t rows, hipMemcpyKind kind, hipStream_t s) {
  hipError_t done = hipSuccess;
  for (std::size_t r = 0; r < rows && done == hipSuccess; ++r) {
    done = hipMemcpyAsync(static_cast<char*>(to) + r * to_stride, static_cast<const char*>(from) + r * from_stride,
                          width, kind, s);
  }
  return done;
}
inline hipError_t hipMemset(void* to, int byte, std::size_t bytes) {
  std::memset(to, byte, bytes);
  return hipSuccess;
}
inline hipError_t hipMemsetAsync(void* to, int byte, std::size_t bytes, hipStream_t) {
  return hipMemset(to, byte, bytes);
}
inline hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
  *stream = nullptr;
  return hipSuccess;
}
inline hipError_t hipStreamDestroy(hipStream_t) { return hipSuccess; }
inline hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
inline hipError_t hipDeviceSynchronize() { return hipSuccess; }
inline hipError_t hipGetLastError() { return hipSuccess; }
inline const char* hipGetErrorString(hipError_t error) {
  return error == hipSuccess ? "no error" : error == hipErrorUnknown ? "the device is lost" : "out of memory";
}

namespace rotoscale::gpu::host {

/// Order of a block's threads between two barriers. Asynchronous copies complete at once in forward order, and as late
/// as possible in the others.
enum class thread_order { forward, reverse, shuffled };

namespace detail {

inline constexpr unsigned lanes = 32, wave_lanes = 64;
inline constexpr std::size_t stack_bytes = 256 * 1024;
inline constexpr int poison = 0xFD;  // fills uninitialised shared memory

enum class wait { ready, subgroup, wave, block, finished };

/// A copy in flight, and the index of its group in its thread.
struct pending_copy {
  void* to;
  const void* from;
  std::size_t bytes;
  unsigned group;
};

struct fiber {
  fiber_context context;
  dim3 index;
  unsigned linear = 0;
  wait waits = wait::ready;
  const char* file = nullptr;  ///< source position of the wait
  int line = 0;
  std::uint32_t sent[2] = {};  ///< values exchanged in its subgroup, by parity of the exchange
  unsigned exchanges = 0;
  void* registers = nullptr;                       ///< its arguments of the wave instruction
  unsigned group = 0;                              ///< lanes of that instruction (32 or 64)
  void (*wave_operation)(void* const*) = nullptr;  ///< executes it for all lanes
  std::vector<pending_copy> copies;
  unsigned copy_groups = 0;  ///< number of groups ended
};

/// Runs one block at a time. thread_local, so that several host threads can launch.
struct executor {
  dim3 grid, size, block;
  std::uint64_t blocks_run = 0;  ///< identifies the owner of block_shared memory
  unsigned count = 0;
  std::vector<fiber> fibers;
  std::unique_ptr<unsigned char[]> stacks;
  std::vector<unsigned char> dynamic;
  fiber_context scheduler;
  fiber* current = nullptr;
  const std::function<void()>* body = nullptr;
  thread_order order = thread_order::forward;
  std::string error_text;

  unsigned place(unsigned i) const {
    if (order == thread_order::reverse) return count - 1 - i;
    if (order == thread_order::forward) return i;
    return static_cast<unsigned>((std::uint64_t{i} * 7919u + 13u * blocks_run) % count);  // 7919 is prime, above 1024
  }

  void prepare(dim3 g, dim3 s, std::size_t shared_bytes) {
    grid = g;
    size = s;
    count = s.x * s.y * s.z;
    if (fibers.size() < count) {
      fibers = std::vector<fiber>(count);
      stacks.reset(new unsigned char[count * stack_bytes]);  // pages are untouched until used
      for (unsigned i = 0; i < count; ++i) begin(i);
    }
    dynamic.assign(shared_bytes + 128, 0);
    error_text.clear();
  }

  static void enter();
  void begin(unsigned i) { fibers[i].context.begin(stacks.get() + i * stack_bytes, stack_bytes, &executor::enter); }

  void start(unsigned i) {
    fiber& f = fibers[i];
    f.linear = i;
    f.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    f.waits = wait::ready;
    f.exchanges = 0;
    f.copies.clear();
    f.copy_groups = 0;
  }
  void start_block() {
    ++blocks_run;
    std::memset(dynamic.data(), poison, dynamic.size());
    for (unsigned i = 0; i < count; ++i) start(i);
  }

  /// True if fibers [first, last) wait for `what` at the same source position.
  bool all_wait_for(unsigned first, unsigned last, wait what) const {
    for (unsigned i = first; i < last; ++i) {
      const fiber &f = fibers[i], &leader = fibers[first];
      if (f.waits != what || f.line != leader.line || f.file != leader.file) return false;
    }
    return true;
  }
  void resume(unsigned first, unsigned last) {
    for (unsigned i = first; i < last; ++i) fibers[i].waits = wait::ready;
  }
  /// Resumes the fibers if all of them wait for `what`.
  void release(unsigned first, unsigned last, wait what) {
    if (all_wait_for(first, last, what)) resume(first, last);
  }
  /// Executes the instruction that all lanes of a wave or warp wait for. A wave that lacks lanes waits forever.
  void release_wave(unsigned first, unsigned group) {
    const unsigned last = first + group;
    if (last > count || !all_wait_for(first, last, wait::wave)) return;
    void* registers[wave_lanes];
    for (unsigned i = first; i < last; ++i) {
      if (fibers[i].group != group || fibers[i].wave_operation != fibers[first].wave_operation) return;
      registers[i - first] = fibers[i].registers;
    }
    fibers[first].wave_operation(registers);
    resume(first, last);
  }

  /// Runs one block. Returns false with error_text if a thread waits forever or leaves copies in flight.
  bool run_block() {
    start_block();
    for (;;) {
      bool any = false;
      for (unsigned i = 0; i < count; ++i) {
        fiber& f = fibers[place(i)];
        if (f.waits != wait::ready) continue;
        any = true;
        current = &f;
        change_stack(scheduler, f.context);
        current = nullptr;
      }
      if (!any) break;
      for (unsigned i = 0; i < count; i += lanes) release(i, i + lanes < count ? i + lanes : count, wait::subgroup);
      for (const unsigned group : {lanes, wave_lanes}) {
        for (unsigned i = 0; i < count; i += group) release_wave(i, group);
      }
      release(0, count, wait::block);
    }
    for (unsigned i = 0; i < count; ++i) {
      const fiber& f = fibers[i];
      if (f.waits == wait::finished && f.copies.empty()) continue;
      if (f.waits == wait::finished) {
        error_text = "thread " + std::to_string(i) + " ended with copies that it has not waited for";
        return false;
      }
      for (unsigned j = i; j < count; ++j) begin(j);  // abandon the fibers that wait
      error_text = std::string("thread ") + std::to_string(i) + " waits at " + f.file + ":" + std::to_string(f.line) +
                   (f.waits == wait::block  ? " for threads of its block"
                    : f.waits == wait::wave ? " for lanes of its wave"
                                            : " for lanes of its segment") +
                   " that went elsewhere";
      return false;
    }
    return true;
  }

  void suspend(wait what, const char* file, int line) {
    fiber& f = *current;
    f.waits = what;
    f.file = file;
    f.line = line;
    change_stack(f.context, scheduler);
  }
};

inline executor& state() {
  static thread_local executor e;
  return e;
}

/// A fiber's main loop: its thread of one block after the other.
inline void executor::enter() {
  executor& e = state();
  for (;;) {
    (*e.body)();
    e.suspend(wait::finished, nullptr, 0);
  }
}

/// Publishes `value` and waits for the subgroup. `received` then returns any lane's value of this exchange.
inline unsigned exchange(std::uint32_t value, const char* file, int line) {
  executor& e = state();
  const unsigned parity = e.current->exchanges++ % 2;
  e.current->sent[parity] = value;
  e.suspend(wait::subgroup, file, line);
  return parity;
}

/// Returns the value of lane `lane` of the subgroup, or zero if the block lacks that lane.
inline std::uint32_t received(unsigned lane, unsigned parity) {
  executor& e = state();
  const unsigned at = e.current->linear / lanes * lanes + lane;
  return at < e.count ? e.fibers[at].sent[parity] : 0;
}

}  // namespace detail

inline dim3 current_thread() { return detail::state().current->index; }
inline dim3 current_block() { return detail::state().block; }
inline dim3 current_block_size() { return detail::state().size; }
inline dim3 current_grid_size() { return detail::state().grid; }

/// Sets the thread order of later launches of this host thread.
inline void set_thread_order(thread_order order) { detail::state().order = order; }

inline void block_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  detail::state().suspend(detail::wait::block, file, line);
}

inline std::uint32_t shuffle(std::uint32_t value, unsigned lane, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  const unsigned parity = detail::exchange(value, file, line);
  return detail::received(lane % detail::lanes, parity);
}

inline std::uint32_t shuffle_xor(std::uint32_t value, unsigned mask, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  const unsigned parity = detail::exchange(value, file, line);
  return detail::received((detail::state().current->linear ^ mask) % detail::lanes, parity);
}

inline std::uint32_t subgroup_ballot(bool condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const unsigned parity = detail::exchange(condition, file, line);
  std::uint32_t lanes = 0;
  for (unsigned l = 0; l < detail::lanes; ++l) lanes |= detail::received(l, parity) << l;
  return lanes;
}

/// An instruction of a wave of 64 lanes or a warp of 32. Once all lanes have arrived, it runs All(registers of lanes 0
/// .. Lanes - 1). It is an error in a block whose last wave lacks lanes.
template <auto All, unsigned Lanes = detail::wave_lanes, class Registers>
void wave_instruction(Registers& mine, const char* file, int line) {
  detail::fiber& f = *detail::state().current;
  f.registers = &mine;
  f.group = Lanes;
  f.wave_operation = [](void* const* shown) {
    Registers* lanes[Lanes];
    for (unsigned i = 0; i < Lanes; ++i) lanes[i] = static_cast<Registers*>(shown[i]);
    All(lanes);
  };
  detail::state().suspend(detail::wait::wave, file, line);
}

/// One object of type T per block, poisoned at the block's first access.
template <class T>
T& block_shared() {
  alignas(T) static thread_local unsigned char memory[sizeof(T)];
  static thread_local std::uint64_t owner = 0;
  if (owner != detail::state().blocks_run) {
    owner = detail::state().blocks_run;
    std::memset(memory, detail::poison, sizeof(T));
  }
  return *reinterpret_cast<T*>(memory);
}

template <class T>
T* dynamic_shared() {
  auto* first = detail::state().dynamic.data();
  return reinterpret_cast<T*>(first + (128 - reinterpret_cast<std::uintptr_t>(first) % 128) % 128);
}

/// Runs `body` once per thread of each block. Returns null, or an error text valid until this host thread's next call.
inline const char* run_blocks(dim3 grid, dim3 size, std::size_t shared_bytes, const std::function<void()>& body) {
  detail::executor& e = detail::state();
  if (e.current != nullptr) return "a kernel cannot launch kernels";
  if (size.x * size.y * size.z == 0 || size.x * size.y * size.z > 1024) return "a block has 1 to 1024 threads";
  e.prepare(grid, size, shared_bytes);
  struct launch_scope {  // the executor must not keep a pointer to `body`
    detail::executor& e;
    launch_scope(detail::executor& to, const std::function<void()>& b) : e(to) { e.body = &b; }
    ~launch_scope() { e.body = nullptr; }
  } scope(e, body);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        e.block = {x, y, z};
        if (!e.run_block()) return e.error_text.c_str();
      }
    }
  }
  return nullptr;
}

}  // namespace rotoscale::gpu::host
