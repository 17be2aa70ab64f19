#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing (Debian), builds, runs the tests and ends with the line "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
source tests/setup.sh

usage() {
  cat <<'END'
usage: tests/run.sh [options]
  --slow          also the slow suite (exhaustive comparisons) and the vector code of other instruction sets
  --amd           also what needs clang-22 and HIP's SDK (installs 105 MB of packages, 500 MB on disk)
  --portability   instead of the release build: the whole tree with -Werror for five x86-64 processors by each of g++,
                  clang++-14 and clang++-22 that is installed; runs the CPU suite of what this machine can run (hours)
  --port NAME     that for one of them, as clang++-22-haswell, so that several machines share the hours
  --aarch64       also cross-compiles headers, examples and digest for aarch64 and runs them under qemu
  --python        also builds, installs and tests the Python package (tests/python.sh; needs the network)
  --werror        warnings are errors; the default where CI=true
  --sanitize      instead of the release build: address + undefined sanitizers, then the thread sanitizer
  --filter TEXT   only tests whose name contains TEXT (`meson test -C build --list` shows names)
  --jobs N        build and run at most N at a time (default: one per core)
  -h, --help      this text
END
}

slow=no
amd=no
aarch64=no
python=no
sanitize=no
portability=no
only_port=
werror=false
quick=true
if [ "${CI:-}" = true ]; then werror=true; fi
filter=
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --slow) slow=yes ;;
    --amd) amd=yes ;;
    --aarch64) aarch64=yes ;;
    --python) python=yes ;;
    --sanitize) sanitize=yes ;;
    --portability) portability=yes ;;
    --werror) werror=true ;;
    --filter | --jobs | --port)
      if [ $# -lt 2 ]; then
        echo "tests/run.sh: $1 needs a value" >&2
        exit 2
      fi
      case $1 in
        --filter) filter=$2 ;;
        --jobs) jobs=$2 ;;
        --port) portability=yes only_port=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "tests/run.sh: unknown option ${1@Q} (see --help)" >&2
      exit 2
      ;;
  esac
  shift
done
# Exhaustive tests have the flags of a release.
if [ $slow = yes ]; then quick=false; fi
if ! [[ $jobs =~ ^[1-9][0-9]*$ ]]; then
  echo "tests/run.sh: --jobs needs a positive number, not ${jobs@Q}" >&2
  exit 2
fi

need_packages meson ninja-build g++ 'clang-14|clang-19' libeigen3-dev doctest-dev libcli11-dev \
  nlohmann-json3-dev zlib1g-dev libsentencepiece-dev libbenchmark-dev gnuplot-nox pkgconf cmake doxygen python3
if [ $slow = yes ]; then need_packages 'libclang-rt-14-dev|libclang-rt-19-dev'; fi
if [ $aarch64 = yes ]; then need_packages g++-aarch64-linux-gnu qemu-user; fi
if [ $amd = yes ]; then need_packages clang-22 clang-tools-22 lld-22 libamdhip64-dev; fi

# At release flags g++ 12 inlines more of larger unity sources, and then reports values as uninitialized that are not.
if [ $quick = false ] || [ $portability = yes ]; then at_once=(-Dunity=on -Dunity_size=7); fi

logs=()
targets=(meson-test-prereq)
if [ $portability = yes ]; then targets+=(all benchmarks); fi

