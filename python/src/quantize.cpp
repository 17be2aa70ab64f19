// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Options, quantization and dequantization.
#include "quantize.hpp"

#include <cmath>
#include <limits>

#include "module.hpp"
#include "rotoscale/checked.hpp"
#include "runtime.hpp"

namespace rotoscale::python {

block_format blocks_named(const std::string& name, bool square) {
  const auto f = named<block_format>("format", name);
  return square ? square_blocks(f) : f;
}

rotation make_rotation(int points, std::string_view signs) {
  rotation r;
  r.points = points;
  for (std::size_t i = 0; i < signs.size() && i < max_run_length / 8; ++i) {
    r.signs[i / 4] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(signs[i])) << (8 * (i % 4));
  }
  return r;
}

// Options of the preset, replaced where the caller gives one.
quantize_request make_request(const std::string& preset, const std::string& format_name, const text& source,
                              const text& scale_rule_name, const text& rounding_name,
                              const std::optional<rotation>& turned, const text& policy, std::uint64_t seed,
                              std::uint64_t stream, int random_count, std::optional<float> encode_factor,
                              bool two_levels, bool square, int axis, const text& scale_choice_name) {
  auto o = named<block_options>("preset", preset);
  const block_format f = blocks_named(format_name, square);
  if (source) o.source = named<format>("source", *source);
  if (scale_rule_name) o.rule = named<scale_rule>("scale_rule", *scale_rule_name);
  if (scale_choice_name) o.choice = named<scale_choice>("scale_choice", *scale_choice_name);
  if (rounding_name) o.rounding = named<rounding>("rounding", *rounding_name);
  if (turned) o.rotation = *turned;
  if (policy) o.policy = named<block_policy>("policy", *policy);
  o.random = {seed, stream};
  o.random_count = random_count;
  if ((two_levels || encode_factor) && f.has_e8m0_scale()) {
    fail("encode_factor: " + format_name + " has no second-level factor");
  }
  if (encode_factor) o.encode_factor = *encode_factor;
  return {f, o, two_levels, axis};
}

