// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A communicator that passes collectives on, and notes their times.
#include <algorithm>

#include "gpu/api/ranks.hpp"
#include "gpu/train/backend.hpp"
#include "gpu/train/interval_log.hpp"

namespace rotoscale::gpu {

namespace {

using kind = queue_interval::kind;

class timed_ranks final : public rank_times {
 public:
  timed_ranks(device_backend& ops, nn::communicator& ranks) : ops_(&ops), ranks_(&ranks) {}
  ~timed_ranks() override { ops_->note_intervals(nullptr); }

  void begin(nn::queue compute) override {
    log_ = std::make_unique<interval_log>(compute);
    ops_->note_intervals(log_.get());
  }
  std::vector<queue_interval> end() override {
    ops_->note_intervals(nullptr);
    const auto log = std::move(log_);
    return naming_operation("time stamps", [&] {
      expect(gpu::synchronize());
      return log->times();
    });
  }

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }

  void transfer(nn::queue q, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    std::size_t bytes = 0;
    for (std::size_t s = 0; s < send.size(); ++s) {
      if (static_cast<int>(s) != rank()) bytes += send[s].size();
    }
    // Each rank of a gather has a place for its own part, even for an empty one. Gradients have none.
    const bool gathers = receive[static_cast<std::size_t>(rank())].data() != nullptr;
    note(q, gathers ? kind::gather : kind::reduce, bytes, [&] { ranks_->transfer(q, send, receive); });
  }
  void sum(nn::queue q, nn::tensor_view x) override {
    note(q, kind::small, 8 * static_cast<std::size_t>(x.size()), [&] { ranks_->sum(q, x); });
  }
  void max(nn::queue q, nn::tensor_view x) override {
    note(q, kind::small, 4 * static_cast<std::size_t>(x.size()), [&] { ranks_->max(q, x); });
  }
  void reduce_scatter(nn::queue q, float* x, std::span<const index_t> cuts) override {
    const auto own = static_cast<std::size_t>(rank());
    const index_t others = cuts.back() - cuts[0] - (cuts[own + 1] - cuts[own]);
    note(q, kind::reduce, sizeof(float) * static_cast<std::size_t>(others),
         [&] { ranks_->reduce_scatter(q, x, cuts); });
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) override { return ranks_->gather(own); }
  void check() override { ranks_->check(); }
  void abort(const std::string& what) noexcept override { ranks_->abort(what); }

 private:
  template <class Function>
  void note(nn::queue q, kind what, std::size_t bytes, const Function& f) {
    if (!log_) return f();
    naming_operation("time stamps", [&] {
      log_->note_collective(q == log_->compute() ? kind::small : what, bytes, ops_->stream_of(q), f);
    });
  }

  device_backend* ops_;
  nn::communicator* ranks_;
  std::unique_ptr<interval_log> log_;
};

}  // namespace

std::unique_ptr<rank_times> make_rank_times(nn::backend& ops, nn::communicator& ranks) {
  return std::make_unique<timed_ranks>(static_cast<device_backend&>(ops), ranks);
}

}  // namespace rotoscale::gpu
