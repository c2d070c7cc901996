package compute

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
)

// Statements is for the tests outside of the package.
var Statements = statements

// software reports a device as a software adapter.
type software struct{ device.Device }

func (d software) Info() device.Info {
	info := d.Device.Info()
	info.Kind = device.Software
	return info
}

// reached is what runs have reached.
type reached struct {
	claims, variants, statements, combinations map[string]bool
	bytes                                      int // of distinct kernels
	texts                                      map[string]bool
}

func newReached() *reached {
	return &reached{claims: map[string]bool{}, variants: map[string]bool{}, statements: map[string]bool{},
		combinations: map[string]bool{}, texts: map[string]bool{}}
}

func (r *reached) add(t Task, ks []shaders.Kernel) {
	r.claims[t.Op+" "+t.Claim] = true
	for _, k := range ks {
		r.variants[t.Op+" "+k.Name] = true
		for _, p := range k.Passes {
			lines := statements(p.Source)
			for _, l := range lines {
				r.statements[l] = true
			}
			r.combinations[strings.Join(lines, "\n")] = true
			if !r.texts[p.Source] {
				r.bytes += len(p.Source)
			}
			r.texts[p.Source] = true
		}
	}
}

// Each share of the suite reaches every op with all dtypes, every kernel variant and every statement. The shares
// together reach every combination of statements in a kernel, as the one of both does.
func TestSharesReachEveryKernelVariant(t *testing.T) {
	tier.Rest(t)
	limits := target.DefaultLimits()
	limits.Software = true
	dev := software{null.New(null.Options{Limits: &limits})}
	tasks := slices.Concat(Graphs(), MixedChains(RandomMixedGraphs))
	for _, o := range op.Catalogue() {
		tasks = append(tasks, Cases(o)...)
	}
	whole, together, both := newReached(), newReached(), newReached()
	all := newCoverage(dev, shares)
	var covers []*coverage
	var parts []*reached
	for i := range uint32(shares) {
		covers, parts = append(covers, newCoverage(dev, i)), append(parts, newReached())
	}
	for _, task := range tasks {
		for _, ks := range rounds(dev, task) {
			whole.add(task, ks)
			if all.takes(task, ks) {
				both.add(task, ks)
			}
			for i, c := range covers {
				if c.takes(task, ks) {
					parts[i].add(task, ks)
					together.add(task, ks)
				}
			}
		}
	}
	for _, p := range parts {
		assert.Equal(t, whole.claims, p.claims)
		assert.Equal(t, whole.variants, p.variants)
		assert.Equal(t, slices.Sorted(maps.Keys(whole.statements)), slices.Sorted(maps.Keys(p.statements)))
		assert.Less(t, p.bytes, whole.bytes/2, "what a software adapter compiles")
	}
	few, first := newReached(), newCoverage(dev, claimsOnly)
	for _, task := range tasks {
		for _, ks := range rounds(dev, task) {
			if first.takes(task, ks) {
				few.add(task, ks)
			}
		}
	}
	assert.Equal(t, whole.claims, few.claims)
	assert.Equal(t, whole.variants, few.variants)
	assert.Equal(t, len(whole.combinations), len(together.combinations))
	assert.Equal(t, len(whole.combinations), len(both.combinations))
	assert.Less(t, both.bytes, whole.bytes)
}

// A device that is no software adapter runs the whole suite.
func TestOthersRunTheWholeSuite(t *testing.T) {
	c := newCoverage(null.New(null.Options{}), 0)
	for range 3 {
		assert.True(t, c.takes(Task{}, nil))
	}
}

func TestStatements(t *testing.T) {
	assert.Equal(t, []string{"b#[i + #u] = vec4<f32>(x#);", "}"},
		statements("  b0[i + 12u] = vec4<f32>(x7);\nb1[i + 3u] = vec4<f32>(x12);\n}\n"))
	assert.NotEqual(t, statements("var x: f16;"), statements("var x: f32;"))
	assert.Equal(t, "xf#_# = a[#u].x + vec3<u32>(#.#)[i]", withoutNumbers("xf32_10 = a[12u].x + vec3<u32>(0.5)[i]"))
}
