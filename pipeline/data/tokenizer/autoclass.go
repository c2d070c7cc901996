package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// This file finds the class of transformers 5.23 that AutoTokenizer takes for a folder.

// Names of classes of transformers.
const (
	llamaClass   = "LlamaTokenizer"
	gemmaClass   = "GemmaTokenizer"
	gpt2Class    = "GPT2Tokenizer"
	neoxClass    = "GPTNeoXTokenizer"
	qwen2Class   = "Qwen2Tokenizer"
	qwen35Class  = "Qwen3_5Tokenizer"
	cohereClass  = "CohereTokenizer"
	codegenClass = "CodeGenTokenizer"
	robertaClass = "RobertaTokenizer"
	bertClass    = "BertTokenizer"
	siglip2Class = "Siglip2Tokenizer"
	backendClass = "TokenizersBackend" // has no rules of its own
)

// sameClasses are other names of classes.
var sameClasses = map[string]string{"Phi3Tokenizer": llamaClass, "PreTrainedTokenizer": backendClass,
	"BartTokenizer": robertaClass, "LEDTokenizer": robertaClass, "LongformerTokenizer": robertaClass, "MvpTokenizer": robertaClass,
	"ElectraTokenizer": bertClass, "LayoutLMTokenizer": bertClass, "LxmertTokenizer": bertClass, "MobileBertTokenizer": bertClass,
	"SqueezeBertTokenizer": bertClass}

// typesOf lists the types of models of each class.
var typesOf = map[string][]string{
	llamaClass:   strings.Fields(`idefics idefics2`),
	gemmaClass:   strings.Fields(`diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma zaya`),
	gpt2Class:    strings.Fields(`blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo jais2 opt phi starcoder2`),
	neoxClass:    strings.Fields(`falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm`),
	qwen35Class:  strings.Fields(`qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp`),
	cohereClass:  strings.Fields(`aya_vision cohere cohere2`),
	siglip2Class: {"siglip2"},
	qwen2Class: strings.Fields(`
audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr moss_transcribe_diarize
ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next
qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice`),
	robertaClass: strings.Fields(`
bart bridgetower clap data2vec-text florence2 ibert led lilt longformer mega mra mvp roberta roberta-prelayernorm`),
	bertClass: strings.Fields(`
align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino layoutlm lxmert
megatron-bert mm-grounding-dino mobilebert nezha nomic_bert qdqbert realm retribert squeezebert tvp vilt visual_bert`),
	backendClass: strings.Fields(`
EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 ernie4_5_moe
flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode
gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm
internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash minicpm3
minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mistral_large4
mixtral modernbert modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3
olmo_hybrid opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts
smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl`),
}

// otherTypes are the types of models whose class is none of typesOf.
var otherTypes = strings.Fields(`
aimv2 albert barthez bartpho bert-generation bert-japanese bertweet big_bird biogpt blenderbot blenderbot-small byt5
camembert canine clip clipseg clvp code_llama cpm cpmant ctrl data2vec-audio deberta deberta-v2 dia dpr esm esmc
esmfold2 fastspeech2_conformer flaubert fnet fsmt funnel gpt-sw3 gpt_neox_japanese granite_speech5_ctc
groupvit gte herbert hubert jina_embeddings_v3 lasr_ctc lasr_encoder layoutlmv2 layoutlmv3 layoutxlm luke 
m2m_100 marian markuplm mbart mbart50 metaclip_2 mgp-str mluke mpnet mt5 musicgen musicgen_melody myt5
nemotron3_5_asr nemotron_asr_streaming nllb nllb-moe nougat omdet-turbo oneformer openai-gpt owlv2 owlvit parakeet_ctc
parakeet_rnnt parakeet_tdt pegasus perceiver phobert plbart pp_formulanet prophetnet rag reformer rembert roc_bert
roformer sam3 sam3_video seamless_m4t seamless_m4t_v2 siglip speech_to_text speecht5 splinter switch_transformers t5
tapas tipsv2 trocr udop unispeech unispeech-sat videoprism vits wav2vec2 wav2vec2-bert wav2vec2-conformer
wav2vec2_phoneme whisper xclip xglm xlm xlm-roberta xlnet xmod yoso`)

// fixedTypes are types of models whose class does not depend on the one that a folder names, besides the types of
// backendClass.
var fixedTypes = strings.Fields(`hyperclovax_vision_v2 qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp siglip2`)

// foundClass is the class of a folder.
type foundClass struct {
	name      string // without "Fast"; "": it is not known
	named     bool   // the folder names a class, which may be another one
	modelType string
	ownCode   bool // it is code of the folder
}

// hasParts reports whether a class has parts of its own, or may have them.
func (c foundClass) hasParts() bool {
	_, known := jsonClasses[c.name]
	return known || c.name == "" || slices.Contains(otherClasses, c.name)
}

// findClass finds the class of a folder. byteLevel: its tokenizer.json has a part ByteLevel.
func findClass(folder string, byteLevel bool) (c foundClass, err error) {
	var named, ofModel struct {
		Class   *string         `json:"tokenizer_class"`
		Type    *string         `json:"model_type"`
		AutoMap json.RawMessage `json:"auto_map"`
	}
	if err := readInto(filepath.Join(folder, ConfigFile), &named); err != nil {
		return c, err
	}
	if err := readInto(filepath.Join(folder, modelFileName), &ofModel); err != nil {
		return c, err
	}
	c.name, c.modelType = strings.TrimSuffix(cmp.Or(deref(named.Class), deref(ofModel.Class)), "Fast"), deref(ofModel.Type)
	c.named = c.name != ""
	switch {
	case !isNull(named.AutoMap): // a class of transformers goes before code of the folder
		c.ownCode = c.name == ""
	case slices.Contains(typesOf[backendClass], c.modelType):
		c.name = backendClass
	case slices.Contains(fixedTypes, c.modelType), c.name == "":
		c.name = typesClass(c.modelType)
	case c.name == llamaClass && byteLevel:
		c.name = backendClass
	}
	c.name = cmp.Or(sameClasses[c.name], c.name)
	return c, nil
}

// typesClass is the class of a type of models; "": it is not known.
func typesClass(modelType string) string {
	for class, types := range typesOf {
		if slices.Contains(types, modelType) {
			return class
		}
	}
	if slices.Contains(otherTypes, modelType) {
		return ""
	}
	return backendClass
}

// classConfig is what tokenizer_config.json says to a class.
type classConfig struct {
	Legacy      bool  `json:"legacy"` // null is false
	PrefixSpace *bool `json:"add_prefix_space"`
	LowerCase   *bool `json:"do_lower_case"`
	Chinese     *bool `json:"tokenize_chinese_chars"`
	StripMarks  *bool `json:"strip_accents"`

	unknown string // the text of unk_token
}

// readClassConfig reads what tokenizer_config.json says to a class.
func readClassConfig(path string) (c classConfig, err error) {
	err = readInto(path, &c)
	return c, err
}

// is is the value of a flag.
func is(flag *bool, unlessSet bool) bool {
	if flag == nil {
		return unlessSet
	}
	return *flag
}

// readInto reads a file that holds a JSON object, if there is one.
func readInto(path string, to any) error {
	fields, err := readObject(path)
	if err != nil || fields == nil {
		return err
	}
	data, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, jsonError(err))
	}
	return nil
}

// isByteLevel reports what transformers takes for a part ByteLevel in a tokenizer.json.
func isByteLevel(data []byte) bool { return bytes.Contains(data, []byte(`"ByteLevel"`)) }
