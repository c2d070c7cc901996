package meter

import "math"

// write puts the module together again.
func (m *module) write() []byte {
	code := m.code() // first: it adds types
	out := []byte("\x00asm\x01\x00\x00\x00")
	emit := func(id byte, content []byte) {
		if content != nil {
			out = appendSection(out, id, content)
		}
	}
	emit(1, m.extended(1, m.extra.types, m.extra.encoded))
	tick := appendName(appendName(nil, ImportModule), Tick)
	emit(2, m.extended(2, 1, appendU32(append(tick, 0), m.extra.first)))
	emit(3, m.functionSection())
	emit(4, m.tableSection())
	emit(5, m.memorySection())
	emit(6, m.globalSection())
	emit(7, m.exportSection())
	emit(8, m.startSection())
	emit(9, m.elementSection())
	emit(12, m.whole(12))
	emit(10, code)
	emit(11, m.dataSection())
	if names := m.nameSection(); names != nil {
		emit(0, append(appendName(nil, "name"), names...))
	}
	return out
}

// whole is a section as it was.
func (m *module) whole(id byte) []byte {
	if r := m.content[id]; r != nil {
		return r.b
	}
	return nil
}

// extended is a section of entries with n more behind them.
func (m *module) extended(id byte, n int, entries []byte) []byte {
	r := m.content[id]
	if r == nil {
		r = &reader{b: []byte{0}}
	}
	r.i = 0
	return append(append(appendU32(nil, r.u32()+uint32(n)), r.b[r.i:]...), entries...)
}

// functionSection has the functions that were added behind the others.
func (m *module) functionSection() []byte {
	var types []byte
	for range m.extra.code {
		types = appendU32(types, m.extra.threeInts)
	}
	if types == nil {
		return m.whole(3)
	}
	return m.extended(3, len(m.extra.code), types)
}

func (m *module) tableSection() []byte {
	if m.content[4] == nil {
		return nil
	}
	var b []byte
	n := m.vector(4, "tables", maxTables, func(r *reader, _ int) {
		if r.more() && r.b[r.i] == 0x40 {
			r.refuse("typed function references are not supported (a table with an initializer)")
		}
		b = append(b, r.refType())
		limits := *r
		least, _ := limits.limits("table", 1<<32-1)
		m.tableSizes = append(m.tableSizes, least)
		b = r.capped(b, "table", 1<<32-1, m.TableElements)
	})
	return append(appendU32(nil, uint32(n)), b...)
}

func (m *module) memorySection() []byte {
	if m.content[5] == nil {
		return nil
	}
	var b []byte
	n := m.vector(5, "memories", 1, func(r *reader, _ int) {
		b = r.capped(b, "memory", 1<<16, m.MemoryPages)
	})
	return append(appendU32(nil, uint32(n)), b...)
}

// capped copies limits, lowering the maximum to limit.
func (r *reader) capped(b []byte, what string, most uint64, limit uint32) []byte {
	lo, hi := r.limits(what, most)
	if lo > limit {
		unit := "elements"
		if what == "memory" {
			unit = "pages"
		}
		r.refuse("found a %s of at least %d %s, expected at most %d", what, lo, unit, limit)
	}
	return appendU32(appendU32(append(b, 1), lo), min(hi, limit))
}

func (m *module) globalSection() []byte {
	var b []byte
	n := m.vector(6, "globals", maxGlobals, func(r *reader, _ int) {
		start := r.i
		r.globalType()
		b = m.constant(append(b, r.b[start:r.i]...), r)
	})
	b = append(b, 0x7e, 1, opI64Const, 0, opEnd)
	b = append(appendS64(append(b, 0x7f, 1, opI32Const), int64(m.Depth)), opEnd)
	return append(appendU32(nil, uint32(n+2)), b...)
}

// constant copies a constant expression.
func (m *module) constant(b []byte, r *reader) []byte {
	for {
		start := r.i
		op := int(r.byte())
		switch op {
		case opI32Const:
			r.signed(32)
		case opI64Const:
			r.signed(64)
		case opI32Const + 2: // f32.const
			r.take(4)
		case opI32Const + 3: // f64.const
			r.take(8)
		case 0xfd:
			if sub := r.u32(); sub != opV128Const&0xff {
				r.refuse("opcode 0xfd %#02x in a constant expression, expected v128.const", sub)
			}
			r.take(16)
		case opGlobalGet:
			r.index("global", m.globals)
		case opRefNull:
			r.refType()
		case opRefFunc:
			b = appendU32(append(b, opRefFunc), m.shift(r.index("function", len(m.functions))))
			continue
		case opEnd:
			return append(b, opEnd)
		case opI32Add, opI32Sub, opI32Add + 2, opI64Sub - 1, opI64Sub, opI64Sub + 1:
			r.refuse("extended constant expressions are not supported (opcode %#x)", op)
		default:
			r.refuse("opcode %#02x in a constant expression", op)
		}
		b = append(b, r.b[start:r.i]...)
	}
}

