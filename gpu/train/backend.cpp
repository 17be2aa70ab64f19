// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "gpu/train/backend.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "gpu/api/attention.hpp"
#include "gpu/api/gemm.hpp"

namespace rotoscale::gpu {

device_backend::device_backend(const train_options& options) : backend(device_operations), options_(options) {
  expect(current_device(device_));
  std::string name;
  expect(device_name(name));
  name += std::string(", ") + to_text(device_.arch) + ", ";
  if (device_.arch == arch::host) name = "";  // which the mode says
  description_ = std::string(build_mode()) + " (" + name + std::to_string(device_.processors) + " processors)";
  queues_.push_back(std::make_unique<device_queue>());
  if (options_.timing != nullptr) timed_.emplace();
}

device_backend::~device_backend() { (void)gpu::synchronize(); }

nn::device_properties device_backend::properties() const {
  const bool is_amd = device_.arch == arch::gfx942 || device_.arch == arch::gfx950;
  return {description_, 1, device_.arch == arch::host,
          device_.arch == arch::sm_90 ? "hopper"
          : is_amd                    ? "cdna3"
                                      : "portable"};
}

namespace {

/// True if the device has a quantizer for an operand of this recipe.
bool is_on_device(const nn::operand_recipe& o) {
  if (!nn::has_blocks(o.format)) return true;
  const block_format f = nn::block_format_of(o);
  const int points = o.rotation.points;
  return (f.length == 16 || f.length == 32 || f.length == 128) && (f.rows == 1 || f.rows == f.length) &&
         (points == 0 || points == 16 || points == 32 || points == 64 || points == 128);
}

/// A call without memory.
gemm_call call_of(const nn::gemm_contract& contract, const nn::gemm_recipe& gemm, index_t rows, index_t cols,
                  index_t k) {
  gemm_call c;
  c.a = operand_of(gemm.left, rows, k);
  c.b = operand_of(gemm.right, cols, k);
  c.contract = contract.options;
  return c;
}

}  // namespace

std::optional<nn::gemm_contract> supported_contract(const nn::gemm_recipe& gemm, index_t rows, index_t cols, index_t k,
                                                    const device_info& device) {
  if (!is_on_device(gemm.left) || !is_on_device(gemm.right)) return std::nullopt;
  const auto found = nn::find_gemm_contract(gemm.accumulate, rows, cols, k);
  if (!found || !check_gemm(call_of(*found, gemm, rows, cols, k), device).ok()) return std::nullopt;
  // Matrix units read vectors of 16 bytes. Rows of FP8 are padded to them, rows of BF16 are not, along either axis.
  const bool on_unit = found->options.model != fp32_fma_chain && found->options.model != fp32_blockwise;
  const bool padded = nn::is_fp8(nn::stored_format(gemm.left)) && nn::is_fp8(nn::stored_format(gemm.right));
  const bool vectors = rows % 8 == 0 && cols % 8 == 0 && k % 8 == 0;
  return !on_unit || padded || vectors ? found : std::nullopt;
}

std::optional<nn::gemm_contract> device_backend::contract(const nn::gemm_recipe& gemm, index_t rows, index_t cols,
                                                          index_t k) const {
  return supported_contract(gemm, rows, cols, k, device_);
}

std::size_t device_backend::gemm_workspace_bytes(const nn::gemm_contract& contract, const nn::gemm_recipe& gemm,
                                                 nn::gemm_kind, index_t rows, index_t cols, index_t k) const {
  return gpu::gemm_workspace_bytes(call_of(contract, gemm, rows, cols, k), device_);
}

std::optional<nn::attention_contract> device_backend::contract(const std::string& attention, index_t head_dim) const {
  const auto found = nn::find_attention_contract(attention);
  return found && runs_attention(*found, head_dim, device_) ? found : std::nullopt;
}

void* device_backend::allocate(std::size_t bytes, nn::memory_kind kind) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  void* memory = nullptr;
  const bool pinned = kind == nn::memory_kind::pinned;
  status done = pinned ? allocate_pinned(memory, size) : gpu::allocate(memory, size);
  if (done.code == error_code::out_of_memory) throw std::bad_alloc();
  if (done.ok() && pinned) std::memset(memory, 0, size);
  if (done.ok() && !pinned) done = fill(memory, 0, size);
  if (done.ok() && !pinned) done = gpu::synchronize();
  if (!done.ok()) {
    release(memory, kind);
    throw nn::backend_error("allocate", done.message(), is_of_device(done));
  }
  ++allocations_;
  return memory;
}
void device_backend::release(void* memory, nn::memory_kind kind) noexcept {
  (void)(kind == nn::memory_kind::pinned ? release_pinned(memory) : gpu::release(memory));
}

