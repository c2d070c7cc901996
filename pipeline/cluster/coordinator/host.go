package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/tab"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
)

// HostOptions describe a coordinator.
type HostOptions struct {
	Dir       string   // folder for the CA of the run, which a coordinator that restarts needs
	Address   string   // host:port where members join; empty host: all interfaces; port 0: any three
	Hosts     []string // names or addresses of this machine, for the token; none: the addresses of its interfaces
	Build     string
	Token     identity.TokenOptions                      // its addresses are set by NewHost
	Local     *member.ProcessOptions                     // devices of this process; Options and Devices are used; nil: none
	Grace     time.Duration                              // how long a member may be unreachable; 0: 12 s
	Uplink    float64                                    // the most bytes a second that this process sends to members; 0: no limit
	Rejoin    time.Duration                              // how long a run waits for a lost member or a spare; 0: 30 s
	Modelled  bool                                       // cut models by estimated times: nothing is measured
	Browser   *BrowserOptions                            // the page for browser tabs; nil: there is none
	Listen    func(address string) (net.Listener, error) // for Address and the port after it; nil: TCP
	Note      func(format string, args ...any)
	Measured  func(partition.Measured) // takes what was measured of devices and links; nil: nothing does
	OnMembers func([]MemberState)      // is called when the members or their state change; nil: nothing is
}

// Host is a coordinator that members join. Several runs may train on it, one after the other.
type Host struct {
	options       HostOptions
	token         identity.Token
	services      services
	notes         *member.Notes
	links         Links
	expelled      *expulsions
	announcements *announcements
	roster        *roster
	epoch         atomic.Uint64           // the newest
	pipeline      atomic.Pointer[running] // of the newest epoch
	ending        control.Ending          // what members learn when the host is closed
	close         func() error            // the first call closes the parts
}

// services are what members connect to, and the member in this process. Those that are not open are nil.
type services struct {
	join    *identity.JoinServer
	control *control.Server
	local   *member.Process
	node    *transport.Node // with the sessions of all members
	tabs    *tab.Server
}

// close closes the services in this order: members learn that the run has ended before they lose other connections.
func (s services) close(e control.Ending) error {
	var errs []error
	if s.join != nil {
		errs = append(errs, s.join.Close())
	}
	if s.control != nil {
		errs = append(errs, s.control.End(e))
	}
	if s.local != nil {
		errs = append(errs, s.local.Close())
	}
	if s.node != nil {
		errs = append(errs, s.node.Close())
	}
	if s.tabs != nil {
		errs = append(errs, s.tabs.Close())
	}
	return errors.Join(errs...)
}

// AuthorityFile is the file of the CA in HostOptions.Dir.
const AuthorityFile = "authority"

// defaultGrace is longer than an outage of ten seconds, which a run survives without going back to a checkpoint.
const defaultGrace = 12 * time.Second

const defaultRejoin = 30 * time.Second

// NewHost opens the coordinator's servers and, with HostOptions.Local, makes this process a member too.
func NewHost(ctx context.Context, o HostOptions) (h *Host, err error) {
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Rejoin == 0 {
		o.Rejoin = defaultRejoin
	}
	if o.Listen == nil {
		o.Listen = func(address string) (net.Listener, error) { return net.Listen("tcp", address) }
	}
	if o.OnMembers == nil {
		o.OnMembers = func([]MemberState) {}
	}
	notes := &member.Notes{To: o.Note}
	o.Note = notes.Note
	h = &Host{options: o, notes: notes}
	h.epoch.Store(uint64(time.Now().Unix()) << 20)
	h.close = sync.OnceValue(h.closeParts)
	h.roster = &roster{note: o.Note, grace: o.Grace, gone: h.memberGone, changed: make(chan struct{}), links: h.linkStates,
		drop:     func(id, reason string) { _ = h.services.control.Drop(id, reason) }, // it may be gone already
		expelled: func(id string) bool { return h.expelled.has(id) }, known: func(id string) bool { return h.services.control.Knows(id) },
		announce: func() { h.announcements.now() }, measured: &h.links}
	defer func() {
		if err != nil {
			h, err = nil, errors.Join(err, h.Close())
		}
	}()
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return h, err
	}
	authority, err := identity.OpenAuthority(filepath.Join(o.Dir, AuthorityFile))
	if err != nil {
		return h, err
	}
	credentials, err := authority.Coordinator()
	if err != nil {
		return h, err
	}
	if err := h.listen(authority, credentials); err != nil {
		return h, err
	}
	h.expelled = watchExpulsions(authority, h.services.control, o.Note)
	h.announcements = announce(h.Members, o.OnMembers)
	h.roster.unwatch = h.services.control.Watch(h.roster.memberChanged)
	h.announcements.now() // there are no members yet
	if o.Browser != nil {
		if err := h.serveBrowser(); err != nil {
			return h, err
		}
	}
	if o.Local != nil {
		err = h.startLocal(ctx, authority)
	}
	return h, err
}

// AddressError is the error of a HostOptions.Address that cannot be used.
type AddressError struct {
	Address string
	Err     error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("address %q: %v; expected host:port with three free ports from there on", e.Address, e.Err)
}

func (e *AddressError) Unwrap() error { return e.Err }

// listen opens the servers, at consecutive ports.
func (h *Host) listen(a *identity.Authority, c *identity.Credentials) error {
	o := h.options
	l, err := h.serve(a, c)
	if err != nil {
		return &AddressError{o.Address, err}
	}
	if len(h.options.Hosts) == 0 {
		host, _, _ := splitAddress(o.Address) // serve has
		if h.options.Hosts = []string{host}; host == "" {
			h.options.Hosts = member.Interfaces(nil)
		}
		if len(h.options.Hosts) == 0 {
			h.options.Hosts = []string{"127.0.0.1"} // a machine without a network
		}
	}
	o.Token.Addresses = h.addresses(l.Addr().(*net.TCPAddr).Port)
	h.token, err = a.NewToken(o.Token)
	return err
}

