# shellcheck shell=bash
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
# Sourced by tests/run.sh and examples/demo.sh: installs the Debian packages that are missing, configures a build
# directory, builds. Needs no network, and changes nothing, when everything is there already.

# need_packages PACKAGE...: installs missing packages, or ends the script with one clear line. A package may be
# ONE|OTHER: either is enough, and the first that this Debian has is installed.
need_packages() {
  if [ -n "${ROTOSCALE_SKIP_PACKAGES:-}" ]; then return 0; fi
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "$0: this is not a Debian system; install what these Debian packages contain, then set" \
      "ROTOSCALE_SKIP_PACKAGES=1: $*" >&2
    exit 2
  fi

  local package name names="$*" installed missing=()
  # shellcheck disable=SC2086  # names by words
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' ${names//|/ } 2>/dev/null || true)
  for package in "$@"; do
    grep -qxE "installed (${package//+/[+]})" <<<"$installed" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "$0: missing packages, and neither root nor sudo to install them: ${missing[*]}" >&2
      exit 2
    fi
    as_root=(sudo)
  fi
  local log chosen=()
  log=$(mktemp)
  # An update that fails (one of many sources may be down) need not keep the packages from being installed.
  "${as_root[@]}" apt-get update >"$log" 2>&1 </dev/null || true
  for package in "${missing[@]}"; do
    for name in ${package//|/ }; do
      if [ "$package" = "$name" ] || apt-cache show "$name" >/dev/null 2>&1; then break; fi
    done
    chosen+=("$name")
  done
  echo "Installing: ${chosen[*]}"
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${chosen[@]}" \
    >>"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    echo "$0: apt-get could not install: ${chosen[*]} (whole log: $log)" >&2
    exit 2
  fi
  rm -f "$log"
}

# configure DIRECTORY MESON_OPTION...: configures once, and again only when the options have changed.
configure() {
  local directory=$1
  shift
  local mode=()
  if [ -f "$directory/build.ninja" ]; then
    if [ "$(cat "$directory/.rotoscale-options" 2>/dev/null)" = "$*" ]; then return 0; fi
    mode=(--reconfigure)
  fi
  mkdir -p "$directory"
  until meson setup "${mode[@]}" "$directory" "$@" >"$directory/configure.log" 2>&1; do
    # Meson 1.0 refuses an option that is newer than the directory: then from scratch.
    if [ ${#mode[@]} -gt 0 ] && grep -q 'Unknown options' "$directory/configure.log"; then
      rm -rf "$directory"
      mkdir -p "$directory"
      mode=()
      continue
    fi
    cat "$directory/configure.log" >&2
    echo "$0: meson could not configure $directory" >&2
    return 1
  done
  printf '%s\n' "$*" >"$directory/.rotoscale-options"
}

# Meson options of a build from scratch. All sources of a program are compiled at once, so that shared headers and
# inline functions are compiled once. Builds for edits, and the few targets that CI compiles for other processors,
# compile each source alone. At release flags tests/run.sh joins fewer.
at_once=(-Dunity=on -Dunity_size=50)

# build DIRECTORY NINJA_OPTION_OR_TARGET...: shows progress on a terminal, and otherwise only failures.
build() {
  local directory=$1 quiet=()
  shift
  if ! [ -t 1 ]; then quiet=(--quiet); fi
  ninja -C "$directory" "${quiet[@]}" "$@"
}
