// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "module.hpp"

#include "rotoscale/version.hpp"
#include "runtime.hpp"

namespace nb = nanobind;
using namespace rotoscale::python;

NB_MODULE(_core, m) {
  // PyTorch keeps modules with operators until the process ends. python/tests/test_leaks.py finds leaks.
  nb::set_leak_warnings(false);
  m.attr("__version__") = ROTOSCALE_VERSION;
  m.def(
      "instruction_set", [] { return kernels().name; }, "Instruction set of the kernels that calls use.");
  m.def(
      "set_threads",
      [](int threads) {
        if (threads < 0) throw nb::value_error("threads: must not be negative");
        const nb::gil_scoped_release no_gil;
        set_threads(threads);
      },
      nb::arg("threads"), "Sets the number of threads; 0 means one per processor.");
  add_convert(m);
  add_quantize(m);
  add_layout(m);
  add_rotate(m);
  add_gemm(m);
  add_tables(m);
  add_validate(m);
  add_xla(m);
}
