//go:build !js

// The tests open the page in a headless Chromium, which becomes a member beside native ones.
package main_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/chromium"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	tolerance = 1e-4            // of losses: the devices have other kernels
	limit     = 5 * time.Minute // a guard against hanging alone
)

// build builds the page into a new folder, with the script that drives it. It looks at the sources, so that go test
// does not use a cached result after a change of them.
func build(t *testing.T) fs.FS {
	t.Helper()
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err == nil && (ext == ".go" || ext == ".js" || ext == ".html") {
			_, err = os.Stat(path)
		}
		return err
	}))
	dir := t.TempDir()
	out, err := exec.Command("../../.ci/tab.sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	program, err := os.Stat(filepath.Join(dir, "program.wasm.gz"))
	require.NoError(t, err)
	assert.Less(t, program.Size(), int64(8e6), "a package that looks up methods by name, as text/template does, adds a third")
	name := filepath.Join(dir, "index.html")
	index, err := os.ReadFile(name)
	require.NoError(t, err)
	const script = `<script src="page.js">`
	require.Equal(t, 1, bytes.Count(index, []byte(script)))
	index = bytes.Replace(index, []byte(script), []byte(`<script src="drive.js"></script>`+script), 1)
	require.NoError(t, os.WriteFile(name, index, 0o644))
	return os.DirFS(dir)
}

// browser is a headless Chromium that shows the page of a host.
type browser struct {
	mu     sync.Mutex
	pages  []string // its texts so far
	leave  bool     // close the page
	cancel context.CancelFunc
	done   chan struct{}
}

// browse shows the page of a host until the test ends.
func browse(t *testing.T, h *coordinator.Host) *browser {
	t.Helper()
	u, err := url.Parse(h.Page(""))
	require.NoError(t, err)
	b := &browser{done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("/", httputil.NewSingleHostReverseProxy(&url.URL{Scheme: u.Scheme, Host: u.Host}))
	mux.Handle("/drive.js", http.FileServer(http.Dir("testdata")))
	mux.HandleFunc("POST /seen", func(w http.ResponseWriter, r *http.Request) {
		var text bytes.Buffer
		_, _ = text.ReadFrom(r.Body)
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.pages) == 0 || b.pages[len(b.pages)-1] != text.String() {
			b.pages = append(b.pages, text.String())
		}
		if b.leave {
			_, _ = w.Write([]byte("close"))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	b.cancel = cancel
	go func() {
		defer close(b.done)
		if _, err := (chromium.Page{Handler: mux, Path: "#" + h.Token().Reveal()}).Run(ctx); ctx.Err() == nil {
			t.Errorf("the browser has ended: %v", err)
		}
	}()
	t.Cleanup(b.quit)
	return b
}

// quit ends the browser.
func (b *browser) quit() {
	b.cancel()
	<-b.done
}

// closeTab closes the page, as a user does.
func (b *browser) closeTab() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leave = true
}

// shows waits until the page shows a text, or has shown it before.
func (b *browser) shows(t *testing.T, pattern string) {
	t.Helper()
	seen := regexp.MustCompile(pattern)
	shown := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.ContainsFunc(b.pages, seen.MatchString)
	}
	if !assert.Eventually(t, shown, 20*time.Second, 50*time.Millisecond, pattern) {
		t.Logf("the page has shown: %q", b.pages)
	}
}

// host is a coordinator without devices.
func host(t *testing.T, page *coordinator.BrowserOptions) *coordinator.Host {
	t.Helper()
	return hostWith(t, page, t.Logf)
}

// hostWith is a host that reports to note.
func hostWith(t *testing.T, page *coordinator.BrowserOptions, note func(format string, args ...any)) *coordinator.Host {
	t.Helper()
	h, err := coordinator.NewHost(t.Context(), coordinator.HostOptions{Dir: t.TempDir(), Address: "127.0.0.1:0", Build: version.String(),
		Token: identity.TokenOptions{Lifetime: time.Hour}, Rejoin: time.Second, Modelled: true, Browser: page, Note: note})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, h.Close()) })
	return h
}

