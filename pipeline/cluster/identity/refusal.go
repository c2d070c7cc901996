package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Code says why a coordinator or a member refused the other.
type Code string

const (
	WrongToken    Code = "wrong-token"
	ExpiredToken  Code = "expired-token"
	RevokedToken  Code = "revoked-token"
	UsedToken     Code = "used-token" // it was for a single use
	OtherCA       Code = "other-ca"
	OtherRun      Code = "other-run"
	OtherBuild    Code = "other-build" // or another protocol: see [MismatchError]
	Expelled      Code = "expelled"    // the coordinator excludes this member
	NoCertificate Code = "no-certificate"
	Expired       Code = "expired-certificate"
	Malformed     Code = "malformed"
	TooLarge      Code = "too-large"
	TooSlow       Code = "too-slow"
	TooMany       Code = "too-many-attempts"
	Unavailable   Code = "unavailable" // the coordinator could not answer; its own log says why
)

// Refused is the error of a process that another one turned away. Trying again does not help, but for TooMany and
// Unavailable.
type Refused struct {
	Code       Code
	Reason     string
	RetryAfter time.Duration // for TooMany
}

func (r *Refused) Error() string { return r.Reason }

func refuse(code Code, format string, args ...any) *Refused {
	return &Refused{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// MismatchError is the error of a member whose program differs from the coordinator's.
type MismatchError struct {
	What        string `json:"what"` // "build" or "protocol"
	Coordinator string `json:"coordinator"`
	Member      string `json:"member"`
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s of this member is %q, %s of the coordinator is %q: use the same build on both", e.What, e.Member, e.What,
		e.Coordinator)
}

// CheckBuild compares what a member runs with what its coordinator runs. It returns nil or a [*MismatchError].
func CheckBuild(coordinatorProtocol int, coordinatorBuild string, memberProtocol int, memberBuild string) error {
	if coordinatorProtocol != memberProtocol {
		return &MismatchError{"protocol", versions(coordinatorProtocol, coordinatorBuild), versions(memberProtocol, memberBuild)}
	}
	if coordinatorBuild != memberBuild {
		return &MismatchError{"build", coordinatorBuild, memberBuild}
	}
	return nil
}

func versions(protocol int, build string) string {
	return fmt.Sprintf("%d (build %s)", protocol, build)
}

// remoteAlerts are the alerts of TLS by which the other side refuses a certificate.
var remoteAlerts = []struct {
	text   string
	code   Code
	reason string
}{
	{"tls: certificate required", NoCertificate, "the other side demands a certificate of its run, and none was sent: join with a token first"},
	{"tls: unknown certificate authority", OtherCA, "the other side refuses this certificate: it comes from the CA of another run"},
	{"tls: bad certificate", OtherRun, "the other side refuses this certificate: it is not one of its run, or not one of the expected role"},
	{"tls: expired certificate", Expired, "the other side refuses this certificate: it has expired, or the clocks of the two computers differ"},
	{"tls: internal error", Unavailable, "the other side could not complete the handshake"},
}

// Explain returns a [*Refused] with a plain reason for an error of a TLS handshake, and err itself for other errors.
func Explain(err error) error {
	var refused *Refused
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var record tls.RecordHeaderError
	switch {
	case err == nil || errors.As(err, &refused):
		return err
	case errors.As(err, &authority):
		return refuse(OtherCA, "the certificate of the other side comes from the CA of another run")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return refuse(Expired, "the certificate of the other side has expired or is not valid yet, or the clocks of the two computers differ (%v)", invalid)
	case errors.As(err, &name):
		return refuse(OtherRun, "the certificate of the other side is one of another run")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(TooSlow, "the other side did not complete the handshake in time")
	case errors.As(err, &record):
		return refuse(Malformed, "the other side does not speak TLS")
	case strings.Contains(err.Error(), "client didn't provide a certificate"):
		return refuse(NoCertificate, "the other side sent no certificate")
	}
	if strings.Contains(err.Error(), "remote error: tls:") {
		for _, a := range remoteAlerts {
			if strings.Contains(err.Error(), a.text) {
				return refuse(a.code, "%s", a.reason)
			}
		}
	}
	return err
}
