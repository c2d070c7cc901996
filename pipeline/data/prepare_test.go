package data

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inputs is a text file and a jsonl file, with a document longer than a piece in each.
func inputs(t testing.TB) []string {
	text := write(t, "a.txt", words(pieceSize*5/4))
	var b strings.Builder
	for _, n := range []int{10, pieceSize * 5 / 4, 5000, 1, 70_000} {
		line, err := json.Marshal(map[string]string{"text": words(n)})
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	return []string{text, write(t, "b.jsonl", b.String())}
}

func folder(t testing.TB, dir string) map[string]string {
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = string(raw)
	}
	return files
}

func prepare(t testing.TB, o PrepareOptions) *Manifest {
	m, err := Prepare(context.Background(), o)
	require.NoError(t, err)
	return m
}

// The shards hold the tokens that Load makes of the same files.
func TestPrepareHoldsTheTokens(t *testing.T) {
	tok := wordTok{vocab: 70_000}
	in := inputs(t)
	whole, _, err := load(t, Options{Train: in, Tokenizer: tok, Vocab: 70_000})
	require.NoError(t, err)
	for _, c := range []struct {
		val, shard int64
		shards     []string
	}{
		{0, 1 << 20, []string{"train_000001.bin"}},
		{1000, 1 << 20, []string{"val_000000.bin", "train_000001.bin"}},
		{0, whole.Len(), []string{"train_000001.bin"}},
		{whole.Len() - 1, 7, []string{"val_000000.bin", "train_000001.bin"}},
		{1, (whole.Len() - 1) / 2, []string{"val_000000.bin", "train_000001.bin", "train_000002.bin"}},
	} {
		dir := filepath.Join(t.TempDir(), "new", "folder")
		if c.val == 1 && (whole.Len()-1)%2 == 1 {
			c.shards = append(c.shards, "train_000003.bin")
		}
		var done, total int64
		m := prepare(t, PrepareOptions{Inputs: in, OutDir: dir, Tokenizer: tok, ValTokens: c.val, ShardTokens: c.shard,
			Progress: func(d, n int64, _ int) { done, total = d, n }})
		assert.True(t, m.Complete)
		assert.Equal(t, total, done)
		var files, names []string
		for _, s := range m.Shards {
			files, names = append(files, filepath.Join(dir, s.Name)), append(names, s.Name)
		}
		assert.Equal(t, c.shards, names)
		assert.Len(t, folder(t, dir), len(names)+1)
		shards, _, err := load(t, Options{Train: files, Vocab: 70_000})
		require.NoError(t, err)
		assert.Equal(t, whole.Hash(), shards.Hash())
	}
}

func TestPrepareHeldOutFiles(t *testing.T) {
	in, dir := inputs(t), t.TempDir()
	m := prepare(t, PrepareOptions{Inputs: in[:1], Val: in[1:], OutDir: dir, Tokenizer: byteTok{}, ShardTokens: pieceSize})
	var names []string
	for _, s := range m.Shards {
		names = append(names, s.Name)
	}
	assert.Equal(t, []string{"val_000000.bin", "val_000001.bin", "train_000001.bin", "train_000002.bin"}, names)
	val, _, err := load(t, Options{Train: []string{filepath.Join(dir, "val_*.bin")}, Vocab: 256})
	require.NoError(t, err)
	want, _, err := load(t, Options{Train: in[1:], Tokenizer: byteTok{}, Vocab: 256})
	require.NoError(t, err)
	assert.Equal(t, want.Hash(), val.Hash())
}

