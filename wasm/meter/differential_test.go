package meter

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// trial is one way to run a program.
type trial struct {
	*host
	seen []uint32
}

func newTrial(t testing.TB, c wazero.RuntimeConfig) *trial {
	tr := &trial{host: newHost(t, c)}
	_, err := tr.NewHostModuleBuilder("env").NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context,
		_ api.Module, s []uint64) {
		tr.seen = append(tr.seen, uint32(s[0]))
	}), []api.ValueType{api.ValueTypeI32}, nil).Export("seen").Instantiate(context.Background())
	require.NoError(t, err)
	return tr
}

// run gives all that can be seen of a program, and the work that it took.
func (tr *trial) run(t testing.TB, bin []byte, budget int64) (seen string, work int64) {
	ctx := context.Background()
	tr.left, tr.refused, tr.ticks, tr.seen = budget, 0, 0, nil
	m, err := tr.Instantiate(ctx, bin)
	require.NoError(t, err)
	defer m.Close(ctx)
	results, err := m.ExportedFunction("run").Call(ctx, 3, 1<<20)
	if err != nil {
		seen = outcome(err)
	}
	if len(tr.seen) > 20 {
		tr.seen = tr.seen[:20]
	}
	mem, _ := m.Memory().Read(0, m.Memory().Size())
	sum := fnv.New64a()
	sum.Write(mem)
	seen += fmt.Sprint(results, m.ExportedGlobal("global").Get(), tr.seen, len(mem), sum.Sum64())
	if fuel := m.ExportedGlobal(Fuel); fuel != nil {
		work = budget - tr.left - int64(fuel.Get())
	}
	return seen, work
}

// trials are the plain program, and the metered one compiled and interpreted. The interpreted one visits the host all
// the time, so that copies and fills are done in pieces.
type trials struct{ plain, compiled, interpreted *trial }

func newTrials(t testing.TB) trials {
	tr := trials{newTrial(t, wazero.NewRuntimeConfigInterpreter()), newTrial(t, wazero.NewRuntimeConfig()),
		newTrial(t, wazero.NewRuntimeConfigInterpreter())}
	tr.interpreted.grant = 10
	return tr
}

// compare runs a program in every way. The work is the same on either engine, and with half of it to spend a program
// stops or ends as before.
func (tr trials) compare(t testing.TB, choices []byte) {
	bin := program(choices).Encode()
	metered, err := Rewrite(bin, Options{piece: 48})
	require.NoError(t, err, "%x", choices)
	const enough = 1 << 40
	want, _ := tr.plain.run(t, bin, 0)
	compiled, work := tr.compiled.run(t, metered, enough)
	interpreted, same := tr.interpreted.run(t, metered, enough)
	require.Equal(t, want, interpreted, "%x", choices)
	require.Equal(t, want, compiled, "%x", choices)
	require.Equal(t, work, same, "%x", choices)
	require.Positive(t, work, "%x", choices)
	short, used := tr.interpreted.run(t, metered, work/2)
	if short != want { // it may end before it comes to a place where it would be stopped
		require.Contains(t, short, errFuel.Error(), "%x", choices)
	}
	require.Greater(t, used, work/2)
	require.LessOrEqual(t, used, work)
}

func TestProgramsComputeTheSame(t *testing.T) {
	tr := newTrials(t)
	for n := range *programs {
		r := rand.New(rand.NewPCG(*seed, uint64(n)))
		choices := make([]byte, 1000)
		for i := range choices {
			choices[i] = byte(r.Uint32())
		}
		tr.compare(t, choices)
	}
}

func FuzzProgram(f *testing.F) {
	for seed := range uint64(4) {
		b := make([]byte, 0, 600)
		for r := rand.New(rand.NewPCG(seed, 1)); len(b) < 600; {
			b = binary.LittleEndian.AppendUint64(b, r.Uint64())
		}
		f.Add(b)
	}
	tr := newTrials(f)
	f.Fuzz(func(t *testing.T, choices []byte) { tr.compare(t, choices) })
}