# run_tests DIRECTORY MESON_TEST_OPTION...: configures with ${options[@]}, builds, runs what --slow and --filter ask
# for, notes where the log is. A build that fails leaves no log, which tests/summary.py counts as a failure.
run_tests() {
  local directory=$1
  shift
  local log=$directory/meson-logs/testlog.json
  logs+=("$log")
  rm -f "$log"
  echo "== $directory"
  configure "$directory" "${options[@]}" || return 0
  build "$directory" -j "$jobs" "${targets[@]}" || return 0

  local select=("$@") names=()
  if [ $slow = no ]; then select+=(--no-suite slow); fi
  if [ -n "$filter" ]; then
    # Meson 1.0.1 selects by whole names only, and releases differ in how `meson test --list` writes them.
    mapfile -t names < <(meson introspect --tests "$directory" | python3 -c '
import json, sys
for test in json.load(sys.stdin):
    is_slow = any(suite.endswith("slow") for suite in test["suite"])
    if sys.argv[1] in test["name"] and (sys.argv[2] == "yes" or not is_slow):
        print(test["name"])' "$filter" "$slow")
    if [ ${#names[@]} -eq 0 ]; then
      echo "tests/run.sh: no test name contains '$filter'" >&2
      return 0
    fi
  fi
  meson test -C "$directory" --no-rebuild --num-processes "$jobs" --print-errorlogs "${select[@]}" "${names[@]}" || true
  # With a wrapper Meson gives the log another name.
  local wrapped=$directory/meson-logs/testlog-setarch.json
  if [ -f "$wrapped" ]; then mv "$wrapped" "$log"; fi
}

# also NAME COMMAND...: runs a command, which counts as one test. meanwhile NAME COMMAND...: in the background.
also() {
  logs+=("build/meson-logs/also-$1.json")
  count_command "$@"
}
meanwhile() {
  logs+=("build/meson-logs/also-$1.json")
  count_command "$@" &
}
count_command() {
  local name=$1 status=0 result=OK
  shift
  mkdir -p build/meson-logs
  echo "== $*"
  "$@" || status=$?
  if [ $status -eq 77 ]; then result=SKIP; elif [ $status -ne 0 ]; then result=FAIL; fi
  printf '{"name": "%s", "result": "%s"}\n' "$name" $result >"build/meson-logs/also-$name.json"
}

# Can this processor run what -march=$1 compiles to?
runs_here() {
  local flag flags=()
  case $1 in
    haswell) flags=(avx2 fma bmi2 movbe) ;;
    skylake-avx512) flags=(avx512f avx512bw avx512cd avx512dq avx512vl) ;;
    icelake-server) flags=(avx512vl avx512_vbmi2 avx512_vnni avx512_bitalg vaes gfni) ;;
    sapphirerapids) flags=(avx512vl avx512_vbmi2 avx512_fp16 avx512_bf16 avx_vnni) ;;
  esac
  for flag in "${flags[@]}"; do grep -qw "$flag" /proc/cpuinfo || return 1; done
}

