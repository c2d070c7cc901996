package identity

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority()
	require.NoError(t, err)
	return a
}

func newToken(t *testing.T, a *Authority, o TokenOptions) Token {
	t.Helper()
	if o.Addresses == nil {
		o.Addresses = []string{"127.0.0.1:7070"}
	}
	token, err := a.NewToken(o)
	require.NoError(t, err)
	return token
}

func TestTokenText(t *testing.T) {
	t.Parallel()
	addresses := []string{"10.0.0.1:7070", "host-1.example.org:1", "[2001:db8::1]:65535", "[fe80::1%eth0]:7070"}
	token := newToken(t, newAuthority(t), TokenOptions{Addresses: addresses})
	text := token.Reveal()
	assert.True(t, strings.HasPrefix(text, "gp1.10.0.0.1:7070,host-1.example.org:1,2001:db8::1:65535,fe80::1%eth0:7070."), text)
	assert.NotContains(t, text, "[", "shells interpret brackets")
	for _, spelling := range []string{text, " " + text + "\n", strings.Replace(text, "2001:db8::1:65535", "[2001:db8::1]:65535", 1)} {
		parsed, err := ParseToken(spelling)
		require.NoError(t, err, spelling)
		assert.True(t, token.secret == parsed.secret)
		assert.Equal(t, addresses, parsed.Addresses)
		assert.Equal(t, token.CA, parsed.CA)
		assert.Equal(t, token.ID(), parsed.ID())
	}
}

func TestTokenErrors(t *testing.T) {
	t.Parallel()
	token := newToken(t, newAuthority(t), TokenOptions{})
	text := token.Reveal()
	fields := strings.Split(text, ".")
	hash, key := fields[len(fields)-2], fields[len(fields)-1]
	with := func(addresses string) string { return "gp1." + addresses + "." + hash + "." + key }
	for input, want := range map[string]string{
		"":                                       "token: empty, expected the line that the coordinator printed",
		strings.Repeat("x", 5000):                "token: found 5000 characters, expected at most 4096",
		text[:20] + " " + text[20:]:              "token: found white space inside: was the line broken when it was copied?",
		"gp2" + text[3:]:                         "token: found version gp2, expected gp1: use the same build on both computers",
		text[2:]:                                 `token: does not begin with "gp1.": was all of the line copied?`,
		"gp1." + key:                             "token: incomplete, expected gp1.<addresses>.<hash of the CA>.<secret>",
		text[:len(text)-1]:                       "token: secret: found 21 characters, expected 22",
		text + "x":                               "token: secret: found 23 characters, expected 22",
		text[:len(text)-1] + "!":                 "token: secret: found characters that are not base64url",
		"gp1.a:1." + hash[1:] + "." + key:        "token: hash of the CA: found 42 characters, expected 43",
		"gp1.a:1." + hash[1:] + "=" + "." + key:  "token: hash of the CA: found characters that are not base64url",
		with(""):                                 `token: address "": expected host:port`,
		with("10.0.0.1"):                         `token: address "10.0.0.1": expected host:port`,
		with("10.0.0.1:"):                        `token: address "10.0.0.1:": found port "", expected 1 to 65535`,
		with("10.0.0.1:0"):                       `token: address "10.0.0.1:0": found port "0", expected 1 to 65535`,
		with("10.0.0.1:65536"):                   `token: address "10.0.0.1:65536": found port "65536", expected 1 to 65535`,
		with("10.0.0.1:1,"):                      `token: address "": expected host:port`,
		with("a b:1"):                            "token: found white space inside: was the line broken when it was copied?",
		with("a/b:1"):                            `token: address "a/b:1": found "a/b", expected an IP address or a host name`,
		with("1:2:3:4"):                          `token: address "1:2:3:4": found "1:2:3", expected an IPv6 address`,
		with("[10.0.0.1]:4"):                     `token: address "[10.0.0.1]:4": brackets belong around an IPv6 address`,
		with("[::1:4"):                           `token: address "[::1:4": brackets belong around an IPv6 address`,
		with("fe80::1%a/b:4"):                    `token: address "fe80::1%a/b:4": found zone "a/b", expected the name of a network interface`,
		with(strings.Repeat("a:1,", 16) + "a:1"): "token: found more than 16 addresses",
	} {
		_, err := ParseToken(input)
		require.EqualError(t, err, want, "%.100s", input)
		assert.NotContains(t, err.Error(), key)
		assert.NotContains(t, err.Error(), hash)
	}
}

// A token, its options' owner and everything that holds a secret print without it.
func TestSecretsAreRedacted(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	token := newToken(t, a, TokenOptions{})
	credentials, err := a.Coordinator()
	require.NoError(t, err)
	text := token.Reveal()
	key := text[strings.LastIndexByte(text, '.')+1:]
	j, err := json.Marshal(struct {
		T Token
		O JoinOptions `json:"-"`
	}{T: token})
	require.NoError(t, err)
	assert.Contains(t, string(j), ".redacted")
	assert.NotContains(t, string(j), key)
	for _, v := range []any{token, &token, token.secret, JoinOptions{Token: token}, a, credentials, []Token{token}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%U", "%08b"} {
			printed := fmt.Sprintf(verb, v)
			assert.NotContains(t, printed, key, verb)
			for _, raw := range [][]byte{token.secret[:], a.key, credentials.key} {
				for _, form := range []string{"%x", "%X", "%d", "%v", "%o", "%b"} {
					assert.NotContains(t, printed, strings.Trim(fmt.Sprintf(form, raw), "[]"), "%s of %T", verb, v)
				}
			}
		}
	}
	assert.Equal(t, "gp1.127.0.0.1:7070."+encoding.EncodeToString(token.CA[:])+".redacted", token.String())
}

func FuzzParseToken(f *testing.F) {
	a, err := NewAuthority()
	if err != nil {
		f.Fatal(err)
	}
	token, err := a.NewToken(TokenOptions{Addresses: []string{"10.0.0.1:7070", "[fe80::1%eth0]:7070", "a.b:1"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token.Reveal())
	f.Add("gp1.a:1..")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err != nil {
			return
		}
		again, err := ParseToken(token.Reveal())
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if again.Reveal() != token.Reveal() || len(token.Addresses) == 0 || len(token.Addresses) > maxAddresses {
			t.Fatalf("%q: found %v, then %v", text, token, again)
		}
	})
}
