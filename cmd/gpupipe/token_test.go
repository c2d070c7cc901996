package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A member that starts before its coordinator, with the token of an earlier run in the file, joins once the new one is
// there. The token is printed nowhere, only its owner may read the file, and the file is removed at the end.
func TestTokenFile(t *testing.T) {
	dir := t.TempDir()
	c, path := small(t, dir), filepath.Join(dir, "token")
	stale := "gp1.127.0.0.1:1." + strings.Repeat("A", 43) + "." + strings.Repeat("A", 22) + "\n"
	require.NoError(t, os.WriteFile(path, []byte(stale), 0o600))
	type result struct {
		code      int
		out, errs string
	}
	joined := make(chan result, 1)
	go func() {
		code, out, errs := command("join", "--token-file", path, "--device", "cpu:0/1")
		joined <- result{code, out, errs}
	}()
	hosted := make(chan result, 1)
	go func() {
		code, out, errs := command("host", c, "--listen", "127.0.0.1:0", "--token-file", path, "--device", "cpu:0/1", "--set",
			"pipeline.devices=[]", "--set", "train.steps=2")
		hosted <- result{code, out, errs}
	}()
	secret := ""
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(path)
		secret = strings.TrimSpace(string(text))
		return err == nil && string(text) != stale
	}, time.Minute, 10*time.Millisecond)
	secret = secret[strings.LastIndex(secret, ".")+1:]
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	for name, results := range map[string]chan result{"host": hosted, "join": joined} {
		r := <-results
		assert.Equal(t, exitOK, r.code, "%s: %s", name, r.errs)
		assert.NotContains(t, r.out+r.errs, secret, name)
	}
	_, err = os.Stat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.WriteFile(path, []byte("no token\n"), 0o600))
	code, _, errs := command("join", "--token-file", path)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, path+": token: found white space inside")
	code, _, errs = command("join", "--token-file", filepath.Join(dir, "none"), "--token-wait", "1ms")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "no such file")
	code, _, errs = command("join", strings.TrimSpace(stale), "--token-wait", "1ms")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "connection refused")
	code, _, errs = command("join", "--token-file", path, strings.TrimSpace(stale))
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "expected one of them")
}

// While the coordinator does not answer, join says what it tries and for how long, every ten seconds at most.
// An attempt that takes long says within seconds what it tries, once.
func TestAnAttemptSaysWhatItTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notes bytes.Buffer
		a := &app{ctx: t.Context(), stdout: io.Discard, stderr: &notes}
		for wait, want := range map[time.Duration]string{time.Second: "", 20 * time.Second: "no answer yet from n1:7433, 192.0.2.7:7433\n"} {
			notes.Reset()
			_, err := attempt(a, []string{"n1:7433", "192.0.2.7:7433"}, func() (*identity.Membership, error) {
				time.Sleep(wait)
				return nil, io.EOF
			})
			assert.ErrorIs(t, err, io.EOF)
			assert.Equal(t, want, notes.String())
		}
	})
}

func TestJoinSaysWhatItTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notes bytes.Buffer
		a := &app{ctx: t.Context(), stdout: io.Discard, stderr: &notes}
		began, attempts := time.Now(), 0
		join := func() (*identity.Membership, error) {
			attempts++
			return nil, fmt.Errorf("dial tcp: lookup gpu.example: no such host (attempt %d)", attempts)
		}
		_, err := joinWithin(a, 30*time.Second, mayAnswerLater, join)
		assert.ErrorContains(t, err, "no such host")
		assert.Equal(t, 32*time.Second, time.Since(began))
		assert.Equal(t, "dial tcp: lookup gpu.example: no such host (attempt 1); trying again for 30s\n"+
			"dial tcp: lookup gpu.example: no such host (attempt 6); trying again for 20s\n"+
			"dial tcp: lookup gpu.example: no such host (attempt 11); trying again for 10s\n"+
			"dial tcp: lookup gpu.example: no such host (attempt 16); trying again for 0s\n", notes.String())

		notes.Reset()
		_, err = joinWithin(a, time.Minute, mayAnswerLater, func() (*identity.Membership, error) {
			return nil, &identity.Refused{Code: identity.WrongToken}
		})
		assert.Error(t, err)
		assert.Empty(t, notes.String(), "what time does not change ends at once")
	})
}
