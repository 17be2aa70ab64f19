// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A device's rank over a library with NCCL's functions, whose ranks are threads: calls are grouped, an own entry is
// copied, and a rank that fails ends the calls of all others. Times of collectives.
#include "gpu/train/nccl_ranks.hpp"

#include <doctest/doctest.h>

#include <future>
#include <map>

#include "rotoscale/nn/reduce_scatter_check.hpp"
#include "rotoscale/nn/thread_ranks.hpp"

namespace train_nccl_ranks_test {

using namespace rotoscale;
namespace nccl = gpu::nccl;

/// A communicator of the library.
struct connection {
  connection(nn::rank_group& group, int r) : rank(group, r) { clear(); }
  void clear() {
    send.assign(static_cast<std::size_t>(rank.size()), {});
    receive.assign(send.size(), {});
  }

  nn::thread_rank rank;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
};
std::mutex mutex;
std::map<std::string, std::unique_ptr<nn::rank_group>> groups;  // by id
thread_local connection* grouped = nullptr;
std::atomic<int> open_connections = 0;
std::atomic<bool> misses_rank = false;

connection& of(nccl::comm c) { return *static_cast<connection*>(c); }
/// 3, NCCL's internal error, if f throws.
template <class Function>
nccl::result result_of(const Function& f) {
  try {
    f();
  } catch (const nn::rank_failure&) {
    return 3;
  }
  return nccl::success;
}

nccl::functions library() {
  nccl::functions f;
  f.GetUniqueId = [](nccl::unique_id* id) {
    static std::atomic<int> made = 0;
    std::snprintf(id->internal, sizeof id->internal, "%d", ++made);
    return nccl::success;
  };
  f.CommInitRank = [](nccl::comm* c, int ranks, nccl::unique_id id, int rank) {
    const std::lock_guard lock(mutex);
    auto& group = groups[id.internal];
    if (!group) group = std::make_unique<nn::rank_group>(ranks);
    *c = new connection(*group, rank);
    ++open_connections;
    return nccl::success;
  };
  f.CommAbort = [](nccl::comm c) {
    of(c).rank.abort("aborted");  // and is leaked: a call may use it
    --open_connections;
    return nccl::success;
  };
  f.CommGetAsyncError = [](nccl::comm, nccl::result* r) {
    *r = misses_rank ? nccl::remote_error : nccl::success;
    return nccl::success;
  };
  f.GetErrorString = [](nccl::result) { return "internal error"; };
  f.GroupStart = [] { return nccl::success; };
  f.Send = [](const void* from, std::size_t n, nccl::data_type, int peer, nccl::comm c, void*) {
    grouped = &of(c);
    grouped->send[static_cast<std::size_t>(peer)] = {static_cast<const std::byte*>(from), n};
    return nccl::success;
  };
  f.Recv = [](void* to, std::size_t n, nccl::data_type, int peer, nccl::comm c, void*) {
    grouped = &of(c);
    grouped->receive[static_cast<std::size_t>(peer)] = {static_cast<std::byte*>(to), n};
    return nccl::success;
  };
  f.GroupEnd = [] {
    connection* const c = std::exchange(grouped, nullptr);
    if (c == nullptr) return nccl::success;
    const nccl::result done = result_of([&] { c->rank.transfer({}, c->send, c->receive); });
    c->clear();
    return done;
  };
  f.AllReduce = [](const void*, void* x, std::size_t n, nccl::data_type type, nccl::reduction how, nccl::comm c,
                   void*) {
    const auto view =
        nn::dense_tensor(x, type == nccl::int64 ? nn::dtype::i64 : nn::dtype::fp32, {static_cast<index_t>(n)});
    return result_of([&] { how == nccl::sum ? of(c).rank.sum({}, view) : of(c).rank.max({}, view); });
  };
  f.ReduceScatter = [](const void* x, void* own, std::size_t n, nccl::data_type, nccl::reduction, nccl::comm c, void*) {
    std::vector<index_t> cuts;
    for (int r = 0; r <= of(c).rank.size(); ++r) cuts.push_back(r * static_cast<index_t>(n));
    auto* const first = static_cast<float*>(const_cast<void*>(x));
    if (own != first + cuts[static_cast<std::size_t>(of(c).rank.rank())]) return nccl::result{4};  // not in place
    return result_of([&] { of(c).rank.reduce_scatter({}, first, cuts); });
  };
  f.Reduce = [](const void*, void* x, std::size_t n, nccl::data_type, nccl::reduction, int root, nccl::comm c, void*) {
    std::vector<index_t> cuts;
    for (int r = 0; r <= of(c).rank.size(); ++r) cuts.push_back(r <= root ? 0 : static_cast<index_t>(n));
    return result_of([&] { of(c).rank.reduce_scatter({}, static_cast<float*>(x), cuts); });
  };
  return f;
}

/// Bytes arrive where they are meant, integers are added, maxima are those of all. All ranks call it.
void check_collectives(nn::communicator& rank) {
  const auto n = static_cast<std::size_t>(rank.size()), own = static_cast<std::size_t>(rank.rank());
  // Rank r sends r + 1 bytes to each rank s, all of them 16 r + s.
  std::vector<std::vector<std::byte>> out, in;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (std::size_t s = 0; s < n; ++s) {
    send.emplace_back(out.emplace_back(own + 1, static_cast<std::byte>(16 * own + s)));
    receive.emplace_back(in.emplace_back(s + 1));
  }
  std::int64_t whole[] = {rank.rank(), -7};
  float most[] = {static_cast<float>(3 * rank.rank() % 4), 2.5f};
  for (int again = 0; again < 3; ++again) rank.transfer({}, send, receive);
  nn::check_reduce_scatter(rank);
  rank.sum({}, nn::dense_tensor(whole, nn::dtype::i64, {2}));
  rank.max({}, nn::dense_tensor(most, nn::dtype::fp32, {2}));
  for (std::size_t s = 0; s < n; ++s) {
    CHECK(in[s] == std::vector<std::byte>(s + 1, static_cast<std::byte>(16 * s + own)));
  }
  CHECK((whole[0] == rank.size() * (rank.size() - 1) / 2 && whole[1] == -7 * rank.size()));
  CHECK((most[0] == (rank.size() == 1 ? 0.0f : 3.0f) && most[1] == 2.5f));
}

/// Calls body(backend, rank of its device) on each rank, and returns the failures that ranks report. No rank
/// disconnects before all have ended.
template <class Body>
std::vector<std::string> run_device_ranks(nn::rank_group& group, const Body& body) {
  struct member {
    gpu::device_backend ops{gpu::train_options{}};
    std::optional<nn::thread_rank> host;
    std::unique_ptr<gpu::nccl_rank> rank;
  };
  std::vector<member> members(static_cast<std::size_t>(group.size()));
  std::vector<std::string> said;
  const auto run = [&](const nn::thread_rank& thread) {
    member& own = members[static_cast<std::size_t>(thread.rank())];
    own.host.emplace(group, thread.rank());
    own.rank = std::make_unique<gpu::nccl_rank>(own.ops, *own.host, gpu::rank_options{}, library());
    try {
      own.rank->connect();
      body(own.ops, *own.rank);
      own.rank->close();
    } catch (const nn::rank_failure& e) {
      const std::lock_guard lock(mutex);
      said.push_back(e.what());
      throw;
    }
  };
  try {
    nn::run_ranks(group, run);
  } catch (const nn::rank_failure&) {
  }
  return said;
}

TEST_CASE("devices exchange by the library what threads exchange in memory") {
  for (const int size : {2, 4}) {
    nn::rank_group group(size);
    CHECK(run_device_ranks(group, [](nn::backend& ops, nn::communicator& rank) {
            check_collectives(rank);
            ops.synchronize(nn::queue{});
          }).empty());
    CHECK(open_connections == 0);
  }
}

TEST_CASE("a rank that fails ends calls that wait for its device") {
  nn::rank_group group(3);
  const auto body = [&](nn::backend& ops, nn::communicator& rank) {
    if (rank.rank() == 1) throw std::domain_error("no more");
    std::int64_t n = 0;
    rank.sum({}, nn::dense_tensor(&n, nn::dtype::i64, {1}));
    ops.synchronize(nn::queue{});
  };
  CHECK(run_device_ranks(group, body) == std::vector<std::string>(2, "rank 1 failed: no more"));
  CHECK(open_connections == 0);
}

TEST_CASE("the host names the rank whose end the library notices first") {
  nn::rank_group group(2);
  const auto body = [&](nn::backend&, nn::communicator& rank) {
    misses_rank = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (rank.rank() == 1) throw std::domain_error("no more");
    for (;; std::this_thread::yield()) rank.check();
  };
  CHECK(run_device_ranks(group, body) == std::vector<std::string>{"rank 1 failed: no more"});
  misses_rank = false;
}

/// One of two ranks, which moves nothing. Its device fails in sums.
class idle_rank final : public nn::communicator {
 public:
  int size() const override { return 2; }
  void sum(nn::queue, nn::tensor_view) override { gpu::expect({gpu::error_code::device_error, "", "is lost"}); }
};

TEST_CASE("an exchange of gradients has one kind on all ranks, also on one that sends none") {
  using kind = gpu::queue_interval::kind;
  gpu::device_backend ops{gpu::train_options{}};
  idle_rank idle;
  const auto times = gpu::make_rank_times(ops, idle);
  const nn::owned_queue exchange(ops, "exchange");
  std::byte arena[8];
  const auto place = [&](std::size_t first, std::size_t count) { return std::span(arena + first, count); };
  const auto transfer = [&](std::span<const std::byte> to_other, std::span<const std::byte> to_own,
                            std::span<std::byte> own) {
    const std::span<const std::byte> send[] = {to_own, to_other};
    const std::span<std::byte> receive[] = {own, place(4, 4)};
    times->transfer(exchange, send, receive);
  };
  times->begin({});
  transfer(place(0, 4), {}, {});
  transfer({}, {}, {});
  transfer(place(0, 4), place(0, 4), place(0, 4));
  transfer({}, {}, place(0, 0));  // a part without elements
  std::vector<kind> kinds;
  for (const gpu::queue_interval& x : times->end()) kinds.push_back(x.what);
  CHECK((kinds == std::vector{kind::reduce, kind::reduce, kind::gather, kind::gather}));
}

TEST_CASE("a device that fails between time stamps is a failure of the device") {
  gpu::device_backend ops{gpu::train_options{}};
  idle_rank idle;
  const auto times = gpu::make_rank_times(ops, idle);
  times->begin({});
  std::int64_t n = 0;
  try {
    times->sum({}, nn::dense_tensor(&n, nn::dtype::i64, {1}));
    FAIL("returned");
  } catch (const nn::backend_error& e) {
    CHECK(e.of_device());
  }
  CHECK(times->end().size() == 1);
}

}  // namespace train_nccl_ranks_test
