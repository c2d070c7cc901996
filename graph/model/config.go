package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Architectures lists the values of Config.Arch.
func Architectures() []string { return []string{"llama"} }

// Config is the shape of a decoder-only transformer of the Llama family, as features. Lengths count elements; SeqLen is
// the longest context. Presets lists the families that are combinations of the features.
type Config struct {
	Arch          string    `yaml:"arch" json:"arch" help:"Architecture."`
	VocabSize     int       `yaml:"vocab_size" json:"vocab_size" help:"Tokens in the vocabulary." default:"the tokenizer's, or a preset's if that is larger"`
	DModel        int       `yaml:"d_model" json:"d_model" help:"Width of the residual stream."`
	NLayers       int       `yaml:"n_layers" json:"n_layers" help:"Number of layers."`
	NHeads        int       `yaml:"n_heads" json:"n_heads" help:"Attention heads."`
	NKVHeads      int       `yaml:"n_kv_heads" json:"n_kv_heads" help:"Heads of keys and values." default:"n_heads"`
	SeqLen        int       `yaml:"seq_len" json:"seq_len" help:"Longest context, in tokens."`
	TieEmbeddings bool      `yaml:"tie_embeddings" json:"tie_embeddings" help:"Use the embedding as the weights of the head, too."`
	Untrained     []int     `yaml:"untrained,flow,omitempty" json:"untrained,omitempty" help:"Tokens without a gradient of their input embedding, as the padding token of transformers." default:"none"`
	ZeroInit      bool      `yaml:"zero_init" json:"zero_init" help:"Initialize the matrices that write into the residual stream with zeros."`
	Norm          Norm      `yaml:"norm,flow" json:"norm" help:"RMS norms."`
	Attention     Attention `yaml:"attention,flow" json:"attention" help:"Attention."`
	FFN           FFN       `yaml:"ffn,flow" json:"ffn" help:"Feed-forward layers."`
	MoE           MoE       `yaml:"moe,flow,omitempty" json:"moe" help:"Mixture of experts in place of the feed-forward layers."`
	Rope          Rope      `yaml:"rope,flow" json:"rope" help:"Rotary position embedding."`
	Logits        Logits    `yaml:"logits,flow" json:"logits" help:"Result of the head."`
}

// Norm places the RMS norms.
type Norm struct {
	Place      string  `yaml:"place" json:"place" help:"Place of a block's norms: pre is x + f(norm(x)), post x + norm(f(x)), both x + norm(f(norm(x)))."`
	QK         string  `yaml:"qk" json:"qk" help:"Norm of queries and keys: of each head, of the full width, or none; before they are rotated, and after that for heads without weights."`
	Weight     bool    `yaml:"weight" json:"weight" help:"Norms have weights. If they have none, neither have those of queries and keys."`
	QKWeight   bool    `yaml:"qk_weight" json:"qk_weight" help:"Norms of queries and keys have weights."`
	Embedding  bool    `yaml:"embedding" json:"embedding" help:"Normalize the embeddings, without a weight."`
	UnitOffset bool    `yaml:"unit_offset" json:"unit_offset" help:"Multiply by 1 + weight; weights begin at 0."`
	Eps        float64 `yaml:"eps" json:"eps" help:"Epsilon of the RMS norms."`
}

// The values of Norm.Place and Norm.QK.
const (
	NormPre  = "pre"
	NormPost = "post"
	NormBoth = "both"

	QKNone = "none"
	QKHead = "head"
	QKFull = "full"
)

// Attention is the shape of attention. Pattern and Rope repeat over the layers.
type Attention struct {
	HeadDim int      `yaml:"head_dim" json:"head_dim" help:"Width of a head." default:"d_model / n_heads"`
	Window  int      `yaml:"window" json:"window" help:"Tokens that a token of a local layer attends to, itself included; 0 is all."`
	Pattern []string `yaml:"pattern,flow,omitempty" json:"pattern,omitempty" help:"Kinds of layers in turn: local has the window, full has none." default:"local in every layer, with a window"`
	Rope    []int    `yaml:"rope,flow,omitempty" json:"rope,omitempty" help:"Whether layers rotate queries and keys, in turn: 1 or 0." default:"1 in every layer"`
}

// The values of Attention.Pattern.
const (
	LocalLayer = "local"
	FullLayer  = "full"
)

