// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// XLA's custom calls for rotoscale.jax: quantize, dequantize and gemm of buffers. XLA calls them without the GIL.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "gemm.hpp"
#include "module.hpp"
#include "quantize.hpp"
#include "xla_ffi.hpp"

namespace rotoscale::python {
namespace {

/// A call: its buffers by position and its attributes by name.
class custom_call {
 public:
  explicit custom_call(const xla::call_frame& frame) : frame_(frame) {}

  std::int64_t arguments() const { return frame_.arguments.size; }
  array_view argument(std::int64_t i) const { return view_of(*frame_.arguments.items[i]); }
  /// Elements of an argument whose type Python chose.
  template <class T>
  const T* elements(std::int64_t i) const {
    return static_cast<const T*>(frame_.arguments.items[i]->data);
  }
  template <class T>
  T* result(std::int64_t i) const {
    return static_cast<T*>(frame_.results.items[i]->data);
  }

  template <class T>
  T number(std::string_view name) const {
    const auto* found = static_cast<const xla::scalar*>(attribute(name, xla::scalar_attribute));
    T value;
    std::memcpy(&value, found->value, sizeof value);
    return value;
  }
  bool flag(std::string_view name) const { return number<std::uint8_t>(name) != 0; }
  std::string string(std::string_view name) const {
    const auto* found = static_cast<const xla::byte_span*>(attribute(name, xla::string_attribute));
    return {found->data, found->size};
  }
  /// Empty: none was given.
  text optional_string(std::string_view name) const {
    std::string found = string(name);
    return found.empty() ? text() : text(std::move(found));
  }
  /// `points`, -1 for none, and `signs` as hexadecimal digits.
  std::optional<rotation> turned() const {
    const int points = number<std::int32_t>("points");
    if (points == -1) return std::nullopt;
    const std::string digits = string("signs");
    std::string signs;
    for (std::size_t end = digits.size(); end >= 2; end -= 2) {
      signs.push_back(static_cast<char>(std::stoi(digits.substr(end - 2, 2), nullptr, 16)));
    }
    return make_rotation(points, signs);
  }

 private:
  static format element_of(xla::data_type d) {
    switch (d) {
      case xla::f32: return formats::fp32;
      case xla::f64: return formats::fp64;
      case xla::f16: return formats::fp16;
      case xla::bf16: return formats::bf16;
      case xla::f8e4m3fn: return formats::e4m3;
      case xla::f8e5m2: return formats::e5m2;
      case xla::f8e4m3fnuz: return formats::e4m3fnuz;
      case xla::f8e5m2fnuz: return formats::e5m2fnuz;
      case xla::f8e4m3b11fnuz: return formats::e4m3b11fnuz;
      case xla::u8: return formats::int8;
      default: fail("an argument has XLA's type " + std::to_string(d));
    }
  }
  static array_view view_of(const xla::buffer& b) {
    array_view v;
    v.element = element_of(b.dtype);
    v.data = b.data;
    v.shape.assign(b.dims, b.dims + b.rank);
    v.strides.resize(v.shape.size());
    index_t stride = 1;
    for (std::size_t i = v.shape.size(); i-- > 0; stride *= static_cast<index_t>(v.shape[i])) v.strides[i] = stride;
    return v;
  }
  const void* attribute(std::string_view name, int type) const {
    const xla::attributes& all = frame_.attributes;
    for (std::int64_t i = 0; i < all.size; ++i) {
      if (std::string_view(all.names[i]->data, all.names[i]->size) == name && all.types[i] == type) return all.items[i];
    }
    fail("the call has no attribute " + std::string(name) + " of that type");
  }

