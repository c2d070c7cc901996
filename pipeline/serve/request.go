package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"

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

// settings are the fields that completions and chats share. Fields of OpenAI's API that are not here are errors: none
// is accepted and ignored but User.
type settings struct {
	Model         string         `json:"model"`
	MaxTokens     *int           `json:"max_tokens"`
	Temperature   *float64       `json:"temperature"`
	TopP          *float64       `json:"top_p"`
	TopK          int            `json:"top_k"` // no field of OpenAI's
	N             *int           `json:"n"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	Stop          stops          `json:"stop"`
	Seed          *int64         `json:"seed"`
	User          string         `json:"user"`

	// These are accepted where they change nothing.
	FrequencyPenalty float64            `json:"frequency_penalty"`
	PresencePenalty  float64            `json:"presence_penalty"`
	LogitBias        map[string]float64 `json:"logit_bias"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type completionRequest struct {
	settings
	Prompt   prompts `json:"prompt"`
	Echo     bool    `json:"echo"`
	Logprobs *int    `json:"logprobs"`
	BestOf   *int    `json:"best_of"`
	Suffix   *string `json:"suffix"`
}

// stops is a string or a list of them.
type stops []string

func (s *stops) UnmarshalJSON(text []byte) error {
	var one *string
	if err := json.Unmarshal(text, &one); err == nil {
		if *s = nil; one != nil {
			*s = stops{*one}
		}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(s))
}

// prompts is a text, a list of texts, a list of tokens, or a list of lists of tokens. A prompt is a text or tokens.
type prompts []prompt

type prompt struct {
	text string
	ids  []uint32 // nil: the text is to be encoded
}

func (p *prompts) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*p = prompts{{text: one}}
		return nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return errors.New("prompt: expected a string, a list of strings, a list of tokens, or a list of lists of tokens")
	}
	var ids []uint32
	if len(parts) > 0 && json.Unmarshal(text, &ids) == nil {
		*p = prompts{{ids: ids}}
		return nil
	}
	all := make(prompts, len(parts))
	for i, part := range parts {
		if bytes.HasPrefix(part, []byte(`"`)) {
			if err := json.Unmarshal(part, &all[i].text); err != nil {
				return err
			}
			continue
		}
		if err := json.Unmarshal(part, &all[i].ids); err != nil || len(all[i].ids) == 0 {
			return fmt.Errorf("prompt[%d]: expected a string or a list of tokens", i)
		}
	}
	*p = all
	return nil
}

// decode reads a request's body, which must be one JSON object of known fields.
func decode(r *http.Request, into any) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		return withStatus(http.StatusUnsupportedMediaType, "", "the header Content-Type: found %q, expected application/json", kind)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return invalid("", "the body: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("", "the body: expected one JSON object")
	}
	return nil
}

// check refuses values that are out of range or not offered.
func (s *settings) check() error {
	switch {
	case s.FrequencyPenalty != 0:
		return invalid("frequency_penalty", "found %v, expected 0: penalties are not offered", s.FrequencyPenalty)
	case s.PresencePenalty != 0:
		return invalid("presence_penalty", "found %v, expected 0: penalties are not offered", s.PresencePenalty)
	case len(s.LogitBias) > 0:
		return invalid("logit_bias", "found %s, expected none: biases are not offered", plural(len(s.LogitBias), "token"))
	case s.Temperature != nil && *s.Temperature > maxTemperature:
		return invalid("temperature", "found %v, expected at most %d", *s.Temperature, maxTemperature)
	case s.MaxTokens != nil && *s.MaxTokens < 0:
		return invalid("max_tokens", "found %d, expected at least 0", *s.MaxTokens)
	case s.choices() < 1 || s.choices() > maxPerRequest:
		return invalid("n", "found %d, expected 1 to %d", s.choices(), maxPerRequest)
	case len(s.Stop) > maxStops:
		return invalid("stop", "found %d strings, expected at most %d", len(s.Stop), maxStops)
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
		return invalid("prompt", "found %d prompts with %d choices each, expected at most %d texts in all", len(r.Prompt), r.choices(), maxPerRequest)
	case r.Logprobs != nil && (*r.Logprobs < 0 || *r.Logprobs > maxTop):
		return invalid("logprobs", "found %d, expected 0 to %d", *r.Logprobs, maxTop)
	case r.BestOf != nil && *r.BestOf != r.choices():
		return invalid("best_of", "found %d, expected %d, as n: the best of more is not offered", *r.BestOf, r.choices())
	case r.Suffix != nil && *r.Suffix != "":
		return invalid("suffix", "found %.40q, expected none: to insert into a text is not offered", *r.Suffix)
	}
	return nil
}

func (s *settings) choices() int {
	if s.N == nil {
		return 1
	}
	return *s.N
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
	out := inference.Sampling{Temperature: 1, TopK: s.TopK, TopP: 1, Seed: seed}
	if s.Temperature != nil {
		out.Temperature = *s.Temperature
	}
	if s.TopP != nil {
		out.TopP = *s.TopP
	}
	return out
}