// FFN is a dense feed-forward layer.
type FFN struct {
	Kind string `yaml:"kind" json:"kind" help:"Feed-forward layer, of experts too: swiglu is down(silu(gate)·up), geglu the same with gelu's tanh form, relu2 is down(relu(up)²)."`
	DFF  int    `yaml:"d_ff" json:"d_ff" help:"Width of the dense feed-forward layers."`
}

// The values of FFN.Kind.
const (
	SwiGLU = "swiglu"
	GeGLU  = "geglu"
	ReLU2  = "relu2"
)

// MoE is a mixture of experts. The zero value has none.
type MoE struct {
	Experts    int     `yaml:"experts" json:"experts" help:"Routed experts; 0 makes all layers dense."`
	TopK       int     `yaml:"top_k" json:"top_k" help:"Routed experts of a token."`
	DFF        int     `yaml:"d_ff" json:"d_ff" help:"Width of an expert."`
	Shared     int     `yaml:"shared" json:"shared" help:"Experts of every token, as one feed-forward layer of so many times the width."`
	DenseFirst int     `yaml:"dense_first" json:"dense_first" help:"First layers that are dense, of width ffn.d_ff."`
	Score      string  `yaml:"score" json:"score" help:"Scores of experts, from the router's logits." default:"softmax"`
	Normalize  bool    `yaml:"normalize" json:"normalize" help:"Divide the scores of a token's experts by their sum."`
	Scale      float64 `yaml:"scale" json:"scale" help:"Factor on the scores of a token's routed experts; 0 is 1." default:"1"`
	Balance    Balance `yaml:"balance,flow" json:"balance" help:"Balancing of the experts' loads."`
}

// biased reports whether the choice of experts has a bias: always with sigmoid scores, as in published models.
func (m MoE) biased() bool { return m.Score == SigmoidScore || m.Balance.Bias > 0 }

// The values of MoE.Score.
const (
	SoftmaxScore = "softmax"
	SigmoidScore = "sigmoid"
)

// Balance keeps the loads of experts even. 0 turns a method off.
type Balance struct {
	Bias float64 `yaml:"bias" json:"bias" help:"Step of the bias that is added to an expert's score for the choice alone: it rises where the load is below the mean; 0 keeps the bias that sigmoid scores have."`
	// Proportional is omitted where it is false, as in models from before it existed.
	Proportional bool    `yaml:"proportional,omitempty" json:"proportional,omitempty" help:"A step of the bias is balance.bias · (mean − load)/mean, instead of one of the size balance.bias."`
	Aux          float64 `yaml:"aux" json:"aux" help:"Weight of the load-balancing loss: experts · Σ share of tokens · mean score."`
	Z            float64 `yaml:"z" json:"z" help:"Weight of the router's z-loss, the mean square of the logarithm of the sum of exponentials of its logits."`
}

// Rope is the rotary position embedding.
type Rope struct {
	Theta   float64 `yaml:"theta" json:"theta" help:"Base of the rotary position embedding."`
	Scaling Scaling `yaml:"scaling,flow,omitempty" json:"scaling" help:"Scaling of the frequencies for contexts longer than those of an earlier training."`
}

// Scaling is the scaling of rotary frequencies. The zero value has none.
type Scaling struct {
	Kind     string  `yaml:"kind" json:"kind" help:"Rule: linear divides all frequencies by the factor; llama3 and yarn divide low ones, keep high ones, and interpolate between them; yarn does so along the dimensions of a head." default:"none"`
	Factor   float64 `yaml:"factor" json:"factor" help:"Divisor of the frequencies that are scaled."`
	Low      float64 `yaml:"low" json:"low" help:"Turns within the original context below which a frequency is low."`
	High     float64 `yaml:"high" json:"high" help:"Turns within the original context above which a frequency is high."`
	Original int     `yaml:"original" json:"original" help:"Context length of the earlier training."`
	// Attention and Layers are omitted where they are defaults, as in models from before they existed.
	Attention float64 `yaml:"attention,omitempty" json:"attention,omitempty" help:"Factor of yarn on rotated queries and keys." default:"0.1 ln(factor) + 1"`
	Layers    string  `yaml:"layers,omitempty" json:"layers,omitempty" help:"Layers whose frequencies are scaled: all, or the full ones, without a window." default:"all"`
}

