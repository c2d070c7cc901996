package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// check is a case and how it is judged. An error is a run that failed.
type check struct {
	Case
	judge func(ctx context.Context, c *Case) error
}

// setting is a run of the tiny model: the keys that it sets besides the keys that all runs set.
type setting struct {
	name    string
	set     []string
	devices []string // one per rank, in turn; none: the default device
}

// with is the setting with more set. A key that is set twice has its last value.
func (s setting) with(name string, set ...string) setting {
	return setting{name, slices.Concat(s.set, set), s.devices}
}

// on is the setting on devices.
func (s setting) on(devices []string) setting { return setting{s.name, s.set, devices} }

func stages(n int) string {
	if n == 1 {
		return "1 stage"
	}
	return fmt.Sprintf("%d stages", n)
}

// The claims.
const (
	synchronous = "every synchronous schedule trains as one device does"
	delayed     = "2BW trains as one device with a delay of one does"
	partlyStale = "2BW with few stale microbatches trains as one device with as many does"
	atDepth     = "2BW at any depth trains as one device with as many stale microbatches does"
	resumed     = "a run that is stopped and resumed is one that never stopped"
	repeated    = "a seed determines every bit"
	replicated  = "replicas train as one pipeline does"
	rounded     = "tensors that are rounded between stages give the same bits wherever the stages are"
	sixteenBit  = "f16 and bf16 train on a pipeline as on one device"
	moments     = "moments in bf16 have the same bits wherever the stages are"
	recomputed  = "what is computed again is what was not kept"
	mixture     = "devices of several kinds agree within rounding"
)

// planner gathers the cases.
type planner struct {
	*trainer
	quick  bool
	kind   kind
	device string // named in cases; "" where all devices are alike
	checks []check
}

func (t *trainer) plan(kinds []kind, quick bool) []check {
	p := &planner{trainer: t, quick: quick}
	for _, k := range kinds {
		p.kind = k
		if len(kinds) > 1 {
			p.device = k.name
		}
		p.synchronous()
		p.delayed()
		p.partlyStale()
		p.atDepth()
		p.stopped()
		p.replicas()
		p.sixteenBit()
		p.rounded()
		p.roundedMoments()
	}
	if len(kinds) > 1 {
		p.mixed(kinds)
	}
	return p.checks
}

func (p *planner) add(claim, name, against string, judge func(ctx context.Context, c *Case) error) {
	p.checks = append(p.checks, check{Case{Claim: claim, Name: name, Against: against, Device: p.device}, judge})
}

// here is a setting on the devices that are planned for.
func (p *planner) here(s setting) setting { return s.on(p.kind.devices) }

// equal adds that two settings give the same checkpoint, bit by bit.
func (p *planner) equal(claim string, want, got setting) {
	want, got = p.here(want), p.here(got)
	p.add(claim, got.name, want.name, func(ctx context.Context, c *Case) error { return p.compare(ctx, c, want, got, 0) })
}

// sound adds that a setting trains at all, and that clipping is at work: two runs that compute nothing are equal.
func (p *planner) sound(claim string, s setting) {
	s = p.here(s)
	p.add(claim, s.name+" learns and clips", "", func(ctx context.Context, c *Case) error { return p.learns(ctx, c, s) })
}

// unequal adds that two settings differ, since the keys that differ have an effect.
func (p *planner) unequal(claim string, a, b setting) {
	a, b = p.here(a), p.here(b)
	p.add(claim, b.name+" is another run", a.name, func(ctx context.Context, c *Case) error { return p.differ(ctx, c, a, b) })
}

// changed adds that two settings differ in some bits, and their losses little.
func (p *planner) changed(claim string, a, b setting) {
	a, b = p.here(a), p.here(b)
	p.add(claim, b.name+" has bits of its own", a.name, func(ctx context.Context, c *Case) error { return p.change(ctx, c, a, b) })
}

