package watch

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runFolder writes a run of some steps.
func runFolder(t *testing.T, dir string, steps int) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o777))
	for i := range steps {
		appendLine(t, dir, metricsFile, fmt.Sprintf(`{"step":%d,"tokens":%d,"loss":%g,"tokens_per_s":50}`, i+1, 100*(i+1), 5-float64(i)/10))
	}
	return dir
}

func appendLine(t *testing.T, dir, name, line string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	require.NoError(t, err)
	_, err = f.WriteString(line + "\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// reader reads the stream of a page.
type reader struct {
	t     *testing.T
	lines *bufio.Scanner
	body  io.Closer
}

func open(t *testing.T, server *httptest.Server, query string) *reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/stream?"+query, nil)
	require.NoError(t, err)
	response, err := server.Client().Do(request)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	t.Cleanup(func() { response.Body.Close() })
	r := &reader{t: t, lines: bufio.NewScanner(response.Body), body: response.Body}
	r.lines.Buffer(nil, 16<<20)
	return r
}

// next returns the next message of a kind.
func (r *reader) next(kind string, out any) {
	r.t.Helper()
	for r.lines.Scan() {
		if r.lines.Text() != "event: "+kind {
			continue
		}
		require.True(r.t, r.lines.Scan())
		data, ok := strings.CutPrefix(r.lines.Text(), "data: ")
		require.True(r.t, ok)
		require.NoError(r.t, json.Unmarshal([]byte(data), out), "%s", data)
		return
	}
	require.Fail(r.t, "the stream ended", "%v", r.lines.Err())
}

type rowsMessage struct {
	Name    string
	All     bool
	Rows    int
	Steps   []float64
	Columns map[string][]*metrics.Number
}

type runsMessage struct {
	Runs  []Summary
	Total int
	Shown []string
	Focus string
}

// serve serves a watcher that polls only when the test does.
func serve(t *testing.T, w *Watcher) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(w.Handler())
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}

func TestStreamSendsWhatIsNew(t *testing.T) {
	dir := t.TempDir()
	a := runFolder(t, filepath.Join(dir, "runs", "a"), 3)
	w := New(filepath.Join(dir, "runs"))
	r := open(t, serve(t, w), "")
	var list runsMessage
	r.next("runs", &list)
	require.Len(t, list.Runs, 1)
	assert.Equal(t, "runs/a", list.Runs[0].Name)
	assert.Equal(t, Running, list.Runs[0].State)
	var rows rowsMessage
	r.next("rows", &rows)
	assert.True(t, rows.All)
	assert.Equal(t, []float64{1, 2, 3}, rows.Steps)
	assert.EqualValues(t, 4.8, *rows.Columns["loss"][2])
	assert.EqualValues(t, 6.0, *rows.Columns["elapsed"][2])

	appendLine(t, a, metricsFile, `{"step":4,"tokens":400,"loss":"NaN","tokens_per_s":50}`)
	appendLine(t, a, systemFile, `{"step":3,"time":1.7e9,"system/ranks.0/busy":0.5}`)
	w.Poll()
	rows = rowsMessage{}
	r.next("rows", &rows)
	assert.True(t, rows.All, "there is a new column")
	assert.Equal(t, 4, rows.Rows)
	assert.True(t, math.IsNaN(float64(*rows.Columns["loss"][3])), "what is not finite is sent as such")
	assert.Nil(t, rows.Columns["time"][3], "what was not measured is null")
	appendLine(t, a, metricsFile, `{"step":5,"tokens":500,"loss":4.6,"tokens_per_s":50}`)
	w.Poll()
	rows = rowsMessage{}
	r.next("rows", &rows)
	assert.False(t, rows.All)
	assert.Equal(t, []float64{3, 4, 5}, rows.Steps, "the rows to which another file may add come again")

	require.NoError(t, os.Remove(filepath.Join(a, systemFile)))
	require.NoError(t, os.WriteFile(filepath.Join(a, "new"), []byte(`{"step":1,"loss":9}`+"\n"), 0o666))
	require.NoError(t, os.Rename(filepath.Join(a, "new"), filepath.Join(a, metricsFile)))
	w.Poll()
	w.Poll() // reads what the first one has noticed
	for rows.Rows != 1 {
		rows = rowsMessage{}
		r.next("rows", &rows)
	}
	assert.True(t, rows.All, "the run began again")
	assert.EqualValues(t, 9.0, *rows.Columns["loss"][0])
}

