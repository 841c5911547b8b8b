#!/usr/bin/env bash
# From a fresh clone to a trained model: installs, starts a Ray head of its own, submits the main job and follows it to its end.
# Called by people. Knows where things are and in which order; install.sh, head.py, submit.py and the job know how.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash cluster/quickstart.sh [section.key=value ...]

Installs into .venv (first time only), starts a Ray head on this machine or uses the one it started before, runs
  python jobs/study.py jobs/recipes/arithmetic_cpu.toml run.root=RUNS [section.key=value ...]
on it as a Ray job, and follows the job until it ends. Exit status 0 only when the job succeeded. Ctrl-C ends the following, not the job.

  section.key=value   changes a key of the recipe, for example run.seed=1 or run.name=second

environment: MATHRL_RUNS   folder for runs, not below this repository (default: mathrl_runs in your home folder)
             MATHRL_EXTRA  cpu (default) or gpu: what install.sh installs for
stop everything that this started: bash cluster/down.sh
TEXT
}

fail() {
    printf 'quickstart: %s\n' "$*" >&2
    exit 1
}

for argument in "$@"; do
    case $argument in
        -h | --help) usage && exit 0 ;;
        [a-z]*.[a-z]*=*) ;;
        *) fail "'$argument' is not section.key=value, for example run.seed=1; see --help" ;;
    esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source cluster/progress.sh
python=$root/.venv/bin/python
recipe=jobs/recipes/arithmetic_cpu.toml
runs=$(realpath -m "${MATHRL_RUNS:-$HOME/mathrl_runs}")
[[ $runs/ != "$root"/* ]] || fail "MATHRL_RUNS = $runs lies inside the repository, which is uploaded with every job: choose a folder outside"
mkdir -p "$runs"
commit=$(git rev-parse HEAD 2>/dev/null) || commit=none
if [[ $commit != none && -n $(git status --porcelain 2>/dev/null) ]]; then commit+=-modified; fi
unset PYTHONDONTWRITEBYTECODE # what a process compiles once, the next one need not

bash cluster/install.sh "${MATHRL_EXTRA:-cpu}"
installed_s=$SECONDS
settings=("run.root=$runs" "run.commit=$commit" "$@")
"$python" jobs/study.py "$recipe" --check "${settings[@]}" # a mistyped key shows now, not after the head's start
phase quickstart "starting the Ray head"
"$python" -m cluster.head start
phase_end
started_s=$SECONDS
status=0
"$python" -m cluster.submit -- python jobs/study.py "$recipe" "${settings[@]}" || status=$?
ended_s=$SECONDS
of_all_seeds=() # what the user has changed, but for what the seeds' runs have of their own
for argument in "$@"; do [[ $argument == run.name=* || $argument == run.seed=* ]] || of_all_seeds+=("$argument"); done
dashboard=$("$python" -c 'from cluster.connection import recorded_head; head = recorded_head(); print(head.dashboard if head else "is down")')

cat <<TEXT
Took: install $installed_s s, head $((started_s - installed_s)) s, job $((ended_s - started_s)) s, together $ended_s s
Runs: $runs
Three seeds, with intervals over seeds, in about three times as long:
  .venv/bin/python -m cluster.submit -- python jobs/study.py ${recipe%.toml}_seeds.toml$(printf ' %q' "run.root=$runs" "${of_all_seeds[@]}")
Dashboard: $dashboard (asks for a token: .venv/bin/ray get-auth-token)
Head and jobs: .venv/bin/python -m cluster.head status
Stop: bash cluster/down.sh
TEXT
exit "$status"
