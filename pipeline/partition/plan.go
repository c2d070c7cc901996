package partition

// plan writes a layout out.
func (c *costs) plan(l layout) (Plan, error) {
	p := Plan{Cut: l.cut, Devices: l.order, Search: l.compare}
	for s, d := range l.order {
		x := c.stage(s, d, c.parts(l, s))
		p.Recompute = append(p.Recompute, x.recompute)
		p.Stages = append(p.Stages, Stage{Parts: c.parts(l, s), Device: c.Devices[d].Name, Recompute: x.recompute,
			Forward: x.forward, Backward: x.backward, Update: x.update, Transfer: x.transfer, Exchange: x.exchange,
			Seconds: x.seconds, Memory: x.memory, Available: c.available(d)})
	}
	return p, nil
}
