package body

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/perdure/perdure"
)

// Bodies are read kindly, because other servers read them so: unknown fields are ignored, and the
// Content-Type may be anything. The bounds of the API hold here too.

const (
	// Max bounds the body of a call.
	Max = 8 << 20
	// smallBody is read before the key is checked. A larger body takes a place of the budget.
	smallBody = 64 << 10
	// bodyTime bounds the time in which a body has to arrive.
	bodyTime = 30 * time.Second
)

// A Budget bounds the large bodies that are in memory: in all, and of one key.
type Budget struct {
	mu    sync.Mutex
	total int
	keys  map[string]int
}

const (
	largeBodies       = 32
	largeBodiesPerKey = 8
)

// take takes a place, until the returned function is called.
func (b *Budget) take(key string) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total >= largeBodies || b.keys[key] >= largeBodiesPerKey {
		return nil, perdure.Errorf(perdure.CodeUnavailable, "too many large bodies are being read; nothing was changed")
	}
	if b.keys == nil {
		b.keys = make(map[string]int)
	}
	b.total++
	b.keys[key]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.total--
		if b.keys[key]--; b.keys[key] == 0 {
			delete(b.keys, key)
		}
	}, nil
}

// Decode reads JSON into a value. Fields that the value does not have are ignored; fields of another type are
// refused.
func Decode(raw []byte, into any) error {
	err := jsonv2.Unmarshal(raw, into)
	var syntax *jsontext.SyntacticError
	var semantic *jsonv2.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return perdure.Errorf(perdure.CodeInvalid, "the body is no JSON: %s", plain(syntax.Err))
	case errors.As(err, &semantic):
		return perdure.Invalid(field(semantic.JSONPointer), "is not of the type that it should be")
	}
	return perdure.Errorf(perdure.CodeInvalid, "the body is not what this call takes")
}

func plain(err error) string {
	if err == nil {
		return "it breaks off"
	}
	return err.Error()
}

// field writes a pointer such as /input/0/role as input.0.role.
func field(p jsontext.Pointer) string {
	out := ""
	for part := range p.Tokens() {
		if out != "" {
			out += "."
		}
		if out += part; len(out) > perdure.MaxName {
			return "…"
		}
	}
	return out
}

// Read reads the body of a request within its bounds of size and time. A large body takes a place of the budget
// of its key, after accepted has told that the key is one.
func (b *Budget) Read(w http.ResponseWriter, r *http.Request, key string, accepted func() error) ([]byte, error) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // a call in process has no deadline
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	tooLarge := perdure.Errorf(perdure.CodeTooLarge, "this call takes at most %d bytes", Max)
	if r.ContentLength > Max {
		w.Header().Set("Connection", "close") // the body is not read
		return nil, tooLarge
	}
	var buf bytes.Buffer
	_, err := buf.ReadFrom(io.LimitReader(r.Body, smallBody+1))
	if err == nil && buf.Len() > smallBody {
		release, refused := b.large(key, accepted)
		if refused != nil {
			w.Header().Set("Connection", "close")
			return nil, refused
		}
		defer release()
		_, err = buf.ReadFrom(io.LimitReader(r.Body, Max+1-smallBody))
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, perdure.Errorf(perdure.CodeInvalid, "the body did not arrive within %s", bodyTime)
	case err != nil:
		return nil, perdure.Errorf(perdure.CodeInvalid, "the body broke off")
	case buf.Len() > Max:
		w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	return buf.Bytes(), nil
}

// large takes a place for a large body.
func (b *Budget) large(key string, accepted func() error) (release func(), err error) {
	if err := accepted(); err != nil {
		return nil, err
	}
	return b.take(key)
}
