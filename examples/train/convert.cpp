// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "convert.hpp"

#include <filesystem>
#include <iostream>

#include "front.hpp"
#include "rotoscale/models/gpt2/convert.hpp"
#include "rotoscale/train/checkpoint.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

int convert(const convert_options& o) {
  std::error_code failed;
  if (fs::exists(o.out, failed)) throw io::error(o.out, "exists");
  if (fs::is_directory(o.from, failed)) {
    try {
      gpt2::write_llmc(o.out, train::find_weights(o.from), o.dtype);
    } catch (const io::error& e) {  // this command has no --ignore-config-key
      const std::string said = e.what();
      throw io::error(said.substr(0, said.find(models::ignoring_hint)));
    }
  } else {
    gpt2::read_llmc(o.from, o.out);
  }
  std::cout << o.out << ": converted from " << o.from << "\n";
  return exit_ok;
}

}  // namespace rotoscale::program
