package transport

import (
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/stretchr/testify/require"
)

// TestCertificatesOfARun connects members with the certificates that runs issue.
func TestCertificatesOfARun(t *testing.T) {
	t.Parallel()
	member := func(ca *identity.Authority, name, address string) *member {
		c, err := ca.Member(name)
		require.NoError(t, err)
		return startWith(t, nil, c.Identity().ID, address, c.TLS(identity.RoleMember), func(o *Options) { o.Identify = c.Identify })
	}
	run, err := identity.NewAuthority()
	require.NoError(t, err)
	other, err := identity.NewAuthority()
	require.NoError(t, err)
	a, b, stranger := member(run, "a", "127.0.0.1:0"), member(run, "b", ""), member(other, "b", "")
	require.NoError(t, a.Connect(1, []Peer{{ID: b.id}}))
	require.NoError(t, stranger.Connect(1, []Peer{a.peer()}))
	stranger.awaitNote("no connection to member " + a.id + ": ")
	a.awaitNote("a connection from 127.0.0.1 is refused: ")
	require.NoError(t, b.Connect(1, []Peer{a.peer()}))
	require.NoError(t, b.Send(a.id, message(Hot, 0, 100)))
	requireSeries(t, a.awaitMessages(1), b.id, Hot, 100)
}
