// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Calls both parts of isa_pair.cpp, the newer one where the CPU has NEWER's instructions. Each part must have its own
// registers, and both must give the reference's bytes.
#include <cstdint>
#include <cstdio>
#include <vector>

namespace older {
int compute(const std::vector<float>& x, std::vector<std::uint8_t>& bytes);
void compute_ref(const std::vector<float>& x, std::vector<std::uint8_t>& bytes);
}  // namespace older
namespace newer {
int compute(const std::vector<float>& x, std::vector<std::uint8_t>& bytes);
void compute_ref(const std::vector<float>& x, std::vector<std::uint8_t>& bytes);
}  // namespace newer

int main() {
  std::vector<float> x(64 * 256);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 4096) / 512.0f - 4.0f;
  std::vector<std::uint8_t> want, got;
  older::compute_ref(x, want);
  const int older_lanes = older::compute(x, got);
  if (older_lanes != 4 || got != want) return std::printf("older: %d lanes, wrong\n", older_lanes), 1;
  if (!__builtin_cpu_supports(NEWER)) return std::printf("the processor has no %s\n", NEWER), 0;
  const int newer_lanes = newer::compute(x, got);
  if (newer_lanes != LANES || got != want) return std::printf("newer: %d lanes, wrong\n", newer_lanes), 1;
  newer::compute_ref(x, got);
  return got == want ? 0 : 1;
}