namespace {

/// The functions of one type of source.
template <class T>
struct source_kernels {
  void (*quantize)(block_format, const block_options&, matrix<const T>, block_axis, block_matrix<std::uint8_t>,
                   thread_pool&);
  float (*amax)(block_format, const block_options&, matrix<const T>, block_axis, thread_pool&);
};

/// Calls f with x's kernels. Throws TypeError if no kernel reads x's format.
template <class Function>
auto with_kernels(const array_view& x, const Function& f) {
  const kernel_table& k = kernels();
  if (x.element == formats::fp32) return f(source_kernels<float>{k.quantize_fp32, k.amax_fp32});
  if (x.element == formats::bf16) return f(source_kernels<bf16>{k.quantize_bf16, k.amax_bf16});
  if (x.element == formats::fp16) return f(source_kernels<fp16>{k.quantize_fp16, k.amax_fp16});
  if (x.element == formats::fp64) return f(source_kernels<double>{k.quantize_fp64, k.amax_fp64});
  throw nb::type_error(
      ("x: dtype " + std::string(to_string(x.element)) + ", expected fp32, fp64, bf16 or fp16").c_str());
}

/// The blocks' axis for a source of `axes` axes.
block_axis axis_of(int axis, std::size_t axes) {
  const int last = static_cast<int>(axes) - 1;
  if (axis == -1 || axis == last) return block_axis::row;
  if (axes == 2 && (axis == 0 || axis == -2)) return block_axis::column;
  fail("axis: " + std::to_string(axis) + " is neither the last axis nor axis 0 of a matrix (x has " +
       std::to_string(axes) + " axes)");
}

template <class T>
float quantize_as(quantize_request r, const array_view& x, const result_shape& shape, std::uint8_t* codes,
                  std::uint8_t* scales, const source_kernels<T>& run) {
  const matrix<const T> in = as_rows<T>("x", x);
  const std::shared_ptr<thread_pool> threads = pool();
  if (r.two_levels && in.size() != 0) {
    const float amax = run.amax(r.f, r.o, in, shape.axis, *threads);
    r.o.encode_factor = tensor_encode_factor(amax, r.f.element, r.f.scale, r.o.choice);
  }
  checked::detail::check_options(r.f, r.o);
  if (in.size() != 0) {
    run.quantize(r.f, r.o, in, shape.axis, dense_blocks(r.f, shape.rows, shape.k, codes, scales), *threads);
  }
  return 1.0f / r.o.encode_factor;
}

int axis_number(const result_shape& shape) { return shape.axis == block_axis::row ? -1 : 0; }

nb::tuple quantize_array(nb::handle source, const quantize_request& r) {
  const array_view x = read_array("x", source, {});
  const result_shape shape = shape_of(r, x.shape);
  const new_array<std::uint8_t> codes = make_array<std::uint8_t>(shape.codes),
                                scales = make_array<std::uint8_t>(shape.scales);
  float factor = 1.0f;
  without_gil([&] { factor = quantize_view(r, x, shape, codes.data, scales.data); });
  return nb::make_tuple(codes.object, scales.object, factor, shape_tuple(x.shape), axis_number(shape));
}

nb::tuple shapes(const quantize_request& r, const nb::tuple& source) {
  extents x;
  for (const nb::handle extent : source) x.push_back(nb::cast<std::size_t>(extent));
  const result_shape shape = shape_of(r, x);
  return nb::make_tuple(shape_tuple(shape.codes), shape_tuple(shape.scales), axis_number(shape));
}

/// Fails unless the arrays of bytes are dense and belong together. Returns them as blocks.
block_matrix<const std::uint8_t> blocks_of(block_format f, const array_view& codes, const array_view& scales) {
  const matrix<const std::uint8_t> c = as_byte_rows("codes", codes), s = as_byte_rows("scales", scales);
  const index_t k = s.extent(1) * f.length;
  const std::string what =
      "codes of shape " + shape_text(codes.shape) + " and scales of shape " + shape_text(scales.shape) + ": ";
  if (c.extent(1) != packed_bytes(f.element, k)) {
    fail(what + std::to_string(k) + " elements take " + std::to_string(packed_bytes(f.element, k)) + " bytes of codes");
  }
  if (s.extent(0) * f.rows != c.extent(0)) fail(what + "rows of scales do not cover the rows of codes");
  return {c.extent(0), k, c.data, c.stride(0), s.data, s.stride(0)};
}

nb::object dequantize_array(nb::handle codes_in, nb::handle scales_in, const std::string& name, bool square,
                            float decode_factor, const rotation& turned) {
  const block_format f = blocks_named(name, square);
  const array_view codes = read_bytes("codes", codes_in), scales = read_bytes("scales", scales_in);
  const new_array<float> out = make_array<float>(values_shape(f, codes, scales));
  without_gil([&] { dequantize_view(f, turned, codes, scales, decode_factor, out.data); });
  return out.object;
}

/// 10 log10(Σ x² / Σ (x - y)²), in FP64. Inf without a difference, NaN for no elements.
double sqnr_of(nb::handle x_in, nb::handle y_in) {
  const array_view x = read_array("x", x_in, {}), y = read_array("values", y_in, {});
  if (x.shape != y.shape) {
    fail("x of shape " + shape_text(x.shape) + ": the quantized tensor has shape " + shape_text(y.shape));
  }
  const auto sums = [&](auto in) {
    const matrix<const float> other = as_rows<float>("values", y);
    double signal = 0, noise = 0;
    without_gil([&] {
      for (index_t r = 0; r < in.extent(0); ++r) {
        for (index_t c = 0; c < in.extent(1); ++c) {
          const double a = static_cast<double>(in(r, c)), d = a - static_cast<double>(other(r, c));
          signal += a * a;
          noise += d * d;
        }
      }
    });
    if (in.size() == 0) return std::numeric_limits<double>::quiet_NaN();
    return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
  };
  if (x.element == formats::fp32) return sums(as_rows<float>("x", x));
  if (x.element == formats::bf16) return sums(as_rows<bf16>("x", x));
  if (x.element == formats::fp16) return sums(as_rows<fp16>("x", x));
  if (x.element == formats::fp64) return sums(as_rows<double>("x", x));
  throw nb::type_error("x: expected fp32, fp64, bf16 or fp16");
}

}  // namespace

