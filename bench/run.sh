#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the benchmarks and prints one table of ratios last. Absolute rates stay in build-bench/results:
# they say more about the machine than about the code.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
source tests/setup.sh

repetitions=5
case ${1:-} in
  '') ;;
  --quick) repetitions=2 ;;
  -h | --help)
    echo "usage: bench/run.sh [--quick]   (--quick: two repetitions instead of $repetitions)"
    exit 0
    ;;
  *)
    echo "bench/run.sh: unknown option '$1' (see --help)" >&2
    exit 2
    ;;
esac

need_packages meson ninja-build g++ libbenchmark-dev libeigen3-dev nlohmann-json3-dev zlib1g-dev pkgconf python3

directory=build-bench
configure $directory -Dtests=disabled -Dexamples=disabled -Dbench=enabled
build $directory
mkdir -p $directory/results
for name in quantize gemm train; do
  echo "== $name"
  # Arms take turns, so that what else the machine does hits them alike.
  "$directory/bench/${name}_bench" --benchmark_repetitions=$repetitions \
    --benchmark_enable_random_interleaving=true --benchmark_min_time=0.2 \
    --benchmark_report_aggregates_only=true --benchmark_out="$directory/results/$name.json" \
    --benchmark_out_format=json >"$directory/results/$name.log" 2>&1
done
echo "== ratios ($(g++ --version | head -n 1); $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1))"
python3 bench/ratios.py $directory/results
echo "== peers"
# Exit status 77: no peer is installed, as the script says.
python3 bench/peers.py "$directory/bench/peers" || [ $? -eq 77 ]
