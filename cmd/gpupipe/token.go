package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
)

// tokenVariable is the environment variable with the token of gpupipe join.
const tokenVariable = "GPUPIPE_TOKEN"

// maxTokenText is more than the longest token.
const maxTokenText = 8 << 10

// tokenFromElsewhere reads the token of gpupipe join from what hideToken has handed over, from the environment or from
// standard input. A token that cannot be read is an empty one.
func tokenFromElsewhere(a *app) string {
	if text := handedOver(); text != "" {
		return text
	}
	if text := os.Getenv(tokenVariable); text != "" {
		_ = os.Unsetenv(tokenVariable) // processes that this one starts do not need it
		return text
	}
	text, err := io.ReadAll(io.LimitReader(a.stdin, maxTokenText))
	if err != nil {
		return ""
	}
	return string(text)
}

// writeToken writes a token to a file that only this user may read.
func writeToken(path string, t identity.Token) error {
	return atomicfile.WritePrivate(path, []byte(t.Reveal()+"\n"))
}

// tokenPoll is the time between two attempts to join with the token of a file.
const tokenPoll = 2 * time.Second

// notedEvery is the least time between two notes that the coordinator does not answer.
const notedEvery = 10 * time.Second

// joinWithin joins a run. While later says that an error may pass, it tries again until the time is over: the
// coordinator may be starting, also once more after a crash.
func joinWithin(a *app, wait time.Duration, later func(error) bool, join func() (*identity.Membership, error)) (*identity.Membership,
	error) {
	deadline := time.Now().Add(wait)
	var noted time.Time
	for {
		m, err := join()
		if err == nil {
			return m, nil
		}
		if a.ctx.Err() != nil {
			return nil, a.ctx.Err()
		}
		if !later(err) || time.Now().After(deadline) {
			return nil, usererror.New(err)
		}
		if now := time.Now(); now.Sub(noted) >= notedEvery {
			noted = now
			a.note("%s; trying again for %v", message(err), deadline.Sub(now).Round(time.Second))
		}
		if !sleep.For(tokenPoll, a.ctx.Done()) {
			return nil, a.ctx.Err()
		}
	}
}

// notedAfter is how long an attempt may take until a note says what it tries.
const notedAfter = 3 * time.Second

// attempt makes an attempt to join. If it takes long, because a name is looked up or an address does not answer, it
// says what it tries.
func attempt(a *app, addresses []string, join func() (*identity.Membership, error)) (m *identity.Membership, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		m, err = join()
	}()
	select {
	case <-done:
		return m, err
	case <-time.After(notedAfter):
		a.note("no answer yet from %s", strings.Join(addresses, ", "))
	}
	<-done
	return m, err
}

// joinByFile joins the run whose token is in a file.
func joinByFile(a *app, path string, o *identity.JoinOptions) (*identity.Membership, error) {
	text, err := strictyaml.ReadSmall(path)
	if err != nil {
		return nil, err
	}
	if o.Token, err = identity.ParseToken(string(text)); err != nil {
		return nil, &tokenFileError{path, err}
	}
	return attempt(a, o.Token.Addresses, func() (*identity.Membership, error) { return identity.Join(a.ctx, *o) })
}

// tokenFileError is a file without a token.
type tokenFileError struct {
	path string
	error
}

func (e *tokenFileError) Error() string { return e.path + ": " + e.error.Error() }

// mayAnswerLater reports whether another attempt with the same token may succeed.
func mayAnswerLater(err error) bool {
	var mismatch *identity.MismatchError
	var refused *identity.Refused
	if errors.As(err, &refused) {
		return refused.Code == identity.TooMany || refused.Code == identity.Unavailable
	}
	return !errors.As(err, &mismatch)
}

// mayHaveTokenLater reports whether another attempt with the same file may succeed. The file may not be written yet, or
// have the token of an earlier run.
func mayHaveTokenLater(err error) bool {
	var content *tokenFileError
	var refused *identity.Refused
	switch {
	case errors.As(err, &content), errors.Is(err, os.ErrPermission):
		return false
	case errors.As(err, &refused) && (refused.Code == identity.WrongToken || refused.Code == identity.ExpiredToken ||
		refused.Code == identity.OtherCA):
		return true
	}
	return mayAnswerLater(err)
}

// hostName is the name of this computer.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "member"
	}
	return name
}
