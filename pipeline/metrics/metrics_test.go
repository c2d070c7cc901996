package metrics

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func TestAppendAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	l, err := Create(path)
	require.NoError(t, err)
	require.NoError(t, l.Append(1, Value{"tokens", 2e9}, Value{"loss", 5.25}, Value{"lr", 1e-5}))
	require.NoError(t, l.Append(2, Value{"loss", math.NaN()}, Value{"grad_norm", math.Inf(1)}, Value{`"odd"`, math.Inf(-1)}))
	want := `{"step":1,"tokens":2000000000,"loss":5.25,"lr":1e-05}` + "\n" +
		`{"step":2,"loss":"NaN","grad_norm":"Infinity","\"odd\"":"-Infinity"}` + "\n"
	assert.Equal(t, want, text(t, path), "in the file before Close")
	for line := range strings.Lines(want) {
		assert.True(t, json.Valid([]byte(line)))
	}
	assert.ErrorContains(t, l.Append(3, Value{"loss", 1}, Value{"loss", 2}), `"loss" is given twice`)
	assert.ErrorContains(t, l.Append(3, Value{"step", 1}), `"step" is given twice`)
	require.NoError(t, l.Sync())
	require.NoError(t, l.Close())
	assert.ErrorIs(t, l.Append(3), os.ErrClosed)

	got, err := Read(path)
	require.NoError(t, err)
	require.Len(t, got, 2)
	assert.Equal(t, Record{1, map[string]float64{"tokens": 2e9, "loss": 5.25, "lr": 1e-5}}, got[0])
	assert.True(t, math.IsNaN(got[1].Values["loss"]))
	assert.Equal(t, math.Inf(1), got[1].Values["grad_norm"])
	assert.Equal(t, math.Inf(-1), got[1].Values[`"odd"`])

	_, err = Create(path)
	require.ErrorIs(t, err, os.ErrExist)
	assert.ErrorContains(t, err, "belongs to an earlier run")
}

func TestExactNumbers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	l, err := Create(path)
	require.NoError(t, err)
	values := []float64{0, math.Copysign(0, -1), 1<<53 - 1, 1 << 53, -3, math.Pi, float64(float32(0.1)), math.MaxFloat64,
		math.SmallestNonzeroFloat64}
	for i, v := range values {
		require.NoError(t, l.Append(i, Value{"v", v}))
	}
	require.NoError(t, l.Close())
	got, err := Read(path)
	require.NoError(t, err)
	for i, v := range values {
		assert.Equal(t, math.Float64bits(v), math.Float64bits(got[i].Values["v"]), "%g", v)
	}
}

func TestNumbersInJSON(t *testing.T) {
	for text, x := range map[string]float64{`"NaN"`: math.NaN(), `"Infinity"`: math.Inf(1), `"-Infinity"`: math.Inf(-1), "0.1": 0.1,
		"16777216": 1 << 24} {
		written, err := json.Marshal(Number(x))
		require.NoError(t, err)
		assert.Equal(t, text, string(written))
		var back Number
		require.NoError(t, json.Unmarshal(written, &back))
		assert.Equal(t, math.Float64bits(x), math.Float64bits(float64(back)))
	}
	for _, text := range []string{`"nan"`, `"1"`, "null", "{}"} {
		assert.Error(t, json.Unmarshal([]byte(text), new(Number)), text)
	}
}

func TestResume(t *testing.T) {
	const old = `{"step":1,"loss":3}` + "\n" + `{"step":2,"loss":2}` + "\n" + `{"step":3,"loss":1}` + "\n"
	for name, c := range map[string]struct {
		file string
		step int
		want string
	}{
		"drops later steps":         {old, 2, `{"step":1,"loss":3}` + "\n" + `{"step":2,"loss":2}` + "\n"},
		"keeps all":                 {old, 3, old},
		"drops all":                 {old, 0, ""},
		"torn line":                 {old + `{"step":4,"lo`, 9, old},
		"torn line of an old step":  {`{"step":1,"loss":3}` + "\n" + `{"step":2`, 9, `{"step":1,"loss":3}` + "\n"},
		"zeros after a power cut":   {old + "\x00\x00\x00", 9, old},
		"lacks only its end":        {strings.TrimSuffix(old, "\n"), 3, old},
		"blank line, lacks its end": {"\n" + strings.TrimSuffix(old, "\n"), 3, old},
		"empty":                     {"", 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "metrics.jsonl")
			require.NoError(t, os.WriteFile(path, []byte(c.file), 0o644))
			l, err := Resume(path, c.step)
			require.NoError(t, err)
			assert.Equal(t, c.want, text(t, path))
			require.NoError(t, l.Append(c.step+1, Value{"loss", 7}))
			require.NoError(t, l.Close())
			assert.Equal(t, c.want+fmt.Sprintf(`{"step":%d,"loss":7}`, c.step+1)+"\n", text(t, path))
			left, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			assert.Len(t, left, 1)
		})
	}
	l, err := Resume(filepath.Join(t.TempDir(), "metrics.jsonl"), 5)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestBroken(t *testing.T) {
	for broken, want := range map[string]string{
		`{"step":1,`:               "line 2: unexpected end of JSON",
		`{"loss":1}`:               "line 2: found step <nil>, expected a whole number",
		`{"step":1.5}`:             "found step 1.5",
		`{"step":"NaN"}`:           "found step NaN",
		`{"step":1e300}`:           "found step 1e+300",
		`[]`:                       "cannot unmarshal array",
		`{"step":1,"loss":1e9999}`: "cannot unmarshal number",
	} {
		path := filepath.Join(t.TempDir(), "metrics.jsonl")
		file := `{"step":1}` + "\n" + broken + "\n" + `{"step":3}` + "\n"
		require.NoError(t, os.WriteFile(path, []byte(file), 0o644))
		_, err := Read(path)
		require.Error(t, err, broken)
		assert.ErrorContains(t, err, path)
		assert.ErrorContains(t, err, want)
		_, err = Resume(path, 1)
		assert.Error(t, err)
		assert.Equal(t, file, text(t, path), "untouched")
	}
	_, err := Read(filepath.Join(t.TempDir(), "no"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestConcurrentAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	l, err := Create(path)
	require.NoError(t, err)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 100 {
				assert.NoError(t, l.Append(100*g+i, Value{"loss", float64(i)}))
			}
		})
	}
	all.Wait()
	require.NoError(t, l.Close())
	got, err := Read(path)
	require.NoError(t, err)
	assert.Len(t, got, 800)
}
