package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

type state struct {
	Step   int
	Tokens uint64
	Rng    [2]uint64
}

func stateOf(step int) state {
	return state{step, uint64(step) * 2048, [2]uint64{math.MaxUint64, uint64(step)}}
}

func values(seed, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(seed*1000 + i)
	}
	return out
}

func tensor(name string, seed, n int) Tensor {
	return Tensor{Name: name, DType: safetensors.F32, Shape: []int{n}, Data: func() ([]byte, error) {
		var b []byte
		for _, v := range values(seed, n) {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b, nil
	}}
}

// contents are a function of the step alone.
func contents(step int) Contents {
	return Contents{
		Step:      step,
		Model:     []Tensor{tensor("model.embed_tokens.weight", step, 300), tensor("model.norm.weight", step+1, 7)},
		Optimizer: []Tensor{tensor("momentum.model.norm.weight", step+2, 7)},
		Config:    map[string]any{"architectures": []string{"LlamaForCausalLM"}, "step": step},
		State:     stateOf(step),
		Files:     map[string][]byte{"tokenizer.json": fmt.Appendf(nil, `{"step":%d}`, step)},
	}
}

// requireContents compares everything that a checkpoint gives with contents(step).
func requireContents(t *testing.T, c *Checkpoint, step int) {
	t.Helper()
	require.Equal(t, step, c.Step)
	var s state
	require.NoError(t, c.State(&s))
	require.Equal(t, stateOf(step), s)
	m, err := c.Model()
	require.NoError(t, err)
	defer m.Close()
	require.Len(t, m.Tensors(), 2)
	got, err := m.Float32("model.embed_tokens.weight")
	require.NoError(t, err)
	require.Equal(t, values(step, 300), got)
	o, err := c.Optimizer()
	require.NoError(t, err)
	defer o.Close()
	got, err = o.Float32("momentum.model.norm.weight")
	require.NoError(t, err)
	require.Equal(t, values(step+2, 7), got)
	tok, err := c.File("tokenizer.json")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf(`{"step":%d}`, step), string(tok))
	config, err := c.Config()
	require.NoError(t, err)
	require.Contains(t, string(config), fmt.Sprintf(`"step": %d`, step))
}

func requireLatest(t *testing.T, run string, step int) {
	t.Helper()
	c, problems, err := Latest(run)
	require.NoError(t, err)
	require.Empty(t, problems)
	requireContents(t, c, step)
}

func save(t *testing.T, run string, o Options, steps ...int) {
	t.Helper()
	s, err := NewStore(run, o)
	require.NoError(t, err)
	for _, step := range steps {
		_, err := s.Save(contents(step))
		require.NoError(t, err)
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func saved(t *testing.T, run string) []string { return list(t, filepath.Join(run, "checkpoints")) }

func TestSaveAndLatest(t *testing.T) {
	run := filepath.Join(t.TempDir(), "runs", "demo")
	_, _, err := Latest(run)
	require.ErrorIs(t, err, ErrNone)
	assert.ErrorContains(t, err, "there is none")

	save(t, run, Options{}, 0, 9, 10)
	requireLatest(t, run, 10)
	assert.Equal(t, []string{"step-0", "step-10", "step-9"}, saved(t, run))
	assert.Equal(t, []string{"config.json", "manifest.json", "model.safetensors", "optimizer.safetensors",
		"state.json", "tokenizer.json"}, list(t, filepath.Join(run, "checkpoints", "step-9")))

	c, err := Open(filepath.Join(run, "checkpoints", "step-9"))
	require.NoError(t, err)
	requireContents(t, c, 9)
	_, err = c.File("merges.txt")
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, c.State(&[]int{}), "state.json")
}

func TestShardedByManifest(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{ShardLimit: 100}, 5)
	requireLatest(t, run, 5)
	dir := filepath.Join(run, "checkpoints", "step-5")
	assert.Equal(t, []string{"config.json", "manifest.json", "model-00001-of-00002.safetensors",
		"model-00002-of-00002.safetensors", "model.safetensors.index.json", "optimizer.safetensors", "state.json",
		"tokenizer.json"}, list(t, dir))
	// A stray file is no part of the checkpoint, whatever its name.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte("not this"), 0o644))
	requireLatest(t, run, 5)
}

func TestSameStepIsReplaced(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 1, 2)
	s, err := NewStore(run, Options{})
	require.NoError(t, err)
	c := contents(2)
	c.State = state{Step: 77}
	_, err = s.Save(c)
	require.NoError(t, err)
	assert.Equal(t, []string{"step-1", "step-2"}, saved(t, run))
	got, _, err := Latest(run)
	require.NoError(t, err)
	var st state
	require.NoError(t, got.State(&st))
	assert.Equal(t, 77, st.Step)
}

