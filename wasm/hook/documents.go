package hook

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/wasm"
	"github.com/tetratelabs/wazero/api"
)

// Bounds on the documents that a module emits for one document.
const (
	maxGrowth    = 8        // times its length, plus
	maxEmitted   = 16 << 20 // bytes
	maxDocuments = 1 << 16
)

const emitWork = 1000 // units of work of an emit, besides half a unit for each byte

// documents are the documents that a module has emitted for one document.
type documents struct {
	texts [][]byte
	left  int // bytes that may be emitted
}

func (h *Host) emitImport() wasm.Import {
	return wasm.Import{Name: "emit", Params: []api.ValueType{i32, i32}, Call: func(i *wasm.Instance, s []uint64) error {
		d, err := served[*documents](h, i, MapDocument)
		if err != nil {
			return err
		}
		n := int(uint32(s[1]))
		i.Charge(emitWork + int64(n)/2)
		if d.left < n {
			return fmt.Errorf("emitted too much text, expected at most %d times the document's length plus %d bytes", maxGrowth, maxEmitted)
		}
		if len(d.texts) == maxDocuments {
			return fmt.Errorf("emitted too many documents for one document, expected at most %d", maxDocuments)
		}
		text, err := i.Copy(uint32(s[0]), uint32(s[1]))
		if err == nil {
			d.texts, d.left = append(d.texts, text), d.left-n
		}
		return err
	}}
}

// Mapper maps documents by several instances of a module. If the module is stateless, results do not depend on the
// instance. A module with state has one instance, to which documents must be passed in order. Several goroutines may
// use a Mapper.
type Mapper struct {
	m    *Module
	pool *wasm.Pool
}

// Mapper returns a Mapper of at most n instances.
func (m *Module) Mapper(n int) *Mapper {
	if m.Stateful() {
		n = 1
	}
	return &Mapper{m, wasm.NewPool(m.module, n, m.options())}
}

// ErrStateLost is wrapped by the error of a document that closed the instance of a module with state.
var ErrStateLost = errors.New("the module's state is lost")

// Map returns the documents that replace a document: none, one, or several, in order. The module's random numbers
// depend on index, the number of the document.
func (p *Mapper) Map(ctx context.Context, index int, text []byte) (texts [][]byte, err error) {
	err = p.pool.Do(ctx, func(i *wasm.Instance) error {
		d := documents{left: maxGrowth*len(text) + maxEmitted}
		_, err := p.m.host.serving(i, &d, func() (int32, error) { return i.Call(ctx, MapDocument, index, wasm.Of(wasm.In, text)) })
		texts = d.texts
		if err != nil && p.m.Stateful() && !i.Alive() {
			err = fmt.Errorf("%w; %w", err, ErrStateLost)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return texts, nil
}

// Close closes the instances.
func (p *Mapper) Close() { p.pool.Close() }
