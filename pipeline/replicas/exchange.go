package replicas

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// next is the first step after one at which something is sent or lands, at most a limit.
func (p *Pipeline) next(after, limit int) int {
	for s := after + 1; s < limit; s++ {
		if len(p.plan.Sent(s)) > 0 || p.landing(s) {
			return s
		}
	}
	return limit
}

// landing reports whether an exchange lands at a step.
func (p *Pipeline) landing(step int) bool {
	for _, lands := range p.flights {
		if lands <= step {
			return true
		}
	}
	return false
}

// exchange lands and sends what the plan has after a step. The pipelines of all replicas are empty.
func (p *Pipeline) exchange(step int) error {
	sent := p.plan.Sent(step)
	for f, fragment := range p.fragments {
		sends := slices.Contains(sent, f)
		if lands, ok := p.flights[f]; ok && (lands <= step || sends) { // a resumed run may have shorter periods
			if err := p.land(f); err != nil {
				return fmt.Errorf("exchange of %s: %w", fragment.name, err)
			}
		}
		if sends {
			if err := p.send(f, step); err != nil {
				return fmt.Errorf("exchange of %s: %w", fragment.name, err)
			}
		}
	}
	return nil
}

// send sends a fragment from all replicas, takes the outer step, and lands the exchange if it is due at once.
func (p *Pipeline) send(f, at int) error {
	began, lands := time.Now(), p.plan.Lands(at)
	var messages [][]tensors // by replica and piece
	for i, r := range p.replicas {
		m, err := p.messages(r, i, f, at, lands > at)
		if err != nil {
			return err
		}
		messages = append(messages, m)
	}
	if err := p.step(f, at, messages); err != nil {
		return err
	}
	p.trace(f, at, lands, began)
	p.flights[f] = lands
	if lands > at {
		return nil
	}
	delete(p.flights, f)
	for _, r := range p.replicas {
		r.sent[f] = nil
		if err := r.write(p.fragments[f], p.base[f]); err != nil {
			return err
		}
	}
	return nil
}

