package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/testing/hubserver"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Hub that does not answer is asked once a process for what the cache has.
func TestFailedHubIsRemembered(t *testing.T) {
	s := &hubserver.Server{}
	o := start(t, s)
	for _, name := range []string{"models/o/m", "models/o/n", "datasets/o/d"} {
		s.Add(name, "main", map[string][]byte{"config.json": []byte("{}"), "model.safetensors": random(1, 10), "train.jsonl": []byte("{}")})
	}
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m", "hf:o/n"))
	require.NoError(t, fetch(t, o, hub.ForData, "hf:datasets/o/d"))
	var notes []string
	o.Note = func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	asked := 0
	s.Fault = func(*http.Request) hubserver.Fault { asked++; return hubserver.Fault{Status: http.StatusBadGateway} }
	c, err := New(o)
	require.NoError(t, err)
	defer c.Close()
	for _, name := range []string{"hf:o/m", "hf:o/n", "hf:datasets/o/d"} {
		n, _, err := hub.Parse(name)
		require.NoError(t, err)
		need := hub.ForModel
		if n.Kind == hub.DataSets {
			need = hub.ForData
		}
		require.NoError(t, c.Fetch(t.Context(), []Request{{n, need}}))
	}
	assert.Equal(t, 1, asked)
	require.Len(t, notes, 3)
	assert.Contains(t, notes[0], "status 502")
	assert.Equal(t, []string{"using what is in the cache of hf:o/n, too", "using what is in the cache of hf:datasets/o/d, too"}, notes[1:])
	n, _, err := hub.Parse("hf:o/none")
	require.NoError(t, err)
	require.ErrorContains(t, c.Fetch(t.Context(), []Request{{n, hub.ForModel}}), "status 502")
	assert.Equal(t, 1+maxAttempts, asked, "what the cache lacks is asked for as often as always")
}

func TestStream(t *testing.T) {
	s := &hubserver.Server{Small: 10}
	o := start(t, s)
	before := s.Add("datasets/o/d", "main", map[string][]byte{"train.parquet": random(9, 100)})
	require.NoError(t, fetch(t, o, hub.ForData, "hf:datasets/o/d"))
	files := map[string][]byte{}
	for i := range 5 {
		files[fmt.Sprintf("train-%d.parquet", i)] = random(uint64(i), 100)
	}
	commit := s.Add("datasets/o/d", "main", files)
	last := sha256.Sum256(files["train-4.parquet"])
	var status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	s.Fault = func(r *http.Request) (f hubserver.Fault) {
		if strings.HasSuffix(r.URL.Path, hex.EncodeToString(last[:])) {
			f.Status = int(status.Load())
		}
		return f
	}
	release := make(chan struct{})
	o.Wait = func(ctx context.Context, _ time.Duration) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	n, _, err := hub.Parse("hf:datasets/o/d")
	require.NoError(t, err)
	stream := func(always bool) ([]string, *Arrivals, error) {
		c, err := New(o)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c.Stream(t.Context(), []Request{{n, hub.ForData}}, func(paths []string) bool { return always && len(paths) == 5 })
	}
	names, a, err := stream(true)
	require.NoError(t, err)
	require.Equal(t, []string{"hf:datasets/o/d@" + commit}, names)
	paths, err := hub.Places(names[0])
	require.NoError(t, err)
	require.Len(t, paths, 5)
	for i, path := range paths[:4] {
		require.NoError(t, a.Await(t.Context(), path))
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, files[fmt.Sprintf("train-%d.parquet", i)], content)
	}
	_, err = hub.Files(names[0])
	require.ErrorContains(t, err, "train-4.parquet is not in the cache")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.Await(ctx, paths[4]), context.Canceled)
	done, total := a.Progress()
	assert.Equal(t, []int64{400, 500}, []int64{done, total})

	a.Close() // the run was stopped
	require.ErrorContains(t, a.Await(t.Context(), paths[4]), "canceled")
	ref := func() string {
		text, _ := os.ReadFile(filepath.Join(hub.Cache(), "datasets--o--d", "refs", "main"))
		return string(text)
	}
	assert.Equal(t, before, ref(), "the revision means the files that it meant: those of the commit are not all there")
	_, a, err = stream(true)
	require.NoError(t, err)
	status.Store(0)
	close(release)
	require.NoError(t, a.Await(t.Context(), paths[4]))
	a.Close()
	_, err = hub.Files("hf:datasets/o/d")
	require.NoError(t, err)
	assert.Equal(t, commit, ref())

	names, a, err = stream(false)
	require.NoError(t, err)
	assert.Equal(t, []string{"hf:datasets/o/d@" + commit}, names)
	assert.Nil(t, a, "all is there")
	a.Close()
}

