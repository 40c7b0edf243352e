#!/usr/bin/env bash
# cpack makes a Debian package of the programs; it is installed into a root of its own, works there, and leaves nothing
# when it is purged.
set -euo pipefail
fail() { echo "FAILED: $*" >&2; exit 1; }
for tool in cpack dpkg dpkg-deb dpkg-shlibdeps; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not here"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: dpkg installs as root only"; exit 77; }
if grep -q '^ACCEL_SANITIZE:STRING=.' "$ACCEL_BUILD_DIR/CMakeCache.txt"; then
  echo "skipped: nobody ships a sanitizer's build"; exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cpack --config "$ACCEL_BUILD_DIR/CPackConfig.cmake" -B "$work/packages" >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; exit 1; }
package=$(echo "$work"/packages/*.deb)
[ -f "$package" ] || fail "no package: $(ls "$work/packages")"

contents=$(dpkg-deb --contents "$package" | awk '{ print $6 }')
for file in ./usr/bin/accel-launch ./usr/bin/accel-torchrun ./usr/bin/accel-shim ./usr/share/man/man1/accel-launch.1 ./usr/share/man/man1/accel-torchrun.1 \
  ./usr/share/bash-completion/completions/accel-launch ./usr/share/doc/accel/LICENSE ./usr/bin/accel \
  ./usr/bin/accel-config ./usr/share/man/man1/accel-config.1 ./usr/share/zsh/vendor-completions/_accel \
  ./usr/share/fish/vendor_completions.d/accel.fish; do
  grep -qx "$file" <<<"$contents" || fail "the package lacks $file"
done
if grep -E 'libaccel\.so|libtorch|/include/' <<<"$contents"; then fail "libaccel does not belong into the package"; fi
depends=$(dpkg-deb --field "$package" Depends)
grep -q 'libyaml-cpp0.7' <<<"$depends" || fail "the dependencies were not found: $depends"

# The host's libraries serve the programs: only the package is in the root, and its scripts see no real systemd.
root=$work/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
touch "$root/var/lib/dpkg/status"
dpkg_there() { dpkg --root="$root" --force-depends --force-script-chrootless --log=/dev/null "$@" >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; exit 1; }; }
export PATH=$work/tools:$PATH
mkdir "$work/tools"
for tool in systemd-sysusers systemd-tmpfiles systemctl; do ln -s /bin/true "$work/tools/$tool"; done
dpkg_there --install "$package"
"$root/usr/bin/accel-launch" --num_processes 2 --no_python sh -c 'echo rank $RANK' | sort | tr '\n' ' ' |
  grep -qx 'rank 0 rank 1 ' || fail "the installed launcher does not launch"
bash -c '. "$0"; COMP_WORDS=(accel-launch --mixed_precision b); COMP_CWORD=2; _accel_launch; [ "${COMPREPLY[0]}" = bf16 ]' \
  "$root/usr/share/bash-completion/completions/accel-launch" || fail "the completion does not complete"
bash -c '. "$0"; COMP_WORDS=(accel conf); COMP_CWORD=1; _accel; [ "${COMPREPLY[0]}" = config ]' \
  "$root/usr/share/bash-completion/completions/accel" || fail "the completion of accel does not complete"
for name in $("$root/usr/bin/accel" --help | sed -n '/With an agent/q; s/^  \([a-z0-9-]*\) .*/\1/p'); do
  "$root/usr/bin/accel-$name" --help >/dev/null || fail "accel-$name does not run"
  [ -f "$root/usr/share/bash-completion/completions/accel-$name" ] || fail "bash finds no completion of accel-$name"
  [ -f "$root/usr/share/fish/vendor_completions.d/accel-$name.fish" ] || fail "fish finds no completion of accel-$name"
  [ -f "$root/usr/share/man/man1/accel-$name.1" ] || fail "accel-$name has no man page"
done
if command -v man >/dev/null; then
  man -l "$root/usr/share/man/man1/accel-launch.1" 2>"$work/man.err" | grep -q -- '--num_processes' || fail "the man page lacks flags"
  [ ! -s "$work/man.err" ] || fail "the man page has faults: $(cat "$work/man.err")"
fi
if [ -x "$root/usr/bin/accel-agent" ]; then
  "$root/usr/bin/accel-agent" --check --config "$root/etc/accel/agent.yaml" || fail "the packaged configuration is not good"
  [ -f "$root/lib/systemd/system/accel-agent.service" ] || fail "the unit is missing"
  examples=$root/usr/share/doc/accel/examples
  if command -v promtool >/dev/null; then
    promtool check config "$examples/prometheus/prometheus.yml" >"$work/promtool.log" 2>&1 || fail "$(cat "$work/promtool.log")"
  fi
  [ -f "$examples/grafana/accel.json" ] || fail "the dashboard is missing"
fi
dpkg_there --purge accel
left=$(find "$root" -path "$root/var/lib/dpkg" -prune -o -type f -print)
[ -z "$left" ] || fail "purging left $left"
