package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const testBuild = "v1.2.3 (abcdef)"

// notes keeps what a server notes.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
}

func (n *notes) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.lines, "\n")
}

// eventually waits for a line with a text.
func (n *notes) eventually(t *testing.T, want string) {
	t.Helper()
	assert.Eventually(t, func() bool { return strings.Contains(n.text(), want) }, time.Hour, 2*time.Millisecond, "%q in %s", want, n.text())
}

func serve(t *testing.T, o JoinServerOptions) (*JoinServer, *notes) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &notes{}
	o.Note = n.note
	if o.Build == "" {
		o.Build = testBuild
	}
	if o.Control == nil {
		o.Control = []string{":7071", "control.example.org:7072", "[2001:db8::1]:7073"}
	}
	s, err := ServeJoin(l, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, n
}

func (s *JoinServer) token(t *testing.T, o TokenOptions) Token {
	t.Helper()
	o.Addresses = append(o.Addresses, s.Addr().String())
	return newToken(t, s.o.Authority, o)
}

func joinAs(t *testing.T, token Token, name string) (*Membership, error) {
	t.Helper()
	return Join(t.Context(), JoinOptions{Token: token, Name: name, Build: testBuild, Timeout: 5 * time.Second})
}

func TestJoin(t *testing.T) {
	t.Parallel()
	var joined []string
	s, n := serve(t, JoinServerOptions{Authority: newAuthority(t), Joined: func(member, _ string) { joined = append(joined, member) }})
	token := s.token(t, TokenOptions{})
	m, err := joinAs(t, token, "Alice's PC")
	require.NoError(t, err)
	i := m.Credentials.Identity()
	assert.Equal(t, Identity{s.o.Authority.Run(), RoleMember, i.ID}, i)
	assert.True(t, strings.HasPrefix(i.ID, "alice-s-pc-"), i.ID)
	assert.Equal(t, []string{"127.0.0.1:7071", "control.example.org:7072", "[2001:db8::1]:7073"}, m.Control)
	assert.Equal(t, []string{i.ID}, joined)
	assert.WithinDuration(t, time.Now().Add(24*time.Hour), m.Credentials.Expires(), time.Minute)
	n.eventually(t, "joins as "+i.ID+" with token "+token.ID())
	text := token.Reveal()
	assert.NotContains(t, n.text(), text[strings.LastIndexByte(text, '.')+1:])

	other, err := joinAs(t, token, "Alice's PC")
	require.NoError(t, err)
	assert.NotEqual(t, i.ID, other.Credentials.Identity().ID)
}

func TestJoinTriesAllAddresses(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, JoinServerOptions{Authority: newAuthority(t)})
	impostor, _ := serve(t, JoinServerOptions{Authority: newAuthority(t)})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	token := s.token(t, TokenOptions{Addresses: []string{closed.Addr().String(), impostor.Addr().String()}})
	m, err := joinAs(t, token, "")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:7071", m.Control[0])

	token.Addresses = token.Addresses[:2]
	_, err = joinAs(t, token, "")
	require.ErrorContains(t, err, closed.Addr().String()+": ")
	assert.Equal(t, OtherCA, codeOf(t, err))
	assert.True(t, usererror.Is(err))
}

func TestJoinRefusals(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	now := time.Now()
	s, n := serve(t, JoinServerOptions{Authority: a})
	refused := func(token Token, code Code, reason string) {
		t.Helper()
		_, err := joinAs(t, token, "")
		require.ErrorContains(t, err, reason)
		assert.Equal(t, code, codeOf(t, err))
		assert.True(t, usererror.Is(err), "exits with code 2")
		n.eventually(t, reason)
	}
	revoked := s.token(t, TokenOptions{})
	require.NoError(t, a.RevokeTokens())
	wrong := s.token(t, TokenOptions{})
	wrong.secret[0] ^= 1
	refused(wrong, WrongToken, "the coordinator does not know this token")
	refused(revoked, RevokedToken, "token "+revoked.ID()+" is revoked")
	once := s.token(t, TokenOptions{SingleUse: true})
	_, err := joinAs(t, once, "")
	require.NoError(t, err)
	refused(once, UsedToken, "token "+once.ID()+" has admitted a member already")
	short := s.token(t, TokenOptions{Lifetime: time.Nanosecond})
	require.Eventually(t, func() bool { return time.Since(now) > time.Microsecond }, time.Second, time.Microsecond)
	refused(short, ExpiredToken, "token "+short.ID()+" expired at")
}

