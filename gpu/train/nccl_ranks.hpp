// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A rank with a device: NCCL's transport on the caller's queue, and a thread that ends the device's waits if a rank
// fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "gpu/api/ranks.hpp"
#include "gpu/train/backend.hpp"
#include "gpu/train/nccl_library.hpp"

namespace rotoscale::gpu {

class nccl_rank final : public device_rank, private wait_guard {
 public:
  /// `library` has the functions of NCCL.
  nccl_rank(device_backend& ops, nn::communicator& host, const rank_options& options, const nccl::functions& library);
  ~nccl_rank() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void connect() override;
  void close() override;

  void transfer(nn::queue q, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override;
  void sum(nn::queue q, nn::tensor_view x) override { reduce(q, "sum", x, nccl::int64, nccl::sum); }
  void max(nn::queue q, nn::tensor_view x) override { reduce(q, "max", x, nccl::float32, nccl::max); }

  void reduce_scatter(nn::queue q, float* x, std::span<const index_t> cuts) override;

  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) override { return host_->gather(own); }
  void check() override { host_->check(); }
  void abort(const std::string& what) noexcept override { host_->abort(what); }
  void note_wait(bool waits) noexcept override { host_->note_wait(waits); }
  void abort_late(std::chrono::milliseconds timeout) noexcept override { host_->abort_late(timeout); }

 private:
  using clock = std::chrono::steady_clock;

  void wait(const std::function<void()>& for_device) override;
  void reduce(nn::queue q, const char* name, nn::tensor_view x, nccl::data_type type, nccl::reduction how);
  void await_verdict() const;
  clock::duration verdict_time() const;
  template <class Operation>
  void run_on(nn::queue q, const char* name, const Operation& f);
  template <class Call>
  status call(const Call& f);
  template <class Calls>
  status call_group(const Calls& calls);
  std::pair<nccl::result, nccl::comm> join_ranks(const nccl::unique_id& id) const;
  void warm_up();
  void watch();
  bool has_failed();
  void stop_watching();
  void disconnect();

  device_backend* ops_;
  nn::communicator* host_;
  rank_options options_;
  nccl::functions nccl_;
  nccl::comm comm_ = nullptr;
  std::timed_mutex calls_;                   ///< held in a call of NCCL
  std::atomic<bool> is_open_ = false;        ///< may call NCCL
  std::atomic<clock::rep> waits_since_ = 0;  ///< when the host began to wait; 0: does not wait
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stops_ = false;                              ///< the thread shall end
  std::atomic<nccl::result> last_ = nccl::success;  ///< NCCL's last error
  clock::time_point noted_at_;                      ///< when ranks were told so; of the thread
  bool is_noted_ = false;                           ///< ranks know that the host waits; of the thread
  clock::time_point wrong_since_;                   ///< when NCCL reported no error for the last time; of the thread
  std::thread watcher_;
};

}  // namespace rotoscale::gpu
