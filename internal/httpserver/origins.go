package httpserver

import (
	"fmt"
	"net/http"
	"slices"
)

// anyOrigin is the element of Options.Origins that stands for all.
const anyOrigin = "*"

// trusted permits requests of the origins.
func trusted(origins []string) (*http.CrossOriginProtection, error) {
	p := http.NewCrossOriginProtection()
	for _, o := range origins {
		if o == anyOrigin {
			continue
		}
		if err := p.AddTrustedOrigin(o); err != nil {
			return nil, fmt.Errorf("origin: found %q, expected one such as https://chat.example, or *", o)
		}
	}
	return p, nil
}

func (s *Server) anyOrigin() bool { return slices.Contains(s.o.Origins, anyOrigin) }

// permit lets the page of a permitted origin read the response.
func (s *Server) permit(w http.ResponseWriter, r *http.Request) {
	if s.o.Origins == nil {
		return
	}
	w.Header().Add("Vary", "Origin")
	if origin := r.Header.Get("Origin"); origin != "" && (s.anyOrigin() || slices.Contains(s.o.Origins, origin)) {
		w.Header().Set("Access-Control-Allow-Origin", origin)
	}
}

// preflight answers a browser that asks whether a page may send a request. The answer of permit says which pages may.
func preflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if h.Get("Access-Control-Allow-Origin") != "" {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
		if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
			h.Set("Access-Control-Allow-Headers", asked)
		}
		if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
			h.Set("Access-Control-Allow-Private-Network", "true")
		}
		h.Set("Access-Control-Max-Age", "600")
	}
	w.WriteHeader(http.StatusNoContent)
}
