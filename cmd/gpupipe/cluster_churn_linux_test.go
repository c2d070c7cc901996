package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// churnVariable names the environment variable with the number of events of each run.
const churnVariable = "GPUPIPE_CHURN"

// Replicas that seldom talk train to the loss of an undisturbed run, though their members are killed, stand still,
// leave and join, and the coordinator is killed. make churn runs it, for minutes of both cores.
func TestReplicasLearnTheSameUnderChurn(t *testing.T) {
	tier.Rest(t)
	text := os.Getenv(churnVariable)
	if text == "" {
		t.Skip("make churn runs it")
	}
	const seeds = 4
	events, err := strconv.Atoi(text)
	require.NoError(t, err)
	churned, calm := make([]float64, seeds), make([]float64, seeds)
	t.Run("runs", func(t *testing.T) {
		for i := range seeds {
			t.Run(fmt.Sprint("seed ", i+1), func(t *testing.T) {
				t.Parallel()
				c := newChurn(t, events, uint64(i+1))
				churned[i] = c.run()
				calm[i] = validationLoss(t, c.alone(1), c.steps)
			})
		}
	})
	a, b := summary(churned), summary(calm)
	t.Logf("validation loss after %d events each %.4f ± %.4f (standard error), undisturbed %.4f ± %.4f",
		events, a.mean, a.err, b.mean, b.err)
	t.Log(churned, calm)
	assert.LessOrEqual(t, a.mean-b.mean, b.err, "the standard error of the undisturbed runs")
}

// estimate is a mean and its standard error.
type estimate struct{ mean, err float64 }

func summary(all []float64) (m estimate) {
	n := float64(len(all))
	for _, x := range all {
		m.mean += x / n
	}
	for _, x := range all {
		m.err += (x - m.mean) * (x - m.mean) / (n - 1) / n
	}
	m.err = math.Sqrt(m.err)
	return m
}

// validationLoss is that of a run's last step.
func validationLoss(t *testing.T, dir string, step int) float64 {
	t.Helper()
	records, err := metrics.Read(filepath.Join(dir, "metrics.jsonl"))
	require.NoError(t, err)
	last := records[len(records)-1]
	require.Equal(t, step, last.Step)
	require.Contains(t, last.Values, "val_loss")
	return last.Values["val_loss"]
}

// churn is a run of replicas whose processes come and go.
type churn struct {
	*testRun
	random  *rand.Rand
	events  int
	steps   int
	host    *process
	token   string
	members []*process // nil: it is away
	joined  int        // members so far
}

const (
	churnReplicas = 4  // one of them in the coordinator's process
	churnPeriod   = 8  // steps
	churnApart    = 24 // steps between two events
	churnCalm     = 1400
)

func newChurn(t *testing.T, events int, seed uint64) *churn {
	c := &churn{random: rand.New(rand.NewPCG(seed, 7)), events: events, steps: events*churnApart + churnCalm}
	c.testRun = newTestRun(t, c.steps, "data={train: [../../docs/*.md], val_fraction: 0.05, tokenizer: bytes}",
		"model={vocab_size: 256, d_model: 48, n_layers: 2, n_heads: 3, d_ff: 128, seq_len: 64}",
		fmt.Sprintf("train={steps: %d, batch_size: 32, microbatches: 4, save_every: 50, eval_every: %[1]d, eval_batches: 20}", c.steps),
		"optimizer={name: muon, lr: 0.02}", fmt.Sprint("init.seed=", seed), fmt.Sprint("data.seed=", seed), "lr.warmup=20",
		fmt.Sprintf("pipeline={replicas: %d, stages: 1, local_steps: %d, outer: {wire: int4, late: 2}}", churnReplicas, churnPeriod))
	c.host = c.testRun.host("--device", "cpu:0/1", "--members", strconv.Itoa(churnReplicas-1), "--grace", "5s")
	c.token = c.host.token()
	for range churnReplicas - 1 {
		c.members = append(c.members, c.enter())
	}
	return c
}

// enter starts a member, as on a machine that was not there before.
func (c *churn) enter() *process {
	c.joined++
	return c.join(c.token, fmt.Sprint("m", c.joined))
}

// run trains while processes come and go, and returns the validation loss of the last step.
func (c *churn) run() float64 {
	for n := range c.events {
		_, step, _ := c.host.output()
		c.host.awaitStep(max(step, churnApart*(n+1)))
		c.disturb()
	}
	for i, m := range c.members {
		if m == nil {
			c.members[i] = c.enter()
		}
	}
	for step := c.events * churnApart; step < c.steps; step += churnApart { // all of them take longer than a process may hang
		c.host.awaitStep(step)
	}
	c.host.exit(exitOK)
	for _, m := range c.members {
		m.exit(exitOK)
	}
	eachStepOnce(c.t, c.dir, c.steps)
	for _, step := range c.checkpoints() {
		code, out, errs := command("eval", c.dir, "--device", "cpu:0/1", "--step", fmt.Sprint(step))
		assert.Equal(c.t, exitOK, code, out+errs)
	}
	return validationLoss(c.t, c.dir, c.steps)
}

// disturb does something to the run.
func (c *churn) disturb() {
	c.t.Helper()
	i := c.random.IntN(len(c.members))
	m := c.members[i]
	_, step, _ := c.host.output()
	kind := c.random.IntN(10)
	switch {
	case kind == 9 && len(c.checkpoints()) > 0:
		c.t.Logf("step %d: the coordinator is killed", step)
		c.killHost()
	case m == nil:
		c.t.Logf("step %d: a member joins", step)
		c.members[i] = c.enter()
	case kind < 4:
		c.t.Logf("step %d: member %d is killed, and started again", step, i)
		m.kill()
		c.members[i] = c.enter()
	case kind < 6:
		const asleep = 7 * time.Second // longer than a lease
		c.t.Logf("step %d: member %d stands still", step, i)
		m.signal(syscall.SIGSTOP)
		time.Sleep(asleep)
		m.signal(syscall.SIGCONT)
	default:
		c.t.Logf("step %d: member %d leaves", step, i)
		m.until(hanging, "a first line", func(text string, _ int) bool { return text != "" }) // before it, a signal kills the process
		m.signal(os.Interrupt)
		m.exit(exitInterrupted)
		c.members[i] = nil
	}
}

// killHost kills the coordinator and starts it again. No checkpoint is lost.
func (c *churn) killHost() {
	c.t.Helper()
	c.host.kill()
	before := c.checkpoints()
	here := 0
	for _, m := range c.members {
		if m != nil {
			here++
		}
	}
	c.host = launch(c.t, nil, "host", c.dir, "--resume", "--json", "--device", "cpu:0/1", "--members", strconv.Itoa(here), "--grace", "5s",
		"--listen", "127.0.0.1:"+strconv.Itoa(c.port))
	c.host.await(fmt.Sprintf(`"first_step":%d,`, before[len(before)-1]))
}
