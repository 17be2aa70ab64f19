// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// XLA's custom calls for rotoscale.jax on a device: the functions of library.hpp on XLA's stream. Their arguments,
// results and attributes equal the CPU calls' (python/src/xla.cpp).
#include "gpu/api/device.hpp"
#include "gpu/train/queues.hpp"
#include "library.hpp"
#include "python/src/xla_call.hpp"
#include "rotoscale/block.hpp"
#include "rotoscale/names.hpp"

using namespace rotoscale;
namespace xla = rotoscale::python::xla;

namespace {

void expect(const char* failure) {
  if (failure != nullptr) throw std::invalid_argument(failure);
}

/// A call with XLA's stream. Its current device is the call's.
class device_call : public xla::call {
 public:
  explicit device_call(const xla::call_frame& f) : call(f), is_host_(std::string_view(gpu::build_mode()) == "host") {
    if (is_host_) return;
    xla::stream_arguments got{sizeof(xla::stream_arguments), nullptr, f.context, nullptr};
    if (f.api->get_stream(&got) != nullptr) throw std::runtime_error("XLA lends no stream");
    place_.stream = got.stream;
  }

  rotoscale_place place() const { return place_; }
  gpu::stream stream() const { return {place_.stream}; }
  bool is_host() const { return is_host_; }

  /// An argument as a matrix: its last axis and all others.
  rotoscale_matrix matrix(std::int64_t i) const {
    const xla::buffer& b = argument(i);
    const std::int64_t columns = b.rank == 0 ? 1 : b.dims[b.rank - 1];
    std::int64_t rows = 1;
    for (std::int64_t axis = 0; axis + 1 < b.rank; ++axis) rows *= b.dims[axis];
    return {b.data, rows, columns, columns, 1, to_string(xla::element_of(b.dtype)).data()};
  }

 private:
  bool is_host_;
  rotoscale_place place_{nullptr, -1};
};

/// A name that an attribute gives, or null for an empty one.
class optional_name {
 public:
  optional_name(const device_call& call, const char* attribute) : text_(call.string(attribute)) {}
  operator const char*() const { return text_.empty() ? nullptr : text_.c_str(); }

 private:
  std::string text_;
};

/// Memory of the device for one call, aligned to 256 bytes. XLA aligns to 16.
class scratch {
 public:
  scratch(const device_call& call, std::size_t bytes)
      : frame_(call.frame()), is_host_(call.is_host()), bytes_(bytes + (call.is_host() ? 0 : 240)) {
    if (bytes == 0) return;
    if (is_host_) {
      gpu::expect(gpu::allocate(memory_, bytes_));
      return;
    }
    xla::allocate_arguments a{sizeof(xla::allocate_arguments), nullptr, frame_.context, bytes_, 16, nullptr};
    if (frame_.api->allocate(&a) != nullptr) throw std::runtime_error("XLA has no memory for the call");
    memory_ = a.data;
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    if (is_host_) {
      (void)gpu::release(memory_);
    } else if (memory_ != nullptr) {
      xla::free_arguments a{sizeof(xla::free_arguments), nullptr, frame_.context, bytes_, memory_};
      frame_.api->free(&a);
    }
  }
  void* data() const { return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory_) + 255) / 256 * 256); }

 private:
  const xla::call_frame& frame_;
  bool is_host_;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

/// `signs` of an attribute, of at most 32 bits.
std::uint32_t signs_of(const device_call& call) {
  const std::string digits = call.string("signs");
  const std::size_t low = digits.size() < 8 ? 0 : digits.size() - 8;
  if (digits.find_first_not_of('0') < low) {
    throw std::invalid_argument("rotation: a device takes signs of at most 32 bits");
  }
  return static_cast<std::uint32_t>(std::stoul(digits.substr(low), nullptr, 16));
}

