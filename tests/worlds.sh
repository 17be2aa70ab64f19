#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Runs the default suite of a build in other worlds: a verdict depends on the code alone.
# usage: tests/worlds.sh BUILD [WORLD...]
# BUILD: a directory that tests/run.sh built. The world `user` needs it and the tree to be writable for uid 65534.
# `user` and `tmpdir` need root. `latin1` needs the locale of `localedef -i de_DE -f ISO-8859-1 de_DE.ISO-8859-1`.
# Exit status: the number of worlds with a failure.
set -uo pipefail
build=$(readlink -f "${1:?usage: tests/worlds.sh BUILD [WORLD...]}")
shift
worlds=("$@")
[ $# -gt 0 ] || worlds=(busy one-core address-space latin1 tmpdir user no-terminal)

in_world() {
  # Each world has separate logs, so worlds can run side by side.
  local suite=(meson test -C "$build" --no-rebuild --no-suite slow --logbase "world-$1")
  case $1 in
    busy) # all cores have other work
      local hogs=() core
      for ((core = $(nproc); core > 0; --core)); do
        (while :; do :; done) &
        hogs+=($!)
      done
      "${suite[@]}"
      local status=$?
      kill "${hogs[@]}"
      return $status
      ;;
    one-core) taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -n 1)" "${suite[@]}" --num-processes 1 ;;
    address-space) # 4 GiB: torch and JAX take more, so the oracles run without them
      (ulimit -v 4194304 && ROTOSCALE_ORACLE_PYTHON=/usr/bin/python3 "${suite[@]}")
      ;;
    latin1) LC_ALL=de_DE.ISO-8859-1 PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "${suite[@]}" ;;
    tmpdir)
      local folder=/tmp/another\ file\ system status
      mkdir -p "$folder" && mount -t tmpfs -o size=8g tmpfs "$folder" || return
      TMPDIR=$folder "${suite[@]}"
      status=$?
      umount "$folder"
      return $status
      ;;
    user) HOME=/tmp setpriv --reuid=65534 --regid=65534 --clear-groups "${suite[@]}" ;;
    no-terminal) setsid "${suite[@]}" </dev/null | cat ;;
    *) echo "tests/worlds.sh: no world '$1'" >&2 && return 2 ;;
  esac
}

failed=0
for world in "${worlds[@]}"; do
  if in_world "$world" >"$build/world-$world.log" 2>&1; then verdict=passed; else verdict=failed; fi
  [ $verdict = passed ] || failed=$((failed + 1))
  echo "$world: $verdict, $(grep -E '^(Ok|Fail|Skipped|Timeout)' "$build/world-$world.log" | tr -s ' ' | paste -sd,)"
done
exit $failed
