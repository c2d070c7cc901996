// Package serve answers requests of OpenAI's API with a model: completions, chats, and the list of models.
//
// A request becomes one sequence for each of its prompts and choices. A scheduler shares the slots of an
// inference.Batch among all sequences: they join and leave between two tokens. What is computed for a sequence does not
// depend on the others, so a request with a seed, or with temperature 0, has the same answer among any others.
//
//	GET  /                     a page to talk to the model
//	GET  /v1/models            the model
//	POST /v1/completions       continue texts
//	POST /v1/chat/completions  answer a conversation, where the model has a chat template
//	GET  /health               whether the server works
//	GET  /metrics              counters and gauges, as Prometheus reads them
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/inference"
)

// Options configure a Server.
type Options struct {
	Name      string // of the model
	MaxTokens int    // that a request may ask for, for each choice; 0: what fits the model's context
	Queue     int    // sequences that may wait for a slot; 0: DefaultQueue

	KeepAlive time.Duration // between comments in streams; 0: DefaultKeepAlive
}

// DefaultQueue is the default of Options.Queue.
const DefaultQueue = 512

// DefaultKeepAlive is the default of Options.KeepAlive.
const DefaultKeepAlive = 10 * time.Second

// Server is an http.Handler.
type Server struct {
	o         Options
	mux       *http.ServeMux
	scheduler *scheduler
	context   int
	tok       tokenizer.Tokenizer
	encode    func(text []byte) ([]uint32, error)
	created   int64
	template  *chatTemplate // nil: the model has none
	metrics   *metrics
}

// New serves a batch, which the caller closes after the server. It fails if the model's chat template is invalid.
func New(b *inference.Batch, o Options) (*Server, error) {
	src := b.Source()
	o.KeepAlive = cmp.Or(o.KeepAlive, DefaultKeepAlive)
	s := &Server{o: o, context: b.Context(), tok: src.Tokenizer, encode: src.Encode, created: time.Now().Unix()}
	var err error
	if s.template, err = openTemplate(src.Tokenizer.Special()); err != nil {
		return nil, fmt.Errorf("%s: %w", src.Dir, err)
	}
	s.metrics = &metrics{requests: map[string]uint64{}}
	s.scheduler = newScheduler(b, cmp.Or(o.Queue, DefaultQueue), s.metrics.ended)
	s.metrics.scheduler = s.scheduler
	s.mux = s.routes()
	return s, nil
}

// Close ends all requests in progress.
func (s *Server) Close() { s.scheduler.close() }

// Busy returns the number of texts in progress, including texts that wait for a slot.
func (s *Server) Busy() int {
	running, waiting := s.scheduler.counts()
	return running + waiting
}

// Done is closed when no request can be answered any more: after Close, or after an error of the device.
func (s *Server) Done() <-chan struct{} { return s.scheduler.done }

// Err is the error of the device; nil: there was none.
func (s *Server) Err() error {
	err := s.scheduler.failure()
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// Public reports whether a request needs no token: it is for the page or its files, which hold nothing of the model.
func Public(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, "/v1/") && r.URL.Path != "/metrics"
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// routes are the addresses of the server, each with its methods; other methods get status 405.
func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	serve := func(method, path string, h http.Handler) {
		mux.Handle(method+" "+path, s.metrics.counted(path, h))
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			allowed := method
			if method == http.MethodGet {
				allowed += ", " + http.MethodHead
			}
			w.Header().Set("Allow", allowed)
			writeError(w, withStatus(http.StatusMethodNotAllowed, "method_not_allowed", "%s takes %s, found %s", r.URL.Path, allowed,
				r.Method))
		})
	}
	serve("POST", "/v1/completions", http.HandlerFunc(s.completions))
	serve("POST", "/v1/chat/completions", http.HandlerFunc(s.chat))
	serve("GET", "/v1/models", http.HandlerFunc(s.models))
	serve("GET", "/v1/models/{name...}", http.HandlerFunc(s.model))
	serve("GET", "/health", http.HandlerFunc(s.health))
	serve("GET", "/metrics", s.metrics)
	files := pageHandler()
	for _, path := range []string{"/{$}", "/style.css", "/page.js"} {
		serve("GET", path, files)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, withStatus(http.StatusNotFound, "", "there is no %s %s here", r.Method, r.URL.Path))
	})
	return mux
}

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Context int    `json:"max_model_len"` // as vLLM names it
	Chat    bool   `json:"chat_template"` // whether it has one
}

func (s *Server) object() modelObject {
	return modelObject{s.o.Name, "model", s.created, "gpupipe", s.context, s.template != nil}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []modelObject{s.object()}})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if err := s.checkModel(r.PathValue("name")); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, s.object())
}

func (s *Server) checkModel(name string) error {
	if name == s.o.Name {
		return nil
	}
	return withStatus(http.StatusNotFound, "model_not_found", "model: found %q, expected %q", name, s.o.Name).about("model")
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.scheduler.failure(); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// tokens returns the tokens of a prompt.
func (s *Server) tokens(p prompt) ([]uint32, error) {
	if p.ids == nil {
		ids, err := s.encode([]byte(p.text))
		if err != nil {
			return nil, invalid("prompt", "%v", err)
		}
		return ids, nil
	}
	for _, id := range p.ids {
		if int(id) >= s.tok.VocabSize() {
			return nil, invalid("prompt", "found token %d, expected one below %d", id, s.tok.VocabSize())
		}
	}
	return p.ids, nil
}

// limit returns the number of tokens to make after a prompt, which a field of the request has. The last token made
// needs no place in the context.
func (s *Server) limit(field string, prompt int, asked *integer, otherwise int) (int, error) {
	room := s.context - prompt + 1
	if room < 1 {
		return 0, withStatus(http.StatusBadRequest, "context_length_exceeded", "%s of the prompt exceed the context of %s",
			inTokens(prompt), inTokens(s.context)).about(field)
	}
	most := room
	if s.o.MaxTokens > 0 {
		most = min(room, s.o.MaxTokens)
	}
	if asked == nil {
		return min(most, otherwise), nil
	}
	if *asked > integer(room) {
		return 0, withStatus(http.StatusBadRequest, "context_length_exceeded",
			"%s of the prompt and max_tokens %s exceed the context of %s",
			inTokens(prompt), inTokens(int(*asked)), inTokens(s.context)).about("max_tokens")
	}
	if *asked > integer(most) {
		return 0, invalid("max_tokens", "found %d, expected at most %d", *asked, most)
	}
	return int(*asked), nil
}

// sequence makes the sequence of one choice.
func (s *Server) sequence(ctx context.Context, ids []uint32, o settings, most int, seed uint64, scored bool, top int) *sequence {
	return newSequence(ctx, ids, decoding{max: most, isEnd: s.tok.Special().IsEnd, draws: s.tok.VocabSize(),
		sampler: inference.NewSampler(o.sampling(seed)), scored: scored, top: top})
}
