package graph

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// Hash is a SHA-256, in hexadecimal, of the graph's nodes, outputs and assignments: equal for equal graphs, on every
// machine. Another version may compute another.
func Hash(g *Graph) (string, error) {
	h := sha256.New()
	w := bufio.NewWriter(h)
	attrs := json.NewEncoder(w)
	for _, n := range g.Nodes {
		fmt.Fprintf(w, "%s %q", n.Op.Name(), n.Scope)
		hashValues(w, n.Inputs)
		if c, ok := n.Op.(*Constant); ok {
			hashConstant(w, c)
		} else if err := attrs.Encode(n.Op); err != nil {
			return "", fmt.Errorf("hashing node %d (%s): %w", n.ID, n.Op.Name(), err)
		}
	}
	for _, o := range g.Outputs {
		fmt.Fprintf(w, "%q", o.Name)
		hashValues(w, []*Value{o.Value})
	}
	for _, a := range g.Assigns {
		hashValues(w, []*Value{a.Variable, a.Value})
	}
	_ = w.Flush() // a hash takes everything
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashValues(w io.Writer, values []*Value) {
	for _, v := range values {
		fmt.Fprintf(w, " %d.%d", v.Node.ID, v.Index)
	}
	fmt.Fprintln(w)
}

// hashConstant writes the bits of a constant's elements. There may be millions.
func hashConstant(w *bufio.Writer, c *Constant) {
	fmt.Fprintf(w, "%q %v %d\n", c.ID, c.Type, len(c.Data))
	for _, x := range c.Data {
		_, _ = w.Write(binary.LittleEndian.AppendUint64(w.AvailableBuffer(), math.Float64bits(x)))
	}
}
