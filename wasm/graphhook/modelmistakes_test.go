package graphhook_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/stretchr/testify/assert"
)

func TestMistakesInAModel(t *testing.T) {
	embed := func(p *pen) handle { return p.op("embedding", "", p.parameter("e", "", 5, 3), p.input("tokens")) }
	out := func(p *pen, x handle) handle { return p.linear(x, "o", 1, 5, 3) }
	for want, f := range map[string]func(p *pen) handle{
		`parameter "e": there is already a parameter of this name`:        func(p *pen) handle { embed(p); return embed(p) },
		`parameter "a/b": expected a name of at most 128 letters, digits`: func(p *pen) handle { return p.parameter("a/b", "", 1) },
		`parameter "": expected a name`:                                   func(p *pen) handle { return p.parameter("", "", 1) },
		`parameter "__metadata__": the name is reserved`:                  func(p *pen) handle { return p.parameter("__metadata__", "", 1) },
		`parameter "loss": the name is reserved`:                          func(p *pen) handle { return p.parameter("loss", "", 1) },
		`parameter "a": init is "uniform", expected normal, ones or zeros`: func(p *pen) handle {
			return p.parameter("a",
				`{"init":"uniform"}`, 1)
		},
		`parameter "a": std is 0, expected a number above 0`:          func(p *pen) handle { return p.parameter("a", `{"std":0}`, 1) },
		`parameter "a": std is NaN, expected a number above 0`:        func(p *pen) handle { return p.parameter("a", `{"std":"nan"}`, 1) },
		`parameter "a": init ones has no std, expected none`:          func(p *pen) handle { return p.parameter("a", `{"init":"ones","std":1}`, 1) },
		`parameter "a": unknown attribute "mean", expected init, std`: func(p *pen) handle { return p.parameter("a", `{"mean":1}`, 1) },
		`parameter "a": shape [0] has extent 0, expected at least 1`:  func(p *pen) handle { return p.parameter("a", "", 0) },
		`parameter "a": shape [65536,65536] has more than 4294967295 elements`: func(p *pen) handle {
			return p.parameter("a", "", 65536,
				65536)
		},
		`unit "a b": expected a name`:                                                                    func(p *pen) handle { p.unit("a b"); return 0 },
		`unit "loss": the name is reserved`:                                                              func(p *pen) handle { p.unit("loss"); return 0 },
		`unit "a": there is already a unit of this name`:                                                 func(p *pen) handle { p.unit("a"); p.unit("a"); return 0 },
		`unknown input "logits", expected one of tokens, segments, vocabulary`:                           func(p *pen) handle { return p.input("logits") },
		`embedding: input 1: unit "b" reads the tokens, expected only the first unit, "a", to read them`: func(p *pen) handle { p.unit("a"); p.unit("b"); return embed(p) },
		`matmul: input 1: units "a" and "b" use parameter "e", expected one unit`: func(p *pen) handle {
			p.unit("a")
			x := embed(p)
			p.unit("b")
			return p.op("matmul", `{"trans_b":true}`, x, 1)
		},
		`unit "c" reads f32[2,4,3] of unit "a", expected a value of the unit before it, "b"`: func(p *pen) handle {
			p.unit("a")
			x := embed(p)
			p.unit("b")
			p.op("exp", "", x)
			p.unit("c")
			return p.op("exp", "", x)
		},
		`found f32[2,4] between unit "a" and unit "b", expected f32[2,4,d]`: func(p *pen) handle {
			p.unit("a")
			x := p.op("sum", `{"axes":[-1]}`, embed(p))
			p.unit("b")
			return p.op("exp", "", x)
		},
		`found u32[2,4,3] between unit "a" and unit "b", expected f32[2,4,d]`: func(p *pen) handle {
			p.unit("a")
			x := p.op("is_finite", "", embed(p))
			p.unit("b")
			return p.op("not", "", x)
		},
		`unit "b" reads two values of unit "a", f32[2,4,3] of op embedding and f32[2,4,3] of op exp`: func(p *pen) handle {
			p.unit("a")
			x := embed(p)
			y := p.op("exp", "", x)
			p.unit("b")
			return p.op("add", "", x, y)
		},
		`found f32[2,4,5] between unit "b" and unit "c", and f32[2,4,3] between unit "a" and unit "b", expected one width`: func(p *pen) handle {
			p.unit("a")
			x := embed(p)
			p.unit("b")
			x = out(p, x)
			p.unit("c")
			return p.op("exp", "", x)
		},
		`unit "b" reads no value of unit "a", expected one of the unit before it`: func(p *pen) handle {
			p.unit("a")
			x := embed(p)
			_ = x
			p.unit("b")
			return p.op("broadcast", `{"shape":[2,4,5]}`, p.op("exp", "", p.parameter("x", "", 5)))
		},
		`unit "b" has no parameters, expected at least one: merge it with another unit`: func(p *pen) handle {
			p.unit("a")
			x := out(p,
				embed(p))
			p.unit("b")
			return p.op("exp", "", x)
		},
		`found unused parameters: x, y`:                        func(p *pen) handle { p.parameter("x", "", 1); p.parameter("y", "", 1); return out(p, embed(p)) },
		`found logits of type f32[2,4,3], expected f32[2,4,5]`: embed,
		`found logits of an earlier unit, expected logits of the last unit`: func(p *pen) handle {
			p.unit("a")
			x := out(p, embed(p))
			p.unit("b")
			p.op("add", "", x, p.parameter("b", "", 5))
			return x
		},
		`the model does not read the input "tokens"`: func(p *pen) handle {
			return p.op("broadcast", `{"shape":[2,4,5]}`, p.op("exp", "", p.parameter("x", "", 5)))
		},
		`parameter "e": no gradient flows from the logits to it`: func(p *pen) handle {
			return p.op("stop_gradient", "",
				out(p, embed(p)))
		},
		`the logits: there is no value 0`: func(p *pen) handle { return 0 },
		`rope: found f32[2,4,3], expected [batch, sequence, heads, an even head dimension]`: func(p *pen) handle {
			return p.op("rope", "",
				embed(p))
		},
		`rope: theta is -1, expected a number above 0`: func(p *pen) handle {
			return p.op("rope", `{"theta":-1}`, p.op("full", `{"value":1,"shape":[2,4,1,2]}`))
		},
		`rope: the tables of rotary positions have more than 16777216 elements`: func(p *pen) handle {
			return p.op("rope", "", p.op("full", `{"value":1,"shape":[1,65536,1,1024]}`))
		},
		`layer_norm(f32[2,4,3], f32[5], f32[5]): input 1 is f32[5], expected f32[3]`: func(p *pen) handle {
			return p.op("layer_norm", "", embed(p), p.parameter("w", "", 5), p.parameter("b", "", 5))
		},
		`attention(f32[2,4,3], f32[2,4,3], f32[2,4,3]): q is f32[2,4,3], expected [batch,sequence,heads,dim] of f32, f16 or bf16`: func(p *pen) handle {
			x := embed(p)
			return p.op("attention", "", x, x, x)
		},
	} {
		_, err := graphhook.BuildModel(dims, write(f))
		assert.ErrorContains(t, err, want)
	}
	_, err := graphhook.BuildModel(dims, func(b *graphhook.Builder) (handle, error) { return b.Scalar("x") })
	assert.ErrorContains(t, err, `scalar "x": only losses have scalars, not models`)
	for _, f := range []func(b *graphhook.Builder) error{
		func(b *graphhook.Builder) error { _, err := b.Unit("a"); return err },
		func(b *graphhook.Builder) error { _, err := b.Parameter("a", []int{1}, nil); return err },
	} {
		_, err := graphhook.BuildLoss(graphhook.Inputs{Rows: rows, Vocab: vocab},
			func(b *graphhook.Builder) (handle, error) { return 0, f(b) })
		assert.ErrorContains(t, err, "not losses")
	}
}

