// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The Hadamard rotation of an FP32 array.
#include "module.hpp"
#include "quantize.hpp"

namespace rotoscale::python {
namespace {

nb::object rotate_array(nb::handle array, const rotation& r, std::optional<int> run_length, bool inverse) {
  const int points = r.points;
  const array_view x = read_array("x", array, {});
  if (x.element != formats::fp32) throw nb::type_error("x: expected float32");
  const matrix<const float> in = as_rows<float>("x", x);
  const int run = run_length.value_or(points);
  const bool power = points >= 2 && points <= max_run_length && (points & (points - 1)) == 0;
  if (!power) fail("points " + std::to_string(points) + ": must be a power of two from 2 to 256");
  if (run < points || run > max_run_length || run % points != 0) {
    fail("run " + std::to_string(run) + ": must be a multiple of points, at most 256");
  }
  if (in.extent(1) % run != 0) {
    fail("x of shape " + shape_text(x.shape) + ": the last axis is not a multiple of " + std::to_string(run));
  }
  const new_array<float> out = make_array<float>(x.shape);
  without_gil([&] {
    float* to = out.data;
    for (index_t row = 0; row < in.extent(0); ++row) {
      for (index_t c = 0; c < in.extent(1); c += run, to += run) {
        for (int i = 0; i < run; ++i) to[i] = in(row, c + i);
        inverse ? unrotate_run(to, run, r) : rotate_run(to, run, r);
      }
    }
  });
  return out.object;
}

}  // namespace

void add_rotate(nb::module_& m) {
  using nb::arg;
  m.def("rotate", &rotate_array, arg("x").none(), arg("rotation"), arg("run").none(), arg("inverse"),
        "Rotates runs of the last axis; `inverse` undoes it.");
}

}  // namespace rotoscale::python
