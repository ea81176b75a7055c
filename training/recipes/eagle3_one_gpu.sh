#!/usr/bin/env bash
# From recorded prompts to an EAGLE-3 head in service on one GPU, with the acceptance length before and after.
#
#   bash training/recipes/eagle3_one_gpu.sh PROMPTS OUT
#
# PROMPTS: a file or folder, as `slipstream train prompts` reads them. OUT: a folder, empty or not there, with room for the
# states, 3 KiB a token of the demo model; a folder in memory (/dev/shm) is as good as a disk. Settings are variables of the
# environment, listed below. Features are taken while answers come in; what is served before is measured beside `fit`.
[ $# = 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
PROMPTS=$1 OUT=$2 ROOT=$(cd "$(dirname "$0")/../.." && pwd) CORES=$(env -u OMP_NUM_THREADS nproc)

# ---- settings; the defaults are for the demo model on one H200 with 32 processor cores
PYTHON=${PYTHON:-python}                      # has this package with the extras serve, train and gpu
MODEL=${MODEL:-$ROOT/demo_models/slipstream-demo}
DRAFT=${DRAFT-$ROOT/demo_models/slipstream-demo-draft}  # draft model that is served before; empty: n-grams
QUESTIONS=${QUESTIONS:-}                      # prompts to compare on, kept out of training; empty: held-out ones alone
DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-$((CORES > 2 ? CORES * 5 / 8 : 1))}  # or cpu; processes that clean prompts
PORT=${PORT:-50100}                           # of the first server; the others', and PORT + 90 to 92, follow
MAX_PROMPT=${MAX_PROMPT:-1280} MAX_ANSWER=${MAX_ANSWER:-320}  # tokens of the longest, to learn from
HELDOUT=${HELDOUT:-600} HELDOUT_PART=${HELDOUT_PART:-0.01}  # prompts to simulate and compare on, at most
LONG=${LONG:-5000} LONG_FROM=${LONG_FROM-dolly-15k}  # long prompts, put together of passages of these categories
SHARES=${SHARES:-}                            # parts of categories, as `mix --share`; empty: its defaults
STACKS=${STACKS:-$((CORES < 8 ? 1 : CORES / 4))}  # whole servers side by side, as one gateway is slower than the target
LANES=${LANES:-2} CONCURRENCY=${CONCURRENCY:-88}  # pieces at a time for each server, conversations at a time of each
PIECE=${PIECE:-1000} PIECE_SECONDS=${PIECE_SECONDS:-15}  # prompts of a piece, and how long the first one may take
PAGES=${PAGES:-24000} RUNNING=${RUNNING:-192}  # KV pages and requests at a time of each server; of the compared one below
ANSWERS_UNTIL=${ANSWERS_UNTIL:-182}           # second at which there are answers enough, however many
STATES_KIB=${STATES_KIB:-640}                 # of an answer with its prompt, so that no more are asked for than there is room
WAVE=${WAVE:-14}                              # pieces that `features` takes beside answers, in two runs
BOUNDARIES=${BOUNDARIES:-2,5,8} LAST=${LAST:-9}  # whose states the head reads; the number of layers, and one
ROWS=${ROWS:-12} ROW_LENGTH=${ROW_LENGTH:-1536} TRIAL_STEPS=${TRIAL_STEPS:-160}  # of `fit`; the trial tells its speed
FIT=${FIT:---draft-vocab 8192 --freeze-scores --intermediate-size 1536 --argmax-weight 0.6 --decay 0.7 --unroll 5
    --optimizer muon --lr 4e-3 --weight-decay 0.05 --warmup 0.02 --epochs 1000 --checkpoint-every 2500}
FIT_UNTIL=${FIT_UNTIL:-385} FIT_STARTS=${FIT_STARTS:-19}  # second at which `fit` ends; seconds of it without steps
COMPARED_PAGES=${COMPARED_PAGES:-8000} TOGETHER=${TOGETHER:-32} MAX_COMPARED=${MAX_COMPARED:-256}
. "$ROOT/training/recipes/processes.sh"
[ -e "$PROMPTS" ] || fail "there are no prompts at $PROMPTS"
[ -z "$(ls -A "$OUT" 2> /dev/null)" ] || fail "$OUT is not empty"
[ -z "$QUESTIONS" ] || [ -f "$QUESTIONS" ] || fail "there are no questions at $QUESTIONS"
[ -f "$MODEL/config.json" ] || fail "there is no model at $MODEL"
mkdir -p "$OUT/log" "$OUT/answers" "$OUT/features" "$OUT/took"; : > "$OUT/answered"
MOST=$(($(df -k --output=avail "$OUT" | tail -n 1) * 9 / 10 / (PIECE * STATES_KIB)))
[ "$MOST" -gt 0 ] || fail "there is no room at $OUT for the states of $PIECE answers"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} PYTHONUNBUFFERED=1

