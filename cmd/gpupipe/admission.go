package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
)

// tokenFlags describe a token.
type tokenFlags struct {
	Lifetime  time.Duration `help:"How long members may join with the token." default:"1h"`
	SingleUse bool          `help:"The token admits one member."`
}

// check refuses a token that nobody could use.
func (f tokenFlags) check() error {
	if f.Lifetime <= 0 {
		return usererror.Errorf("--lifetime: found %v, expected a positive time", f.Lifetime)
	}
	return nil
}

// admissionFlags change who may be a member of a run.
type admissionFlags struct {
	Expel        []string `help:"Expel a member, repeatable: its connections are closed, and its certificate is refused from now on." placeholder:"MEMBER" sep:"none"`
	RevokeTokens bool     `help:"Refuse all tokens of the run so far. Members that have joined stay."`
	NewToken     bool     `help:"Print another token for the run."`
	tokenFlags
}

// any reports whether there is something to change.
func (f admissionFlags) any() bool { return len(f.Expel) > 0 || f.RevokeTokens || f.NewToken }

// expelledWait is how long the command waits until the coordinator has expelled a member. It looks each second.
const expelledWait = 5 * time.Second

// change changes who may be a member of the run in a folder, whose coordinator may be running.
func (f admissionFlags) change(a *app, dir string, asJSON bool) error {
	if err := f.check(); err != nil {
		return err
	}
	path := filepath.Join(dir, clusterDir, coordinator.AuthorityFile)
	authority, err := identity.ReadAuthority(path)
	if errors.Is(err, os.ErrNotExist) {
		return usererror.Errorf("%s: no such file, expected the folder of a run of gpupipe host", path)
	}
	if err != nil {
		return usererror.New(err)
	}
	done := event{}
	if f.RevokeTokens {
		if err := authority.RevokeTokens(); err != nil {
			return usererror.New(err)
		}
		done["revoked"] = true
	}
	if len(f.Expel) > 0 {
		if err := f.expel(a, authority, dir, asJSON); err != nil {
			return err
		}
		done["expelled"] = f.Expel
	}
	text := ""
	if f.NewToken {
		t, err := f.newToken(authority, path)
		if err != nil {
			return err
		}
		text = t.Reveal()
		done["token"] = text
	}
	if asJSON {
		return a.printJSON(done)
	}
	if f.RevokeTokens {
		a.printf("the tokens so far are revoked\n")
	}
	if f.NewToken {
		printInvitation(a, f.Lifetime, text)
	}
	return nil
}

// expel expels members and waits until the coordinator has ended their sessions.
func (f admissionFlags) expel(a *app, authority *identity.Authority, dir string, asJSON bool) error {
	members, _, err := readMembers(dir)
	if err != nil {
		return err
	}
	for _, id := range f.Expel {
		if !slices.Contains(idsOf(members), id) {
			return usererror.Errorf("--expel: found %q, expected one of %s", id, strings.Join(idsOf(members), ", "))
		}
	}
	for _, id := range f.Expel {
		if err := authority.Expel(id); err != nil {
			return usererror.New(err)
		}
	}
	ended := func(id string) bool {
		members, _, err := readMembers(dir)
		return err == nil && !slices.ContainsFunc(members, func(m coordinator.MemberState) bool {
			return m.ID == id &&
				m.State != coordinator.Ended
		})
	}
	deadline := time.Now().Add(expelledWait)
	for _, id := range f.Expel {
		for !ended(id) && time.Now().Before(deadline) && a.ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
		}
		switch {
		case asJSON:
		case ended(id):
			a.printf("%s is expelled\n", id)
		default:
			a.printf("%s is expelled as soon as the coordinator runs\n", id)
		}
	}
	return a.ctx.Err()
}

// newToken makes a token with the addresses of the one before.
func (f admissionFlags) newToken(authority *identity.Authority, path string) (identity.Token, error) {
	all := authority.Tokens()
	if len(all) == 0 || len(all[len(all)-1].Addresses) == 0 {
		return identity.Token{}, usererror.Errorf("%s: found no token with addresses, expected that of gpupipe host", path)
	}
	t, err := authority.NewToken(identity.TokenOptions{Addresses: all[len(all)-1].Addresses, Lifetime: f.Lifetime, SingleUse: f.SingleUse})
	return t, usererror.New(err)
}

func idsOf(members []coordinator.MemberState) (ids []string) {
	for _, m := range members {
		ids = append(ids, m.ID)
	}
	return ids
}

// printInvitation prints the command that makes another computer a member. token is its argument.
func printInvitation(a *app, lifetime time.Duration, token string) {
	a.printf("On other computers, within %v:\n\n  gpupipe join %s\n\n", lifetime, token)
}
