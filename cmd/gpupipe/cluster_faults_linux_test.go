package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/slowlink"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Runs on several machines and what may happen to them. Most of the time they wait, so that several go on at once.
// Those that take longest begin first.
func TestClusterFaults(t *testing.T) {
	tier.Rest(t)
	var running sync.WaitGroup
	room := make(chan struct{}, 10)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"campaign", campaignOfKills}, {"cut link", waitsForALinkThatIsCut}, {"partition", trainsOneEpochInAPartition},
		{"fewer stages", goesOnWithFewerStages},
		{"stopped", waitsForAStoppedCoordinator}, {"spare", usesASpareMember}, {"full disk", endsOnAFullDisk},
		{"lossy link", trainsOverALossyLink},
		{"resumed", resumesWithOtherMembers}, {"refused", joinIsRefused}, {"resets", survivesResets}, {"interrupted", isInterrupted},
		{"hidden token", joinHidesTheToken}, {"expelled", expelsAMember}, {"encryption", encryptsAllThatItSends},
	} {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			t.Run(test.name, test.run)
		})
	}
	running.Wait()
}

// noticed is how soon a fault must be noted.
const noticed = 6 * time.Second

// network is what lies between the coordinator and its members: a proxy for each port.
type network []*slowlink.Proxy

// networkHost is the address at which members reach the coordinator through the network.
const networkHost = "127.0.0.2"

func newNetwork(r *testRun) (n network) {
	r.t.Helper()
	for i := range 3 {
		port := strconv.Itoa(r.port + i)
		var p *slowlink.Proxy
		require.Eventually(r.t, func() bool { // a process that is being started holds freePorts's sockets for a moment
			var err error
			p, err = slowlink.Listen(net.JoinHostPort(networkHost, port), net.JoinHostPort("127.0.0.1", port))
			return err == nil
		}, time.Minute, time.Millisecond)
		r.t.Cleanup(func() { assert.NoError(r.t, p.Close()) })
		n = append(n, p)
	}
	return n
}

// each calls a function for all proxies.
func (n network) each(f func(*slowlink.Proxy)) {
	for _, p := range n {
		f(p)
	}
}

const twoBW = "pipeline.schedule=2bw"

// A campaign kills members and coordinators at random and starts each again. GPUPIPE_CAMPAIGN is the number of kills of
// members, of coordinators, and the seed.
func campaignOfKills(t *testing.T) {
	members, coordinators, seed := 1, 1, uint64(1)
	if text := os.Getenv("GPUPIPE_CAMPAIGN"); text != "" {
		_, err := fmt.Sscanf(text, "%d,%d,%d", &members, &coordinators, &seed)
		require.NoError(t, err)
	}
	c := newCampaign(t, seed)
	for members+coordinators > 0 {
		if c.random.IntN(members+coordinators) < members {
			members--
			c.killMember()
		} else {
			coordinators--
			c.killCoordinator()
		}
	}
	c.finish()
}

// campaign is a run whose processes are killed.
type campaign struct {
	*testRun
	random  *rand.Rand
	host    *process
	token   string
	names   []string
	members []*process
	pending int // kills since the last progress
}

func newCampaign(t *testing.T, seed uint64) *campaign {
	c := &campaign{testRun: newTestRun(t, 1_000_000, twoBW, "lr.schedule=constant"), random: rand.New(rand.NewPCG(seed, 0)),
		names: []string{"a", "b"}}
	c.host = c.testRun.host("--device", "cpu:0/1", "--members", "2")
	c.token = c.host.token()
	for _, name := range c.names {
		c.members = append(c.members, c.join(c.token, name))
	}
	c.host.awaitStep(40)
	return c
}

// pause waits for a random time. After two kills it waits until the run has made progress: faults count towards
// pipeline.restarts as long as no checkpoint is written.
func (c *campaign) pause() {
	if c.pending++; c.pending > 2 {
		_, step, _ := c.host.output()
		c.host.awaitStep(step + 60)
		c.pending = 0
	}
	time.Sleep(time.Duration(c.random.Float64() * float64(3*time.Second)))
}

func (c *campaign) killMember() {
	c.t.Helper()
	c.pause()
	i := c.random.IntN(len(c.members))
	_, step, _ := c.host.output()
	c.t.Logf("member %s is killed at step %d", c.names[i], step)
	c.members[i].kill()
	c.members[i] = c.join(c.token, c.names[i])
}