result_shape shape_of(const quantize_request& r, const extents& x) {
  if (x.empty()) fail("x: is a scalar, expected at least one axis");
  result_shape s;
  s.axis = axis_of(r.axis, x.size());
  const bool row = s.axis == block_axis::row;
  if ((!row || r.f.rows != 1) && x.size() != 2) {
    fail("x of shape " + shape_text(x) + ": " + (row ? "square blocks" : "axis 0") + " needs two axes");
  }
  s.rows = 1;
  for (std::size_t i = 0; i + 1 < x.size(); ++i) s.rows *= static_cast<index_t>(x[i]);
  s.k = static_cast<index_t>(x.back());
  if (!row) std::swap(s.rows, s.k);
  checked::detail::check_formats(r.f, r.o.rotation);
  checked::detail::check_extents("x", r.f, r.o.rotation, s.rows, s.k);
  const index_t bytes = packed_bytes(r.f.element, s.k), blocks = s.k / r.f.length;
  if (row && r.f.rows == 1) {
    s.codes = with_last(x, bytes);
    s.scales = with_last(x, blocks);
  } else {
    const auto size = [](index_t n) { return static_cast<std::size_t>(n); };
    s.codes = {size(s.rows), size(bytes)};
    s.scales = {size(s.rows / r.f.rows), size(blocks)};
  }
  return s;
}

float quantize_view(const quantize_request& r, const array_view& x, const result_shape& shape, std::uint8_t* codes,
                    std::uint8_t* scales) {
  return with_kernels(x, [&](const auto& run) { return quantize_as(r, x, shape, codes, scales, run); });
}

extents values_shape(block_format f, const array_view& codes, const array_view& scales) {
  return with_last(codes.shape, blocks_of(f, codes, scales).k);
}

void dequantize_view(block_format f, const rotation& turned, const array_view& codes, const array_view& scales,
                     float decode_factor, float* out) {
  const block_matrix<const std::uint8_t> in = blocks_of(f, codes, scales);
  checked::detail::check_formats(f, turned);
  checked::detail::check_extents("codes", f, turned, in.rows, in.k);
  if (in.rows == 0 || in.k == 0) return;
  const std::shared_ptr<thread_pool> threads = pool();
  kernels().dequantize(f, in, block_axis::row, row_major(out, in.rows, in.k), *threads, decode_factor);
  const index_t run = run_length(f, turned);
  for (index_t i = 0; turned.points != 0 && i < in.rows * in.k; i += run) {
    unrotate_run(out + i, static_cast<int>(run), turned);
  }
}

void add_quantize(nb::module_& m) {
  using nb::arg;
  nb::class_<rotation>(m, "Rotation", "Points of a Hadamard rotation and its mask of signs.");
  m.def(
      "rotation",
      [](int points, const nb::bytes& signs) {
        return make_rotation(points, {signs.c_str(), signs.size()});
      },
      arg("points"), arg("signs"), "Bit i % 8 of signs[i / 8] negates element i of a run.");
  nb::class_<quantize_request>(m, "Request", "Arguments of quantize without the source.");
  m.def("request", &make_request, arg("preset"), arg("format"), arg("source").none(), arg("scale_rule").none(),
        arg("rounding").none(), arg("rotation").none(), arg("policy").none(), arg("seed"), arg("stream"),
        arg("random_count"), arg("encode_factor").none(), arg("two_levels"), arg("square"), arg("axis"),
        arg("scale_choice").none(), "Options of a preset, with what is not None replaced.");
  m.def("quantize", &quantize_array, arg("x").none(), arg("request"),
        "Returns (codes, scales, 1 / encode_factor, shape, axis).");
  m.def("shapes", &shapes, arg("request"), arg("shape"), "Shapes of codes and scales, and the axis: -1 or 0.");
  m.def("dequantize", &dequantize_array, arg("codes").none(), arg("scales").none(), arg("format"), arg("square"),
        arg("decode_factor"), arg("rotation"), "Returns FP32 numbers; undoes the rotation.");
  m.def("sqnr", &sqnr_of, arg("x").none(), arg("values").none(),
        "Signal-to-quantization-noise ratio of `values` against `x`, in dB.");
}

}  // namespace rotoscale::python