// The values of Scaling.Kind and Scaling.Layers.
const (
	LinearScaling = "linear"
	Llama3Scaling = "llama3"
	YaRNScaling   = "yarn"

	AllLayers  = "all"
	FullLayers = "full"
)

// defaultAttention is the default of Attention.
func (s Scaling) defaultAttention() float64 { return yarnAttention(s.Factor, 1) }

// yarnAttention is 0.1·scale·ln(factor) + 1; 1 for factors up to 1.
func yarnAttention(factor, scale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*scale*math.Log(factor) + 1
}

// Logits are the operations on the head's result.
type Logits struct {
	Softcap float64 `yaml:"softcap" json:"softcap" help:"Logits are softcap·tanh(logits/softcap); 0 leaves them as they are."`
}

// Values lists the values of keys that have only these, by key.
func Values() map[string][]string {
	return map[string][]string{
		"arch": Architectures(), "norm.place": {NormPre, NormPost, NormBoth}, "norm.qk": {QKNone, QKHead, QKFull},
		"ffn.kind": {SwiGLU, GeGLU, ReLU2}, "moe.score": {SoftmaxScore, SigmoidScore},
		"rope.scaling.kind":   {LinearScaling, Llama3Scaling, YaRNScaling},
		"rope.scaling.layers": {AllLayers, FullLayers},
	}
}

// Aliases are the keys of earlier versions, and the keys that replace them. Both are read.
func Aliases() map[string]string {
	return map[string]string{"d_ff": "ffn.d_ff", "rope_theta": "rope.theta", "norm_eps": "norm.eps"}
}

