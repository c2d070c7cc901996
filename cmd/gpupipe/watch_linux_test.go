package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/httpserver"
	"github.com/gpupipe/gpupipe/internal/testing/chromium"
	"github.com/gpupipe/gpupipe/pipeline/watch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var screenshots = flag.String("screenshots", "", "folder for screenshots of the page of gpupipe watch")

// inBrowser begins a test of pages, which lasts an hour at most.
func inBrowser(t *testing.T) context.Context {
	t.Helper()
	chromium.Rest(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	return ctx
}

// watchPage opens the page of some runs in a browser.
func watchPage(ctx context.Context, t *testing.T, dir string) *chromium.Tab {
	t.Helper()
	w := watch.New(dir)
	s, err := httpserver.Start(httpserver.Options{Address: "0", Handler: w.Handler(), Public: watch.Public})
	require.NoError(t, err)
	polling, stop := context.WithCancel(ctx)
	t.Cleanup(func() { stop(); require.NoError(t, s.Close()) })
	go w.Run(polling)
	tab, err := chromium.Open(ctx, s.URL())
	require.NoError(t, err)
	t.Cleanup(tab.Close)
	require.NoError(t, tab.Await(ctx, `globalThis.gpupipeWatch && document.getElementById("connection").textContent === "live"`))
	return tab
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](ctx context.Context, t *testing.T, tab *chromium.Tab, expression string) (out T) {
	t.Helper()
	require.NoError(t, tab.Evaluate(ctx, expression, &out))
	return out
}

// The page shows a run of two stages on the CPU while it trains: its loss and the utilization of its stages change.
func TestWatchALiveRun(t *testing.T) {
	ctx := inBrowser(t)
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	tab := watchPage(ctx, t, runs)
	assert.True(t, evaluate[bool](ctx, t, tab, `!document.getElementById("no-runs").hidden`), "there is no run yet, nor its folder")

	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("In the beginning the cat sat on the mat, and a dog ran to the cat.\n",
		400)), 0o666))
	training, stop := context.WithCancel(ctx)
	ended := make(chan int, 1)
	var out bytes.Buffer
	go func() { // the model of TestReadmeRunsInOrder, whose kernels are compiled already
		a := &app{ctx: training, stdout: &out, stderr: &out}
		ended <- a.run([]string{"train", "--no-tune", "--set=run.dir=" + filepath.Join(runs, "live"), "--set=data={train: [" + text +
			"], tokenizer: bytes, val_fraction: 0.1}",
			"--set=model={d_model: 32, n_layers: 2, n_heads: 2, n_kv_heads: 2, d_ff: 64, seq_len: 32}",
			"--set=train={steps: 1000000, batch_size: 8, microbatches: 8, eval_batches: 1}",
			"--set=pipeline={stages: 2, schedule: 2bw, devices: ['cpu:0/1', 'cpu:0/1']}"})
	}()
	defer stop()
	const newest = `(gpupipeWatch.state.focus?.last("%s") ?? NaN)`
	for _, column := range []string{"loss", "system/ranks.0/busy", "system/ranks.1/busy"} {
		value := fmt.Sprintf(newest, column)
		require.NoError(t, tab.Await(ctx, value+" > 0"), column)
		before := evaluate[float64](ctx, t, tab, value)
		require.NoError(t, tab.Await(ctx, fmt.Sprintf("%s !== %v", value, before)), "%s moves", column)
	}
	const shares = `[...document.querySelectorAll("#pipeline-picture .share")].map((s) => s.textContent).join()`
	require.NoError(t, tab.Await(ctx, shares+`.includes(" %")`))
	before := evaluate[string](ctx, t, tab, shares)
	assert.Len(t, strings.Split(before, ","), 2, "a share of each stage")
	require.NoError(t, tab.Await(ctx, fmt.Sprintf("%s !== %q", shares, before)), "the drawing of the pipeline moves")
	assert.Greater(t, evaluate[int](ctx, t, tab, `document.querySelectorAll("#pipeline-picture rect.forward").length`), 4)
	assert.Equal(t, "running", evaluate[string](ctx, t, tab, `document.querySelector("#run-list .state").textContent`))

	stop()
	require.Equal(t, exitInterrupted, <-ended, "%s", &out)
	require.NoError(t, tab.Await(ctx, `document.querySelector("#run-list .state").textContent === "stopped"`))
	photograph(ctx, t, tab)
}

