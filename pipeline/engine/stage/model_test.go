package stage

import (
	"fmt"
	"slices"
)

// symbol stands for a tensor: equal symbols are results of the same operations on the same operands in the same order.
type symbol uint64

func apply(op string, operands ...any) symbol {
	h := symbol(len(op))
	for i := range len(op) {
		h = h.with(uint64(op[i]))
	}
	for _, x := range operands {
		switch x := x.(type) {
		case int:
			h = h.with(0).with(uint64(x))
		case symbol:
			h = h.with(1).with(uint64(x))
		case []symbol:
			h = h.with(2).with(uint64(len(x)))
			for _, y := range x {
				h = h.with(uint64(y))
			}
		case batchID:
			h = h.with(3).with(uint64(x.replica)).with(uint64(x.batch)).with(uint64(x.microbatch))
		default:
			panic(fmt.Sprintf("an operand of type %T", x))
		}
	}
	return h
}

// with is a hash of the symbol and x, by the finalizer of SplitMix64.
func (h symbol) with(x uint64) symbol {
	y := (uint64(h)*31 + x) * 0x9e3779b97f4a7c15
	y = (y ^ y>>30) * 0xbf58476d1ce4e5b9
	y = (y ^ y>>27) * 0x94d049bb133111eb
	return symbol(y ^ y>>31)
}

// model is a model of units in a row, each with a parameter of its number. If it is tied the last unit reads the first
// one's parameter too, and has a gradient of its own for it: head.
type model struct {
	units, microbatches, replicas int
	tied                          bool
}

const head = -1

// batchID names a microbatch's data.
type batchID struct{ replica, batch, microbatch int }

// weightsOf are what unit u reads.
func (m model) weightsOf(u int, weights func(param int) symbol) []symbol {
	if m.tied && u == m.units-1 {
		return []symbol{weights(u), weights(0)}
	}
	return []symbol{weights(u)}
}

// forward runs units and returns their inputs and the last one's output.
func (m model) forward(from, to int, x symbol, weights func(int) symbol) (stash []symbol, out symbol) {
	for u := from; u < to; u++ {
		stash = append(stash, x)
		x = apply("forward", u, m.weightsOf(u, weights), x)
	}
	return stash, x
}

// backward runs units backwards and returns the gradients of their outputs and the first one's input.
func (m model) backward(from, to int, g symbol, stash []symbol, weights func(int) symbol) (wstash []symbol, in symbol) {
	wstash = make([]symbol, to-from)
	for u := to - 1; u >= from; u-- {
		wstash[u-from] = g
		g = apply("backward", u, m.weightsOf(u, weights), stash[u-from], g)
	}
	return wstash, g
}

// weightGradients are those of units, by parameter.
func (m model) weightGradients(from, to int, stash, wstash []symbol) map[int]symbol {
	grads := map[int]symbol{}
	for u := from; u < to; u++ {
		grads[u] = apply("weights", u, stash[u-from], wstash[u-from])
		if m.tied && u == m.units-1 {
			grads[head] = apply("weights", head, stash[u-from], wstash[u-from])
		}
	}
	return grads
}

func (m model) tokens(id batchID) symbol { return apply("tokens", id) }

func (m model) loss(out symbol, id batchID) symbol { return apply("loss", out, id) }

func (m model) lossGradient(out symbol, id batchID) symbol { return apply("loss gradient", out, id) }

// total is the gradient of a parameter of all replicas: grads gives that of one replica, the head's for head.
func (m model) total(param int, grads func(replica, param int) symbol) symbol {
	var sums []symbol
	for r := range m.replicas {
		g := grads(r, param)
		if m.tied && param == 0 {
			g = apply("+", grads(r, head), g)
		}
		sums = append(sums, g)
	}
	return apply("sum", sums)
}

// norm is the squared norm of a parameter's gradient, as its owner computes it.
func norm(param int, total symbol) symbol { return apply("norm", param, total) }

// step is the new value of a parameter. It depends on all norms, in order, and on the loss.
func step(param int, x, total symbol, norms []symbol, loss symbol) symbol {
	return apply("step", param, x, total, norms, loss)
}

// accumulate adds to a sum, or begins it.
func accumulate(first bool, sum, x symbol) symbol {
	if first {
		return x
	}
	return apply("+", sum, x)
}

// reference runs batches without a pipeline: x_{t+1+delay} = x_{t+delay} − u_t. The stale microbatches of batch t read
// x_t, the others x_{t+delay}. It returns all versions of the weights and the losses of the batches.
func (m model) reference(batches, delay, stale int) (versions [][]symbol, losses []symbol) {
	x := make([]symbol, m.units)
	for u := range x {
		x[u] = apply("initial", u)
	}
	versions = [][]symbol{x}
	for range delay {
		versions = append(versions, x)
	}
	for t := range batches {
		grads := make([]map[int]symbol, m.replicas)
		var loss []symbol
		for r := range m.replicas {
			sum, l := map[int]symbol{}, symbol(0)
			for i := range m.microbatches {
				id, version := batchID{r, t, i}, t+delay
				if i < stale {
					version = t
				}
				weights := func(param int) symbol { return versions[version][param] }
				stash, out := m.forward(0, m.units, m.tokens(id), weights)
				l = accumulate(i == 0, l, m.loss(out, id))
				wstash, _ := m.backward(0, m.units, m.lossGradient(out, id), stash, weights)
				for p, g := range m.weightGradients(0, m.units, stash, wstash) {
					sum[p] = accumulate(i == 0, sum[p], g)
				}
			}
			grads[r], loss = sum, append(loss, l)
		}
		losses = append(losses, apply("loss of replicas", loss))
		var norms, totals []symbol
		for p := range m.units {
			totals = append(totals, m.total(p, func(r, p int) symbol { return grads[r][p] }))
			norms = append(norms, norm(p, totals[p]))
		}
		next := slices.Clone(versions[t+delay])
		for p := range next {
			next[p] = step(p, next[p], totals[p], norms, losses[t])
		}
		versions = append(versions, next)
	}
	return versions, losses
}