// Prepare, stopped by an error after any piece and called again, writes the same files and does not rewrite finished
// shards.
func TestPrepareResumes(t *testing.T) {
	in := inputs(t)
	for _, o := range []PrepareOptions{
		{Inputs: in, ValTokens: 5_000, ShardTokens: 15_000},
		{Inputs: in[1:], Val: in[:1], ShardTokens: 20_000},
	} {
		tok := wordTok{vocab: 50_000}
		o.Tokenizer, o.OutDir = tok, t.TempDir()
		prepare(t, o)
		want := folder(t, o.OutDir)
		for stop := range int64(5) {
			o.OutDir = t.TempDir()
			var calls atomic.Int64
			tok.fail = func() bool { return calls.Add(1) > stop }
			o.Tokenizer = tok
			_, err := Prepare(context.Background(), o)
			require.ErrorIs(t, err, errInjected)
			partial := folder(t, o.OutDir)
			times := map[string]time.Time{}
			for name, content := range partial {
				if strings.HasSuffix(name, ".bin") {
					require.Equal(t, want[name], content, "a torn shard")
					st, err := os.Stat(filepath.Join(o.OutDir, name))
					require.NoError(t, err)
					times[name] = st.ModTime()
				}
			}
			tok.fail = nil
			o.Tokenizer = tok
			prepare(t, o)
			require.Equal(t, want, folder(t, o.OutDir), "stopped after %d pieces", stop)
			for name, at := range times {
				st, err := os.Stat(filepath.Join(o.OutDir, name))
				require.NoError(t, err)
				require.Equal(t, at, st.ModTime(), "%s was made again", name)
			}
		}
	}
}

func TestPrepareRepairsDamagedShards(t *testing.T) {
	in := inputs(t)
	o := PrepareOptions{Inputs: in, OutDir: t.TempDir(), Tokenizer: wordTok{vocab: 50_000}, ShardTokens: 20_000}
	prepare(t, o)
	want := folder(t, o.OutDir)
	for _, damage := range []func(path string) error{
		os.Remove,
		func(path string) error { return os.Truncate(path, 5000) },
		func(path string) error { return os.WriteFile(path, []byte("other"), 0o644) },
	} {
		require.NoError(t, damage(filepath.Join(o.OutDir, "train_000002.bin")))
		require.NoError(t, os.WriteFile(filepath.Join(o.OutDir, tempPrefix+"1"), []byte("half a shard"), 0o644))
		prepare(t, o)
		require.Equal(t, want, folder(t, o.OutDir))
	}
}

func TestPrepareRefuses(t *testing.T) {
	text := write(t, "a.txt", words(1000))
	base := PrepareOptions{Inputs: []string{text}, Tokenizer: wordTok{vocab: 500}, ShardTokens: 50}
	done := t.TempDir()
	first := base
	first.OutDir = done
	prepare(t, first)
	before := folder(t, done)
	stranger := t.TempDir()
	require.NoError(t, writeBin(filepath.Join(stranger, "train_000001.bin"), []uint32{1}, 2))
	torn := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(torn, manifestName), []byte("{"), 0o644))
	file := write(t, "file", "x")
	nowhere := filepath.Join(t.TempDir(), "a", "b")
	for want, change := range map[string]func(*PrepareOptions){
		"no tokenizer given":                     func(o *PrepareOptions) { o.Tokenizer = nil },
		"no output folder given":                 func(o *PrepareOptions) { o.OutDir = "" },
		"shards of -1 tokens":                    func(o *PrepareOptions) { o.ShardTokens = -1 },
		"-1 held-out tokens":                     func(o *PrepareOptions) { o.ValTokens = -1 },
		"expected one of the two":                func(o *PrepareOptions) { o.ValTokens, o.Val = 1, []string{text} },
		"no such file":                           func(o *PrepareOptions) { o.Inputs = []string{"none.txt"} },
		"already a token shard":                  func(o *PrepareOptions) { o.Inputs = []string{filepath.Join(done, "train_000001.bin")} },
		"not a directory":                        func(o *PrepareOptions) { o.OutDir = file },
		"train_000001.bin and no manifest.json":  func(o *PrepareOptions) { o.OutDir = stranger },
		"manifest.json: unexpected end":          func(o *PrepareOptions) { o.OutDir = torn },
		"made from other shard length":           func(o *PrepareOptions) { o.ShardTokens = 60 },
		"made from other tokenizer":              func(o *PrepareOptions) { o.Tokenizer = wordTok{vocab: 501} },
		"made from other inputs":                 func(o *PrepareOptions) { o.Inputs = []string{write(t, "b.txt", words(900))} },
		"made from other number of held-out":     func(o *PrepareOptions) { o.ValTokens = 5 },
		"fewer than the 5000 tokens to hold out": func(o *PrepareOptions) { o.ValTokens, o.OutDir = 5000, nowhere },
		"a NUL byte at offset 1":                 func(o *PrepareOptions) { o.Inputs, o.OutDir = []string{write(t, "c.txt", "a\x00b")}, nowhere },
	} {
		o := base
		o.OutDir = done
		change(&o)
		_, err := Prepare(context.Background(), o)
		assert.ErrorContains(t, err, want)
		assert.NoDirExists(t, filepath.Dir(nowhere), want)
	}
	assert.Equal(t, before, folder(t, done))
	release, err := lock.Folder(done)
	require.NoError(t, err)
	base.OutDir = done
	_, err = Prepare(context.Background(), base)
	assert.ErrorIs(t, err, lock.ErrHeld)
	release()
}