# port COMPILER PROCESSOR [TARGET...]: compiles everything, or the targets, at the release flags with -Werror. A build
# without tests counts as one test.
port() {
  local compiler=$1 processor=$2 directory=build-$1-$2
  shift 2
  options=(-Dwerror=true -Dnative=false "-Dcpp_args=-march=$processor" -Dtests=enabled -Dexamples=enabled
    -Dbench=enabled "-Dgpu=${port_gpu:-host}" -Damd_check=disabled -Dquick_host=false)
  # Targets name objects of single sources, which unity builds do not have.
  if [ $# -eq 0 ]; then options+=("${at_once[@]}"); else options+=(-Dunity=off); fi
  # The variants for named instruction sets do not depend on the processor.
  if [ "$processor" != x86-64 ]; then options+=(-Dinstruction_sets=false); fi
  export CXX=$compiler
  if [ $# -eq 0 ] && runs_here "$processor"; then
    run_tests "$directory" --suite cpu
    return
  fi
  local log=$directory/meson-logs/compiled.json
  logs+=("$log")
  rm -f "$log"
  echo "== $directory, compiled only"
  configure "$directory" "${options[@]}" || return 0
  if [ $# -eq 0 ]; then set -- "${targets[@]}"; fi
  build "$directory" -j "$jobs" "$@" || return 0
  printf '{"name": "compiled by %s for %s", "result": "OK"}\n' "$compiler" "$processor" >"$log"
}

if [ $portability = yes ]; then
  names=()
  for compiler in g++ clang++-14 clang++-22; do
    for processor in x86-64 haswell skylake-avx512 icelake-server sapphirerapids; do
      command -v $compiler >/dev/null || continue
      names+=("$compiler-$processor")
      if [ -z "$only_port" ] || [ "$only_port" = "$compiler-$processor" ]; then port $compiler $processor; fi
    done
  done
  if [ ${#logs[@]} -eq 0 ]; then
    echo "tests/run.sh: '$only_port' is no port of the compilers here: ${names[*]}" >&2
    exit 2
  fi
elif [ $sanitize = no ]; then
  # All options are given, because a build directory keeps old ones. Assertions are on, except in the slow suite. In CI
  # the benchmarks and the demo use this build too.
  ndebug=$([ $slow = yes ] && echo true || echo false)
  bench=$([ "${CI:-}" = true ] && echo enabled || echo disabled)
  # Vector code for other instruction sets than the machine's.
  other_sets=$([ "${CI:-}" = true ] || [ $slow = yes ] && echo true || echo false)
  # Without a device kernels run on the host alone. CI compiles them for CUDA all the same, if nvcc is found.
  gpu=auto
  quick_device=false
  if ! nvidia-smi -L >/dev/null 2>&1; then
    quick_device=true
    if [ "${CI:-}" != true ]; then gpu=host; fi
  fi
  options=("-Db_ndebug=$ndebug" "-Dwerror=$werror" "-Dquick_host=$quick" "-Dquick_programs=$quick"
    "-Dquick_device=$quick_device" -Dtests=enabled -Dexamples=enabled "-Dbench=$bench" "-Dgpu=$gpu"
    "-Dinstruction_sets=$other_sets" "${at_once[@]}")
  if [ $amd = yes ]; then options+=(-Damd_check=enabled); fi
  if [ "${CI:-}" = true ] && [ -z "$filter" ]; then also filter tests/run.sh --filter include_rule; fi
  run_tests build
  # On every change: kernels at release flags, mini-llama without kernels, and the commands that README names. The build
  # above compiles the vector code for other instruction sets.
  if [ "${CI:-}" = true ] && [ -z "$filter" ] && [ "$(uname -m)" = x86_64 ]; then
    port_gpu=none port g++ x86-64 examples/llama/mini-llama.p/.._train_{device,profile}.cpp.o
    port g++ sapphirerapids include/compiled/librotoscale_compiled.a tests/gpu_tests.p/gpu_gemm_gemm_test.cpp.o
    also benchmarks env ROTOSCALE_BUILD=build bench/run.sh --quick
    also demo env ROTOSCALE_BUILD=build examples/demo.sh --steps 30
  fi
  # Both have long parts that use one core.
  if [ $aarch64 = yes ]; then meanwhile aarch64 tests/aarch64.sh; fi
  if [ $python = yes ]; then also python tests/python.sh; fi
  wait
else
  # No -Dwerror: instrumentation causes warnings. -O1 -g1: at -O2 -g the compiler takes three times as long.
  common=(-Dtests=enabled -Dexamples=enabled -Dbench=disabled -Dbuildtype=debugoptimized -Doptimization=1
    -Dcpp_args=-g1)
  export ASAN_OPTIONS=halt_on_error=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  export TSAN_OPTIONS=halt_on_error=1
  options=("${common[@]}" "-Db_sanitize=address,undefined")
  run_tests build-asan --no-suite script --timeout-multiplier 10
  options=("${common[@]}" -Db_sanitize=thread)
  # The thread sanitizer of g++ 12 cannot start under the large address randomisation of newer kernels.
  wrapper=()
  if setarch -R true 2>/dev/null; then wrapper=(--wrapper 'setarch -R'); fi
  run_tests build-tsan --no-suite script --timeout-multiplier 10 "${wrapper[@]}"
fi

exec python3 tests/summary.py "${logs[@]}"
