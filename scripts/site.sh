#!/usr/bin/env bash
# Makes the site of the documentation: every page of docs/, the man pages and the API of C++. It needs no network.
#
#   scripts/site.sh [FOLDER]    (build/site by default; open FOLDER/index.html in a browser)
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(realpath -m "${1:-$source_dir/build/site}")
cd "$source_dir"
if [ ! -x .deps/pages/bin/mkdocs ]; then
  echo "site.sh: .deps/pages is not there: scripts/setup.sh --tests installs it" >&2
  exit 1
fi
api=$(mktemp -d)
trap 'rm -rf "$api"' EXIT
scripts/site/api_pages.py "$api"
ACCEL_API_XML=$api/xml NO_MKDOCS_2_WARNING=1 .deps/pages/bin/mkdocs build --quiet --strict --clean --site-dir "$out"