func named(optimizer, correction string, tied bool) string {
	if correction != "none" {
		optimizer += ", error feedback"
	}
	if tied {
		optimizer += ", tied"
	}
	return optimizer
}

// undelayed is one device without delay.
func undelayed(optimizer string, tied bool) setting {
	return setting{name: named(optimizer, "none", tied), set: []string{"optimizer.name=" + optimizer,
		fmt.Sprint("model.tie_embeddings=", tied)}}
}

func (p *planner) synchronous() {
	base := undelayed("muon", true).with("1 stage")
	p.sound(synchronous, base)
	for _, f := range schedule.Trainable() {
		for n := 1; n <= 4 && f.Delay == 0; n++ {
			if p.quick && n != 2 || f.Name == schedule.ForDelay(0) && n == 1 {
				continue // that is the base
			}
			want := base
			if _, err := schedule.New(f.Name, schedule.Options{Stages: n, Chunks: f.Chunks, Microbatches: 4}); err != nil {
				want = base.with("1 stage, 6 microbatches", microbatches(6)...)
			}
			if f.Chunks*n > 6 { // units: the embedding, four layers, the head
				want = base.with("1 stage, 6 layers", "model.n_layers=6")
			}
			p.equal(synchronous, want, want.with(f.Name+", "+stages(n), "pipeline.schedule="+f.Name, fmt.Sprint("pipeline.stages=", n)))
		}
	}
	again := base.with("1 stage, activations computed again", "pipeline.recompute=always")
	p.near(recomputed, p.here(base), p.here(again))
}

// delayedBy is one device with a delay of one for all microbatches.
func delayedBy(optimizer, correction string, tied bool) setting {
	s := undelayed(optimizer, tied)
	return s.with(named(optimizer, correction, tied), "pipeline.delay=1", "pipeline.stale_microbatches=all",
		"pipeline.correction="+correction)
}

// stale is a delayed setting with so many stale microbatches of four.
func stale(s setting, n int) setting {
	return s.with(fmt.Sprintf("%s, %d of 4 stale", s.name, n), fmt.Sprint("pipeline.stale_microbatches=", n))
}

// unclipped is a setting whose gradients are not clipped.
func unclipped(s setting) setting { return s.with(s.name+", not clipped", "train.grad_clip=0") }

// f16 is a setting in f16, with a loss scale at which some batches overflow.
func f16(s setting) setting {
	return s.with(s.name+", f16", "train.precision=f16", "train.loss_scale={initial: 16777216, growth_every: 3}")
}

// on2BW is a delayed setting as a pipeline.
func on2BW(s setting, n int) setting {
	return s.with(s.name+", 2bw, "+stages(n), fmt.Sprint("pipeline.stages=", n), "pipeline.schedule=2bw")
}

func (p *planner) delayed() {
	for _, optimizer := range []string{"muon", "adamw"} {
		for _, tied := range []bool{true, false} {
			plain, corrected := delayedBy(optimizer, "none", tied), delayedBy(optimizer, "error_feedback", tied)
			all := []setting{plain, corrected}
			if p.quick {
				if optimizer == "muon" != tied {
					continue
				}
				all = all[1:]
			}
			for _, s := range all {
				alone := s.with(s.name + ", delay 1")
				p.sound(delayed, alone)
				for n := 2; n <= 4; n++ {
					if !p.quick || n == 3 {
						p.equal(delayed, alone, on2BW(s, n))
					}
				}
			}
			if !p.quick {
				cut := on2BW(corrected, 3)
				p.equal(delayed, corrected.with(corrected.name+", delay 1"), cut.with(cut.name+" cut at 1 and 5", "pipeline.cut=[1, 5]"))
				p.unequal(delayed, plain.with(plain.name+", delay 0", "pipeline.delay=0", "pipeline.stale_microbatches=auto"), plain)
				p.unequal(delayed, plain, corrected)
			}
		}
	}
}

