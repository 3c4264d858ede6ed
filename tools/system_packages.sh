#!/usr/bin/env bash
# Installs what the build needs from Debian, where that is possible without asking: apt-get exists, and we are root or sudo
# wants no password. Anything that stays missing is reported, not fatal: CMake and the Makefile know what to do instead
# (cbcbox for CBC, PyPI's headers for JSON, threads for io_uring) or name what is missing.
set -euo pipefail

packages=(g++ python3-dev python3-venv pkg-config coinor-libcbc-dev libgtest-dev libgmock-dev liburing-dev ccache)

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: no apt-get here; install a C++20 compiler and GoogleTest yourself"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: Debian packages are all installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! sudo -n true 2>/dev/null; then
    echo "setup: not root, so these are left out: ${missing[*]}"
    echo "setup: to add them: sudo apt-get install ${missing[*]}"
    exit 0
  fi
  as_root=(sudo -n)
fi

echo "setup: apt-get install ${missing[*]}"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq >"$log" 2>&1 || true
for package in "${missing[@]}"; do  # one by one: a package that a distribution lacks must not stop the others
  if ! "${as_root[@]}" apt-get install -qq -y --no-install-recommends "$package" >>"$log" 2>&1; then
    tail -n 3 "$log"
    echo "setup: $package could not be installed; going on without it"
  fi
done
rm -f "$log"
