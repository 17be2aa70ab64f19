// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory, queues, events and graphs of one device, or of the CPU. A function with a queue is asynchronous: it runs in
// the queue's order, and its errors appear at the next synchronize. Operations are in operations.hpp.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/queue.hpp"

namespace rotoscale::nn {

/// Direction of a copy.
enum class copy_kind { upload, download, on_device };
/// Name of a copy in errors and profiles.
constexpr const char* name_of(copy_kind kind) {
  return kind == copy_kind::upload ? "upload" : kind == copy_kind::download ? "download" : "copy";
}

/// Bytes that are copied a row at a time.
struct row_copy {
  std::byte* to = nullptr;          ///< of the first row
  std::size_t to_stride = 0;        ///< bytes from a row to the next
  const std::byte* from = nullptr;  ///< of the first row
  std::size_t from_stride = 0;      ///< bytes from a row to the next
  std::size_t width = 0;            ///< bytes of a row
  std::size_t rows = 0;             ///< number of rows

  /// Are the rows one piece of memory on both sides?
  bool is_dense() const { return rows < 2 || (to_stride == width && from_stride == width); }
};

/// A device.
struct device_properties {
  std::string description;             ///< for logs, e.g. "cpu (2 threads, avx512)"
  int threads = 1;                     ///< threads of the host that compute
  bool runs_at_once = false;           ///< an operation is complete when its call returns
  const char* contracts = "portable";  ///< its own contract set
};

/// All functions of a device except operations.
class device {
 public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  /// Name, threads, and whether calls run at once.
  virtual device_properties properties() const = 0;
  /// Zeroed memory. Before the first step only. Throws std::bad_alloc.
  virtual void* allocate(std::size_t bytes, memory_kind kind) = 0;
  /// Frees memory that no operation uses.
  virtual void release(void* memory, memory_kind kind) noexcept = 0;
  /// Scratch memory of the queue's operations: at least the workspace_bytes of each.
  virtual void set_workspace(queue q, void* memory, std::size_t bytes) = 0;

  /// A queue besides queue{}; `name` is for logs. Throws backend_error if the device has no room or fails.
  virtual queue make_queue(const char* name) = 0;
  /// Frees a finished queue of make_queue. Its number may be used again. Its graphs and events are invalid.
  virtual void release_queue(queue q) noexcept = 0;
  /// The point after all operations of the queue so far.
  virtual event record(queue on) = 0;
  /// Later operations of the queue wait for the event.
  virtual void order(queue after, const event& before) = 0;
  /// Later operations of `after` wait for all operations of `before` so far. A graph may contain it.
  virtual void follow(queue after, queue before) { order(after, record(before)); }
  /// The only wait. Throws backend_error with the name of the failed operation.
  virtual void synchronize(const event& until) = 0;
  /// Copies bytes. Host memory is pinned, or does not change until the queue is synchronized. No overlap.
  virtual void transfer(queue q, copy_kind kind, void* to, const void* from, std::size_t bytes) = 0;
  /// Copies rows of bytes within its memory.
  virtual void copy_rows(queue q, const row_copy& c) {
    if (c.is_dense()) return copy(q, c.to, c.from, c.width * c.rows);
    for (std::size_t r = 0; r < c.rows; ++r) copy(q, c.to + r * c.to_stride, c.from + r * c.from_stride, c.width);
  }
  /// Sets bytes of its memory to 0.
  virtual void fill_zero(queue q, void* memory, std::size_t bytes) = 0;
  /// Records the operations that `operations` puts on the queue. Null: this device does not record them.
  virtual std::unique_ptr<recorded_graph> record_graph(queue, const std::function<void()>& operations) {
    (void)operations;
    return nullptr;
  }
  /// Puts recorded operations on the queue.
  virtual void replay(queue, recorded_graph&) {}

  /// Fields of properties().
  /// @{
  std::string description() const { return properties().description; }
  int threads() const { return properties().threads; }
  bool runs_at_once() const { return properties().runs_at_once; }
  /// @}
  /// Number of calls of allocate.
  std::size_t allocations() const { return allocations_; }
  /// Waits for all operations of the queue.
  void synchronize(queue q) { synchronize(record(q)); }
  /// Copies from host memory.
  void upload(queue q, void* to, const void* host, std::size_t bytes) {
    transfer(q, copy_kind::upload, to, host, bytes);
  }
  /// Copies to host memory.
  void download(queue q, void* host, const void* from, std::size_t bytes) {
    transfer(q, copy_kind::download, host, from, bytes);
  }
  /// Copies within backend memory.
  void copy(queue q, void* to, const void* from, std::size_t bytes) {
    transfer(q, copy_kind::on_device, to, from, bytes);
  }

 protected:
  std::size_t allocations_ = 0;  ///< counted by allocate
};

/// A queue that is released at the end. By default queue{}, which is never released.
class owned_queue {
 public:
  owned_queue() = default;
  /// `on` must outlive it. Throws as make_queue.
  owned_queue(device& on, const char* name) : device_(&on), queue_(on.make_queue(name)) {}
  /// Takes the other's queue and leaves queue{}.
  owned_queue(owned_queue&& other) noexcept { swap(other); }
  /// Exchanges the two.
  owned_queue& operator=(owned_queue&& other) noexcept {
    swap(other);
    return *this;
  }
  ~owned_queue() {
    if (device_ != nullptr) device_->release_queue(queue_);
  }
  /// The queue.
  operator queue() const { return queue_; }

 private:
  void swap(owned_queue& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(queue_, other.queue_);
  }

  device* device_ = nullptr;
  queue queue_;
};

}  // namespace rotoscale::nn