// partlyStale adds pipelines with as few stale microbatches as there can be, and with one more.
func (p *planner) partlyStale() {
	for n := 2; n <= 4; n++ {
		muon := stale(delayedBy("muon", "error_feedback", true), n-1)
		if !p.quick || n == 2 {
			p.equal(partlyStale, muon, on2BW(muon, n))
		}
		if adamw := stale(delayedBy("adamw", "none", n == 3), min(n, 3)); !p.quick {
			p.equal(partlyStale, adamw, on2BW(adamw, n))
		}
	}
	s := delayedBy("muon", "none", true)
	p.unequal(partlyStale, s, stale(s, 1))
	if !p.quick {
		p.unequal(partlyStale, stale(s, 1), stale(s, 2))
		none := s.with(s.name+", 0 of 4 stale", "pipeline.stale_microbatches=0")
		p.equal(partlyStale, undelayed("muon", true).with("muon, tied, delay 0"), none)
		free := stale(unclipped(s), 2)
		p.equal(partlyStale, free, on2BW(free, 3))
		p.fiveStages()
	}
}

// fiveStages adds pipelines of five stages with the fewest stale microbatches that there can be, with half, and with
// all. With the other cases of stale microbatches they are meant to cover pairwise: optimizer, correction, tied
// embeddings, clipping, f32 or f16, replicas, and the fewest, half or all microbatches stale.
func (p *planner) fiveStages() {
	fewest := deep(delayedBy("muon", "error_feedback", true), 4)
	half := deep(f16(unclipped(delayedBy("muon", "error_feedback", false))), 5)
	all := deep(unclipped(delayedBy("adamw", "none", true)), 10)
	for _, s := range []setting{fewest, half, all} {
		p.equal(partlyStale, s, on2BW(s, 5))
	}
	p.overflow(partlyStale, half)
}

// stopped adds the runs that are stopped and begun again.
func (p *planner) stopped() {
	s := delayedBy("muon", "error_feedback", true)
	alone := p.here(s.with(s.name + ", delay 1"))
	three, two := p.here(on2BW(s, 3)), p.here(on2BW(s, 2))
	p.stop(resumed, alone, three, three)
	if !p.quick {
		p.stop(resumed, alone, three, two)
		part := stale(s, 2)
		p.stop(resumed, part, on2BW(part, 3), on2BW(part, 2))
	}
	p.add(repeated, three.name+", on devices opened anew", three.name,
		func(ctx context.Context, c *Case) error { return p.again(ctx, c, three) })
}

// stop adds that a run which is stopped and begun again in another setting is one that never stopped.
func (p *planner) stop(claim string, never, first, then setting) {
	never, first, then = p.here(never), p.here(first), p.here(then)
	_, layout, _ := strings.Cut(then.name, "2bw, ")
	p.add(claim, fmt.Sprintf("%s, stopped, resumed on %s", first.name, cmp.Or(layout, "1 stage")), never.name,
		func(ctx context.Context, c *Case) error { return p.interrupted(ctx, c, never, first, then) })
}

// replicas adds pipelines side by side. They sum a batch's gradient replica by replica: with a microbatch each as one
// device does, and else, however many stages they have, as replicas of one stage do. (A tied embedding's gradient is
// summed in another order.)
func (p *planner) replicas() {
	two := func(s setting, micro, n int) setting {
		return s.with(fmt.Sprintf("%s, %d microbatches, 2 replicas of %s", s.name, micro, stages(n)),
			append(microbatches(micro), "pipeline.replicas=2", fmt.Sprint("pipeline.stages=", n))...)
	}
	for _, tied := range []bool{false, true} {
		s, d := undelayed("muon", tied), delayedBy("adamw", "error_feedback", tied)
		if !tied {
			p.near(replicated, p.here(s.with(s.name+", 2 microbatches, 1 stage", microbatches(2)...)), p.here(two(s, 2, 2)))
			p.near(replicated, p.here(d.with(d.name+", delay 1, 2 microbatches, 1 stage", microbatches(2)...)), p.here(two(d, 2, 1)))
		} else if !p.quick {
			p.equal(replicated, two(s, 4, 1), two(s, 4, 2))
			p.equal(replicated, two(d, 4, 1), two(d, 4, 2))
			d = d.with(d.name+", 1 of 2 stale", "pipeline.stale_microbatches=1")
			p.equal(replicated, two(d, 4, 1), two(d, 4, 2))
		}
	}
	if !p.quick {
		s := f16(unclipped(delayedBy("muon", "none", false)))
		s = s.with(s.name+", 5 of 6 stale", "pipeline.stale_microbatches=5")
		p.equal(replicated, two(s, 12, 1), two(s, 12, 5))
		p.overflow(replicated, two(s, 12, 1))
	}
}

