package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// RemoteKind classifies the error of a handler on a member.
type RemoteKind string

const (
	RemoteOther       RemoteKind = ""            // a defect, as far as the member knows
	RemoteUser        RemoteKind = "user"        // the user's fault: the error is marked with package usererror here too
	RemoteCanceled    RemoteKind = "canceled"    // the request was canceled
	RemoteNoHandler   RemoteKind = "no-handler"  // the member has no handler of this name
	RemoteUnreachable RemoteKind = "unreachable" // the member has not reached another: transport.ErrUnreachable
)

// RemoteError is the error that a member's handler returned.
type RemoteError struct {
	Member string
	Text   string
	Kind   RemoteKind
}

func (e *RemoteError) Error() string { return fmt.Sprintf("member %s: %s", e.Member, e.Text) }

func (e *RemoteError) Unwrap() error {
	switch e.Kind {
	case RemoteUser:
		return usererror.New(errors.New(e.Text))
	case RemoteCanceled:
		return context.Canceled
	case RemoteUnreachable:
		return transport.ErrUnreachable
	}
	return nil
}

// LostError is the error of a request whose session has ended before the answer came.
type LostError struct {
	Member string
	Reason string
}

func (e *LostError) Error() string { return fmt.Sprintf("member %s: %s", e.Member, e.Reason) }

// ErrUnknownMember is the error of a call for a member that has no session.
var ErrUnknownMember = errors.New("no such member")

// ErrCoordinatorClosed is the error by which a member learns that the coordinator has ended the run.
var ErrCoordinatorClosed = errors.New("the coordinator has ended the run")

// Outcome is how a run has ended.
type Outcome string

// Outcomes of runs. The empty one says nothing.
const (
	Finished Outcome = "finished"
	Stopped  Outcome = "stopped"  // by the user of the coordinator; it has been saved
	Diverged Outcome = "diverged" // the loss is not finite any more
	Refused  Outcome = "refused"  // by bad input
	Failed   Outcome = "failed"
)

// Ending tells members why a run has ended.
type Ending struct {
	Outcome Outcome `json:"outcome,omitempty"`
	Text    string  `json:"text,omitempty"` // the error
}

// EndedError is the ErrCoordinatorClosed of a coordinator that has said why.
type EndedError struct{ Ending }

func (e *EndedError) Error() string {
	text := map[Outcome]string{Finished: "the run has finished", Stopped: "the run was stopped on the coordinator",
		Diverged: "the run has diverged",
		Refused:  "the coordinator has refused the run", Failed: "the run has failed on the coordinator"}[e.Outcome]
	if text == "" {
		text = ErrCoordinatorClosed.Error()
	}
	if e.Text != "" {
		text += ": " + printable.Text(e.Text)
	}
	return text
}

// Is reports whether the target is ErrCoordinatorClosed.
func (e *EndedError) Is(target error) bool { return target == ErrCoordinatorClosed }

// failure is the body of messageFailure.
type failure struct {
	Text string     `json:"text"`
	Kind RemoteKind `json:"kind,omitempty"`
}

const maxErrorText = 64 << 10

func encodeFailure(err error) []byte {
	f := failure{Text: err.Error()}
	var remote *RemoteError
	switch {
	case errors.As(err, &remote):
		f.Kind = remote.Kind
	case usererror.Is(err):
		f.Kind = RemoteUser
	case errors.Is(err, context.Canceled):
		f.Kind = RemoteCanceled
	case errors.Is(err, transport.ErrUnreachable):
		f.Kind = RemoteUnreachable
	}
	f.Text = f.Text[:min(len(f.Text), maxErrorText)]
	b, err := json.Marshal(f)
	if err != nil {
		return []byte(`{"text":"the error could not be encoded"}`)
	}
	return b
}

func decodeFailure(member string, b []byte) *RemoteError {
	var f failure
	if err := json.Unmarshal(b, &f); err != nil {
		f.Text = "the error could not be decoded"
	}
	return &RemoteError{Member: member, Text: f.Text, Kind: f.Kind}
}

// hello is the greeting of a member's session.
type hello struct {
	Protocol int    `json:"protocol"`
	Build    string `json:"build"`
	Info     []byte `json:"info,omitempty"`
}

// rejection is the text of a refusal to begin a session.
type rejection struct {
	Text     string                  `json:"text"`
	Mismatch *identity.MismatchError `json:"mismatch,omitempty"`
}

// explain says in plain words why the coordinator or this member refused a session or a connection. It marks refusals
// that are the user's.
func explain(err error) error {
	var refusal *transport.Refusal
	var refused *identity.Refused
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal) && refusal.Code == transport.Expelled:
		err = &identity.Refused{Code: identity.Expelled, Reason: "the coordinator has expelled this member: " +
			printable.Text(refusal.Text)}
	case errors.As(err, &refusal) && refusal.Code == transport.Refused:
		var r rejection
		if json.Unmarshal([]byte(refusal.Text), &r) == nil && r.Mismatch != nil {
			return usererror.New(r.Mismatch)
		}
		return fmt.Errorf("the coordinator refuses the session: %.300q", refusal.Text)
	default:
		err = identity.Explain(err)
	}
	if errors.As(err, &refused) && slices.Contains(ofUser, refused.Code) {
		return usererror.New(err)
	}
	return err
}

// ofUser are the refusals that end only if the user does something: joins again, or sets a clock.
var ofUser = []identity.Code{identity.OtherCA, identity.OtherRun, identity.NoCertificate, identity.Expired, identity.Expelled}

func encodeJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types above always encode
	}
	return b
}
