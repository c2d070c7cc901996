package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gpupipe/gpupipe/internal/dial"
	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/internal/usererror"
)

const defaultDialTimeout = 10 * time.Second

// JoinOptions configures [Join] and [Renew].
type JoinOptions struct {
	Token   Token
	Name    string                                                      // proposed readable part of the member's ID, such as the host name
	Build   string                                                      // of this program
	Dial    func(ctx context.Context, address string) (net.Conn, error) // nil: TCP
	Timeout time.Duration                                               // of everything; 0: 10 s

	protocol int // 0: Protocol
}

// Membership is what a member gets when it joins.
type Membership struct {
	Credentials *Credentials
	Control     []string // addresses of the coordinator's node, host:port
}

// Join makes this process a member of the run that a token belongs to. It tries all addresses of the token and uses the
// first one that answers with the CA that the token names. The secret is sent there and nowhere else.
//
// A refusal is a [*Refused] or, if the program is another, a [*MismatchError]. Both are marked with package usererror.
func Join(ctx context.Context, o JoinOptions) (*Membership, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.Timeout, defaultDialTimeout))
	defer cancel()
	c, address, err := dialFirst(ctx, o, pinnedCA(o.Token.CA).config())
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	defer c.Close()
	m, err := join(ctx, c, address, o)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", address, usererror.New(err))
	}
	return m, nil
}

// pinnedCA is the SHA-256 of the CA that a coordinator must have.
type pinnedCA [sha256.Size]byte

// config returns the configuration of a member that has no certificate yet. VerifyConnection does all the checks that
// InsecureSkipVerify omits: chain, validity and role. It runs before the handshake ends, thus before anything is sent.
func (p pinnedCA) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"},
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := p.verify(state.PeerCertificates, time.Now())
			return err
		}}
}

// verify returns the pinned CA among the certificates of a coordinator.
func (p pinnedCA) verify(chain []*x509.Certificate, now time.Time) (*x509.Certificate, error) {
	for _, ca := range chain {
		hash := sha256.Sum256(ca.Raw)
		if subtle.ConstantTimeCompare(hash[:], p[:]) != 1 {
			continue
		}
		peer, err := Identify(chain[0])
		if err != nil {
			return nil, refuse(OtherRun, "%v", err)
		}
		if peer.Role != RoleCoordinator {
			return nil, refuse(OtherRun, "found %v at this address, expected the coordinator", peer)
		}
		c := &Credentials{identity: peer, ca: ca, now: func() time.Time { return now }}
		if err := c.verify(chain[0]); err != nil {
			return nil, Explain(err)
		}
		return ca, nil
	}
	return nil, refuse(OtherCA, "the CA there is not the one that the token names: the token belongs to another run, or another process answers; the secret was not sent")
}

// dialFirst connects to the addresses of a token and returns the first connection whose handshake succeeds.
func dialFirst(ctx context.Context, o JoinOptions, config *tls.Config) (*tls.Conn, string, error) {
	c, address, err := dial.First(ctx, o.Token.Addresses, func(ctx context.Context, address string) (*tls.Conn, error) {
		c, err := dialTLS(ctx, o, address, config)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", address, err)
		}
		return c, nil
	})
	return c, address, usererror.New(err)
}

func dialTLS(ctx context.Context, o JoinOptions, address string, config *tls.Config) (*tls.Conn, error) {
	dial := o.Dial
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	raw, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, Explain(err)
	}
	return c, nil
}

// join sends the secret over a connection to the pinned coordinator.
func join(ctx context.Context, c *tls.Conn, address string, o JoinOptions) (*Membership, error) {
	ca, err := pinnedCA(o.Token.CA).verify(c.ConnectionState().PeerCertificates, time.Now())
	if err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	answer, err := exchange(ctx, c, joinPath, key, joinRequest{Name: o.Name, Secret: encoding.EncodeToString(o.Token.secret[:])}, o)
	if err != nil {
		return nil, err
	}
	credentials := &Credentials{identity: Identity{answer.Run, RoleMember, answer.Member}, key: key, ca: ca, now: time.Now}
	if err := credentials.setCertificate(answer.Certificate); err != nil {
		return nil, err
	}
	m := &Membership{Credentials: credentials}
	m.Control, err = controlAddresses(answer.Control, address)
	return m, err
}

