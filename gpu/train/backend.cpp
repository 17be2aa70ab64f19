// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "gpu/train/backend.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "gpu/api/dequantize.hpp"
#include "gpu/api/gemm_bf16.hpp"
#include "gpu/api/gemm_definition.hpp"
#include "gpu/api/gemm_fp8.hpp"

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

/// A definition's contract, computed by gemm_by_definition?
bool is_defined(const nn::gemm_contract& c) {
  return c.options.split_k == 1 && c.options.promotion == 0 &&
         (c.options.model == fp32_fma_chain || c.options.model == fp32_blockwise);
}

/// That of a kernel of the device's matrix unit, K whole or in parts?
bool is_of(const gemm_contract_entry* own, const nn::gemm_contract& c) {
  const gemm_options& o = c.options;
  return own != nullptr && o.split_k <= 64 && (o.split_k == 1 || o.split_grain == own->split_grain) &&
         o.promotion == own->promotion && o.model == find_unit(own->unit)->model;
}

/// Which sums of gemm_fp8 a contract that runs on it means.
fp8_sums fp8_sums_of(const nn::gemm_contract& c) {
  return c.options.promotion == 0 ? fp8_sums::fast : fp8_sums::promoted;
}

/// True if `dequantize` expands these blocks to BF16 for a BF16 unit.
bool is_expanded(const block_format& f) { return nn::expands_to_bf16(f.element, f.scale) && has_tile_kernel(f, 0); }
bool is_expanded(const nn::operand_recipe& o) {
  return nn::has_blocks(o.format) && is_expanded(nn::block_format_of(o));
}
bool is_expanded(const gemm_operand& o) { return o.block != 0 && is_expanded(o.blocks()); }
/// Of an operand that is expanded, in workspace.
std::size_t expanded_bytes(index_t rows, index_t k) {
  return (static_cast<std::size_t>(rows) * static_cast<std::size_t>(k) * sizeof(bf16) + 255) / 256 * 256;
}

/// Has the device's matrix unit a kernel for such operands under this contract? Rows of FP8 are padded to the 16 bytes
/// that are copied at a time, those of BF16 are not, in either orientation.
bool runs_on_unit(const nn::gemm_contract& c, const nn::gemm_recipe& gemm, index_t rows, index_t cols, index_t k,
                  const device_info& device) {
  const auto is_bf16 = [](const nn::operand_recipe& o) {
    return nn::element_format(o.format) == formats::bf16 || is_expanded(o);
  };
  if (is_bf16(gemm.left) && is_bf16(gemm.right)) {
    return rows % 8 == 0 && cols % 8 == 0 && k % 8 == 0 && is_of(bf16_contract(c.options.model, device), c);
  }
  if (!nn::is_fp8(gemm.left.format) || !nn::is_fp8(gemm.right.format)) return false;
  return is_of(fp8_contract(fp8_sums_of(c), device), c);
}

/// Has the device a quantizer for an operand of this recipe?
bool is_on_device(const nn::operand_recipe& o) {
  if (!nn::has_blocks(o.format)) return true;
  const block_format f = nn::block_format_of(o);
  return (f.length == 16 || f.length == 32) && (f.rows == 1 || f.rows == f.length) &&
         (o.rotation.points == 0 || o.rotation.points == 16 || o.rotation.points == 32);
}

}  // namespace

std::optional<nn::gemm_contract> device_backend::contract(const nn::gemm_recipe& gemm, index_t rows, index_t cols,
                                                          index_t k) const {
  if (!is_on_device(gemm.left) || !is_on_device(gemm.right)) return std::nullopt;
  const auto found = nn::find_gemm_contract(gemm.accumulate, rows, cols, k);
  // The definitions take any operands, or pairs of MXFP4's blocks (find_fault has seen to that).
  if (!found || is_defined(*found)) return found;
  return runs_on_unit(*found, gemm, rows, cols, k, device_) ? found : std::nullopt;
}

std::size_t device_backend::gemm_workspace_bytes(const nn::gemm_contract& contract, const nn::gemm_recipe& gemm,
                                                 nn::gemm_kind, index_t rows, index_t cols, index_t k) const {
  std::size_t bytes = workspace_of(contract, rows, cols, k);
  if (is_defined(contract)) return bytes;
  if (is_expanded(gemm.left)) bytes += expanded_bytes(rows, k);
  if (is_expanded(gemm.right)) bytes += expanded_bytes(cols, k);
  return bytes;
}

