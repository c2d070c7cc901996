//go:build linux

package compute_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The kernels of all cases, and of training, compile to SPIR-V; of those that differ in numbers and repetitions only,
// one does. The Khronos validator accepts the SPIR-V of kernels with a statement that none before has: it mostly checks
// the code of single statements.
func TestKernelsAreValidSPIRV(t *testing.T) {
	tier.Rest(t)
	validator, err := exec.LookPath("spirv-val")
	require.NoError(t, err, "install spirv-tools (make setup does)")
	compiler, err := spirv.NewCompiler("")
	require.NoError(t, err)
	defer compiler.Close()
	texts := kernels(t)
	order, novel := structures(texts)
	dir := t.TempDir()
	work := make(chan string)
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for path := range work {
				out, err := exec.Command(validator, "--target-env", "vulkan1.2", path).CombinedOutput()
				assert.NoError(t, err, "%s: %s", path, out)
				assert.NoError(t, os.Remove(path))
			}
		})
	}
	valid := 0
	for i, wgsl := range order {
		for _, f := range []spirv.Features{spirv.ZeroWorkgroup, spirv.CheckBuffers, spirv.ZeroWorkgroup | spirv.TrustIndices} {
			if f != spirv.ZeroWorkgroup && (i%4 != 0 || !novel[wgsl]) { // checks, or none, are the same text everywhere
				continue
			}
			m, err := compiler.Compile(wgsl, f)
			if !assert.NoError(t, err, "%s\n%.2000s", texts[wgsl], wgsl) {
				continue
			}
			if !novel[wgsl] {
				continue
			}
			valid++
			var code []byte
			for _, w := range m.Code {
				code = binary.LittleEndian.AppendUint32(code, w)
			}
			path := filepath.Join(dir, fmt.Sprint(i, "-", f, ".spv"))
			require.NoError(t, os.WriteFile(path, code, 0o600))
			work <- path
		}
	}
	close(work)
	wait.Wait()
	assert.Greater(t, valid, 500)
	t.Logf("%d of %d kernels are valid", valid, len(order))
}