const killEnv = "DATA_TEST_PREPARE"

// TestMain lets the test binary be the process that TestPrepareSurvivesSIGKILL kills.
func TestMain(m *testing.M) {
	raw := os.Getenv(killEnv)
	if raw == "" {
		os.Exit(m.Run())
	}
	var o PrepareOptions
	if err := json.Unmarshal([]byte(raw), &struct{ Inputs, OutDir any }{&o.Inputs, &o.OutDir}); err != nil {
		panic(err)
	}
	o = killed(o)
	o.Tokenizer = wordTok{vocab: 50_000, fail: func() bool { time.Sleep(30 * time.Millisecond); return false }} // time to be killed in
	_, err := Prepare(context.Background(), o)
	if err != nil {
		panic(err)
	}
}

func killed(o PrepareOptions) PrepareOptions {
	o.Tokenizer, o.ValTokens, o.ShardTokens = wordTok{vocab: 50_000}, 1000, 2000
	return o
}

func TestPrepareSurvivesSIGKILL(t *testing.T) {
	o := killed(PrepareOptions{Inputs: inputs(t), OutDir: t.TempDir()})
	prepare(t, o)
	want := folder(t, o.OutDir)

	o.OutDir = t.TempDir()
	config, err := json.Marshal(map[string]any{"Inputs": o.Inputs, "OutDir": o.OutDir})
	require.NoError(t, err)
	kills := 0
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+string(config))
		require.NoError(t, cmd.Start())
		time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
		ended := cmd.Wait() == nil
		for name, content := range folder(t, o.OutDir) {
			if strings.HasSuffix(name, ".bin") {
				require.Equal(t, want[name], content, "a torn shard")
			}
		}
		if ended {
			break
		}
		kills++
	}
	assert.GreaterOrEqual(t, kills, 2)
	assert.Equal(t, want, folder(t, o.OutDir))
}

func FuzzManifest(f *testing.F) {
	text := write(f, "a.txt", words(300))
	o := PrepareOptions{Inputs: []string{text}, OutDir: f.TempDir(), Tokenizer: wordTok{vocab: 500}, ShardTokens: 20}
	m := prepare(f, o)
	want := folder(f, o.OutDir)
	delete(want, manifestName)
	raw, err := json.Marshal(m)
	require.NoError(f, err)
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		o := o
		o.OutDir = t.TempDir()
		for name, content := range want {
			require.NoError(t, os.WriteFile(filepath.Join(o.OutDir, name), []byte(content), 0o644))
		}
		require.NoError(t, os.WriteFile(filepath.Join(o.OutDir, manifestName), raw, 0o644))
		_, _ = Prepare(context.Background(), o) // any outcome but a panic
	})
}