// join adds a native member.
func join(t *testing.T, h *coordinator.Host, name string) {
	t.Helper()
	o := identity.JoinOptions{Token: h.Token(), Name: name, Build: version.String()}
	m, err := identity.Join(t.Context(), o)
	require.NoError(t, err)
	p, err := member.Start(t.Context(), member.ProcessOptions{Options: member.Options{OpenDevice: testdevice.Open, Note: t.Logf},
		Credentials: m.Credentials, Control: m.Control, Build: version.String(), Devices: []string{"cpu:0/1"}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
}

func wait(t *testing.T, h *coordinator.Host, members int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	require.NoError(t, h.Wait(ctx, func(_, found int) bool { return found == members }))
}

// run trains on the members of a host, in three stages, with a loss that a module builds. The losses must not depend on
// the depth, which follows the measured links, so all microbatches are stale.
func run(t *testing.T, h *coordinator.Host, onStep func(train.Progress)) []train.Progress {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	notes := &runtest.Notes{OnStep: onStep}
	_, err := h.Train(ctx, func(int, bool) (config.Config, error) {
		return traintest.Demo(t, dir, "model.n_layers=3", "pipeline.schedule=2bw", "train.microbatches=4",
			"pipeline.stale_microbatches=all", "pipeline.stages=3",
			traintest.WithHooks(traintest.ScaledLoss(t)+", hook: build_loss"),
			"train.steps="+cmp.Or(os.Getenv(stepsVariable), "6")), nil
	}, train.Options{Report: notes})
	require.NoError(t, err)
	return notes.Steps
}

// stepsVariable is the environment variable with the number of steps, for a longer test by hand.
const stepsVariable = "GPUPIPE_TAB_STEPS"

func TestTab(t *testing.T) {
	chromium.Rest(t)
	page := &coordinator.BrowserOptions{Address: "localhost:0", Files: build(t)}
	native := host(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		join(t, native, name)
	}
	wait(t, native, 3)
	want := run(t, native, nil)
	require.NoError(t, native.Close())
	assert.NotEqual(t, want[0].Loss, want[len(want)-1].Loss)
	t.Run("computes what a native member does", func(t *testing.T) {
		h := host(t, page)
		b := open(t, h)
		equal(t, want, run(t, h, nil))
		b.shows(t, `Member\ntab-[0-9a-f]+\nDevice\n\S.* \(\w+\)\nRanks\n0 of 3 stages\n`)
		b.shows(t, fmt.Sprintf(`Steps finished\n%d\nMicrobatches a second\n\S+\nSent, received\n[\d.]+ [KM]iB, [\d.]+ [KM]iB\n`, len(want)))
		assert.NoError(t, h.Close())
		b.shows(t, "The run has ended")
	})
	t.Run("works beside another tab", func(t *testing.T) {
		h := host(t, page)
		for i := range 2 {
			browse(t, h)
			wait(t, h, i+1)
		}
		join(t, h, "a")
		wait(t, h, 3)
		equal(t, want, run(t, h, nil))
	})
	t.Run("may be closed", func(t *testing.T) {
		var left atomic.Bool // of its own accord; a member that is silent until its lease ends is lost
		h := hostWith(t, page, func(format string, args ...any) {
			t.Logf(format, args...)
			text := fmt.Sprintf(format, args...)
			left.Store(left.Load() || strings.HasSuffix(text, " has left: its tab is closed"))
		})
		b := open(t, h)
		closed := false
		steps := run(t, h, func(p train.Progress) {
			if p.Step == 3 && !closed {
				closed = true
				join(t, h, "spare")
				wait(t, h, 4)
				b.closeTab()
				wait(t, h, 3)
			}
		})
		assert.True(t, left.Load())
		assert.Equal(t, len(want), steps[len(steps)-1].Step)
		for _, m := range h.Members() {
			assert.Len(t, m.Ranks, 1, m.ID)
		}
	})
}

// equal compares losses.
func equal(t *testing.T, want, got []train.Progress) {
	t.Helper()
	require.Len(t, got, len(want))
	worst := 0.0
	for i := range want {
		worst = max(worst, math.Abs(got[i].Loss-want[i].Loss))
	}
	t.Logf("losses of %d steps differ by at most %.1e", len(want), worst)
	assert.Less(t, worst, tolerance)
}

// open shows the page of a host and adds two native members, so that the tab has the first rank.
func open(t *testing.T, h *coordinator.Host) *browser {
	t.Helper()
	b := browse(t, h)
	wait(t, h, 1)
	join(t, h, "a")
	join(t, h, "b")
	wait(t, h, 3)
	return b
}
