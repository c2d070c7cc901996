package identity

import (
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func codeOf(t *testing.T, err error) Code {
	t.Helper()
	var refused *Refused
	require.ErrorAs(t, err, &refused)
	return refused.Code
}

func TestTokensOfAnAuthority(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	now := time.Now()
	a.now = func() time.Time { return now }
	use := func(token Token) error {
		_, err := a.useToken(token.secret, func() error { return nil })
		return err
	}
	revoked := newToken(t, a, TokenOptions{Lifetime: time.Minute})
	require.NoError(t, a.RevokeTokens())
	token, once := newToken(t, a, TokenOptions{}), newToken(t, a, TokenOptions{SingleUse: true})
	require.NoError(t, use(token))
	require.NoError(t, use(token))
	require.NoError(t, use(once))
	assert.Equal(t, UsedToken, codeOf(t, use(once)))
	assert.Equal(t, RevokedToken, codeOf(t, use(revoked)))
	assert.ErrorContains(t, a.Expel("Alice"), `ID: found "Alice", expected lower-case letters`)
	assert.Equal(t, WrongToken, codeOf(t, use(newToken(t, newAuthority(t), TokenOptions{}))))
	now = now.Add(time.Hour + time.Second)
	err := use(token)
	assert.Equal(t, ExpiredToken, codeOf(t, err))
	assert.Contains(t, err.Error(), "token "+token.ID()+" expired at ")
	states := a.Tokens()
	require.Len(t, states, 3)
	assert.Equal(t, []int{0, 2, 1}, []int{states[0].Used, states[1].Used, states[2].Used})
	now = now.Add(25 * time.Hour)
	newToken(t, a, TokenOptions{})
	assert.Len(t, a.Tokens(), 1, "old tokens are forgotten")

	_, err = a.NewToken(TokenOptions{})
	assert.EqualError(t, err, "token: found 0 addresses, expected 1 to 16")
	_, err = a.NewToken(TokenOptions{Addresses: []string{"x"}})
	assert.EqualError(t, err, `token: address "x": expected host:port`)
}

func TestAuthorityFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cluster.json")
	a, err := OpenAuthority(path)
	require.NoError(t, err)
	token, once := newToken(t, a, TokenOptions{}), newToken(t, a, TokenOptions{SingleUse: true})
	_, err = a.useToken(once.secret, func() error { return nil })
	require.NoError(t, err)
	require.NoError(t, a.Expel("alice-1"))

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, string(text), encoding.EncodeToString(token.secret[:]))
	if runtime.GOOS != "windows" {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}

	again, err := OpenAuthority(path)
	require.NoError(t, err)
	assert.Equal(t, a.Run(), again.Run())
	assert.Equal(t, a.Hash(), again.Hash())
	assert.Equal(t, a.Tokens(), again.Tokens())
	assert.True(t, again.isExpelled("alice-1"))
	require.NoError(t, again.validToken(token.secret))
	assert.Equal(t, UsedToken, codeOf(t, again.validToken(once.secret)))

	refuses := func(change func(string) string, want string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, []byte(change(string(text))), 0o600))
		_, err := OpenAuthority(path)
		require.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "PRIVATE KEY-----\\n")
	}
	refuses(func(s string) string { return strings.Replace(s, fileFormat, "gpupipe-cluster-9", 1) },
		`format: found "gpupipe-cluster-9", expected "gpupipe-cluster-1"`)
	refuses(func(s string) string { return strings.Replace(s, "BEGIN PRIVATE", "BEGIN", 1) }, `ca_key: expected a PEM block "PRIVATE KEY"`)
	refuses(func(s string) string { return strings.Replace(s, `"sha256": "`, `"sha256": "x`, 1) },
		"tokens[0].sha256: expected 64 hexadecimal digits")
	refuses(func(s string) string { return s[:len(s)/2] }, "unexpected EOF")
	if runtime.GOOS != "windows" {
		require.NoError(t, os.Chmod(path, 0o640))
		_, err = OpenAuthority(path)
		require.ErrorContains(t, err, "found mode 0640, expected 0600")
	}
}

// Two processes change the authority of a run: neither loses what the other does.
func TestTwoProcessesOfAnAuthority(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cluster.json")
	host, err := OpenAuthority(path)
	require.NoError(t, err)
	first := newToken(t, host, TokenOptions{SingleUse: true, Addresses: []string{"10.0.0.7:7433"}})
	other, err := ReadAuthority(path)
	require.NoError(t, err)
	require.Len(t, other.Tokens(), 1)
	assert.Equal(t, []string{"10.0.0.7:7433"}, other.Tokens()[0].Addresses)
	_, err = host.useToken(first.secret, func() error { return nil })
	require.NoError(t, err)
	require.NoError(t, other.RevokeTokens())
	second := newToken(t, other, TokenOptions{})
	require.NoError(t, other.Expel("alice-1"))
	assert.Equal(t, RevokedToken, codeOf(t, host.validToken(first.secret)), "as soon as it is written")
	require.NoError(t, host.validToken(second.secret))
	require.NoError(t, host.Expel("bob-2"))
	assert.Equal(t, []string{"alice-1", "bob-2"}, host.Expelled())
	require.NoError(t, other.Refresh())
	assert.Equal(t, host.Expelled(), other.Expelled())
	states := other.Tokens()
	require.Len(t, states, 2)
	assert.Equal(t, 1, states[0].Used)

	stranger, err := OpenAuthority(filepath.Join(t.TempDir(), "cluster.json"))
	require.NoError(t, err)
	require.NoError(t, os.Rename(stranger.path, path))
	require.ErrorContains(t, host.Refresh(), "found the CA of another run")
	assert.Equal(t, Unavailable, codeOf(t, host.validToken(second.secret)))
}

