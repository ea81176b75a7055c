# shellcheck shell=bash
# Sourced by recipes: what is started, waited for, told and stopped. OUT/log has a log of each; $PYTHON runs the package.
set -euo pipefail; exec < /dev/null
slipstream=("$PYTHON" -m launcher)

say() { printf '=== %4d s: %s\n' "$SECONDS" "$*"; }
fail() { echo "$0: $*" >&2; exit 1; }
told() { tr '\r' '\n' < "$OUT/log/$1.log" | sed '/^ *$/d' | tail -n "${2:-1}"; } # LOG [LINES]: its end
run() { # NAME COMMAND...: into a log, whose end is shown where it fails
    "${@:2}" > "$OUT/log/$1.log" 2>&1 || { told "$1" 5 >&2; fail "$1 failed; its log is $OUT/log/$1.log"; }
}
done_with() { wait "$1" || fail "$2 failed"; } # JOB NAME
step() { run "$@" & wait $! || exit 1; } # as run, but signals are heeded at once
ready() { # SECONDS PROCESS ADDRESS [--attached NAME]: as `slipstream probe`
    local end=$((SECONDS + $1)) process=$2
    until "${slipstream[@]}" probe "${@:3}"; do
        kill -0 "$process" 2> /dev/null || fail "the process that was to serve $3 has ended; its log is in $OUT/log"
        [ "$SECONDS" -lt "$end" ] || fail "not ready after $1 s: ${*:3}; its log is in $OUT/log"
        sleep 0.2
    done
}
stop() { # PROCESS...: servers, until they have ended
    local process; kill "$@" 2> /dev/null || true
    for process in "$@"; do wait "$process" 2> /dev/null || true; done
}
clean_up() { # all that still runs: every job is a process group
    local job left try signal; left=$(jobs -p)
    for try in $(seq 0 150); do
        signal=0; [ $((try % 20)) != 0 ] || signal=TERM # again, as one that comes between fork and exec is lost
        for job in $left; do kill -$signal -- "-$job" 2> /dev/null || left=$(echo "$left" | sed "/^$job\$/d"); done
        [ -n "$left" ] || return 0; sleep 0.1
    done
    for job in $left; do kill -KILL -- "-$job" 2> /dev/null || true; done
}
set -m; trap clean_up EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
