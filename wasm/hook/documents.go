package hook

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/wasm"
	"github.com/tetratelabs/wazero/api"
)

// Bounds on what becomes of one document.
const (
	maxGrowth    = 8        // times its length, and
	maxEmitted   = 16 << 20 // bytes
	maxDocuments = 1 << 16
)

const emitWork = 1000 // units that the host is charged for, beside half a unit a byte

// documents is what a module has emitted for one.
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
			return fmt.Errorf("more than %d times the document's length and %d bytes", maxGrowth, maxEmitted)
		}
		if len(d.texts) == maxDocuments {
			return fmt.Errorf("more than %d documents for one", maxDocuments)
		}
		text, err := i.Copy(uint32(s[0]), uint32(s[1]))
		if err == nil {
			d.texts, d.left = append(d.texts, text), d.left-n
		}
		return err
	}}
}

// Mapper maps documents on several instances of a module. What becomes of a document does not depend on which it is
// given, as long as the module carries nothing from one call to the next. Of a module with state there is one instance,
// which must be given the documents in order. Several goroutines may use it.
type Mapper struct {
	m    *Module
	pool *wasm.Pool
}

// Mapper makes one of at most n instances.
func (m *Module) Mapper(n int) *Mapper {
	if m.Stateful() {
		n = 1
	}
	return &Mapper{m, wasm.NewPool(m.module, n, m.options())}
}

// ErrStateLost is wrapped by the error of a document after which a module's state is gone.
var ErrStateLost = errors.New("what the module remembered is lost")

// Map gives what takes the place of a document: nothing, one, or several, in order. index is the document's number,
// from which the module's random numbers are made.
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
