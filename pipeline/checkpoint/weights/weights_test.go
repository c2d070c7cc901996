package weights_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	norm = "model.norm.weight" // a parameter of the demo, of shape [8]
	head = "lm_head.weight"
)

// numbered returns a tensor whose elements count up from a number.
func numbered(name string, shape graph.Shape, from float32) safetensors.Entry {
	x := make([]float32, shape.Len())
	for i := range x {
		x[i] = from + float32(i)
	}
	return safetensors.Entry{Name: name, DType: safetensors.F32, Shape: shape, Data: exec.F32Bytes(x)}
}

// parameters returns the tensors of a file with a model's parameters.
func parameters(c config.Config) (all []safetensors.Entry) {
	for i, p := range c.Model.Parameters() {
		all = append(all, numbered(p.Name, p.Type.Shape, float32(1000*i)))
	}
	return all
}

// written writes tensors to a file.
func written(t *testing.T, tensors []safetensors.Entry) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, safetensors.Write(path, tensors))
	return path
}

func TestRandom(t *testing.T) {
	m := traintest.Demo(t, t.TempDir()).Model
	a, again, other := weights.Random(m.Config, 1), weights.Random(m.Config, 1), weights.Random(m.Config, 2)
	for _, p := range m.Parameters() {
		x, err := a.Initial(p)
		require.NoError(t, err)
		assert.Len(t, x, p.Type.Shape.Len(), p.Name)
		same, err := again.Initial(p)
		require.NoError(t, err)
		assert.Equal(t, x, same, p.Name)
		if p.Name == head {
			different, err := other.Initial(p)
			require.NoError(t, err)
			assert.NotEqual(t, x, different, "of another seed")
		}
	}
	require.NoError(t, a.Close())
	require.NoError(t, (*weights.Source)(nil).Close())
}

// uploads records what is written to a session.
type uploads struct {
	engine.Session
	data map[string][]byte
}

func (u uploads) WriteAt(variable string, _ exec.Binding, data []byte) error {
	u.data[variable] = data
	return nil
}

// The parameters of a file reach a session byte for byte. Tensors that other programs add are ignored.
func TestOpenAndUpload(t *testing.T) {
	for _, tied := range []bool{false, true} {
		c := traintest.Demo(t, t.TempDir())
		c.Model.TieEmbeddings = tied
		all := parameters(c)
		extra := []safetensors.Entry{numbered("model.layers.0.self_attn.rotary_emb.inv_freq", graph.Shape{2}, 0)}
		if tied {
			extra = append(extra, numbered(head, graph.Shape{256, 8}, 0))
		}
		s, err := weights.Open(written(t, slices.Concat(all, extra)), c.Model.Config)
		require.NoError(t, err)
		u := uploads{data: map[string][]byte{}}
		require.NoError(t, s.Upload(u))
		require.Len(t, u.data, len(all))
		for _, x := range all {
			assert.Equal(t, x.Data, u.data[x.Name], x.Name)
		}
		require.NoError(t, s.Close())
	}
}

// Each tensor that does not fit the model is named with what was found and what was expected.
func TestOpenRefuses(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	index := slices.IndexFunc(c.Model.Parameters(), func(p model.Parameter) bool { return p.Name == norm })
	for want, change := range map[string]func([]safetensors.Entry) []safetensors.Entry{
		`tensor "model.norm.weight" is missing, expected f32[8]`: func(all []safetensors.Entry) []safetensors.Entry {
			return slices.Delete(all, index, index+1)
		},
		`tensor "model.norm.weight" has shape [9], expected [8]`: func(all []safetensors.Entry) []safetensors.Entry {
			all[index] = numbered(norm, graph.Shape{9}, 0)
			return all
		},
		`tensor "model.norm.weight" is I32, expected one of F64, F32, F16, BF16`: func(all []safetensors.Entry) []safetensors.Entry {
			all[index].DType = safetensors.I32
			return all
		},
		`tensor "model.norm.bias" ([8]) belongs to no parameter of this model`: func(all []safetensors.Entry) []safetensors.Entry {
			return append(all, numbered("model.norm.bias", graph.Shape{8}, 0))
		},
	} {
		path := written(t, change(parameters(c)))
		_, err := weights.Open(path, c.Model.Config)
		assert.EqualError(t, err, path+": "+want)
	}
	_, err := weights.Open(filepath.Join(t.TempDir(), "none.safetensors"), c.Model.Config)
	assert.ErrorContains(t, err, "none.safetensors")
}

