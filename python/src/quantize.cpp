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

rotation make_rotation(int points, const nb::bytes& signs) {
  rotation r;
  r.points = points;
  for (std::size_t i = 0; i < signs.size() && i < max_run_length / 8; ++i) {
    r.signs[i / 4] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(signs.c_str()[i])) << (8 * (i % 4));
  }
  return r;
}

namespace {

/// The functions of one type of source.
template <class T>
struct source_kernels {
  void (*quantize)(block_format, const block_options&, matrix<const T>, block_axis, block_matrix<std::uint8_t>,
                   thread_pool&);
  float (*amax)(block_format, const block_options&, matrix<const T>, block_axis, thread_pool&);
};

/// A request without its source. Python keeps one per set of arguments.
struct quantize_request {
  block_format f;
  block_options o;
  bool two_levels = false;  ///< takes encode_factor from the tensor's amax
  int axis_argument = -1;   ///< as the caller counts axes
  block_axis axis = block_axis::row;
};

/// What the caller set; the rest is the preset's.
quantize_request make_request(const std::string& preset, const std::string& format_name, const text& source,
                              const text& scale_rule_name, const text& rounding_name, std::optional<int> points,
                              const nb::bytes& signs, const text& policy, std::uint64_t seed, std::uint64_t stream,
                              int random_count, std::optional<float> encode_factor, bool two_levels, bool square,
                              int axis) {
  auto o = named<block_options>("preset", preset);
  const block_format f = blocks_named(format_name, square);
  if (source) o.source = named<format>("source", *source);
  if (scale_rule_name) o.rule = named<scale_rule>("scale_rule", *scale_rule_name);
  if (rounding_name) o.rounding = named<rounding>("rounding", *rounding_name);
  if (points) o.rotation = make_rotation(*points, signs);
  if (policy) o.policy = named<block_policy>("policy", *policy);
  o.random = {seed, stream};
  o.random_count = random_count;
  if ((two_levels || encode_factor) && f.has_e8m0_scale()) {
    fail("encode_factor: " + format_name + " has no second-level factor");
  }
  if (encode_factor) o.encode_factor = *encode_factor;
  return {f, o, two_levels, axis};
}

/// The blocks' axis for a source of `axes` axes.
block_axis axis_of(int axis, std::size_t axes) {
  const int last = static_cast<int>(axes) - 1;
  if (axis == -1 || axis == last) return block_axis::row;
  if (axes == 2 && (axis == 0 || axis == -2)) return block_axis::column;
  fail("axis: " + std::to_string(axis) + " is neither the last axis nor axis 0 of a matrix (x has " +
       std::to_string(axes) + " axes)");
}

/// Shapes of the result: leading axes of the source are kept; along axis 0 the result is transposed.
struct result_shape {
  extents codes, scales;
};
result_shape shape_of(const quantize_request& r, const array_view& x, index_t rows, index_t k) {
  const index_t bytes = packed_bytes(r.f.element, k), blocks = k / r.f.length;
  if (r.axis == block_axis::column || r.f.rows != 1) {
    const auto size = [](index_t n) { return static_cast<std::size_t>(n); };
    return {{size(rows), size(bytes)}, {size(rows / r.f.rows), size(blocks)}};
  }
  return {with_last(x.shape, bytes), with_last(x.shape, blocks)};
}

template <class T>
nb::tuple quantize_as(quantize_request r, const array_view& x, const source_kernels<T>& run) {
  const matrix<const T> in = as_rows<T>("x", x);
  const bool row = r.axis == block_axis::row;
  const index_t rows = in.extent(row ? 0 : 1), k = in.extent(row ? 1 : 0);
  if ((!row || r.f.rows != 1) && x.axes() != 2) {
    fail("x of shape " + shape_text(x.shape) + ": " + (row ? "square blocks" : "axis 0") + " needs two axes");
  }
  checked::detail::check_formats(r.f, r.o.rotation);
  checked::detail::check_extents("x", r.f, r.o.rotation, rows, k);
  const std::shared_ptr<thread_pool> threads = pool();
  if (r.two_levels && in.size() != 0) {
    without_gil([&] {
      r.o.encode_factor = tensor_encode_factor(run.amax(r.f, r.o, in, r.axis, *threads), r.f.element, r.f.scale);
    });
  }
  checked::detail::check_options(r.f, r.o);
  const result_shape shape = shape_of(r, x, rows, k);
  const new_array<std::uint8_t> codes = make_array<std::uint8_t>(shape.codes),
                                scales = make_array<std::uint8_t>(shape.scales);
  if (in.size() != 0) {
    const auto out = dense_blocks(r.f, rows, k, codes.data, scales.data);
    without_gil([&] { run.quantize(r.f, r.o, in, r.axis, out, *threads); });
  }
  return nb::make_tuple(codes.object, scales.object, 1.0f / r.o.encode_factor, shape_tuple(x.shape), row ? -1 : 0);
}

nb::tuple quantize_array(nb::handle source, quantize_request r) {
  const array_view x = read_array("x", source, {});
  r.axis = axis_of(r.axis_argument, x.axes());
  const kernel_table& k = kernels();
  if (x.element == formats::fp32) return quantize_as<float>(r, x, {k.quantize_fp32, k.amax_fp32});
  if (x.element == formats::bf16) return quantize_as<bf16>(r, x, {k.quantize_bf16, k.amax_bf16});
  if (x.element == formats::fp16) return quantize_as<fp16>(r, x, {k.quantize_fp16, k.amax_fp16});
  if (x.element == formats::fp64) return quantize_as<double>(r, x, {k.quantize_fp64, k.amax_fp64});
  throw nb::type_error(
      ("x: dtype " + std::string(to_string(x.element)) + ", expected fp32, fp64, bf16 or fp16").c_str());
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
                            float decode_factor, int points, const nb::bytes& signs) {
  const block_format f = blocks_named(name, square);
  const rotation turned = make_rotation(points, signs);
  const array_view codes = read_bytes("codes", codes_in), scales = read_bytes("scales", scales_in);
  const block_matrix<const std::uint8_t> in = blocks_of(f, codes, scales);
  checked::detail::check_formats(f, turned);
  checked::detail::check_extents("codes", f, turned, in.rows, in.k);
  const new_array<float> out = make_array<float>(with_last(codes.shape, in.k));
  if (in.rows == 0 || in.k == 0) return out.object;
  const std::shared_ptr<thread_pool> threads = pool();
  without_gil([&] {
    kernels().dequantize(f, in, block_axis::row, row_major(out.data, in.rows, in.k), *threads, decode_factor);
    const index_t run = run_length(f, turned);
    for (index_t i = 0; points != 0 && i < in.rows * in.k; i += run) {
      unrotate_run(out.data + i, static_cast<int>(run), turned);
    }
  });
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

void add_quantize(nb::module_& m) {
  using nb::arg;
  nb::class_<quantize_request>(m, "Request", "Arguments of quantize without the source.");
  m.def("request", &make_request, arg("preset"), arg("format"), arg("source").none(), arg("scale_rule").none(),
        arg("rounding").none(), arg("points").none(), arg("signs"), arg("policy").none(), arg("seed"), arg("stream"),
        arg("random_count"), arg("encode_factor").none(), arg("two_levels"), arg("square"), arg("axis"),
        "Options of a preset, with what is not None replaced.");
  m.def("quantize", &quantize_array, arg("x").none(), arg("request"),
        "Returns (codes, scales, 1 / encode_factor, shape, axis).");
  m.def("dequantize", &dequantize_array, arg("codes").none(), arg("scales").none(), arg("format"), arg("square"),
        arg("decode_factor"), arg("points"), arg("signs"), "Returns FP32 numbers; undoes a rotation of `points`.");
  m.def("sqnr", &sqnr_of, arg("x").none(), arg("values").none(),
        "Signal-to-quantization-noise ratio of `values` against `x`, in dB.");
}

}  // namespace rotoscale::python
