package mockmodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Limits of a handler.
const (
	maxBody     = 64 << 20 // bytes of a request
	maxOpen     = 256      // requests at a time
	maxRecords  = 10_000   // requests that are kept
	maxRecorded = 64 << 20 // bytes of requests that are kept
)

// A Record is a request that the handler has got.
type Record struct {
	// N counts requests from 1.
	N int `json:"n"`
	// Rule is the name of the rule that answered, or its number. It is empty if none did.
	Rule  string `json:"rule,omitempty"`
	Model string `json:"model,omitempty"`
	// Key has the last four characters of the key.
	Key    string `json:"key,omitempty"`
	Stream bool   `json:"stream"`
	Status int    `json:"status,omitempty"`
	// Ended says how the answer ended: "complete", "refused", the name of a fault, "left" if the
	// caller did not wait for its end, or nothing while it has not.
	Ended string `json:"ended,omitempty"`
	// Pieces is how many pieces were sent.
	Pieces int `json:"pieces,omitempty"`
	// Body is the body, or a text if it is no JSON.
	Body json.RawMessage `json:"body"`
}

// A Handler serves a scripted model.
type Handler struct {
	script Script
	open   chan struct{} // has an item for each request under way

	mu       sync.Mutex
	used     []int // how often each rule was used
	count    int
	records  []*Record
	recorded int // bytes of the records' bodies
	// most limits recorded.
	most int
}

// New returns a handler for a script.
func New(s Script) (*Handler, error) {
	s.Rules = slices.Clone(s.Rules)
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if len(s.Models) == 0 {
		s.Models = []string{defaultID}
	}
	return &Handler{script: s, open: make(chan struct{}, maxOpen), used: make([]int, len(s.Rules)),
		most: maxRecorded}, nil
}

// Requests returns the requests for answers so far, the oldest first. Only the last ones are kept.
func (h *Handler) Requests() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Record, len(h.records))
	for i, r := range h.records {
		out[i] = *r
	}
	return out
}

// Reset forgets the requests, and how often rules were used.
func (h *Handler) Reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.used)
	h.records, h.recorded, h.count = nil, 0, 0
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case h.open <- struct{}{}:
		defer func() { <-h.open }()
	default:
		refuse(w, http.StatusServiceUnavailable, "server_error", "overloaded", fmt.Sprintf("more than %d requests",
			maxOpen))
		return
	}
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/chat/completions"):
		h.complete(w, r)
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/models"):
		h.models(w, r)
	case r.URL.Path == "/requests" && !ours(r):
		refuse(w, http.StatusForbidden, "invalid_request_error", "forbidden", "the record is not for web pages")
	case r.Method == http.MethodGet && r.URL.Path == "/requests":
		writeJSON(w, http.StatusOK, h.Requests())
	case r.Method == http.MethodDelete && r.URL.Path == "/requests":
		h.Reset()
		w.WriteHeader(http.StatusNoContent)
	default:
		refuse(w, http.StatusNotFound, "invalid_request_error", "not_found", "there is no "+r.Method+" "+r.URL.Path)
	}
}

// ours tells that a request does not come from a web page, which may have its own name resolve to
// this machine.
func ours(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return r.Header.Get("Origin") == "" && (host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil)
}

// models lists the models.
func (h *Handler) models(w http.ResponseWriter, r *http.Request) {
	if !h.allowed(w, r) {
		return
	}
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := []model{}
	for _, name := range h.script.Models {
		list = append(list, model{name, "model", created, "perdure"})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// key returns the key of a request.
func key(r *http.Request) string {
	k, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return k
}

// allowed checks the key.
func (h *Handler) allowed(w http.ResponseWriter, r *http.Request) bool {
	if h.script.Key == "" || h.script.Key == key(r) {
		return true
	}
	refuse(w, http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", "Incorrect API key provided")
	return false
}

// complete answers a request for a completion.
func (h *Handler) complete(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusRequestEntityTooLarge, "invalid_request_error", "too_large", err.Error())
		return
	}
	q, err := readRequest(body, key(r))
	rec := h.record(q, body)
	refused := func(status int, code, message string) {
		h.end(rec, status, 0, "refused")
		refuse(w, status, "invalid_request_error", code, message)
	}
	if err == nil && !h.script.Lenient {
		err = q.check()
	}
	switch {
	case h.script.Key != "" && h.script.Key != key(r):
		refused(http.StatusUnauthorized, "invalid_api_key", "Incorrect API key provided")
		return
	case err != nil:
		refused(http.StatusBadRequest, "", err.Error())
		return
	case h.script.Context > 0 && q.tokens() > h.script.Context:
		refused(http.StatusBadRequest, "context_length_exceeded", fmt.Sprintf("This model's maximum context length is "+
			"%d tokens. However, your messages resulted in %d tokens. Please reduce the length of the messages.",
			h.script.Context, q.tokens()))
		return
	}
	rule, groups := h.choose(q, rec)
	if rule == nil {
		refused(http.StatusBadRequest, "no_rule",
			fmt.Sprintf("no rule of the script matches this request (last message: %.200q)",
				q.last().text()))
		return
	}
	a := &reply{w: w, ctx: r.Context(), q: q, a: &rule.Answer, groups: groups, status: http.StatusOK}
	// A fault ends the handler with a panic, so the end is recorded here.
	defer func() { h.end(rec, a.status, a.sent, a.ended) }()
	a.write()
}

// record keeps a request. The oldest are dropped when there are too many.
func (h *Handler) record(q *request, body []byte) *Record {
	rec := &Record{Body: body}
	if !json.Valid(body) {
		rec.Body, _ = json.Marshal(strings.ToValidUTF8(string(body), "\ufffd"))
	}
	if q != nil {
		rec.Model, rec.Stream = q.Model, q.Stream
		rec.Key = q.key[max(len(q.key)-4, 0):]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	rec.N = h.count
	h.records = append(h.records, rec)
	h.recorded += len(rec.Body)
	for len(h.records) > 1 && (len(h.records) > maxRecords || h.recorded > h.most) {
		h.recorded -= len(h.records[0].Body)
		h.records = slices.Delete(h.records, 0, 1)
	}
	return rec
}

// end records how an answer has ended.
func (h *Handler) end(rec *Record, status, pieces int, how string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec.Status, rec.Pieces, rec.Ended = status, pieces, how
}

// choose returns the first rule that matches and may be used, and counts its use.
func (h *Handler) choose(q *request, rec *Record) (*Rule, []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.script.Rules {
		r := &h.script.Rules[i]
		if r.Times > 0 && h.used[i] >= r.Times {
			continue
		}
		if groups, ok := r.matches(q); ok {
			h.used[i]++
			if rec.Rule = r.Name; r.Name == "" {
				rec.Rule = fmt.Sprint(i + 1)
			}
			return r, groups
		}
	}
	return nil, nil
}

// refuse writes an error in the form of the API.
func refuse(w http.ResponseWriter, status int, typ, code, message string) {
	body := map[string]any{"message": message, "type": typ, "param": nil, "code": nil}
	if code != "" {
		body["code"] = code
	}
	writeJSON(w, status, map[string]any{"error": body})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may have left
}
