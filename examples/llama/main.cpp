// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama: trains, evaluates and samples small Llamas and GPT-2s under low-precision recipes, and compares runs.
#include "config_texts.hpp"
#include "examples/train/front.hpp"

namespace rotoscale::program {

const char* const program_name = "mini-llama";
const char* const program_about = "Trains and compares small Llamas under low-precision recipes.";
const config_text* const config_texts = llama_configs;

}  // namespace rotoscale::program

int main(int argc, char** argv) { return rotoscale::program::run_program(argc, argv); }
