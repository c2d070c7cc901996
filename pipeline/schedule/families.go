package schedule

import "fmt"

// gpipe: Huang et al., arXiv 1811.06965. Backwards ascend by microbatch, since gradients are summed in that order.
func gpipe(o Options, _ int) (line []Action) {
	for _, kind := range []Kind{Forward, Backward} {
		for i := range o.Microbatches {
			line = append(line, Action{Kind: kind, Microbatch: i})
		}
	}
	return line
}

// evaluation: groups of p microbatches pass through chunk after chunk, as in interleaved.
func evaluation(o Options, _ int) (line []Action) {
	for group := 0; group < o.Microbatches; group += o.Stages {
		for c := range o.Chunks {
			for i := group; i < min(group+o.Stages, o.Microbatches); i++ {
				line = append(line, Action{Kind: Evaluate, Microbatch: i, Chunk: c})
			}
		}
	}
	return line
}

// alternate yields n forwards and n backwards by their number: the first `warm` forwards, then one of each, then the backwards
// that are left. It reports whether yield did.
func alternate(n, warm int, yield func(kind Kind, number int) bool) bool {
	for k := range n + warm {
		if k < n && !yield(Forward, k) || k >= warm && !yield(Backward, k-warm) {
			return false
		}
	}
	return true
}

// oneForwardOneBackward: Narayanan et al., arXiv 2104.04473, §2.2.1 (PipeDream-Flush).
func oneForwardOneBackward(o Options, stage int) (line []Action) {
	alternate(o.Microbatches, min(o.Stages-stage-1, o.Microbatches), func(kind Kind, i int) bool {
		line = append(line, Action{Kind: kind, Microbatch: i})
		return true
	})
	return line
}

func interleavable(o Options) error {
	if o.Microbatches%o.Stages != 0 {
		return fmt.Errorf("found %d microbatches on %d stages, expected a multiple: the microbatches go round the chunks in groups of as many as there are stages",
			o.Microbatches, o.Stages)
	}
	return nil
}

// interleaved: Narayanan et al., arXiv 2104.04473, §2.2.2. Groups of p microbatches pass through chunk after chunk.
func interleaved(o Options, stage int) (line []Action) {
	p, v := o.Stages, o.Chunks
	n := o.Microbatches * v
	warm := min(2*(p-stage-1)+(v-1)*p, n)
	alternate(n, warm, func(kind Kind, k int) bool {
		group, within := k/(p*v), k%(p*v)
		a := Action{Kind: kind, Microbatch: group*p + within%p, Chunk: within / p}
		if kind == Backward {
			a.Chunk = v - 1 - a.Chunk
		}
		line = append(line, a)
		return true
	})
	return line
}

// zeroBubbleH1: Qi et al., arXiv 2401.10241, §2.2. Stage s puts its weights' gradients off by s microbatches, so that every stage
// holds as many microbatches as 1F1B's first, and does what is left of them where 1F1B waits.
func zeroBubbleH1(o Options, stage int) (line []Action) {
	m, warm := o.Microbatches, min(o.Stages-stage-1, o.Microbatches)
	alternate(m, warm, func(kind Kind, i int) bool {
		if kind == Forward {
			line = append(line, Action{Kind: Forward, Microbatch: i})
			return true
		}
		line = append(line, Action{Kind: InputGrad, Microbatch: i})
		if i >= stage {
			line = append(line, Action{Kind: WeightGrad, Microbatch: i - stage})
		}
		return true
	})
	for i := max(0, m-stage); i < m; i++ {
		line = append(line, Action{Kind: WeightGrad, Microbatch: i})
	}
	return line
}

func alone(o Options) error {
	if o.Microbatches != 1 {
		return fmt.Errorf("microbatches: found %d, expected 1: each microbatch is a batch of its own (set batches instead)", o.Microbatches)
	}
	return nil
}

// pipedream: Harlap et al., arXiv 1806.03377, with weight stashing. In the steady state the gradient of stage s is
// p − 1 − s updates old.
func pipedream(o Options, stage int, yield func(Action) bool) {
	alternate(o.Batches, min(o.Stages-stage-1, o.Batches), func(kind Kind, t int) bool {
		return yield(Action{Kind: kind, Batch: t}) && (kind == Forward || yield(Action{Kind: Update, Batch: t}))
	})
}

func fills(o Options) error {
	if o.Microbatches < o.Stages {
		return fmt.Errorf("found %d microbatches a batch on %d stages, expected at least as many as stages: with fewer, a batch would start before the update that it needs (two versions of the weights would not do)",
			o.Microbatches, o.Stages)
	}
	return nil
}

// twoBW: Narayanan et al., arXiv 2006.09503 (PipeDream-2BW). Updates stand at their deadline, the first forward of the batch
// after the next; those that the end leaves over follow there.
func twoBW(o Options, stage int, yield func(Action) bool) {
	m, due := o.Microbatches, 0 // due is the next update
	n := m * o.Batches
	done := alternate(n, min(o.Stages-stage-1, n), func(kind Kind, k int) bool {
		if kind == Forward && k%m == 0 && k >= 2*m {
			if !yield(Action{Kind: Update, Batch: due}) {
				return false
			}
			due++
		}
		return yield(Action{Kind: kind, Microbatch: k % m, Batch: k / m})
	})
	for ; done && due < o.Batches; due++ {
		done = yield(Action{Kind: Update, Batch: due})
	}
}