// Random models build or return an error; none panics.
func TestNoModelPanics(t *testing.T) {
	rng, kinds, made := rand.New(rand.NewPCG(3, 3)), graphhook.Kinds(), 0
	for range 400 {
		_, err := graphhook.BuildModel(dims, func(b *graphhook.Builder) (handle, error) {
			last := handle(0)
			note := func(h handle, err error) {
				if err == nil {
					last = h
				}
			}
			note(b.Input("tokens"))
			note(b.Parameter("e", []int{5, 4}, nil))
			note(b.Op("embedding", []handle{2, 1}, nil))
			note(b.Op("reshape", []handle{3}, []byte(`{"shape":[2,4,1,4]}`)))
			for i := range 40 {
				switch rng.IntN(60) {
				case 0:
					b.Unit(strings.Repeat("u", rng.IntN(9)))
				case 1:
					note(b.Parameter(fmt.Sprint("p", i), []int{4, 4, 4}[:rng.IntN(4)], nil))
				default:
					in := make([]handle, rng.IntN(4))
					for i := range in {
						in[i] = handle(rng.IntN(int(last) + 2))
					}
					note(b.Op(kinds[rng.IntN(len(kinds))], in, nil))
				}
			}
			note(b.Parameter("o", []int{5, 4}, nil))
			note(b.Op("matmul", []handle{3, last}, []byte(`{"trans_b":true}`)))
			return last, nil
		})
		if err == nil {
			made++
		}
	}
	assert.Positive(t, made)
}