func controlAddresses(addresses []string, reached string) ([]string, error) {
	host, _, err := net.SplitHostPort(reached)
	if err != nil {
		return nil, err
	}
	if len(addresses) == 0 || len(addresses) > maxAddresses {
		return nil, fmt.Errorf("found %d control addresses, expected 1 to %d", len(addresses), maxAddresses)
	}
	var joined []string
	for _, a := range addresses {
		address, err := joinHost(a, host)
		if err != nil {
			return nil, err
		}
		joined = append(joined, address)
	}
	return joined, nil
}

// Renew replaces the certificate of a member before it expires. Of o.Token only the addresses are used.
func Renew(ctx context.Context, credentials *Credentials, o JoinOptions) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.Timeout, defaultDialTimeout))
	defer cancel()
	config := credentials.TLS(RoleCoordinator)
	config.NextProtos = []string{"http/1.1"}
	c, address, err := dialFirst(ctx, o, config)
	if err != nil {
		return fmt.Errorf("renew the certificate: %w", err)
	}
	defer c.Close()
	answer, err := exchange(ctx, c, renewPath, credentials.key, joinRequest{}, o)
	if err == nil {
		err = credentials.setCertificate(answer.Certificate)
	}
	if err != nil {
		return fmt.Errorf("renew the certificate at %s: %w", address, usererror.New(err))
	}
	return nil
}

// RenewBefore returns when a member should call [Renew]: eight hours before the certificate expires.
func (c *Credentials) RenewBefore() time.Time {
	return c.Expires().Add(renewAfter - certificateLifetime)
}

// exchange sends one request over a connection and returns the answer, or the refusal as an error.
func exchange(ctx context.Context, c net.Conn, path string, key ed25519.PrivateKey, request joinRequest, o JoinOptions) (joinAnswer,
	error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return joinAnswer{}, err
	}
	request.Protocol, request.Build, request.CSR = cmp.Or(o.protocol, Protocol), o.Build, csr
	body, err := json.Marshal(request)
	if err != nil {
		return joinAnswer{}, err
	}
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://coordinator"+path, bytes.NewReader(body))
	if err != nil {
		return joinAnswer{}, err
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return joinAnswer{}, Explain(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxJoinMessage+1))
	if err != nil {
		return joinAnswer{}, Explain(err)
	}
	return decodeAnswer(response.StatusCode, text)
}

// decodeAnswer reads an answer. A refusal becomes an error.
func decodeAnswer(status int, text []byte) (joinAnswer, error) {
	var answer joinAnswer
	if len(text) > maxJoinMessage {
		return answer, refuse(TooLarge, "the answer is larger than %d bytes", maxJoinMessage)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, refuse(Malformed, "the answer is not the expected JSON (HTTP status %d)", status)
	}
	switch {
	case answer.Mismatch != nil:
		return joinAnswer{}, answer.Mismatch
	case answer.Code != "":
		return joinAnswer{}, &Refused{Code: answer.Code, Reason: "the coordinator refuses: " + reason(answer.Error),
			RetryAfter: answer.retryAfter()}
	case status != http.StatusOK:
		return joinAnswer{}, refuse(Malformed, "found HTTP status %d, expected 200", status)
	}
	return answer, nil
}

// maxReason is how many characters of a coordinator's refusal a member prints.
const maxReason = 300

// reason returns the text of a refusal, which another computer wrote.
func reason(text string) string {
	clean := []rune(printable.Text(text))
	return string(clean[:min(len(clean), maxReason)])
}