func TestStreamOfAView(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "study/runs/c"} {
		runFolder(t, filepath.Join(dir, name), 100)
	}
	runFolder(t, filepath.Join(dir, "a", "checkpoints", "step-1"), 1)
	runFolder(t, filepath.Join(dir, ".hidden"), 1)
	w := New(dir)
	base := filepath.Base(dir)
	r := open(t, serve(t, w), fmt.Sprintf("run=%s/b&run=nothing&focus=%s/b&from=20&to=29.5", base, base))
	var list runsMessage
	r.next("runs", &list)
	assert.Len(t, list.Runs, 3, "checkpoints and hidden folders are no runs")
	for _, s := range list.Runs {
		assert.Equal(t, 100, s.Step, "%s: also of a run that is not shown", s.Name)
	}
	var rows rowsMessage
	r.next("rows", &rows)
	assert.Equal(t, base+"/b", rows.Name)
	assert.Equal(t, []float64{19, 30}, []float64{rows.Steps[0], rows.Steps[len(rows.Steps)-1]}, "the part, and a row more on each side")

	runFolder(t, filepath.Join(dir, "later"), 2)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
	for range 2 * searchEvery {
		w.Poll()
	}
	for list = (runsMessage{}); len(list.Runs) != 3 || list.Runs[0].Name != base+"/later"; list = (runsMessage{}) {
		r.next("runs", &list)
		if len(list.Runs) == 3 && list.Runs[0].Name == base+"/later" {
			break
		}
	}
}

// Streams that have ended let go of their runs, which are unloaded after a while.
func TestRunsAreUnloaded(t *testing.T) {
	dir := runFolder(t, t.TempDir(), 3)
	w := New(dir)
	r := open(t, serve(t, w), "")
	var rows rowsMessage
	r.next("rows", &rows)
	r.body.Close()
	name := filepath.Base(dir)
	for {
		w.mu.Lock()
		streams := w.runs[name].streams
		w.mu.Unlock()
		if streams == 0 {
			break
		}
		appendLine(t, dir, metricsFile, fmt.Sprintf(`{"step":%d}`, time.Now().UnixNano()/1e3))
		w.Poll() // wakes up the stream, which finds that its reader is gone
	}
	for range keptPolls + 1 {
		w.Poll()
	}
	assert.False(t, w.runs[name].loaded)
}

// The newest checkpoint of a run that a page shows is sampled once.
func TestSamples(t *testing.T) {
	dir := t.TempDir()
	a := runFolder(t, filepath.Join(dir, "a"), 3)
	runFolder(t, filepath.Join(dir, "b"), 3)
	for _, name := range []string{"a/checkpoints/step-20", "a/checkpoints/step-100", "a/checkpoints/other", "b/checkpoints/step-1"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o777))
	}
	w := New(dir)
	r := open(t, serve(t, w), "run="+filepath.Base(dir)+"/a")
	var got about
	r.next("about", &got)
	assert.Empty(t, got.Samples)
	var asked []string
	generate := func(_ context.Context, dir string, step int) (string, error) {
		asked = append(asked, fmt.Sprint(dir, " ", step))
		if step == 200 {
			return "", os.ErrNotExist
		}
		return "<b>text", nil
	}
	assert.True(t, w.sampleOne(t.Context(), generate))
	assert.False(t, w.sampleOne(t.Context(), generate), "that of b is not watched")
	r.next("about", &got)
	require.Len(t, got.Samples, 1)
	assert.Equal(t, 100.0, got.Samples[0].Step)
	assert.Equal(t, "<b>text", got.Samples[0].Text)
	require.NoError(t, os.MkdirAll(filepath.Join(a, "checkpoints", "step-200"), 0o777))
	assert.True(t, w.sampleOne(t.Context(), generate))
	assert.Equal(t, []string{a + " 100", a + " 200"}, asked)
	assert.Len(t, w.runs[filepath.Base(dir)+"/a"].samples, 1)
}

