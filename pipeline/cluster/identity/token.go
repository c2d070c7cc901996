package identity

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

const (
	tokenPrefix    = "gp1"
	secretBytes    = 16
	maxTokenLength = 4096 // bytes
	maxAddresses   = 16
	redacted       = "redacted"
)

var (
	encoding     = base64.RawURLEncoding.Strict() // one spelling for each value
	tokenVersion = regexp.MustCompile(`^gp[0-9]{1,4}$`)
	hostName     = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?$`)
)

// secret admits a member. It prints as "redacted".
type secret [secretBytes]byte

func (secret) Format(f fmt.State, _ rune)     { _, _ = f.Write([]byte(redacted)) }
func (secret) MarshalText() ([]byte, error)   { return []byte(redacted), nil }
func (s secret) hash() [sha256.Size]byte      { return sha256.Sum256(s[:]) }
func tokenID(hash [sha256.Size]byte) string   { return hex.EncodeToString(hash[:4]) }
func parseSecret(text string) (secret, error) { return decode[secret](text, secretBytes) }

// Token is what a member needs to join a run.
type Token struct {
	Addresses []string          // host:port of the coordinator, most useful first; IPv6 hosts stand in brackets
	CA        [sha256.Size]byte // SHA-256 of the DER of the run's CA certificate
	secret    secret
}

// Reveal returns the text that [ParseToken] reads. It contains the secret. It contains no character that a shell
// interprets: IPv6 addresses are written without brackets.
func (t Token) Reveal() string { return t.format(encoding.EncodeToString(t.secret[:])) }

// ID identifies the token in logs and to [Authority.Revoke]. It does not reveal the secret.
func (t Token) ID() string { return tokenID(t.secret.hash()) }

// String returns the token with its secret redacted.
func (t Token) String() string { return t.format(redacted) }

// Format prints the token with its secret redacted, whatever the verb.
func (t Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(t.String())) }

// MarshalText returns the token with its secret redacted.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (t Token) format(secret string) string {
	var addresses []string
	for _, a := range t.Addresses {
		addresses = append(addresses, strings.NewReplacer("[", "", "]", "").Replace(a))
	}
	return strings.Join([]string{tokenPrefix, strings.Join(addresses, ","), encoding.EncodeToString(t.CA[:]), secret}, ".")
}

// ParseToken reads a token. Its errors name the part that is wrong, and never contain the hash or the secret.
func ParseToken(text string) (Token, error) {
	t, err := parseToken(strings.TrimSpace(text))
	if err != nil {
		return Token{}, fmt.Errorf("token: %w", err)
	}
	return t, nil
}

func parseToken(text string) (t Token, err error) {
	switch {
	case text == "":
		return t, errors.New("empty, expected the line that the coordinator printed")
	case len(text) > maxTokenLength:
		return t, fmt.Errorf("found %d characters, expected at most %d", len(text), maxTokenLength)
	case strings.ContainsAny(text, " \t\r\n"):
		return t, errors.New("found white space inside: was the line broken when it was copied?")
	}
	prefix, rest, _ := strings.Cut(text, ".")
	if prefix != tokenPrefix {
		if tokenVersion.MatchString(prefix) {
			return t, fmt.Errorf("found version %s, expected %s: use the same build on both computers", prefix, tokenPrefix)
		}
		return t, fmt.Errorf("does not begin with %q: was all of the line copied?", tokenPrefix+".")
	}
	rest, key, ok := cutLast(rest, '.')
	addresses, hash, ok2 := cutLast(rest, '.')
	if !ok || !ok2 {
		return t, errors.New("incomplete, expected gp1.<addresses>.<hash of the CA>.<secret>")
	}
	if t.secret, err = parseSecret(key); err != nil {
		return t, fmt.Errorf("secret: %w", err)
	}
	if t.CA, err = decode[[sha256.Size]byte](hash, sha256.Size); err != nil {
		return t, fmt.Errorf("hash of the CA: %w", err)
	}
	t.Addresses, err = parseAddresses(addresses)
	return t, err
}

// decode reads n bytes that are base64url without padding. Its errors do not contain them.
func decode[T ~[sha256.Size]byte | ~[secretBytes]byte](text string, n int) (T, error) {
	var none T
	if want := encoding.EncodedLen(n); len(text) != want {
		return none, fmt.Errorf("found %d characters, expected %d", len(text), want)
	}
	b, err := encoding.DecodeString(text)
	if err != nil {
		return none, errors.New("found characters that are not base64url")
	}
	return T(b), nil
}

func parseAddresses(text string) ([]string, error) {
	var addresses []string
	for a := range strings.SplitSeq(text, ",") {
		if len(addresses) == maxAddresses {
			return nil, fmt.Errorf("found more than %d addresses", maxAddresses)
		}
		address, err := parseAddress(a)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// parseAddress checks host:port and returns it as package net expects it. IPv6 hosts may lack their brackets, since the
// port begins after the last colon.
func parseAddress(text string) (string, error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("address %.80q: %s", text, fmt.Sprintf(format, args...))
	}
	host, port, ok := cutLast(text, ':')
	if !ok || host == "" {
		return "", wrong("expected host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return "", wrong("found port %.20q, expected 1 to 65535", port)
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if host, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(host, ":") {
			return "", wrong("brackets belong around an IPv6 address")
		}
	}
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return "", wrong("found %.60q, expected an IPv6 address", host)
		}
		if zone := ip.Zone(); zone != "" && !hostName.MatchString(zone) {
			return "", wrong("found zone %.20q, expected the name of a network interface", zone)
		}
		return "[" + host + "]:" + port, nil
	}
	if !hostName.MatchString(host) || len(host) > 253 {
		return "", wrong("found %.60q, expected an IP address or a host name", host)
	}
	return host + ":" + port, nil
}

func cutLast(s string, separator byte) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, separator); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return "", s, false
}
