// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// In rocTX's place: a library that says how deep ranges nest, and remembers the last name.
#include <cstring>

static int depth = 0;
static char last[64] = "";

extern "C" {

int roctxRangePushA(const char* name) {
  std::strncpy(last, name, sizeof last - 1);
  return depth++;
}
int roctxRangePop() { return --depth; }
int ranges_depth() { return depth; }
const char* ranges_last() { return last; }

}  // extern "C"
