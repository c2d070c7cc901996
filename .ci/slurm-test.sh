#!/usr/bin/env bash
# slurm-test.sh: runs examples/cluster/gpupipe.sbatch under a real Slurm of four nodes on this machine, and prints a line for
# each check. It needs root, and Debian's packages slurm-wlm and munge, which it installs. Nothing else is written outside a
# temporary folder; Slurm's configuration, keys and ports are this script's own.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD

say() { printf 'slurm-test: %s\n' "$*"; }
die() { say "FAILED: $*"; tail -n 30 "$dir"/*.out "$dir"/log/*.log >&2 2>/dev/null || true; exit 1; }
[ "$(id -u)" = 0 ] || { say "not run: it needs root"; exit 0; }
if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null ||
    { say "not run: apt-get cannot install slurm-wlm and munge"; exit 0; }
fi
[ -x bin/gpupipe ] || { say "expected bin/gpupipe: make build"; exit 2; }

dir=$(mktemp -d)
declare -A node=() # the process of each node's daemon
others=()          # other processes
# ours PROCESS: it belongs to this test, and is no other one with the number of one that has ended.
ours() { grep -qsz "^TEST_DIR=$dir$" "/proc/$1/environ"; }
stop() {
  trap - ERR
  set +e
  exec 2>/dev/null
  scancel --signal=KILL --full --user=root
  kill -KILL "${node[@]}" "${others[@]}" && wait
  for p in "$dir"/members/*; do ours "${p##*/}" && kill -KILL "${p##*/}"; done
  rm -rf "$dir"
}
trap stop EXIT
trap 'die "line $LINENO: $BASH_COMMAND"' ERR
export SLURM_CONF=$dir/slurm.conf
host=$(hostname -s)
base=$((20000 + RANDOM % 20000))
mkdir -p "$dir"/{state,log,munge,bin,members}
chmod 755 "$dir" "$dir/munge"
head -c 1024 /dev/urandom >"$dir/munge/key" && chmod 400 "$dir/munge/key"
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=6
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/ctld.log
SlurmdLogFile=$dir/log/%n.log
SlurmctldPort=$base
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/linear
ReturnToService=2
KillWait=20
SchedulerParameters=sched_interval=1,default_queue_depth=8
CONF
for i in 1 2 3 4; do
  echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((base + i)) CPUs=1" >>"$SLURM_CONF"
done
echo "PartitionName=p Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP" >>"$SLURM_CONF"

munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
  --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" >/dev/null 2>&1 & others+=($!)
for _ in {1..50}; do [ -S "$dir/munge/socket" ] && break; sleep 0.1; done
slurmctld -D >/dev/null 2>&1 & others+=($!)
start_node() { slurmd -D -N "$1" >/dev/null 2>&1 & node[$1]=$!; }
for i in 1 2 3 4; do start_node "n$i"; done

# within SECONDS COMMAND: waits until the command succeeds.
within() {
  local left=$(($1 * 5))
  shift
  until "$@"; do
    [ $((left--)) -gt 0 ] || return 1
    sleep 0.2
  done
}
idle() { [ "$(sinfo -h -N -t idle -o %N | wc -l)" = "$1" ]; }
within 30 idle 4 || die "the nodes are not idle: $(sinfo -h -N)"
say "four nodes of Slurm $(sinfo --version | cut -d' ' -f2) are idle"

# Each member leaves the number of its process, its node and its job, so that the script can kill the processes of a node.
cat >"$dir/bin/gpupipe" <<'WRAP'
#!/bin/bash
[ "$1" != join ] || echo "$SLURMD_NODENAME $SLURM_JOB_ID" >"$TEST_DIR/members/$$"
exec "$TEST_REPO/bin/gpupipe" "$@"
WRAP
chmod +x "$dir/bin/gpupipe"
export PATH=$dir/bin:$PATH TEST_DIR=$dir TEST_REPO=$repo GPUPIPE_ADDRESS=127.0.0.1 GPUPIPE_DEVICE=cpu:0/1
cd "$dir"
for _ in {1..2000}; do echo "A text that a tiny model can learn by heart, line after line."; done >text.txt
# config NAME STEPS: writes NAME.yaml, the config of a run in a folder of its own
config() {
  cat >"$1.yaml" <<YAML
model: {vocab_size: 256, d_model: 32, n_layers: 3, n_heads: 2, d_ff: 64, seq_len: 32}
data: {train: text.txt, val_fraction: 0.01, tokenizer: bytes}
train: {steps: $2, batch_size: 8, microbatches: 4, save_every: 20, eval_every: 0}
run: {dir: runs/$1}
YAML
}
submit() { sbatch --parsable --output="$2.out" --nodes="$1" "$repo/examples/cluster/gpupipe.sbatch" "$2.yaml" --listen 127.0.0.1:0 --grace 3s --rejoin 1s "${@:3}"; }
state() { scontrol show job "$1" 2>/dev/null | sed -nE 's/.*JobState=([A-Z_]+).*/\1/p'; }
is() { [[ " ${*:2} " == *" $(state "$1") "* ]]; }
newest() { ls "runs/$1/checkpoints" 2>/dev/null | sed -n 's/^step-0*//p' | sort -n | tail -n 1; }
saved() { [ "$(newest "$1" || true)" -ge "$2" ] 2>/dev/null; }
# lose_node NODE: kills its daemon and its members.
lose_node() {
  { kill -KILL "${node[$1]}" && wait "${node[$1]}"; } 2>/dev/null || true
  for p in members/*; do if [[ $(cat "$p") == "$1 "* ]] && ours "${p##*/}"; then kill -KILL "${p##*/}"; fi; done
}
finished() { # finished JOB NAME STEPS
  within 90 is "$1" COMPLETED FAILED CANCELLED NODE_FAIL || die "job $1 ($2) is $(state "$1")"
  is "$1" COMPLETED || die "job $1 ($2) is $(state "$1")"
  saved "$2" "$3" || die "run $2 ended at $(newest "$2")"
  [ -z "$(ls -A .gpupipe-token* 2>/dev/null)" ] || die "a token is left"
}

