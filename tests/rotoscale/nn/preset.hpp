// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A recipe by its name.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "rotoscale/nn/presets.hpp"

namespace rotoscale::testing {

inline nn::recipe preset(const std::string& name) {
  for (auto& r : nn::presets::all()) {
    if (r.name == name) return r;
  }
  FAIL("no preset " << name);
  return {};
}

}  // namespace rotoscale::testing
