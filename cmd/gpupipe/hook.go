package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/gpupipe/gpupipe/wasm/sdk"
)

type hookCommand struct {
	Check hookCheckCommand `cmd:"" help:"Try a module's hooks on sample data."`
	Bench hookBenchCommand `cmd:"" help:"Measure how fast a module's hooks are."`
	New   hookNewCommand   `cmd:"" help:"Make a folder with a hook to begin with."`
}

func (c *hookCommand) Help() string {
	return `Hooks are WebAssembly modules that take part in training: losses, data filters, learning rates. See docs/HOOKS.md.

Examples:
  gpupipe hook new --lang c myloss && make -C myloss
  gpupipe hook check myloss/hook.wasm --config '{"z": 0.001}'
  gpupipe hook bench examples/hooks/quality_filter.wasm --text book.txt`
}

type hookNewCommand struct {
	Dir  string `arg:"" help:"The folder to make."`
	Lang string `help:"c or rust." default:"c"`
}

func (c *hookNewCommand) Run(a *app) error {
	names, err := sdk.New(c.Lang, c.Dir)
	if err != nil {
		return train.Mistake(err)
	}
	for _, n := range names {
		a.printf("%s\n", n)
	}
	return nil
}

// moduleFlags say which module is tried, and how.
type moduleFlags struct {
	File   string `arg:"" help:"The module, a .wasm file."`
	Hook   string `help:"One of its hooks only."`
	Config string `help:"Its configuration, a JSON object." default:"{}"`
	Seed   uint64 `help:"Its seed."`
	Vocab  int    `help:"Tokens of the vocabulary, for build_loss and build_model." default:"256"`
	SeqLen int    `help:"Tokens of a sequence, for build_model." default:"128"`
	Text   string `help:"A file to take documents from, instead of sample text." placeholder:"FILE"`
	JSON   bool   `help:"Print one JSON object."`
}

type hookCheckCommand struct{ moduleFlags }
type hookBenchCommand struct {
	moduleFlags
	Seconds float64 `help:"How long each hook is measured." default:"1"`
}

// verdict is what was found of one hook.
type verdict struct {
	Hook   string  `json:"hook"`
	OK     bool    `json:"ok"`
	Found  string  `json:"found"` // what it did, or what is wrong
	Micros float64 `json:"microseconds"`
	MBps   float64 `json:"mb_per_s,omitempty"` // of map_document
}

func (c *hookCheckCommand) Run(a *app) error { return c.each(a, 0) }
func (c *hookBenchCommand) Run(a *app) error {
	if !(c.Seconds > 0 && c.Seconds <= 3600) {
		return train.Mistake(fmt.Errorf("--seconds: found %v, expected a number above 0 and at most 3600", c.Seconds))
	}
	return c.each(a, time.Duration(c.Seconds*float64(time.Second)))
}

// each tries the module's hooks, for as long as is said, at least once.
func (f *moduleFlags) each(a *app, long time.Duration) error {
	if !json.Valid([]byte(f.Config)) || !strings.HasPrefix(strings.TrimSpace(f.Config), "{") {
		return train.Mistake(fmt.Errorf("--config: found %q, expected a JSON object", f.Config))
	}
	if f.Vocab < 2 || f.Vocab > 1<<24 {
		return train.Mistake(fmt.Errorf("--vocab: found %d, expected an integer from 2 to %d", f.Vocab, 1<<24))
	}
	if f.SeqLen < 1 || f.SeqLen > 1<<24 {
		return train.Mistake(fmt.Errorf("--seq-len: found %d, expected an integer from 1 to %d", f.SeqLen, 1<<24))
	}
	host, err := hook.NewHost("")
	if err != nil {
		return err
	}
	defer host.Close()
	names := hook.Names()
	if f.Hook != "" {
		names = []string{f.Hook}
	}
	var verdicts []verdict
	var missing error
	for _, name := range names {
		began := time.Now()
		m, err := host.Load(hook.Spec{File: f.File, Hook: name, Config: []byte(f.Config), Seed: f.Seed,
			Log: func(line string) { fmt.Fprintf(a.stderr, "%s: %s\n", f.File, line) }})
		if err != nil {
			missing = err
			continue
		}
		if len(verdicts) == 0 && !f.JSON {
			a.printf("%s: sha256 %s, compiled in %v, hooks: %s\n", f.File, m.SHA256, time.Since(began).Round(time.Millisecond), strings.Join(m.Exports(), ", "))
		}
		v, err := f.try(a, m, long)
		if err != nil {
			v.OK, v.Found = false, err.Error()
		}
		v.Hook = name
		verdicts = append(verdicts, v)
		if err := m.Close(); err != nil {
			return err
		}
	}
	if len(verdicts) == 0 {
		return train.Mistake(missing)
	}
	return f.report(a, verdicts)
}

func (f *moduleFlags) report(a *app, verdicts []verdict) error {
	if f.JSON {
		if err := a.printJSON(map[string]any{"file": f.File, "hooks": verdicts}); err != nil {
			return err
		}
	} else {
		rows := [][]string{{"HOOK", "OK", "A CALL", "", "FOUND"}}
		for _, v := range verdicts {
			speed := ""
			if v.MBps > 0 {
				speed = fmt.Sprintf("%.0f MB/s", v.MBps)
			}
			rows = append(rows, []string{v.Hook, map[bool]string{true: "yes", false: "NO"}[v.OK], fmt.Sprintf("%.4g µs", v.Micros), speed, v.Found})
		}
		a.table(rows)
	}
	if i := slices.IndexFunc(verdicts, func(v verdict) bool { return !v.OK }); i >= 0 {
		return train.Mistake(errors.New(verdicts[i].Found))
	}
	return nil
}