func TestKeep(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{Keep: 2}, 1, 2, 3, 10, 20)
	assert.Equal(t, []string{"step-10", "step-20"}, saved(t, run))
	save(t, run, Options{}, 30, 40)
	assert.Equal(t, []string{"step-10", "step-20", "step-30", "step-40"}, saved(t, run))
	// Back to an earlier step: the new one stays although later ones exist, and so do they.
	save(t, run, Options{Keep: 1}, 25)
	assert.Equal(t, []string{"step-25", "step-30", "step-40"}, saved(t, run))
}

func TestLeftoversAndUnrelatedFiles(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 1)
	dir := filepath.Join(run, "checkpoints")
	for _, name := range []string{".tmp-step-2-ABCDEFGHIJ", ".tmp-mine", "step-x", "step-007", "step-99999999999999999999", "notes"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	requireLatest(t, run, 1)
	assert.Contains(t, saved(t, run), ".tmp-step-2-ABCDEFGHIJ", "reading changes nothing")
	save(t, run, Options{Keep: 1}, 3)
	assert.Equal(t, []string{".tmp-mine", "notes", "step-007", "step-3", "step-99999999999999999999", "step-x"}, saved(t, run))
}

// A kill between the two renames of a replacement, and one in the deletion that follows.
func TestReplacementInterrupted(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 1, 2)
	dir := filepath.Join(run, "checkpoints")
	old := filepath.Join(dir, ".old-step-2-ABCDEFGHIJ")
	require.NoError(t, os.Rename(filepath.Join(dir, "step-2"), old))
	requireLatest(t, run, 2)
	save(t, run, Options{})
	assert.Equal(t, []string{"step-1", "step-2"}, saved(t, run))
	requireLatest(t, run, 2)

	require.NoError(t, os.Mkdir(old, 0o755))
	requireLatest(t, run, 2)
	// With step-2 damaged the half-deleted one is kept: it is unknown which is worth more.
	state := filepath.Join(dir, "step-2", "state.json")
	require.NoError(t, os.Truncate(state, 3))
	save(t, run, Options{})
	assert.Equal(t, []string{".old-step-2-ABCDEFGHIJ", "step-1", "step-2"}, saved(t, run))
	c, problems, err := Latest(run)
	require.NoError(t, err)
	requireContents(t, c, 1)
	assert.Len(t, problems, 2)
	save(t, run, Options{}, 2)
	save(t, run, Options{})
	assert.Equal(t, []string{"step-1", "step-2"}, saved(t, run))
	requireLatest(t, run, 2)
}