// A value that is not finite is found when its tensor is read.
func TestValuesThatAreNotFinite(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	all := parameters(c)
	i := slices.IndexFunc(all, func(e safetensors.Entry) bool { return e.Name == norm })
	copy(all[i].Data[4*5:], []byte{0, 0, 0x80, 0xff}) // -Inf as f32
	path := written(t, all)
	s, err := weights.Open(path, c.Model.Config)
	require.NoError(t, err)
	err = s.Upload(uploads{data: map[string][]byte{}})
	assert.EqualError(t, err, path+`: tensor "model.norm.weight": element 5 is -Inf, expected finite numbers`)
	require.NoError(t, s.Close())
}

// A folder of few tensors is refused quickly for a model of very many.
func TestOpenOfAModelOfManyTensors(t *testing.T) {
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.SeqLen, c.Norm.QK = 8, 4, 4096, 1, 1, 8, model.QKFull
	c.MoE = model.MoE{Experts: 4096, TopK: 1, DFF: 1, Score: model.SoftmaxScore, Scale: 1}
	_, err := weights.Open(written(t, []safetensors.Entry{numbered(norm, graph.Shape{4}, 0)}), c)
	assert.ErrorContains(t, err, "is missing, expected f32[8,4]")
}

// delayed is the demo with a delay and error feedback, and its optimizer.
func delayed(t *testing.T) (config.Config, *optim.Optimizer) {
	t.Helper()
	c := traintest.Demo(t, t.TempDir(), "pipeline.delay=1", "pipeline.correction=error_feedback")
	o, err := layout.NewOptimizer(c, c.Model.Config, nil)
	require.NoError(t, err)
	return c, o
}

// saved saves a checkpoint of the demo after one step. change may change the tensors of its optimizer.
func saved(t *testing.T, c config.Config, o *optim.Optimizer, change func([]checkpoint.Tensor) []checkpoint.Tensor) *checkpoint.Checkpoint {
	t.Helper()
	tensor := func(e safetensors.Entry) checkpoint.Tensor {
		return checkpoint.Tensor{Name: e.Name, DType: e.DType, Shape: e.Shape, Data: func() ([]byte, error) { return e.Data, nil }}
	}
	contents := checkpoint.Contents{Step: 1, Config: map[string]any{}, State: map[string]any{}}
	for _, x := range parameters(c) {
		contents.Model = append(contents.Model, tensor(x))
	}
	for _, v := range o.State() {
		x := numbered(v.ID, v.Type.Shape, 0.5)
		if v.Type.DType != graph.F32 {
			x.DType = safetensors.U32
		}
		contents.Optimizer = append(contents.Optimizer, tensor(x))
	}
	for _, p := range c.Model.Parameters() {
		contents.Optimizer = append(contents.Optimizer, tensor(numbered(weights.Pending.Tensor(p.Name), p.Type.Shape, 7)))
	}
	contents.Optimizer = change(contents.Optimizer)
	store, err := checkpoint.NewStore(t.TempDir(), checkpoint.Options{})
	require.NoError(t, err)
	out, err := store.Save(contents)
	require.NoError(t, err)
	return out
}

func unchanged(all []checkpoint.Tensor) []checkpoint.Tensor { return all }

// without removes a tensor.
func without(name string) func([]checkpoint.Tensor) []checkpoint.Tensor {
	return func(all []checkpoint.Tensor) []checkpoint.Tensor {
		return slices.DeleteFunc(all, func(x checkpoint.Tensor) bool { return x.Name == name })
	}
}

// noPending removes the pending weights, which only delayed runs have.
func noPending(all []checkpoint.Tensor) []checkpoint.Tensor {
	return slices.DeleteFunc(all, func(x checkpoint.Tensor) bool { return strings.HasPrefix(x.Name, weights.Pending.Tensor("")) })
}

// A checkpoint of a delayed run has the current weights x_t. The settled weights are those of the next step, with the
// update that error feedback adds in advance taken out.
func TestFromCheckpoint(t *testing.T) {
	c, o := delayed(t)
	delayedRun := saved(t, c, o, unchanged)
	s, err := weights.FromCheckpoint(delayedRun, c.Model.Config, o, weights.Pending)
	require.NoError(t, err)
	for i, p := range c.Model.Parameters() {
		x, err := s.Initial(p)
		require.NoError(t, err)
		assert.Equal(t, float32(1000*i), x[0], p.Name)
	}
	require.NoError(t, s.Close())

	s, err = weights.Open(delayedRun.Dir, c.Model.Config)
	require.NoError(t, err)
	require.NoError(t, s.Settle(delayedRun, o, weights.Pending))
	for _, p := range c.Model.Parameters() {
		x, err := s.Initial(p)
		require.NoError(t, err)
		assert.Equal(t, []float32{7.5, 9.5}, x[:2], "%s: pending 7, 8 and last update 0.5, 1.5", p.Name)
	}
	require.NoError(t, s.Close())
}

