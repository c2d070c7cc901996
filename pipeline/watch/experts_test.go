package watch

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type expertsMessage struct {
	Name  string
	Loads *loads
}

// The page gets the newest loads of the run in focus, as they come.
func TestExperts(t *testing.T) {
	dir := t.TempDir()
	a := runFolder(t, filepath.Join(dir, "a"), 3)
	b := runFolder(t, filepath.Join(dir, "b"), 3)
	appendLine(t, a, expertsFile, `{"step":1,"layers.2/loads":[9,0,0]}`)
	appendLine(t, a, expertsFile, `{"step":2,"layers.10/loads":[1,1],"layers.2/loads":[3,0,1],"other":[1]}`)
	appendLine(t, b, expertsFile, `{"step":7,"layers.1/loads":[1]}`)
	w := New(dir)
	base := filepath.Base(dir)
	r := open(t, serve(t, w), fmt.Sprintf("run=%s/b&run=%s/a&focus=%s/a", base, base, base))
	var got expertsMessage
	r.next("experts", &got)
	assert.Equal(t, expertsMessage{base + "/a", &loads{2, []layer{{2, []float64{2.25, 0, 0.75}}, {10, []float64{1, 1}}}}}, got)
	appendLine(t, a, expertsFile, `{"step":3,"layers.2/loads":[0,0,0]}`)
	w.Poll()
	got = expertsMessage{}
	r.next("experts", &got)
	assert.Equal(t, &loads{3, []layer{{2, []float64{0, 0, 0}}}}, got.Loads)

	many := strings.TrimSuffix(strings.Repeat("1e300,", 2*maxExperts), ",")
	appendLine(t, a, expertsFile, `{"step":4,"layers.2/loads":["x"]}`)
	w.Poll()
	appendLine(t, a, expertsFile, `{"step":5,"layers.2/loads":[`+many+`],"layers.3/loads":[-1,1e308,1e308]}`)
	w.Poll()
	got = expertsMessage{}
	r.next("experts", &got)
	require.Len(t, got.Loads.Layers, 2)
	assert.Len(t, got.Loads.Layers[0].Loads, maxExperts)
	assert.Equal(t, 1.0, got.Loads.Layers[0].Loads[0])
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Equal(t, "1 line cannot be read", w.runs[base+"/a"].trouble())
}