func TestDamageFallsBack(t *testing.T) {
	sum := strings.Repeat("0", 64)
	overwrite := func(text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestFile), []byte(text), 0o644) }
	}
	listing := func(name, size string) func(string) error {
		return overwrite(fmt.Sprintf(`{"version":1,"step":20,"files":[{"name":%q,"size":%s,"sha256":%q}]}`, name, size, sum))
	}
	digit := func(at int) func(string) error { // of the checksum that the manifest lists first
		return func(dir string) error {
			path := filepath.Join(dir, manifestFile)
			text, err := os.ReadFile(path)
			const key = `"sha256": "`
			at += bytes.Index(text, []byte(key)) + len(key)
			text[at] = map[bool]byte{true: '1', false: '0'}[text[at] == '0']
			return errors.Join(err, os.WriteFile(path, text, 0o644))
		}
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   string
	}{
		"truncated file": {func(d string) error { return os.Truncate(filepath.Join(d, "model.safetensors"), 100) },
			"model.safetensors: found 100 bytes, the manifest has "},
		"longer file": {func(d string) error { return os.Truncate(filepath.Join(d, "state.json"), 1000) }, "state.json: found 1000 bytes"},
		"flipped bit": {func(d string) error { return flip(filepath.Join(d, "optimizer.safetensors"), -1) },
			"optimizer.safetensors: altered: sha256 is "},
		"flipped bit in header": {func(d string) error { return flip(filepath.Join(d, "model.safetensors"), 20) },
			"model.safetensors: altered"},
		"missing file": {func(d string) error { return os.Remove(filepath.Join(d, "config.json")) }, "config.json: missing"},
		"file is a folder": {func(d string) error {
			p := filepath.Join(d, "config.json")
			return errors.Join(os.Remove(p), os.Mkdir(p, 0o755))
		}, "config.json: not a regular file"},
		"file is a link": {func(d string) error {
			p := filepath.Join(d, "config.json")
			return errors.Join(os.Remove(p), os.Symlink(os.DevNull, p))
		}, "config.json: not a regular file"},
		"no manifest":    {func(d string) error { return os.Remove(filepath.Join(d, manifestFile)) }, "manifest.json: no such file"},
		"torn manifest":  {func(d string) error { return os.Truncate(filepath.Join(d, manifestFile), 50) }, "manifest.json: unexpected EOF"},
		"empty manifest": {overwrite(""), "manifest.json: EOF"},
		"not an object":  {overwrite("[]"), "manifest.json: json: cannot unmarshal array"},
		"two objects":    {overwrite(`{"version":1,"step":20,"files":[]} {}`), "more text after its end"},
		"unknown key":    {overwrite(`{"version":1,"step":20,"files":[],"x":1}`), `unknown field "x"`},
		"no version":     {overwrite(`{"step":20,"files":[]}`), "version is 0, expected 1"},
		"newer version":  {overwrite(`{"version":2,"blocks":[]}`), "version 2 is newer than this program, which reads 1"},
		"negative step":  {overwrite(`{"version":1,"step":-1,"files":[]}`), "step is -1"},
		"another step":   {overwrite(`{"version":1,"step":21,"files":[]}`), "manifest.json is of step 21"},
		"huge step":      {overwrite(`{"version":1,"step":1e400,"files":[]}`), "cannot unmarshal number 1e400"},
		"lists nothing":  {overwrite(`{"version":1,"step":20,"files":[]}`), "does not list config.json"},
		"huge manifest": {func(d string) error { return os.Truncate(filepath.Join(d, manifestFile), 1<<40) },
			"at most 16777216 are allowed"},
		"path traversal":            {listing("../step-10/state.json", "1"), `file "../step-10/state.json" is not a name within the checkpoint`},
		"absolute path":             {listing("/etc/passwd", "1"), "is not a name within"},
		"backslashes":               {listing(`..\x`, "1"), "is not a name within"},
		"parent":                    {listing("..", "1"), "is not a name within"},
		"lists itself":              {listing(manifestFile, "1"), "listed twice, or is the manifest itself"},
		"huge size":                 {listing("state.json", "9223372036854775807"), "the manifest has 9223372036854775807"},
		"size of 2^64":              {listing("state.json", "18446744073709551616"), "cannot unmarshal number"},
		"negative size":             {listing("state.json", "-1"), "size is -1"},
		"first digit of a checksum": {digit(0), ": altered: sha256 is "},
		"last digit of a checksum":  {digit(63), ": altered: sha256 is "},
		"bad checksum": {overwrite(`{"version":1,"step":20,"files":[{"name":"state.json","size":1,"sha256":"00"}]}`),
			"expected 64 hexadecimal digits"},
		"everything lost": {func(d string) error {
			return errors.Join(os.RemoveAll(d), os.Mkdir(d, 0o755))
		}, "manifest.json: no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := t.TempDir()
			save(t, run, Options{}, 10, 20)
			require.NoError(t, c.damage(filepath.Join(run, "checkpoints", "step-20")))
			got, problems, err := Latest(run)
			require.NoError(t, err)
			requireContents(t, got, 10)
			require.Len(t, problems, 1)
			assert.Contains(t, problems[0].String(), filepath.Join(run, "checkpoints", "step-20"))
			assert.ErrorContains(t, problems[0].Err, c.want)

			// The run continues and reaches the step again.
			save(t, run, Options{}, 20)
			requireLatest(t, run, 20)
			assert.Equal(t, []string{"step-10", "step-20"}, saved(t, run))
		})
	}
}

// flip inverts one bit of a file; a negative offset counts from the end.
func flip(path string, at int) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 4
	return os.WriteFile(path, b, 0o644)
}

// A flipped bit in any byte of a manifest is reported or changes no value.
func TestManifestByteByByte(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 20)
	dir := filepath.Join(run, "checkpoints", "step-20")
	path := filepath.Join(dir, manifestFile)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	want, err := Open(dir)
	require.NoError(t, err)
	unseen := 0
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		require.NoError(t, os.WriteFile(path, b, 0o644))
		if got, err := Open(dir); err == nil {
			unseen++
			requireContents(t, got, want.Step)
		}
	}
	assert.Less(t, unseen, len(good)/4, "only blanks and the case of letters may change unseen")
}

func TestNothingUsable(t *testing.T) {
	run := t.TempDir()
	save(t, run, Options{}, 1, 2)
	for _, step := range []string{"step-1", "step-2"} {
		require.NoError(t, os.Remove(filepath.Join(run, "checkpoints", step, "model.safetensors")))
	}
	_, problems, err := Latest(run)
	require.ErrorIs(t, err, ErrNone)
	assert.ErrorContains(t, err, "step-1")
	require.Len(t, problems, 2)
	assert.Equal(t, "step-2", filepath.Base(problems[0].Dir), "newest first")
}

