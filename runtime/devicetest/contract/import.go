package contract

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Import checks what a device that imports memory must do and refuse, whether it computes or not.
func Import(t *testing.T, open Open) {
	t.Run("import", func(t *testing.T) { importValidation(t, open) })
	t.Run("transfer", func(t *testing.T) { transferValidation(t, open) })
	t.Run("lifetimes", func(t *testing.T) { importedLifetimes(t, open) })
	t.Run("closed", func(t *testing.T) { importClosed(t, open) })
}

// Shared checks data that pass through memory that two devices have imported.
func Shared(t *testing.T, open Open) {
	t.Run("there and back", func(t *testing.T) { thereAndBack(t, open) })
	t.Run("between devices", func(t *testing.T) { betweenDevices(t, open) })
	t.Run("in programs", func(t *testing.T) { importedInPrograms(t, open) })
	t.Run("without Wait", func(t *testing.T) { transfersWithoutWait(t, open) })
}

// lent is memory that devices import, with the number of imports and of calls of freed.
type lent struct {
	*host.Mapping
	imports int64
	freed   atomic.Int64
}

// lender maps memory. At the end of the test, every import must have been freed.
type lender struct{ all []*lent }

// newLender must be called before devices are opened, so that they are closed first.
func newLender(t *testing.T) *lender {
	l := &lender{}
	t.Cleanup(func() {
		for _, m := range l.all {
			if assert.Equal(t, m.imports, m.freed.Load(), "devices that are done with the memory") {
				m.Unmap()
			}
		}
	})
	return l
}

func (l *lender) lend(t *testing.T, size, alignment int64) *lent {
	t.Helper()
	m, err := host.Map(size, alignment)
	require.NoError(t, err)
	l.all = append(l.all, &lent{Mapping: m})
	return l.all[len(l.all)-1]
}

func (l *lent) to(t *testing.T, d device.Device, label string) device.Buffer {
	t.Helper()
	b, err := importer(t, d).Import(label, l.Bytes, func() { l.freed.Add(1) })
	require.NoError(t, err)
	l.imports++
	return b
}

func importer(t *testing.T, d device.Device) device.Importer {
	t.Helper()
	im, ok := device.AsImporter(d)
	require.True(t, ok, "%T imports no memory", d)
	return im
}

// page is an alignment that suffices for all devices of these tests.
func page(t *testing.T, ds ...device.Device) (alignment int64) {
	for _, d := range ds {
		alignment = max(alignment, importer(t, d).ImportAlignment())
	}
	return alignment
}

// Transfer copies and waits.
func Transfer(t testing.TB, d device.Device, from, to device.Range) {
	t.Helper()
	p, err := d.(device.Importer).Transfer(from, to)
	require.NoError(t, err)
	data, err := p.Wait()
	require.NoError(t, err)
	require.Empty(t, data)
}

func whole(b device.Buffer) device.Range { return device.Range{Buffer: b, Size: b.Size()} }

func importValidation(t *testing.T, open Open) {
	l := newLender(t)
	d := opened(t, open, 0)
	im, align := importer(t, d), page(t, d)
	m := l.lend(t, 4*align, align)
	type breach struct {
		memory []byte
		text   string
	}
	breaches := []breach{
		{nil, "size 0, must be a positive multiple"},
		{m.Bytes[:align-4], fmt.Sprintf("size %d, must be a positive multiple of %d", align-4, align)},
		{m.Bytes[:align+4], fmt.Sprintf("size %d, must be a positive multiple of %d", align+4, align)},
		{m.Bytes[4 : 4+align], fmt.Sprintf("must be a multiple of %d", align)},
	}
	if most := d.Limits().MaxBufferSize; most < 1<<46 { // else no slice is too long
		beyond := unsafe.Slice(&m.Bytes[0], most/align*align+align) // its contents are never accessed
		breaches = append(breaches, breach{beyond, "exceeds the largest buffer"})
	}
	for _, c := range breaches {
		_, err := im.Import("bad", c.memory, func() { t.Error("freed what was never imported") })
		refused(t, err, d, "bad", c.text)
	}
	used, _ := d.Allocated()
	assert.Zero(t, used)
}

