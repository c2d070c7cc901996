package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// hooks are the modules of a run. Their errors are the user's.
type hooks struct {
	host    *hook.Host // nil: there are none
	modules []*loadedHook

	mappers   []*mapper
	rate      *hook.Rate
	schedule  optim.Schedule // what learning_rate is told
	factors   []float64      // that it gave, of the first steps
	listeners []*listener

	scalars *hook.Scalars     // of the loss
	steps   int               // what loss_scalars is told
	asked   int               // for so many steps
	values  map[int][]float32 // that it gave, of the steps that are still to come

	mu    sync.Mutex
	lines []string // that modules wrote and that have not been told
}

type loadedHook struct {
	config config.Hook
	*hook.Module
	content []byte // of the module that builds the model, which checkpoints keep; else nil
}

// mostLines of what modules write between two looks at it.
const mostLines = 1000

// openHooks loads the modules of a config that have one of the named hooks. Modules in saved, by file name, are not read
// from disk. Compiled code is kept in cacheDir, if possible.
func openHooks(configs []config.Hook, saved map[string][]byte, cacheDir string, names ...string) (h *hooks, err error) {
	h = &hooks{}
	defer func() {
		if err != nil {
			err = errors.Join(usererror.New(err), h.close())
			h = &hooks{}
		}
	}()
	for _, c := range configs {
		if !slices.Contains(names, c.Hook) {
			continue
		}
		if h.host == nil {
			if h.host, err = hook.NewHost(cacheDir); err != nil && cacheDir != "" {
				h.wrote("hooks", fmt.Sprintf("compiled modules are not kept for the next time: %v", err))
				h.host, err = hook.NewHost("")
			}
			if err != nil {
				return h, err
			}
		}
		m, err := h.load(c, saved[c.File])
		if err != nil {
			return h, err
		}
		h.modules = append(h.modules, m)
	}
	return h, nil
}

// load loads a module. That of a model is kept: checkpoints hold it.
func (h *hooks) load(c config.Hook, content []byte) (_ *loadedHook, err error) {
	limits := wasm.Limits{MemoryPages: uint32(c.MemoryMB) * 16, Deadline: time.Duration(c.Seconds * float64(time.Second))}
	s := hook.Spec{File: c.File, Hook: c.Hook, Config: c.Config.JSON(), Seed: c.Seed, Limits: limits, Log: func(line string) { h.wrote(c.File, line) }}
	var m *hook.Module
	if content == nil && c.Hook == hook.BuildModel {
		if content, err = hook.ReadFile(c.File); err != nil {
			return nil, fmt.Errorf("hook %s: %w", c.File, err)
		}
	}
	if content != nil {
		m, err = h.host.LoadBytes(s, content)
	} else {
		m, err = h.host.Load(s)
	}
	return &loadedHook{c, m, content}, err
}

func (h *hooks) wrote(file, line string) { h.note("%s: %s", file, line) }

// note keeps a line until tell.
func (h *hooks) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.lines) < mostLines {
		h.lines = append(h.lines, fmt.Sprintf(format, args...))
	}
}

// tell hands on what modules wrote. Call it from the goroutine that reports.
func (h *hooks) tell(r Report) {
	h.mu.Lock()
	lines := h.lines
	h.lines = nil
	h.mu.Unlock()
	for _, l := range lines {
		r.Note("%s", l)
	}
}

// of lists the modules that have a hook.
func (h *hooks) of(name string) (ms []*loadedHook) {
	for _, m := range h.modules {
		if m.config.Hook == name {
			ms = append(ms, m)
		}
	}
	return ms
}

// rewind closes what remembers steps, so that it can be opened again.
func (h *hooks) rewind() error {
	var errs []error
	if h.rate != nil {
		errs = append(errs, h.rate.Close())
	}
	if h.scalars != nil {
		errs = append(errs, h.scalars.Close())
	}
	for _, l := range h.listeners {
		errs = append(errs, l.Close())
	}
	h.rate, h.factors, h.scalars, h.asked, h.values, h.listeners = nil, nil, nil, 0, nil, nil
	return errors.Join(errs...)
}

func (h *hooks) close() error {
	errs := []error{h.rewind()}
	for _, m := range h.mappers {
		m.instances.Close()
	}
	if h.host != nil {
		errs = append(errs, h.host.Close())
	}
	return errors.Join(errs...)
}

