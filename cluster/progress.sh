# Sourced by install.sh and quickstart.sh: says every ten seconds what goes on and for how long, so that no wait looks like a standstill.
# The lines go to standard error, also where that is no terminal. What it starts ends with the script, by a kill too, within one such wait.

progress_pid=""

# phase NAME TEXT: from now on NAME (a script) is at TEXT; what was before has ended.
phase() {
    phase_end
    progress_lines "$1" "$2" 9>&- >/dev/null & # 9: a lock that ends with its script
    progress_pid=$!
    disown "$progress_pid" # else bash reports its end
}

progress_lines() {
    local began=$SECONDS never parent
    exec {never}<> <(:) # nothing ever comes here: a wait without a `sleep`, which would outlive this
    while ! read -rt "${MATHRL_PROGRESS_S:-10}" -u "$never"; do
        read -r _ _ _ parent _ <"/proc/$BASHPID/stat"
        [[ $parent == "$$" ]] || exit # the script was killed, and could not end this
        printf '%s: %s, %d s so far\n' "$1" "$2" $((SECONDS - began)) >&2
    done
}

phase_end() {
    [[ -z $progress_pid ]] || kill -KILL "$progress_pid" 2>/dev/null || true # a shell that has just begun would report a milder one
    progress_pid=""
}

trap phase_end EXIT