# ---- prompts, while the first server compiles kernels, which the others find
serve() { # NUMBER: without room for trees or for states that drafters read
    "${slipstream[@]}" serve --model "$MODEL" --draft none --max-queued 4096 --http-port 0 --grpc-port $((PORT + $1)) \
        --verify-port 0 --verify-arg=--device="$DEVICE" --verify-arg=--num-pages="$PAGES" --verify-arg=--max-running="$RUNNING" \
        --verify-arg=--max-context=2048 --verify-arg=--max-nodes=1 --verify-arg=--step-nodes=0 --verify-arg=--max-boundaries=0 \
        > "$OUT/log/server-$1.log" 2>&1 & SERVERS[$1]=$!
}
serve 0; run prompts "${slipstream[@]}" train prompts "$PROMPTS" ${QUESTIONS:+--against "$QUESTIONS"} --out "$OUT/clean" \
    --model "$MODEL" --max-tokens "$MAX_PROMPT" --heldout "$HELDOUT_PART" --workers "$WORKERS" & PROMPTS_JOB=$!
ready 180 "${SERVERS[0]}" "127.0.0.1:$PORT"; say "the first server is up"
for number in $(seq 1 $((STACKS - 1))); do serve "$number"; done; done_with $PROMPTS_JOB prompts
step mix "$PYTHON" -m training.recipes.mix "$OUT/clean/train.jsonl" "$OUT/pieces" --size "$PIECE" --long "$LONG" \
    ${LONG_FROM:+$(printf -- '--long-from %s ' $LONG_FROM)} ${SHARES:+$(printf -- '--share %s ' $SHARES)}
LC_ALL=C sort "$OUT/clean/heldout.jsonl" | sed -n "1,${HELDOUT}p" > "$OUT/heldout.jsonl"
say "$(told prompts); $(told mix)"

