// Command tab is the program of the page of gpupipe host --browser, built for GOOS=js. It runs in a worker of the page,
// joins the run whose token the page has, and computes with the browser's WebGPU.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall/js"
	"time"

	"github.com/coder/websocket"
	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpujs"
)

// main serves the worker: it calls join with the page's token.
func main() {
	leave := make(chan struct{}, 1)
	js.Global().Set("join", js.FuncOf(func(_ js.Value, args []js.Value) any {
		server, token := args[0].String(), args[1].String()
		go func() {
			if err := run(server, token, leave); err != nil {
				post(message{Kind: "failed", Text: err.Error()})
				return
			}
			post(message{Kind: "ended"})
		}()
		return nil
	}))
	js.Global().Set("leave", js.FuncOf(func(js.Value, []js.Value) any {
		select {
		case leave <- struct{}{}:
		default:
		}
		return nil
	}))
	js.Global().Call("programReady")
	select {}
}

// message is what the worker posts to its page.
type message struct {
	Kind   string  `json:"kind"`             // joined, note, status, ended, failed
	Text   string  `json:"text,omitempty"`   // note, failed
	Member string  `json:"member,omitempty"` // joined: its ID
	Device string  `json:"device,omitempty"` // joined
	Secret string  `json:"secret,omitempty"` // joined: what the page posts to /leave when it is closed
	Status *status `json:"status,omitempty"`
}

// status is what a tab computes.
type status struct {
	Ranks         []int `json:"ranks"`
	Stages        int   `json:"stages"`
	Begun         bool  `json:"begun"`
	Steps         int   `json:"steps"`
	Microbatches  int   `json:"microbatches"` // of a step
	BytesSent     int64 `json:"bytesSent"`    // in the epoch
	BytesReceived int64 `json:"bytesReceived"`
}

func post(m message) {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	js.Global().Call("postMessage", string(text))
}

func note(format string, args ...any) {
	post(message{Kind: "note", Text: fmt.Sprintf(format, args...)})
}

// run joins a run and computes for it until it ends or the page leaves.
func run(server, text string, leave <-chan struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	token, err := identity.ParseToken(text)
	if err != nil {
		return err
	}
	token.Addresses = token.Addresses[:1] // there is one way to the coordinator
	at := server + "connect/"
	joining := identity.JoinOptions{Token: token, Name: "tab", Build: version.String(),
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, at+"join") }}
	m, err := identity.Join(ctx, joining)
	if err != nil {
		return err
	}
	secret := rand.Text()
	p, err := member.Start(ctx, member.ProcessOptions{
		Options:     member.Options{OpenDevice: open, Note: note},
		Credentials: m.Credentials, Control: []string{coordinatorAddress}, Build: version.String(), Devices: []string{""},
		Tab: protocol.TabHash(secret), OnlyDials: true,
		Network: transport.Network{Listener: newListener(at + "accept/" + secret),
			Dial: func(ctx context.Context, address string) (net.Conn, error) {
				if address == coordinatorAddress {
					address = "coordinator"
				}
				return dial(ctx, at+address)
			}},
		Renew: func(ctx context.Context) error { return identity.Renew(ctx, m.Credentials, joining) }})
	if err != nil {
		return err
	}
	post(message{Kind: "joined", Member: m.Credentials.Identity().ID, Device: deviceOf(p), Secret: secret})
	go func() {
		<-leave
		cancel()
	}()
	go report(ctx, p)
	err = p.Wait(ctx)
	var end *control.EndedError
	if ctx.Err() != nil || errors.As(err, &end) && (end.Text == "") {
		err = nil
	}
	return cmp.Or(err, p.Close())
}

// coordinatorAddress stands for the coordinator where host:port is expected.
const coordinatorAddress = "coordinator:1"

// dial opens a WebSocket as a stream of bytes.
func dial(ctx context.Context, url string) (net.Conn, error) {
	c, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(context.Background(), c, websocket.MessageBinary), nil
}

// listener accepts connections of other tabs, one after the other: it waits on a WebSocket until the proxy has one.
type listener struct {
	url   string
	ctx   context.Context // until Close
	close context.CancelFunc
}

func newListener(url string) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	return &listener{url, ctx, cancel}
}

// Accept returns the next connection. It dials again for as long as it cannot wait.
func (l *listener) Accept() (net.Conn, error) {
	for l.ctx.Err() == nil {
		if c, err := l.wait(); err == nil {
			return c, nil
		}
		sleep.For(acceptPause, l.ctx.Done())
	}
	return nil, net.ErrClosed
}

// acceptPause is the time between two attempts to wait for connections.
const acceptPause = 500 * time.Millisecond

func (l *listener) wait() (net.Conn, error) {
	c, err := dial(l.ctx, l.url)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(l.ctx, func() { _ = c.Close() })
	defer stop()
	mark := make([]byte, 1)
	if _, err := io.ReadFull(c, mark); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func (l *listener) Close() error {
	l.close()
	return nil
}

func (l *listener) Addr() net.Addr { return address{} }

// address is the address of a tab, which has none.
type address struct{}

func (address) Network() string { return "websocket" }
func (address) String() string  { return "tab" }

// open opens the browser's GPU. It has one, whatever its name.
func open(name string) (device.Device, error) {
	if name != "" && !strings.HasPrefix(name, "webgpu") {
		return nil, fmt.Errorf("found device %q, expected webgpu:0: a browser has no other", name)
	}
	return webgpujs.Open(webgpujs.Options{})
}

func deviceOf(p *member.Process) string {
	for _, d := range p.Devices() {
		return fmt.Sprintf("%s (%s)", d.Info.Adapter, d.Info.Kind)
	}
	return ""
}

// statusPause is the time between two reports.
const statusPause = 250 * time.Millisecond

// report posts the status for the page.
func report(ctx context.Context, p *member.Process) {
	for ctx.Err() == nil {
		s := p.Status()
		r := status{Ranks: s.Ranks, Stages: s.Stages, Begun: s.Begun, Steps: s.Steps, Microbatches: s.Microbatches}
		for _, l := range p.Links() {
			r.BytesSent += l.BytesSent
			r.BytesReceived += l.BytesReceived
		}
		post(message{Kind: "status", Status: &r})
		time.Sleep(statusPause)
	}
}
