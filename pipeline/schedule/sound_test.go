package schedule

import (
	"fmt"
	"slices"
	"strings"
)

// This is a second opinion on schedules that shares no code with the package but its types: actions are strings, what
// must come before what is a graph, and it is sound if the graph has no cycle and a replay of buffers never wants for
// one.

// opinion is nil for a sound schedule, and the time that its longest path takes (see path).
type opinion struct {
	s     *Schedule
	nodes []node
	at    map[string]int // "stage action" to its node
	then  [][]int
	why   string
}

type node struct {
	stage int
	a     Action
}

func name(stage int, format string, args ...any) string {
	return fmt.Sprint(stage, " ", fmt.Sprintf(format, args...))
}

func think(s *Schedule) *opinion {
	o := &opinion{s: s, at: map[string]int{}}
	for stage, actions := range s.Actions {
		for _, a := range actions {
			key := name(stage, "%v", a)
			if _, twice := o.at[key]; twice {
				o.why = "twice " + key
				return o
			}
			o.at[key] = len(o.nodes)
			o.nodes = append(o.nodes, node{stage, a})
		}
	}
	o.complete()
	if o.why == "" {
		o.connect()
	}
	if o.why == "" && o.order() == nil {
		o.why = "cycle"
	}
	if o.why == "" {
		o.replay()
	}
	if o.why == "" {
		o.fills()
	}
	return o
}

// fills compares the depth in the head with the most microbatches between their forward and their backward on stage 0.
func (o *opinion) fills() {
	open, most := map[string]bool{}, 0
	for _, a := range o.s.Actions[0] {
		switch text := a.String(); text[0] {
		case 'F':
			open[text[1:]] = true
			most = max(most, len(open))
		case 'B', 'W':
			delete(open, text[1:])
		}
	}
	if k := o.s.Depth; k > 0 && most != o.s.Stages+k {
		o.why = "wrong depth"
	}
}

func (o *opinion) sound() bool { return o.why == "" }

// id is an action on a microbatch as text.
func id(kind string, i, t, c int) string {
	if c == 0 {
		return fmt.Sprintf("%s%d.%d", kind, i, t)
	}
	return fmt.Sprintf("%s%d.%d:%d", kind, i, t, c)
}

func (o *opinion) has(stage int, text string) bool {
	_, has := o.at[name(stage, "%s", text)]
	return has
}

// complete compares all actions with those that there should be.
func (o *opinion) complete() {
	s := o.s
	want := map[string]bool{}
	evaluates := false
	for _, n := range o.nodes {
		evaluates = evaluates || n.a.Kind == Evaluate
	}
	last := s.Stages*s.Chunks - 1
	for stage := range s.Stages {
		for t := range s.Batches {
			for c := range s.Chunks {
				q := c*s.Stages + stage
				for i := range s.Microbatches {
					kinds := "F B"
					if evaluates {
						kinds = "E"
					} else if o.has(stage, id("I", i, t, c)) || o.has(stage, id("W", i, t, c)) {
						kinds = "F I W"
					}
					if s.Copies != nil && q > 0 {
						kinds += " RF"
					}
					if s.Copies != nil && q < last {
						kinds += " SF"
					}
					if s.Copies != nil && !evaluates && q < last {
						kinds += " RB"
					}
					if s.Copies != nil && !evaluates && q > 0 {
						kinds += " SB"
					}
					for _, k := range strings.Fields(kinds) {
						want[name(stage, "%s", id(k, i, t, c))] = true
					}
				}
			}
			if !evaluates {
				for _, k := range o.exchange(stage) {
					want[name(stage, "%s%d", k, t)] = true
				}
			}
		}
	}
	for key := range o.at {
		if !want[key] {
			o.why = "extra " + key
		}
		delete(want, key)
	}
	for key := range want {
		o.why = "missing " + key
	}
}

func (o *opinion) exchange(stage int) []string {
	l := o.s.Copies
	if l == nil {
		return []string{"U"}
	}
	if l.Replica {
		return []string{"SG", "RW"}
	}
	text := "U"
	if o.s.Delay >= 0 {
		text = "N U"
	}
	tied := l.Tied && o.s.Stages > 1
	if tied && stage == 0 || l.Copied {
		text = "RG " + text + " SW"
	}
	if tied && stage == o.s.Stages-1 {
		text = "SG " + text + " RW"
	}
	return strings.Fields(text)
}

// edge says that one action comes before another, if both exist.
func (o *opinion) edge(from, to string) {
	a, has := o.at[from]
	b, too := o.at[to]
	if has && too {
		o.then[a] = append(o.then[a], b)
	}
}

