#!/usr/bin/env bash
# Makes what users install without compiling, in dist/ (docs/admin/install.md).
#
#   scripts/package.sh                     all: wheel deb rpm tarball
#   scripts/package.sh wheel tarball       these
#   scripts/package.sh --no-build wheel    of what build/ holds now
#
# Equal programs give equal bytes: every time in the packages is SOURCE_DATE_EPOCH, without it that of the last commit. Beside each package
# lies the list of what is linked into it (.cdx.json, CycloneDX), made from the link. ACCEL_BUILD_DIR and ACCEL_DIST_DIR name other
# folders.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/machine.sh
fail() { echo "package.sh: $*" >&2; exit 1; }

with_build=yes
kinds=()
for argument in "$@"; do
  case $argument in
    --no-build) with_build=no ;;
    wheel | deb | rpm | tarball) kinds+=("$argument") ;;
    *) fail "unknown argument '$argument' (known: --no-build wheel deb rpm tarball)" ;;
  esac
done
if [ ${#kinds[@]} -eq 0 ]; then kinds=(wheel deb rpm tarball); fi
for kind in "${kinds[@]}"; do
  case $kind in
    deb) command -v dpkg-shlibdeps >/dev/null || fail "dpkg-shlibdeps is missing: apt-get install dpkg-dev" ;;
    rpm) command -v rpmbuild >/dev/null || fail "rpmbuild is missing: apt-get install rpm" ;;
  esac
done

build=$(realpath -m "${ACCEL_BUILD_DIR:-build}")
dist=$(realpath -m "${ACCEL_DIST_DIR:-dist}")
version=$(sed -n 's/^project(accel VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
torch_version=$(sed -n 's/^set(ACCEL_TORCH_VERSION \([0-9.]*\))$/\1/p' cmake/torch_wheel.cmake)
machine=$(uname -m)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} || fail "no commit says the time of the packages: set SOURCE_DATE_EPOCH"
export SOURCE_DATE_EPOCH
export TZ=UTC LC_ALL=C
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$dist"

# The targets of one kind of package.
targets_of() {
  case $1 in
    wheel | rpm) echo static-programs ;;
    deb) echo accel-launch accel-command accel-agent ;;
    tarball) echo static-programs accel accel-selftest accel-trainer accel_safetensors ;;
  esac
}

# list_contents NAME KIND TARGET=PROGRAM...: the list of components and the licences of what is linked into programs of the build.
list_contents() {
  local name=$1 kind=$2 words=() word
  shift 2
  if [ "$kind" = rpm ] && [ -e "$work/wheel.cdx.json" ]; then  # the same programs
    cp "$work/wheel.cdx.json" "$work/rpm.cdx.json"
    cp -r "$work/wheel.licenses" "$work/rpm.licenses"
    return
  fi
  for word in "$@"; do words+=("${word#*=}=maps/${word%%=*}.map"); done
  scripts/packaging/link_contents.py --build "$build" --name "$name" --version "$version" --output "$work/$kind.cdx.json" \
    --licenses "$work/$kind.licenses" "${words[@]}"
  cp LICENSE NOTICE "$work/$kind.licenses"
}

# Copies what was made to dist/, with the list of its contents beside it.
deliver() {
  local kind=$1 file=$2
  mv "$file" "$dist/"
  cp "$work/$kind.cdx.json" "$dist/$(basename "$file").cdx.json"
  echo "$dist/$(basename "$file")"
}

static_programs=(accel-launch-static=static/accel-launch-static accel-static=static/accel-static accel-shim-static=static/accel-shim-static)

# The static programs without what only a debugger reads, in FOLDER.
copy_static_programs() {
  local program
  mkdir -p "$1"
  for program in accel accel-launch accel-shim; do strip -o "$1/$program" "$build/static/$program-static"; done
}

# The commands of `accel` that are also programs named accel-COMMAND.
local_commands() {
  (exec -a accel "$build/static/accel-static" --help) | sed -n '/With an agent/q; s/^  \([a-z0-9-]*\) .*/\1/p' | grep -vx launch
}

make_wheel() {
  local options=() command
  copy_static_programs "$work/wheel"
  list_contents accel-launch wheel "${static_programs[@]}"
  for command in $(local_commands); do options+=(--command "$command"); done
  deliver wheel "$(scripts/packaging/wheel.py --programs "$work/wheel" --version "$version" --sbom "$work/wheel.cdx.json" \
    --licenses "$work/wheel.licenses" --output "$work" "${options[@]}")"
}

