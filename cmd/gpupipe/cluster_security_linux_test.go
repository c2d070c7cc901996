package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// secretOf is the secret of a token.
func secretOf(token string) string { return token[strings.LastIndexByte(token, '.')+1:] }

// changed returns a token with other bytes in one of its parts, counted from the end.
func changed(token string, part int) string {
	parts := strings.Split(token, ".")
	at := len(parts) - part
	b, err := base64.RawURLEncoding.DecodeString(parts[at])
	if err != nil {
		panic(err) // of a token that is none
	}
	b[0] ^= 1
	parts[at] = base64.RawURLEncoding.EncodeToString(b)
	return strings.Join(parts, ".")
}

// The secret of a token is not among the arguments of a member, nor in its environment, nor in what the processes
// write.
func joinHidesTheToken(t *testing.T) {
	r := newTestRun(t, 1_000_000, twoBW)
	host := r.host("--device", "cpu:0/1")
	token := host.token()
	argument := launch(t, nil, "join", "--name", "m", token, "--device", "cpu:0/1")
	host.awaitStep(40)
	environment := r.join(token, "n")
	host.await(`n-\w+ joined`)
	for _, p := range []*process{argument, environment, host} {
		for _, name := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name))
			require.NoError(t, err)
			require.NotEmpty(t, text)
			assert.NotContains(t, string(text), secretOf(token), name)
		}
	}
	host.signal(os.Interrupt)
	text := host.exit(exitInterrupted)
	assert.Equal(t, 1, strings.Count(text, secretOf(token)), "once, in the event that shows the token")
	for _, m := range []*process{argument, environment} {
		assert.NotContains(t, m.exit(exitInterrupted), secretOf(token))
	}
	require.NoError(t, filepath.Walk(r.dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		assert.NotContains(t, string(content), secretOf(token), path)
		return err
	}))
}

// Both sides say why a member is refused.
func joinIsRefused(t *testing.T) {
	r := newTestRun(t, 8, twoBW)
	host := r.host("--device", "cpu:0/1", "--members", "2", "--single-use")
	token := host.token()
	var first *process
	for _, c := range []struct {
		name, token, environment, member, coordinator string
	}{
		{"another secret", changed(token, 1), "", `refuses: the coordinator does not know this token`,
			`refused: the coordinator does not know this token`},
		{"another CA", changed(token, 2), "", `the CA there is not the one that the token names`,
			`refused: the other side refuses this certificate`},
		{"no token", "gp1.127.0.0.1:1.a.bc", "", `gpupipe: token: secret: found 2 characters, expected 22`, ``},
		{"another build", token, "GPUPIPE_TEST_COMMAND=another build",
			`build of this member is "another build", build of the coordinator is ".*\(.*\)"`,
			`build of this member is "another build", build of the coordinator is ".*\(.*\)"`},
		{"used", token, "", `has admitted a member already`, `refused: token \w+ has admitted a member already`},
	} {
		if c.name == "used" { // the other build has not used it
			first = r.join(token, "first")
			host.await(`first-\w+ joined`)
		}
		m := launch(t, []string{"GPUPIPE_TOKEN=" + c.token, c.environment}, "join", "--device", "cpu:0/1")
		text := m.exit(exitMistake)
		assert.Regexp(t, c.member, text, c.name)
		assert.NotContains(t, text, secretOf(c.token), c.name)
		if c.coordinator != "" {
			host.await(c.coordinator)
		}
	}
	text, _, _ := host.output()
	assert.Equal(t, 1, strings.Count(text, secretOf(token)), "once, in the event that shows the token")
	host.kill()
	first.kill()
	late := newTestRun(t, 8, twoBW)
	host = late.host("--device", "cpu:0/1", "--members", "2", "--lifetime", "1s")
	token = host.token()
	time.Sleep(time.Second) // its lifetime
	assert.Regexp(t, `refuses: token \w+ expired at`, late.join(token, "late").exit(exitMistake))
	host.await(`refused: token \w+ expired at`)
	host.kill()
}

// A member that is expelled ends, and a token that is revoked admits no one. The run goes on with the member of a new
// token, to the bits of one process.
func expelsAMember(t *testing.T) {
	const steps = 300
	r := newTestRun(t, steps, twoBW)
	members := func(args ...string) (code int, text, errs string) {
		return command(append([]string{"members", r.dir}, args...)...)
	}
	host := r.host("--device", "cpu:0/1")
	token := host.token()
	mallory := r.join(token, "mallory")
	id := host.await(`(mallory-\w+) joined`)[1]
	host.awaitStep(40)
	code, _, errs := members("--expel", "mallory")
	require.Equal(t, exitMistake, code, errs)
	assert.Regexp(t, `--expel: found "mallory", expected one of local-\w+, `+id, errs)
	code, text, errs := members("--expel", id, "--revoke-tokens", "--new-token", "--json")
	require.Equal(t, exitOK, code, errs)
	var done struct {
		Expelled []string
		Revoked  bool
		Token    string
	}
	require.NoError(t, json.Unmarshal([]byte(text), &done))
	assert.Equal(t, []string{id}, done.Expelled)
	assert.True(t, done.Revoked)
	host.await(id + ` is expelled: gpupipe members --expel`)
	assert.Contains(t, mallory.exit(exitMistake), "the coordinator has expelled this member")
	assert.Regexp(t, `refuses: token \w+ is revoked`, r.join(token, "mallory").exit(exitMistake))
	other := r.join(done.Token, "other")
	host.await(`restarted, going on from step`)
	host.exit(exitOK)
	other.exit(exitOK)
	equalBits(t, r.alone(2), r.dir, steps)
	eachStepOnce(t, r.dir, steps)
	_, text, _ = members()
	assert.NotContains(t, text, id)
}
