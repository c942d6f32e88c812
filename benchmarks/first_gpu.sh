#!/usr/bin/env bash
# What one lent card runs first, in two calls of at most 300 s: bash benchmarks/first_gpu.sh 1|2 FOLDER [--toy]
#     1   matrix products, updates of the large runs against the dry run, the tests that need a GPU
#     2   configs/h200_small.yaml stopped by SIGUSR1, resumed and verified, and a profile of an update
# Each part has a limit of its own. Its output is FOLDER/PART.txt while it runs, and its status a line of
# FOLDER/status.txt as soon as it ends. The exit status is 1 if a part failed. With --toy all sizes are a CPU's.
set -uo pipefail
call=${1:?1 or 2} out=${2:?a folder} toy=${3:-}
mkdir -p "$out"
python=${PYTHON:-python}
failed=0

part() { # NAME LIMIT_S EXPECTED_STATUS COMMAND...
    local name=$1 limit=$2 expected=$3 start=$SECONDS
    shift 3
    timeout --kill-after=3 "$limit" "$@" > "$out/$name.txt" 2>&1
    local status=$?
    echo "$name status $status, expected $expected, $((SECONDS - start)) s" | tee -a "$out/status.txt"
    [[ $status == "$expected" ]] || failed=1
}

run=(configs/h200_small.yaml "--run.folder=$out/runs" "--data.folder=$out/shards" --run.name=first --track.wandb=off)
run+=(--train.tokens=6553600 --train.checkpoint_every_tokens=3276800 --optim.warmup_steps=10)
run+=(--probe.every_tokens=null --probe.loss_tokens=0 --data.corpus.documents=20000)
products=(--json "$out/products.jsonl")
updates=(--out "$out")
limits=(80 110 100 110 80 10 80)
if [[ $toy == --toy ]]; then
    run=(configs/cpu_test.yaml "--run.folder=$out/runs" "--data.folder=$out/shards" --run.name=first)
    run+=(--train.tokens=61440 --train.checkpoint_every_tokens=30720 --probe.every_tokens=null --probe.loss_tokens=0)
    products+=(--tokens 256 --turns 1)
    updates+=(--toy)
    limits=(600 600 600 600 600 600 600)
fi

# shellcheck disable=SC2317 # the second call runs it by its name
stop() { # train until the first step is recorded, then signal; the run saves and exits with 75
    "$python" -m lab.fit "${run[@]}" &
    local trained=$!
    until [[ -s $out/runs/first/metrics.jsonl ]] || ! kill -0 "$trained"; do sleep 0.2; done
    kill -USR1 "$trained"
    wait "$trained"
}
export -f stop

case $call in
    1)
        part products "${limits[0]}" 0 "$python" -m benchmarks.gpu.products "${products[@]}"
        part updates "${limits[1]}" 0 "$python" -m benchmarks.on_gpu "${updates[@]}"
        part tests "${limits[2]}" 0 "$python" -m pytest -m gpu -q
        ;;
    2)
        part stop "${limits[3]}" 75 bash -c "$(declare -p run python out); stop"
        part resume "${limits[4]}" 0 "$python" -m lab.fit "${run[@]}" --resume
        part verify "${limits[5]}" 0 "$python" -m lab.verify "$out/runs/first"
        part profile "${limits[6]}" 0 "$python" -m lab.fit "${run[@]}" --profile -o "$out/profile"
        ;;
    *)
        echo "$call: must be 1 or 2" >&2
        exit 2
        ;;
esac
exit "$failed"
