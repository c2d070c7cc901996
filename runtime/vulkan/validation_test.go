//go:build linux

package vulkan

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device/base"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mistakes, when set in the environment, has the process make those that the validation layer must report, instead of
// running tests.
const mistakes = "GPUPIPE_TEST_MISTAKES"

// layered is the environment of a process with the Khronos validation layer between it and the driver. Layers of all
// versions read the file.
func layered(t *testing.T) []string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vk_layer_settings.txt"), []byte(`
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
khronos_validation.validate_sync = true
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error
khronos_validation.log_filename = stdout
`), 0o600))
	return append(os.Environ(), "VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation", "VK_LAYER_SETTINGS_PATH="+dir, "VK_LOADER_DEBUG=")
}

var reported = regexp.MustCompile(`(?m)^.*(Validation Error|VUID-|SYNC-HAZARD).*$`)

// The Khronos validation layer reports no error in the other tests and in training, synchronization included.
func TestValidation(t *testing.T) {
	tier.Rest(t)
	run := func(env []string, args ...string) (errors []string) {
		child := exec.Command(os.Args[0], args...)
		child.Env = env
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, message := range reported.FindAllString(string(out), -1) {
			if len(errors) < 20 && !slices.Contains(errors, message) {
				errors = append(errors, message)
			}
		}
		return errors
	}
	env := layered(t)
	require.Len(t, run(append(env, mistakes+"=1")), 2,
		"mistakes go unnoticed: these tests need VK_LAYER_KHRONOS_validation, Debian's package vulkan-validationlayers")
	assert.Empty(t, run(env, "-test.run=^(TestExecution|TestBarriersFollowTheCode|TestBlocksAreShared|TestLoss|TestCaches|TestTraining|TestImport|TestShared|TestSumsInParts|TestTrusted)$"+
		"/^(import|transfer|lifetimes|closed|there_and_back|between_devices|in_programs|arena|copy_between_buffers|release_while_running|binding_sizes|large_transfers|mixed_sizes|concurrent_use|close_while_in_use|two_devices)$"))
}

// makeMistakes writes a buffer twice without a barrier, and destroys a device before what is on it.
func makeMistakes() error {
	d, err := Open(0, Options{})
	if err != nil {
		return err
	}
	a, err := d.Alloc("a", 256)
	if err != nil {
		return err
	}
	d.queue.batch.hazards.reset() // the zeros of a are forgotten
	if err := d.Write(a, 0, contract.Pattern(256, 0)); err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		return err
	}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties) // forgets the buffer
	return d.Close()
}
