package traintest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/stretchr/testify/require"
)

// Golden holds PyTorch's results of a run in float64 (docs/oracle).
type Golden struct {
	Losses    []float64 `json:"losses"`
	GradNorms []float64 `json:"grad_norms"`
	Float32   float64   `json:"f32_max_relative_difference"` // of losses, from PyTorch's in float32
}

// ReadGolden reads the config of a golden run, such as testdata/golden/MODEL/RUN.yaml in pipeline/train, and
// PyTorch's results beside it. The config's paths are relative to pipeline/train, which must be the working directory.
func ReadGolden(t *testing.T, path string) (config.Config, Golden) {
	t.Helper()
	c, err := config.Load(path, nil)
	require.NoError(t, err)
	text, err := os.ReadFile(strings.TrimSuffix(path, ".yaml") + ".json")
	require.NoError(t, err)
	var g Golden
	require.NoError(t, json.Unmarshal(text, &g))
	require.Len(t, g.Losses, c.Train.Steps)
	return c, g
}

// Goldens lists the configs of all golden runs without a delay.
func Goldens(t *testing.T) []string { return configs(t, "testdata/golden/*/*.yaml") }

// StaleGoldens lists the configs of the golden runs with a delay, on one stage.
func StaleGoldens(t *testing.T) []string { return configs(t, "testdata/golden/*/stale/*.yaml") }

// ReplicaGoldens lists the configs of the golden runs of replicas that train on their own.
func ReplicaGoldens(t *testing.T) []string { return configs(t, "testdata/golden/*/replicas/*.yaml") }

func configs(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}
