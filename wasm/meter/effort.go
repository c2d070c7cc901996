package meter

// effort estimates how long a compiler works on a function, and how much memory that takes. It grows with the square of
// the basic blocks, with the values that are alive at each of them (locals, operands, what branches carry), and with
// the square of those, above all for loops within loops: a few kilobytes of code can be hours of work.
type effort struct {
	*body
	blocks  int
	alive   int64 // values, summed over blocks: about 100 bytes each
	squares int64 // of the values at each block
}

const (
	maxBlocks = 8_000     // of a function, about as many as a compiler makes of it
	maxAlive  = 4_000_000 // of a function

	// maxEffort is the sum over functions of blocks² + 6·alive + squares, each about 70 ns. A Go program takes 1.1e7
	// for its runtime and fmt, and naga, a compiler for shaders (2 MB of Rust), 5.7e7.
	maxEffort = 200_000_000
)

// instruction counts one, before which there are so many operands and open loops.
func (e *effort) instruction(op, operands, loops int) {
	n := blocksOf(op)
	if op == opBrTable {
		n = e.targets / 4
	}
	if n == 0 {
		return
	}
	e.blocks += n
	values := int64(e.locals + operands)
	e.alive += int64(n) * values
	e.squares += int64(n) * values * values / 128
	if op == opLoop {
		e.squares += int64(loops+1) * values * values / 16
	}
	e.check()
}

// values counts what a call or branch carries.
func (e *effort) values(n int) {
	e.alive += int64(n)
	e.check()
}

func (e *effort) sum() int64 { return int64(e.blocks)*int64(e.blocks) + 6*e.alive + e.squares }

func (e *effort) check() {
	switch {
	case e.blocks > maxBlocks:
		e.refuse("more than %d blocks and branches", maxBlocks)
	case e.alive > maxAlive:
		e.refuse("too many locals, operands and results for its blocks, calls and branches: more than %d in all of them", maxAlive)
	case e.module.effort+e.sum() > maxEffort:
		e.refuse("too much work to compile: too many large functions, or loops within loops with many locals")
	}
}

// end adds the function's to the module's, at least what its parameters and locals take.
func (e *effort) end() {
	e.alive += int64(e.locals)
	e.check()
	e.module.effort += e.sum()
}

// blocksOf is how many basic blocks a compiler makes of an instruction and of the code that the rewriter adds to it.
func blocksOf(op int) int {
	switch op {
	case opBlock, opIf, opElse, opBrIf:
		return 1
	case opLoop:
		return 3
	case opMemoryGrow, opTableGrow:
		return 6
	case opMemoryCopy, opMemoryFill, opMemoryInit, opTableCopy, opTableFill, opTableInit:
		return 4
	}
	return 0
}
