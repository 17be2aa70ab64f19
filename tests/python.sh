#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package from an sdist, installs it in a virtual environment and runs its tests.
# Needs the network for build tools, NumPy and pytest, unless pip's cache or index settings say otherwise.
#
# usage: tests/python.sh [PYTHON]   the interpreter (python3); PYTEST_ARGUMENTS is passed to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
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
pip wheel --no-deps --wheel-dir "$scratch/dist" "$scratch"/dist/*.tar.gz
ls "$scratch/dist"
case $(echo "$scratch"/dist/*.whl) in
  *abi3*) abi3audit --strict "$scratch"/dist/*.whl ;;
esac
pip install "$(echo "$scratch"/dist/*.whl)[test]"
mkdir "$scratch/run"
cd "$scratch/run"
# shellcheck disable=SC2086  # arguments by words
python -m pytest -q -p no:cacheprovider "$OLDPWD/python/tests" ${PYTEST_ARGUMENTS:-}
