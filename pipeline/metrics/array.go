package metrics

// Array is a measurement of several numbers.
type Array struct {
	Name   string
	Values []float64 // finite
}

// AppendArrays writes a step's record of arrays. They keep their order.
func (l *Log) AppendArrays(step int, arrays ...Array) error {
	r := newLine(step)
	for _, a := range arrays {
		if err := r.member(a.Name); err != nil {
			return err
		}
		r.text = append(r.text, '[')
		for i, x := range a.Values {
			if i > 0 {
				r.text = append(r.text, ',')
			}
			r.text = appendNumber(r.text, x)
		}
		r.text = append(r.text, ']')
	}
	return l.write(r)
}