func (o *opinion) connect() {
	s := o.s
	o.then = make([][]int, len(o.nodes))
	for i := range o.nodes[1:] {
		if o.nodes[i].stage == o.nodes[i+1].stage {
			o.then[i] = append(o.then[i], i+1)
		}
	}
	for stage := range s.Stages {
		for t := range s.Batches {
			for c := range s.Chunks {
				for i := range s.Microbatches {
					o.microbatch(stage, t, c, i)
				}
			}
			o.batch(stage, t)
		}
	}
	if s.Copies != nil {
		o.channels()
	}
}

func (o *opinion) microbatch(stage, t, c, i int) {
	here := func(kind string) string { return name(stage, "%s", id(kind, i, t, c)) }
	for _, pair := range strings.Fields("RF>F RF>E F>SF E>SF F>B F>I RB>B RB>I I>W B>SB I>SB") {
		from, to, _ := strings.Cut(pair, ">")
		o.edge(here(from), here(to))
	}
	for _, k := range []string{"B", "W"} {
		for _, l := range []string{"B", "W"} {
			o.edge(name(stage, "%s", id(k, i-1, t, c)), here(l))
		}
		o.edge(here(k), name(stage, "%s%d", o.exchange(stage)[0], t))
	}
	if q := c*o.s.Stages + stage + 1; o.s.Copies == nil && q < o.s.Stages*o.s.Chunks { // what the next part gives and takes
		next, chunk := q%o.s.Stages, q/o.s.Stages
		o.edge(here("F"), name(next, "%s", id("F", i, t, chunk)))
		o.edge(here("E"), name(next, "%s", id("E", i, t, chunk)))
		for _, k := range []string{"B", "I"} {
			for _, l := range []string{"B", "I"} {
				o.edge(name(next, "%s", id(k, i, t, chunk)), here(l))
			}
		}
	}
	if o.s.Delay >= 0 {
		exchange := o.exchange(stage)
		o.edge(name(stage, "%s%d", exchange[len(exchange)-1], t-1-o.lack(i)), here("F"))
	}
}

// lack is how many updates the weights of a microbatch lack.
func (o *opinion) lack(i int) int {
	if o.s.Delay > 0 && i >= o.s.Stale {
		return 0
	}
	return o.s.Delay
}

func (o *opinion) batch(stage, t int) {
	exchange := o.exchange(stage)
	for i, k := range exchange[1:] {
		o.edge(name(stage, "%s%d", exchange[i], t), name(stage, "%s%d", k, t))
	}
	o.edge(name(stage, "%s%d", exchange[len(exchange)-1], t-1), name(stage, "%s%d", exchange[0], t))
	s := o.s
	for other := range s.Stages {
		if s.Copies != nil {
			o.edge(name(other, "N%d", t), name(stage, "U%d", t))
		} else if u, has := o.at[name(other, "U%d", t)]; has && s.Delay >= 0 && u > 0 && o.nodes[u-1].stage == other {
			// the vote will stand right before the update: what is before it must be done
			o.then[u-1] = append(o.then[u-1], o.at[name(stage, "U%d", t)])
		}
	}
	if l := s.Copies; l != nil && l.Tied && !l.Replica && s.Stages > 1 {
		o.edge(name(s.Stages-1, "SG%d", t), name(0, "RG%d", t))
		o.edge(name(0, "SW%d", t), name(s.Stages-1, "RW%d", t))
	}
}

// channels connects the n-th send with the n-th receive, and a receive with the send that waits for its place.
func (o *opinion) channels() {
	type stream struct {
		kind Kind
		from int
	}
	sends, recvs := map[stream][]int{}, map[stream][]int{}
	p := o.s.Stages
	for i, n := range o.nodes {
		switch n.a.Kind {
		case SendForward:
			sends[stream{RecvForward, n.stage}] = append(sends[stream{RecvForward, n.stage}], i)
		case SendBackward:
			sends[stream{RecvBackward, n.stage}] = append(sends[stream{RecvBackward, n.stage}], i)
		case RecvForward:
			from := stream{RecvForward, (n.stage + p - 1) % p}
			recvs[from] = append(recvs[from], i)
		case RecvBackward:
			from := stream{RecvBackward, (n.stage + 1) % p}
			recvs[from] = append(recvs[from], i)
		}
	}
	for c, s := range sends {
		r := recvs[c]
		if len(r) != len(s) {
			o.why = "unpaired"
			return
		}
		for k := range s {
			from, to := o.nodes[s[k]], o.nodes[r[k]]
			q := from.a.Chunk*p + from.stage
			if c.kind == RecvForward {
				q++
			} else {
				q--
			}
			if from.a.Microbatch != to.a.Microbatch || from.a.Batch != to.a.Batch || to.a.Chunk*p+to.stage != q {
				o.why = "out of order"
				return
			}
			o.then[s[k]] = append(o.then[s[k]], r[k])
			if k+1 < len(s) { // one message at a time
				o.then[r[k]] = append(o.then[r[k]], s[k+1])
			}
		}
	}
}