void quantize_call(const device_call& call) {
  const optional_name preset(call, "preset"), format(call, "format"), source(call, "source"), rule(call, "scale_rule"),
      choice(call, "scale_choice"), rounding(call, "rounding"), policy(call, "policy");
  rotoscale_quantize_call q{};
  q.x = call.matrix(0);
  q.preset = preset, q.format = format, q.source = source, q.scale_rule = rule, q.scale_choice = choice;
  q.rounding = rounding, q.policy = policy;
  std::uint32_t words[4] = {};
  if (call.string("rounding") == "stochastic" || call.string("scale_choice") == "eden") {
    gpu::expect(gpu::download(words, call.argument(1).data, sizeof words, call.stream()));
    gpu::expect(gpu::synchronize(call.stream()));
  }
  q.seed = xla::random_number(words, 0);
  q.random_stream = xla::random_number(words, 1);
  q.random_count = call.number<std::int32_t>("random_count");
  q.points = call.number<std::int32_t>("points");
  q.signs = signs_of(call);
  q.square = call.flag("square");
  const auto axis = call.number<std::int32_t>("axis");
  q.column = axis != -1 && axis != call.argument(0).rank - 1;
  q.codes = call.result<void>(0);
  q.scales = call.result<void>(1);
  auto* const factor = call.result<float>(2);
  const bool two_levels = call.flag("two_levels");
  const float given = call.number<float>("encode_factor");
  q.encode_factor = two_levels ? 0.0f : given == 0.0f ? 1.0f : given;
  const scratch memory(call, two_levels ? 2048 : 0);
  q.factor = two_levels ? factor : nullptr;
  q.scratch = memory.data();
  expect(rotoscale_quantize(&q, call.place()));
  const float inverse = 1.0f / q.encode_factor;
  if (!two_levels) gpu::expect(gpu::upload(factor, &inverse, sizeof inverse, call.stream()));
}

/// The operand of codes, scales and factor, or of numbers, from argument `next` on.
rotoscale_operand operand_of(const device_call& call, const char* blocks, bool square, std::int64_t& next) {
  rotoscale_operand o{};
  o.codes = call.matrix(next++);
  o.square = square;
  o.blocks = blocks;
  if (blocks == nullptr) return o;
  o.scales = call.argument(next++).data;
  o.factor = call.elements<float>(next++);
  return o;
}

void dequantize_call(const device_call& call) {
  if (call.number<std::int32_t>("points") > 0) throw std::invalid_argument("unrotate: a device leaves a rotation in");
  const optional_name format(call, "format");
  std::int64_t next = 0;
  const rotoscale_operand from = operand_of(call, format, call.flag("square"), next);
  expect(rotoscale_dequantize(&from, 0, call.result<float>(0), call.place()));
}

void gemm_call(const device_call& call) {
  const optional_name contract(call, "contract"), output(call, "output"), a(call, "a_format"), b(call, "b_format");
  std::int64_t next = 0;
  rotoscale_gemm_call g{};
  g.a = operand_of(call, a, call.flag("a_square"), next);
  g.b = operand_of(call, b, call.flag("b_square"), next);
  g.contract = contract;
  g.output = output;
  g.out = call.result<float>(0);
  g.alpha = call.number<float>("alpha");
  g.accumulate = next < call.arguments();
  const auto bytes = static_cast<std::size_t>(g.a.codes.rows * g.b.codes.rows) * sizeof(float);
  if (bytes == 0) return;
  if (g.accumulate) gpu::expect(gpu::copy(g.out, call.argument(next).data, bytes, call.stream()));
  expect(rotoscale_plan_gemm(&g, call.place()));
  const scratch memory(call, g.workspace_bytes);
  g.workspace = memory.data();
  expect(rotoscale_gemm(&g, call.place()));
}

}  // namespace

#pragma GCC visibility push(default)

extern "C" {
xla::error* rotoscale_xla_quantize(xla::call_frame* f) { return xla::handler<device_call, quantize_call>(f); }
xla::error* rotoscale_xla_dequantize(xla::call_frame* f) { return xla::handler<device_call, dequantize_call>(f); }
xla::error* rotoscale_xla_gemm(xla::call_frame* f) { return xla::handler<device_call, gemm_call>(f); }
}

#pragma GCC visibility pop