// sixteenBit adds runs in f16, some of whose batches overflow, and in bf16.
func (p *planner) sixteenBit() {
	half := f16(undelayed("adamw", true))
	bf16 := delayedBy("adamw", "error_feedback", false)
	bf16 = bf16.with(bf16.name+", bf16", "train.precision=bf16")
	alone := half.with(half.name + ", 1 stage")
	p.equal(sixteenBit, alone, half.with(half.name+", 1f1b, 2 stages", "pipeline.stages=2"))
	if p.quick {
		return
	}
	p.equal(sixteenBit, bf16.with(bf16.name+", delay 1"), on2BW(bf16, 3))
	delayed := half.with(half.name+", delay 1", "pipeline.delay=1", "pipeline.stale_microbatches=all")
	p.equal(sixteenBit, delayed, on2BW(delayed, 2))
	p.overflow(sixteenBit, delayed)
	for _, n := range []int{1, 2} {
		part := stale(delayed, n)
		p.equal(sixteenBit, part, on2BW(part, 2))
		p.overflow(sixteenBit, part)
	}
	p.stop(sixteenBit, delayed, on2BW(delayed, 2), on2BW(delayed, 2))
}

// roundedMoments adds runs whose optimizer stores its state in bf16.
func (p *planner) roundedMoments() {
	if p.quick {
		return
	}
	exact := delayedBy("muon", "error_feedback", true)
	s := exact.with(exact.name+", moments in bf16", "optimizer.moments=bf16")
	alone := s.with(s.name + ", delay 1")
	p.changed(moments, exact.with(exact.name+", delay 1"), alone)
	p.equal(moments, alone, on2BW(s, 3))
	p.stop(moments, alone, on2BW(s, 3), on2BW(s, 2))
}

// overflow adds that some batches of a setting are passed over, and others are not.
func (p *planner) overflow(claim string, s setting) {
	s = p.here(s)
	p.add(claim, s.name+" has batches that overflow", "", func(ctx context.Context, c *Case) error { return p.overflows(ctx, c, s) })
}

// near adds that two settings agree within rounding, where other kernels do the same mathematics.
func (p *planner) near(claim string, want, got setting) {
	p.add(claim, got.name, want.name, func(ctx context.Context, c *Case) error { return p.compare(ctx, c, want, got, rounding) })
}

// mixed adds pipelines of all kinds of devices. They give the same bits each time. Within rounding they give the losses
// of each kind alone.
func (p *planner) mixed(kinds []kind) {
	p.device = ""
	s := delayedBy("muon", "error_feedback", true)
	alone := func(k kind) setting { return s.with(s.name + ", delay 1 on " + k.name).on(k.devices) }
	var devices []string
	for i, k := range kinds {
		devices = append(devices, k.devices[0])
		if i > 0 {
			p.near(mixture, alone(kinds[0]), alone(k))
		}
	}
	n := min(max(2, len(devices)), 4)
	together := on2BW(s, n).with(fmt.Sprintf("%s, 2bw, %s of all kinds", s.name, stages(n))).on(devices)
	p.near(mixture, alone(kinds[0]), together)
	p.add(repeated, together.name+", on devices opened anew", together.name, func(ctx context.Context,
		c *Case) error {
		return p.again(ctx, c, together)
	})
}