// If only some microbatches are stale, the evaluated weights are the newest, and the settled weights are made from
// them.
func TestFromCheckpointOfAPartlyStaleRun(t *testing.T) {
	c, o := delayed(t)
	run := saved(t, c, o, func(all []checkpoint.Tensor) []checkpoint.Tensor {
		for i, x := range all {
			if param, pending := strings.CutPrefix(x.Name, weights.Pending.Tensor("")); pending {
				all[i].Name = weights.Previous.Tensor(param)
			}
		}
		return all
	})
	for _, second := range []weights.Second{weights.Previous, weights.Pending} { // a run may take the other kind
		s, err := weights.FromCheckpoint(run, c.Model.Config, o, second)
		require.NoError(t, err)
		written := versions{}
		require.NoError(t, s.UploadPipeline(written, second))
		assert.NotEmpty(t, written[engine.Newest])
		assert.Equal(t, len(c.Model.Parameters()), len(written[engine.Older]))
		read, err := weights.Open(run.Dir, c.Model.Config)
		require.NoError(t, err)
		for _, p := range c.Model.Parameters() {
			newest, err := read.Initial(p)
			require.NoError(t, err)
			assert.Equal(t, exec.F32Bytes(newest), written[engine.Newest][p.Name], "the model's file has the newest weights")
		}
		require.NoError(t, errors.Join(s.Close(), read.Close()))
	}

	s, err := weights.Open(run.Dir, c.Model.Config)
	require.NoError(t, err)
	require.NoError(t, s.Settle(run, o, weights.Previous))
	for i, p := range c.Model.Parameters() {
		x, err := s.Initial(p)
		require.NoError(t, err)
		newest := float32(1000 * i)
		assert.Equal(t, []float32{newest + 0.5, newest + 2.5}, x[:2], "%s: last update 0.5, 1.5", p.Name)
	}
	require.NoError(t, s.Close())
}

// versions are the weights that were uploaded to a pipeline.
type versions map[engine.Version]map[string][]byte

func (v versions) WriteWeights(param string, at engine.Version, data []byte) error {
	if v[at] == nil {
		v[at] = map[string][]byte{}
	}
	v[at][param] = data
	return nil
}

func (v versions) WriteState(string, []byte) error { return nil }

func TestFromCheckpointRefuses(t *testing.T) {
	c, o := delayed(t)
	pending := weights.Pending.Tensor(norm)
	lacking := saved(t, c, o, without(pending))
	_, err := weights.FromCheckpoint(lacking, c.Model.Config, o, weights.Pending)
	assert.EqualError(t, err, lacking.Dir+`: tensor "pending/model.norm.weight" is missing, expected f32[8]`)
	s, err := weights.FromCheckpoint(saved(t, c, o, noPending), c.Model.Config, o, weights.OneVersion)
	require.NoError(t, err, "without a delay no weights are pending")
	require.NoError(t, s.Close())

	whole := saved(t, c, o, unchanged)
	_, err = weights.FromCheckpoint(whole, c.Model.Config, o, weights.OneVersion)
	assert.ErrorContains(t, err, "belongs to no parameter of this model")
	other := c.Model.Config
	other.DModel *= 2
	_, err = weights.FromCheckpoint(whole, other, o, weights.Pending)
	assert.ErrorContains(t, err, "has shape ")

	bad := saved(t, c, o, without(o.Ahead(norm)))
	s, err = weights.Open(bad.Dir, c.Model.Config)
	require.NoError(t, err)
	assert.EqualError(t, s.Settle(bad, o, weights.Pending), bad.Dir+`: tensor "`+o.Ahead(norm)+`" is missing, expected f32[8]`)
	require.NoError(t, s.Close())
}

