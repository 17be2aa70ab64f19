// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Smallest user of io/, which also needs nlohmann-json and zlib.
#include <zlib.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <rotoscale/io/error.hpp>
#include <rotoscale/version.hpp>

int main() {
  const auto document = nlohmann::json::parse(R"({"version": ")" ROTOSCALE_VERSION R"("})");
  if (zlibVersion()[0] != ZLIB_VERSION[0]) throw rotoscale::io::error("zlib and its header differ");
  std::printf("rotoscale %s\n", document["version"].get<std::string>().c_str());
}
