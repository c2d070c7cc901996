package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/lossylink"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// remoteRun is a run whose coordinator and members are hosts of an emulated network, the coordinator the first.
type remoteRun struct {
	*testRun
	network *lossylink.Network
}

func newRemoteRun(t *testing.T, o lossylink.Options, steps int, set ...string) *remoteRun {
	t.Helper()
	if lossylink.Omitted() {
		t.Skip("omitted: NAMESPACES=none")
	}
	r := &remoteRun{newTestRun(t, steps, set...), lossylink.New(o)}
	t.Cleanup(r.network.Close)
	return r
}

// launch starts this program as a host of the network.
func (r *remoteRun) launch(number int, environment []string, args ...string) *process {
	r.t.Helper()
	return launchBy(r.t, func(c *exec.Cmd) error { return r.network.Start(number, c) }, environment, args...)
}

func (r *remoteRun) host(args ...string) *process {
	r.t.Helper()
	return r.launch(1, nil, append(r.overridden("host", r.config, "--json", "--device", "cpu:0/1"), args...)...)
}

func (r *remoteRun) join(number int, token string) *process {
	r.t.Helper()
	return r.launch(number, []string{"GPUPIPE_TOKEN=" + token}, "join", "--name", fmt.Sprint("m", number), "--device", "cpu:0/1")
}

// A link that loses one packet in a hundred costs time, but no step.
func trainsOverALossyLink(t *testing.T) {
	const steps = 100
	r := newRemoteRun(t, lossylink.Options{Delay: 10 * time.Millisecond, Loss: 0.01, Seed: 1}, steps, twoBW,
		"pipeline.stale_microbatches=3")
	host := r.host()
	m := r.join(2, host.token())
	text := host.exit(exitOK)
	assert.NotContains(t, text, "restarting")
	assert.NotContains(t, text, "does not answer")
	m.exit(exitOK)
	equalBits(t, r.alone(2), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
	sent, lost := r.network.Packets()
	assert.InDelta(t, 0.01, float64(lost)/float64(sent), 0.003, "%d of %d packets", lost, sent)
}

// The coordinator finds the latency and the bandwidth of a link, and chooses a depth that hides the latency.
func TestClusterMeasuresALink(t *testing.T) {
	tier.Rest(t)
	r := newRemoteRun(t, lossylink.Options{Delay: 10 * time.Millisecond, Bandwidth: 20e6}, 8, twoBW, "pipeline.depth=auto")
	host := r.host()
	m := r.join(2, host.token())
	found := host.await(`the slowest link has ([\d.]+) ms and ([\d.]+) Mbit/s; pipeline.depth: [1-9]`)
	host.exit(exitOK)
	m.exit(exitOK)
	for i, limits := range [][2]float64{{10, 30}, {8, 20.5}} {
		x, err := strconv.ParseFloat(found[1+i], 64)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, x, limits[0], found[0])
		assert.LessOrEqual(t, x, limits[1], found[0])
	}
}

// After ten seconds in which a link loses all packets, TCP waits longer and longer before it sends again. The run goes
// on without a rollback.
func waitsForALinkThatIsCut(t *testing.T) {
	const steps = 100
	r := newRemoteRun(t, lossylink.Options{Delay: 5 * time.Millisecond}, steps, twoBW, "pipeline.stale_microbatches=3")
	host := r.host()
	m := r.join(2, host.token())
	host.awaitStep(40)
	r.network.Cut()
	host.awaitWithin(noticed, `m2-\w+ does not answer`)
	time.Sleep(10*time.Second - noticed)
	r.network.Restore()
	host.await(`m2-\w+ answers again`)
	text := host.exit(exitOK)
	assert.NotContains(t, text, "restarting")
	m.exit(exitOK)
	equalBits(t, r.alone(2), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
}

// flow is one direction of a TCP connection.
type flow struct{ from, to netip.AddrPort }

// wiretap puts together what all TCP connections of a network carry. Packets must not be lost.
type wiretap struct {
	t     *testing.T
	next  map[flow]uint32 // sequence number
	bytes map[flow][]byte
}

// capture takes a packet.
func (w *wiretap) capture(packet []byte) {
	s, ok := lossylink.Parse(packet)
	if !ok {
		assert.Fail(w.t, "found a packet that is not TCP", "% x", packet)
		return
	}
	f := flow{s.From, s.To}
	if s.Opens {
		w.next[f], w.bytes[f] = s.Sequence+1, nil
		return
	}
	known := int(w.next[f] - s.Sequence) // bytes of the payload that were sent before
	if len(s.Payload) > known && assert.GreaterOrEqual(w.t, known, 0, "bytes are missing from %v", f) {
		w.next[f] += uint32(len(s.Payload) - known)
		w.bytes[f] = append(w.bytes[f], s.Payload[known:]...)
	}
}

// applicationData is the size of the records of TLS that carry encrypted data. All bytes must be those of records.
func applicationData(t *testing.T, content []byte) (size int) {
	t.Helper()
	const header, changeCipherSpec, handshake, data = 5, 20, 22, 23
	for n := 0; len(content) >= header; n++ {
		end := header + int(content[3])<<8 + int(content[4])
		require.Equal(t, byte(3), content[1], "the version of record %d", n)
		switch content[0] {
		case data:
			size += end - header
		case handshake:
			require.Zero(t, n, "a handshake that is not encrypted after the first record")
		default:
			require.Equal(t, byte(changeCipherSpec), content[0], "the type of record %d", n)
		}
		content = content[min(end, len(content)):]
	}
	require.Empty(t, content)
	return size
}

// Nothing that is secret, no text, no config and no tensor passes the network in a form that can be read.
func encryptsAllThatItSends(t *testing.T) {
	const steps = 8
	w := &wiretap{t, map[flow]uint32{}, map[flow][]byte{}}
	r := newRemoteRun(t, lossylink.Options{Capture: w.capture}, steps, twoBW)
	host := r.host()
	token := host.token()
	m := r.join(2, token)
	id := host.await(`(m2-\w+) joined`)[1]
	host.exit(exitOK)
	m.exit(exitOK)
	r.network.Close()

	weights, err := os.ReadFile(filepath.Join(r.dir, "checkpoints", fmt.Sprint("step-", steps), "model.safetensors"))
	require.NoError(t, err)
	secret, err := base64.RawURLEncoding.DecodeString(secretOf(token))
	require.NoError(t, err)
	var tokens []byte
	for _, b := range []byte("the cat ") {
		tokens = binary.LittleEndian.AppendUint32(tokens, uint32(b))
	}
	plain := map[string][]byte{"secret": secret, "secret as text": []byte(secretOf(token)), "text": []byte("the cat"), "tokens": tokens,
		"config":            []byte("d_model"),
		"folder of the run": []byte(r.dir), "ID of the member": []byte(id), "weights": weights[len(weights)-32:]}
	sizes := map[uint16]int{} // by port of a server
	for f, content := range w.bytes {
		for name, pattern := range plain {
			assert.False(t, bytes.Contains(content, pattern), "%v has the %s", f, name)
		}
		sizes[min(f.from.Port(), f.to.Port())] += applicationData(t, content)
	}
	for port, least := range map[uint16]int{7433: 1000, 7434: 105_000, 7435: 50_000} { // join, sessions, tensors of the coordinator's ranks
		assert.Greater(t, sizes[port], least, "port %d", port)
	}
}
