package optim

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/printable"
)

// Moments in bf16. With Config.Moments of graph.BF16 the state of rules and corrections is stored in bf16, except what
// a rule keeps exact. Updates are computed in f32: from the stored state, which f32 holds, and with the new state
// before it is rounded. Rounding is stochastic. A second moment decays by at most 1 − β₂ of itself in a step; with β₂
// above 0.996 rounding to the nearest would undo that, and it would never decay.
//
// The random numbers are a function of Config.Seed, the step, the parameter, the kind of state and the position of the
// element. So bits do not depend on how parameters are spread over shards, nor on where a run was resumed.

// withExactState is a Rule some of whose state stays f32: statistics so small that bf16 saves nothing, or that rounding
// would spoil.
type withExactState interface {
	exact(kind string) bool
}

// MomentTypes lists the values of Config.Moments, the default one first.
func MomentTypes() []graph.DType { return []graph.DType{graph.F32, graph.BF16} }

// checkMoments refuses a dtype of moments.
func (c *Config) checkMoments() error {
	if !slices.Contains(MomentTypes(), c.Moments) {
		return fielderror.New("moments", c.Moments, "one of %s", printable.List(MomentTypes()))
	}
	return nil
}

// roundsMoments reports whether state is stored in bf16.
func (o *Optimizer) roundsMoments() bool { return o.cfg.Moments == graph.BF16 }

// ruleState lists the state of a rule for a parameter, in the types in which it is stored.
func (o *Optimizer) ruleState(rule Rule, p Param) []graph.Named {
	state := rule.State(p)
	exact, some := rule.(withExactState)
	for i, s := range state {
		if !some || !exact.exact(s.ID) {
			state[i].Type.DType = o.cfg.Moments
		}
	}
	return state
}

// correctionState lists the state of the correction for a parameter, in the types in which it is stored.
func (o *Optimizer) correctionState(p Param) []graph.Named {
	state := kinds(p, o.correction.State()...)
	for i := range state {
		state[i].Type.DType = o.cfg.Moments
	}
	return state
}

const (
	keyBits   = 23         // of a word of a step's key: its sum with a number of a rounder is exact in f32
	keyDomain = 0x6d6f6d65 // distinguishes these keys from others of the seed
)

// roundingKey returns the key of a step, by which its rounding is random: two integers of keyBits. As hyperparameters
// they follow those of the groups.
func (o *Optimizer) roundingKey(step int) Hyperparameters {
	if !o.roundsMoments() {
		return nil
	}
	words := op.Threefry([2]uint32{uint32(o.cfg.Seed), uint32(o.cfg.Seed >> 32)}, [2]uint32{uint32(step), keyDomain})
	var key Hyperparameters
	for i, w := range words {
		key = append(key, Hyperparameter{fmt.Sprint("rounding/key", i), float64(w >> (32 - keyBits))})
	}
	return key
}

const roundingScope = "optim rounding"

// rounder rounds the state of parameters that are updated together. Each state has a stream of its own under their key:
// its number, parameter by parameter, in the order of Rule.State and then of Correction.State.
type rounder struct {
	key     [2]*graph.Value // u32 [1] each
	streams map[*graph.Value]uint32
}

// keyed gives the update the rounder of some sections, which are updated together, and returns the scalars by group.
// The key is the step's, plus the first entry of the section and the number of the parameter. These numbers are in a
// constant and not in the text of kernels, which are therefore the same for all layers. The sum takes the place of the
// input, since the number of arrays that a kernel reads is bounded.
func (u *update) keyed(input *graph.Value, ss []section) []Scalars {
	first, n := ss[0], input.Shape[0]
	numbers := make([]float64, n)
	numbers[n-2], numbers[n-1] = float64(first.from), float64(u.o.position(first.param.Name))
	var sum *graph.Value
	u.b.Scope(roundingScope, func() {
		sum = op.Add(input, u.b.Constant(fmt.Sprintf("rounding/%s[%d]", first.param.Name, first.from), input.Type, numbers))
	})
	words := unstack(sum)[n-2:]
	u.rounder = rounder{[2]*graph.Value{op.Cast(words[0], graph.U32), op.Cast(words[1], graph.U32)}, map[*graph.Value]uint32{}}
	return u.o.scalars(sum)
}

// state is a section's share of the declared kinds of state, in f32.
func (u *update) state(s section, declared []graph.Named) (vs []*graph.Value) {
	for _, k := range declared {
		v := inF32(s.variable(u.b, stateName(k.ID, s.param.Name), k.Type))
		if u.o.roundsMoments() {
			u.rounder.streams[v] = uint32(len(u.rounder.streams))
		}
		vs = append(vs, v)
	}
	return vs
}

// inF32 is a state for computation. Where it is stored in f32 it is the variable itself.
func inF32(variable *graph.Value) *graph.Value { return op.Cast(variable, graph.F32) }

// variableOf is the inverse of inF32.
func variableOf(state *graph.Value) *graph.Value {
	if _, cast := state.Node.Op.(*op.CastOp); cast {
		return state.Node.Inputs[0]
	}
	return state
}

// ahead assigns the new state of a correction with Correction.Ahead and returns the step of the weights x. With
// y = x + state and up.U the update of y, the step is up.U plus the change of the state. ahead takes the change of the
// state as it is stored: y = x + state then stays true, and no error of rounding remains in y.
func (u *update) ahead(up Update, old, state []*graph.Value) (step *graph.Value) {
	step = up.U
	for i, s := range old {
		stored := u.rounder.rounded(s, op.Where(u.ok, state[i], s))
		u.b.Assign(variableOf(s), stored)
		step = op.Add(step, op.Sub(inF32(stored), s))
	}
	return step
}

// store assigns a value to the variable of a state.
func (u *update) store(state, value *graph.Value) {
	variable := variableOf(state)
	if variable != state {
		value = u.rounder.rounded(state, value)
	}
	u.b.Assign(variable, value)
}

// rounded is a new value of a state in bf16. What bf16 holds stays as it is.
func (r *rounder) rounded(state, value *graph.Value) *graph.Value {
	return op.StochasticRound(value, r.key[0], r.key[1], r.streams[state])
}
