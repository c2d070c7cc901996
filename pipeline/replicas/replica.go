package replicas

import (
	"fmt"

	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Weights are the weights of a replica on devices. engine.Engine implements it.
type Weights interface {
	ReadWeights(param string, v engine.Version) (device.Pending, error)
	WriteWeights(param string, v engine.Version, data []byte) error
	Delayed() bool
	Evaluated() engine.Version
}

// RankPrefix precedes the names of the ranks of a replica.
func RankPrefix(replica int) string { return fmt.Sprintf("replica %d ", replica) }

// replica is the part of a replica in exchanges: for all its parameters, or for what the ranks of this process have.
type replica struct {
	number    int
	replicas  int // of the run
	weights   Weights
	machine   *machine
	config    outer.Config
	fragments []fragment // with the parameters that the ranks of this process own
	// By fragment:
	base    [][]byte // as the exchanges that have landed here describe it, or, in one process, of the owner
	residue [][]byte // nil: messages are exact
	sent    [][]byte // nil: nothing that has not landed
	lent    [][]byte // the evaluated weights while others are in their place; nil: none are
}

func newReplica(number int, s Settings, w Weights, fragments []fragment, base [][]byte) *replica {
	r := &replica{number: number, replicas: s.Replicas, weights: w, config: s.Outer, fragments: fragments, base: base,
		sent: make([][]byte, len(fragments)), residue: make([][]byte, len(fragments))}
	for i, f := range fragments {
		if !s.Outer.Exact() {
			r.residue[i] = f.zeros()
		}
	}
	return r
}

// send forms the message of a fragment after a step. A late exchange needs what was sent, until it lands.
func (r *replica) send(f, at int, late bool) (all Message, err error) {
	fragment, m := r.fragments[f], r.machine
	weights, err := r.read(fragment)
	if err != nil {
		return all, err
	}
	var residue, estimate []byte
	outputs := m.message()
	if !r.config.Exact() {
		outputs = append(outputs, outer.ResidueName)
	}
	if r.config.Estimates() {
		outputs = append(outputs, outer.EstimateName)
	}
	err = fragment.each(func(piece, n, from, to int) error {
		in := tensors{outer.BaseName: r.base[f][from:to], outer.WeightsName: weights[from:to]}
		if !r.config.Exact() {
			in[outer.ResidueName] = r.residue[f][from:to]
		}
		if r.config.Rounds() {
			in[outer.KeyInput] = key(r.config, at, r.number, f, piece)
		}
		if r.config.Estimates() {
			in[outer.ShareInput] = exec.F32Bytes(r.config.Share(r.replicas))
		}
		out, err := m.run(sendProgram, n, in, outputs...)
		if err != nil {
			return err
		}
		residue, estimate = append(residue, out[outer.ResidueName]...), append(estimate, out[outer.EstimateName]...)
		delete(out, outer.ResidueName)
		delete(out, outer.EstimateName)
		all.pieces = append(all.pieces, out)
		return nil
	})
	if err != nil {
		return all, err
	}
	r.residue[f], r.sent[f] = residue, weights
	if late && r.config.Estimates() {
		r.sent[f] = estimate
		return all, r.write(fragment, estimate)
	}
	return all, nil
}

// land moves the replica by an exchange that was late, whose base is known.
func (r *replica) land(f int) error {
	fragment := r.fragments[f]
	if len(fragment.params) == 0 {
		return nil
	}
	weights, err := r.read(fragment)
	if err != nil {
		return err
	}
	moved := make([]byte, 0, len(weights))
	err = fragment.each(func(_, n, from, to int) error {
		out, err := r.machine.run(landProgram, n, tensors{outer.BaseName: r.base[f][from:to], outer.WeightsName: weights[from:to],
			outer.SentName: r.sent[f][from:to], outer.KeptInput: exec.F32Bytes(r.config.Kept())}, outer.WeightsName)
		moved = append(moved, out[outer.WeightsName]...)
		return err
	})
	if err != nil {
		return err
	}
	r.sent[f] = nil
	return r.write(fragment, moved)
}

// landAtOnce moves the replica to the base.
func (r *replica) landAtOnce(f int) error {
	r.sent[f] = nil
	return r.write(r.fragments[f], r.base[f])
}

// Lend keeps the evaluated weights, so that others can take their place for an evaluation.
func (r *replica) Lend() error {
	lent := make([][]byte, len(r.fragments))
	for f, fragment := range r.fragments {
		lent[f] = fragment.zeros()
		if err := r.readInto(lent[f], fragment, r.weights.Evaluated()); err != nil {
			return err
		}
	}
	r.lent = lent
	return nil
}

// Return puts the weights back that Lend has kept.
func (r *replica) Return() error {
	lent := r.lent
	r.lent = nil
	if lent == nil {
		return nil
	}
	return r.writeAll(lent, r.weights.Evaluated())
}

// read reads the newest weights of a fragment's parameters as a matrix.
func (r *replica) read(f fragment) ([]byte, error) {
	matrix := f.zeros()
	return matrix, r.readInto(matrix, f, engine.Newest)
}

// readInto reads a version of the weights.
func (r *replica) readInto(matrix []byte, f fragment, v engine.Version) error {
	for _, s := range f.params {
		pending, err := r.weights.ReadWeights(s.param.Name, v)
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
		if err := r.weights.WriteWeights(s.param.Name, v, matrix[s.from:s.to]); err != nil {
			return err
		}
	}
	return nil
}

// writeAll writes a version of all weights.
func (r *replica) writeAll(matrices [][]byte, v engine.Version) error {
	for f, fragment := range r.fragments {
		if err := r.writeVersion(fragment, matrices[f], v); err != nil {
			return err
		}
	}
	return nil
}
