#!/bin/sh
# loads.sh STUDY: the largest load of an expert over the mean load, of the last batch of each run of a study, as a table.
# A row is an optimizer in a mode at a learning rate. Each layer of each run that is a mixture counts once.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER-OF-A-STUDY" >&2; exit 1; }
for run in "$1"/runs/*/; do
  last=$(tail -n 1 "$run/metrics.jsonl")
  case $last in *val_loss*) ;; *) echo "$run: not at its end" >&2; continue ;; esac
  name=$(basename "$run")
  echo "$last" | grep -o '/load_max":[0-9.]*' | sed "s|.*:|$name |"
done | awk '
  {
    run = $1
    sub(/-stages[0-9]+/, "", run); sub(/-seed[0-9]+$/, "", run)
    if (!(run in count)) order[++rows] = run
    count[run]++; sum[run] += $2; even[run] += $2 < 1.3
    if ($2 > worst[run]) worst[run] = $2
    if (!($1 in seen)) { seen[$1]; runs[run]++ }
  }
  END {
    print "| optimizer | mode | lr | runs | mean | worst | below 1.3 |\n| --- | --- | --- | --- | --- | --- | --- |"
    for (i = 1; i <= rows; i++) {
      r = order[i]; optimizer = r; mode = r; lr = r
      sub(/-.*/, "", optimizer); sub(/^[^-]*-/, "", mode); sub(/-lr.*/, "", mode); sub(/.*-lr/, "", lr)
      printf "| %s | %s | %s | %d | %.2f | %.2f | %d of %d |\n", optimizer, mode, lr, runs[r], sum[r]/count[r], worst[r], even[r], count[r]
    }
  }'
