// Command browser is the page's Go program, built for GOOS=js: it trains on the browser's WebGPU and reports to app.js.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall/js"
	"time"

	"github.com/gpupipe/gpupipe/examples/browser/trainer"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpujs"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/gpupipe/gpupipe/wasm/page"
)

func main() {
	js.Global().Set("gpupipe", map[string]any{
		"defaults":   js.FuncOf(func(js.Value, []js.Value) any { return text(trainer.Defaults()) }),
		"optimizers": js.FuncOf(func(js.Value, []js.Value) any { return text(trainer.Optimizers()) }),
		"adapter":    promised(func([]js.Value) (any, error) { return adapter() }),
		"train":      js.FuncOf(func(_ js.Value, args []js.Value) any { return start(args[0], args[1]) }),
	})
	js.Global().Call("gpupipeReady")
	select {}
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// promised makes a JavaScript function that returns a promise of f's result: a callback must not block.
func promised(f func(args []js.Value) (any, error)) js.Func {
	return js.FuncOf(func(_ js.Value, args []js.Value) any {
		var executor js.Func
		executor = js.FuncOf(func(_ js.Value, settle []js.Value) any {
			go func() {
				defer executor.Release()
				if v, err := f(args); err != nil {
					settle[1].Invoke(js.Global().Get("Error").New(err.Error()))
				} else {
					settle[0].Invoke(v)
				}
			}()
			return nil
		})
		return js.Global().Get("Promise").New(executor)
	})
}

// adapter names the device that the browser offers. It opens it, so that a device that cannot be used is an error.
func adapter() (string, error) {
	d, err := webgpujs.Open(webgpujs.Options{})
	if err != nil {
		return "", err
	}
	defer d.Close()
	return fmt.Sprintf("%s (%s)", d.Info().Adapter, d.Info().Kind), nil
}

// start begins a run {config, text, hooks: [{file, hook, config, module}], sampleEvery, prompt}. It returns {stop,
// done}: a function that stops the run, and the promise of its end. on has the functions note(text), step(number, loss,
// seconds) and sample(step, text).
func start(run, on js.Value) map[string]any {
	ctx, stop := context.WithCancel(context.Background())
	done := promised(func([]js.Value) (any, error) { return nil, train(ctx, run, on) })
	return map[string]any{
		"stop": js.FuncOf(func(js.Value, []js.Value) any { stop(); return nil }),
		"done": done.Invoke(),
	}
}

// maxParameters is the size of the largest model. Its training fits in a page's memory, 4 GB.
const maxParameters = 50_000_000

func train(ctx context.Context, run, on js.Value) error {
	note := func(format string, a ...any) { on.Call("note", fmt.Sprintf(format, a...)) }
	c := trainer.Defaults()
	d := json.NewDecoder(strings.NewReader(run.Get("config").String()))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if err := c.Model.Validate(); err != nil {
		return err
	}
	if n := c.Model.Count(); n > maxParameters {
		return fmt.Errorf("the model has %d parameters, a page holds at most %d", n, int64(maxParameters))
	}
	hooks, closeHooks, err := load(c, run.Get("hooks"), note)
	if err != nil {
		return err
	}
	defer closeHooks()
	dev, err := webgpujs.Open(webgpujs.Options{Label: "gpupipe"})
	if err != nil {
		return err
	}
	defer dev.Close()
	began := time.Now()
	t, err := trainer.New(dev, c, bytesOf(run.Get("text")), hooks)
	if err != nil {
		return err
	}
	defer t.Close()
	buffers, _ := dev.Allocated()
	note("%d parameters, %.1f MB on %s, compiled in %.1f s", c.Model.Count(), float64(buffers)/1e6, dev.Info().Adapter,
		time.Since(began).Seconds())
	return loop(ctx, t, dev, run, on)
}

// loop trains to the last step, or until ctx ends. It makes a sample every sampleEvery steps.
func loop(ctx context.Context, t *trainer.Trainer, dev device.Device, run, on js.Value) error {
	began, sampling := time.Now(), time.Duration(0)
	for t.Step() < t.Steps() && ctx.Err() == nil {
		err := t.Train(ctx, run.Get("sampleEvery").Int(), func(step int, loss float64) {
			on.Call("step", step, loss, (time.Since(began) - sampling).Seconds())
		})
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
		from := time.Now()
		prompt := run.Get("prompt").String()
		made, err := t.Sample(ctx, []byte(prompt), t.SeqLen()/2, 0.8)
		if err != nil && ctx.Err() == nil {
			return err
		}
		on.Call("sample", t.Step(), prompt+string(made))
		sampling += time.Since(from)
	}
	return dev.Sync()
}

// load loads the hooks' modules and builds the loss. Hooks run on the page's thread, so their deadline is short.
func load(c trainer.Config, list js.Value, note func(string, ...any)) (h trainer.Hooks, closeAll func(), err error) {
	closeAll = func() {}
	for i := range list.Length() {
		given := list.Index(i)
		file, name := given.Get("file").String(), given.Get("hook").String()
		m, err := page.Load(file, name, bytesOf(given.Get("module")), wasm.Limits{MemoryPages: 1024, Deadline: 5 * time.Second})
		if err != nil {
			return h, closeAll, err
		}
		config := []byte(given.Get("config").String())
		if err := json.Unmarshal(config, &map[string]any{}); err != nil {
			return h, closeAll, fmt.Errorf("the configuration of %s: expected a JSON object: %w", file, err)
		}
		o := wasm.Options{Config: config, Log: func(line string) { note("%s: %s", file, line) }}
		switch name {
		case hook.BuildLoss:
			if h.Loss, err = m.BuildLoss(o, c.LossInputs()); err != nil {
				return h, closeAll, err
			}
			note("%s: a loss of %d nodes", file, len(h.Loss.Nodes))
		case hook.LearningRate:
			rate, err := m.Rate(o)
			if err != nil {
				return h, closeAll, err
			}
			h.Factor, closeAll = rate.Factor, rate.Close
		default:
			return h, closeAll, fmt.Errorf("%s: found the hook %q, expected %s or %s", file, name, hook.BuildLoss, hook.LearningRate)
		}
	}
	return h, closeAll, nil
}

// bytesOf copies a Uint8Array.
func bytesOf(v js.Value) []byte {
	b := make([]byte, v.Length())
	js.CopyBytesToGo(b, v)
	return b
}