// The page of a run that diverged shows NaN and infinite values as such: among the newest values, and in the charts.
func TestWatchADivergedRun(t *testing.T) {
	ctx := inBrowser(t)
	dir := t.TempDir()
	metrics := filepath.Join(dir, "metrics.jsonl")
	finite := `{"step":1,"tokens":64,"loss":5,"grad_norm":1,"val_loss":6,"tokens_per_s":100}` + "\n"
	require.NoError(t, os.WriteFile(metrics, []byte(finite), 0o666))
	tab := watchPage(ctx, t, dir)
	require.NoError(t, tab.Await(ctx, "gpupipeWatch.drawn.points > 0"))
	const facts = `[...document.querySelectorAll("#facts .fact")].map((f) => f.innerText.replace(/\s+/g, " ")).join("; ")`
	assert.Contains(t, evaluate[string](ctx, t, tab, facts), "5.0000")
	require.NoError(t, tab.Evaluate(ctx, `{
		const draw = CanvasRenderingContext2D.prototype.fillText;
		globalThis.written = new Set();
		CanvasRenderingContext2D.prototype.fillText = function (text, ...at) { written.add(text); draw.call(this, text, ...at); };
	}`, nil))
	odd := `{"step":2,"tokens":128,"loss":"NaN","grad_norm":"Infinity","val_loss":"-Infinity","tokens_per_s":100}` + "\n"
	require.NoError(t, os.WriteFile(metrics, []byte(finite+odd), 0o666))
	require.NoError(t, tab.Await(ctx, `["NaN", "∞", "−∞"].every((text) => written.has(text))`), "the charts mark them")
	assert.Regexp(t, `(?i)step 2; loss NaN; held-out loss −∞`, evaluate[string](ctx, t, tab, facts))
	const focus = "gpupipeWatch.state.focus"
	assert.True(t, evaluate[bool](ctx, t, tab, `Number.isNaN(`+focus+`.last("loss")) && `+focus+`.last("grad_norm") === Infinity`))
	photograph(ctx, t, tab)
}

// The page shows the newest load of every expert of a mixture.
func TestWatchExperts(t *testing.T) {
	ctx := inBrowser(t)
	dir := t.TempDir()
	write := func(name, line string) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
		require.NoError(t, err)
		_, err = f.WriteString(line + "\n")
		require.NoError(t, errors.Join(err, f.Close()))
	}
	write("metrics.jsonl", `{"step":1,"tokens":64,"loss":5,"tokens_per_s":100}`)
	tab := watchPage(ctx, t, dir)
	require.NoError(t, tab.Await(ctx, "gpupipeWatch.drawn.points > 0"))
	assert.True(t, evaluate[bool](ctx, t, tab, `document.getElementById("loads").hidden`), "the run has no experts")
	write("experts.jsonl", `{"step":1,"layers.0/loads":[4,4,8,0],"layers.1/loads":[4,4,4,4]}`)
	const label = `document.querySelector("#loads canvas")?.getAttribute("aria-label")`
	const first = "Load over mean load at step 1. layer 0: largest 2.00, expert 2, 1 idle; layer 1: largest 1.00, expert 0"
	require.NoError(t, tab.Await(ctx, fmt.Sprintf("%s === %q", label, first)))
	// cells are the colors of the experts of the first layer.
	const cells = `(() => {
		const c = document.querySelector("#loads canvas"), r = devicePixelRatio, w = (c.width / r - 64) / 4;
		return [0, 1, 2, 3].map((i) => [...c.getContext("2d").getImageData((64 + (i + 0.5) * w) * r, 5 * r, 1, 1).data].slice(0, 3).join());
	})()`
	colors := evaluate[[]string](ctx, t, tab, cells)
	assert.Equal(t, colors[0], colors[1])
	assert.Len(t, slices.Compact(slices.Clone(colors)), 3, "even, twice the mean and idle: %v", colors)
	write("experts.jsonl", `{"step":2,"layers.0/loads":[4,4,4,4],"layers.1/loads":[4,4,4,4]}`)
	require.NoError(t, tab.Await(ctx, label+`.includes("step 2. layer 0: largest 1.00")`))
	assert.Len(t, slices.Compact(evaluate[[]string](ctx, t, tab, cells)), 1)
	photograph(ctx, t, tab)
}

