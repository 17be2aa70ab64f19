#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the benchmarks. Prints one table of ratios to standard output and progress to standard error. Absolute
# rates, which depend on the machine, stay in build-bench/results.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
source tests/setup.sh

repetitions=5
seconds=0.2
write=no
for option in "$@"; do
  case $option in
    --quick) repetitions=2 seconds=0.02 ;;
    --write) write=yes ;;
    -h | --help)
      echo "usage: bench/run.sh [--quick] [--write]"
      echo "  --quick  two short repetitions instead of $repetitions"
      echo "  --write  records the table in docs/results/cpu.json and cpu.md"
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

directory=${ROTOSCALE_BUILD:-build-bench}
if [ -z "${ROTOSCALE_BUILD:-}" ]; then configure $directory -Dtests=disabled -Dexamples=disabled -Dbench=enabled >&2; fi
build "$directory" benchmarks >&2
mkdir -p "$directory/results"
for name in quantize gemm train; do
  echo "== $name" >&2
  # Arms take turns, so that other load affects all of them.
  "$directory/bench/${name}_bench" --benchmark_repetitions=$repetitions \
    --benchmark_enable_random_interleaving=true --benchmark_min_time=$seconds \
    --benchmark_report_aggregates_only=true --benchmark_out="$directory/results/$name.json" \
    --benchmark_out_format=json >"$directory/results/$name.log" 2>&1
done
g++ --version | head -n 1
python3 bench/ratios.py "$directory/results"
echo "== peers" >&2
# Exit status 77: no peer is installed. The script has said so.
python3 bench/peers.py "$directory/bench/peers" || [ $? -eq 77 ]
