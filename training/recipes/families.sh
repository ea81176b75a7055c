#!/usr/bin/env bash
# Heads of all families beside EAGLE-3 from one set of features, as many side by side as there is room for.
#
#   bash training/recipes/families.sh FEATURES HELDOUT OUT
#
# FEATURES: a folder of `slipstream train features`, or one that holds several, such as OUT/features of eagle3_one_gpu.sh.
# HELDOUT: another, not learnt from. OUT/FAMILY/head is each family's head. Started again with the same settings, which are
# variables of the environment, it goes on where it stood.
[ $# = 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
FEATURES=$1 HELDOUT=$2 OUT=$3 ROOT=$(cd "$(dirname "$0")/../.." && pwd)

# ---- settings; the defaults are for the demo model on a GPU
PYTHON=${PYTHON:-python}                      # has this package with the extras serve, train and gpu
FAMILIES=${FAMILIES:-eagle mtp medusa mlp-speculator}
TOGETHER=${TOGETHER:-4}                       # families at a time
DEVICE=${DEVICE:-cuda}                        # or cpu
FIT=${FIT:---row-length 1536 --batch-rows 12 --lr 1e-3 --epochs 3}
. "$ROOT/training/recipes/processes.sh"

[ -f "$HELDOUT/index.json" ] || fail "there are no features at $HELDOUT"
SETS=()
for folder in "$FEATURES" "$FEATURES"/*; do
    if [ -f "$folder/index.json" ] && ! [ "$folder" -ef "$HELDOUT" ]; then SETS+=(--features "$folder"); fi
done
[ ${#SETS[@]} -gt 0 ] || fail "there are no features at $FEATURES"
mkdir -p "$OUT/log"
fit() { # FAMILY
    run "$1" "${slipstream[@]}" train fit "${SETS[@]}" --heldout "$HELDOUT" --family "$1" --out "$OUT/$1" \
        --device "$DEVICE" $FIT
    say "$(told "$1")"
}
for family in $FAMILIES; do
    while [ "$(jobs -pr | wc -l)" -ge "$TOGETHER" ]; do sleep 0.2; done
    fit "$family" & JOBS+=($!)
done
for job in "${JOBS[@]}"; do done_with "$job" "a family"; done
say "done; slipstream serve$(printf " --draft %s" $(for family in $FAMILIES; do echo "$family:$OUT/$family/head"; done))"
