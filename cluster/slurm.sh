#!/usr/bin/env bash
# A run under SLURM: a Ray head on the first node, Ray on the others, the job on it; from the repository's root on the login node:
#     HF_HOME=/shared/huggingface sbatch --nodes=2 --gpus-per-node=1 --cpus-per-task=16 --mem=64G --time=8:00:00 cluster/slurm.sh jobs/grpo.py jobs/recipes/qwen2.5-math-1.5b/two_nodes.toml run.root=/shared/runs run.name=grpo
# The checkout, with its .venv (bash cluster/install.sh gpu), run.root and HF_HOME (hub models and data) must be on a file system that all nodes see.
# Two minutes before the time limit SLURM sends SIGUSR1: the run saves, and is queued again unless it has ended well; it goes on where it was
# (run.resume=auto is added). At SIGTERM, as scancel sends it, the run saves too, as far as SLURM's KillWait lets it, and is not queued again.
# The exit status is the run's. Tested with stand-ins for srun and scontrol, never on a SLURM cluster.
#SBATCH --job-name=mathrl
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

(($# >= 2)) || { echo "slurm: usage: sbatch [options] cluster/slurm.sh jobs/STAGE.py RECIPE.toml [section.key=value ...]" >&2 && exit 1; }
[[ " $* " == *" run.name="* ]] || { echo "slurm: give run.name=NAME, so that a run that is queued again finds itself" >&2 && exit 1; }
[[ -n ${SLURM_JOB_ID:-} ]] || { echo "slurm: this is for sbatch; without SLURM: python $1 $2" >&2 && exit 1; }
[[ -x .venv/bin/python ]] || { echo "slurm: no .venv in $PWD: bash cluster/install.sh gpu" >&2 && exit 1; }

source .venv/bin/activate
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not inherit --cpus-per-task, since SLURM 22.05
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))') # of this job alone, in the environment of its processes
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 20000)) # another job may be on the same node
temp=/tmp/mr-$SLURM_JOB_ID             # short: of sockets
stop_s=${MATHRL_SLURM_STOP_S:-90}      # what the run gets to save and end

# node, command; in a subshell, which becomes srun, so that a signal to it reaches that.
on_node() { exec srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" "${@:2}"; }

# The head's first address that others reach; a host's own name often leads to 127.0.1.1.
address=""
for word in $(on_node "$head" hostname -I); do
    if [[ $word =~ ^[0-9]+(\.[0-9]+){3}$ && $word != 127.* ]]; then address=$word && break; fi
done
if [[ -z $address && ${#nodes[@]} -gt 1 ]]; then
    echo "slurm: node $head has no IPv4 address but the loopback's ('hostname -I' there), which the other nodes cannot reach" >&2 && exit 1
fi
address=${address:-127.0.0.1}

start_ray() { # node, options of ray start
    on_node "$1" ray start --block --disable-usage-stats --num-cpus="$SRUN_CPUS_PER_TASK" "${@:2}" &
    ray_pids+=($!)
}

ray_pids=() job_pid="" told=""
end_ray() { ((${#ray_pids[@]} == 0)) || kill "${ray_pids[@]}" 2>/dev/null || true; } # srun passes it on to its `ray start` alone
trap end_ray EXIT
stop() { # and then: requeue or end
    [[ $told == end ]] || told=$1
    [[ -z $job_pid ]] || kill -TERM "$job_pid" 2>/dev/null || true
}
trap "stop requeue" USR1
trap "stop end" TERM
leave() { # the run's status
    if [[ $told == requeue && $1 != 0 ]]; then
        echo "slurm: the time limit is near, and the run ended with status $1: it is queued again" >&2
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$1"
}

start_ray "$head" --head --node-ip-address="$address" --port="$port" --include-dashboard=false --temp-dir="$temp"
for node in "${nodes[@]:1}"; do start_ray "$node" --address="$address:$port"; done

export RAY_ADDRESS=$address:$port
python - "${#nodes[@]}" <<'PYTHON' &
import sys, time

import ray

wanted, until = int(sys.argv[1]), time.monotonic() + 180
found = 0
while time.monotonic() < until:
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        found = sum(node["Alive"] for node in ray.nodes())
        ray.shutdown()
    except (ConnectionError, RuntimeError):  # the head is not up yet
        pass
    if found == wanted:
        sys.exit(0)
    time.sleep(2)  # nothing tells of a node that has come
sys.exit(f"slurm: {found} of {wanted} Ray nodes came up within 180 s")
PYTHON
waiting_pid=$!
wait "$waiting_pid" || { # in the background: a signal ends `wait`, and no command in front
    kill "$waiting_pid" 2>/dev/null || true
    leave 1
}
python "$@" run.resume=auto &
job_pid=$!
[[ -z $told ]] || kill -TERM "$job_pid" # told in the moment before
status=0
wait "$job_pid" || status=$?
if [[ -n $told ]]; then # `wait` has ended for the signal, the run goes on saving
    for ((second = 0; second < stop_s; second++)); do
        kill -0 "$job_pid" 2>/dev/null || break
        sleep 1 & # in the background, so that another signal is heard
        wait $! || true
    done
    kill -KILL "$job_pid" 2>/dev/null || true # it has had its time; its last checkpoint stands
    status=0
    wait "$job_pid" || status=$?
fi
leave "$status"