// mapper is a module that maps documents.
type mapper struct {
	*loadedHook
	instances         *hook.Mapper
	turns             *turns       // of a module that keeps something from one document to the next
	in, out, stumbled atomic.Int64 // documents
	first             atomic.Pointer[error]
}

// documents is what maps those of a corpus; nil if no module does.
func (h *hooks) documents() data.Mapper {
	for _, m := range h.of(hook.MapDocument) {
		h.mappers = append(h.mappers, &mapper{loadedHook: m, instances: m.Mapper(runtime.GOMAXPROCS(0)), turns: newTurns(0)})
	}
	if len(h.mappers) == 0 {
		return nil
	}
	return h
}

// Map has one module after the other map a document.
func (h *hooks) Map(ctx context.Context, index int64, text []byte) (texts [][]byte, err error) {
	texts = [][]byte{text}
	for _, m := range h.mappers {
		if texts, err = m.mapAll(ctx, index, texts); err != nil {
			return nil, usererror.New(err)
		}
	}
	return texts, nil
}

// mapAll maps what has become of a document, in its turn if the module keeps something from one to the next.
func (m *mapper) mapAll(ctx context.Context, index int64, texts [][]byte) (mapped [][]byte, err error) {
	work := func() error {
		for _, t := range texts {
			one, err := m.apply(ctx, index, t)
			if err != nil {
				return err
			}
			mapped = append(mapped, one...)
		}
		return nil
	}
	if !m.Stateful() {
		err = work()
		return mapped, err
	}
	err = m.turns.take(ctx, index, work)
	return mapped, err
}

func (m *mapper) apply(ctx context.Context, index int64, text []byte) ([][]byte, error) {
	m.in.Add(1)
	mapped, err := m.instances.Map(ctx, int(index), text)
	if err != nil && m.config.OnError == config.Skip && ctx.Err() == nil && inCall(err) && !errors.Is(err, hook.ErrStateLost) {
		m.stumbled.Add(1)
		m.first.CompareAndSwap(nil, &err)
		return nil, nil
	}
	m.out.Add(int64(len(mapped)))
	return mapped, err
}

// inCall tells what a hook did wrong when it was given something, which may be skipped, from what is wrong with its module: that it
// cannot be opened, or its state not be saved.
func inCall(err error) bool {
	var e *wasm.Error
	return errors.As(err, &e) && e.Batch >= 0
}

// tellDocuments tells what became of the documents.
func (h *hooks) tellDocuments(r Report) {
	for _, m := range h.mappers {
		r.Note("%s: %d documents became %d", m.config.File, m.in.Load(), m.out.Load())
		if n := m.stumbled.Load(); n > 0 {
			r.Note("%s: %d documents were skipped, one of them for: %v", m.config.File, n, *m.first.Load())
		}
	}
}

// openRate opens the module that sets the learning rate, if there is one, and asks for the first.
func (h *hooks) openRate(ctx context.Context, s optim.Schedule) (err error) {
	for _, m := range h.of(hook.LearningRate) {
		h.schedule = s
		if h.rate, err = m.Rate(ctx); err != nil {
			h.rate = nil
			return usererror.New(err)
		}
	}
	return h.rates(context.WithoutCancel(ctx), 1)
}

// factor is what optim.Config calls so: the factors that rates has asked for; nil if no module sets them.
func (h *hooks) factor() func(step int) float64 {
	if h.rate == nil {
		return nil
	}
	return func(step int) float64 { return h.factors[step] }
}

// rates asks for the factors of the steps before to. The module is asked once for each, from the first on, also in a run that goes
// on later: what it remembers is the same.
func (h *hooks) rates(ctx context.Context, to int) error {
	for step := len(h.factors); h.rate != nil && step < to && ctx.Err() == nil; step++ {
		f, err := h.rate.Factor(context.WithoutCancel(ctx), step, h.schedule.Steps, h.schedule.Factor(step))
		if err != nil {
			return usererror.New(err)
		}
		h.factors = append(h.factors, f)
	}
	return nil
}

// listener is a module that hears of metrics.
type listener struct {
	*hook.Listener
	*loadedHook
}

// Close closes the instance; the module is the host's to close.
func (l *listener) Close() error { return l.Listener.Close() }

