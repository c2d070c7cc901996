package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// Options describe a node. TLS, Identify, Self and Receive are required.
type Options struct {
	// Self is the ID of this member, as its certificate names it.
	Self string
	// TLS secures both sides. It must demand and verify a certificate of clients (ClientAuth), and verify servers by
	// RootCAs with ServerName, or by VerifyConnection.
	TLS *tls.Config
	// Identify returns the member that a verified certificate names.
	Identify func(*x509.Certificate) (member string, err error)
	// Receive takes a message. The messages of a sender and class come in order, from one goroutine. It may block for a
	// short time only: then messages of that sender and class wait, here and at the sender. It owns the message.
	Receive func(from string, m Message)
	// Lost says once in an epoch that a peer is gone: it has had no connection for longer than Grace, has closed its
	// node, was restarted, or broke the protocol. Messages to it are dropped and refused from then on.
	Lost func(peer string, err error)
	// Sessions are the node's sessions with other members.
	Sessions Sessions
	// Grace is how long a link of an epoch waits for a connection, 20 s by default.
	Grace time.Duration
	// Silence is how long a connection may bring no byte, 5 s by default. A ping goes out each fifth of it.
	Silence time.Duration
	// MaxMessage is the most bytes of a message's payload, 1 GiB by default. Both sides refuse larger ones.
	MaxMessage int64
	// Uplink is the most bytes a second that the node sends, over all links; 0: no limit. Requests do not wait.
	Uplink float64
	// Network opens connections, TCP by default.
	Network Network
	// Explain makes an error of TLS plain to users; nil: it stays as it is.
	Explain func(err error) error
	// Note takes messages for the log: refusals and broken connections. Equal ones are dropped for 10 s.
	Note func(format string, args ...any)

	timing timing
}

// Network is how a node reaches others, and they reach it. The zero value is TCP.
type Network struct {
	// Bind opens the listener at an address; nil is TCP.
	Bind func(address string) (net.Listener, error)
	// Dial opens a connection to an address of a peer; nil is TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Listener accepts connections of a node without an address, such as those of browser tabs; nil: none are.
	// The node owns it.
	Listener net.Listener
}

// congestion is the TCP congestion control of connections that leave the machine. A kernel that does not have it uses
// its own.
const congestion = "bbr"

func (n Network) withDefaults() Network {
	if n.Bind == nil {
		n.Bind = func(address string) (net.Listener, error) { return net.Listen("tcp", address) }
	}
	if n.Dial == nil {
		n.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", address)
			if err == nil {
				tune(c, congestion)
			}
			return c, err
		}
	}
	return n
}

// timing holds what tests shorten.
type timing struct {
	ping       time.Duration // between two pings
	silence    time.Duration // without a byte after which a connection is closed
	hello      time.Duration // for the handshake of TLS, and for the hello
	progress   time.Duration // without a whole control message after which a connection is closed
	minBackoff time.Duration // between two attempts to dial
	maxBackoff time.Duration
	farewell   time.Duration // for the reason of a refusal to reach the peer
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Self == "" || len(o.Self) > maxID:
		return o, fmt.Errorf("transport: member ID %q: expected 1 to %d bytes", o.Self, maxID)
	case o.TLS == nil || o.TLS.ClientAuth < tls.RequireAnyClientCert:
		return o, errors.New("transport: the TLS config does not demand certificates of clients")
	case o.Identify == nil || o.Receive == nil:
		return o, errors.New("transport: Options.Identify and Options.Receive are required")
	}
	if o.Lost == nil {
		o.Lost = func(string, error) {}
	}
	if o.Grace == 0 {
		o.Grace = 20 * time.Second
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = 1 << 30
	}
	o.Network = o.Network.withDefaults()
	o.Sessions = o.Sessions.withDefaults()
	if o.Explain == nil {
		o.Explain = func(err error) error { return err }
	}
	if o.Silence == 0 {
		o.Silence = DefaultSilence
	}
	if o.timing == (timing{}) {
		o.timing = timing{ping: o.Silence / 5, silence: o.Silence, hello: 5 * time.Second, progress: 30 * time.Second,
			minBackoff: 20 * time.Millisecond, maxBackoff: time.Second, farewell: 500 * time.Millisecond}
	}
	return o, nil
}

// DefaultSilence is the default of Options.Silence.
const DefaultSilence = 5 * time.Second

// limit is the most bytes of the payload of a message of a class.
func (o Options) limit(c Class) int64 {
	if c == Urgent {
		return min(MaxUrgent, o.MaxMessage)
	}
	return o.MaxMessage
}