// killCoordinator also checks that no checkpoint is lost.
func (c *campaign) killCoordinator() {
	c.t.Helper()
	c.pause()
	require.Eventually(c.t, func() bool { return len(c.checkpoints()) > 0 }, time.Minute, time.Millisecond)
	_, step, _ := c.host.output()
	c.t.Logf("the coordinator is killed at step %d", step)
	c.host.kill()
	before := c.checkpoints()
	c.host = launch(c.t, nil, "host", c.dir, "--resume", "--json", "--device", "cpu:0/1", "--members", "2", "--listen",
		"127.0.0.1:"+strconv.Itoa(c.port))
	c.host.await(fmt.Sprintf(`"first_step":%d,`, before[len(before)-1]))
	c.pending = 0
}

// checkpoints lists the steps of the checkpoints, in order.
func (r *testRun) checkpoints() (steps []int) {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, "checkpoints"))
	require.NoError(r.t, err)
	for _, e := range entries {
		if step, err := strconv.Atoi(strings.TrimPrefix(e.Name(), "step-")); err == nil { // not one that was being written
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps
}

// finish stops the run and compares it with one in one process.
func (c *campaign) finish() {
	_, step, _ := c.host.output()
	c.host.awaitStep(step + 40)
	c.host.signal(os.Interrupt)
	text := c.host.exit(exitInterrupted)
	for _, m := range c.members {
		m.exit(exitInterrupted)
	}
	m := regexp.MustCompile(`stopped after step (\d+);`).FindStringSubmatch(text)
	require.NotNil(c.t, m, text)
	step, err := strconv.Atoi(m[1])
	require.NoError(c.t, err)
	c.t.Logf("stopped after step %d", step)
	eachStepOnce(c.t, c.dir, step)
	c.set = append(c.set, fmt.Sprint("train.steps=", step))
	equalBits(c.t, c.alone(3), c.dir, step)
}

// Connections that are reset in the middle of a message are made again, and the run goes on without a rollback.
func survivesResets(t *testing.T) {
	const steps = 160
	r := newTestRun(t, steps, twoBW)
	n := newNetwork(r)
	host := r.host("--device", "cpu:0/1", "--address", networkHost)
	m := r.join(host.token(), "m")
	for step := 20; step <= 120; step += 20 {
		host.awaitStep(step)
		n.each(func(p *slowlink.Proxy) { p.ResetAfter(3000) })
	}
	text := host.exit(exitOK)
	assert.NotContains(t, text, "restarting")
	m.exit(exitOK)
	equalBits(t, r.alone(2), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
}

// A member on the other side of a partition is lost, and cannot train on when it is back: one epoch trains.
func trainsOneEpochInAPartition(t *testing.T) {
	const steps = 200
	r := newTestRun(t, steps, twoBW)
	n := newNetwork(r)
	host := r.host("--device", "cpu:0/1", "--device", "cpu:0/1", "--address", networkHost, "--grace", "5s", "--rejoin", "1s")
	m := r.join(host.token(), "m")
	host.awaitStep(40)
	n.each((*slowlink.Proxy).Hang)
	host.awaitWithin(noticed, `m-\w+ does not answer`)
	host.await(`the members have 2 devices, expected 3, one for each rank; going on with 2`)
	n.each((*slowlink.Proxy).Resume)
	m.await(`joining the run again`)
	host.exit(exitOK)
	m.exit(exitOK)
	equalBits(t, r.alone(3), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
}

// A member that stands still is lost. Without a spare one, the run goes on with fewer stages and as many stale
// microbatches.
func goesOnWithFewerStages(t *testing.T) {
	const steps = 160
	r := newTestRun(t, steps, twoBW)
	host := r.host("--device", "cpu:0/1", "--members", "2", "--grace", "5s", "--rejoin", "1s")
	token := host.token()
	a, b := r.join(token, "a"), r.join(token, "b")
	host.awaitStep(40)
	b.signal(syscall.SIGSTOP)
	host.awaitWithin(noticed, `b-\w+ does not answer`)
	host.await(`the members have 2 devices, expected 3, one for each rank; going on with 2`)
	host.exit(exitOK)
	a.exit(exitOK)
	b.signal(syscall.SIGCONT)
	b.kill()
	equalBits(t, r.alone(3), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
}

// A member that is killed is replaced by one that has no rank.
func usesASpareMember(t *testing.T) {
	const steps = 160
	r := newTestRun(t, steps, twoBW, "pipeline.stages=2")
	host := r.host("--device", "cpu:0/1", "--members", "2", "--grace", "5s")
	token := host.token()
	members := map[string]*process{"a": r.join(token, "a"), "b": r.join(token, "b")}
	lost := host.await(`"name":"stage \d","member":"([ab])-`)[1]
	spare := map[string]string{"a": "b", "b": "a"}[lost]
	host.awaitStep(20)
	members[lost].kill()
	host.awaitWithin(noticed, lost+`-\w+ does not answer`)
	host.await(`restarted, going on from step`)
	host.exit(exitOK)
	members[spare].exit(exitOK)
	equalBits(t, r.alone(2), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
}

// A coordinator that stands still for a while goes on where it was, and so do its members.
func waitsForAStoppedCoordinator(t *testing.T) {
	const steps = 160
	r := newTestRun(t, steps, twoBW)
	host := r.host("--device", "none", "--members", "2")
	token := host.token()
	a, b := r.join(token, "a"), r.join(token, "b")
	host.awaitStep(40)
	host.signal(syscall.SIGSTOP)
	time.Sleep(7 * time.Second)
	host.signal(syscall.SIGCONT)
	text := host.exit(exitOK)
	assert.NotContains(t, text, "restarting")
	a.exit(exitOK)
	b.exit(exitOK)
	equalBits(t, r.alone(2), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
}

// A coordinator that cannot write ends the run, says why, and leaves its checkpoints as they are.
func endsOnAFullDisk(t *testing.T) {
	const steps = 200
	r := newTestRun(t, steps, twoBW)
	host := r.host("--device", "cpu:0/1")
	m := r.join(host.token(), "m")
	host.awaitStep(40)
	require.Eventually(t, func() bool { return len(r.checkpoints()) > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, unix.Prlimit(host.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: unix.RLIM_INFINITY}, nil))
	text := host.exit(exitFailure)
	assert.Contains(t, text, "file too large")
	assert.Contains(t, text, r.dir)
	assert.Regexp(t, "file too large; (the checkpoint of step [0-9]+ is kept; )?write ", m.exit(exitFailure))
	code, out, errs := command("eval", r.dir, "--device", "cpu:0/1")
	assert.Equal(t, exitOK, code, out+errs)
	host = r.host("--device", "cpu:0/1", "--resume")
	m = r.join(host.token(), "m")
	host.exit(exitOK)
	m.exit(exitOK)
	equalBits(t, r.alone(2), r.dir, steps)
}

// A run that is stopped goes on with other numbers of members, and then in one process, to the bits of a run in one
// process that never stopped.
func resumesWithOtherMembers(t *testing.T) {
	r := newTestRun(t, 8, twoBW, "train.save_every=8", "model.n_layers=4", "lr.schedule=constant", "pipeline.stale_microbatches=3")
	source, set := r.config, slices.Clone(r.set)
	steps := 0
	for _, members := range []int{4, 2, 3} {
		steps += 8
		r.set = append(r.set, fmt.Sprint("train.steps=", steps))
		args := []string{"--device", "cpu:0/1", "--members", strconv.Itoa(members - 1)}
		if steps > 8 {
			r.config, args = r.dir, append(args, "--resume")
		}
		host := r.host(args...)
		token := host.token()
		for i := range members - 1 {
			defer r.join(token, fmt.Sprint("m", i)).exit(exitOK)
		}
		text := host.exit(exitOK)
		assert.Contains(t, text, fmt.Sprintf("stages: %d", members))
	}
	code, _, errs := command("train", r.dir, "--resume", "--device", "cpu:0/1", "--no-tune", "--set", "train.steps=32")
	require.Equal(t, exitOK, code, errs)
	eachStepOnce(t, r.dir, 32)
	r.config, r.set = source, append(set, "train.steps=32")
	equalBits(t, r.alone(4), r.dir, 32)
}

// Ctrl-C on a member leaves the run, which waits for another. Ctrl-C on the coordinator saves and ends all members.
func isInterrupted(t *testing.T) {
	r := newTestRun(t, 100_000, twoBW)
	host := r.host("--device", "cpu:0/1")
	token := host.token()
	m := r.join(token, "m")
	host.awaitStep(100)
	m.signal(os.Interrupt)
	m.exit(exitInterrupted)
	host.await(`m-\w+ has left`)
	m = r.join(token, "m")
	host.await(`restarted, going on from step`)
	host.awaitStep(200)
	host.signal(os.Interrupt)
	text := host.exit(exitInterrupted)
	assert.Equal(t, 1, strings.Count(text, " has left\n"), text)
	assert.NotRegexp(t, `is lost|has closed|broke|no connection`, text, "one message for a member that leaves")
	code, out, errs := command("members", r.dir)
	assert.Equal(t, exitOK, code, errs)
	assert.Regexp(t, `\Athe run ended \d+s ago; its members were:\nmember .*\n(local-\w+ .* ended\nm-\w+ .* ended\n)`, out)
	assert.Regexp(t, `stopped after step \d+; to continue: gpupipe host .* --resume`, text)
	assert.Contains(t, m.exit(exitInterrupted), "the run was stopped on the coordinator")
	for i := range 3 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port+i)))
		require.NoError(t, err, "a port is still in use")
		require.NoError(t, l.Close())
	}
}
