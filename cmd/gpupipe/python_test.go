package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/require"
)

// The tests of the Python package pass with this program.
func TestPythonPackage(t *testing.T) {
	tier.Rest(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := filepath.Abs(filepath.Join("..", "python"))
	require.NoError(t, err)
	cmd := exec.Command(python, "-m", "unittest", "discover", "-s", filepath.Join(dir, "tests"))
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GPUPIPE="+self, "GPUPIPE_TEST_COMMAND=1", "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