  const xla::call_frame& frame_;
};

/// Arguments: x, and seed and stream as four words of 32 bits, low words first. Results: codes, scales, factor.
void quantize_call(const custom_call& call) {
  const array_view x = call.argument(0);
  const auto* words = call.elements<std::uint32_t>(1);
  const auto joined = [&](int i) { return words[i] | static_cast<std::uint64_t>(words[i + 1]) << 32; };
  const float encode_factor = call.number<float>("encode_factor");
  const quantize_request r =
      make_request(call.string("preset"), call.string("format"), call.optional_string("source"),
                   call.optional_string("scale_rule"), call.optional_string("rounding"), call.turned(),
                   call.optional_string("policy"), joined(0), joined(2), call.number<std::int32_t>("random_count"),
                   encode_factor == 0.0f ? std::nullopt : std::optional(encode_factor), call.flag("two_levels"),
                   call.flag("square"), call.number<std::int32_t>("axis"), call.optional_string("scale_choice"));
  *call.result<float>(2) =
      quantize_view(r, x, shape_of(r, x.shape), call.result<std::uint8_t>(0), call.result<std::uint8_t>(1));
}

/// Arguments: codes, scales, factor. Result: FP32 numbers.
void dequantize_call(const custom_call& call) {
  dequantize_view(blocks_named(call.string("format"), call.flag("square")), call.turned().value_or(rotation{}),
                  call.argument(0), call.argument(1), *call.elements<float>(2), call.result<float>(0));
}

/// Arguments: a and b, each numbers or codes, scales and factor; c if there is one. Result: FP32 (rows of a, of b).
void gemm_call(const custom_call& call) {
  std::int64_t next = 0;
  const auto operand_named = [&](const std::string& name) {
    const text blocks = call.optional_string(name + "_format");
    array_view codes = call.argument(next++);
    if (!blocks) return plain_operand(name.c_str(), std::move(codes), {});
    const block_format f = blocks_named(*blocks, call.flag(name + "_square"));
    array_view scales = call.argument(next++);
    const auto rows = static_cast<index_t>(codes.shape.at(0)), k = static_cast<index_t>(scales.shape.at(1)) * f.length;
    return block_operand(name.c_str(), std::move(codes), std::move(scales), f, rows, k, placement::row_major,
                         placement::row_major, *call.elements<float>(next++));
  };
  const auto a = operand_named("a"), b = operand_named("b");
  std::optional<array_view> c;
  if (next < call.arguments()) c = call.argument(next);
  multiply(*a, *b, call.string("contract"), c ? &*c : nullptr, call.string("output"), call.number<float>("alpha"),
           call.result<float>(0));
}

/// Answers XLA's question for the interface's version. XLA of version 0.1 lends no functions while it asks.
void describe(const xla::call_frame& frame) {
  xla::metadata& m = *reinterpret_cast<xla::metadata_extension*>(frame.extensions)->metadata;
  const int minor = frame.api == nullptr ? 1 : std::min(frame.api->version.minor, xla::newest_minor_version);
  m.version = {sizeof(xla::api_version), nullptr, xla::major_version, minor};
  m.traits = 0;
}

template <void (*compute)(const custom_call&)>
xla::error* handler(xla::call_frame* frame) noexcept {
  if (frame->extensions != nullptr && frame->extensions->type == xla::metadata_extension_type) {
    describe(*frame);
    return nullptr;
  }
  try {
    if (frame->stage != xla::execute_stage) fail("the call has XLA's stage " + std::to_string(frame->stage));
    compute(custom_call(*frame));
    return nullptr;
  } catch (const std::exception& error) {
    xla::error_arguments arguments{sizeof(xla::error_arguments), nullptr, error.what(), xla::invalid_argument_code};
    return frame->api->create_error(&arguments);
  }
}

}  // namespace

void add_xla(nb::module_& m) {
  const std::pair<const char*, xla::error* (*)(xla::call_frame*)> handlers[] = {
      {"rotoscale_quantize", handler<quantize_call>},
      {"rotoscale_dequantize", handler<dequantize_call>},
      {"rotoscale_gemm", handler<gemm_call>}};
  nb::dict targets;
  for (const auto& [name, function] : handlers) {
    targets[name] = nb::capsule(reinterpret_cast<void*>(function), "xla._CUSTOM_CALL_TARGET");
  }
  m.attr("xla_targets") = targets;
}

}  // namespace rotoscale::python