// photograph checks the page at two widths, in two schemes of colors.
func photograph(ctx context.Context, t *testing.T, tab *chromium.Tab) {
	t.Helper()
	for _, width := range []int{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			require.NoError(t, tab.Resize(ctx, width, 900))
			require.NoError(t, tab.Scheme(ctx, scheme))
			require.NoError(t, tab.Evaluate(ctx, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))`, nil))
			assert.LessOrEqual(t, evaluate[int](ctx, t, tab, "document.documentElement.scrollWidth"), width,
				"nothing is wider than the page")
			text, err := tab.Screenshot(ctx)
			require.NoError(t, err)
			picture, err := png.Decode(bytes.NewReader(text))
			require.NoError(t, err)
			assert.Equal(t, image.Rect(0, 0, width, 900), picture.Bounds())
			corner := color.GrayModel.Convert(picture.At(2, 890)).(color.Gray)
			assert.Equal(t, scheme == "dark", corner.Y < 128, "the page is %s", scheme)
			if *screenshots != "" {
				require.NoError(t, os.WriteFile(filepath.Join(*screenshots, fmt.Sprintf("watch-%d-%s.png", width, scheme)), text, 0o666))
			}
		}
	}
}

// The page draws 100,000 steps with a bounded number of points, and their extremes. How long that takes is logged.
// Texts of the run are no HTML.
func TestWatchALongRun(t *testing.T) {
	ctx := inBrowser(t)
	dir := filepath.Join(t.TempDir(), "<u>run")
	require.NoError(t, os.Mkdir(dir, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "events.jsonl"), []byte(`{"step":1,"event":"<u>note","text":"<u>text"}`+"\n"),
		0o666))
	const steps = 100_000
	var log bytes.Buffer
	for i := range steps {
		loss := 2 + 4/(1+float64(i)/500)
		if i == 54_321 {
			loss = 99
		}
		fmt.Fprintf(&log, `{"step":%d,"tokens":%d,"loss":%.6f,"lr":0.0003,"grad_norm":1.25,"tokens_per_s":123456.7,"staleness":0}`+"\n",
			i+1, 2048*(i+1), loss)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "metrics.jsonl"), log.Bytes(), 0o666))
	tab := watchPage(ctx, t, dir)
	require.NoError(t, tab.Await(ctx, "gpupipeWatch.drawn.points > 0"))
	const focus = "gpupipeWatch.state.focus"
	assert.Equal(t, steps, evaluate[int](ctx, t, tab, focus+".rows"))
	assert.Equal(t, 2000, evaluate[int](ctx, t, tab, focus+".steps.length"))
	assert.Equal(t, 2000+3*1000, evaluate[int](ctx, t, tab, "gpupipeWatch.drawn.points"),
		"two of the loss in each interval, one of what does not change")
	assert.Equal(t, 99.0, evaluate[float64](ctx, t, tab, "Math.max(..."+focus+`.column("loss"))`), "the extreme is drawn")
	assert.Equal(t, "<u>run", evaluate[string](ctx, t, tab, `document.querySelector("#run-list button").textContent`))
	assert.Equal(t, "<u>note<u>text", evaluate[string](ctx, t, tab,
		`document.querySelector("#event-list .kind").textContent + document.querySelector("#event-list div").lastChild.textContent`))
	assert.Zero(t, evaluate[int](ctx, t, tab, `document.querySelectorAll("u").length`))
	t.Logf("parse and draw: %s", evaluate[string](ctx, t, tab,
		"`${gpupipeWatch.drawn.parseMillis} + ${gpupipeWatch.drawn.drawMillis} ms; ${gpupipeWatch.drawn.firstMillis} ms after the page was opened`"))

	require.NoError(t, tab.Evaluate(ctx, `gpupipeWatch.zoom(54000, 54500)`, nil))
	require.NoError(t, tab.Await(ctx, focus+".steps.length < 600"), "a part is shown with all of its steps")
	assert.Equal(t, 99.0, evaluate[float64](ctx, t, tab, focus+".column('loss')["+focus+".steps.indexOf(54322)]"))
}
