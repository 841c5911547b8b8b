#!/usr/bin/env bash
# Makes .venv at the repository root: the tested versions of every engine, for a CPU or for NVIDIA GPUs.
# Called by quickstart.sh, test.sh and the Dockerfile, or by hand. Knows nothing of Ray clusters and jobs.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash cluster/install.sh {cpu|gpu} [--build-flash-attn] [--torch-index URL]

  cpu                 vLLM's CPU build and PyTorch's CPU wheels
  gpu                 vLLM and PyTorch for CUDA; FlashAttention too when a ready-made wheel of it fits
  --build-flash-attn  (gpu) compile FlashAttention where there is no wheel: needs nvcc, takes from minutes to hours
  --torch-index URL   where PyTorch's wheels come from. Default for cpu: the first folder in PIP_FIND_LINKS that holds a torch
                      wheel for this Python, else PyTorch's own CPU index (uv's --torch-backend cpu); for gpu: the package index

environment: MATHRL_PYTHON (the Python to use, 3.11 or newer), MATHRL_STATE_DIR (logs; default cluster/.state),
             PIP_FIND_LINKS, PIP_INDEX_URL, and whatever uv and pip read themselves.
A second run does nothing. A run after an interrupted one goes on with what that one downloaded. Delete .venv to start afresh.
TEXT
}

fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

# --- what was asked ---------------------------------------------------------------------------------------------------

extra="" build_flash_attn=no torch_index=""
while (($#)); do
    case $1 in
        cpu | gpu) extra=$1 ;;
        --build-flash-attn) build_flash_attn=yes ;;
        --torch-index)
            [[ ${2:-} == *:* || -d ${2:-} ]] || fail "--torch-index needs a URL or a folder, got '${2:-}'"
            torch_index=$2
            shift
            ;;
        -h | --help) usage && exit 0 ;;
        *) fail "unknown argument '$1'; allowed: cpu, gpu, --build-flash-attn, --torch-index URL, --help" ;;
    esac
    shift
done
[[ -n $extra ]] || fail "say what to install for: bash cluster/install.sh cpu, or bash cluster/install.sh gpu"
[[ $build_flash_attn == no || $extra == gpu ]] || fail "--build-flash-attn goes with gpu: FlashAttention has no CPU kernels"

platforms="supported are Linux on x86-64 or arm64 with glibc, WSL2 on Windows, and on macOS a linux/arm64 container"
system=$(uname -s) machine=$(uname -m)
[[ $system == Linux && $machine =~ ^(x86_64|aarch64|arm64)$ ]] || fail "this is $system on $machine; $platforms"
if ldd --version 2>&1 | grep -qi musl; then fail "this Linux uses musl; $platforms"; fi

# --- is there anything to do? -----------------------------------------------------------------------------------------

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source cluster/progress.sh
venv=$root/.venv
python=$venv/bin/python
stamp=$venv/.mathrl-installed  # "extra hash root" of the install that is complete
unfinished=$venv/.mathrl-unfinished
hash=$(cat pyproject.toml cluster/overrides-cpu.txt | sha256sum | cut -c1-16)
wanted="$extra $hash $root"

