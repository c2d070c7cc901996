//go:build !js

package control

import (
	"crypto/x509"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/time/rate"
)

// gate admits connections to the NATS server and says what they may do. The identity in the certificate, which TLS has
// verified, decides; names and passwords that a client sends do not.
type gate struct {
	secret   string
	identify func(*x509.Certificate) (string, error)
	note     func(format string, args ...any)
	kick     func(connections []uint64)

	mu          sync.Mutex
	connections map[string]*memberConnections
}

// memberConnections are the connections of one member: the newest one is used, earlier ones are closed.
type memberConnections struct {
	ids     []uint64
	rate    *rate.Limiter
	blocked time.Time // until then connections are refused
}

// Check implements [server.Authentication].
func (g *gate) Check(c server.ClientAuthentication) bool {
	state := c.GetTLSConnectionState()
	if state == nil { // inside this process: every other listener demands TLS
		if !same(c.GetOpts().Password, g.secret) {
			g.note("control: refused: a connection without TLS")
			return false
		}
		c.RegisterUser(&server.User{Username: identity.CoordinatorID, Permissions: permissions(subjectDown+"*", subjectUp+"*")})
		return true
	}
	if len(state.PeerCertificates) == 0 {
		return false
	}
	member, err := g.identify(state.PeerCertificates[0])
	if err != nil {
		g.note("control: %v: refused: %v", c.RemoteAddress(), err)
		return false
	}
	if reason := g.admit(member, c.GetID()); reason != "" {
		g.note("control: %v: refused: member %s %s", c.RemoteAddress(), member, reason)
		return false
	}
	c.RegisterUser(&server.User{Username: member, Permissions: permissions(subjectUp+member, subjectDown+member)})
	return true
}

// permissions allows one subject to publish on and one to read.
func permissions(publish, subscribe string) *server.Permissions {
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{publish}}, Subscribe: &server.SubjectPermission{Allow: []string{subscribe}}}
}

// admit notes a connection of a member and closes its earlier ones, or says why it is refused.
func (g *gate) admit(member string, id uint64) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.connections[member]
	if m == nil {
		m = &memberConnections{rate: rate.NewLimiter(connectsPerSec, connectsBurst)}
		g.connections[member] = m
	}
	if time.Now().Before(m.blocked) {
		return "is blocked after too many messages"
	}
	if !m.rate.Allow() {
		return "connects too often"
	}
	go g.kick(m.ids)
	m.ids = []uint64{id}
	return ""
}

// block closes the connections of a member and refuses others for a while.
func (g *gate) block(member string, d time.Duration) {
	g.mu.Lock()
	if m := g.connections[member]; m != nil {
		m.blocked = time.Now().Add(d)
	}
	g.mu.Unlock()
	g.disconnect(member)
}

// disconnect closes the connections of a member.
func (g *gate) disconnect(member string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.connections[member]; m != nil {
		go g.kick(m.ids)
		m.ids = nil
	}
}