// order is a topological order, nil where there is none.
func (o *opinion) order() []int {
	into := make([]int, len(o.nodes))
	for _, then := range o.then {
		for _, b := range then {
			into[b]++
		}
	}
	var order []int
	for i, n := range into {
		if n == 0 {
			order = append(order, i)
		}
	}
	for k := 0; k < len(order); k++ {
		for _, b := range o.then[order[k]] {
			if into[b]--; into[b] == 0 {
				order = append(order, b)
			}
		}
	}
	if len(order) < len(o.nodes) {
		return nil
	}
	return order
}

// replay keeps weights and gradients in 2 + delay buffers. x_n contains the updates of n − delay batches. The update of
// batch t makes x_{t+1+delay} from x_{t+delay} and all gradients of batch t. Stale microbatches of batch t read x_t,
// the others x_{t+delay}.
func (o *opinion) replay() {
	if o.s.Delay < 0 {
		return
	}
	for stage, actions := range o.s.Actions {
		exchange := o.exchange(stage)
		r := replayed{buffers: append([]string{"x0", "x1"}[:1+o.s.Delay:1+o.s.Delay], ""), sums: map[int]int{}, old: map[int]int{},
			all: o.s.Microbatches * o.s.Chunks, stale: o.s.Microbatches * o.s.Chunks}
		if o.s.Delay == 1 {
			r.stale = o.s.Stale * o.s.Chunks
		}
		for _, a := range actions {
			switch a.Kind.String() {
			case "F", "I":
				r.reads(a, o.s.Delay-o.lack(a.Microbatch))
			case "B", "W":
				r.reads(a, o.s.Delay-o.lack(a.Microbatch))
				r.adds(a, o.s.Delay, o.lack(a.Microbatch) == o.s.Delay)
			case exchange[len(exchange)-1]:
				r.update(a.Batch, o.s.Delay)
			}
			if r.why != "" {
				o.why = r.why
				return
			}
		}
	}
}

type replayed struct {
	buffers []string
	sums    map[int]int // gradients of batches
	old     map[int]int // of these, those made at the older weights
	all     int
	stale   int // of all
	updates int
	why     string
}

func (r *replayed) find(format string, args ...any) int {
	return slices.Index(r.buffers, fmt.Sprintf(format, args...))
}

func (r *replayed) reads(a Action, newer int) {
	if r.find("x%d", a.Batch+newer) < 0 {
		r.why = "no weights for " + a.String()
	}
}

func (r *replayed) adds(a Action, delay int, old bool) {
	if r.sums[a.Batch] == 0 {
		if r.find("") < 0 {
			r.why = "no buffer for " + a.String()
			return
		}
		r.buffers[r.find("")] = fmt.Sprint("g", a.Batch)
	}
	r.sums[a.Batch]++
	if old {
		r.old[a.Batch]++
	}
	r.bury(delay)
}

// bury frees the weights that their batches have read for the last time, but those to which the next update will be
// applied.
func (r *replayed) bury(delay int) {
	for i, b := range r.buffers {
		var t int
		if n, _ := fmt.Sscanf(b, "x%d", &t); n == 1 && r.old[t] == r.stale && t < r.updates+delay {
			r.buffers[i] = ""
		}
	}
}

func (r *replayed) update(t, delay int) {
	base, from := r.find("x%d", t+delay), r.find("g%d", t)
	if base < 0 || from < 0 || r.sums[t] != r.all || t != r.updates {
		r.why = fmt.Sprint("no update of batch ", t)
		return
	}
	r.updates++
	made := fmt.Sprint("x", t+1+delay)
	if delay == 1 {
		r.buffers[from] = made
	} else {
		r.buffers[base], r.buffers[from] = made, ""
	}
	r.bury(delay)
}

// path is how long the schedule takes: each action waits for those before it. Transfers of one channel follow one
// another. It holds for updates that take no time, since those need not wait for their place in the line.
func (o *opinion) path(cost func(stage int, a Action) float64, transfer float64) float64 {
	start, end, longest := make([]float64, len(o.nodes)), make([]float64, len(o.nodes)), 0.0
	type stream struct {
		backward bool
		from     int
	}
	free := map[stream]float64{}
	for _, i := range o.order() {
		n := o.nodes[i]
		end[i] = start[i] + cost(n.stage, n.a)
		longest = max(longest, end[i])
		backward := n.a.Kind == Backward || n.a.Kind == InputGrad
		for _, j := range o.then[i] {
			at := end[i]
			if next := o.nodes[j].stage; next != n.stage && o.nodes[j].a.Kind != Update && n.a.Kind != Update {
				c := stream{backward, n.stage}
				at = max(at, free[c]) + transfer
				free[c] = at
			}
			start[j] = max(start[j], at)
		}
	}
	return longest
}