func TestJoinRefusesOtherBuilds(t *testing.T) {
	t.Parallel()
	s, n := serve(t, JoinServerOptions{Authority: newAuthority(t)})
	once := s.token(t, TokenOptions{SingleUse: true})
	for _, c := range []struct {
		o    JoinOptions
		want MismatchError
	}{
		{JoinOptions{Build: "v2"}, MismatchError{"build", testBuild, "v2"}},
		{JoinOptions{Build: testBuild, protocol: Protocol + 1}, MismatchError{"protocol", fmt.Sprintf("%d (build %s)", Protocol, testBuild),
			fmt.Sprintf("%d (build %s)", Protocol+1, testBuild)}},
	} {
		c.o.Token = once
		_, err := Join(t.Context(), c.o)
		var mismatch *MismatchError
		require.ErrorAs(t, err, &mismatch)
		assert.Equal(t, c.want, *mismatch)
		assert.True(t, usererror.Is(err), "exits with code 2")
		assert.Contains(t, err.Error(), fmt.Sprintf("%q", c.want.Coordinator))
		assert.Contains(t, err.Error(), fmt.Sprintf("%q", c.want.Member))
		n.eventually(t, c.want.Error())
	}
	_, err := joinAs(t, once, "")
	require.NoError(t, err, "a refused build does not use up the token")
}

// A process with another CA at the address of a token gets nothing but a handshake.
func TestTheSecretGoesToThePinnedCAOnly(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	impostor, err := other.Coordinator()
	require.NoError(t, err)
	member, err := a.Member("mallory")
	require.NoError(t, err)
	for name, c := range map[string]*Credentials{"another CA": impostor, "a member's certificate": member} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			received := make(chan []byte, 1)
			go func() {
				raw, err := l.Accept()
				if err != nil {
					return
				}
				config := c.TLS()
				config.ClientAuth = tls.NoClientCert
				config.VerifyConnection = nil
				config.NextProtos = []string{"http/1.1"}
				conn := tls.Server(raw, config)
				b, _ := io.ReadAll(conn)
				_ = raw.Close()
				received <- b
			}()
			_, err = joinAs(t, newToken(t, a, TokenOptions{Addresses: []string{l.Addr().String()}}), "")
			assert.Contains(t, []Code{OtherCA, OtherRun}, codeOf(t, err))
			assert.Empty(t, <-received)
		})
	}
}

func TestJoinLimits(t *testing.T) {
	t.Parallel()
	s, n := serve(t, JoinServerOptions{Authority: newAuthority(t), Timeout: 300 * time.Millisecond})
	config := pinnedCA(s.o.Authority.Hash()).config()
	dial := func() *tls.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", s.Addr().String(), config)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	post := func(body io.Reader) (joinAnswer, int) {
		t.Helper()
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		r, err := client.Post("https://"+s.Addr().String()+joinPath, "application/json", body)
		require.NoError(t, err)
		defer r.Body.Close()
		var a joinAnswer
		require.NoError(t, json.NewDecoder(r.Body).Decode(&a))
		return a, r.StatusCode
	}
	t.Run("too large", func(t *testing.T) {
		answer, status := post(bytes.NewReader(make([]byte, maxJoinMessage+1)))
		assert.Equal(t, http.StatusRequestEntityTooLarge, status)
		assert.Equal(t, TooLarge, answer.Code)
		n.eventually(t, "the request is larger than 16384 bytes")
	})
	t.Run("2 GB declared", func(t *testing.T) {
		c := dial()
		_, err := fmt.Fprintf(c, "POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 2147483648\r\n\r\n%s", make([]byte, maxJoinMessage+1))
		require.NoError(t, err)
		text, _ := io.ReadAll(c)
		assert.Contains(t, string(text), string(TooLarge))
	})
	t.Run("large headers", func(t *testing.T) {
		c := dial()
		_, _ = fmt.Fprintf(c, "POST /join HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 16<<10))
		text, _ := io.ReadAll(c)
		assert.Contains(t, string(text), "431 Request Header Fields Too Large")
	})
	t.Run("malformed", func(t *testing.T) {
		answer, status := post(strings.NewReader(`{"secret":"hunter2`))
		assert.Equal(t, http.StatusBadRequest, status)
		assert.Equal(t, Malformed, answer.Code)
		assert.NotContains(t, n.text(), "hunter2")
	})
	for name, text := range map[string]string{"slow headers": "POST /join HTTP/1.1\r\nHost:",
		"slow body": "POST /join HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"} {
		t.Run(name, func(t *testing.T) {
			c := dial()
			_, err := io.WriteString(c, text)
			require.NoError(t, err)
			answer, err := io.ReadAll(c)
			require.NoError(t, err)
			assert.Contains(t, string(answer), "408 Request Timeout")
			assert.Contains(t, string(answer), "no complete request within 300ms")
			n.eventually(t, c.LocalAddr().String()+": refused: no complete request within 300ms")
		})
	}
	t.Run("slow handshake", func(t *testing.T) {
		c, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte{22, 3, 1})
		require.NoError(t, err)
		_, _ = io.ReadAll(c)
		n.eventually(t, c.LocalAddr().String()+": refused: the TLS handshake took longer than 300ms")
	})
	t.Run("no TLS", func(t *testing.T) {
		c, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
		require.NoError(t, err)
		_, _ = io.ReadAll(c)
		n.eventually(t, c.LocalAddr().String()+": refused: the other side does not speak TLS")
	})
}