// repeat calls f for as long as is said, at least once, and gives the mean time in microseconds.
func repeat(long time.Duration, f func(n int) error) (micros float64, n int, err error) {
	began := time.Now()
	for n = 0; n == 0 || time.Since(began) < long; n++ {
		if err := f(n); err != nil {
			return 0, n, err
		}
	}
	return float64(time.Since(began).Nanoseconds()) / 1e3 / float64(n), n, nil
}

func (f *moduleFlags) try(a *app, m *hook.Module, long time.Duration) (v verdict, err error) {
	switch m.Hook {
	case hook.BuildLoss:
		return f.tryLoss(a, m, long)
	case hook.BuildModel:
		return f.tryModel(a, m, long)
	case hook.MapDocument:
		return f.tryDocuments(a, m, long)
	case hook.LearningRate:
		return f.tryRate(a, m, long)
	}
	return f.tryMetrics(a, m, long)
}

func (f *moduleFlags) tryLoss(a *app, m *hook.Module, long time.Duration) (v verdict, err error) {
	v.Micros, _, err = repeat(long, func(int) error {
		g, err := m.BuildLoss(a.ctx, graphhook.Inputs{Rows: 64, Vocab: f.Vocab, Width: 32})
		if err == nil {
			v.OK, v.Found = true, fmt.Sprintf("a loss %v of %d ops for logits f32[64,%d]; a call opens an instance", g.Outputs[0].Value.Type, len(g.Nodes)-2, f.Vocab)
		}
		return err
	})
	return v, err
}

func (f *moduleFlags) tryRate(a *app, m *hook.Module, long time.Duration) (v verdict, err error) {
	const steps = 1000
	r, err := m.Rate(a.ctx)
	if err != nil {
		return v, err
	}
	defer r.Close()
	var first, last float64
	v.Micros, _, err = repeat(long, func(n int) error {
		for step := range steps {
			if last, err = r.Factor(a.ctx, step, steps, 1); err != nil {
				return err
			}
			if n == 0 && step == 0 {
				first = last
			}
		}
		return nil
	})
	v.Micros /= steps
	v.OK, v.Found = err == nil, fmt.Sprintf("factors from %.4g at step 0 to %.4g at step %d", first, last, steps-1)
	return v, err
}

func (f *moduleFlags) tryMetrics(a *app, m *hook.Module, long time.Duration) (v verdict, err error) {
	l, err := m.Listener(a.ctx, nil)
	if err != nil {
		return v, err
	}
	defer l.Close()
	v.Found = "it let 100 steps of a falling loss go on"
	v.Micros, _, err = repeat(long, func(n int) error {
		step := n%100 + 1
		text := fmt.Appendf(nil, `{"grad_norm":1,"loss":%g,"lr":0.01,"staleness":0,"step":%d,"tokens":%d,"val_loss":%g}`, 5/float64(step), step, step*1024, 5/float64(step))
		stop, err := l.Tell(a.ctx, step, text)
		if stop && n < 100 {
			v.Found = fmt.Sprintf("it ended a run of a falling loss at step %d", step)
		}
		return err
	})
	if err != nil {
		return v, err
	}
	state, err := l.Save(a.ctx)
	if err == nil && state != nil {
		v.Found += fmt.Sprintf("; its state has %d bytes", len(state))
	}
	v.OK = err == nil
	return v, err
}

// tryDocuments maps documents in order, and then the other way round in another instance: what becomes of one must not depend on
// those before it.
func (f *moduleFlags) tryDocuments(a *app, m *hook.Module, long time.Duration) (v verdict, err error) {
	texts, size, err := f.documents()
	if err != nil {
		return v, err
	}
	forwards, backwards := m.Mapper(1), m.Mapper(1)
	defer forwards.Close()
	defer backwards.Close()
	kept := make([]string, len(texts))
	out := 0
	v.Micros, _, err = repeat(long, func(n int) error {
		for i, text := range texts {
			mapped, err := forwards.Map(a.ctx, i, text)
			if err != nil {
				return err
			}
			if n == 0 {
				kept[i] = fmt.Sprintf("%q", mapped)
				out += len(mapped)
			}
		}
		return nil
	})
	if err != nil {
		return v, err
	}
	v.MBps = float64(size) / v.Micros
	v.Micros /= float64(len(texts))
	for i, text := range slices.Backward(texts) {
		mapped, err := backwards.Map(a.ctx, i, text)
		if err != nil {
			return v, err
		}
		if fmt.Sprintf("%q", mapped) != kept[i] {
			return v, fmt.Errorf("document %d becomes another one when others are mapped before it: the hook must carry nothing from one call to the next", i)
		}
	}
	v.OK, v.Found = true, fmt.Sprintf("%d documents became %d, in any order the same", len(texts), out)
	return v, nil
}

// documents are paragraphs of a file, or made up.
func (f *moduleFlags) documents() (texts [][]byte, size int, err error) {
	text := strings.Repeat("It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.\n", 20) + "\n\n" +
		strings.Repeat("0 1 2 3 # # # ... ", 40) + "\n\nÀ la recherche du temps perdu.\n\n"
	text = strings.Repeat(text, 30)
	if f.Text != "" {
		b, err := os.ReadFile(f.Text)
		if err != nil {
			return nil, 0, err
		}
		text = string(b)
	}
	for p := range strings.SplitSeq(text, "\n\n") {
		if p != "" {
			texts, size = append(texts, []byte(p)), size+len(p)
		}
	}
	if size == 0 {
		return nil, 0, fmt.Errorf("%s: no text in it", f.Text)
	}
	return texts, size, nil
}
