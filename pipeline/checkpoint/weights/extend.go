package weights

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
)

// OpenExtended is Open of the weights of a model with vocab tokens for a model m with at least as many. Each new row of
// the embedding, and of the head, is the mean of the file's rows: its token is about as likely as the average one.
func OpenExtended(path string, m model.Config, vocab int) (*Source, error) {
	params := m.Parameters()
	if m.VocabSize < vocab {
		return nil, fmt.Errorf("%s: a vocabulary of %d, expected at most the model's %d", path, vocab, m.VocabSize)
	}
	m.VocabSize = vocab
	s, err := Open(path, m)
	if err == nil {
		s.inFile, s.params = s.params, params
	}
	return s, err
}

// extended reads a parameter that may have more rows than in the file.
func (s *Source) extended(p model.Parameter) ([]float32, error) {
	i := slices.IndexFunc(s.inFile, func(f model.Parameter) bool { return f.Name == p.Name })
	x, err := s.read(s.inFile[i])
	if err != nil {
		return nil, err
	}
	return withMeanRows(x, p.Type.Shape), nil
}

// withMeanRows appends means of all rows to a matrix, up to a shape [rows, columns] or another shape that x has
// already.
func withMeanRows(x []float32, to graph.Shape) []float32 {
	missing := to.Len() - len(x)
	if missing == 0 {
		return x
	}
	columns := to[1]
	sums := make([]float64, columns)
	for i, v := range x {
		sums[i%columns] += float64(v)
	}
	for i := range missing {
		x = append(x, float32(sums[i%columns]/float64(to[0]-missing/columns)))
	}
	return x
}