has_flash_attn() { "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("flash_attn") is None)'; }
is_complete() { [[ -x $python && -f $stamp && $(<"$stamp") == "$wanted" ]] && { [[ $build_flash_attn == no ]] || has_flash_attn; }; }

if is_complete; then
    echo "install: .venv is complete for $extra, nothing to do"
    exit 0
fi
echo "install: making .venv for $extra ($platforms)"

state=${MATHRL_STATE_DIR:-$root/cluster/.state}
mkdir -p "$state"
exec 9>"$state/install.lock"
phase install "waiting for the install that holds $state/install.lock"
flock -w 1800 9 || fail "another install has held $state/install.lock for 30 minutes"
phase_end
if is_complete; then
    echo "install: .venv was completed for $extra by another run in the meantime"
    exit 0
fi
log=$state/install.log
: >"$log"

# --- Python and its environment ---------------------------------------------------------------------------------------

find_python() {
    local name
    for name in ${MATHRL_PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; python3 is $(python3 --version 2>&1 || true). Install python3.11 (with its venv module)" \
        "or name one: MATHRL_PYTHON=/path/to/python3.11 bash cluster/install.sh $extra"
}

compiler_hint="Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++"
command -v g++ >/dev/null || fail "g++ is missing: DeepSpeed compiles an operator with it at first use. $compiler_hint"

# The environment is made afresh, from uv's downloads, where the last install was killed (a half linked package looks installed),
# for the other extra (both builds of vLLM use one import name) and at another place (scripts hold the path).
clear=()
[[ ! -f $stamp || $(<"$stamp") == "$extra "*" $root" ]] || clear=(--clear)
if [[ -f $unfinished ]]; then
    clear=(--clear)
    echo "install: the last install was interrupted; going on with what it downloaded"
fi
"$python" -m pip --version >/dev/null 2>&1 || clear=(--clear)
if [[ ! -d $venv || ${#clear[@]} -gt 0 ]]; then
    base_python=$(find_python)
    echo "install: $("$base_python" --version) at $base_python"
    phase install "making $venv"
    "$base_python" -m venv "${clear[@]}" "$venv" 2>&1 | tee -a "$log" ||
        fail "could not make $venv (Debian, Ubuntu: apt-get install python3-venv); log: $log"
fi
rm -f "$stamp"
touch "$unfinished"
if [[ $extra == cpu ]]; then export DS_ACCELERATOR=cpu; fi # DeepSpeed would print a warning about the GPU that it misses

# Bytecode: without it every process pays 8 s more for importing vLLM. Compiling all of .venv takes 36 s; check_imports.py, run
# below with writing allowed, leaves the quarter that the engines use, and the rest follows at its first use.
unset PYTHONDONTWRITEBYTECODE

# --- packages ---------------------------------------------------------------------------------------------------------

torch_folder() {
    local folder tag
    tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    for folder in ${PIP_FIND_LINKS:-}; do
        if compgen -G "$folder/torch-*-$tag-*.whl" >/dev/null; then
            echo "$folder"
            return
        fi
    done
}

torch_source=()
if [[ -d $torch_index ]]; then
    torch_source=(--find-links "$torch_index")
elif [[ -n $torch_index ]]; then
    # Such an index carries old versions of other packages as well: take the best of both.
    torch_source=(--index "$torch_index" --index-strategy unsafe-best-match)
elif [[ $extra == cpu ]]; then
    folder=$(torch_folder)
    if [[ -n $folder ]]; then torch_source=(--find-links "$folder"); else torch_source=(--torch-backend cpu); fi
fi
overrides=()
[[ $extra == gpu ]] || overrides=(--overrides cluster/overrides-cpu.txt)

export UV_PYTHON_DOWNLOADS=never UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300}
if [[ -n ${PIP_INDEX_URL:-} ]]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi # uv reads no pip settings
uv() { "$venv/bin/uv" pip install --python "$python" "$@" 2>&1 | tee -a "$log"; }

phase install "installing uv"
"$python" -m pip install --quiet --disable-pip-version-check uv 2>&1 | tee -a "$log" || fail "pip could not install uv; log: $log"
phase install "downloading and installing the packages (uv's words come at the end; several GB at the first time)"
uv "${overrides[@]}" "${torch_source[@]}" -e ".[$extra,dev]" || fail "uv could not install the packages; log: $log"

# --- FlashAttention, which only NVIDIA GPUs have ----------------------------------------------------------------------

build_flash_attn_from_source() {
    local cores jobs
    cores=$(nproc)
    jobs=$(awk '/MemTotal/ {print int($2 / 8388608)}' /proc/meminfo) # one compiler can take 8 GiB
    jobs=$((jobs < 1 ? 1 : jobs > cores ? cores : jobs))
    echo "install: compiling FlashAttention with $jobs jobs"
    phase install "compiling FlashAttention"
    MAX_JOBS=$jobs uv --no-build-isolation flash-attn || fail "FlashAttention did not compile; log: $log"
}

ready_made_flash_attn() { "$venv/bin/uv" pip install --python "$python" --only-binary :all: flash-attn >>"$log" 2>&1; }

phase install "looking for a wheel of FlashAttention"
if [[ $extra == gpu ]] && ! has_flash_attn && ! ready_made_flash_attn; then
    if [[ $build_flash_attn == yes ]]; then
        build_flash_attn_from_source
    else
        echo "install: no wheel of FlashAttention fits, so the learner uses PyTorch's own attention (sdpa)." \
            "To compile it: bash cluster/install.sh gpu --build-flash-attn"
    fi
fi

# --- does every engine start? -----------------------------------------------------------------------------------------

echo "install: importing every engine once, which also compiles their bytecode"
phase install "importing every engine"
"$python" cluster/check_imports.py torch vllm deepspeed ray transformers datasets math_verify pyarrow 2>>"$log" ||
    fail "an engine cannot be imported: see above and $log"
rm -f "$unfinished"
echo "$wanted" >"$stamp"
echo "install: .venv is complete for $extra after $SECONDS s"
