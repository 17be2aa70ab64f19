// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "gpu/train/nccl_ranks.hpp"

#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

namespace rotoscale::gpu {

namespace {

constexpr auto watch_interval = std::chrono::milliseconds(20);
constexpr auto noted_time = std::chrono::milliseconds(100);  // longer waits are told to all ranks

}  // namespace

nccl_rank::nccl_rank(device_backend& ops, nn::communicator& host, const rank_options& options,
                     const nccl::functions& library)
    : ops_(&ops), host_(&host), options_(options), nccl_(library) {
  ops_->guard_waits(this);
}

nccl_rank::~nccl_rank() {
  stop_watching();
  disconnect();
  ops_->guard_waits(nullptr);
}

void nccl_rank::connect() {
  nccl::unique_id id{};
  nccl::result found = rank() == 0 ? nccl_.GetUniqueId(&id) : nccl::success;
  const auto expect = [&] {
    if (found == nccl::success) return;
    await_verdict();
    throw nn::rank_failure(rank(), std::string("cannot connect its device: ") + nccl_.GetErrorString(found));
  };
  expect();
  const auto ids = nn::gather_values<char>(*host_, std::span<const char>(id.internal));
  std::memcpy(id.internal, ids.front().data(), sizeof id.internal);
  std::tie(found, comm_) = join_ranks(id);
  expect();
  is_open_ = true;
  watcher_ = std::thread([this] { watch(); });
  warm_up();
}

/// Connects this rank. NCCL waits without limit for missing ranks, so a separate thread calls it. After the timeout or
/// another rank's failure that thread is abandoned.
std::pair<nccl::result, nccl::comm> nccl_rank::join_ranks(const nccl::unique_id& id) const {
  const auto made = std::make_shared<std::promise<std::pair<nccl::result, nccl::comm>>>();
  auto done = made->get_future();
  std::thread([made, id, join = nccl_.CommInitRank, ranks = size(), rank = rank(), device = ops_->number()] {
    (void)select_device(device);
    nccl::comm joined = nullptr;
    const nccl::result found = join(&joined, ranks, id, rank);
    made->set_value({found, joined});
  }).detach();
  const auto until = clock::now() + options_.timeout;
  for (clock::time_point noted; done.wait_for(watch_interval) != std::future_status::ready;) {
    if (clock::now() - noted > nn::repeat_of_waits) {
      noted = clock::now();
      host_->note_wait(true);
    }
    if (clock::now() > until) host_->abort_late(options_.timeout);
    host_->check();
  }
  host_->note_wait(false);
  return done.get();
}

/// NCCL connects ranks at their first call of each kind, which shall not be in a graph.
void nccl_rank::warm_up() {
  const auto n = static_cast<std::size_t>(size());
  auto* const memory = static_cast<std::byte*>(ops_->allocate(16 + 4 * (n + 1), nn::memory_kind::device));
  std::vector<std::span<const std::byte>> send(n, {memory + 16, 1});
  std::vector<std::span<std::byte>> receive;
  for (std::size_t r = 0; r < n; ++r) receive.emplace_back(memory + 16 + n + r, 1);
  const nn::queue q;
  transfer(q, send, receive);
  sum(q, nn::dense_tensor(memory, nn::dtype::i64, {1}));
  max(q, nn::dense_tensor(memory, nn::dtype::fp32, {1}));
  if (options_.reduces) {
    std::vector<index_t> cuts(n + 1);
    std::iota(cuts.begin(), cuts.end(), index_t{0});
    ++cuts.back();
    reduce_scatter(q, reinterpret_cast<float*>(memory), cuts);
  }
  ops_->synchronize(q);
  ops_->release(memory, nn::memory_kind::device);
}

void nccl_rank::close() {
  ops_->synchronize(nn::queue{});
  host_->barrier();  // no rank disconnects while another one's device still reads from it
  stop_watching();
  is_open_ = false;
}

/// NCCL may notice the end of another rank before the host, which knows that rank. Throws nn::rank_failure if the host
/// does within some seconds.
void nccl_rank::await_verdict() const {
  for (const auto until = clock::now() + verdict_time(); clock::now() < until;) {
    host_->check();
    std::this_thread::sleep_for(watch_interval);
  }
}

/// A rank whose own device fails tells the others before they name themselves.
nccl_rank::clock::duration nccl_rank::verdict_time() const {
  return std::chrono::seconds(last_ == nccl::remote_error ? 5 : 1);
}

/// Runs an operation with calls of NCCL.
template <class Operation>
void nccl_rank::run_on(nn::queue q, const char* name, const Operation& f) {
  try {
    ops_->run_on(q, {name, nn::op_class::copy}, f);
  } catch (const nn::backend_error&) {
    await_verdict();
    throw;
  }
}

/// Calls f(), a function of NCCL, unless this rank is disconnected.
template <class Call>
status nccl_rank::call(const Call& f) {
  const std::lock_guard lock(calls_);
  if (!is_open_) return {error_code::device_error, "", "the ranks are not connected"};
  const nccl::result result = f();
  if (result != nccl::success) last_ = result;
  return result == nccl::success ? status{} : status{error_code::device_error, "", nccl_.GetErrorString(result)};
}

/// Makes `calls(keep)`, whose results it gives to `keep`, at once. Returns the first that failed.
template <class Calls>
status nccl_rank::call_group(const Calls& calls) {
  return call([&] {
    nccl::result all = nccl_.GroupStart();
    const auto keep = [&](nccl::result r) { all = all == nccl::success ? r : all; };
    calls(keep);
    keep(nccl_.GroupEnd());
    return all;
  });
}

void nccl_rank::transfer(nn::queue q, std::span<const std::span<const std::byte>> send,
                         std::span<const std::span<std::byte>> receive) {
  run_on(q, "transfer", [&](stream s) {
    const auto own = static_cast<std::size_t>(rank());
    if (receive[own].data() != send[own].data()) {
      const status copied = gpu::copy(receive[own].data(), send[own].data(), receive[own].size(), s);
      if (!copied.ok()) return copied;
    }
    return call_group([&](const auto& keep) {
      for (std::size_t r = 0; r < send.size(); ++r) {
        const int peer = static_cast<int>(r);
        if (r == own) continue;
        if (!send[r].empty()) keep(nccl_.Send(send[r].data(), send[r].size(), nccl::int8, peer, comm_, s.handle));
        if (receive[r].empty()) continue;
        keep(nccl_.Recv(receive[r].data(), receive[r].size(), nccl::int8, peer, comm_, s.handle));
      }
    });
  });
}

/// One ReduceScatter adds the common length of all parts, and a Reduce adds the other elements of a part. Parts that
/// are not at multiples of a common length take a Reduce each.
void nccl_rank::reduce_scatter(nn::queue q, float* x, std::span<const index_t> cuts) {
  index_t even = cuts[1] - cuts[0];
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    if (cuts[s] != even * static_cast<index_t>(s) || cuts[s + 1] - cuts[s] < even) even = 0;
  }
  const auto n = [](index_t count) { return static_cast<std::size_t>(count); };
  run_on(q, "reduce_scatter", [&](stream stream) {
    return call_group([&](const auto& keep) {
      if (even > 0) {
        keep(nccl_.ReduceScatter(x, x + even * rank(), n(even), nccl::float32, nccl::sum, comm_, stream.handle));
      }
      for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
        float* const first = x + cuts[s] + even;
        const index_t more = cuts[s + 1] - cuts[s] - even;
        if (more == 0) continue;
        keep(nccl_.Reduce(first, first, n(more), nccl::float32, nccl::sum, static_cast<int>(s), comm_, stream.handle));
      }
    });
  });
}

