package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// notes keeps what is noted.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *notes) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(&n.text, format+"\n", args...)
}

func (n *notes) all() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// liar is the node of a member that changes some of its messages.
type liar struct {
	*transport.Node
	change func(to string, h protocol.Header, payload [][]byte) (protocol.Header, [][]byte)
}

func (l liar) Send(to string, m transport.Message) error {
	h, err := protocol.Decode(m.Header)
	if err != nil {
		return err
	}
	h, m.Payload = l.change(to, h, m.Payload)
	m.Header = protocol.Encode(h)
	return l.Node.Send(to, m)
}

// joinLiar adds a member with a cpu to a host. The channel gets the error by which it ends.
func joinLiar(t *testing.T, h *coordinator.Host, change func(string, protocol.Header, [][]byte) (protocol.Header, [][]byte)) <-chan error {
	t.Helper()
	joined, err := identity.Join(t.Context(), identity.JoinOptions{Token: h.Token(), Name: "liar", Build: "test"})
	require.NoError(t, err)
	c := joined.Credentials
	m := member.New(member.Options{ID: c.Identity().ID, Coordinator: identity.CoordinatorID, OpenDevice: testdevice.Open, Note: t.Logf})
	lost := make(chan error, 1)
	client := control.NewClient(control.ClientOptions{Build: "test", Lost: func(err error) { lost <- err }})
	for _, name := range []string{protocol.Measure, protocol.Connect, protocol.Probe, protocol.Plan, protocol.Load, protocol.Release} {
		client.Handle(name, func(ctx context.Context, q []byte) ([]byte, error) { return m.Request(ctx, name, q) })
	}
	node, err := transport.Listen("127.0.0.1:0", transport.Options{Self: c.Identity().ID, TLS: c.TLS(), Identify: c.Identify,
		Receive: m.Receive, Lost: m.Lost, Sessions: client.Sessions()})
	require.NoError(t, err)
	m.Use(liar{node, change})
	info := protocol.Info{Host: "liar", Addresses: []string{fmt.Sprint("127.0.0.1:", node.Port())},
		Devices: []protocol.Device{{Name: "cpu:0/1", Info: device.Info{Name: "cpu:0/1"}}}}
	require.NoError(t, client.Connect(t.Context(), node, transport.Peer{ID: identity.CoordinatorID, Addresses: joined.Control},
		info.Encode()))
	t.Cleanup(func() { assert.NoError(t, errors.Join(client.Close(), m.Close(), node.Close())) })
	return lost
}

// A member that sends what no member sends is expelled, whichever process receives it. The run goes on with a spare
// member, to the bits of one process.
func TestLiarsAreExpelled(t *testing.T) {
	for name, change := range map[string]func(to string, h protocol.Header, payload [][]byte) (protocol.Header, [][]byte){
		"a result without losses": func(_ string, h protocol.Header, payload [][]byte) (protocol.Header, [][]byte) {
			if r, ok := h.(protocol.Result); ok && r.Batch == 2 && len(payload) > 0 {
				payload = [][]byte{payload[0][:2]}
			}
			return h, payload
		},
		"a stage message of another rank": func(to string, h protocol.Header, payload [][]byte) (protocol.Header, [][]byte) {
			if s, ok := h.(protocol.Stage); ok && s.Message.Batch == 2 {
				s.Message.From = 0
				h = s
			}
			return h, payload
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var said notes
			open := member.ProcessOptions{Options: member.Options{OpenDevice: testdevice.Open}, Devices: []string{"cpu:0/1"}}
			h, err := coordinator.NewHost(t.Context(), coordinator.HostOptions{Dir: dir + "/cluster", Address: "127.0.0.1:0",
				Hosts: []string{"127.0.0.1"}, Build: "test", Local: &open, Modelled: true, Note: said.note})
			require.NoError(t, err)
			defer func() { assert.NoError(t, h.Close()) }()
			joined := func(n int) {
				require.NoError(t, h.Wait(t.Context(), func(_, members int) bool { return members == n }))
			}
			joined(1)
			lost := joinLiar(t, h, change)
			joined(2)
			spare := open
			membership, err := identity.Join(t.Context(), identity.JoinOptions{Token: h.Token(), Name: "spare", Build: "test"})
			require.NoError(t, err)
			spare.Credentials, spare.Control, spare.Build, spare.Hosts = membership.Credentials, membership.Control, "test",
				[]string{"127.0.0.1"}
			p, err := member.Start(t.Context(), spare)
			require.NoError(t, err)
			defer func() { assert.NoError(t, p.Close()) }()
			joined(3)

			overrides := []string{"pipeline.stages=2", "pipeline.schedule=2bw"}
			c := traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/run")...)
			res, err := h.Train(t.Context(), func(int, bool) (config.Config, error) { return c, nil },
				train.Options{Report: &runtest.Notes{}})
			require.NoError(t, err)
			select {
			case err := <-lost:
				assert.ErrorContains(t, err, "the coordinator has expelled this member: it sent a malformed message")
			case <-time.After(time.Hour):
				assert.Fail(t, "the liar does not learn that it is expelled")
			}
			for _, m := range h.Members() {
				assert.NotEqual(t, "liar", m.Info.Host)
			}
			assert.Contains(t, said.all(), "is expelled")

			one, err := train.Run(t.Context(), traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/one",
				"pipeline.devices=[cpu:0/1]")...), train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}})
			require.NoError(t, err)
			want, got := traintest.Files(t, one.Checkpoint), traintest.Files(t, res.Checkpoint)
			for file := range want {
				assert.True(t, want[file] == got[file], file)
			}
		})
	}
}