// A checkpoint from before the variable of the initialization step existed can be opened.
func TestCheckpointWithoutInitialized(t *testing.T) {
	c := traintest.Demo(t, t.TempDir(), "optimizer.name=soap", "train.nonfinite=skip")
	o, err := layout.NewOptimizer(c, c.Model.Config, nil)
	require.NoError(t, err)
	require.True(t, o.TracksInitialization())
	old := saved(t, c, o, func(all []checkpoint.Tensor) []checkpoint.Tensor {
		return without(optim.InitializedVariable)(noPending(all))
	})
	s, err := weights.FromCheckpoint(old, c.Model.Config, o, weights.OneVersion)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// stacked is a mixture of experts with a class of transformers.
func stacked() model.Config {
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.SeqLen = 5, 4, 2, 2, 1, 8
	c.MoE = model.MoE{Experts: 3, TopK: 1, DFF: 2, Shared: 1, Score: model.SigmoidScore, Scale: 1}
	return c
}

// A file may have experts stacked, apart, or with gates and ups together.
func TestEveryNamingIsRead(t *testing.T) {
	c := stacked()
	require.Len(t, c.Namings(), 3)
	for i, naming := range c.Namings() {
		tensors := map[string][]float32{}
		shapes := map[string]graph.Shape{}
		for _, p := range c.Parameters() {
			x := p.Initial(7)
			for _, to := range naming.Tensors(p) {
				if tensors[to.Name] == nil {
					tensors[to.Name], shapes[to.Name] = make([]float32, to.Shape.Len()), to.Shape
				}
				for _, piece := range to.Pieces {
					copy(tensors[to.Name][piece.From:], x[piece.To:piece.To+piece.Len])
				}
			}
		}
		var entries []safetensors.Entry
		for name, x := range tensors {
			entries = append(entries, safetensors.Entry{Name: name, DType: safetensors.F32, Shape: shapes[name], Data: exec.F32Bytes(x)})
		}
		s, err := weights.Open(written(t, entries), c)
		require.NoError(t, err, "naming %d", i)
		for _, p := range c.Parameters() {
			x, err := s.Initial(p)
			require.NoError(t, err)
			assert.Equal(t, p.Initial(7), x, "naming %d: %s", i, p.Name)
		}
		require.NoError(t, s.Close())
		missing := slices.DeleteFunc(entries, func(e safetensors.Entry) bool { return strings.Contains(e.Name, "layers.1.mlp.experts") })
		_, err = weights.Open(written(t, missing), c)
		assert.ErrorContains(t, err, `tensor "model.layers.1.mlp.experts`)
	}
}

// Transformers saves the tensors of no shared experts, which have no elements.
func TestEmptyTensors(t *testing.T) {
	c := stacked()
	c.MoE.Shared = 0
	const name = "model.layers.1.mlp.shared_experts.up_proj.weight"
	entries := parameters(config.Config{Model: config.Model{Config: c}})
	s, err := weights.Open(written(t, append(entries, safetensors.Entry{Name: name, DType: safetensors.F32, Shape: graph.Shape{0, 4}})), c)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = weights.Open(written(t, append(entries, safetensors.Entry{Name: name, DType: safetensors.F32, Shape: graph.Shape{1, 4},
		Data: make([]byte, 16)})), c)
	assert.ErrorContains(t, err, `tensor "`+name+`" ([1,4]) belongs to no parameter of this model`)
}

// A file with the balancing biases of some layers only is damaged.
func TestSomeBalancingBiasesAreNotEnough(t *testing.T) {
	c := stacked()
	entries := parameters(config.Config{Model: config.Model{Config: c}})
	entries = slices.DeleteFunc(entries, func(e safetensors.Entry) bool { return e.Name == "model.layers.1.mlp.gate.e_score_correction_bias" })
	_, err := weights.Open(written(t, entries), c)
	assert.ErrorContains(t, err, `tensor "model.layers.1.mlp.gate.e_score_correction_bias" is missing`)
}

// Weights of a model without balancing biases start one with them.
func TestMissingBalancingBiasesAreZero(t *testing.T) {
	c := stacked()
	c.MoE.Score = model.SoftmaxScore
	entries := parameters(config.Config{Model: config.Model{Config: c}})
	c.MoE.Balance.Bias = 1e-3
	s, err := weights.Open(written(t, entries), c)
	require.NoError(t, err)
	for _, p := range c.Parameters() {
		x, err := s.Initial(p)
		require.NoError(t, err)
		assert.Equal(t, p.Role == model.BalancingBias, slices.Max(x) == 0, p.Name)
	}
	require.NoError(t, s.Close())
}
