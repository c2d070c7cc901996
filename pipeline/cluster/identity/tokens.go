package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"slices"
	"time"
)

const (
	defaultTokenLifetime = time.Hour
	maxTokens            = 1000
)

// TokenOptions describes a new token.
type TokenOptions struct {
	Addresses []string      // host:port where members reach the coordinator's [JoinServer]
	Lifetime  time.Duration // 0: one hour
	SingleUse bool          // the token admits one member
}

// TokenState is what an authority knows about a token.
type TokenState struct {
	ID        string
	Addresses []string
	Expires   time.Time
	SingleUse bool
	Used      int // members that it admitted
	Revoked   bool
}

// issuedToken is a token as the authority keeps it: the secret's hash, not the secret.
type issuedToken struct {
	TokenState
	Hash [sha256.Size]byte
}

// NewToken makes a token. The authority keeps the hash of its secret only: the text cannot be printed again later.
func (a *Authority) NewToken(o TokenOptions) (Token, error) {
	if len(o.Addresses) == 0 || len(o.Addresses) > maxAddresses {
		return Token{}, fmt.Errorf("token: found %d addresses, expected 1 to %d", len(o.Addresses), maxAddresses)
	}
	t := Token{CA: a.Hash()}
	for _, text := range o.Addresses {
		address, err := parseAddress(text)
		if err != nil {
			return Token{}, fmt.Errorf("token: %w", err)
		}
		t.Addresses = append(t.Addresses, address)
	}
	if o.Lifetime == 0 {
		o.Lifetime = defaultTokenLifetime
	}
	if o.Lifetime < 0 {
		return Token{}, fmt.Errorf("token: found a lifetime of %v, expected a positive one", o.Lifetime)
	}
	if _, err := rand.Read(t.secret[:]); err != nil {
		return Token{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetTokens()
	if len(a.tokens) == maxTokens {
		return Token{}, fmt.Errorf("token: the run has %d tokens already", maxTokens)
	}
	state := TokenState{ID: t.ID(), Addresses: t.Addresses, Expires: a.now().Add(o.Lifetime).UTC(), SingleUse: o.SingleUse}
	a.tokens = append(a.tokens, issuedToken{state, t.secret.hash()})
	if err := a.save(); err != nil {
		a.tokens = slices.DeleteFunc(a.tokens, func(known issuedToken) bool { return known.ID == state.ID })
		return Token{}, err
	}
	return t, nil
}

// forgetTokens drops tokens that expired more than a day ago. Until then a member learns that its token expired.
func (a *Authority) forgetTokens() {
	a.tokens = slices.DeleteFunc(a.tokens, func(t issuedToken) bool { return a.now().After(t.Expires.Add(24 * time.Hour)) })
}

// RevokeTokens makes all tokens useless that there are so far. Members that they admitted stay: see [Authority.Expel].
func (a *Authority) RevokeTokens() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.refresh(); err != nil {
		return err
	}
	for i := range a.tokens {
		a.tokens[i].Revoked = true
	}
	return a.save()
}

// Tokens lists the tokens of the run that this process knows of, the oldest first.
func (a *Authority) Tokens() []TokenState {
	a.mu.Lock()
	defer a.mu.Unlock()
	var states []TokenState
	for _, t := range a.tokens {
		states = append(states, t.TokenState)
	}
	return states
}

// checkToken returns the index of the valid token with this secret. It compares with every token, each in constant
// time.
func (a *Authority) checkToken(s secret) (int, error) {
	if err := a.refresh(); err != nil {
		return 0, refuse(Unavailable, "the coordinator could not read which tokens are revoked")
	}
	found, hash := -1, s.hash()
	for i := range a.tokens {
		if subtle.ConstantTimeCompare(a.tokens[i].Hash[:], hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return 0, refuse(WrongToken, "the coordinator does not know this token: was it made by an earlier run?")
	}
	switch t := a.tokens[found].TokenState; {
	case t.Revoked:
		return 0, refuse(RevokedToken, "token %s is revoked: ask for a new one", t.ID)
	case a.now().After(t.Expires):
		return 0, refuse(ExpiredToken, "token %s expired at %s: ask for a new one", t.ID, t.Expires.Format(time.RFC3339))
	case t.SingleUse && t.Used > 0:
		return 0, refuse(UsedToken, "token %s has admitted a member already and is for a single use: ask for a new one", t.ID)
	}
	return found, nil
}

// useToken checks a secret, has grant do its work, and counts the use. A single-use token is recorded before it is
// used, so that a restart of the coordinator does not make it valid again.
func (a *Authority) useToken(s secret, grant func() error) (id string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, err := a.checkToken(s)
	if err != nil {
		return "", err
	}
	t := &a.tokens[i]
	t.Used++
	if t.SingleUse {
		if err := a.save(); err != nil {
			t.Used--
			return t.ID, refuse(Unavailable, "the coordinator could not record the use of token %s", t.ID)
		}
	}
	return t.ID, grant()
}

// validToken checks a secret without using its token.
func (a *Authority) validToken(s secret) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, err := a.checkToken(s)
	return err
}