config two 60
finished "$(submit 2 two)" two 60
say "submitted on two nodes: finished"

config lost 4000
job=$(submit 3 lost)
within 60 saved lost 20 || die "no checkpoint of the run of three nodes"
lose_node n3
before=$(newest lost)
within 60 grep -qs " is lost" lost.out || die "the coordinator does not say that a member is lost"
within 60 saved lost $((before + 100)) || die "the run does not go on without the node"
say "a node's daemon and processes killed: the run went on from step $before to $(newest lost) on the others"

start_node n3 # Slurm waits for it to confirm that the job is over
before=$(newest lost)
scontrol requeue "$job"
within 60 is "$job" PENDING || die "job $job is $(state "$job"), expected PENDING"
stopped=$(newest lost)
within 120 is "$job" RUNNING || die "job $job is $(state "$job") after its requeue: $(scontrol show job "$job" | grep -i -e reason -e StartTime)"
within 60 saved lost $((stopped + 20)) || die "the requeued job does not go on"
say "requeued: it went on from step $stopped, no step before $before is lost"

scancel "$job"
within 60 is "$job" CANCELLED || die "job $job is $(state "$job")"
stopped=$(newest lost)
within 30 idle 4 || die "the nodes are not idle after scancel: $(sinfo -h -N)"
job=$(submit 1 lost --set train.steps=$((stopped + 40)))
finished "$job" lost $((stopped + 40))
grep -q "step $stopped" lost.out || die "the job of one node does not say that it goes on from step $stopped"
say "cancelled at step $stopped, submitted again on one node: finished at $((stopped + 40))"

config apart 40
finished "$(submit 2 apart --set pipeline.replicas=2 --set pipeline.local_steps=4 --set pipeline.outer.late=2 --set pipeline.outer.wire=int4)" apart 40
say "two replicas that train on their own, a node each: finished"

# begun: how many replicas began after the others.
begun() { grep -cs "begins after step [0-9]* on .*, at the shared weights" runs/come/events.jsonl || true; }
more_begun() { [ "$(begun)" -gt "$1" ]; }
config come 100000
job=$(submit 3 come --set pipeline.replicas=3 --set pipeline.local_steps=4 --set pipeline.outer.late=2 --set pipeline.outer.wire=int4 \
  --set train.batch_size=6 --set train.microbatches=3)
within 60 saved come 20 || die "no checkpoint of the run of three replicas"
lose_node n3
within 60 grep -qs "the others go on without it" runs/come/events.jsonl || die "no replica is away"
late=$(begun) # a replica of the job itself, if its node was slow
more=$(sbatch --parsable --output=more.out --nodes=1 --wrap="srun gpupipe join --token-file .gpupipe-token.$job --device $GPUPIPE_DEVICE")
within 60 more_begun "$late" || die "no replica begins on another node"
grep -qx "n4 $more" members/* || die "the replica is not on the other node"
before=$(newest come)
within 60 saved come $((before + 100)) || die "the run does not go on with the other node"
start_node n3
scancel "$job"
within 60 is "$job" CANCELLED || die "job $job is $(state "$job")"
within 60 is "$more" COMPLETED FAILED || die "job $more is $(state "$more")"
grep -qs "stopped" more.out || die "the member of another job does not say why it ends"
if grep -q '"event":"restart"' runs/come/events.jsonl; then die "the run has begun again from a checkpoint"; fi
sed -nE 's/^\{"step":([0-9]+),.*/\1/p' runs/come/metrics.jsonl |
  awk '$1 != NR { bad = 1 } END { exit bad || NR == 0 }' || die "not each step is recorded once"
within 30 idle 4 || die "the nodes are not idle after scancel: $(sinfo -h -N)"
say "three replicas: a node's daemon and processes killed, a member of another job in its place: no step is done again"

config unknown 20
job=$(GPUPIPE_ADDRESS=name.that.does.not.resolve.invalid submit 2 unknown)
within 20 grep -qs "name.that.does.not.resolve.invalid:" unknown.out || die "members do not say what they try"
scancel "$job"
within 60 is "$job" CANCELLED || die "job $job is $(state "$job")"
say "a first node whose name does not resolve: members say what they try"
for p in members/*; do if ours "${p##*/}"; then die "process ${p##*/} is left"; fi; done
say "passed: no process and no token is left"
