package meter

// nameSection is the content of the name section with functions' indices shifted, or nil: names serve messages only, so
// one that cannot be read is omitted.
func (m *module) nameSection() (out []byte) {
	defer func() {
		if e := recover(); e != nil {
			if _, ours := e.(*Error); !ours {
				panic(e)
			}
			out = nil
		}
	}()
	for r := (&reader{b: m.names, where: "name section"}); r.more(); {
		id := r.byte()
		s := r.sub(r.u32(), r.where)
		var b []byte
		switch id {
		case 0: // the module's
			b = appendName(b, s.name())
		case 1: // functions'
			b = m.nameMap(s, maxFunctions+maxImports)
		default: // locals', which the host never shows, and later ones
			continue
		}
		s.end()
		out = appendSection(out, id, b)
	}
	return out
}

func (m *module) nameMap(r *reader, limit int) []byte {
	n := r.count("names", limit)
	b := appendU32(nil, uint32(n))
	for range n {
		b = appendU32(b, m.shift(r.index("function", len(m.functions))))
		b = appendName(b, r.name())
	}
	return b
}
