#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package from an sdist, installs it in a virtual environment, runs its tests and the oracles that
# call it.
# Needs the network for build tools, NumPy and pytest, unless pip's cache or index settings say otherwise.
#
# usage: tests/python.sh [--sanitizers] [PYTHON]
#   PYTHON         the interpreter (python3)
#   --sanitizers   instead builds the extension with g++'s address, leak, undefined behaviour and thread sanitizers
#   PYTEST_ARGUMENTS is passed to pytest. ROTOSCALE_DEVICE_LIBRARY names a librotoscale_device to test, with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizers=no
if [ "${1:-}" = --sanitizers ]; then
  sanitizers=yes
  shift
fi
python=${1:-python3}
if ! "$python" -c 'import ensurepip, sysconfig, venv; open(sysconfig.get_path("include") + "/Python.h")' \
  2>/dev/null; then
  # shellcheck source=tests/setup.sh
  source tests/setup.sh
  need_packages python3-venv python3-dev g++
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
export PATH=$scratch/venv/bin:$PATH
pip() { python -m pip --quiet --disable-pip-version-check "$@"; }

pip install build abi3audit 2>"$scratch/pip.log" || {
  tail -n 1 "$scratch/pip.log" >&2
  echo "skipped: pip installs nothing here"
  exit 77
}
# sanitized NAME LIBRARY...: builds the extension with the sanitizers NAME and preloads their libraries into pytest.
sanitized() {
  local build=$scratch/$1 preload=() library target
  meson setup "$build" -Dpython=enabled -Dtests=disabled -Dexamples=disabled -Dbench=disabled -Ddocs=disabled \
    -Dgpu=none -Damd_check=disabled -Dnative=false -Dbuildtype=debugoptimized -Doptimization=1 -Dcpp_args=-g1 \
    -Dpython.allow_limited_api=false "-Db_sanitize=$1" -Db_lundef=false -Db_ndebug=false >"$scratch/meson.log" || {
    tail -n 5 "$scratch/meson.log" >&2
    return 1
  }
  target=$(ninja -C "$build" -t targets all | grep -oE '^python/_core[^/:]*\.so:' | tr -d :)
  ninja -C "$build" "$target" >"$scratch/ninja.log" || { tail -n 30 "$scratch/ninja.log" >&2; return 1; }
  mkdir -p "$build/site/rotoscale"
  cp python/rotoscale/*.py "$build/$target" "$build/site/rotoscale"
  shift
  for library in "$@" libstdc++.so; do preload+=("$(g++ -print-file-name="$library")"); done
  # pytest collects from the tree. The package is the sanitized one.
  (cd "$build/site" && export PYTHONPATH=$PWD PYTHONMALLOC=malloc OPENBLAS_NUM_THREADS=1 LD_PRELOAD="${preload[*]}" &&
    "${randomized[@]}" python -m pytest -q -p no:cacheprovider "${tests[@]}") || {
    cat "$scratch"/report* >&2
    return 1
  }
}
if [ $sanitizers = yes ]; then
  pip install meson ninja 'nanobind>=2.4' 'nlohmann-json>=3.11' numpy pytest hypothesis ml_dtypes
  here=$PWD/python/tests randomized=()
  export ROTOSCALE_SANITIZER_LOG=$scratch/report
  export ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0:fast_unwind_on_malloc=0:log_path=$scratch/report
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  # The C library frees the thread-local memory of a thread that has ended, which the sanitizer does not see.
  echo race:_dl_deallocate_tls >"$scratch/threads"
  export TSAN_OPTIONS=halt_on_error=1:log_path=$scratch/report:suppressions=$scratch/threads
  tests=("$here"/test_{leaks,arrays,layout}.py)
  sanitized address,undefined libasan.so libubsan.so
  # The thread sanitizer of g++ 12 cannot start under the large address randomisation of newer kernels.
  if setarch -R true 2>/dev/null; then randomized=(setarch -R); fi
  tests=("$here"/test_{leaks,arrays}.py -k threads)
  sanitized thread libtsan.so
  exit
fi

# The sdist has what is committed. Files that are not committed travel by a copy of the tree.
git ls-files -z --cached --others --exclude-standard | (while IFS= read -r -d '' file; do
  if [ -e "$file" ]; then printf '%s\0' "$file"; fi
done) | tar --null --files-from=- -cf - | (mkdir "$scratch/tree" && tar -xf - -C "$scratch/tree")
git -C "$scratch/tree" init --quiet
git -C "$scratch/tree" add --all
git -C "$scratch/tree" -c user.name=test -c user.email=test@localhost commit --quiet --message=tree
python -m build --sdist --outdir "$scratch/dist" "$scratch/tree" >"$scratch/sdist.log" 2>&1 || {
  tail -n 30 "$scratch/sdist.log" >&2
  exit 1
}
pip install jax >"$scratch/jax.log" 2>&1 &
jax=$!
# At -O1, which compiles faster. The tests of the tree run the vector code at a release's flags.
export CXXFLAGS="${CXXFLAGS:-} -O1"
pip wheel --no-deps --wheel-dir "$scratch/dist" "$scratch"/dist/*.tar.gz
wait $jax || echo "pip has no JAX here: test_jax.py is skipped"
pip install "$(echo "$scratch"/dist/*.whl)[test]"
# The wheel for the stable ABI, which Python 3.12 or newer builds.
if ! ls "$scratch"/dist/*-abi3-*.whl 2>/dev/null; then
  for newer in python3.12 python3.13 python3.14; do
    if "$newer" -m pip --quiet wheel --no-deps --wheel-dir "$scratch/dist" "$scratch"/dist/*.tar.gz; then break; fi
  done 2>"$scratch/abi3.log"
fi
ls "$scratch/dist"
if ls "$scratch"/dist/*-abi3-*.whl >"$scratch/abi3.log" 2>&1; then
  abi3audit --strict "$scratch"/dist/*-abi3-*.whl
else
  echo "abi3audit is skipped: no Python 3.12 or newer builds a wheel here"
fi
mkdir "$scratch/run"
cd "$scratch/run"
# shellcheck disable=SC2086  # arguments by words
python -m pytest -q -p no:cacheprovider "$OLDPWD/python/tests" ${PYTEST_ARGUMENTS:-}
for name in ml_dtypes gfloat microxcaling torchao; do
  python "$OLDPWD/tests/oracle/${name}_test.py" || [ $? = 77 ]  # skipped
done
