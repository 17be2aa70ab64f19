// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The Llama-3-style decoder: its class, how it lays its memory out, and its passes.
#pragma once

#include "rotoscale/llama/model_class.hpp"
#include "rotoscale/llama/model_layout.hpp"
#include "rotoscale/llama/model_pass.hpp"