// Hostile files make a run look odd, and nothing else.
func TestHostileFiles(t *testing.T) {
	dir := t.TempDir()
	name := `<img src=x onerror=alert(1)>"&'`
	a := runFolder(t, filepath.Join(dir, name), 2)
	bad := runFolder(t, filepath.Join(dir, "bad\xff\nname"), 1)
	appendLine(t, a, metricsFile, `{"step":3,"loss":1e999}`)
	appendLine(t, a, metricsFile, `{"step":1e300,"loss":1}`)
	appendLine(t, a, metricsFile, `{"step":3,"<script>":1,"__proto__":2,"loss":4}`)
	appendLine(t, a, metricsFile, strings.Repeat(`[`, 100_000))
	appendLine(t, a, eventsFile, `{"event":"<b>","text":"`+strings.Repeat("x", 2*maxText)+`","step":1e400}`)
	appendLine(t, a, eventsFile, `{"event":"note","text":"`+strings.Repeat("é", maxText)+`"}`)
	appendLine(t, a, eventsFile, `{"event":"start","start":{"steps":1e30}}`)
	appendLine(t, a, eventsFile, `null`)
	appendLine(t, a, "trace.json", "[")
	for _, e := range []string{`{"ph":"M","name":"thread_name","tid":1,"args":{"name":"<i>stage 0"}}`,
		`{"ph":"M","name":"thread_name","tid":1,"args":7}`,
		`{"ph":"X","cat":"update","name":"U0","tid":1,"ts":-1e308,"dur":1e308,"args":{"batch":0}}`,
		`{"ph":"X","cat":"update","name":"U0","tid":1,"ts":0,"dur":-5,"args":{"batch":0}}`,
		`{"ph":"X","cat":"forward","name":"F0","tid":1,"ts":0,"dur":5,"args":{"batch":9223372036854775807}}`,
		`{"ph":"X","cat":"update","name":"<u>","tid":1,"ts":0,"dur":0,"args":{"batch":9223372036854775807}}`,
		`{"ph":"X","cat":"update","tid":99,"ts":0,"dur":1}`} {
		appendLine(t, a, "trace.json", e+",")
	}
	require.NoError(t, os.WriteFile(filepath.Join(a, configFile),
		[]byte("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\ntrain: {steps: -5}\n"), 0o666))
	outside := runFolder(t, t.TempDir(), 7)
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "linked"), 0o777))
	require.NoError(t, os.Symlink(filepath.Join(outside, metricsFile), filepath.Join(dir, "linked", metricsFile)))
	require.NoError(t, os.Symlink(".", filepath.Join(dir, "loop")))
	_ = bad

	w := New(dir)
	r := open(t, serve(t, w), "")
	var list runsMessage
	r.next("runs", &list)
	base := filepath.Base(dir)
	for _, s := range list.Runs {
		assert.NotContains(t, s.Name, "loop")
		assert.Equal(t, s.Name == base+"/link", s.Step == 7,
			"links to folders are followed, links of files out of the run folder are not: %s", s.Name)
	}
	var rows rowsMessage
	for rows.Name != base+"/"+name {
		rows = rowsMessage{}
		r.next("rows", &rows)
	}
	assert.Equal(t, []float64{1, 2, 3}, rows.Steps)
	assert.EqualValues(t, 4.0, *rows.Columns["loss"][2])
	assert.Contains(t, rows.Columns, "<script>")
	w.mu.Lock()
	defer w.mu.Unlock()
	run := w.runs[base+"/"+name]
	assert.NotNil(t, run.contents.timeline.picture())
	assert.LessOrEqual(t, len(run.contents.events[0].Text), maxText+10)
	assert.Contains(t, run.trouble(), "lines cannot be read")
}

// Requests reach the page's own files only.
func TestRequests(t *testing.T) {
	w := New(t.TempDir())
	server := serve(t, w)
	for path, want := range map[string]int{"/": 200, "/main.js": 200, "/uplot/uPlot.js": 200, "/../watch.go": 404,
		"/%2e%2e/watch.go": 404, "/..%2fwatch.go": 404, "/nothing": 404, "/uplot/../../run.go": 404} {
		request, err := http.NewRequest(http.MethodGet, server.URL, nil)
		require.NoError(t, err)
		request.URL.Opaque = path
		response, err := server.Client().Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		response.Body.Close()
		assert.Equal(t, want, response.StatusCode, path)
		assert.NotContains(t, string(text), "package watch", path)
		assert.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'")
	}
	response, err := server.Client().Post(server.URL+"/stream", "text/plain", nil)
	require.NoError(t, err)
	response.Body.Close()
	assert.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
	assert.True(t, Public(httptest.NewRequest(http.MethodGet, "/main.js", nil)))
	assert.False(t, Public(httptest.NewRequest(http.MethodGet, "/stream?run=a", nil)))
}

