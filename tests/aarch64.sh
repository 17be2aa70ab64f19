#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Cross-compiles the headers, the small examples and the digest for aarch64 and runs them under qemu-user. Their output
# must be the recorded one. NEON's chains of BF16 must have the portable version's bits. Exit status 77 (skipped)
# without the cross compiler or without qemu. usage: tests/aarch64.sh
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=aarch64-linux-gnu-g++
for needed in $compiler qemu-aarch64; do
  command -v $needed >/dev/null || { echo "skipped: no $needed" && exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu

# Two chains, for two cores: the digest takes as long as everything else.
check_digest() {
  $compiler -std=c++20 -O1 -Iinclude -DDIGEST_NUMERICS_ONLY tests/digest/digest.cpp -o "$folder/digest" -pthread
  qemu-aarch64 "$folder/digest" 1 >"$folder/digest.txt"
  grep -v '^training: ' tests/golden/digest.txt | diff - "$folder/digest.txt"
}
check_digest &
digest=$!

(cd include && printf '#include "%s"\n' rotoscale/*.hpp rotoscale/nn/*.hpp | grep -v eigen) >"$folder/headers.cpp"
$compiler -std=c++20 -Iinclude -fsyntax-only -Wall -Wextra -Werror "$folder/headers.cpp"
for source in examples/0[1-57-8]_*.cpp; do
  name=$(basename "$source" .cpp)
  $compiler -std=c++20 -O1 -Iinclude "$source" -o "$folder/$name"
  qemu-aarch64 "$folder/$name" | diff "examples/$name.out" -
done
ln -s /usr/include/doctest "$folder/doctest"
printf '#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN\n#include "rotoscale/detail/gemm_units_test.cpp"\n' >"$folder/units.cpp"
$compiler -std=c++20 -O1 -Iinclude -I. -Itests -I"$folder" "$folder/units.cpp" -o "$folder/units" -pthread
qemu-aarch64 "$folder/units" -tc='*chains*'
wait $digest