func transferValidation(t *testing.T, open Open) {
	l := newLender(t)
	d, stranger := opened(t, open, 0), opened(t, open, 0)
	align := page(t, d, stranger)
	m, gone, other := l.lend(t, align, align), l.lend(t, align, align), l.lend(t, align, align)
	b, block, foreign, released := alloc(t, d, "b", 1024), m.to(t, d, "block"), other.to(t, stranger, "foreign"), gone.to(t, d, "gone")
	strange := alloc(t, stranger, "strange", 1024)
	released.Release()
	same := m.to(t, stranger, "block") // one memory, but each has a buffer of its own
	at := func(b device.Buffer, offset, n int64) device.Range {
		return device.Range{Buffer: b, Offset: offset, Size: n}
	}
	for _, c := range []struct {
		from, to device.Range
		text     string
	}{
		{at(b, 0, 8), at(block, 0, 4), "sizes 8 and 4 differ"},
		{at(b, 2, 4), at(block, 0, 4), "multiple of 4"},
		{at(b, 0, 6), at(block, 0, 6), "multiple of 4"},
		{at(b, 0, 0), at(block, 0, 0), "positive"},
		{at(b, -4, 8), at(block, 0, 8), "multiple of 4"},
		{at(b, 1020, 8), at(block, 0, 8), "exceed the 1024"},
		{at(b, 0, 8), at(block, align-4, 8), fmt.Sprintf("exceed the %d", align)},
		{at(b, 0, 8), at(block, 1<<63-8, 8), "exceed"},
		{at(block, 0, 64), at(block, 60, 64), "overlap"},
		{at(b, 0, 64), at(b, 32, 64), "overlap"},
		{at(b, 0, 8), at(released, 0, 8), "released"},
		{at(released, 0, 8), at(b, 0, 8), "released"},
		{at(b, 0, 8), at(foreign, 0, 8), "does not belong"},
		{at(b, 0, 8), at(same, 0, 8), "does not belong"},
		{at(strange, 0, 8), at(block, 0, 8), "does not belong"},
		{at(nil, 0, 8), at(block, 0, 8), "is nil"},
	} {
		label := ""
		if c.from.Buffer != nil {
			label = c.from.Buffer.Label()
		}
		_, err := d.(device.Importer).Transfer(c.from, c.to)
		refused(t, err, d, label, c.text)
	}
	Transfer(t, d, at(b, 0, 8), at(block, 8, 8)) // the device still works
	Transfer(t, d, at(block, 0, 64), at(block, 64, 64))
	Transfer(t, d, at(b, 0, 64), at(b, 64, 64))
}

// The device reads and writes the host's memory, and does not count it as allocated. When it no longer accesses the
// memory, it calls freed once: after Release and the work before it, or after Close.
func importedLifetimes(t *testing.T, open Open) {
	l := newLender(t)
	d := opened(t, open, 10000)
	align := page(t, d)
	m := l.lend(t, 3*align, align)
	copy(m.Bytes, Pattern(len(m.Bytes), 1))
	b := m.to(t, d, "block")
	assert.Equal(t, "block", b.Label())
	assert.EqualValues(t, 3*align, b.Size())
	used, _ := d.Allocated()
	assert.Zero(t, used, "it is the host's")
	zeros := alloc(t, d, "zeros", 10000)
	Transfer(t, d, device.Range{Buffer: zeros, Size: 512}, device.Range{Buffer: b, Offset: align, Size: 512})
	want := Pattern(len(m.Bytes), 1)
	clear(want[align : align+512])
	assert.True(t, bytes.Equal(want, m.Bytes), "the host sees what was transferred, and around it what it wrote")
	b.Release()
	b.Release()
	require.NoError(t, d.Sync())
	_, err := d.Read(zeros, 0, 4)
	require.NoError(t, err)
	assert.EqualValues(t, 1, m.freed.Load())
	used, _ = d.Allocated()
	assert.EqualValues(t, 10000, used)
	m.to(t, d, "again") // freed by Close
}

func importClosed(t *testing.T, open Open) {
	l := newLender(t)
	d := open(t, 0)
	im, align := importer(t, d), page(t, d)
	m := l.lend(t, align, align)
	b, block := alloc(t, d, "b", 256), m.to(t, d, "block")
	p, err := im.Transfer(device.Range{Buffer: b, Size: 256}, device.Range{Buffer: block, Size: 256})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	assert.EqualValues(t, 1, m.freed.Load())
	_, err = p.Wait() // enqueued before Close, so it completes
	require.NoError(t, err)
	block.Release()
	_, err = im.Import("late", m.Bytes, func() {})
	assert.ErrorIs(t, err, device.ErrClosed)
	_, err = im.Transfer(device.Range{Buffer: b, Size: 256}, device.Range{Buffer: block, Size: 256})
	assert.ErrorIs(t, err, device.ErrClosed)
}

// ImportUnsupported checks that a device that cannot import memory returns device.ErrNoImport.
func ImportUnsupported(t *testing.T, d device.Device) {
	t.Helper()
	_, ok := device.AsImporter(d)
	assert.False(t, ok)
	if im, ok := d.(device.Importer); ok {
		_, err := im.Import("b", make([]byte, 4096), func() {})
		assert.ErrorIs(t, err, device.ErrNoImport)
	}
}

