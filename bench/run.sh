#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the benchmarks and prints one table of ratios: standard output is the table, progress goes to standard
# error. Absolute rates stay in build-bench/results: they say more about the machine than about the code.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
source tests/setup.sh

repetitions=5
write=no
for option in "$@"; do
  case $option in
    --quick) repetitions=2 ;;
    --write) write=yes ;;
    -h | --help)
      echo "usage: bench/run.sh [--quick] [--write]"
      echo "  --quick  two repetitions instead of $repetitions"
      echo "  --write  stores the table in docs/results/cpu.md"
      exit 0
      ;;
    *)
      echo "bench/run.sh: unknown option ${option@Q} (see --help)" >&2
      exit 2
      ;;
  esac
done
if [ $write = yes ]; then
  again=(bench/run.sh)
  if [ $repetitions = 2 ]; then again+=(--quick); fi
  exec python3 bench/record.py cpu bench/run.sh -- "${again[@]}"
fi

need_packages meson ninja-build g++ libbenchmark-dev libeigen3-dev nlohmann-json3-dev zlib1g-dev pkgconf python3 >&2

directory=build-bench
configure $directory -Dtests=disabled -Dexamples=disabled -Dbench=enabled >&2
build $directory benchmarks >&2
mkdir -p $directory/results
for name in quantize gemm train; do
  echo "== $name" >&2
  # Arms take turns, so that what else the machine does hits them alike.
  "$directory/bench/${name}_bench" --benchmark_repetitions=$repetitions \
    --benchmark_enable_random_interleaving=true --benchmark_min_time=0.2 \
    --benchmark_report_aggregates_only=true --benchmark_out="$directory/results/$name.json" \
    --benchmark_out_format=json >"$directory/results/$name.log" 2>&1
done
g++ --version | head -n 1
python3 bench/ratios.py $directory/results
echo "== peers" >&2
# Exit status 77: no peer is installed, as the script says.
python3 bench/peers.py "$directory/bench/peers" || [ $? -eq 77 ]
