// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The probe's interface to the processor's own matrix instructions: AMX and AVX512_BF16. cpu.cpp chooses at run time.
#pragma once

#include "examples/probe/device.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::probe {

/// Names the processor. Without matrix instructions: empty, with the reason in `why`.
std::string cpu_description(std::string& why);

/// Instructions that the processor has.
std::vector<probed_instruction> cpu_instructions();

/// Fills cases.d, which the caller has sized. Returns an error message, empty on success.
std::string run_on_cpu(const probed_instruction& instruction, probe_cases& cases, thread_pool& pool);

}  // namespace rotoscale::probe