# ---- answers: whichever server is free takes the next piece; features of those that are there
ask() { # PIECE TEMPERATURE SEED, unless the time for answers would be over before it is answered
    local begun=$EPOCHSECONDS left=$((ANSWERS_END - EPOCHSECONDS)) took=$OUT/took/$SLOT
    [ "$left" -ge "$(cat "$took" 2> /dev/null || echo "$PIECE_SECONDS")" ] || return 0
    if timeout --foreground -k 3 $((left + 4)) "$PYTHON" -m launcher train answers "$OUT/pieces/$1.jsonl" \
        --out "$OUT/answers/$1" --max-tokens "$MAX_ANSWER" --temperature "$2" --seed "$3" --concurrency "$CONCURRENCY" \
        --patience 60 --gateway "127.0.0.1:$((PORT + SLOT / LANES))" > "$OUT/log/answers-$1.log" 2>&1
    then echo $((EPOCHSECONDS - begun + 1)) > "$took"; echo "$1" >> "$OUT/answered"
    else echo "piece $1 is left out: $(tail -c 200 "$OUT/log/answers-$1.log" | tr '\r\n' '  ')"; fi
}
features() { # NAME ANSWERS...
    run "$1" "${slipstream[@]}" train features "${@:2}" --model "$MODEL" --out "$OUT/features/$1" --device "$DEVICE" \
        --boundaries "$BOUNDARIES,$LAST" --gpu-memory-utilization 0.9
}
extract() { # RUNS FROM TO: of the pieces answered after number FROM and up to TO, in so many runs at once
    local part pieces job jobs=()
    for part in $(seq 0 $(($1 - 1))); do
        mapfile -t pieces < <(awk "NR > $2 && NR <= $3 && NR % $1 == $part" "$OUT/answered" | sed "s#^#$OUT/answers/#")
        [ ${#pieces[@]} = 0 ] || { features "features-$3-$part" "${pieces[@]}" & jobs+=($!); }
    done
    for job in ${jobs[@]+"${jobs[@]}"}; do done_with "$job" features; done
}
extract_all() {
    local from=0 to
    until [ -e "$OUT/asked" ]; do
        to=$(wc -l < "$OUT/answered")
        if [ $((to - from)) -ge "$WAVE" ]; then extract 2 $from "$to"; from=$to; else sleep 0.3; fi
    done
    extract 4 $from "$(wc -l < "$OUT/answered")"
}
answer_heldout() {
    run answers-heldout "${slipstream[@]}" train answers "$OUT/heldout.jsonl" --out "$OUT/answers-heldout" --max-tokens 256 \
        --temperature 0 --concurrency 24 --gateway "127.0.0.1:$PORT"
    features heldout "$OUT/answers-heldout"
}
export -f ask; export PYTHON OUT PORT LANES CONCURRENCY MAX_ANSWER PIECE_SECONDS \
    ANSWERS_END=$((EPOCHSECONDS - SECONDS + ANSWERS_UNTIL))
extract_all & FEATURES_JOB=$!; answer_heldout & HELDOUT_JOB=$!
xargs -a <(sed "${MOST}q" "$OUT/pieces/plan") -L 1 -P $((STACKS * LANES)) --process-slot-var=SLOT bash -c 'ask "$@"' ask &
done_with $! answers; touch "$OUT/asked"; done_with $HELDOUT_JOB "the held-out prompts"; kill "${SERVERS[@]}" || true
say "answers: $(wc -l < "$OUT/answered") of $(wc -l < "$OUT/pieces/plan") pieces"

# ---- a short fit, which tells how fast it is; then the fit, and beside it the figures before
fit() { # RUN STEPS LOG_EVERY: over the features that are there
    local set sets=()
    for set in "$OUT"/features/features-*; do [ ! -f "$set/index.json" ] || sets+=(--features "$set"); done
    [ ${#sets[@]} -gt 0 ] || [ "$1" = run ] || sets=(--features "$OUT/features/heldout")
    step "$1" "${slipstream[@]}" train fit "${sets[@]}" --heldout "$OUT/features/heldout" --model "$MODEL" --family eagle3 \
        --out "$OUT/$1" --device "$DEVICE" --boundaries "$BOUNDARIES" --row-length "$ROW_LENGTH" --batch-rows "$ROWS" $FIT \
        --max-steps "$2" --log-every "$3" --evaluate-every $(($2 / 3 + 1)) "${@:4}"
}
fit trial "$TRIAL_STEPS" $((TRIAL_STEPS / 4 + 1)) --no-check-labels & TRIAL_JOB=$!
EAGLE3=draft_service.proposers.eagle.eagle3:create DRAFT_MODEL=draft_service.proposers.draft_model:create
TREE=num_steps=5:topk=8:num_draft_tokens=32 CHAIN=num_steps=5:topk=1
BEFORE=(ngram) SERVED=(--draft ngram)
[ -z "$DRAFT" ] || BEFORE=(draft-chain draft-tree) SERVED=(--draft "draft-tree=$DRAFT_MODEL:$DRAFT:$TREE"
    --draft "draft-chain=$DRAFT_MODEL:$DRAFT:$CHAIN")
"${slipstream[@]}" serve --model "$MODEL" "${SERVED[@]}" --http-port 0 --grpc-port $((PORT + 90)) --verify-port $((PORT + 91)) \
    --draft-port $((PORT + 92)) --draft-deadline-ms 5000 --draft-threads 4 --draft-arg=--device="$DEVICE" \
    --verify-arg=--device="$DEVICE" --verify-arg=--num-pages="$COMPARED_PAGES" > "$OUT/log/server-compared.log" 2>&1 & COMPARED=$!
done_with $TRIAL_JOB trial; say trial; done_with $FEATURES_JOB features; say "features: $(du -sh "$OUT/features" | cut -f1)"
SPEED=$(grep -o '[0-9]* tok/s' "$OUT/log/trial.log" | sort -n | tail -n 1 | cut -d' ' -f1) || fail "the trial told no speed"
STEPS=$(((FIT_UNTIL - SECONDS - FIT_STARTS) * SPEED * 9 / 10 / (ROWS * ROW_LENGTH)))
[ "$STEPS" -gt 0 ] || fail "second $FIT_UNTIL, at which the fit is to end (FIT_UNTIL), leaves no time for it"
say "fit begins: $STEPS steps, as the trial took $SPEED tokens a second"
serve_head() { # HEAD: a draft service with it as a tree and as a chain, beside what is served
    "$PYTHON" -m draft_service --verify "127.0.0.1:$((PORT + 91))" --port 0 --name head --threads 4 --device "$DEVICE" \
        --proposers "eagle3=$EAGLE3:$1:target=$MODEL:$TREE" \
        --proposers "eagle3-chain=$EAGLE3:$1:target=$MODEL:$CHAIN" > "$OUT/log/head.log" 2>&1 & HEAD=$!
    ready 90 $HEAD "127.0.0.1:$((PORT + 91))" --attached eagle3-chain
}
compare() { # NAME PROMPTS PROPOSER...
    step "$1" "${slipstream[@]}" train evaluate "$2" --out "$OUT/$1" --gateway "127.0.0.1:$((PORT + 90))" --no-plain \
        --temperatures 0 --max-tokens "$MAX_COMPARED" --concurrency "$TOGETHER" ${SIMULATED:+--simulated "$SIMULATED"} \
        $(printf -- '--proposer %s ' "${@:3}")
    say "$1:"; grep 'tokens a verify step' "$OUT/log/$1.log"
}
measure_before() { # and the trial's head in service for a moment, so that its kernels are compiled
    ready 120 $COMPARED "127.0.0.1:$((PORT + 91))" --attached "${BEFORE[0]}"
    compare before "${QUESTIONS:-$OUT/heldout.jsonl}" "${BEFORE[@]}"
    serve_head "$OUT/trial/head"; sed 6q "$OUT/heldout.jsonl" > "$OUT/few.jsonl"
    compare trial-served "$OUT/few.jsonl" eagle3-chain eagle3 > "$OUT/log/trial-told.log"; stop $HEAD
}
SIMULATED=; measure_before & BEFORE_JOB=$!; fit run "$STEPS" 100; say "fit: $(told run)"
# ---- the head in service, after
done_with $BEFORE_JOB "the figures before"; serve_head "$OUT/run/head"; say "the head is in service"; SIMULATED=$OUT/run
[ -z "$QUESTIONS" ] || compare after "$QUESTIONS" eagle3-chain eagle3
compare after-heldout "$OUT/heldout.jsonl" eagle3-chain eagle3
say "done; slipstream serve --model $MODEL --draft eagle3:$OUT/run/head"
