package hook

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
)

// BuildModel has the module write the model for microbatches of a size: see graphhook.BuildModel. Nothing of the module runs later.
func (m *Module) BuildModel(ctx context.Context, dims graphhook.Dims) (*model.Draft, error) {
	i, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	defer i.Close()
	d, err := graphhook.BuildModel(dims, func(b *graphhook.Builder) (graphhook.Handle, error) {
		h, err := m.host.serving(i, b, func() (int32, error) { return i.Call(ctx, BuildModel, -1) })
		if err == nil {
			err = i.CheckKeys()
		}
		return graphhook.Handle(h), err
	})
	var known *wasm.Error
	if err != nil && !errors.As(err, &known) {
		err = m.wrong(-1, err)
	}
	return d, err
}

// maxRank bounds the dims of a parameter.
const maxRank = 8

// graphParameter (name, length, shape, rank, attributes, length) → handle
func graphParameter(b *graphhook.Builder, i *wasm.Instance, s []uint64) (uint32, error) {
	name, err := readName(i, s[0], s[1])
	if err != nil {
		return 0, err
	}
	rank, length := uint32(s[3]), uint32(s[5])
	if rank > maxRank {
		return 0, fmt.Errorf("parameter %.64q: %d dims, at most %d allowed", name, rank, maxRank)
	}
	i.Charge(opWork + byteWork*int64(length))
	raw, err := i.Read(uint32(s[2]), 4*rank)
	if err != nil {
		return 0, err
	}
	shape := make([]int, rank)
	for n := range shape {
		shape[n] = int(binary.LittleEndian.Uint32(raw[4*n:]))
	}
	attributes, err := i.Read(uint32(s[4]), length)
	if err != nil {
		return 0, err
	}
	h, err := b.Parameter(name, shape, attributes)
	return uint32(h), err
}

// graphUnit (name, length) → index
func graphUnit(b *graphhook.Builder, i *wasm.Instance, s []uint64) (uint32, error) {
	i.Charge(opWork)
	name, err := readName(i, s[0], s[1])
	if err != nil {
		return 0, err
	}
	n, err := b.Unit(name)
	return uint32(n), err
}
