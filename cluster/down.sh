#!/usr/bin/env bash
# Stops the Ray head that quickstart.sh started, with its jobs, and nothing else. Called by people. Exit status 0 when nothing runs.
set -euo pipefail

case ${1:-} in
    "") ;;
    -h | --help) echo "usage: bash cluster/down.sh   (stops the Ray head that quickstart.sh started; no arguments)" && exit 0 ;;
    *) echo "down: no arguments are taken, got '$1'" >&2 && exit 1 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
[[ -x $python ]] || python=python3 # enough to stop processes; without Ray its jobs are not asked to end first
exec "$python" -m cluster.head stop
