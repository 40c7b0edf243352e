#!/usr/bin/env bash
# Installs what is missing to build accel: Debian packages, and LibTorch into .deps/torch.
#
#   scripts/setup.sh            to build and run
#   scripts/setup.sh --tests    also what the tests need, the Python peers into .deps/peer, and the tools of the pages into .deps/pages
#
# Idempotent, and quick when nothing is missing. Without root it names the packages to install and stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

with_tests=no
for argument in "$@"; do
  case $argument in
    --tests) with_tests=yes ;;
    *) echo "setup.sh: unknown argument '$argument' (known: --tests)" >&2; exit 2 ;;
  esac
done

packages=("${ACCEL_BUILD_PACKAGES[@]}")
if [ $with_tests = yes ]; then packages+=("${ACCEL_TEST_PACKAGES[@]}"); fi

install_packages() {
  local installed missing=() package
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    if ! grep -qxF "installed $package" <<<"$installed"; then missing+=("$package"); fi
  done
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup.sh: these Debian packages are missing, and installing them needs root. Run:" >&2
    echo "  sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  # RUNLEVEL: the daemons among them (SLURM, munge) are for tests that start their own.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# install_wheels FOLDER PIP_OPTION WHEEL...: a virtual environment that holds exactly these, made anew when
# they change or when an earlier attempt was cut off.
install_wheels() {
  local folder=$1 option=$2; shift 2
  local stamp="$folder/.accel-wheels" wanted="$option $*"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  echo "setup: installing $* into $folder"
  rm -rf "$folder"
  mkdir -p "$(dirname "$folder")"
  /usr/bin/python3 -m venv "$folder"
  # shellcheck disable=SC2086
  "$folder/bin/pip" install --quiet --disable-pip-version-check $option "$@"
  echo "$wanted" >"$stamp"
}

install_packages
if [ -e /proc/driver/nvidia/version ]; then
  install_wheels .deps/torch "" torch==2.11.0 "${ACCEL_CUDA_HEADERS[@]}"
else
  install_wheels .deps/torch --no-deps "${ACCEL_TORCH_WHEELS[@]}" "${ACCEL_CUDA_HEADERS[@]}"
fi
if [ $with_tests = yes ]; then
  install_wheels .deps/peer "" "${ACCEL_PEER_WHEELS[@]}"
  install_wheels .deps/pages "" "${ACCEL_PAGES_WHEELS[@]}"
fi