// serve opens the servers, and returns the listener of the first.
func (h *Host) serve(a *identity.Authority, c *identity.Credentials) (net.Listener, error) {
	o := h.options
	host, port, err := splitAddress(o.Address)
	if err != nil {
		return nil, err
	}
	at := func(offset int) string {
		if port == 0 {
			return net.JoinHostPort(host, "0")
		}
		return net.JoinHostPort(host, strconv.Itoa(port+offset))
	}
	l, err := o.Listen(at(0))
	if err != nil {
		return nil, err
	}
	sessions, err := o.Listen(at(nodePort))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	note := identity.LimitNotes(o.Note)
	h.services.control = control.NewServer(control.ServerOptions{Build: o.Build, Note: note})
	if h.services.node, err = transport.Listen("", transport.Options{Self: identity.CoordinatorID,
		TLS: c.TLS(identity.RoleMember), Identify: c.Identify,
		Network: transport.Network{Listener: sessions}, Receive: h.receive, Uplink: o.Uplink, Sessions: h.services.control.Sessions(),
		Explain: identity.Explain, Note: note}); err != nil {
		return nil, errors.Join(err, sessions.Close(), l.Close())
	}
	h.services.join, err = identity.ServeJoin(l, identity.JoinServerOptions{Authority: a, Build: o.Build,
		Control: []string{net.JoinHostPort("", strconv.Itoa(h.services.node.Port()))}, Note: o.Note})
	return l, err
}

// The ports after the one where members join.
const (
	nodePort  = iota + 1 // of the coordinator, for sessions
	localPort            // of the member in this process, for tensors
)

// splitAddress returns host and port of HostOptions.Address.
func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		var parts *net.AddrError
		if errors.As(err, &parts) {
			err = errors.New(parts.Err)
		}
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	if most := math.MaxUint16 - localPort; err != nil || port < 0 || port > most {
		return "", 0, fmt.Errorf("found port %s, expected 0 to %d", text, most)
	}
	return host, port, nil
}

// near is the address at which this process reaches a server of its own, whatever lies between it and the members.
func (h *Host) near(port int) string {
	return net.JoinHostPort(loopback(h.options.Address), strconv.Itoa(port))
}

// addresses are the addresses of this machine, with a port.
func (h *Host) addresses(port int) (all []string) {
	for _, host := range h.options.Hosts {
		all = append(all, net.JoinHostPort(host, strconv.Itoa(port)))
	}
	return all
}

// localID is the proposed ID of the member in the coordinator's process.
const localID = "local"

// startLocal makes this process a member.
func (h *Host) startLocal(ctx context.Context, a *identity.Authority) error {
	c, err := a.Member(localID)
	if err != nil {
		return err
	}
	o := *h.options.Local
	o.Note, o.Credentials, o.Build, o.Grace, o.Hosts = h.options.Note, c, h.options.Build, h.options.Grace, h.options.Hosts
	o.Local = true
	o.Control = []string{h.near(h.services.node.Port())}
	if o.Listen, o.Port, err = splitAddress(h.options.Address); err != nil {
		return err
	}
	if o.Port > 0 {
		o.Port += localPort
	}
	h.services.local, err = member.Start(ctx, o)
	var taken *net.OpError
	if errors.As(err, &taken) && taken.Op == "listen" {
		return &AddressError{h.options.Address, err}
	}
	return err
}

// loopback is the host at which a process reaches a server of its own.
func loopback(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil && host != "" && host != "0.0.0.0" && host != "::" {
		return host
	}
	return "127.0.0.1"
}

// Local reports whether this process is a member too.
func (h *Host) Local() bool { return h.services.local != nil }

// Token is what members join with.
func (h *Host) Token() identity.Token { return h.token }

// EndWith is Close, and tells the members why the run ends.
func (h *Host) EndWith(e control.Ending) error {
	h.ending = e
	return h.close()
}

// Close ends the run for all members. A second call returns what the first has returned.
func (h *Host) Close() error { return h.close() }

func (h *Host) closeParts() error {
	h.notes.Close()
	if h.announcements != nil {
		h.expelled.close()
		h.roster.unwatch()
		h.announcements.close()
	}
	return h.services.close(h.ending)
}

// receive takes a message of a member's node.
func (h *Host) receive(from string, m transport.Message) {
	if p := h.running(); p != nil {
		p.Receive(from, m)
	}
}

// running is what the members train: a Pipeline, or Replicas.
type running interface {
	Receive(from string, m transport.Message)
	Lost(member string, err error)
	linkUses(member string) []protocol.LinkUse
}

// running returns the pipeline that members train; nil: none.
func (h *Host) running() running {
	if p := h.pipeline.Load(); p != nil {
		return *p
	}
	return nil
}

// memberGone ends the pipeline if a member of it is gone.
func (h *Host) memberGone(id, reason string) {
	if p := h.running(); p != nil {
		go p.Lost(id, errors.New(reason))
	}
}

// Members describes the members, in the order in which they joined.
func (h *Host) Members() []MemberState { return h.roster.all() }

// Devices is the number of devices of all members that answer.
func (h *Host) Devices() int { return h.roster.devices() }

// Wait waits until a condition on the number of devices and members holds, or ctx ends.
func (h *Host) Wait(ctx context.Context, enough func(devices, members int) bool) error {
	return h.roster.wait(ctx, enough)
}
