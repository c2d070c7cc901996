package checkpoint

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test binary runs itself again as a child that saves; these variables configure it.
const (
	childRole = "CHECKPOINT_TEST_CHILD"
	childRun  = "CHECKPOINT_TEST_RUN"
)

var roles = map[string]func(run string) error{"forever": saveForever}

func TestMain(m *testing.M) {
	role, ok := roles[os.Getenv(childRole)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := role(os.Getenv(childRun)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child(t *testing.T, role, run string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childRole+"="+role, childRun+"="+run)
	return cmd
}

// saveForever resumes the run and saves step after step, every third one twice, and reports each.
func saveForever(run string) error {
	s, err := NewStore(run, Options{Keep: 2, ShardLimit: 1000})
	if err != nil {
		return err
	}
	step := 0
	switch c, _, err := Latest(run); {
	case err == nil:
		step = c.Step
	case !errors.Is(err, ErrNone):
		return err
	}
	for ; ; step++ {
		for range 1 + step%3/2 {
			if _, err := s.Save(contents(step)); err != nil {
				return err
			}
			fmt.Println(step)
		}
	}
}

// After a kill at any time, the steps that the process reported as saved can be loaded.
func TestSIGKILL(t *testing.T) {
	const kills = 20
	run := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	last := -1
	for range kills {
		cmd := child(t, "forever", run)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		reported := last
		for i := 0; lines.Scan(); i++ {
			step, err := strconv.Atoi(lines.Text())
			require.NoError(t, err)
			require.GreaterOrEqual(t, step, reported)
			reported = step
			if i == 0 { // from the first save on, at any moment
				time.AfterFunc(time.Duration(random.IntN(60_000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		require.Error(t, cmd.Wait()) // "signal: killed", except on Windows
		c, problems, err := Latest(run)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.GreaterOrEqual(t, c.Step, reported)
		requireContents(t, c, c.Step)
		last = c.Step
	}
	require.Greater(t, last, 0)
	save(t, run, Options{})
	for _, name := range saved(t, run) {
		require.Regexp(t, stepName, name)
	}
}
