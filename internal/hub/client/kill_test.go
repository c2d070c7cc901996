package client

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/testing/hubserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// childName is the variable that makes the test binary a process that downloads a name, or streams it if it is a data
// set.
const childName = "HUB_TEST_CHILD"

func TestMain(m *testing.M) {
	name := os.Getenv(childName)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := downloadForParent(name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// downloadForParent prints how many bytes are there, each time more are.
func downloadForParent(name string) error {
	o, err := FromEnvironment(false)
	if err != nil {
		return err
	}
	o.Progress = func(done, _ int64) { fmt.Println(done) }
	c, err := New(o)
	if err != nil {
		return err
	}
	defer c.Close()
	n, _, err := hub.Parse(name)
	if err != nil || n.Kind == hub.Models {
		return c.Fetch(context.Background(), []Request{{n, hub.ForModel}})
	}
	names, a, err := c.Stream(context.Background(), []Request{{n, hub.ForData}}, func([]string) bool { return true })
	defer a.Close()
	if err != nil {
		return err
	}
	paths, err := hub.Places(names[0])
	for _, path := range paths {
		if err == nil {
			err = a.Await(context.Background(), path)
		}
	}
	return err
}

// child downloads a name in a process of its own, and kills it when it has reported a number of bytes; 0: it ends by
// itself. after is a pause between the report and the kill.
func child(t *testing.T, name string, bytes int64, after time.Duration) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childName+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var once sync.Once
	for lines := bufio.NewScanner(out); lines.Scan(); {
		done, err := strconv.ParseInt(lines.Text(), 10, 64)
		require.NoError(t, err)
		if bytes > 0 && done >= bytes {
			once.Do(func() { time.AfterFunc(after, func() { cmd.Process.Kill() }) })
		}
	}
	if err := cmd.Wait(); bytes == 0 {
		require.NoError(t, err)
	}
}

// A process that is killed in the middle of a download leaves files that are right, or none. The next one goes on with
// the bytes that have arrived, and asks for none of them again.
func TestKilledDownload(t *testing.T) {
	const piece, size = 64 << 10, 300_000
	s := &hubserver.Server{Small: 1000}
	start(t, s)
	files := map[string][]byte{"model.safetensors": random(1, size)}
	s.Add("models/o/m", "main", files)
	ranges := map[string]int{}
	s.Fault = func(r *http.Request) (f hubserver.Fault) {
		if r.URL.Query().Get("X-Amz-Signature") != "" { // the weights, from the storage
			ranges[r.Header.Get("Range")]++
			if len(ranges) <= 3 {
				f.Cut, f.Stall = piece, true
			}
		}
		return f
	}
	for i := range 3 {
		child(t, "hf:o/m", int64(i+1)*piece, 0)
		checkSnapshot(t, "models--o--m", 0, files)
		_, err := hub.Locate("hf:o/m")
		require.Error(t, err, "the weights are not there")
	}
	child(t, "hf:o/m", 0, 0)
	dir, err := hub.Locate("hf:o/m")
	require.NoError(t, err)
	assert.Equal(t, files, cached(t, dir))
	assert.Equal(t, map[string]int{"": 1, "bytes=65536-": 1, "bytes=131072-": 1, "bytes=196608-": 1}, ranges)
}

// So it is at any moment, with many files, and with a stream, whose branch moves when all of its files are there.
func TestKilledAtAnyMoment(t *testing.T) {
	for name, folder := range map[string]string{"hf:o/m": "models--o--m", "hf:datasets/o/d": "datasets--o--d"} {
		r := rand.New(rand.NewPCG(1, 2))
		s := &hubserver.Server{Small: 1000, PageSize: 3}
		start(t, s)
		files, use := model(1), "models/o/m"
		if folder == "datasets--o--d" {
			files, use = map[string][]byte{}, "datasets/o/d"
			for i := range 6 {
				files[fmt.Sprintf("train-%d.parquet", i)] = random(uint64(i), 1+r.IntN(100_000))
			}
		}
		commit := s.Add(use, "main", files)
		for range 12 {
			child(t, name, 1+r.Int64N(200_000), time.Duration(r.IntN(3000))*time.Microsecond)
			checkSnapshot(t, folder, 0, files)
			if ref, err := os.ReadFile(filepath.Join(hub.Cache(), folder, "refs", "main")); err == nil {
				require.Equal(t, commit, string(ref))
				child(t, name, 0, 0)
				require.NoError(t, os.RemoveAll(filepath.Join(hub.Cache(), folder)))
			}
		}
		child(t, name, 0, 0)
		checkSnapshot(t, folder, 0, files)
		if folder == "datasets--o--d" {
			paths, err := hub.Files(name)
			require.NoError(t, err)
			assert.Len(t, paths, 6)
		}
		s.Close()
	}
}

// Where there are no links, a snapshot gets the whole of a copy or nothing, and copies do not share a file on their
// way.
func TestCopies(t *testing.T) {
	blobs, snapshot := t.TempDir(), t.TempDir()
	blob, path := filepath.Join(blobs, "b"), filepath.Join(snapshot, "model.safetensors")
	content := random(1, 3_000_000)
	require.NoError(t, os.WriteFile(blob, content, 0o666))
	other := filepath.Join(blobs, "b.copy")
	require.NoError(t, os.WriteFile(other, []byte("of another process"), 0o666))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { assert.NoError(t, copyTo(blob, path)) })
	}
	wg.Wait()
	assert.Equal(t, map[string][]byte{"model.safetensors": content}, cached(t, snapshot))
	folder := filepath.Join(snapshot, "folder")
	require.NoError(t, os.Mkdir(folder, 0o777))
	assert.Error(t, copyTo(blob, folder))
	assert.Error(t, copyTo(filepath.Join(blobs, "none"), path))
	assert.Equal(t, map[string][]byte{"b": content, "b.copy": []byte("of another process")}, cached(t, blobs), "nothing is left")
}
