package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Array is a measurement of several numbers.
type Array struct {
	Name   string
	Values []float64 // finite
}

// ArrayRecord is one step's arrays.
type ArrayRecord struct {
	Step   int
	Arrays map[string][]float64
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

// ReadArrays returns all records of a log of arrays. It ignores an incomplete last line; any other line that is no such
// record is an error.
func ReadArrays(path string) (all []ArrayRecord, err error) {
	var errs []error
	_, err = scan(path, func(r Record, line []byte) {
		arrays, err := parseArrays(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: step %d: %w", path, r.Step, err))
		}
		all = append(all, ArrayRecord{r.Step, arrays})
	})
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return all, nil
}

func parseArrays(line []byte) (map[string][]float64, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return nil, err
	}
	delete(members, "step")
	arrays := map[string][]float64{}
	for name, text := range members {
		var values []float64
		if err := json.Unmarshal(text, &values); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		arrays[name] = values
	}
	return arrays, nil
}
