package schedule

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew; look at the difference before committing it")

// Every change of a schedule is a change of its golden file, to be reviewed.
func TestGoldenFiles(t *testing.T) {
	written := map[string]bool{}
	for _, f := range Families() {
		variants := map[string]*Copies{"": nil, ".communication": {}}
		switch f.Name {
		case TwoBW:
			variants[".all"] = nil // stale, as in the paper
			variants[".depth"], variants[".depth.tied"] = nil, &Copies{Tied: true}
			variants[".tied"], variants[".tied-copied"], variants[".replica"] = &Copies{Tied: true}, &Copies{Tied: true, Copied: true},
				&Copies{Tied: true, Replica: true}
		case OneF1B:
			variants[".depth"] = nil
		case Interleaved:
			variants[".tied"] = &Copies{Tied: true}
		}
		for variant, l := range variants {
			o := goldenOptions(f)
			if variant == ".all" {
				o.Stale = o.Microbatches
			}
			if strings.HasPrefix(variant, ".depth") {
				o.Microbatches, o.Depth = 6, 2
			}
			s, err := Generate(f.Name, o)
			require.NoError(t, err)
			if l != nil {
				s, err = Communicate(s, *l)
				require.NoError(t, err)
			}
			path := filepath.Join("testdata", f.Name+variant+".txt")
			written[path] = true
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(s.String()), 0o666))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(want), s.String(), "%s; go test -update writes it anew", path)
			read, err := Read(path)
			require.NoError(t, err)
			assert.Equal(t, s, read, "round trip")
			_, err = Validate(read)
			assert.NoError(t, err)
		}
	}
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	for _, f := range files {
		assert.True(t, written[f], "%s belongs to no schedule", f)
	}
}

// goldenOptions are small sizes that show the pattern of a schedule.
func goldenOptions(f Family) Options {
	if f.Chunks > 1 {
		return Options{Stages: 2, Chunks: f.Chunks, Microbatches: 4}
	}
	o := f.Example(Options{Stages: 3})
	o.Microbatches, o.Batches = min(o.Microbatches, 4), max(o.Batches, 2)
	return o
}

func TestParseCountsOmittedKeys(t *testing.T) {
	s, err := Parse("dir/mine.txt", `
# Two stages: as in 1f1b.
F0.0 F1.0 B0.0 B1.0 U0   # the first
F0 B0 F1 B1 U0
`)
	require.NoError(t, err)
	want, err := Generate("1f1b", Options{Stages: 2, Microbatches: 2})
	require.NoError(t, err)
	want.Name = "mine"
	assert.Equal(t, want, s)
}

// A text of a schedule with a delay that does not say how many microbatches are stale is one in which all are.
func TestAllMicrobatchesAreStaleUnlessTheTextSaysOtherwise(t *testing.T) {
	s, err := Generate("2bw", Options{Stages: 2, Microbatches: 3, Stale: 3, Batches: 2})
	require.NoError(t, err)
	text := s.String()
	require.Contains(t, text, "# stale: 3\n")
	read, err := Parse("x", strings.Replace(text, "# stale: 3\n", "", 1))
	require.NoError(t, err)
	assert.Equal(t, s, read)
}

func TestErrorsInAText(t *testing.T) {
	for want, text := range map[string]string{
		"f.txt:2: stage 0: action 3: action \"Q0\": expected one of F, B":         "# name: x\nF0 B0 Q0",
		"f.txt:1: stage 0: action 1: action \"U0.1\": U concerns a whole batch":   "U0.1",
		"f.txt:1: stage 0: action 2: action \"F0.0.0\"":                           "F0 F0.0.0",
		"f.txt:2: unknown key \"dely\", expected name, stages, chunks":            "# name: x\n# dely: 1\nF0",
		"f.txt:3: stages is given a second time, first in line 1":                 "# stages: 1\n# name: x\n# stages: 1",
		"f.txt:2: delay is given after the first stage":                           "F0 B0 U0\n# delay: 1",
		"f.txt:1: delay: found \"one\", expected a number":                        "# delay: one",
		"f.txt:1: links: found \"tide\", expected none, or some of tied, replica": "# links: tied tide",
		"f.txt:1: stages: found 2, but actions of 1 stages":                       "# stages: 2\nF0 B0 U0",
		"f.txt:4: stage 1: action 2, F1.0, is beyond microbatches: 1 in line 1":   "# microbatches: 1\n\nF0\nF0 F1",
		"is beyond batches: 1 in line 1":                                          "# batches: 1\nF0.1",
		"is beyond chunks: 1 in line 1":                                           "# chunks: 1\nF0.0:1",
		"f.txt: found no actions":                                                 "# name: x\n",
	} {
		_, err := Parse("f.txt", text)
		assert.ErrorContains(t, err, want)
	}
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	assert.ErrorContains(t, err, "none: ")
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestActionsAsText(t *testing.T) {
	for _, a := range []Action{{Forward, 3, 2, 0}, {Backward, 0, 0, 7}, {Kind: Update, Batch: 12}, {Kind: RecvWeights, Batch: 1}} {
		text, err := a.MarshalText()
		require.NoError(t, err)
		var b Action
		require.NoError(t, b.UnmarshalText(text))
		assert.Equal(t, a, b)
	}
	assert.Error(t, new(Action).UnmarshalText([]byte("f0")))
}

// Every text that Parse accepts survives a round trip, and is validated, communicated and simulated without a panic.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(string(text))
	}
	for _, text := range []string{"F0", "# stages: 1\nF0 B0 U0", "# microbatches: 1000000000\nF0 B0 U0", "F0 # x\n\nB0:3",
		"# links: none\nE0 SF0\nRF0 E0", "# delay: -1\nF0 B0 U0",
		"# delay: 1\n# batches: 2\nF0 F0.1 B0 B0.1 U0 U1", "# name: \u00a0x\nF0.999999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("f.txt", text)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "f.txt"), err)
			return
		}
		again, err := Parse("f.txt", s.String())
		require.NoError(t, err)
		require.Equal(t, s, again)
		if _, err := Validate(s); err != nil {
			return
		}
		_, err = Simulate(s, Costs{VirtualStages: []Cost{Even(1, 2, 1)}})
		require.NoError(t, err)
		if s.Copies == nil {
			c, err := Communicate(s, Copies{})
			require.NoError(t, err)
			_, err = Validate(c)
			require.NoError(t, err)
		}
	})
}

func TestReadOfAFileThatIsTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long.txt")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 1<<40)) // a hole, which takes no disk
	_, err := Read(path)
	assert.ErrorContains(t, err, "long.txt: found more than 4194304 bytes")
}
