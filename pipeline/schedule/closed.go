package schedule

// Form is the closed form of a schedule, known without running it, for virtual stages of equal cost and transfers that
// take no time.
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
//
// Period gives the time of a microbatch of 2bw where messages take time.
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

// Period is the time from microbatch to microbatch in the steady state of 2bw with virtual stages of equal cost, each
// on a machine of its own, and equal links. split says that backwards are split, as training does.
//
// Let τ be the time of a microbatch on a stage, L a link's latency and X its transfer time. A microbatch goes from
// stage s to stage t and back in (t−s+1)·τ + 2(t−s)(L+X). Meanwhile stage s begins as many others as it has more in
// flight than stage t. The period is the longest such time for each microbatch, and at least what a machine sends of
// it, 2X:
//
//	max over s ≤ t of ((t−s+1)·τ + 2(t−s)(L+X)) / (1 + inFlight(s) − inFlight(t))
//
// All stages and a depth k that is a multiple of p − 1 have (p·τ + 2(p−1)(L+X)) / (p+k). If backwards are split, the
// weight gradients of all stages but s run while messages are on their way. Pipelines whose messages wait for each
// other, as some do if X is longer than a forward, are up to a tenth slower.
func Period(o Options, c Cost, l Link, split bool) float64 {
	work, trip := c.Forward+c.Backward, c.Forward+c.Backward+2*(l.Latency+l.Transfer)
	if split {
		work = c.Forward + c.InputGrad + c.WeightGrad
		trip = c.Forward + c.InputGrad + 2*(l.Latency+l.Transfer)
	}
	period := max(work+c.Update/float64(o.Microbatches), float64(min(2, o.Stages-1))*l.Transfer)
	for s := range o.Stages {
		for t := s + 1; t < o.Stages; t++ {
			period = max(period, (work+float64(t-s)*trip)/float64(1+o.warmup(s)-o.warmup(t)))
		}
	}
	return period
}

// batchWork is the computation of one batch on a stage.
func batchWork(o Options, c Cost) float64 {
	return float64(o.Chunks) * (float64(o.Microbatches)*(c.Forward+c.Backward) + c.Update)
}

// fill is how long stages wait while the pipeline fills and drains once.
func fill(o Options, c Cost) float64 { return float64(o.Stages-1) * (c.Forward + c.Backward) }

// flushForm is the form of 1F1B and of schedules that wait as long: the pipeline drains after each batch.
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

// streamForm is the form of schedules that drain only after the last batch.
func streamForm(o Options, c Cost) (Form, bool) {
	idle := fill(o, c)
	return Form{Bubble: ratio(idle, float64(o.Batches)*batchWork(o, c)+idle)}, true
}

func evaluationForm(o Options, c Cost) (Form, bool) {
	idle := float64(o.Stages-1) * c.Forward
	return Form{Bubble: ratio(idle, float64(o.Batches*o.Chunks*o.Microbatches)*c.Forward+idle)}, true
}

func allInFlight(o Options, _ int) int     { return o.Microbatches }
func fewInFlight(o Options, stage int) int { return min(1+o.warmup(stage), o.Microbatches) }
func stagesInFlight(o Options, _ int) int  { return o.Stages } // stage s delays the weight gradients of s microbatches
func noneInFlight(Options, int) int        { return 0 }

func batchesInFlight(o Options, stage int) int { return min(o.Stages-stage, o.Batches) }

func interleavedInFlight(o Options, stage int) int {
	return min(2*(o.Stages-stage-1)+(o.Chunks-1)*o.Stages+1, o.Microbatches*o.Chunks)
}