make_deb() {
  list_contents accel deb accel-launch=bin/accel-launch accel-shim=bin/accel-shim accel-command=bin/accel \
    accel-agent=bin/accel-agent accel_cluster=bin/libaccel_cluster.so
  cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/deb" >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; fail "cpack failed"; }
  deliver deb "$(echo "$work"/deb/*.deb)"
}

# The names under which programs are also known: links, in FOLDER.
link_names() {
  local command
  ln -s accel-launch "$1/accel-torchrun"
  for command in $(local_commands); do ln -s accel "$1/accel-$command"; done
}

make_rpm() {
  local root=$work/rpm-root program
  copy_static_programs "$root/usr/bin"
  link_names "$root/usr/bin"
  list_contents accel-launch rpm "${static_programs[@]}"
  mkdir -p "$root"/usr/share/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d,doc/accel-launch}
  cp docs/man/*.1 "$root/usr/share/man/man1"
  gzip -n9 "$root"/usr/share/man/man1/*.1
  cp docs/completions/accel "$root/usr/share/bash-completion/completions"
  cp docs/completions/_accel "$root/usr/share/zsh/site-functions"
  cp docs/completions/accel.fish "$root/usr/share/fish/vendor_completions.d"
  while read -r program; do
    ln -s accel "$root/usr/share/bash-completion/completions/$program"
    ln -s accel.fish "$root/usr/share/fish/vendor_completions.d/$program.fish"
  done < <(cd "$root/usr/bin" && printf '%s\n' accel-* | grep -vx accel-shim)
  cp -r "$work/rpm.licenses" "$root/usr/share/doc/accel-launch/licenses"
  cp "$work/rpm.cdx.json" "$root/usr/share/doc/accel-launch/accel-launch.cdx.json"
  chmod -R u=rwX,go=rX "$root"  # whatever the checkout's files have
  rpmbuild -bb --target "$machine" --define "_topdir $work/rpm" --define "accel_root $root" --define "accel_version $version" \
    deploy/rpm/accel-launch.spec >"$work/rpm.log" 2>&1 || { cat "$work/rpm.log"; fail "rpmbuild failed"; }
  deliver rpm "$(echo "$work"/rpm/RPMS/*/*.rpm)"
}

# bundle_libraries LIB FILE...: copies what FILES ask for, beside the C and C++ runtime and LibTorch, into LIB/accel.
bundle_libraries() {
  local library=$1 path
  shift
  mkdir -p "$library/accel"
  while read -r path; do
    strip --strip-unneeded -o "$library/accel/$(basename "$path")" "$(readlink -f "$path")"
  done < <(ldd "$@" | sed -n 's/.* => \(\/[^ ]*\) (0x.*/\1/p' | sort -u |
    grep -vE "/torch/lib/|/nvidia/|/libaccel\.so|/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.")
}

make_tarball() {
  local name=accel-$version-torch$torch_version-linux-$machine prefix
  prefix=$work/$name
  list_contents libaccel tarball "${static_programs[@]}" accel=libaccel/libaccel.so accel-selftest=bin/accel-selftest \
    accel-trainer=bin/accel-trainer
  cmake --install "$build" --prefix "$prefix" --component library --strip >"$work/install.log"
  cmake --install "$build" --prefix "$prefix" --component safetensors >>"$work/install.log"
  copy_static_programs "$prefix/bin"
  link_names "$prefix/bin"
  bundle_libraries "$prefix/lib" "$build/libaccel/libaccel.so" "$build/bin/accel-selftest" "$build/bin/accel-trainer"
  mkdir -p "$prefix/share/doc/accel"
  cp -r "$work/tarball.licenses" "$prefix/share/doc/accel/licenses"
  cp "$work/tarball.cdx.json" "$prefix/share/doc/accel/accel.cdx.json"
  cp docs/admin/install.md "$prefix/share/doc/accel"
  chmod -R u=rwX,go=rX "$prefix"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -C "$work" -cf - "$name" |
    gzip -n6 >"$work/$name.tar.gz"
  deliver tarball "$work/$name.tar.gz"
}

if [ $with_build = yes ]; then
  if [ ! -e "$build/build.ninja" ]; then cmake --preset release -B "$build" >/dev/null; fi
  wanted=()
  for kind in "${kinds[@]}"; do
    for target in $(targets_of "$kind"); do wanted+=("$target"); done
  done
  cmake --build "$build" -j "$(build_jobs)" --target "${wanted[@]}"
fi
built=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
[ "$built" = "$version" ] || fail "$build was configured for version $built, the sources are $version: build it anew"
for kind in "${kinds[@]}"; do "make_$kind"; done
(cd "$dist" && sha256sum -- *[-_]"$version"[-_]*.{whl,deb,rpm,tar.gz} 2>/dev/null >SHA256SUMS || true)
