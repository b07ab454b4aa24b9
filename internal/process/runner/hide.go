package runner

import (
	"encoding/json"
	"io"

	"github.com/perdure/perdure/internal/wire/redact"
)

// hidden is the API key of a runner, in all its forms. A command is not given it, but may have found it: it
// is kept out of the log, the artifacts and the result of the run. The files of the workspace have
// what the command wrote.
type hidden struct{ set *redact.Set }

// hide returns what the output of commands must not have.
func (s *Server) hide() hidden {
	set, err := redact.New([]string{s.Key})
	if err != nil {
		return hidden{} // too short to be a key
	}
	return hidden{set}
}

// json redacts JSON. The key is within texts, and so is what replaces it.
func (h hidden) json(b json.RawMessage) json.RawMessage {
	if !h.set.Has(string(b)) {
		return b
	}
	return json.RawMessage(h.set.String(string(b)))
}

func (h hidden) hold(t redact.Tail, text string) (string, redact.Tail) {
	if h.set == nil {
		return text, ""
	}
	return h.set.Hold(t, text)
}

func (h hidden) release(t redact.Tail) string {
	if h.set == nil || t == "" {
		return ""
	}
	text, _ := h.set.Release(t)
	return text
}

func (h hidden) reader(r io.Reader) io.Reader { return h.set.Reader(r) }
