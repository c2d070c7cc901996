package replicas

// Plan says which fragments are exchanged after which steps. Steps count from 1: step s has done batch s − 1.
type Plan struct {
	Fragments int
	Period    int // steps between two exchanges of a fragment
	Late      int // steps from sending to landing, at most Period
	Last      int // the step after which all fragments are exchanged and land at once: the end of the run
}

// Sent lists the fragments that are sent after a step. Fragments are spread evenly over the period; the last one is sent at
// its end.
func (p Plan) Sent(step int) (fragments []int) {
	for f := range p.Fragments {
		at := ((f+1)*p.Period + p.Fragments - 1) / p.Fragments
		if step == p.Last || step > 0 && (step-at)%p.Period == 0 {
			fragments = append(fragments, f)
		}
	}
	return fragments
}

// Lands is the step at which what is sent after a step lands.
func (p Plan) Lands(sent int) int { return min(sent+p.Late, max(sent, p.Last)) }

// Flight is a fragment that was sent and has not landed.
type Flight struct {
	Fragment int `json:"fragment"` // its number: of the embedding, a layer or the head
	Lands    int `json:"lands"`    // step
}
