package data

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rowsOf is a tensor whose elements are ten times their row plus their column.
func rowsOf(name string, d safetensors.DType, shape ...int) safetensors.Entry {
	n := 1
	for _, x := range shape {
		n *= x
	}
	var b []byte
	for i := range n {
		v := uint32(i/(n/shape[0])*10 + i%(n/shape[0]))
		if d == safetensors.F32 {
			v = math.Float32bits(float32(v))
		}
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return safetensors.Entry{Name: name, DType: d, Shape: shape, Data: b}
}

func tensors(t testing.TB, entries ...safetensors.Entry) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "aligned.safetensors")
	require.NoError(t, safetensors.Write(path, entries))
	return path
}

// Rows are cut and shuffled as tokens are. Each token is the number of its row, so the two can be compared.
func TestAlignedRowsFollowTheTokens(t *testing.T) {
	text := write(t, "a.txt", words(300)[:300])
	path := tensors(t, rowsOf("teacher", safetensors.F32, 300, 2), rowsOf("ids", safetensors.U32, 300))
	more := tensors(t, rowsOf("deep", safetensors.I32, 300, 2, 3))
	train, val, err := load(t, Options{Train: []string{text}, ValFraction: 0.2, SeqLen: 7, Vocab: 256, Tokenizer: byteTok{},
		Aligned: []string{path, more}})
	require.NoError(t, err)
	b := batcher(t, train, BatchConfig{SeqLen: 7, BatchSize: 3, Shuffle: true, Seed: 5})
	names := ""
	for _, a := range b.Aligned() {
		names += fmt.Sprint(a.Name, a.DType, a.Shape, a.Bytes(), " ")
	}
	assert.Equal(t, "deepI32[2 3] 24 idsU32[] 4 teacherF32[2] 8 ", names)
	for step := range int64(20) { // more than an epoch
		rows, err := b.AlignedBatch(step)
		require.NoError(t, err)
		require.Len(t, rows, 3)
		for row := range 3 {
			for i := range 7 {
				position, at := int(b.Window(step, row))*7+i, row*7+i
				assert.EqualValues(t, 10*position, binary.LittleEndian.Uint32(rows[1][4*at:]))
				for j := range 6 {
					assert.EqualValues(t, 10*position+j, binary.LittleEndian.Uint32(rows[0][24*at+4*j:]))
				}
				assert.Equal(t, float32(10*position+1), math.Float32frombits(binary.LittleEndian.Uint32(rows[2][8*at+4:])))
			}
		}
	}
	assert.Empty(t, batcher(t, val, BatchConfig{SeqLen: 7, BatchSize: 1}).Aligned())
}

// A resumed run needs the tensors that it had. Their files may have moved.
func TestAlignedTensorsResume(t *testing.T) {
	text := write(t, "a.txt", words(300)[:300])
	open := func(files ...string) *Batcher {
		train, _, err := load(t, Options{Train: []string{text}, SeqLen: 7, Vocab: 256, Tokenizer: byteTok{}, Aligned: files})
		require.NoError(t, err)
		return batcher(t, train, BatchConfig{SeqLen: 7, BatchSize: 3})
	}
	was := open(tensors(t, rowsOf("x", safetensors.U32, 300))).Position(4)
	_, err := open(tensors(t, rowsOf("x", safetensors.U32, 300))).Resume(was, was.BatchSize)
	assert.NoError(t, err)
	for _, other := range [][]string{nil, {tensors(t, rowsOf("y", safetensors.U32, 300))},
		{tensors(t, rowsOf("x", safetensors.I32, 300))}, {tensors(t, rowsOf("x", safetensors.F32, 300))}} {
		_, err := open(other...).Resume(was, was.BatchSize)
		assert.ErrorContains(t, err, "the checkpoint's data differ: the hash of the aligned tensors was sha256:")
	}
}

func TestAlignedTensorsThatAreRefused(t *testing.T) {
	text := write(t, "a.txt", words(300)[:300])
	x := rowsOf("x", safetensors.U32, 300)
	for want, files := range map[string][]string{
		`tensor "x": it has 299 rows, expected 300, one for each training token`: {tensors(t, rowsOf("x", safetensors.U32, 299))},
		`tensor "x": its dtype is I64, expected F32, I32 or U32`: {tensors(t, safetensors.Entry{Name: "x", DType: safetensors.I64,
			Shape: []int{300}, Data: make([]byte, 2400)})},
		`its shape is [300 1 1 1], expected 1 to 3 extents`:   {tensors(t, rowsOf("x", safetensors.U32, 300, 1, 1, 1))},
		`its shape is [300 0]: it is empty`:                   {tensors(t, safetensors.Entry{Name: "x", DType: safetensors.F32, Shape: []int{300, 0}})},
		`tensor "x/y": expected a name of at most 64 letters`: {tensors(t, rowsOf("x/y", safetensors.U32, 300))},
		"has one of this name":                                {tensors(t, x), tensors(t, x)},
		"no such file":                                        {"none.safetensors"},
		"a.txt":                                               {text},
		"33 tensors, at most 32 ":                             {tensors(t, many(33)...)},
	} {
		_, _, err := load(t, Options{Train: []string{text}, SeqLen: 7, Vocab: 256, Tokenizer: byteTok{}, Aligned: files})
		require.Error(t, err, want)
		assert.True(t, strings.HasPrefix(err.Error(), "aligned: "), err)
		assert.ErrorContains(t, err, want)
	}
}

func many(n int) (all []safetensors.Entry) {
	for i := range n {
		all = append(all, rowsOf(fmt.Sprint("x", i), safetensors.U32, 300))
	}
	return all
}

// A file that is truncated while a run reads it is an error that names the file.
func TestAlignedFileThatIsCut(t *testing.T) {
	text := write(t, "a.txt", words(300)[:300])
	path := tensors(t, rowsOf("x", safetensors.U32, 300))
	train, _, err := load(t, Options{Train: []string{text}, SeqLen: 7, Vocab: 256, Tokenizer: byteTok{}, Aligned: []string{path}})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 200))
	_, err = batcher(t, train, BatchConfig{SeqLen: 7, BatchSize: 40}).AlignedBatch(0)
	assert.ErrorContains(t, err, path+`: tensor "x": rows from `)
	assert.ErrorContains(t, err, "unexpected EOF")
}