// A run that was stopped goes on with its commit. Once the files are there, the branch has that commit, unless a later
// download has given it another.
func TestStreamGoesOnByCommit(t *testing.T) {
	for name, c := range map[string]struct {
		between func(t *testing.T, o Options, later string)
		want    func(before, streamed, later string) string
	}{
		"alone": {func(*testing.T, Options, string) {}, func(_, streamed, _ string) string { return streamed }},
		"after a later download": {func(t *testing.T, o Options, _ string) {
			require.NoError(t, fetch(t, o, hub.ForData, "hf:datasets/o/d"))
		}, func(_, _, later string) string { return later }},
		"after another program's later download": {func(t *testing.T, o Options, later string) {
			require.NoError(t, fetch(t, o, hub.ForData, "hf:datasets/o/d@"+later))
			ref := filepath.Join(hub.Cache(), "datasets--o--d", "refs", "main")
			require.NoError(t, os.WriteFile(ref, []byte(later), 0o666))
		}, func(_, _, later string) string { return later }},
		"for another file of the commit": {nil, func(before, _, _ string) string { return before }},
	} {
		t.Run(name, func(t *testing.T) {
			s := &hubserver.Server{}
			o := start(t, s)
			before := s.Add("datasets/o/d", "main", map[string][]byte{"train.parquet": random(9, 100)})
			require.NoError(t, fetch(t, o, hub.ForData, "hf:datasets/o/d"))
			streamed := s.Add("datasets/o/d", "main", map[string][]byte{"train-0.parquet": random(1, 100), "train-1.parquet": random(2, 100),
				"test-0.parquet": random(3, 100)})
			stopped := streamUntilStopped(t, s, o)
			require.Equal(t, "hf:datasets/o/d@"+streamed, stopped)
			later := s.Add("datasets/o/d", "main", map[string][]byte{"train-9.parquet": random(4, 100)})
			if c.between != nil {
				c.between(t, o, later)
			} else {
				stopped = "hf:datasets/o/d/test-0.parquet@" + streamed
			}
			require.NoError(t, fetch(t, o, hub.ForData, stopped))
			ref, err := os.ReadFile(filepath.Join(hub.Cache(), "datasets--o--d", "refs", "main"))
			require.NoError(t, err)
			assert.Equal(t, c.want(before, streamed, later), string(ref))
			_, err = hub.Files("hf:datasets/o/d")
			require.NoError(t, err)
			left, err := os.ReadDir(filepath.Join(hub.Cache(), "datasets--o--d", hub.OwnFolder, "refs"))
			require.NoError(t, err)
			assert.Equal(t, c.between == nil, len(left) == 1, "what is pending is noted, and nothing else")
		})
	}
}

// A stream of the commit that the branch has removes what an earlier stream has noted of the branch.
func TestStreamRemovesAnOlderNote(t *testing.T) {
	s := &hubserver.Server{}
	o := start(t, s)
	s.Add("datasets/o/d", "main", map[string][]byte{"train-0.parquet": random(1, 100), "train-1.parquet": random(2, 100)})
	streamUntilStopped(t, s, o)
	note := filepath.Join(hub.Cache(), "datasets--o--d", hub.OwnFolder, "refs", "main")
	require.FileExists(t, note)
	later := s.Add("datasets/o/d", "main", map[string][]byte{"train-2.parquet": random(3, 100), "train-3.parquet": random(4, 100)})
	ref := filepath.Join(hub.Cache(), "datasets--o--d", "refs", "main")
	require.NoError(t, os.MkdirAll(filepath.Dir(ref), 0o777))
	require.NoError(t, os.WriteFile(ref, []byte(later), 0o666)) // another program has downloaded a part of it
	streamUntilStopped(t, s, o)
	assert.NoFileExists(t, note)
}