func TestFailedAttemptsAreRateLimited(t *testing.T) {
	t.Parallel()
	s, n := serve(t, JoinServerOptions{Authority: newAuthority(t)})
	wrong := s.token(t, TokenOptions{})
	wrong.secret[0] ^= 1
	for range failureBurst {
		_, err := joinAs(t, wrong, "")
		require.Equal(t, WrongToken, codeOf(t, err))
	}
	_, err := joinAs(t, s.token(t, TokenOptions{}), "")
	require.Equal(t, TooMany, codeOf(t, err), "even with a valid token")
	var refused *Refused
	require.ErrorAs(t, err, &refused)
	assert.InDelta(t, failureInterval.Seconds(), refused.RetryAfter.Seconds(), 1)
	n.eventually(t, "too many failed attempts from this address: try again in")
}

func TestConnectionsAreLimitedForEachAddress(t *testing.T) {
	t.Parallel()
	s, n := serve(t, JoinServerOptions{Authority: newAuthority(t)})
	var open []net.Conn
	for range maxConnectionsPerHost + 1 {
		c, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		open = append(open, c)
	}
	_, err := open[maxConnectionsPerHost].Read(make([]byte, 1))
	require.Error(t, err)
	n.eventually(t, "too many connections from this address")
	for _, c := range open {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		_, err := joinAs(t, s.token(t, TokenOptions{}), "")
		return err == nil
	}, time.Hour, 10*time.Millisecond, "closed connections free their places")
}

func TestRenew(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s, n := serve(t, JoinServerOptions{Authority: a})
	token := s.token(t, TokenOptions{})
	m, err := joinAs(t, token, "alice")
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now().Add(16*time.Hour), m.Credentials.RenewBefore(), time.Minute)
	before := m.Credentials.leaf
	o := JoinOptions{Token: Token{Addresses: token.Addresses}, Build: testBuild}
	require.NoError(t, Renew(t.Context(), m.Credentials, o))
	assert.NotEqual(t, before.Certificate[0], m.Credentials.leaf.Certificate[0])
	assert.Equal(t, m.Credentials.Identity().ID, m.Credentials.leaf.Leaf.Subject.CommonName)

	o.Build = "v2"
	var mismatch *MismatchError
	require.ErrorAs(t, Renew(t.Context(), m.Credentials, o), &mismatch)
	o.Build = testBuild

	stranger, err := newAuthority(t).Member("mallory")
	require.NoError(t, err)
	assert.Equal(t, OtherRun, codeOf(t, Renew(t.Context(), stranger, o)))

	require.NoError(t, a.Expel(m.Credentials.Identity().ID))
	require.Error(t, Renew(t.Context(), m.Credentials, o))
	n.eventually(t, "member "+m.Credentials.Identity().ID+" is excluded from the run")

	client := http.Client{Transport: &http.Transport{TLSClientConfig: pinnedCA(a.Hash()).config(), DisableKeepAlives: true}}
	r, err := client.Post("https://"+s.Addr().String()+renewPath, "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	defer r.Body.Close()
	assert.Equal(t, http.StatusForbidden, r.StatusCode)
	n.eventually(t, "renewing a certificate takes the present one")
}

func TestJoinIsCanceled(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Join(ctx, JoinOptions{Token: newToken(t, newAuthority(t), TokenOptions{Addresses: []string{l.Addr().String()}})})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