func (m *module) exportSection() []byte {
	var b []byte
	n := m.vector(7, "exports", maxExports, func(r *reader, _ int) {
		name := r.name()
		if name == Fuel || name == Room {
			r.refuse("exports %q, which is the host's own", name)
		}
		kind := r.byte()
		b = append(appendName(b, name), kind)
		switch kind {
		case 0:
			b = appendU32(b, m.shift(r.index("function", len(m.functions))))
		case 1:
			b = appendU32(b, r.index("table", m.tables))
		case 2:
			b = appendU32(b, r.index("memory", m.memories))
		case 3:
			b = appendU32(b, r.index("global", m.globals))
		case 4:
			r.refuse("exception handling is not supported (export %q is a tag)", name)
		default:
			r.refuse("export %q is of the unknown kind %d", name, kind)
		}
	})
	b = appendU32(append(appendName(b, Fuel), 3), m.fuelGlobal())
	b = appendU32(append(appendName(b, Room), 3), m.roomGlobal())
	return append(appendU32(nil, uint32(n+2)), b...)
}

func (m *module) startSection() []byte {
	r := m.content[8]
	if r == nil {
		return nil
	}
	f := m.shift(r.index("function", len(m.functions)))
	r.end()
	return appendU32(nil, f)
}

// Bits of an element segment's kind.
const (
	elemNotActive  = 1 // passive or declared
	elemExplicit   = 2 // with a table, or declared
	elemExpression = 4
)

// placed is the initial size of a table and the offset in it that an expression stands for. Other runtimes refuse to
// start a module with elements outside of it; wazero would leave them out.
func (m *module) placed(table uint32, offset []byte) (size, at uint64) {
	r := &reader{b: offset}
	own := int64(table) - int64(m.tables-len(m.tableSizes)) // imported tables come first
	if own < 0 || int(r.byte()) != opI32Const {
		return math.MaxUint64, 0
	}
	return uint64(m.tableSizes[own]), uint64(uint32(r.signed(32)))
}

func (m *module) elementSection() []byte {
	if m.content[9] == nil {
		return nil
	}
	total := 0
	var b []byte
	n := m.vector(9, "element segments", maxSegments, func(r *reader, _ int) {
		size, at := uint64(math.MaxUint64), uint64(0) // of the table, and where in it; of any size if that is not known
		kind := r.u32()
		if kind > 7 {
			r.refuse("an element segment of the unknown kind %d", kind)
		}
		b = appendU32(b, kind)
		if kind&elemNotActive == 0 {
			table := uint32(0)
			if kind&elemExplicit != 0 {
				table = r.u32()
				b = appendU32(b, table)
			}
			if int64(table) >= int64(m.tables) {
				r.refuse("table %d does not exist, there are %d", table, m.tables)
			}
			start := len(b)
			b = m.constant(b, r)
			size, at = m.placed(table, b[start:])
		}
		if kind&(elemNotActive|elemExplicit) != 0 {
			if kind&elemExpression != 0 {
				b = append(b, r.refType())
			} else if k := r.byte(); k != 0 {
				r.refuse("an element segment of element kind %d, expected 0", k)
			} else {
				b = append(b, k)
			}
		}
		items := r.count("elements", maxElements)
		if total += items; total > maxElements {
			r.refuse("more than %d elements in all segments", maxElements)
		}
		if at+uint64(items) > size {
			r.refuse("%d elements at %d of a table of %d", items, at, size)
		}
		b = appendU32(b, uint32(items))
		for range items {
			if kind&elemExpression != 0 {
				b = m.constant(b, r)
			} else {
				b = appendU32(b, m.shift(r.index("function", len(m.functions))))
			}
		}
	})
	return append(appendU32(nil, uint32(n)), b...)
}

func (m *module) dataSection() []byte {
	var b []byte
	n := m.vector(11, "data segments", maxSegments, func(r *reader, _ int) {
		kind := r.u32()
		if kind > 2 {
			r.refuse("a data segment of the unknown kind %d", kind)
		}
		b = appendU32(b, kind)
		if kind == 2 {
			b = appendU32(b, r.index("memory", m.memories))
		}
		if kind != 1 {
			b = m.constant(b, r)
		}
		data := r.take(r.u32())
		b = append(appendU32(b, uint32(len(data))), data...)
	})
	if m.segments >= 0 && m.segments != n {
		panic(&Error{Where: "data section", What: "does not have as many segments as the data count section says"})
	}
	if m.content[11] == nil {
		return nil
	}
	return append(appendU32(nil, uint32(n)), b...)
}
