// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// XLA's custom calls for rotoscale.jax: quantize, dequantize and gemm of buffers. XLA calls them without the GIL.
#include "gemm.hpp"
#include "module.hpp"
#include "quantize.hpp"
#include "xla_call.hpp"

namespace rotoscale::python {
namespace {

/// A call with the package's arrays and options.
class custom_call : public xla::call {
 public:
  using xla::call::call;

  array_view array(std::int64_t i) const { return view_of(argument(i)); }
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
  static array_view view_of(const xla::buffer& b) {
    array_view v;
    v.element = xla::element_of(b.dtype);
    v.data = b.data;
    v.shape.assign(b.dims, b.dims + b.rank);
    v.strides.resize(v.shape.size());
    index_t stride = 1;
    for (std::size_t i = v.shape.size(); i-- > 0; stride *= static_cast<index_t>(v.shape[i])) v.strides[i] = stride;
    return v;
  }
};

/// Arguments: x, and seed and stream as four words of 32 bits, low words first. Results: codes, scales, factor.
void quantize_call(const custom_call& call) {
  const array_view x = call.array(0);
  const auto* words = call.elements<std::uint32_t>(1);
  const float encode_factor = call.number<float>("encode_factor");
  const quantize_request r = make_request(
      call.string("preset"), call.string("format"), call.optional_string("source"), call.optional_string("scale_rule"),
      call.optional_string("rounding"), call.turned(), call.optional_string("policy"), xla::random_number(words, 0),
      xla::random_number(words, 1), call.number<std::int32_t>("random_count"),
      encode_factor == 0.0f ? std::nullopt : std::optional(encode_factor), call.flag("two_levels"), call.flag("square"),
      call.number<std::int32_t>("axis"), call.optional_string("scale_choice"));
  *call.result<float>(2) =
      quantize_view(r, x, shape_of(r, x.shape), call.result<std::uint8_t>(0), call.result<std::uint8_t>(1));
}

/// Arguments: codes, scales, factor. Result: FP32 numbers.
void dequantize_call(const custom_call& call) {
  dequantize_view(blocks_named(call.string("format"), call.flag("square")), call.turned().value_or(rotation{}),
                  call.array(0), call.array(1), *call.elements<float>(2), call.result<float>(0));
}

/// Arguments: a, b and, if there is one, c. a and b are numbers, or codes, scales and factor. Result: FP32 (M, N).
void gemm_call(const custom_call& call) {
  std::int64_t next = 0;
  const auto operand_named = [&](const std::string& name) {
    const text blocks = call.optional_string(name + "_format");
    array_view codes = call.array(next++);
    if (!blocks) return plain_operand(name.c_str(), std::move(codes), {});
    const block_format f = blocks_named(*blocks, call.flag(name + "_square"));
    array_view scales = call.array(next++);
    const auto rows = static_cast<index_t>(codes.shape.at(0)), k = static_cast<index_t>(scales.shape.at(1)) * f.length;
    return block_operand(name.c_str(), std::move(codes), std::move(scales), f, rows, k, placement::row_major,
                         placement::row_major, *call.elements<float>(next++));
  };
  const auto a = operand_named("a"), b = operand_named("b");
  std::optional<array_view> c;
  if (next < call.arguments()) c = call.array(next);
  multiply(*a, *b, call.string("contract"), c ? &*c : nullptr, call.string("output"), call.number<float>("alpha"),
           call.result<float>(0));
}

}  // namespace

void add_xla(nb::module_& m) {
  const std::pair<const char*, xla::error* (*)(xla::call_frame*)> handlers[] = {
      {"rotoscale_quantize", xla::handler<custom_call, quantize_call>},
      {"rotoscale_dequantize", xla::handler<custom_call, dequantize_call>},
      {"rotoscale_gemm", xla::handler<custom_call, gemm_call>}};
  nb::dict targets;
  for (const auto& [name, function] : handlers) {
    targets[name] = nb::capsule(reinterpret_cast<void*>(function), "xla._CUSTOM_CALL_TARGET");
  }
  m.attr("xla_targets") = targets;
}

}  // namespace rotoscale::python
