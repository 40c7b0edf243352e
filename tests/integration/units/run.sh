#!/usr/bin/env bash
# systemd accepts the units of deploy/systemd, in a root that has the programs, and their hardening has not got worse
# than docs/admin/deploy.md says. Real Slurm scripts are checked by the shell alone.
set -euo pipefail
source_folder=$ACCEL_SOURCE_DIR
for script in "$source_folder"/deploy/slurm/*.sbatch "$source_folder"/deploy/debian/p*; do
  bash -n "$script"
done
if ! command -v systemd-analyze >/dev/null; then
  echo "skipped: systemd-analyze is not here (Debian's systemd)"
  exit 77
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/usr/bin" "$root/bin" "$root/etc/systemd/system" "$root/usr/lib/systemd"
cp -r /lib/systemd/system "$root/usr/lib/systemd/system"
ln -s usr/lib "$root/lib"
for program in usr/bin/accel-agent bin/kill; do
  printf '#!/bin/sh\n' >"$root/$program"
  chmod 755 "$root/$program"
done
cp "$source_folder"/deploy/systemd/*.service "$root/etc/systemd/system/"

# Of systemd 254; before it the key is ignored, which docs/admin/deploy.md tells.
complaints=$(systemd-analyze verify --man=no --root="$root" accel-agent.service 2>&1 |
  grep -F accel-agent | grep -v "Unknown key.*'DelegateSubgroup'" || true)
[ -z "$complaints" ] || { echo "FAILED: $complaints"; exit 1; }
# The check must bite: an unknown key in the unit is seen.
sed -i 's/^KillMode=/KillMod=/' "$root/etc/systemd/system/accel-agent.service"
systemd-analyze verify --man=no --root="$root" accel-agent.service 2>&1 |
  grep "Unknown key.*'KillMod'" >/dev/null || { echo "FAILED: a wrong key is not seen"; exit 1; }

cp "$source_folder"/deploy/systemd/*.service "$root/etc/systemd/system/"
promised=$(sed -n 's/.*exposure level of \([0-9]*\.[0-9]*\).*/\1/p' "$source_folder/docs/admin/deploy.md")
score=$(systemd-analyze security --offline=true --root="$root" --no-pager accel-agent.service |
  sed -n 's/.*Overall exposure level for accel-agent.service: \([0-9.]*\).*/\1/p')
echo "exposure level: $score, docs/admin/deploy.md says $promised"
[ -n "$score" ] && [ "$score" = "$promised" ] || { echo "FAILED: the page is not true"; exit 1; }

for kind in sysusers tmpfiles; do
  command -v "systemd-$kind" >/dev/null || continue
  mkdir -p "$root/usr/lib/$kind.d"
  rm -rf "$root/usr/lib/$kind.d"/*
  cp "$source_folder/deploy/systemd/accel.$kind.conf" "$root/usr/lib/$kind.d/accel.conf"
done
touch "$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
systemd-sysusers --root="$root" accel.conf
grep -q '^accel:' "$root/etc/group" || { echo "FAILED: the group accel was not made"; exit 1; }
if [ "$(id -u)" = 0 ]; then
  printf 'root:x:0:0::/root:/bin/sh\n' >"$root/etc/passwd"
  systemd-tmpfiles --create --root="$root" accel.conf
  [ "$(stat -c %a "$root/run/accel")" = 755 ] || { echo "FAILED: /run/accel was not made"; exit 1; }
fi