func thereAndBack(t *testing.T, open Open) {
	l := newLender(t)
	d := opened(t, open, 0)
	align := page(t, d)
	const size = 5 << 20 // more than a staging buffer
	m := l.lend(t, size, align)
	block, b, c := m.to(t, d, "block"), alloc(t, d, "b", size+16), alloc(t, d, "c", size+16)
	want := Pattern(size, 3)
	require.NoError(t, d.Write(b, 12, want))
	Transfer(t, d, device.Range{Buffer: b, Offset: 12, Size: size}, whole(block))
	require.True(t, bytes.Equal(want, m.Bytes))
	Transfer(t, d, device.Range{Buffer: block, Offset: 100, Size: size - 400}, device.Range{Buffer: c, Offset: 8, Size: size - 400})
	padded := make([]byte, size+16)
	copy(padded[8:], want[100:size-300])
	require.True(t, bytes.Equal(padded, Read(t, d, c, 0, size+16)))
	copy(m.Bytes, Pattern(size, 4)) // by the host
	Transfer(t, d, whole(block), device.Range{Buffer: c, Offset: 4, Size: size})
	require.True(t, bytes.Equal(Pattern(size, 4), Read(t, d, c, 4, size)))
	require.True(t, bytes.Equal(Pattern(size, 4), Read(t, d, block, 0, size)), "an imported buffer can be read as others")
	require.NoError(t, d.Write(block, 4, want[:64]))
	require.NoError(t, d.Sync())
	require.Equal(t, want[:64], m.Bytes[4:68], "and written")
}

// betweenDevices moves numbers back and forth through a few blocks of memory, as a pipeline does. Both sides increment
// them in each round.
func betweenDevices(t *testing.T, open Open) {
	l := newLender(t)
	first, second := opened(t, open, 0), opened(t, open, 0)
	align := page(t, first, second)
	const blocks, rounds, size = 3, 60, 256
	type side struct {
		device.Device
		data  device.Buffer
		block [blocks]device.Buffer
		add   device.Loaded
	}
	sides := [2]*side{{Device: first}, {Device: second}}
	for _, s := range sides {
		s.data = alloc(t, s, "data", size)
		s.add = Load(t, s, Increments(s.data, 1))
	}
	for i := range blocks {
		m := l.lend(t, align, align)
		for _, s := range sides {
			s.block[i] = m.to(t, s.Device, "block")
		}
	}
	for i := range rounds {
		from, to := sides[i%2], sides[1-i%2]
		require.NoError(t, from.Run(from.add))
		place := device.Range{Buffer: from.block[i%blocks], Offset: int64(i%5) * 4, Size: size}
		Transfer(t, from.Device, whole(from.data), place)
		place.Buffer = to.block[i%blocks]
		p, err := to.Device.(device.Importer).Transfer(place, whole(to.data))
		require.NoError(t, err)
		if i%3 == 0 {
			_, err = p.Wait()
			require.NoError(t, err)
		}
	}
	want := make([]uint32, size/4)
	for i := range want {
		want[i] = rounds
	}
	require.Equal(t, want, Words(Read(t, first, sides[0].data, 0, size)))
}

// importedInPrograms runs a kernel on memory of the host.
func importedInPrograms(t *testing.T, open Open) {
	l := newLender(t)
	d := opened(t, open, 0)
	align := page(t, d)
	m := l.lend(t, align, align)
	b := m.to(t, d, "block")
	require.NoError(t, d.Run(Load(t, d, Increments(b, 7))))
	require.NoError(t, d.Sync())
	require.EqualValues(t, 7, Words(Read(t, d, b, 0, 256))[63])
	p := Load(t, d, Increments(b, 1))
	b.Release()
	refused(t, d.Run(p), d, "increments", `buffer "block" is released`)
}

// Transfers without Wait cost no memory, run in order, and are done before their buffers are freed.
func transfersWithoutWait(t *testing.T, open Open) {
	l := newLender(t)
	d := opened(t, open, 0)
	align := page(t, d)
	m := l.lend(t, align, align)
	block, b := m.to(t, d, "block"), alloc(t, d, "b", 256)
	p := Load(t, d, Increments(b, 1))
	before := resident(t)
	var last device.Pending
	for range 3000 {
		var err error
		last, err = d.(device.Importer).Transfer(whole(b), device.Range{Buffer: block, Offset: 256, Size: 256})
		require.NoError(t, err)
		require.NoError(t, d.Run(p))
		_, err = d.(device.Importer).Transfer(device.Range{Buffer: block, Offset: 256, Size: 256}, device.Range{Buffer: block, Size: 256})
		require.NoError(t, err)
	}
	block.Release()
	_, err := last.Wait()
	require.NoError(t, err)
	require.NoError(t, d.Sync())
	assert.EqualValues(t, 3000, Words(Read(t, d, b, 0, 256))[0])
	assert.EqualValues(t, 2999, Words(m.Bytes[:256])[0])
	assert.Less(t, resident(t)-before, int64(64<<20))
}
