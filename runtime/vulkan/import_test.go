//go:build linux

package vulkan

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestImport(t *testing.T) {
	wantImport(t)
	contract.Import(t, opened)
}

func TestShared(t *testing.T) {
	wantImport(t)
	contract.Shared(t, opened)
}

// wantImport ends a test where a GPU's driver cannot import memory; Mesa's software adapter can.
func wantImport(t testing.TB) {
	if d := open(t, Options{CacheDir: cacheDir}); d.ImportAlignment() == 0 && d.Info().Kind != device.Software {
		t.Skip("the driver of " + d.Info().Adapter + " has no VK_EXT_external_memory_host")
	}
}

func TestDriverWithoutImport(t *testing.T) {
	d := open(t, Options{CacheDir: cacheDir})
	d.adapter.ImportAlignment = 0
	contract.ImportUnsupported(t, d)
}

func TestRefusedMemory(t *testing.T) {
	wantImport(t)
	d := open(t, Options{CacheDir: cacheDir})
	m, err := host.Map(d.ImportAlignment(), d.ImportAlignment())
	require.NoError(t, err)
	for i := range d.heap.types { // none is coherent
		d.heap.types[i].flags = 0
	}
	_, err = d.Import("b", m.Bytes, func() { t.Error("freed what was never imported") })
	require.EqualError(t, err, `vulkan:0: import "b": no memory type fits that is coherent between the host and the device`)
	m.Unmap()
	assert.ErrorContains(t, refusal(-1000072003), "the driver refuses this memory")
	assert.ErrorIs(t, refusal(-2), device.ErrOutOfMemory)
	assert.NoError(t, refusal(0))
}

// A lost device may still access imported memory, so neither Release nor Close reports it as free.
func TestLossKeepsMemory(t *testing.T) {
	wantImport(t)
	d := open(t, Options{CacheDir: cacheDir})
	b := alloc(t, d, 4096)
	var blocks [2]device.Buffer
	for i := range blocks {
		m, err := host.Map(d.ImportAlignment(), d.ImportAlignment())
		require.NoError(t, err)
		blocks[i], err = d.Import("block", m.Bytes, func() { t.Error("is said to be free") })
		require.NoError(t, err)
	}
	p, err := d.Transfer(device.Range{Buffer: b, Size: 4096}, device.Range{Buffer: blocks[0], Size: 4096})
	require.NoError(t, err)
	require.NoError(t, d.Write(b, 0, make([]byte, 4))) // for which Release has to wait
	blocks[0].Release()
	lose(d)
	if _, err := p.Wait(); err != nil { // it may have been done before
		assert.EqualError(t, err, `vulkan:0: transfer "b": device lost`)
	}
	_, err = d.Transfer(device.Range{Buffer: b, Size: 4096}, device.Range{Buffer: blocks[1], Size: 4096})
	assert.EqualError(t, err, `vulkan:0: transfer "b": device lost`)
	_, err = d.Import("late", nil, nil)
	assert.ErrorIs(t, err, device.ErrLost)
	blocks[1].Release()
	require.NoError(t, d.Close())
}

// BenchmarkBetweenDevices transfers 4 MB from one device to another, and waits for them.
func BenchmarkBetweenDevices(b *testing.B) {
	wantImport(b)
	const size = 4 << 20
	var ds [2]*Device
	var data, block [2]device.Buffer
	for i := range ds {
		ds[i] = open(b, Options{CacheDir: cacheDir})
		data[i] = alloc(b, ds[i], size)
	}
	m, err := host.Map(size, max(ds[0].ImportAlignment(), ds[1].ImportAlignment()))
	require.NoError(b, err)
	for i, d := range ds {
		block[i], err = d.Import("block", m.Bytes, func() {})
		require.NoError(b, err)
	}
	require.NoError(b, ds[0].Write(data[0], 0, contract.Pattern(size, 0)))
	whole := func(b device.Buffer) device.Range { return device.Range{Buffer: b, Size: size} }
	ways := map[string]func(){
		"staged": func() { require.NoError(b, ds[1].Write(data[1], 0, contract.Read(b, ds[0], data[0], 0, size))) },
		"imported": func() {
			contract.Transfer(b, ds[0], whole(data[0]), whole(block[0]))
			contract.Transfer(b, ds[1], whole(block[1]), whole(data[1]))
		},
	}
	for _, name := range []string{"staged", "imported"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				ways[name]()
				require.NoError(b, ds[1].Sync())
			}
		})
		assert.Equal(b, contract.Pattern(size, 0), contract.Read(b, ds[1], data[1], 0, size))
		require.NoError(b, ds[1].Write(data[1], 0, make([]byte, size)))
	}
}