std::size_t device_backend::workspace_of(const nn::gemm_contract& contract, index_t rows, index_t cols,
                                         index_t k) const {
  if (!is_defined(contract)) {
    const int split_k = static_cast<int>(contract.options.split_k);
    const gemm_contract_entry* const dense = bf16_contract(contract.options.model, device_);
    return dense != nullptr ? gemm_bf16_workspace_bytes(*dense, rows, cols, k, split_k)
                            : gemm_fp8_workspace_bytes(rows, cols, k, split_k, device_);
  }
  return contract.options.model == fp32_blockwise ? blockwise_workspace_bytes(rows, cols, k, device_) : 0;
}

std::size_t device_backend::workspace_bytes(const nn::workspace_request& r) const {
  return std::max({r.gemm_bytes, embedding_backward_workspace_bytes(r.tokens, r.vocabulary),
                   rmsnorm_backward_workspace_bytes(r.tokens, r.hidden),
                   static_cast<std::size_t>(r.partials) * sizeof(float),
                   cross_entropy_workspace_bytes(r.tokens, r.vocabulary), sum_losses_workspace_bytes(r.tokens),
                   attention_backward_workspace_bytes(1, r.tokens, r.heads), sum_squares_workspace_bytes(r.parameters),
                   observe_workspace_bytes(r.observed_rows), compare_workspace_bytes(r.observed_elements)});
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
  try {
    *place = std::make_unique<device_queue>();
  } catch (const refused& e) {
    throw nn::backend_error("make_queue", e.what(), is_of_device(e.why));
  }
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
  run(after, {"order"}, [&] { return wait(of(after).stream, of(before.of).find(before.ticket)); });
}
void device_backend::synchronize(const nn::event& until) { of(until.of).synchronize(until.ticket); }

void device_backend::transfer(nn::queue q, nn::copy_kind kind, void* to, const void* from, std::size_t bytes) {
  const bool on_device = kind == nn::copy_kind::on_device;
  run(q, {nn::name_of(kind), nn::op_class::copy, 0.0, (on_device ? 2 : 1) * bytes}, [&] {
    const stream s = of(q).stream;
    if (on_device) return gpu::copy(to, from, bytes, s);
    return kind == nn::copy_kind::upload ? gpu::upload(to, from, bytes, s) : gpu::download(to, from, bytes, s);
  });
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

/// gemm_bf16 of operands that are BF16, or are converted to BF16 in workspace.
status device_backend::gemm_on_bf16_unit(const device_call& c, const nn::gemm_contract& contract, gemm_operand left,
                                         gemm_operand right, const sum_output& r) const {
  auto* const workspace = static_cast<std::uint8_t*>(c.workspace);
  std::size_t taken = 0;
  for (gemm_operand* const x : {&left, &right}) {
    if (!is_expanded(*x)) continue;
    std::uint8_t* const to = workspace + taken;
    taken += expanded_bytes(x->rows, x->k);
    if (taken > c.bytes) {
      return {error_code::out_of_memory, "workspace", "is too small for operands that are expanded"};
    }
    const matrix<bf16> values = row_major(reinterpret_cast<bf16*>(to), x->rows, x->k);
    if (status s = gpu::dequantize(*x, block_axis::row, values, c.s); !s.ok()) return s;
    *x = make_operand(matrix<const bf16>(values));
  }
  return gemm_bf16(*bf16_contract(contract.options.model, device_), left, right, r, c.s,
                   static_cast<int>(contract.options.split_k), workspace + taken, c.bytes - taken);
}

status device_backend::multiply(const device_call& c, const op::gemm::in& i, const op::gemm::out& o) const {
  const gemm_operand& left = described(i.a);
  const gemm_operand& right = described(i.b);
  const nn::gemm_contract& contract = i.contract;
  sum_output r;
  r.out = o.c.data;
  r.stored = o.c.type == nn::dtype::bf16 ? formats::bf16 : formats::fp32;
  r.output = nn::element_format(i.output);
  r.out_stride = o.c.stride(0);
  r.accumulate = i.accumulate;
  if (!is_defined(contract)) {
    if (bf16_contract(contract.options.model, device_) != nullptr) {
      return gemm_on_bf16_unit(c, contract, left, right, r);
    }
    return gemm_fp8(fp8_sums_of(contract), left, right, r, c.s, static_cast<int>(contract.options.split_k), c.workspace,
                    c.bytes);
  }
  const bool blockwise = contract.options.model == fp32_blockwise;
  const bool on_unit = workspace_of(contract, left.rows, right.rows, left.k) > 0;
  return gemm_by_definition(blockwise ? definition_sum::blockwise : definition_sum::fma_chain, left, right, r, c.s,
                            on_unit ? c.workspace : nullptr, c.bytes);
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