// A single-use token whose use cannot be recorded admits no member: it would be valid again after a restart.
func TestSingleUseIsRecordedFirst(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.Mkdir(dir, 0o700))
	a, err := OpenAuthority(filepath.Join(dir, "cluster.json"))
	require.NoError(t, err)
	once := newToken(t, a, TokenOptions{SingleUse: true})
	require.NoError(t, os.RemoveAll(dir))
	_, err = a.useToken(once.secret, func() error { t.Error("admitted"); return nil })
	assert.Equal(t, Unavailable, codeOf(t, err))
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"gpupipe://run/r1/member/alice-1":                    "",
		"gpupipe://run/r1/coordinator/coordinator":           "",
		"gpupipe://run/r1/coordinator/alice":                 `certificate: ID of a coordinator: found "alice", expected "coordinator"`,
		"gpupipe://run/r1/member/coordinator":                `certificate: ID of a member: found "coordinator", which is the coordinator's`,
		"gpupipe://run/r1/owner/alice":                       `certificate: role: found "owner", expected "coordinator" or "member"`,
		"gpupipe://run/r1/member/a.>":                        `certificate: ID: found "a.%3E", expected lower-case letters, digits and inner hyphens`,
		"gpupipe://run/r1/member/a*":                         `certificate: ID: found "a*", expected lower-case letters, digits and inner hyphens`,
		"gpupipe://run/r1/member/-a":                         `certificate: ID: found "-a", expected lower-case letters, digits and inner hyphens`,
		"gpupipe://run/r1/member/":                           `certificate: ID: found "", expected lower-case letters, digits and inner hyphens`,
		"gpupipe://run/r1/member/a/b":                        `certificate: found URI "gpupipe://run/r1/member/a/b", expected gpupipe://run/<run>/<role>/<id>`,
		"https://run/r1/member/a":                            `certificate: found URI "https://run/r1/member/a", expected gpupipe://run/<run>/<role>/<id>`,
		"gpupipe://run/r1/member/" + strings.Repeat("a", 41): "certificate: ID: found 41 characters, expected at most 40",
	} {
		uri, err := url.Parse(text)
		require.NoError(t, err)
		identity, err := Identify(&x509.Certificate{URIs: []*url.URL{uri}})
		if want != "" {
			assert.EqualError(t, err, want)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, text, identity.String())
	}
	_, err := Identify(&x509.Certificate{})
	assert.EqualError(t, err, "certificate: found 0 URIs, expected 1 of the form gpupipe://run/<run>/<role>/<id>")
	_, err = Identify(nil)
	assert.EqualError(t, err, "certificate: none, expected one of this run")
}

func TestMemberIDs(t *testing.T) {
	t.Parallel()
	for proposed, want := range map[string]string{"Alice's PC": "alice-s-pc", "": "member", "..>*": "member", "a.b.c": "a-b-c",
		"日本": "member", strings.Repeat("x", 100): strings.Repeat("x", 24), "a" + strings.Repeat("-", 100) + "b": "a-b"} {
		assert.Equal(t, want, memberName(proposed), proposed)
		require.NoError(t, Identity{"r", RoleMember, newMemberID(proposed)}.check())
	}
	assert.NotEqual(t, newMemberID("a"), newMemberID("a"))
}

func FuzzIdentify(f *testing.F) {
	f.Add("gpupipe://run/r1/member/alice-1")
	f.Fuzz(func(t *testing.T, text string) {
		if i, err := parseIdentity(text); err == nil && i.String() != text {
			t.Fatalf("found %q, expected %q", i, text)
		}
	})
}

func FuzzDecodeAuthority(f *testing.F) {
	a, err := NewAuthority()
	if err != nil {
		f.Fatal(err)
	}
	_, _ = a.NewToken(TokenOptions{Addresses: []string{"a:1"}})
	text, _ := a.encode()
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, err := decodeAuthority(text); err == nil {
			if _, err := a.Coordinator(); err != nil && len(a.run) == 0 {
				t.Fatal(err)
			}
		}
	})
}

func FuzzJoinMessages(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"build":"x","name":"a","secret":"s","csr":"AA=="}`), 200)
	f.Add([]byte(`{"code":"wrong-token","error":"no","retry_after_seconds":-1}`), 403)
	f.Fuzz(func(t *testing.T, text []byte, status int) {
		if r, err := decodeRequest(text); err == nil {
			_, _ = parseRequest(r.CSR)
		}
		if answer, err := decodeAnswer(status, text); err == nil {
			_, _ = controlAddresses(answer.Control, "10.0.0.1:1")
		}
	})
}
