package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
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
	return atomicfile.WritePrivate(path, func(w io.Writer) error {
		_, err := io.WriteString(w, t.Reveal()+"\n")
		return err
	})
}

// tokenPoll is the time between two attempts to join with the token of a file.
const tokenPoll = 2 * time.Second

// joinByFile joins the run whose token is, or soon will be, in a file. The file may still have the token of an earlier
// run, and the coordinator may still be starting: both end with another attempt until the time is over.
func joinByFile(a *app, path string, wait time.Duration, o *identity.JoinOptions) (*identity.Membership, error) {
	deadline := time.Now().Add(wait)
	for noted := false; ; noted = true {
		m, err := joinOnce(a.ctx, path, o)
		if err == nil {
			return m, nil
		}
		if a.ctx.Err() != nil {
			return nil, a.ctx.Err()
		}
		if !mayJoinLater(err) || time.Now().After(deadline) {
			return nil, usererror.New(err)
		}
		if !noted {
			a.note("%s; trying again for %v", waitingFor(path, err), wait)
		}
		select {
		case <-time.After(tokenPoll):
		case <-a.ctx.Done():
			return nil, a.ctx.Err()
		}
	}
}

// waitingFor says why joinByFile makes another attempt.
func waitingFor(path string, err error) string {
	if errors.Is(err, os.ErrNotExist) {
		return path + ": no such file yet"
	}
	return err.Error()
}

func joinOnce(ctx context.Context, path string, o *identity.JoinOptions) (*identity.Membership, error) {
	text, err := strictyaml.ReadSmall(path)
	if err != nil {
		return nil, err
	}
	if o.Token, err = identity.ParseToken(string(text)); err != nil {
		return nil, &tokenFileError{path, err}
	}
	return identity.Join(ctx, *o)
}

// tokenFileError is a file without a token.
type tokenFileError struct {
	path string
	error
}

func (e *tokenFileError) Error() string { return e.path + ": " + e.error.Error() }

// mayJoinLater reports whether another attempt with the same file may succeed.
func mayJoinLater(err error) bool {
	var mismatch *identity.MismatchError
	var content *tokenFileError
	var refused *identity.Refused
	switch {
	case errors.As(err, &mismatch), errors.As(err, &content):
		return false
	case errors.As(err, &refused):
		switch refused.Code {
		case identity.WrongToken, identity.ExpiredToken, identity.OtherCA, identity.TooMany, identity.Unavailable:
			return true
		}
		return false
	case errors.Is(err, os.ErrNotExist):
		return true
	}
	return !errors.Is(err, os.ErrPermission) // the coordinator does not answer yet
}

// hostName is the name of this computer.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "member"
	}
	return name
}
