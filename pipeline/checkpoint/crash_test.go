package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// faulty is a file system with a fault at one of its operations: that operation fails once or, if dead is set, no
// operation from there on has an effect, as after a kill.
type faulty struct {
	t      *testing.T
	disk   disk
	at     int // the operation that fails, from 1; 0 for none
	err    error
	dead   bool
	ops    int
	log    []string
	synced map[string]bool // by path: is what was written durable?
}

func (f *faulty) op(format string, args ...any) error {
	f.ops++
	f.log = append(f.log, fmt.Sprintf(format, args...))
	if f.at != 0 && (f.ops == f.at || f.dead && f.ops > f.at) {
		return f.err
	}
	return nil
}

func (f *faulty) MkdirAll(dir string) error {
	return errors.Join(f.op("mkdir -p %s", dir), f.disk.MkdirAll(dir))
}

func (f *faulty) Mkdir(dir string) error {
	if err := f.op("mkdir %s", dir); err != nil {
		return err
	}
	f.synced[dir] = false
	return f.disk.Mkdir(dir)
}

func (f *faulty) RemoveAll(path string) error {
	if err := f.op("rm %s", path); err != nil {
		// Half-way: what a kill leaves of a deletion.
		os.Remove(filepath.Join(path, "config.json"))
		return err
	}
	return f.disk.RemoveAll(path)
}

func (f *faulty) SyncDir(dir string) error {
	if err := f.op("sync %s", dir); err != nil {
		return err
	}
	f.synced[dir] = true
	return f.disk.SyncDir(dir)
}

// Rename checks that a file or folder that gets its final name is durable.
func (f *faulty) Rename(from, to string) error {
	if strings.HasPrefix(filepath.Base(from), ".tmp-") {
		for path, ok := range f.synced {
			if path == from || filepath.Dir(path) == from {
				assert.True(f.t, ok, "%s is published before it is durable", path)
			}
		}
	}
	if err := f.op("mv %s %s", from, to); err != nil {
		return err
	}
	return f.disk.Rename(from, to)
}

func (f *faulty) Create(path string) (file, error) {
	if err := f.op("create %s", path); err != nil {
		return nil, err
	}
	f.synced[filepath.Dir(path)], f.synced[path] = false, false
	to, err := f.disk.Create(path)
	return &faultyFile{f: f, path: path, to: to}, err
}

type faultyFile struct {
	f      *faulty
	path   string
	to     file
	closed bool
}

func (w *faultyFile) Write(p []byte) (int, error) {
	if err := w.f.op("write %s", w.path); err != nil {
		n, _ := w.to.Write(p[:len(p)/2])
		return n, err
	}
	w.f.synced[w.path] = false
	return w.to.Write(p)
}

func (w *faultyFile) Sync() error {
	if err := w.f.op("fsync %s", w.path); err != nil {
		return err
	}
	w.f.synced[w.path] = true
	return w.to.Sync()
}

func (w *faultyFile) Close() error {
	if w.closed {
		return os.ErrClosed
	}
	w.closed = true
	return errors.Join(w.f.op("close %s", w.path), w.to.Close())
}

// Each operation of a save fails once and, separately, is the last one before the process dies.
func TestEveryFault(t *testing.T) {
	for _, dead := range []bool{false, true} {
		for _, replace := range []bool{false, true} {
			t.Run(fmt.Sprintf("dead=%v,replace=%v", dead, replace), func(t *testing.T) {
				t.Parallel()
				for at := 1; ; at++ {
					if !saveWithFault(t, at, dead, replace) {
						require.Greater(t, at, 30, "the faults did not reach all of a save")
						return
					}
				}
			})
		}
	}
}

// saveWithFault saves step 3 over steps 1, 2 and perhaps 3, with a fault at one operation, and reports whether the save
// reached that operation.
func saveWithFault(t *testing.T, at int, dead, replace bool) bool {
	run := t.TempDir()
	save(t, run, Options{}, 1, 2)
	before := 2
	if replace {
		save(t, run, Options{}, 3)
		before = 3
	}
	f := &faulty{t: t, at: at, dead: dead, err: syscall.ENOSPC, synced: map[string]bool{}}
	var done *Checkpoint
	s, err := newStore(run, Options{Keep: 2}, f)
	if err == nil {
		done, err = s.Save(contents(3))
	}
	where := strings.Join(f.log, "\n")
	if f.ops >= at {
		require.ErrorIs(t, err, syscall.ENOSPC, where)
	}
	got, problems, lerr := Latest(run)
	require.NoError(t, lerr, where)
	require.Empty(t, problems, where)
	require.GreaterOrEqual(t, got.Step, before, where)
	if done != nil {
		require.Equal(t, 3, got.Step, where)
	}
	requireContents(t, got, got.Step)

	// The next start finds everything in order and leaves no litter.
	save(t, run, Options{})
	if done == nil {
		requireLatest(t, run, got.Step)
		require.Contains(t, saved(t, run), "step-1", where)
		require.Contains(t, saved(t, run), "step-2", where)
	}
	for _, name := range saved(t, run) {
		require.True(t, strings.HasPrefix(name, "step-"), "%s left after\n%s", name, where)
	}
	save(t, run, Options{Keep: 1}, 3)
	requireLatest(t, run, 3)
	require.Equal(t, []string{"step-3"}, saved(t, run))
	return f.ops >= at
}

// When one operation fails and the process lives, it leaves no temporary folder itself.
func TestFullDiskInjected(t *testing.T) {
	for at := 3; ; at++ { // newStore takes two operations
		run := t.TempDir()
		save(t, run, Options{}, 1)
		f := &faulty{t: t, at: at, err: syscall.ENOSPC, synced: map[string]bool{}}
		s, err := newStore(run, Options{}, f)
		require.NoError(t, err)
		_, err = s.Save(contents(2))
		if strings.HasPrefix(f.log[at-1], "mv") {
			require.Greater(t, at, 20)
			return
		}
		require.ErrorIs(t, err, syscall.ENOSPC, f.log[at-1])
		assert.ErrorContains(t, err, "save checkpoint of step 2: ")
		assert.ErrorContains(t, err, "no space left on device")
		assert.Equal(t, []string{"step-1"}, saved(t, run), f.log[at-1])
	}
}