// Folders of one base name have names of their own.
func TestFoldersOfOneName(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i := range 14 {
		runFolder(t, filepath.Join(dir, fmt.Sprint("exp", i), "runs", "a"), 1)
		paths = append(paths, filepath.Join(dir, fmt.Sprint("exp", i), "runs"))
	}
	w := New(append(paths, paths[3], "/")...)
	assert.Len(t, w.folders, 16)
	names := w.newest(0)
	assert.Contains(t, names, "runs/a")
	for i := 1; i < 14; i++ {
		assert.Contains(t, names, fmt.Sprintf("exp%d/runs/a", i))
	}
}

// A linked run folder is a run, and so are those in a linked folder. A link that leads elsewhere later is followed
// there.
func TestLinkedRuns(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	for i, name := range []string{"one", "two", "many/a", "many/b"} {
		runFolder(t, filepath.Join(elsewhere, name), i+1)
	}
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "one"), filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "many"), filepath.Join(dir, "more")))
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "none"), filepath.Join(dir, "broken")))
	require.NoError(t, os.Symlink(dir, filepath.Join(elsewhere, "many", "back")))
	w := New(dir)
	base := filepath.Base(dir)
	names := w.newest(0)
	assert.ElementsMatch(t, []string{base + "/link", base + "/more/a", base + "/more/b"}, names)
	assert.Equal(t, 1.0, w.runs[base+"/link"].tail.step)
	require.NoError(t, os.Remove(filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "two"), filepath.Join(dir, "link")))
	for range searchEvery {
		w.Poll()
	}
	assert.Equal(t, 2.0, w.runs[base+"/link"].tail.step)
}

// The list has the newest of many runs, and those that a search finds.
func TestManyRuns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	const all = 2500
	now := time.Now()
	for i := range all {
		run := filepath.Join(dir, fmt.Sprintf("run-%04d", i))
		require.NoError(t, os.MkdirAll(run, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(run, metricsFile), []byte(`{"step":1,"loss":1}`+"\n"), 0o666))
		require.NoError(t, os.Chtimes(filepath.Join(run, metricsFile), now, now.Add(time.Duration(i-all)*time.Minute)))
	}
	w := New(dir)
	list := w.summaries(view{})
	require.Len(t, list, listedRuns)
	assert.Equal(t, "runs/run-2499", list[0].Name)
	assert.Equal(t, "runs/run-2300", list[listedRuns-1].Name)
	list = w.summaries(view{search: "RUN-01", runs: []string{"runs/run-2499"}})
	require.Len(t, list, 101)
	assert.Equal(t, "runs/run-0100", list[100].Name)
	var message runsMessage
	open(t, serve(t, w), "search=0042").next("runs", &message)
	assert.Equal(t, all, message.Total)
	assert.Contains(t, fmt.Sprint(message.Runs), "run-0042")
}

// A learning-rate range test has no number of steps: it is finished once its result is there.
func TestRateTestIsFinished(t *testing.T) {
	dir := t.TempDir()
	run := runFolder(t, filepath.Join(dir, "range"), 3)
	require.NoError(t, os.RemoveAll(filepath.Join(run, configFile)))
	w := New(dir)
	assert.Equal(t, Running, w.summaries(view{})[0].State)
	appendLine(t, run, resultFile, "{}")
	for range restPolls {
		w.Poll()
	}
	assert.Equal(t, Finished, w.summaries(view{})[0].State)
}

// The newest values of the run in focus come with a part of it, too.
func TestNewestValuesOfAZoomedRun(t *testing.T) {
	dir := t.TempDir()
	run := runFolder(t, filepath.Join(dir, "runs", "a"), 9)
	appendLine(t, run, metricsFile, `{"step":10,"loss":"NaN","grad_norm":"Infinity"}`)
	w := New(filepath.Join(dir, "runs"))
	r := open(t, serve(t, w), "from=2&to=4")
	var n newest
	r.next("newest", &n)
	assert.Equal(t, 10.0, n.Step)
	assert.True(t, math.IsNaN(float64(n.Values["loss"])))
	assert.True(t, math.IsInf(float64(n.Values["grad_norm"]), 1))
	appendLine(t, run, metricsFile, `{"step":11,"loss":3.5}`)
	w.Poll()
	r.next("newest", &n)
	assert.EqualValues(t, 3.5, n.Values["loss"])
}
