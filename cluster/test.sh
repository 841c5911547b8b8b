#!/usr/bin/env bash
# Installs what is missing, then checks style, types and tests, and stops at the first that fails. Called by people and by .ci/run.
# Arguments go to pytest: bash cluster/test.sh -m slow, bash cluster/test.sh tests/unit -k grading
set -euo pipefail

case ${1:-} in
    -h | --help) echo "usage: bash cluster/test.sh [arguments for pytest ...]   (exit status: that of the first step that fails)" && exit 0 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE # tests start many processes that import the engines
unset RAY_ADDRESS             # tests start Ray themselves
export OMP_NUM_THREADS=1      # two processes on few cores: more threads would wait for each other

step() {
    printf '\n=== %s\n' "$*"
    "$@" </dev/null
}

step bash cluster/install.sh cpu
step .venv/bin/ruff check .
step .venv/bin/ruff format --check .
step .venv/bin/mypy
# Two processes, a file at a time each: many tests wait for a limit to pass, while others compute.
step .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
