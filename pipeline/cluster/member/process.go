package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// ProcessOptions describe a member's connections. The ID and the coordinator of Options follow from Credentials.
type ProcessOptions struct {
	Options
	Credentials *identity.Credentials
	Control     []string                    // addresses of the coordinator's node, host:port
	Build       string                      // of this program
	Devices     []string                    // names of the devices to offer, each for one rank
	Hosts       []string                    // names or addresses of this machine, for other members; none: its interfaces' addresses
	Listen      string                      // address of the interface for tensors; "": all
	Port        int                         // for tensors; 0: any
	Grace       time.Duration               // how long the connection with another member may be broken
	Uplink      float64                     // the most bytes a second that it sends; 0: no limit
	Renew       func(context.Context) error // renews Credentials; nil: they renew themselves
	Tab         string                      // protocol.Info.Tab; "": this process is no browser tab
	// Network connects it with Control, and with the addresses of peers, which the coordinator names.
	Network transport.Network
	// OnlyDials is set by a process that has no addresses. Others reach it through Network.Listener, if at all.
	OnlyDials bool
}

// Process is a member that is connected to its coordinator.
type Process struct {
	member  *Member
	node    *transport.Node
	client  *control.Client
	devices []protocol.Device
	stop    context.CancelFunc
	once    sync.Once
	notes   *Notes
	ended   chan struct{}
	err     error // once ended: why
}

// coordinatorTimeout is how long a member waits for a coordinator that does not answer.
const coordinatorTimeout = 2 * time.Minute

// Start connects a member to its coordinator and serves it until Close, or until the coordinator ends the run.
func Start(ctx context.Context, o ProcessOptions) (_ *Process, err error) {
	o.ID, o.Coordinator = o.Credentials.Identity().ID, identity.CoordinatorID
	notes := &Notes{To: o.Note}
	o.Note = notes.Note
	p := &Process{member: New(o.Options), notes: notes, ended: make(chan struct{})}
	p.client = control.NewClient(control.ClientOptions{Build: o.Build, Timeout: coordinatorTimeout, Lost: p.end, Restarted: p.restarted,
		Note: o.Note})
	p.handle(p.client)
	listen := net.JoinHostPort(o.Listen, strconv.Itoa(o.Port))
	if o.OnlyDials {
		listen = ""
	}
	if p.node, err = transport.Listen(listen, transport.Options{Self: o.ID, TLS: o.Credentials.TLS(), Identify: o.Credentials.Identify,
		Receive: p.member.Receive, Lost: p.member.Lost, Sessions: p.client.Sessions(), Grace: o.Grace, Uplink: o.Uplink,
		Network: o.Network, Explain: identity.Explain, Note: o.Note}); err != nil {
		return nil, err
	}
	p.member.Use(p.node)
	info, err := describe(o, p.node.Port())
	if err == nil {
		p.devices = info.Devices
		err = p.client.Connect(ctx, p.node, transport.Peer{ID: o.Coordinator, Addresses: o.Control}, info.Encode())
	}
	if err != nil {
		return nil, errors.Join(err, p.node.Close())
	}
	serving, stop := context.WithCancel(context.Background())
	p.stop = stop
	if o.Renew != nil {
		go renew(serving, o.Credentials.RenewBefore, o)
	}
	return p, nil
}

// ID is the member's.
func (p *Process) ID() string { return p.member.options.ID }

// handle registers the coordinator's requests.
func (p *Process) handle(c *control.Client) {
	for name := range p.member.answers() {
		if name == protocol.Release {
			continue
		}
		c.Handle(name, func(ctx context.Context, request []byte) ([]byte, error) { return p.member.Request(ctx, name, request) })
	}
	// It may end a request in progress.
	c.HandleConcurrently(protocol.Release, func(ctx context.Context, request []byte) ([]byte, error) {
		p.member.Interrupt()
		return p.member.Request(ctx, protocol.Release, request)
	})
}

// restarted ends the epoch of a coordinator that has restarted, or that has given this member up.
func (p *Process) restarted() {
	p.member.options.Note("joining the run again: the coordinator has restarted, or has given this member up")
	if err := p.member.Close(); err != nil {
		p.member.options.Note("%v", err)
	}
}

// end records why the member has ended.
func (p *Process) end(err error) {
	p.once.Do(func() {
		p.notes.Close()
		p.err = err
		close(p.ended)
	})
}

// Wait waits until the coordinator ends the run, which returns a [*control.EndedError], until it is lost, or until ctx
// ends.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close says goodbye to the coordinator and releases the devices.
func (p *Process) Close() error {
	p.notes.Close()
	p.stop()
	p.member.Interrupt()
	return errors.Join(p.client.Close(), p.member.Close(), p.node.Close())
}

// renew renews the member's certificate when it is due. It looks often: a timer stands still while the computer sleeps.
func renew(ctx context.Context, due func() time.Time, o ProcessOptions) {
	for {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			return
		}
		if time.Now().Before(due()) {
			continue
		}
		if err := o.Renew(ctx); err != nil && ctx.Err() == nil {
			o.Note("the certificate could not be renewed: %v", err)
		}
	}
}

// describe opens the devices to describe them.
func describe(o ProcessOptions, port int) (protocol.Info, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	info := protocol.Info{Host: host, System: runtime.GOOS + "/" + runtime.GOARCH, Tab: o.Tab}
	hosts := o.Hosts
	if len(hosts) == 0 && !o.OnlyDials {
		hosts = Interfaces(o.Control)
	}
	for _, h := range hosts {
		info.Addresses = append(info.Addresses, net.JoinHostPort(h, strconv.Itoa(port)))
	}
	for _, name := range o.Devices {
		dev, err := o.OpenDevice(name)
		if err != nil {
			return info, fmt.Errorf("device %s: %w", name, err)
		}
		found := dev.Info()
		if name == "" {
			name = found.Name
		}
		info.Devices = append(info.Devices, protocol.Device{Name: name, Info: found, Memory: device.Budget(dev)})
		if err := dev.Close(); err != nil {
			return info, err
		}
	}
	return info, nil
}

// Interfaces lists this machine's addresses: first the one from which it reaches the first of some addresses, then the
// addresses of its other interfaces. If that is the loopback address, it is the only one.
func Interfaces(reached []string) (hosts []string) {
	if len(reached) > 0 {
		if c, err := net.Dial("udp", reached[0]); err == nil { // sends nothing
			local := c.LocalAddr().(*net.UDPAddr).IP
			_ = c.Close()
			hosts = append(hosts, local.String())
			if local.IsLoopback() {
				return hosts
			}
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return hosts
	}
	for _, a := range addresses {
		ip, ok := a.(*net.IPNet)
		if ok && ip.IP.IsGlobalUnicast() && (len(hosts) == 0 || ip.IP.String() != hosts[0]) {
			hosts = append(hosts, ip.IP.String())
		}
	}
	return hosts
}
