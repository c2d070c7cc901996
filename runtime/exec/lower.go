package exec

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// lowered is a graph's groups and the variants of their kernels, before one of them is chosen and memory is planned.
// Plans share it: it does not change.
type lowered struct {
	fused    *fuse.Result
	variants []variants // by group
	size     int        // of the sources in bytes, each once
}

// variants are the variants of a group's kernel. Their text depends on the plan of memory only by which values share
// memory: those with the same name in memory.
type variants struct {
	kernels []shaders.Kernel
	memory  map[*graph.Value]string // the name of its memory, for each value that lowering asked about
}

// lower fuses graphs and lowers their groups for a device, by name.
func lower(dev device.Device, graphs map[string]*graph.Graph) (map[string]*lowered, error) {
	lim := dev.Limits()
	lows := map[string]*lowered{}
	for _, name := range slices.Sorted(maps.Keys(graphs)) {
		low, err := recent.lower(graphs[name], lim)
		if err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
		lows[name] = low
	}
	return lows, nil
}

// lowerGraph fuses a graph and lowers its groups. Equal sources, such as the sources of equal layers, share their
// memory.
func lowerGraph(g *graph.Graph, lim target.Limits) (*lowered, error) {
	fused, err := fuse.Run(g, fuse.Options{MaxBindings: lim.MaxBindings, OffsetAlignment: lim.OffsetAlignment,
		SingleFloat16Stores: lim.Native})
	if err != nil {
		return nil, err
	}
	low := &lowered{fused: fused}
	sources := map[string]string{}
	lowering := shaders.NewLowering(fused, lim)
	for _, g := range fused.Groups {
		memory := map[*graph.Value]string{}
		ks := lowering.Lower(g, func(v *graph.Value) string {
			memory[v] = separate(fused, v)
			return memory[v]
		})
		if len(ks) == 0 {
			return nil, fmt.Errorf("%s: no kernel has at most %d bindings", shaders.Label(g), lim.MaxBindings)
		}
		low.variants = append(low.variants, variants{ks, memory})
		for _, k := range ks {
			for i, p := range k.Passes {
				if _, ok := sources[p.Source]; !ok {
					sources[p.Source] = p.Source
					low.size += len(p.Source)
				}
				k.Passes[i].Source = sources[p.Source]
			}
		}
	}
	return low, nil
}

// separate names a value's memory as if every value had its own. Two kinds of values share memory nevertheless, because
// fusion relies on one binding for them: views of the same range of a value, and a value that is stored over a variable
// with that variable.
func separate(r *fuse.Result, v *graph.Value) string {
	base, offset, n := r.Alias.Base(v), r.Alias[v].Offset, v.Shape.Len()
	if u := r.Direct[base]; u != nil {
		base = u
	}
	return fmt.Sprintf("%d.%d+%d:%d", base.Node.ID, base.Index, offset, n)
}

// maxRecent is the size of the sources that recent keeps, in bytes.
const maxRecent = 64 << 20

// recent are the graphs that were lowered last. Replicas of a stage, the attempts to fit a plan into memory, and runs
// in one process lower equal graphs again.
var recent = recentGraphs{max: maxRecent}

// recentGraphs are lowered graphs in the order of their last use, the newest at the end. While their sources exceed max
// bytes together, the oldest are dropped.
type recentGraphs struct {
	max     int
	mu      sync.Mutex
	entries []*recentGraph
}

type recentGraph struct {
	key  string
	once sync.Once // lowers the graph
	low  *lowered
	err  error
	size int // bytes; 0 before it is lowered
}

// lower lowers a graph, once for equal graphs and limits. A graph that has no encoding is lowered each time.
func (r *recentGraphs) lower(g *graph.Graph, lim target.Limits) (*lowered, error) {
	hash, err := graph.Hash(g)
	if err != nil {
		return lowerGraph(g, lim)
	}
	e := r.entry(fmt.Sprintf("%s %+v", hash, lim))
	e.once.Do(func() { e.low, e.err = lowerGraph(g, lim) })
	r.forget(e)
	return e.low, e.err
}

// entry finds or adds an entry and makes it the last.
func (r *recentGraphs) entry(key string) *recentGraph {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.entries, func(e *recentGraph) bool { return e.key == key })
	if i < 0 {
		r.entries = append(r.entries, &recentGraph{key: key})
		return r.entries[len(r.entries)-1]
	}
	e := r.entries[i]
	r.entries = append(slices.Delete(r.entries, i, i+1), e)
	return e
}

// forget sets an entry's size, now that it is lowered, and drops the oldest entries if all together are too large.
func (r *recentGraphs) forget(e *recentGraph) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.err == nil {
		e.size = e.low.size
	}
	total := 0
	for i := len(r.entries) - 1; i >= 0; i-- {
		if total += r.entries[i].size; total > r.max {
			r.entries = slices.Clone(r.entries[i+1:])
			return
		}
	}
}
