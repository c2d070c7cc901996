package identity

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Credentials prove an identity to the other processes of a run. Their methods may be called concurrently.
type Credentials struct {
	identity Identity
	key      ed25519.PrivateKey
	ca       *x509.Certificate
	now      func() time.Time
	expelled func(member string) bool // nil: no member is expelled
	renew    func() ([]byte, error)   // issues a certificate in this process; nil: [Renew] asks the coordinator

	mu   sync.Mutex
	leaf *tls.Certificate // with the CA
}

// Identity returns the identity that the credentials prove.
func (c *Credentials) Identity() Identity { return c.identity }

// Format prints the identity and never the key.
func (c *Credentials) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.identity.String())) }

// Expires returns the end of the certificate's validity.
func (c *Credentials) Expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaf.Leaf.NotAfter
}

// setCertificate checks a certificate and uses it from the next handshake on.
func (c *Credentials) setCertificate(der []byte) error {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("issued certificate: %w", err)
	}
	if err := c.verify(leaf); err != nil {
		return fmt.Errorf("issued certificate: %w", err)
	}
	identity, err := Identify(leaf)
	if err != nil {
		return fmt.Errorf("issued certificate: %w", err)
	}
	if identity != c.identity {
		return fmt.Errorf("issued certificate: found %v, expected %v", identity, c.identity)
	}
	if !c.key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey) {
		return errors.New("issued certificate: its public key is not the requested one")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaf = &tls.Certificate{Certificate: [][]byte{der, c.ca.Raw}, PrivateKey: c.key, Leaf: leaf}
	return nil
}

// verify checks that a certificate comes from the run's CA and is valid now.
func (c *Credentials) verify(leaf *x509.Certificate) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: c.pool(), DNSName: serverName(c.identity.Run), CurrentTime: c.now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

func (c *Credentials) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.ca)
	return pool
}

// certificate returns the certificate for a handshake. It first renews one that this process can issue.
func (c *Credentials) certificate() (*tls.Certificate, error) {
	c.mu.Lock()
	leaf := c.leaf
	c.mu.Unlock()
	if c.renew == nil || leaf != nil && c.now().Before(leaf.Leaf.NotBefore.Add(clockTolerance+renewAfter)) {
		return leaf, nil
	}
	der, err := c.renew()
	if err != nil {
		return nil, err
	}
	if err := c.setCertificate(der); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaf, nil
}

// TLS returns a configuration for both sides of a connection: TLS 1.3, certificates of this run's CA on both sides, and
// a peer in one of roles. Without roles, any role will do. A caller that expects one ID checks it with
// [Credentials.Identify].
func (c *Credentials) TLS(roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Time:                   c.now,
		ServerName:             serverName(c.identity.Run),
		RootCAs:                c.pool(),
		ClientCAs:              c.pool(),
		ClientAuth:             tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true, // every connection proves its identity
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.certificate() },
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.certificate() },
		VerifyConnection:       func(state tls.ConnectionState) error { return c.checkPeer(state, roles) },
	}
}

// checkPeer checks run and role of a peer whose certificate TLS has verified.
func (c *Credentials) checkPeer(state tls.ConnectionState, roles []Role) error {
	if len(state.PeerCertificates) == 0 {
		return refuse(NoCertificate, "the other side sent no certificate")
	}
	peer, err := c.peer(state.PeerCertificates[0])
	if err != nil {
		return err
	}
	if len(roles) > 0 && !slices.Contains(roles, peer.Role) {
		return refuse(OtherRun, "found %v, expected the role %v", peer, roles)
	}
	return nil
}

// peer reads the identity in the certificate of another process of this run.
func (c *Credentials) peer(certificate *x509.Certificate) (Identity, error) {
	peer, err := Identify(certificate)
	if err != nil {
		return Identity{}, refuse(OtherRun, "%v", err)
	}
	if peer.Run != c.identity.Run {
		return Identity{}, refuse(OtherRun, "found a certificate of run %s, expected %s", peer.Run, c.identity.Run)
	}
	if c.expelled != nil && c.expelled(peer.ID) {
		return Identity{}, refuse(Expelled, "member %s is excluded from the run", peer.ID)
	}
	return peer, nil
}

// Identify returns the ID in the certificate of another process of this run, which TLS has verified. It refuses a
// certificate of another run.
func (c *Credentials) Identify(certificate *x509.Certificate) (id string, err error) {
	peer, err := c.peer(certificate)
	return peer.ID, err
}
