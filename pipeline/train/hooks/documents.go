package hooks

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Documents maps the documents of a corpus by the map_document modules, one after the other in the order of the config.
type Documents struct {
	modules []*module
	mappers []*mapper
}

// Open starts the modules and returns their mapper, or nil without modules.
func (d *Documents) Open() data.Mapper {
	if len(d.modules) == 0 {
		return nil
	}
	for _, m := range d.modules {
		d.mappers = append(d.mappers, &mapper{module: m, instances: m.Mapper(runtime.GOMAXPROCS(0)), order: newSequencer(0)})
	}
	return d
}

// Map implements data.Mapper.
func (d *Documents) Map(ctx context.Context, index int64, text []byte) (texts [][]byte, err error) {
	texts = [][]byte{text}
	for _, m := range d.mappers {
		if texts, err = m.mapAll(ctx, index, texts); err != nil {
			return nil, usererror.New(err)
		}
	}
	return texts, nil
}

// Report passes to note how many documents each module took and emitted.
func (d *Documents) Report(note func(format string, args ...any)) {
	for _, m := range d.mappers {
		note("%s: %d documents became %d", m.config.File, m.in.Load(), m.out.Load())
		if n := m.skipped.Load(); n > 0 {
			note("%s: %d documents were skipped; the first error: %v", m.config.File, n, *m.first.Load())
		}
	}
}

// Close closes the modules' instances.
func (d *Documents) Close() {
	for _, m := range d.mappers {
		m.instances.Close()
	}
	d.mappers = nil
}

// mapper is one module that maps documents. It may be used by several goroutines.
type mapper struct {
	*module
	instances        *hook.Mapper
	order            *sequencer // of a stateful module's documents
	in, out, skipped atomic.Int64
	first            atomic.Pointer[error] // that skipped a document
}

// mapAll maps the texts that the modules before made of document index. A stateful module gets documents in order.
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
	if m.Stateful() {
		err = m.order.do(ctx, index, work)
	} else {
		err = work()
	}
	return mapped, err
}

// apply maps one text, or drops it if the module fails and on_error is skip.
func (m *mapper) apply(ctx context.Context, index int64, text []byte) ([][]byte, error) {
	m.in.Add(1)
	mapped, err := m.instances.Map(ctx, int(index), text)
	if err != nil && m.config.OnError == config.Skip && ctx.Err() == nil && inCall(err) && !errors.Is(err, hook.ErrStateLost) {
		m.skipped.Add(1)
		m.first.CompareAndSwap(nil, &err)
		return nil, nil
	}
	m.out.Add(int64(len(mapped)))
	return mapped, err
}
