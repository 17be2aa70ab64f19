// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A model with its memory, queue and step state: what a program needs to train, evaluate and sample. A training step is
// four graphs, launched again and again, an evaluation one; a step's only wait is for its result, when somebody asks.
#pragma once

#include "rotoscale/llama/healing.hpp"
#include "rotoscale/llama/session_pass.hpp"
#include "rotoscale/llama/snapshot.hpp"
