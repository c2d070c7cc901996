package identity

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// handshake connects two configurations and returns what each side says about it. The client reads once, since it
// learns from the answer whether the server accepted its certificate.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		c := tls.Server(raw, server)
		if err = c.Handshake(); err == nil {
			_, err = c.Write([]byte("x"))
		}
		_ = c.Close()
		done <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer raw.Close()
	c := tls.Client(raw, client)
	clientErr = c.Handshake()
	if clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	if clientErr != nil {
		_ = raw.Close()
	}
	return <-done, clientErr
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	coordinator, err := a.Coordinator()
	require.NoError(t, err)
	member, err := a.Member("alice")
	require.NoError(t, err)
	serverErr, clientErr := handshake(t, coordinator.TLS(RoleMember), member.TLS(RoleCoordinator))
	require.NoError(t, serverErr)
	require.NoError(t, clientErr)
	serverErr, clientErr = handshake(t, member.TLS(), member.TLS())
	require.NoError(t, serverErr)
	require.NoError(t, clientErr)
	id, err := coordinator.Identify(member.leaf.Leaf)
	require.NoError(t, err)
	assert.Equal(t, member.Identity().ID, id)
}

func TestTLSRefusals(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	coordinator, err := a.Coordinator()
	require.NoError(t, err)
	member, err := a.Member("alice")
	require.NoError(t, err)
	stranger, err := newAuthority(t).Member("mallory")
	require.NoError(t, err)

	// sameCA has the same key and CA but another run: it checks the names alone.
	sameCA := &Authority{run: "run-other", key: a.key, certificate: a.certificate, now: time.Now}
	otherRun, err := sameCA.Member("mallory")
	require.NoError(t, err)
	otherRunTLS := otherRun.TLS()
	otherRunTLS.ServerName = serverName(a.run)

	later := func(c *tls.Config, by time.Duration) *tls.Config {
		c.Time = func() time.Time { return time.Now().Add(by) }
		return c
	}
	expelled, err := a.Member("bob")
	require.NoError(t, err)
	require.NoError(t, a.Expel(expelled.Identity().ID))
	none := member.TLS()
	none.GetClientCertificate = nil
	old := member.TLS()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	trusting := stranger.TLS()
	trusting.InsecureSkipVerify, trusting.VerifyConnection = true, nil

	for name, c := range map[string]struct {
		server, client         *tls.Config
		serverCode, clientCode Code // empty: another error
	}{
		"no certificate":        {coordinator.TLS(), none, NoCertificate, NoCertificate},
		"another CA":            {coordinator.TLS(), trusting, OtherCA, OtherCA},
		"server of another CA":  {stranger.TLS(), member.TLS(), OtherRun, OtherRun},
		"another run":           {coordinator.TLS(), otherRunTLS, OtherRun, OtherRun},
		"server of another run": {otherRun.TLS(), member.TLS(), OtherRun, OtherRun},
		"another role":          {member.TLS(RoleCoordinator), member.TLS(), OtherRun, OtherRun},
		"server's other role":   {member.TLS(), member.TLS(RoleCoordinator), OtherRun, OtherRun},
		"expelled":              {coordinator.TLS(), expelled.TLS(), Expelled, OtherRun},
		"expired":               {later(coordinator.TLS(), 25*time.Hour), member.TLS(), Expired, Expired},
		"expired server":        {coordinator.TLS(), later(member.TLS(), 25*time.Hour), OtherRun, Expired},
		"before its time":       {later(coordinator.TLS(), -2*time.Hour), member.TLS(), Expired, Expired},
		"TLS 1.2":               {coordinator.TLS(), old, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			serverErr, clientErr := handshake(t, c.server, c.client)
			require.Error(t, serverErr)
			require.Error(t, clientErr)
			if c.serverCode != "" {
				assert.Equal(t, c.serverCode, codeOf(t, Explain(serverErr)), "%v", serverErr)
				assert.Equal(t, c.clientCode, codeOf(t, Explain(clientErr)), "%v", clientErr)
			}
		})
	}
}

// The coordinator's own credentials renew themselves; those of a member do not change by themselves.
func TestLocalCredentialsRenewThemselves(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	now := time.Now()
	a.now = func() time.Time { return now }
	c, err := a.Coordinator()
	require.NoError(t, err)
	first, err := c.certificate()
	require.NoError(t, err)
	now = now.Add(15 * time.Hour)
	second, err := c.certificate()
	require.NoError(t, err)
	assert.Same(t, first, second)
	now = now.Add(2 * time.Hour)
	third, err := c.certificate()
	require.NoError(t, err)
	assert.NotSame(t, first, third)
	assert.WithinDuration(t, now.Add(24*time.Hour), c.Expires(), time.Second)
}

// A member refuses a certificate that proves something else than what it asked for.
func TestIssuedCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	c, err := a.Member("alice")
	require.NoError(t, err)
	other, err := a.Member("bob")
	require.NoError(t, err)
	stranger, err := newAuthority(t).Member("mallory")
	require.NoError(t, err)
	assert.ErrorContains(t, c.setCertificate(other.leaf.Certificate[0]), "expected "+c.Identity().String())
	assert.ErrorContains(t, c.setCertificate(stranger.leaf.Certificate[0]), "issued certificate: x509")
	assert.ErrorContains(t, c.setCertificate([]byte("x")), "issued certificate: x509")
	der, err := a.issue(RoleMember, c.Identity().ID, other.key.Public())
	require.NoError(t, err)
	assert.ErrorContains(t, c.setCertificate(der), "its public key is not the requested one")
}
