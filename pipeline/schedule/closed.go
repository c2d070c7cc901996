package schedule

// Form is what is known about a schedule without running it, for virtual stages of equal cost and transfers that take
// no time.
type Form struct {
	Bubble   float64 `json:"bubble"`    // of all batches
	Steady   float64 `json:"steady"`    // of one batch among many
	InFlight []int   `json:"in_flight"` // by stage: the most microbatches (of any chunk) in flight
}

// Closed returns the closed form of a schedule of New, if there is one. c is the cost of each virtual stage.
//
//   - gpipe, 1f1b (Narayanan et al., arXiv 2104.04473, §2.2.1): (p−1)/(m+p−1);
//   - interleaved (§2.2.2): (p−1)/(v·m+p−1);
//   - zb-h1 (Qi et al., arXiv 2401.10241, table 2): stages wait (p−1)(F+I−W), with I = W a third of 1f1b's, for
//     m ≥ p;
//   - 2bw, pipedream, eval: as one batch of all microbatches, and nothing in the steady state.
func Closed(name string, o Options, c Cost) (Form, bool) {
	f, ok := Find(name)
	if !ok || f.closed == nil {
		return Form{}, false
	}
	o.Chunks, o.Batches = max(1, o.Chunks), max(1, o.Batches)
	form, ok := f.closed(o, c)
	if !ok {
		return Form{}, false
	}
	for s := range o.Stages {
		form.InFlight = append(form.InFlight, f.inFlight(o, s))
	}
	return form, true
}

// batchWork is the computation of one batch on a stage.
func batchWork(o Options, c Cost) float64 {
	return float64(o.Chunks) * (float64(o.Microbatches)*(c.Forward+c.Backward) + c.Update)
}

// fill is how long stages wait while the pipeline fills and drains once.
func fill(o Options, c Cost) float64 { return float64(o.Stages-1) * (c.Forward + c.Backward) }

// flushForm is that of 1F1B and whatever waits as long: the pipeline drains after each batch.
func flushForm(o Options, c Cost) (Form, bool) {
	idle := fill(o, c)
	bubble := ratio(idle, batchWork(o, c)+idle)
	return Form{Bubble: bubble, Steady: bubble}, true
}

func zeroBubbleForm(o Options, c Cost) (Form, bool) {
	if o.Microbatches < o.Stages || c.InputGrad != c.WeightGrad {
		return Form{}, false
	}
	idle := float64(o.Stages-1) * (c.Forward + c.InputGrad - c.WeightGrad)
	bubble := ratio(idle, float64(o.Microbatches)*(c.Forward+c.InputGrad+c.WeightGrad)+c.Update+idle)
	return Form{Bubble: bubble, Steady: bubble}, true
}

// streamForm is that of schedules that drain only after the last batch.
func streamForm(o Options, c Cost) (Form, bool) {
	idle := fill(o, c)
	return Form{Bubble: ratio(idle, float64(o.Batches)*batchWork(o, c)+idle)}, true
}

func evaluationForm(o Options, c Cost) (Form, bool) {
	idle := float64(o.Stages-1) * c.Forward
	return Form{Bubble: ratio(idle, float64(o.Batches*o.Chunks*o.Microbatches)*c.Forward+idle)}, true
}

func allInFlight(o Options, _ int) int     { return o.Microbatches }
func fewInFlight(o Options, stage int) int { return min(o.Stages-stage, o.Microbatches) }
func stagesInFlight(o Options, _ int) int  { return o.Stages } // stage s delays the weight gradients of s microbatches
func noneInFlight(Options, int) int        { return 0 }

func batchesInFlight(o Options, stage int) int { return min(o.Stages-stage, o.Batches) }

func interleavedInFlight(o Options, stage int) int {
	return min(2*(o.Stages-stage-1)+(o.Chunks-1)*o.Stages+1, o.Microbatches*o.Chunks)
}
