#!/bin/sh
# loads.sh STUDY: the largest load of an expert over the mean load at the end of each run of a study, as a table: that of
# the last batch, and that of the last ten batches together, which has less of what a batch happens to be about. A row is
# an optimizer in a mode at a learning rate. Each layer of each run that is a mixture counts once.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER-OF-A-STUDY" >&2; exit 1; }
for run in "$1"/runs/*/; do
  case $(tail -n 1 "$run/metrics.jsonl") in *val_loss*) ;; *) echo "$run: not at its end" >&2; continue ;; esac
  # A line of experts.jsonl is a batch: {"step": 1, "layers.1/loads": [12, …], …}.
  tail -n 10 "$run/experts.jsonl" | grep -o '"[^"]*/loads":\[[^]]*\]' | awk -v run="$(basename "$run")" -F '"' '
    function over_mean(load, experts,    e, sum, largest) {
      for (e = 1; e <= experts; e++) { sum += load[e]; if (load[e] > largest) largest = load[e] }
      return largest * experts / sum
    }
    {
      gsub(/[^0-9,.]/, "", $3)
      experts = split($3, batch, ",")
      for (e = 1; e <= experts; e++) total[$2, e] += batch[e]
      last[$2] = over_mean(batch, experts)
    }
    END {
      for (layer in last) {
        for (e = 1; e <= experts; e++) ten[e] = total[layer, e]
        print run, last[layer], over_mean(ten, experts)
      }
    }'
done | awk '
  {
    run = $1
    sub(/-stages[0-9]+/, "", run); sub(/-seed[0-9]+$/, "", run)
    if (!(run in count)) order[++rows] = run
    count[run]++; sum[run] += $2; even[run] += $2 < 1.3; sum_ten[run] += $3
    if ($2 > worst[run]) worst[run] = $2
    if ($3 > worst_ten[run]) worst_ten[run] = $3
    if (!($1 in seen)) { seen[$1]; runs[run]++ }
  }
  END {
    print "| optimizer | mode | lr | runs | last batch | worst | below 1.3 | last ten | worst |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for (i = 1; i <= rows; i++) {
      r = order[i]; optimizer = r; mode = r; lr = r
      sub(/-.*/, "", optimizer); sub(/^[^-]*-/, "", mode); sub(/-lr.*/, "", mode); sub(/.*-lr/, "", lr)
      n = count[r]
      printf "| %s | %s | %s | %d | %.2f | %.2f | %d of %d | %.2f | %.2f |\n", optimizer, mode, lr, runs[r], sum[r]/n, worst[r], even[r], n, sum_ten[r]/n, worst_ten[r]
    }
  }'