// UnmarshalJSON reads an object with the keys of Config or their aliases. Unknown keys are an error; absent ones keep
// their values.
func (c *Config) UnmarshalJSON(data []byte) error {
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &keys); err != nil {
		return err
	}
	aliased := map[string]json.RawMessage{}
	for alias, key := range Aliases() {
		if v, ok := keys[alias]; ok {
			aliased[key] = v
			delete(keys, alias)
		}
	}
	type plain Config
	decode := func(v any) error {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		return d.Decode((*plain)(c))
	}
	if err := decode(keys); err != nil {
		return err
	}
	for key, v := range aliased {
		section, name, _ := strings.Cut(key, ".")
		if err := decode(map[string]any{section: map[string]any{name: v}}); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// Defaults returns the default of every value that has one. Sizes have none.
func Defaults() Config {
	return Config{Arch: "llama", Norm: Norm{Place: NormPre, QK: QKNone, Weight: true, QKWeight: true, Eps: 1e-5}, FFN: FFN{Kind: SwiGLU},
		Rope: Rope{Theta: 10000}}
}

// Completed returns the config with the defaults of keys that depend on others, and without values that are defaults
// anyway, so that equal models have equal configs.
func (c Config) Completed() Config {
	if c.Attention.HeadDim*c.NHeads == c.DModel {
		c.Attention.HeadDim = 0
	}
	if len(c.Untrained) == 0 {
		c.Untrained = nil
	}
	if len(c.Attention.Pattern) == 0 {
		c.Attention.Pattern = nil
	}
	if len(c.Attention.Rope) == 0 {
		c.Attention.Rope = nil
	}
	if c.Rope.Scaling.Layers == AllLayers {
		c.Rope.Scaling.Layers = ""
	}
	if s := c.Rope.Scaling; s.Kind == YaRNScaling && s.Attention == s.defaultAttention() {
		c.Rope.Scaling.Attention = 0
	}
	if c.MoE.Experts > 0 && c.MoE.Score == "" {
		c.MoE.Score = SoftmaxScore
	}
	if c.MoE.Experts > 0 && c.MoE.Scale == 0 {
		c.MoE.Scale = 1
	}
	return c
}

// FieldError is an invalid value of a config's field. A field has its name in YAML. A value from a config.json has its
// key there.
type FieldError = fielderror.Error

// Layer is what one layer computes.
type Layer struct {
	Window int  // of attention, shorter than the context; 0: all tokens
	Rope   bool // queries and keys are rotated
	Scaled bool // by frequencies that are scaled
	MoE    bool // the feed-forward layer is a mixture of experts
	DFF    int  // width of the dense feed-forward layer, or of an expert
}

// like reports whether the feed-forward layers of two layers compute the same, or else their attention.
func (l Layer) like(o Layer, feedForward bool) bool {
	if feedForward {
		return l.MoE == o.MoE && l.DFF == o.DFF
	}
	return l.Window == o.Window && l.Rope == o.Rope && l.Scaled == o.Scaled
}

// Layer returns the properties of layer i.
func (c Config) Layer(i int) Layer {
	a, l := c.Attention, Layer{Window: c.Attention.Window, Rope: true, DFF: c.FFN.DFF}
	if !a.local(i) || l.Window >= c.SeqLen {
		l.Window = 0
	}
	if n := len(a.Rope); n > 0 {
		l.Rope = a.Rope[i%n] != 0
	}
	if s := c.Rope.Scaling; l.Rope && s.Kind != "" {
		l.Scaled = s.Layers != FullLayers || !a.local(i)
	}
	if c.MoE.Experts > 0 && i >= c.MoE.DenseFirst {
		l.MoE, l.DFF = true, c.MoE.DFF
	}
	return l
}

// local reports whether layer i has the window, which may be longer than a sequence.
func (a Attention) local(i int) bool {
	n := len(a.Pattern)
	return a.Window > 0 && (n == 0 || a.Pattern[i%n] == LocalLayer)
}

// Routing lists the layers within units [first, last) that are mixtures of experts.
func (c Config) Routing(first, last int) (layers []int) {
	for u := max(first, 1); u < min(last, c.Units()-1); u++ {
		if layer, feedForward := branch(u); feedForward && c.Layer(layer).MoE {
			layers = append(layers, layer)
		}
	}
	return layers
}

// Experts counts the experts of each mixture of experts.
func (c Config) Experts() int { return c.MoE.Experts }

// SideLosses reports whether mixtures of experts have an auxiliary loss or a z-loss.
func (c Config) SideLosses() bool { return c.MoE.Balance.Aux > 0 || c.MoE.Balance.Z > 0 }

// Size returns the model's lengths.
func (c Config) Size() Size {
	return Size{VocabSize: c.VocabSize, SeqLen: c.SeqLen, DModel: c.DModel, Hidden: c.DModel}
}

// Variables are the variables that hold the data of a microbatch: see Size.Variables.
func (c Config) Variables(in Inputs, batch int) []graph.Named { return c.Size().Variables(in, batch) }

// HeadDim is the width of an attention head.
func (c Config) HeadDim() int {
	if c.Attention.HeadDim > 0 {
		return c.Attention.HeadDim
	}
	return c.DModel / c.NHeads
}

// WithSeqLen returns the model for sequences of another length.
func (c Config) WithSeqLen(seqLen int) (Model, error) {
	c.SeqLen = seqLen
	return c, c.Validate()
}

// Equal reports whether two configs are equal. Empty lists equal absent ones.
func (c Config) Equal(o Config) bool {
	key, _, _ := c.Diff(o)
	return key == ""
}

// Diff returns the first key, in the order of the fields, whose values differ between two configs, with both values.
// Keys of sections have their names, as in "ffn.d_ff". The key is empty if the configs are equal.
func (c Config) Diff(o Config) (key string, left, right any) {
	return firstDifference(differences("", c, o))
}

// diffSection is Diff of two sections of the same type.
func diffSection(section string, left, right any) (key string, l, r any) {
	return firstDifference(differences(section+".", left, right))
}

// difference is a key that two configs have with different values.
type difference struct {
	key         string
	left, right any
}

func firstDifference(ds []difference) (key string, left, right any) {
	if len(ds) == 0 {
		return "", nil, nil
	}
	return ds[0].key, ds[0].left, ds[0].right
}

// differences lists the keys whose values differ between two structs of one type.
func differences(prefix string, left, right any) (ds []difference) {
	l, r := reflect.ValueOf(left), reflect.ValueOf(right)
	for i := range l.NumField() {
		name, _, _ := strings.Cut(l.Type().Field(i).Tag.Get("yaml"), ",")
		a, b := l.Field(i), r.Field(i)
		switch {
		case a.Kind() == reflect.Struct:
			ds = append(ds, differences(prefix+name+".", a.Interface(), b.Interface())...)
		case a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0:
		case !reflect.DeepEqual(a.Interface(), b.Interface()):
			ds = append(ds, difference{prefix + name, a.Interface(), b.Interface()})
		}
	}
	return ds
}
