package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	homesSteps  = 48   // after these
	homesRest   = 16   // of these that are not measured: the processes are still there
	homesTokens = 8192 // of a step of one machine
)

// How fast do two machines of one core each train together, whose links have 20 ms and 20 Mbit up? make homes measures
// that by turns: one machine alone, two that train a model each at the same time, which share caches and memory, and
// two that train one model. The second is the most that the third can reach. It prints the processor time of a step,
// too, which other work on this computer changes less. It asserts no time: other processes may take the cores. With two
// machines a downlink of 100 Mbit is never full.
func TestTwoHomesBesideOne(t *testing.T) {
	tier.Rest(t)
	text := os.Getenv(homesVariable)
	if text == "" {
		t.Skip("make homes runs it")
	}
	turns, err := strconv.Atoi(text)
	require.NoError(t, err)
	var most, ofOne, ofEach, busy []float64
	for turn := range turns {
		one, apart, together := measureHomes(t, 1), measureHomes(t, 1, 1), measureHomes(t, 2)
		most, ofOne = append(most, apart.speed/one.speed), append(ofOne, together.speed/one.speed)
		ofEach, busy = append(ofEach, together.speed/(apart.speed/2)), append(busy, together.processor()/apart.processor())
		t.Logf("turn %d: one machine alone %v; two apart %v; two together %v", turn+1, one, apart, together)
	}
	t.Logf("%d turns, with standard errors: two apart %v times one alone, two together %v times one alone and %v times each of two apart; "+
		"processor time of the two, together over apart: %v", turns, summary(most), summary(ofOne), summary(ofEach), summary(busy))
}

// homesUse is what machines did while the first one made homesSteps − homesRest steps.
type homesUse struct {
	speed   float64   // tokens a second of all models
	seconds []float64 // processor time of each process in one of its steps
	network float64   // that of the emulated network in a step
}

// processor is the processor time of all machines in a step.
func (u homesUse) processor() (seconds float64) {
	for _, s := range u.seconds {
		seconds += s
	}
	return seconds
}

// String implements fmt.Stringer.
func (u homesUse) String() string {
	text := fmt.Sprintf("%.0f tokens/s,", u.speed)
	for _, s := range u.seconds {
		text += fmt.Sprintf(" %.1f ms", 1e3*s)
	}
	return text + fmt.Sprintf(" of processor time a step, the network %.1f ms", 1e3*u.network)
}

// String implements fmt.Stringer.
func (e estimate) String() string { return fmt.Sprintf("%.3f ± %.3f", e.mean, e.err) }

// measureHomes trains at the same time on one or two machines for each model.
func measureHomes(t *testing.T, machines ...int) (u homesUse) {
	t.Helper()
	var all, hosts []*process
	var dir string
	for _, n := range machines {
		var started []*process
		started, dir = startHomes(t, n)
		all, hosts = append(all, started...), append(hosts, started[0])
	}
	steps := func() (of []float64) { // by process
		for i, p := range hosts {
			_, step, _ := p.output()
			of = append(of, slices.Repeat([]float64{float64(step)}, machines[i])...)
		}
		return of
	}
	for _, p := range hosts {
		p.awaitStep(homesFirst)
	}
	first, used, own, began := steps(), processorTimes(t, all), processorTime(t, "self"), time.Now()
	hosts[0].awaitStep(homesFirst + homesSteps - homesRest)
	took := time.Since(began).Seconds()
	for i, last := range steps() {
		u.speed += (last - first[i]) * homesTokens / took
	}
	last, after := steps(), processorTimes(t, all)
	for i := range all {
		u.seconds = append(u.seconds, (after[i]-used[i])/(last[i]-first[i]))
	}
	u.network = (processorTime(t, "self") - own) / (last[0] - first[0])
	for _, p := range all {
		p.exit(exitOK)
	}
	code, out, errs := command("trace", dir)
	require.Equal(t, exitOK, code, errs)
	t.Log(regexp.MustCompile("(?m)^exchanges:.*").FindString(out))
	return u
}

func processorTimes(t *testing.T, all []*process) (seconds []float64) {
	for _, p := range all {
		seconds = append(seconds, processorTime(t, strconv.Itoa(p.cmd.Process.Pid)))
	}
	return seconds
}

// processorTime is how long a process has used processors so far, in seconds.
func processorTime(t *testing.T, process string) (seconds float64) {
	t.Helper()
	const perSecond, user, system = 100, 11, 12 // the system's unit, and the fields after the name of the program
	text, err := os.ReadFile("/proc/" + process + "/stat")
	require.NoError(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	for _, field := range []int{user, system} {
		ticks, err := strconv.ParseFloat(fields[field], 64)
		require.NoError(t, err)
		seconds += ticks / perSecond
	}
	return seconds
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
