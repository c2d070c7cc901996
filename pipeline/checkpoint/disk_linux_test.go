package checkpoint

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/usertest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

func init() { roles["limited"] = saveLimited }

// large is a checkpoint with a model of n bytes.
func large(step, n int) Contents {
	c := contents(step)
	c.Model = append(c.Model, Tensor{Name: "large", DType: safetensors.U8, Shape: []int{n},
		Data: func() ([]byte, error) { return make([]byte, n), nil }})
	return c
}

// saveLimited saves with a limit of 64 KiB per file. The write that exceeds it is short, and the next one fails.
func saveLimited(run string) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64 << 10, Max: 64 << 10}); err != nil {
		return err
	}
	s, err := NewStore(run, Options{})
	if err != nil {
		return err
	}
	if _, err := s.Save(contents(2)); err != nil {
		return fmt.Errorf("the small one: %w", err)
	}
	_, err = s.Save(large(3, 1<<20))
	return err
}

func TestFileSizeLimit(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 1)
	out, err := child(t, "limited", run).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "save checkpoint of step 3: write "+filepath.Join(run, "checkpoints", ".tmp-step-3-"))
	assert.Contains(t, string(out), "model.safetensors: ")
	assert.Contains(t, string(out), "file too large")
	assert.Equal(t, []string{"step-1", "step-2"}, saved(t, run))
	requireLatest(t, run, 2)
}

// Saving on a full disk, if the test may mount one. TestFullDiskStandIn uses /dev/full.
func TestFullDisk(t *testing.T) {
	run := t.TempDir()
	var fs fileSystem = disk{}
	if err := syscall.Mount("tmpfs", run, "tmpfs", 0, "size=256k"); err == nil {
		t.Cleanup(func() { assert.NoError(t, syscall.Unmount(run, 0)) })
	} else {
		t.Logf("no tmpfs (%v): models go to /dev/full", err)
		fs = fullDisk{}
	}
	save(t, run, Options{}, 1)
	s, err := newStore(run, Options{Keep: 1}, fs)
	require.NoError(t, err)
	_, err = s.Save(large(2, 1<<20))
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.ErrorContains(t, err, "save checkpoint of step 2: write ")
	assert.ErrorContains(t, err, "model.safetensors: ")
	assert.Equal(t, []string{"step-1"}, saved(t, run))
	requireLatest(t, run, 1)
	save(t, run, Options{}, 2) // one that fits still can be saved
	requireLatest(t, run, 2)
}

func TestFullDiskStandIn(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 1)
	s, err := newStore(run, Options{}, fullDisk{})
	require.NoError(t, err)
	_, err = s.Save(contents(2))
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Equal(t, []string{"step-1"}, saved(t, run))
}

type fullDisk struct{ disk }

func (d fullDisk) Create(path string) (file, error) {
	if filepath.Base(path) == "model.safetensors" {
		return os.OpenFile("/dev/full", os.O_WRONLY, 0)
	}
	return d.disk.Create(path)
}

func TestReadOnlyFolder(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 1)
	dir := filepath.Join(run, "checkpoints")
	require.NoError(t, os.Chmod(dir, 0o555))
	t.Cleanup(func() { os.Chmod(dir, 0o755) })
	var errNew, errSave, errMake error
	var read *Checkpoint
	usertest.Unprivileged(t, dir, func() {
		var s *Store
		if s, errNew = NewStore(run, Options{}); errNew == nil {
			_, errSave = s.Save(contents(2))
		}
		read, _, _ = Latest(run)
		_, errMake = NewStore(filepath.Join(dir, "other"), Options{})
	})
	require.NoError(t, errNew)
	require.ErrorIs(t, errSave, os.ErrPermission)
	assert.ErrorContains(t, errSave, dir)
	require.ErrorIs(t, errMake, os.ErrPermission)
	require.NotNil(t, read)
	assert.Equal(t, 1, read.Step)
	assert.Equal(t, []string{"step-1"}, saved(t, run))
	requireLatest(t, run, 1)
}