// listen opens the modules that hear of metrics, as a checkpoint left them.
func (h *hooks) listen(ctx context.Context, kept []hookState) error {
	for _, m := range h.of(hook.OnMetrics) {
		var state []byte
		for _, k := range kept {
			if k.same(m.identity()) {
				state = k.State
			}
		}
		l, err := m.Listener(ctx, state)
		if err != nil {
			return usererror.New(err)
		}
		h.listeners = append(h.listeners, &listener{l, m})
	}
	return nil
}

// pause is after how many steps training pauses, to end if a listener has said so; 0: there is none.
func (h *hooks) pause() int {
	if len(h.listeners) == 0 {
		return 0
	}
	return 20
}

// heard tells of a step's metrics, and returns the module that wants the run to end, or "".
func (h *hooks) heard(ctx context.Context, step int, metrics any) (stopped string, err error) {
	if len(h.listeners) == 0 {
		return "", nil
	}
	text, err := json.Marshal(metrics)
	if err != nil {
		return "", err
	}
	for _, l := range h.listeners {
		stop, err := l.Tell(context.WithoutCancel(ctx), step, text)
		if err != nil {
			return "", usererror.New(err)
		}
		if stop {
			stopped = l.config.File
		}
	}
	return stopped, nil
}

// hookState is what a checkpoint keeps of a hook.
type hookState struct {
	Hook   string `json:"hook"`
	SHA256 string `json:"sha256"` // of the module
	Config string `json:"config"` // as the module gets it
	Seed   uint64 `json:"seed"`
	State  []byte `json:"state,omitempty"`
}

func (m *loadedHook) identity() hookState {
	return hookState{Hook: m.config.Hook, SHA256: m.SHA256, Config: string(m.config.Config.JSON()), Seed: m.config.Seed}
}

func (s hookState) same(o hookState) bool {
	s.State, o.State = nil, nil
	return reflect.DeepEqual(s, o)
}

func (s hookState) String() string {
	return fmt.Sprintf("%s by module %.12s with config %s and seed %d", s.Hook, s.SHA256, s.Config, s.Seed)
}

// mostState bounds what a listener may keep in a checkpoint.
const mostState = 1 << 20

// states is what a checkpoint keeps of all hooks, given the states of those that work on batches.
func (h *hooks) states(ctx context.Context, ofBatches map[*loadedHook][]byte) (states []hookState, err error) {
	for _, m := range h.modules {
		s := m.identity()
		s.State = ofBatches[m]
		for _, l := range h.listeners {
			if l.loadedHook != m {
				continue
			}
			if s.State, err = l.Save(context.WithoutCancel(ctx)); err == nil && len(s.State) > mostState {
				err = fmt.Errorf("hook %s: its state has %d bytes, at most %d can be kept", m.config.File, len(s.State), mostState)
			}
			if err != nil {
				return nil, usererror.New(err)
			}
		}
		states = append(states, s)
	}
	return states, nil
}

// listens tells hooks that decide nothing that is computed.
func (s hookState) listens() bool { return s.Hook == hook.OnMetrics }

// batchStates are those that a checkpoint of the same hooks keeps of the ones that work on batches.
func (h *hooks) batchStates(kept []hookState) map[*loadedHook][]byte {
	kept = slices.DeleteFunc(slices.Clone(kept), func(s hookState) bool { return !worksOnBatches(s.Hook) })
	states := map[*loadedHook][]byte{}
	for _, m := range h.modules {
		if worksOnBatches(m.config.Hook) {
			states[m], kept = kept[0].State, kept[1:]
		}
	}
	return states
}

func worksOnBatches(name string) bool { return name == hook.MapBatch || name == hook.TokenWeights }

// differ says how the hooks that a checkpoint was made with are not those of this run. Those that only listen may change.
func (h *hooks) differ(kept []hookState) (complaints []string) {
	was := slices.DeleteFunc(slices.Clone(kept), hookState.listens)
	var is []hookState
	for _, m := range h.modules {
		is = append(is, m.identity())
	}
	is = slices.DeleteFunc(is, hookState.listens)
	for i := range max(len(was), len(is)) {
		old, now := "nothing", "nothing"
		if i < len(was) {
			old = was[i].String()
		}
		if i < len(is) {
			now = is[i].String()
		}
		if old != now || !was[i].same(is[i]) {
			complaints = append(complaints, fmt.Sprintf("hooks: the checkpoint has %s, the config %s", old, now))
		}
	}
	return complaints
}