void nccl_rank::reduce(nn::queue q, const char* name, nn::tensor_view x, nccl::data_type type, nccl::reduction how) {
  run_on(q, name, [&](stream s) {
    return call([&] {
      return nccl_.AllReduce(x.data, x.data, static_cast<std::size_t>(x.size()), type, how, comm_, s.handle);
    });
  });
}

/// Waits for the device. Its result counts only if no rank has failed.
void nccl_rank::wait(const std::function<void()>& for_device) {
  waits_since_ = clock::now().time_since_epoch().count();
  try {
    for_device();
  } catch (const nn::backend_error&) {
    waits_since_ = 0;
    await_verdict();
    throw;
  }
  waits_since_ = 0;
  host_->check();
}

/// Body of the thread: disconnects when a rank has failed, so that no device waits for it.
void nccl_rank::watch() {
  (void)select_device(ops_->number());
  wrong_since_ = clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, watch_interval, [&] { return stops_; })) {
    lock.unlock();
    if (has_failed()) return disconnect();
    lock.lock();
  }
}

bool nccl_rank::has_failed() {
  const clock::rep since = waits_since_;
  const clock::time_point began{clock::duration(since)}, now = clock::now();
  nccl::result result = nccl::success;
  const nccl::result asked = nccl_.CommGetAsyncError(comm_, &result);
  if (asked != nccl::success) result = asked;
  const bool waits = since != 0 && now - began > noted_time;
  const bool is_again = waits && now - noted_at_ > nn::repeat_of_waits;
  if (std::exchange(is_noted_, waits) != waits || is_again) {
    noted_at_ = now;
    host_->note_wait(waits);
  }
  const bool is_wrong = result != nccl::success && result != nccl::in_progress;
  if (is_wrong) last_ = result;
  if (!is_wrong) wrong_since_ = now;
  if (now - wrong_since_ > verdict_time()) {
    host_->abort(std::string("failed: ") + nccl_.GetErrorString(result));
  } else if (since != 0 && now - began > options_.timeout) {
    host_->abort_late(options_.timeout);
  }
  try {
    host_->check();
  } catch (const nn::rank_failure&) {
    return true;
  }
  return false;
}

void nccl_rank::stop_watching() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

/// Ends NCCL's work on the device. A call that waits for another rank returns an error. Returns when no graph has
/// exchanges any more.
void nccl_rank::disconnect() {
  is_open_ = false;
  if (calls_.try_lock_for(std::chrono::seconds(1))) calls_.unlock();  // later calls are refused
  if (comm_ != nullptr) (void)nccl_.CommAbort(std::exchange(comm_, nullptr));
}

status make_device_rank(nn::backend& ops, nn::communicator& host, const rank_options& options,
                        std::unique_ptr<device_rank>& made) {
  const bool hip = std::string_view(build_mode()) == "hip";
  if (ops.runs_at_once()) return {error_code::unsupported_device, "", "ranks of a build for the host share memory"};
  static const std::optional<nccl::functions> library = nccl::load(hip ? "librccl.so.1" : "libnccl.so.2");
  if (!library) {
    return {error_code::unsupported_device, "",
            hip ? "librccl.so.1 (RCCL) is not found; LD_LIBRARY_PATH may name its folder"
                : "libnccl.so.2 (NCCL) is not found; LD_LIBRARY_PATH may name its folder"};
  }
  made = std::make_unique<nccl_rank>(static_cast<device_backend&>(ops), host, options, *library);
  return {};
}

}  // namespace rotoscale::gpu
