package schedule

// Form is what is known of a schedule without running it, for parts of equal cost and transfers that take no time.
type Form struct {
	Bubble   float64 `json:"bubble"`    // of all batches
	Steady   float64 `json:"steady"`    // of a batch among many
	InFlight []int   `json:"in_flight"` // of each stage: the most microbatches (of any chunk) in flight
}

// Closed is the closed form of a schedule of New, if there is one. Cost is that of each part.
//
//   - gpipe, 1f1b (Narayanan et al., arXiv 2104.04473, §2.2.1): (p−1)/(m+p−1);
//   - interleaved (§2.2.2): (p−1)/(v·m+p−1);
//   - zb-h1 (Qi et al., arXiv 2401.10241, table 2): waits (p−1)(F+I−W), for I and W alike a third of 1f1b's; for m ≥ p;
//   - 2bw, pipedream, eval: as one batch of all microbatches, and nothing in the steady state.
func Closed(name string, o Options, c Cost) (Form, bool) {
	if name == "zb-h1" && (o.Microbatches < o.Stages || c.InputGrad != c.WeightGrad) {
		return Form{}, false
	}
	p, m, v := float64(o.Stages), float64(o.Microbatches), float64(max(1, o.Chunks))
	batches := float64(max(1, o.Batches))
	work, idle := v*(m*(c.Forward+c.Backward)+c.Update), (p-1)*(c.Forward+c.Backward)
	var f Form
	switch name {
	case "gpipe", "1f1b", "interleaved":
		f.Bubble = share(idle, work+idle)
		f.Steady = f.Bubble
	case "zb-h1":
		work, idle = m*(c.Forward+c.InputGrad+c.WeightGrad)+c.Update, (p-1)*(c.Forward+c.InputGrad-c.WeightGrad)
		f.Bubble = share(idle, work+idle)
		f.Steady = f.Bubble
	case "2bw", "pipedream":
		f.Bubble = share(idle, batches*work+idle)
	case "eval":
		f.Bubble = share((p-1)*c.Forward, batches*v*m*c.Forward+(p-1)*c.Forward)
	default:
		return Form{}, false
	}
	for s := range o.Stages {
		f.InFlight = append(f.InFlight, inFlight(name, o, s))
	}
	return f, true
}

func inFlight(name string, o Options, stage int) int {
	switch p, m := o.Stages, o.Microbatches; name {
	case "gpipe":
		return m
	case "interleaved":
		return min(2*(p-stage-1)+(o.Chunks-1)*p+1, m*o.Chunks)
	case "zb-h1":
		return p // stage s puts s weights' gradients off
	case "pipedream":
		return min(p-stage, max(1, o.Batches))
	case "1f1b", "2bw":
		return min(p-stage, m)
	}
	return 0
}