// messages sends a fragment from a replica. A late exchange needs what was sent, until it lands.
func (p *Pipeline) messages(r *replica, number, f, at int, late bool) (all []tensors, err error) {
	fragment, m := p.fragments[f], r.machine
	weights, err := r.read(fragment)
	if err != nil {
		return nil, err
	}
	var residue, estimate []byte
	outputs := m.message()
	if !p.config.Exact() {
		outputs = append(outputs, outer.ResidueName)
	}
	if p.config.Estimates() {
		outputs = append(outputs, outer.EstimateName)
	}
	err = fragment.each(func(piece, n, from, to int) error {
		in := tensors{outer.BaseName: p.base[f][from:to], outer.WeightsName: weights[from:to]}
		if !p.config.Exact() {
			in[outer.ResidueName] = r.residue[f][from:to]
		}
		if p.config.Rounds() {
			in[outer.KeyInput] = p.key(at, number, f, piece)
		}
		if p.config.Estimates() {
			in[outer.ShareInput] = exec.F32Bytes(p.config.Share(len(p.replicas)))
		}
		out, err := m.run(sendProgram, n, in, outputs...)
		if err != nil {
			return err
		}
		residue, estimate = append(residue, out[outer.ResidueName]...), append(estimate, out[outer.EstimateName]...)
		delete(out, outer.ResidueName)
		delete(out, outer.EstimateName)
		all = append(all, out)
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.residue[f], r.sent[f] = residue, weights
	if late && p.config.Estimates() {
		r.sent[f] = estimate
		return all, r.write(fragment, estimate)
	}
	return all, nil
}

// step takes the outer step of a fragment on the messages of all replicas, in their order, and applies its message.
func (p *Pipeline) step(f, at int, messages [][]tensors) error {
	fragment, m := p.fragments[f], p.replicas[0].machine
	names := m.message()
	outputs := append(names, outer.OuterName, outer.MomentumName)
	next := tensors{}
	err := fragment.each(func(piece, n, from, to int) error {
		sum := make([]byte, to-from)
		for i := range messages {
			in := maps.Clone(messages[i][piece])
			in[outer.SumName] = sum
			out, err := m.run(addProgram, n, in, outer.SumName)
			if err != nil {
				return err
			}
			sum = out[outer.SumName]
		}
		in := tensors{outer.SumName: sum, outer.OuterName: p.outer[f][from:to], outer.MomentumName: p.momentum[f][from:to],
			outer.HyperparametersInput: exec.F32Bytes(p.config.Hyperparameters(len(p.replicas)))}
		if !p.config.Exact() {
			in[outer.BaseName] = p.base[f][from:to]
		}
		if p.config.Rounds() {
			in[outer.KeyInput] = p.key(at, owner, f, piece)
		}
		out, err := m.run(stepProgram, n, in, outputs...)
		if err != nil {
			return err
		}
		base := out[names[0]]
		if !p.config.Exact() {
			in := tensors{outer.BaseName: p.base[f][from:to]}
			for _, name := range names {
				in[name] = out[name]
			}
			applied, err := m.run(applyProgram, n, in, outer.BaseName)
			if err != nil {
				return err
			}
			base = applied[outer.BaseName]
		}
		next[outer.OuterName] = append(next[outer.OuterName], out[outer.OuterName]...)
		next[outer.MomentumName] = append(next[outer.MomentumName], out[outer.MomentumName]...)
		next[outer.BaseName] = append(next[outer.BaseName], base...)
		return nil
	})
	if err == nil {
		p.outer[f], p.momentum[f], p.base[f] = next[outer.OuterName], next[outer.MomentumName], next[outer.BaseName]
	}
	return err
}

// land moves all replicas by the exchange of a fragment.
func (p *Pipeline) land(f int) error {
	fragment := p.fragments[f]
	for _, r := range p.replicas {
		weights, err := r.read(fragment)
		if err != nil {
			return err
		}
		moved := make([]byte, 0, len(weights))
		err = fragment.each(func(_, n, from, to int) error {
			out, err := r.machine.run(landProgram, n, tensors{outer.BaseName: p.base[f][from:to], outer.WeightsName: weights[from:to],
				outer.SentName: r.sent[f][from:to]}, outer.WeightsName)
			moved = append(moved, out[outer.WeightsName]...)
			return err
		})
		if err != nil {
			return err
		}
		if err := r.write(fragment, moved); err != nil {
			return err
		}
		r.sent[f] = nil
	}
	delete(p.flights, f)
	return nil
}

// owner is the sender of the messages of outer steps, see outer.Config.Key.
const owner = -1

// key is the random key of a piece of a message.
func (p *Pipeline) key(at, sender, f, piece int) []byte {
	return exec.IntBytes(p.config.Key(at, sender, f<<16|piece))
}

// trace records an exchange.
func (p *Pipeline) trace(f, at, lands int, began time.Time) {
	if p.tracer == nil {
		return
	}
	p.tracer.Complete(trace.ExchangeTrack, trace.Exchange, "exchange "+p.fragments[f].name, began, time.Since(began),
		map[string]any{"step": at, "lands": lands, "bytes": p.config.Bytes(p.fragments[f].blocks)})
}

// each visits the pieces of a fragment: their numbers, their blocks, and their bytes in a matrix.
func (f fragment) each(visit func(piece, blocks, from, to int) error) error {
	at := 0
	for i, n := range f.pieces() {
		if err := visit(i, n, at, at+n*blockBytes); err != nil {
			return err
		}
		at += n * blockBytes
	}
	return nil
}

// read reads the newest weights of a fragment's parameters as a matrix.
func (r *replica) read(f fragment) ([]byte, error) {
	matrix := f.zeros()
	return matrix, r.readInto(matrix, f, engine.Newest)
}

// readInto reads a version of the weights.
func (r *replica) readInto(matrix []byte, f fragment, v engine.Version) error {
	for _, s := range f.params {
		pending, err := r.engine.ReadWeights(s.param.Name, v)
		if err != nil {
			return err
		}
		data, err := pending.Wait()
		if err != nil {
			return err
		}
		copy(matrix[s.from:s.to], data)
	}
	return nil
}

// write writes the newest weights of a fragment's parameters.
func (r *replica) write(f fragment, matrix []byte) error {
	return r.writeVersion(f, matrix, engine.Newest)
}

func (r *replica) writeVersion(f fragment, matrix []byte, v engine.Version) error {
	for _, s := range f.params {
		if err := r.engine.WriteWeights(s.param.Name, v, matrix[s.from:s.to]); err != nil {
			return err
		}
	}
	return nil
}
