package identity

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Protocol is the version of everything that coordinator and members say to each other. Different versions do not work
// together.
const Protocol = 2

// Role is what a process may do in a run.
type Role string

const (
	RoleCoordinator Role = "coordinator" // plans, admits members, sends requests
	RoleMember      Role = "member"      // hosts ranks
)

// CoordinatorID is the ID of every run's coordinator. No member has it.
const CoordinatorID = "coordinator"

// Identity is what a certificate of a run proves.
type Identity struct {
	Run  string // ID of the run
	Role Role
	ID   string // ID within the run
}

const (
	maxNameLength = 40 // of a run or member, in bytes
	uriScheme     = "gpupipe"
	uriHost       = "run"
)

// names of runs and members are safe in subjects, host names and file names.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func checkName(what, name string) error {
	if len(name) > maxNameLength {
		return fmt.Errorf("%s: found %d characters, expected at most %d", what, len(name), maxNameLength)
	}
	if !validName.MatchString(name) {
		return fmt.Errorf("%s: found %q, expected lower-case letters, digits and inner hyphens", what, name)
	}
	return nil
}

// check returns an error that names the first invalid field.
func (i Identity) check() error {
	if err := checkName("run", i.Run); err != nil {
		return err
	}
	if err := checkName("ID", i.ID); err != nil {
		return err
	}
	switch i.Role {
	case RoleCoordinator:
		if i.ID != CoordinatorID {
			return fmt.Errorf("ID of a coordinator: found %q, expected %q", i.ID, CoordinatorID)
		}
	case RoleMember:
		if i.ID == CoordinatorID {
			return fmt.Errorf("ID of a member: found %q, which is the coordinator's", i.ID)
		}
	default:
		return fmt.Errorf("role: found %q, expected %q or %q", i.Role, RoleCoordinator, RoleMember)
	}
	return nil
}

// String returns the URI of the identity, as in "gpupipe://run/r1/member/alice-3f2a".
func (i Identity) String() string { return i.uri().String() }

func (i Identity) uri() *url.URL {
	return &url.URL{Scheme: uriScheme, Host: uriHost, Path: "/" + i.Run + "/" + string(i.Role) + "/" + i.ID}
}

// Identify reads the identity in a certificate. It does not verify the certificate: TLS does, with [Credentials.TLS].
func Identify(certificate *x509.Certificate) (Identity, error) {
	if certificate == nil {
		return Identity{}, fmt.Errorf("certificate: none, expected one of this run")
	}
	if n := len(certificate.URIs); n != 1 {
		return Identity{}, fmt.Errorf("certificate: found %d URIs, expected 1 of the form gpupipe://run/<run>/<role>/<id>", n)
	}
	return parseIdentity(certificate.URIs[0].String())
}

// parseIdentity is the inverse of [Identity.String]. It accepts no other spelling.
func parseIdentity(text string) (Identity, error) {
	path, ok := strings.CutPrefix(text, uriScheme+"://"+uriHost+"/")
	fields := strings.Split(path, "/")
	if !ok || len(fields) != 3 {
		return Identity{}, fmt.Errorf("certificate: found URI %.100q, expected gpupipe://run/<run>/<role>/<id>", text)
	}
	i := Identity{Run: fields[0], Role: Role(fields[1]), ID: fields[2]}
	if err := i.check(); err != nil {
		return Identity{}, fmt.Errorf("certificate: %w", err)
	}
	return i, nil
}

// serverName is the DNS name that every certificate of a run bears, so that standard verification checks the run.
func serverName(run string) string { return run + ".gpupipe.internal" }

// memberName makes the readable half of a member's ID from a proposed name, such as a host name.
func memberName(proposed string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(proposed) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() == 24 {
			break
		}
	}
	if name := strings.Trim(b.String(), "-"); name != "" {
		return name
	}
	return "member"
}
