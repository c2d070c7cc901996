package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	caLifetime          = 5 * 365 * 24 * time.Hour
	certificateLifetime = 24 * time.Hour
	clockTolerance      = time.Hour // certificates begin that much in the past
	renewAfter          = 16 * time.Hour
)

// Authority is the CA of one run, with its tokens. Its methods may be called concurrently.
type Authority struct {
	run         string
	key         ed25519.PrivateKey
	certificate *x509.Certificate
	path        string // of the file; empty: kept in memory only
	now         func() time.Time

	mu       sync.Mutex
	merged   os.FileInfo // of the file whose content is taken over; nil: none
	tokens   []issuedToken
	expelled map[string]bool // IDs of members
}

// NewAuthority makes the CA of a new run. It lives in memory only.
func NewAuthority() (*Authority, error) {
	name := make([]byte, 6)
	if _, err := rand.Read(name); err != nil {
		return nil, err
	}
	a := &Authority{run: "run-" + hex.EncodeToString(name), now: time.Now, expelled: map[string]bool{}}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := a.template(a.now().Add(caLifetime))
	template.Subject = pkix.Name{CommonName: "gpupipe CA of " + a.run}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	a.key = key
	return a, nil
}

// Run returns the ID of the run.
func (a *Authority) Run() string { return a.run }

// Hash returns the SHA-256 of the CA's certificate, as tokens contain it.
func (a *Authority) Hash() [sha256.Size]byte { return sha256.Sum256(a.certificate.Raw) }

// Format prints the run and never the key.
func (a *Authority) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "authority of %s", a.run) }

// template returns what all certificates of the run have in common.
func (a *Authority) template(until time.Time) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // it never fails
	return &x509.Certificate{SerialNumber: new(big.Int).SetBytes(serial), NotBefore: a.now().Add(-clockTolerance), NotAfter: until}
}

// issue returns the DER of a certificate that proves an identity of this run.
func (a *Authority) issue(role Role, id string, public any) ([]byte, error) {
	identity := Identity{Run: a.run, Role: role, ID: id}
	if err := identity.check(); err != nil {
		return nil, err
	}
	template := a.template(a.now().Add(certificateLifetime))
	template.Subject = pkix.Name{CommonName: id}
	template.URIs = []*url.URL{identity.uri()}
	template.DNSNames = []string{serverName(a.run)}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
}

// Coordinator returns the credentials of the run's coordinator. They renew themselves and refuse expelled members.
func (a *Authority) Coordinator() (*Credentials, error) {
	return a.local(RoleCoordinator, CoordinatorID)
}

// Member returns the credentials of a member in the coordinator's own process. They renew themselves.
func (a *Authority) Member(name string) (*Credentials, error) {
	return a.local(RoleMember, newMemberID(name))
}

func (a *Authority) local(role Role, id string) (*Credentials, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &Credentials{identity: Identity{a.run, role, id}, key: key, ca: a.certificate, now: a.now}
	if role == RoleCoordinator {
		c.expelled = a.isExpelled
	}
	c.renew = func() ([]byte, error) { return a.issue(role, id, key.Public()) }
	if _, err := c.certificate(); err != nil {
		return nil, err
	}
	return c, nil
}

// newMemberID returns an ID that is unique within the run: a readable name and random digits.
func newMemberID(name string) string {
	digits := make([]byte, 4)
	_, _ = rand.Read(digits) // it never fails
	return memberName(name) + "-" + hex.EncodeToString(digits)
}

// Expel makes the coordinator refuse a member's certificate from now on. Open connections are not closed.
func (a *Authority) Expel(member string) error {
	if err := checkName("ID", member); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expelled[member] = true
	return a.save()
}

// Expelled lists the IDs of expelled members.
func (a *Authority) Expelled() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.expelled))
}

func (a *Authority) isExpelled(member string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.expelled[member]
}

// admit answers a certificate signing request: with the certificate of a new member, or a renewed one of member id.
func (a *Authority) admit(csr []byte, name, id string) (member string, certificate []byte, err error) {
	request, err := parseRequest(csr)
	if err != nil {
		return "", nil, err
	}
	if id == "" {
		id = newMemberID(name)
	}
	certificate, err = a.issue(RoleMember, id, request.PublicKey)
	return id, certificate, err
}

// parseRequest checks a certificate signing request. Only its public key is used: the CA chooses the names.
func parseRequest(csr []byte) (*x509.CertificateRequest, error) {
	request, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, refuse(Malformed, "certificate signing request: %v", err)
	}
	if _, ok := request.PublicKey.(ed25519.PublicKey); !ok {
		return nil, refuse(Malformed, "certificate signing request: found a key of type %v, expected Ed25519", request.PublicKeyAlgorithm)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, refuse(Malformed, "certificate signing request: %v", err)
	}
	return request, nil
}
