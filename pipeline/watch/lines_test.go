package watch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// follower follows a file in a test.
type follower struct {
	t     *testing.T
	path  string
	lines *lines
	got   []string
	reset int
}

func follow(t *testing.T, name string) *follower {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return &follower{t: t, path: filepath.Join(dir, name), lines: &lines{root: root, name: name}}
}

// poll returns the new lines.
func (f *follower) poll() []string {
	f.t.Helper()
	f.got = nil
	require.NoError(f.t, f.lines.poll(func() { f.reset++ }, func(line []byte) { f.got = append(f.got, string(line)) }))
	return f.got
}

// write appends to the file.
func (f *follower) write(text string) {
	f.t.Helper()
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	require.NoError(f.t, err)
	_, err = file.WriteString(text)
	require.NoError(f.t, err)
	require.NoError(f.t, file.Close())
}

// replace puts another file in the place of the file.
func (f *follower) replace(text string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(f.path+".new", []byte(text), 0o666))
	require.NoError(f.t, os.Rename(f.path+".new", f.path))
}

func TestLinesFollowAFile(t *testing.T) {
	f := follow(t, "metrics.jsonl")
	assert.Empty(t, f.poll(), "the file does not exist yet")
	f.write("a\nb\nhal")
	assert.Equal(t, []string{"a", "b"}, f.poll(), "a line that is being written waits")
	assert.Empty(t, f.poll())
	f.write("f\r\n\n")
	assert.Equal(t, []string{"half"}, f.poll())
	f.write("c\n")
	assert.Equal(t, []string{"c"}, f.poll())
	assert.Zero(t, f.reset)
}

func TestLinesOfAFileThatIsReplaced(t *testing.T) {
	f := follow(t, "metrics.jsonl")
	f.write("a\nb\nc\n")
	require.Len(t, f.poll(), 3)
	f.replace("a\nb\nx\ny\n")
	assert.Equal(t, []string{"a", "b", "x", "y"}, f.poll(), "another file")
	require.NoError(t, os.Truncate(f.path, 2))
	assert.Equal(t, []string{"a"}, f.poll(), "a shorter file")
	require.NoError(t, os.WriteFile(f.path, []byte("longer\nthan before\n"), 0o666))
	assert.Equal(t, []string{"longer", "than before"}, f.poll(), "the same file with other text before the position")
	assert.Equal(t, 3, f.reset)
	require.NoError(t, os.Remove(f.path))
	assert.Empty(t, f.poll())
	assert.Equal(t, 4, f.reset)
}

// A trace writer overwrites the end of its array with the next event.
func TestLinesOfAnArray(t *testing.T) {
	f := follow(t, "trace.json")
	put := func(at int64, text string) {
		file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE, 0o666)
		require.NoError(t, err)
		_, err = file.WriteAt([]byte(text), at)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	put(0, "[\n{\"a\":1},\n{\"a\":2}\n]\n")
	assert.Equal(t, []string{`{"a":1}`, `{"a":2}`}, f.poll())
	put(19, ",\n{\"a\":3}\n]\n")
	assert.Equal(t, []string{`{"a":3}`}, f.poll())
	put(29, ",\n{\"a\":4},\n{\"a\":5")
	assert.Equal(t, []string{`{"a":4}`}, f.poll(), "an event that is being written waits")
	put(29, ",\n{\"a\":4},\n{\"a\":5}\n]\n")
	assert.Equal(t, []string{`{"a":5}`}, f.poll())
	assert.Zero(t, f.reset)
}

func TestLinesTooLong(t *testing.T) {
	f := follow(t, "metrics.jsonl")
	f.write("a\n" + strings.Repeat("x", 3*maxLine))
	assert.Equal(t, []string{"a"}, f.poll())
	f.write(strings.Repeat("x", 1000) + "\n")
	assert.Empty(t, f.poll(), "the end of the long line is no line")
	f.write("b\n")
	assert.Equal(t, []string{"b"}, f.poll())
	f.write(strings.Repeat("y", 2*maxLine) + "\nc\n")
	assert.Equal(t, []string{"c"}, f.poll())
	assert.Equal(t, 2, f.lines.skipped)
}

func TestLinesOfNoFile(t *testing.T) {
	f := follow(t, "metrics.jsonl")
	require.NoError(t, os.Mkdir(f.path, 0o777))
	assert.ErrorIs(t, f.lines.poll(func() {}, func([]byte) {}), errNotRegular)
	require.NoError(t, os.Remove(f.path))
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("secret\n"), 0o666))
	require.NoError(t, os.Symlink(outside, f.path))
	assert.Error(t, f.lines.poll(func() {}, func(line []byte) { t.Errorf("a link out of the folder was read: %s", line) }))
}
