// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The parts of the module rotoscale._core, one source per topic.
#pragma once

#include <nanobind/nanobind.h>

namespace rotoscale::python {

void add_convert(nanobind::module_& m);   ///< encode, decode, random_word
void add_quantize(nanobind::module_& m);  ///< request, quantize, dequantize, sqnr
void add_layout(nanobind::module_& m);    ///< pack, unpack, place, gather
void add_rotate(nanobind::module_& m);    ///< rotate
void add_gemm(nanobind::module_& m);      ///< gemm
void add_tables(nanobind::module_& m);    ///< formats, presets, models, contracts, recipes
void add_validate(nanobind::module_& m);  ///< validate_report
void add_xla(nanobind::module_& m);       ///< xla_targets

}  // namespace rotoscale::python