nn::queue device_backend::make_queue(const char*) {
  auto place = std::find(queues_.begin(), queues_.end(), nullptr);  // of one that was released
  if (place == queues_.end()) place = queues_.insert(place, nullptr);
  *place = naming_operation("make_queue", [] { return std::make_unique<device_queue>(); });
  return {static_cast<int>(place - queues_.begin())};
}
nn::event device_backend::record(nn::queue on) {
  nn::event e{on, 0};
  const char* const last = of(on).last;
  run(on, {"record"}, [&] {
    e.ticket = of(on).record();
    return status{};
  });
  of(on).last = last;  // recording is what waiting begins with
  return e;
}
void device_backend::order(nn::queue after, const nn::event& before) {
  // A queue that waits for a failed one fails as well.
  if (!of(after).failed) of(after).failed = of(before.of).failed;
  run(after, {wait_name}, [&] { return wait(of(after).stream, of(before.of).find(before.ticket)); });
}
void device_backend::follow(nn::queue after, nn::queue before) {
  if (!of(after).failed) of(after).failed = of(before).failed;
  run(after, {wait_name}, [&] {
    const status marked = gpu::record(of(before).end, of(before).stream);
    return marked.ok() ? wait(of(after).stream, of(before).end) : marked;
  });
}
void device_backend::synchronize(const nn::event& until) {
  const auto wait = [&] { of(until.of).synchronize(until.ticket); };
  guard_ == nullptr ? wait() : guard_->wait(wait);
}

void device_backend::transfer(nn::queue q, nn::copy_kind kind, void* to, const void* from, std::size_t bytes) {
  const bool on_device = kind == nn::copy_kind::on_device;
  run(q, {nn::name_of(kind), nn::op_class::copy, 0.0, (on_device ? 2 : 1) * bytes}, [&] {
    const stream s = of(q).stream;
    if (on_device) return gpu::copy(to, from, bytes, s);
    return kind == nn::copy_kind::upload ? gpu::upload(to, from, bytes, s) : gpu::download(to, from, bytes, s);
  });
}

void device_backend::copy_rows(nn::queue q, const nn::row_copy& c) {
  if (c.is_dense()) return copy(q, c.to, c.from, c.width * c.rows);
  run(q, {"copy_rows", nn::op_class::copy, 0.0, 2 * c.width * c.rows},
      [&] { return gpu::copy_rows(c.to, c.to_stride, c.from, c.from_stride, c.width, c.rows, of(q).stream); });
}

std::unique_ptr<nn::recorded_graph> device_backend::record_graph(nn::queue q, const std::function<void()>& operations) {
  // A graph is one operation on its queue. Operations that are timed or waited for are launched one by one.
  if (device_.arch == arch::host || !options_.graphs || options_.wait_for_each || options_.timing != nullptr) {
    return nullptr;
  }
  gpu::graph recorded;
  run(q, {"capture"}, [&] {
    const status begun = begin_capture(of(q).stream);
    capturing_ = begun.ok();
    return begun;
  });
  if (!capturing_) return std::make_unique<device_graph>(recorded);  // of a queue that has failed
  const auto end = [&] {
    capturing_ = false;
    return end_capture(of(q).stream, recorded);
  };
  try {
    operations();
  } catch (...) {
    if (end().ok()) (void)destroy(recorded);
    throw;
  }
  const status ended = end();
  run(q, {"capture"}, [&] { return ended; });
  return std::make_unique<device_graph>(recorded);
}
void device_backend::replay(nn::queue q, nn::recorded_graph& what) {
  run(q, {"graph"}, [&] { return gpu::replay(static_cast<device_graph&>(what).recorded, of(q).stream); });
}

void device_backend::begin_timing(const device_queue& on) {
  if (options_.timing != nullptr && !capturing_) expect(gpu::record(timed_->before, on.stream));
}
void device_backend::end_timing(const device_queue& on, const timed_operation& what) {
  if (!waits()) return;
  if (options_.timing == nullptr) return expect(gpu::synchronize(on.stream));
  expect(gpu::record(timed_->after, on.stream));
  expect(gpu::synchronize(timed_->after));
  float microseconds = 0.0f;
  expect(elapsed(timed_->before, timed_->after, microseconds));
  options_.timing->push_back(what);
  options_.timing->back().microseconds = static_cast<double>(microseconds);
}

status make_device_backend(const train_options& options, std::unique_ptr<nn::backend>& made) {
  status s = select_device(options.device);
  device_info device;
  if (s.ok()) s = current_device(device);
  if (!s.ok()) return s;
  if (s = check_architecture(device); !s.ok()) return s;
  try {
    made = std::make_unique<device_backend>(options);
  } catch (const refused& e) {
    return e.why;
  } catch (const std::bad_alloc&) {
    return {error_code::out_of_memory, "", "the host has no memory for the device's queue"};
  }
  return {};
}

}  // namespace rotoscale::gpu
