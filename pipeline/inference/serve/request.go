package serve

import (
	"errors"
	"math/rand/v2"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/pipeline/inference"
)

// Limits of requests.
const (
	maxStops       = 16
	maxStopBytes   = 256
	maxTop         = 20
	defaultTokens  = 16 // of a completion, as OpenAI's
	maxPerRequest  = 256
	maxTemperature = 100
)

// settings are the fields that completions and chats share. A field that is neither here nor in the table of neutral
// values is an error: none is accepted and ignored but names of clients.
type settings struct {
	Model         string         `json:"model"`
	MaxTokens     *integer       `json:"max_tokens"`
	Temperature   *float64       `json:"temperature"`
	TopP          *float64       `json:"top_p"`
	TopK          integer        `json:"top_k"` // this and the next two are no fields of OpenAI's
	MinP          float64        `json:"min_p"`
	Repetition    *float64       `json:"repetition_penalty"`
	Frequency     float64        `json:"frequency_penalty"`
	Presence      float64        `json:"presence_penalty"`
	N             *integer       `json:"n"`
	BestOf        *integer       `json:"best_of"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	Stop          stops          `json:"stop"`
	Seed          *integer       `json:"seed"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats"` // as vLLM's: each event has the usage so far
	Obfuscation  bool `json:"include_obfuscation"`    // no event has any
}

type completionRequest struct {
	settings
	Prompt   prompts  `json:"prompt"`
	Echo     bool     `json:"echo"`
	Logprobs *integer `json:"logprobs"`
}

// check refuses values that are out of range or not offered.
func (s *settings) check() error {
	switch {
	case s.Temperature != nil && *s.Temperature > maxTemperature:
		return invalid("temperature", "found %v, expected at most %d", *s.Temperature, maxTemperature)
	case s.MaxTokens != nil && *s.MaxTokens < 0:
		return invalid("max_tokens", "found %d, expected at least 0", *s.MaxTokens)
	case s.Repetition != nil && *s.Repetition <= 0:
		return invalid("repetition_penalty", "found %v, expected a number above 0 and at most 100", *s.Repetition)
	case s.TopK < -1:
		return invalid("top_k", "found %d, expected at least 1, or 0 or -1 for all tokens", s.TopK)
	case s.choices() < 1 || s.choices() > maxPerRequest:
		return invalid("n", "found %d, expected 1 to %d", s.choices(), maxPerRequest)
	case len(s.Stop) > maxStops:
		return invalid("stop", "found %d strings, expected at most %d", len(s.Stop), maxStops)
	case s.BestOf != nil && int(*s.BestOf) != s.choices():
		return invalid("best_of", "found %d, expected %d, as n: the best of more is not offered", *s.BestOf, s.choices())
	case s.StreamOptions != nil && !s.Stream:
		return invalid("stream_options", "expected none unless stream is true")
	}
	for _, stop := range s.Stop {
		if stop == "" || len(stop) > maxStopBytes {
			return invalid("stop", "found a string of %d bytes, expected 1 to %d", len(stop), maxStopBytes)
		}
	}
	var field *fielderror.Error
	if err := s.sampling(0).Validate(); errors.As(err, &field) {
		return invalid(field.Field, "found %s, expected %s", fielderror.Text(field.Found), field.Expected)
	} else if err != nil {
		return err
	}
	return nil
}

func (r *completionRequest) check() error {
	if err := r.settings.check(); err != nil {
		return err
	}
	switch {
	case len(r.Prompt) > maxPerRequest || len(r.Prompt)*r.choices() > maxPerRequest:
		return invalid("prompt", "found %d prompts with %d choices each, expected at most %d texts in all", len(r.Prompt), r.choices(),
			maxPerRequest)
	case r.Logprobs != nil && (*r.Logprobs < 0 || *r.Logprobs > maxTop):
		return invalid("logprobs", "found %d, expected 0 to %d", *r.Logprobs, maxTop)
	}
	return nil
}

func (s *settings) choices() int {
	if s.N == nil {
		return 1
	}
	return int(*s.N)
}

// seed returns the seed of the first choice; the next has the next one.
func (s *settings) seed() uint64 {
	if s.Seed == nil {
		return rand.Uint64()
	}
	return uint64(*s.Seed)
}

// sampling is how tokens are drawn. OpenAI's default temperature is 1.
func (s *settings) sampling(seed uint64) inference.Sampling {
	out := inference.Sampling{Temperature: 1, TopK: max(int(s.TopK), 0), TopP: 1, MinP: s.MinP, Seed: seed,
		Penalties: inference.Penalties{Frequency: s.Frequency, Presence: s.Presence, Repetition: 1}}
	if s.Temperature != nil {
		out.Temperature = *s.Temperature
	}
	if s.TopP != nil {
		out.TopP = *s.TopP
	}
	if s.Repetition != nil {
		out.Penalties.Repetition = *s.Repetition
	}
	return out
}