func TestSaveRefuses(t *testing.T) {
	lost := errors.New("device lost")
	for name, c := range map[string]struct {
		change func(*Contents)
		want   string
	}{
		"device": {func(c *Contents) { c.Model[1].Data = func() ([]byte, error) { return nil, lost } },
			`model.safetensors: tensor "model.norm.weight": device lost`},
		"length": {func(c *Contents) { c.Model[1].Data = func() ([]byte, error) { return make([]byte, 27), nil } },
			`tensor "model.norm.weight": got 27 bytes, shape [7] of F32 takes 28`},
		"dtype": {func(c *Contents) { c.Optimizer[0].DType = "F13" },
			`optimizer: tensor "momentum.model.norm.weight": unknown dtype "F13"`},
		"twice":         {func(c *Contents) { c.Model[0].Name = c.Model[1].Name }, "the name is taken"},
		"state":         {func(c *Contents) { c.State = math.NaN() }, "state.json: json: unsupported value: NaN"},
		"config":        {func(c *Contents) { c.Config = func() {} }, "config.json: json: unsupported type"},
		"name":          {func(c *Contents) { c.Files["../x"] = nil }, `file "../x": the name is taken or is not a plain one`},
		"reserved name": {func(c *Contents) { c.Files["manifest.json"] = nil }, `file "manifest.json": the name is taken`},
		"step":          {func(c *Contents) { c.Step = -1 }, "the step is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			run := t.TempDir()
			save(t, run, Options{}, 1)
			s, err := NewStore(run, Options{Keep: 1})
			require.NoError(t, err)
			bad := contents(2)
			c.change(&bad)
			_, err = s.Save(bad)
			require.Error(t, err)
			assert.ErrorContains(t, err, c.want)
			assert.Equal(t, []string{"step-1"}, saved(t, run))
			requireLatest(t, run, 1)
		})
	}
	_, err := NewStore(t.TempDir(), Options{Keep: -1})
	assert.ErrorContains(t, err, "keep is -1")
}

func TestAt(t *testing.T) {
	run := t.TempDir()
	_, err := At(run, 3)
	require.ErrorIs(t, err, ErrNone)
	save(t, run, Options{}, 3, 10, 20)
	c, err := At(run, 10)
	require.NoError(t, err)
	requireContents(t, c, 10)
	_, err = At(run, 11)
	require.ErrorIs(t, err, ErrNone)
	assert.ErrorContains(t, err, run+": no usable checkpoint of step 11: those that there are are of steps 3, 10, 20")

	// While a checkpoint is being replaced, what it was until then is good too.
	dir := filepath.Join(run, "checkpoints")
	require.NoError(t, os.Rename(filepath.Join(dir, "step-10"), filepath.Join(dir, ".old-step-10-ABCDEFGHIJ")))
	c, err = At(run, 10)
	require.NoError(t, err)
	requireContents(t, c, 10)
	require.NoError(t, flip(filepath.Join(c.Dir, "model.safetensors"), 500))
	_, err = At(run, 10)
	require.ErrorIs(t, err, ErrNone)
	assert.ErrorContains(t, err, "of step 10: ")
	assert.ErrorContains(t, err, "model.safetensors: altered")
}

// A run deletes checkpoints while readers look for the newest. The readers find a newer one and report no damage.
func TestLatestDuringSaves(t *testing.T) {
	run := t.TempDir()
	for step := range 10 {
		save(t, run, Options{}, step)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := NewStore(run, Options{Keep: 1})
		for step := 10; err == nil && step < 30; step++ {
			_, err = s.Save(contents(step))
		}
		assert.NoError(t, err)
	}()
	at, looks := 0, 0
	for ; ; looks++ {
		c, problems, err := Latest(run)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.GreaterOrEqual(t, c.Step, at)
		at = c.Step
		select {
		case <-done:
			t.Log(looks, "looks")
			requireLatest(t, run, 29)
			return
		default:
		}
	}
}

// What is moved aside leaves nothing of later steps behind: neither a damaged checkpoint nor the one that it replaced.
func TestMoveAside(t *testing.T) {
	run, aside := t.TempDir(), t.TempDir()
	save(t, run, Options{}, 1, 2, 3)
	require.NoError(t, os.Rename(filepath.Join(run, Folder, "step-3"), filepath.Join(run, Folder, ".old-step-3-AAAAAAAAAA")))
	require.NoError(t, os.Mkdir(filepath.Join(run, Folder, "step-3"), 0o777))
	s, err := NewStore(run, Options{})
	require.NoError(t, err)
	moved, err := s.MoveAside(1, aside)
	require.NoError(t, err)
	assert.Equal(t, []int{3, 2}, moved)
	assert.Equal(t, []string{"step-1"}, saved(t, run))
	c, _, err := Latest(aside)
	require.NoError(t, err)
	assert.Equal(t, 3, c.Step)
}
