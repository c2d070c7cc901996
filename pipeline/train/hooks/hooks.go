// Package hooks runs the WebAssembly modules of a training run. Package wasm/hook calls single hooks; this package
// gives each kind of hook its lifecycle over a run:
//
//	[Documents]  map_document               maps the documents of the corpus while it is read
//	[Batches]    map_batch, token_weights   change batches ahead of the devices, in a [Feeder]
//	[Rate]       learning_rate              sets the factor on the learning rates, step by step
//	[Scalars]    loss_scalars               sets the scalars of a loss, step by step
//	[Metrics]    on_metrics                 receives each step's metrics and may end the run
//
// build_loss and build_model are called once: see [Task] and [Set.Model]. A [Set] loads the modules, keeps their logs
// and their states for checkpoints, and closes everything. The errors of a Set are marked by usererror: they are errors
// of the user's modules.
package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Set is the modules of a run, each with the lifecycle of its hook. The lifecycles are never nil; those without a
// module do nothing.
type Set struct {
	host    *hook.Host // nil without modules
	modules []*module  // in the order of the config
	log     log

	Documents *Documents
	Batches   *Batches
	Rate      *Rate
	Scalars   *Scalars
	Metrics   *Metrics

	loss  *module // nil without build_loss
	model *module // nil without build_model
}

// Options are how Open loads modules.
type Options struct {
	Kinds    []string          // hooks to load; modules of other hooks are ignored. Empty: all
	Saved    map[string][]byte // contents of modules by file name, which are then not read from disk
	CacheDir string            // for compiled modules; "" keeps none
}

// Open loads the modules of a config.
func Open(configs []config.Hook, o Options) (s *Set, err error) {
	s = &Set{Documents: &Documents{}, Batches: &Batches{}, Rate: &Rate{}, Scalars: &Scalars{}, Metrics: &Metrics{}}
	defer func() {
		if err != nil {
			err = usererror.New(errors.Join(err, s.Close()))
			s = nil
		}
	}()
	for _, c := range configs {
		if len(o.Kinds) > 0 && !slices.Contains(o.Kinds, c.Hook) {
			continue
		}
		if s.host == nil {
			if s.host, err = s.newHost(o.CacheDir); err != nil {
				return s, err
			}
		}
		m, err := s.load(c, o.Saved[c.File])
		if err != nil {
			return s, err
		}
		s.modules = append(s.modules, m)
		s.assign(m)
	}
	return s, nil
}

// newHost makes a host that keeps compiled modules in dir or, if that is impossible, nowhere.
func (s *Set) newHost(dir string) (*hook.Host, error) {
	h, err := hook.NewHost(dir)
	if err != nil && dir != "" {
		s.log.Printf("hooks: compiled modules are not cached: %v", err)
		h, err = hook.NewHost("")
	}
	return h, err
}

// module is a loaded module and its config.
type module struct {
	config config.Hook
	*hook.Module
	content []byte // of a module that builds the model, which checkpoints keep, or as given; else nil
}

// load loads one module. It reads the file unless content is given.
func (s *Set) load(c config.Hook, content []byte) (_ *module, err error) {
	limits := wasm.Limits{MemoryPages: uint32(c.MemoryMB) * 16, Deadline: time.Duration(c.Seconds * float64(time.Second))}
	spec := hook.Spec{File: c.File, Hook: c.Hook, Config: c.Config.JSON(), Seed: c.Seed, Limits: limits,
		Log: func(line string) { s.log.Printf("%s: %s", c.File, line) }}
	if content == nil && c.Hook == hook.BuildModel {
		if content, err = hook.ReadFile(c.File); err != nil {
			return nil, fmt.Errorf("hook %s: %w", c.File, err)
		}
	}
	var m *hook.Module
	if content != nil {
		m, err = s.host.LoadBytes(spec, content)
	} else {
		m, err = s.host.Load(spec)
	}
	return &module{c, m, content}, err
}

// assign gives a module to the lifecycle of its hook.
func (s *Set) assign(m *module) {
	switch m.config.Hook {
	case hook.BuildLoss:
		s.loss = m
	case hook.BuildModel:
		s.model = m
	case hook.MapDocument:
		s.Documents.modules = append(s.Documents.modules, m)
	case hook.MapBatch:
		s.Batches.maps = append(s.Batches.maps, m)
	case hook.TokenWeights:
		s.Batches.weights = append(s.Batches.weights, m)
	case hook.LearningRate:
		s.Rate.module = m
	case hook.OnMetrics:
		s.Metrics.modules = append(s.Metrics.modules, m)
	default:
		panic(fmt.Sprintf("hook %q has no lifecycle", m.config.Hook))
	}
}

// Feed starts a Feeder with the modules of Batches.
func (s *Set) Feed(f Feed) *Feeder {
	if f.Note == nil {
		f.Note = s.log.Printf
	}
	return newFeeder(f, s.Batches.open(f.Instances))
}

// Rewind closes the lifecycles that follow the steps of a run, so that they can be opened again at another step.
func (s *Set) Rewind() error {
	return errors.Join(s.Rate.Close(), s.Scalars.Close(), s.Metrics.Close())
}

// Close closes all modules. A nil Set has none.
func (s *Set) Close() error {
	if s == nil {
		return nil
	}
	err := s.Rewind()
	s.Documents.Close()
	if s.host != nil {
		err = errors.Join(err, s.host.Close())
	}
	return err
}

// Flush passes what modules have logged since the last call to note, line by line. Call it from the goroutine that
// reports.
func (s *Set) Flush(note func(format string, args ...any)) {
	if s != nil {
		s.log.flush(note)
	}
}

// maxLines is how many lines of modules a log keeps between two flushes; it drops the others.
const maxLines = 1000

// log keeps lines from any goroutine until they are flushed.
type log struct {
	mu    sync.Mutex
	lines []string
}

// Printf adds a line.
func (l *log) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) < maxLines {
		l.lines = append(l.lines, fmt.Sprintf(format, args...))
	}
}

func (l *log) flush(note func(format string, args ...any)) {
	l.mu.Lock()
	lines := l.lines
	l.lines = nil
	l.mu.Unlock()
	for _, line := range lines {
		note("%s", line)
	}
}

// inCall reports whether an error is of a hook's call on its input, which may be skipped. An error of a module that
// cannot be opened, or whose state cannot be saved, is not.
func inCall(err error) bool {
	var e *wasm.Error
	return errors.As(err, &e) && e.Batch >= 0
}

// uninterrupted returns ctx without its cancellation: a call of a hook that has begun is finished.
func uninterrupted(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }
