package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/lossylink"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/require"
)

// homesVariable names the environment variable with the number of turns.
const homesVariable = "GPUPIPE_HOMES"

const (
	homesPeriod = 16   // local steps
	homesLate   = 6    // steps
	homesFirst  = 32   // steps until all replicas train and exchange
	homesSteps  = 64   // that are measured
	homesTokens = 2048 // of a step of one machine
)

// How fast do two machines of one core each train together, whose links have 20 ms and 20 Mbit up? make homes measures
// that by turns: one machine alone, two that train a model each at the same time, which share caches and memory, and
// two that train one model. It asserts no time: other processes may take the cores. With two machines a downlink of 100
// Mbit is never full.
func TestTwoHomesBesideOne(t *testing.T) {
	tier.Rest(t)
	text := os.Getenv(homesVariable)
	if text == "" {
		t.Skip("make homes runs it")
	}
	turns, err := strconv.Atoi(text)
	require.NoError(t, err)
	var ofOne, ofEach []float64
	for turn := range turns {
		one, apart, together := homesSpeed(t, 1), homesSpeed(t, 1, 1), homesSpeed(t, 2)
		ofOne, ofEach = append(ofOne, together/one), append(ofEach, together/(apart/2))
		t.Logf("turn %d: one machine alone %.0f tokens/s, two apart %.0f each, two together %.0f", turn+1, one, apart/2, together)
	}
	a, b := summary(ofOne), summary(ofEach)
	t.Logf("two together: %.3f ± %.3f times one alone, %.3f ± %.3f times each of two apart (standard errors of %d turns)", a.mean, a.err, b.mean,
		b.err, turns)
}

// homesSpeed trains at the same time on one or two machines for each model, and returns the tokens a second of all
// models while the first one trains the last homesSteps.
func homesSpeed(t *testing.T, machines ...int) float64 {
	t.Helper()
	var all, hosts []*process
	var dir string
	for _, n := range machines {
		var started []*process
		started, dir = startHomes(t, n)
		all, hosts = append(all, started...), append(hosts, started[0])
	}
	done := func() (tokens float64) {
		for i, p := range hosts {
			_, step, _ := p.output()
			tokens += float64(step * homesTokens * machines[i])
		}
		return tokens
	}
	for _, p := range hosts {
		p.awaitStep(homesFirst)
	}
	before, began := done(), time.Now()
	hosts[0].awaitStep(homesFirst + homesSteps)
	speed := (done() - before) / time.Since(began).Seconds()
	for _, p := range all {
		p.exit(exitOK)
	}
	code, out, errs := command("trace", dir)
	require.Equal(t, exitOK, code, errs)
	t.Log(regexp.MustCompile("(?m)^exchanges:.*").FindString(out))
	return speed
}

// startHomes starts a run on one or two machines, the coordinator first. dir is its folder.
func startHomes(t *testing.T, machines int) (processes []*process, dir string) {
	t.Helper()
	replicas := fmt.Sprintf("pipeline={stages: 1, replicas: %d, local_steps: %d, outer: {wire: int4, late: %d}}", machines,
		homesPeriod*(machines-1), homesLate*(machines-1))
	steps := homesFirst + homesSteps
	r := newRemoteRun(t, lossylink.Options{Delay: 20 * time.Millisecond, Bandwidth: 20e6}, steps,
		"model={vocab_size: 256, d_model: 128, n_layers: 4, n_heads: 4, d_ff: 352, seq_len: 64}",
		fmt.Sprintf("train={steps: %d, batch_size: %d, microbatches: %d, eval_every: 0, save_every: 0}", steps, homesTokens/64*machines, machines),
		"optimizer={name: muon, lr: 0.02}", "lr.warmup=20", replicas)
	if machines == 1 {
		return []*process{r.launch(1, nil, r.overridden("train", r.config, "--json", "--device", "cpu:0/1", "--no-tune")...)}, r.dir
	}
	host := r.host("--members", "1")
	return []*process{host, r.join(2, host.token())}, r.dir
}