// A stream does not need the note of its branch.
func TestStreamWithoutANote(t *testing.T) {
	s := &hubserver.Server{}
	o := start(t, s)
	files := map[string][]byte{"train-0.parquet": random(1, 100)}
	s.Add("datasets/o/d", "main", files)
	notes := filepath.Join(hub.Cache(), "datasets--o--d", hub.OwnFolder, "refs")
	require.NoError(t, os.MkdirAll(filepath.Dir(notes), 0o777))
	require.NoError(t, os.WriteFile(notes, nil, 0o666)) // no folder
	require.NoError(t, streamAll(t, o, files))
}

// streamUntilStopped begins a stream, which ends when its first file is there, and returns the name with the commit.
func streamUntilStopped(t *testing.T, s *hubserver.Server, o Options) string {
	var sent atomic.Int64
	s.Fault = func(r *http.Request) (f hubserver.Fault) {
		if strings.Contains(r.URL.Path, "/resolve/") && sent.Add(1) > 1 {
			f.Status = http.StatusNotFound
		}
		return f
	}
	defer func() { s.Fault = nil }()
	c, err := New(o)
	require.NoError(t, err)
	defer c.Close()
	n, _, err := hub.Parse("hf:datasets/o/d")
	require.NoError(t, err)
	names, a, err := c.Stream(t.Context(), []Request{{n, hub.ForData}}, func([]string) bool { return true })
	require.NoError(t, err)
	<-a.ended
	require.Error(t, a.err)
	a.Close()
	return names[0]
}

// So it is with streams: files arrive right or not at all, and the branch never means a commit some of whose files are
// missing.
func TestStreamFaults(t *testing.T) {
	for seed := range uint64(tier.Times(t, 200, 10)) {
		r := rand.New(rand.NewPCG(seed, 8))
		s := &hubserver.Server{PageSize: 1 + r.IntN(5), Small: 1000}
		o := start(t, s)
		o.Idle = 20 * time.Millisecond
		files := map[string][]byte{}
		for i := range 4 {
			files[fmt.Sprintf("train-%d.parquet", i)] = random(10*seed+uint64(i), r.IntN(100_000))
		}
		commit := s.Add("datasets/o/d", "main", files)
		seen := withFaults(s, r)
		var failed error
		for range 30 {
			if failed = streamAll(t, o, files); failed == nil {
				break
			}
			assert.True(t, strings.HasPrefix(failed.Error(), "hf:datasets/o/d: "), "%d: %v", seed, failed)
			checkSnapshot(t, "datasets--o--d", seed, files)
			if ref, err := os.ReadFile(filepath.Join(hub.Cache(), "datasets--o--d", "refs", "main")); err == nil {
				require.Equal(t, commit, string(ref))
				_, err := hub.Files("hf:datasets/o/d")
				require.NoError(t, err, "%d: %+v", seed, *seen)
			}
		}
		require.NoError(t, failed, "%d: %+v", seed, *seen)
		checkSnapshot(t, "datasets--o--d", seed, files)
		_, err := hub.Files("hf:datasets/o/d@" + commit)
		require.NoError(t, err)
		require.Empty(t, s.Leaks())
		s.Close()
	}
}

// streamAll waits for all files of a stream, and compares them.
func streamAll(t *testing.T, o Options, files map[string][]byte) error {
	c, err := New(o)
	require.NoError(t, err)
	defer c.Close()
	n, _, err := hub.Parse("hf:datasets/o/d")
	require.NoError(t, err)
	names, a, err := c.Stream(t.Context(), []Request{{n, hub.ForData}}, func([]string) bool { return true })
	defer a.Close()
	if err != nil {
		return err
	}
	paths, err := hub.Places(names[0])
	require.NoError(t, err)
	require.Len(t, paths, len(files))
	for _, path := range paths {
		if err := a.Await(t.Context(), path); err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(files[filepath.Base(path)], content), path)
	}
	return nil
}
