package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/perdure/perdure"
)

// A Kind says what a caller can do about an error.
type Kind string

const (
	// Transient: the same call may succeed later.
	Transient Kind = "transient"
	// Permanent: the endpoint refuses the request, and would refuse it again.
	Permanent Kind = "permanent"
	// Garbage: the answer is not of this protocol. Another attempt may fare better. A page of HTML and an
	// answer that is too large are permanent.
	Garbage Kind = "garbage"
)

// Codes of errors.
const (
	CodeUnavailable   perdure.Code = "model_unavailable"    // transient: not reached, or a fault of the endpoint
	CodeRateLimited   perdure.Code = "model_rate_limited"   // transient: too many requests or tokens
	CodeTimeout       perdure.Code = "model_timeout"        // transient: no token came in time
	CodeCutOff        perdure.Code = "model_cut_off"        // transient: the stream ended before the answer did
	CodeRefused       perdure.Code = "model_refused"        // permanent
	CodeContextLength perdure.Code = "model_context_length" // permanent: the conversation is too long
	CodeGarbage       perdure.Code = "model_garbage"        // garbage
)

// An Error says why a call has no answer.
type Error struct {
	Kind Kind
	Code perdure.Code
	// Status is that of the answer, or the one that an error within a stream names. Zero means none.
	Status int
	// Message has the endpoint's words, shortened and without the key.
	Message string
	// RetryAfter is how long the endpoint wants the caller to wait. Zero means that it did not say.
	RetryAfter time.Duration
	// Model is the name of the model that was asked.
	Model string
	// Lost estimates the usage of the call's attempts.
	Lost Usage
	// Others are the last errors of the other endpoints that were called.
	Others []*Error

	cause error
	// passed is set if the attempt has passed a part of its answer on.
	passed bool
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Model != "" {
		b.WriteString("model " + e.Model + ": ")
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, "HTTP %d: ", e.Status)
	}
	b.WriteString(e.Message)
	for _, o := range e.Others {
		b.WriteString("; " + o.Error())
	}
	return b.String()
}

// FailureCode returns the code of a run or a step that fails with this error.
func (e *Error) FailureCode() perdure.Code { return e.Code }

// Permanent tells that a retry gets the same error.
func (e *Error) Permanent() bool { return e.Kind == Permanent }

// Is lets errors.Is compare the code with that of a *perdure.Error.
func (e *Error) Is(target error) bool {
	t, ok := target.(*perdure.Error)
	return ok && t.Code == e.Code
}

// Unwrap returns the cause, such as an error of the network.
func (e *Error) Unwrap() error { return e.cause }

func garbage(format string, args ...any) *Error {
	return &Error{Kind: Garbage, Code: CodeGarbage, Message: fmt.Sprintf(format, args...)}
}

// tooLarge is the error of an answer over its bound. The next attempt would cost as much again.
func tooLarge(format string, args ...any) *Error {
	return &Error{Kind: Permanent, Code: CodeGarbage, Message: fmt.Sprintf(format, args...)}
}

// maxProblem limits how much of an error's body is read.
const maxProblem = 64 << 10

// A problem is an error as endpoints write it. There are several forms:
//
//	{"error":{"message":"…","type":"…","code":"…"}}   OpenAI; OpenRouter has a number as the code
//	{"object":"error","message":"…","code":400}       vLLM
//	{"error":"…"}                                     Ollama
//	[{"error":{"message":"…","code":429}}]            Gemini
//	{"detail":"…"}                                    FastAPI
type problem struct {
	message, typ, code string
	retryAfter         time.Duration
}

func readProblem(body []byte) (p problem, ok bool) {
	type object struct {
		Error    json.RawMessage `json:"error"`
		Message  lenient         `json:"message"`
		Detail   json.RawMessage `json:"detail"`
		Type     lenient         `json:"type"`
		Code     json.RawMessage `json:"code"`
		Status   lenient         `json:"status"`
		Metadata struct {
			Raw lenient `json:"raw"` // OpenRouter: the words of the provider behind it
		} `json:"metadata"`
	}
	body = bytes.TrimSpace(body)
	for range 4 { // an error in an error in an answer is as deep as it gets
		if len(body) == 0 {
			break
		}
		var list []json.RawMessage
		if body[0] == '[' && json.Unmarshal(body, &list) == nil && len(list) > 0 {
			body = bytes.TrimSpace(list[0])
		}
		var text string
		if json.Unmarshal(body, &text) == nil {
			p.message = text
			break
		}
		var o object
		if err := json.Unmarshal(body, &o); err != nil && !errors.As(err, new(*json.UnmarshalTypeError)) {
			return p, false // a field of another type is no reason to ignore the others
		}
		if isSet(o.Error) {
			body = bytes.TrimSpace(o.Error)
			p.retryAfter = max(p.retryAfter, delayIn(body))
			continue
		}
		p.message = string(o.Message)
		if p.message == "" && isSet(o.Detail) {
			p.message = strings.Trim(string(o.Detail), `"`)
		}
		if raw := string(o.Metadata.Raw); raw != "" {
			p.message += ": " + raw
		}
		p.typ, p.code = string(o.Type)+string(o.Status), strings.Trim(string(o.Code), `"`)
		break
	}
	p.retryAfter = max(p.retryAfter, delayIn([]byte(p.message)))
	return p, p.message != "" || p.code != "" || p.typ != ""
}

// Endpoints that send no header Retry-After say it in words, or in a field.
var delays = regexp.MustCompile(`(?i)(?:try again in |"retryDelay":\s*")((?:[0-9.]+(?:ms|s|m|h))+)`)

func delayIn(text []byte) time.Duration {
	m := delays.FindSubmatch(text[:min(len(text), maxProblem)])
	if m == nil {
		return 0
	}
	d, _ := time.ParseDuration(string(m[1]))
	return min(max(d, 0), maxRetryAfter)
}

// refusal makes the error of a frame that has one.
func refusal(data []byte) *Error {
	p, _ := readProblem(data[:min(len(data), maxProblem)])
	status, _ := strconv.Atoi(p.code)
	if status < 100 || status > 599 {
		status = 0
	}
	if p.message == "" {
		p.message = "the endpoint reports an error and does not say which"
	}
	return p.classify(status)
}

// answerError makes the error of an answer whose status is no success.
func answerError(res *http.Response, body []byte) *Error {
	p, ok := readProblem(body)
	if !ok { // a proxy answered, or a server that speaks in another way
		p.message = strings.TrimSpace(string(body[:min(len(body), 200)]))
	}
	if p.message == "" {
		p.message = http.StatusText(res.StatusCode)
	}
	e := p.classify(res.StatusCode)
	if d, ok := retryAfter(res.Header); ok {
		e.RetryAfter = d
	}
	return e
}

// classify decides the kind and the code of an error. The status is zero for an error within a
// stream that names none: most of those are faults of the endpoint.
func (p *problem) classify(status int) *Error {
	e := &Error{Kind: Permanent, Code: CodeRefused, Status: status, Message: readable(p.message, 1000),
		RetryAfter: p.retryAfter}
	words := strings.ToLower(p.typ + " " + p.code)
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(words, part) {
				return true
			}
		}
		return false
	}
	switch {
	case (status == 0 || status/100 == 4 || status == 500) && p.isContextLength():
		e.Code = CodeContextLength
	case status == http.StatusRequestEntityTooLarge: // some say no more than that
		e.Code = CodeContextLength
	case has("insufficient_quota", "billing"):
		// sent with 429, and no pause helps
	case status == http.StatusTooManyRequests, status == 0 && has("rate_limit", "resource_exhausted", "overloaded"):
		e.Kind, e.Code = Transient, CodeRateLimited
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooEarly,
		status >= 500:
		e.Kind, e.Code = Transient, CodeUnavailable
	case status == 0 && !has("invalid", "bad_request", "badrequest", "authentication", "permission", "not_found",
		"notfound"):
		e.Kind, e.Code = Transient, CodeUnavailable
	}
	return e
}

// contextLength has the words of endpoints whose context is full. Ollama has none: it cuts the
// beginning of the conversation and says nothing.
var contextLength = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`context[_ ]length[_ ]exceeded`,                          // OpenAI, TensorRT
	`maximum context length`,                                 // OpenAI, OpenRouter, vLLM, SGLang, DeepSeek
	`context length is only`,                                 // vLLM
	`exceeds? the (?:available )?context (?:size|window)`,    // llama.cpp, OpenAI
	`greater than the context length`,                        // LM Studio
	`exceeds? the (?:model'?s )?(?:maximum )?context`,        // several
	`context window exceeds|exceeds model context window`,    // MiniMax
	`prompt is too long|input is too long`,                   // Anthropic, Bedrock
	`input token count.*exceeds the maximum`,                 // Gemini
	`maximum prompt length`,                                  // xAI
	`reduce the length of (?:the messages|the input|either)`, // Groq, OpenRouter
	`exceeded model token limit`,                             // Kimi
	`prompt token count of \d+ exceeds the limit`,            // GitHub
	`too large for model with \d+ maximum context`,           // Mistral
	`request_too_large`,
}, "|"))

func (p *problem) isContextLength() bool {
	return contextLength.MatchString(p.code) || contextLength.MatchString(p.message)
}

// readable shortens a text of an endpoint and removes what is not for people.
func readable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return strings.TrimSpace(text)
}

// combine returns one error for those of several endpoints. It is a transient one, if there is one:
// the call may succeed later.
func combine(errs []*Error) *Error {
	first := errs[0]
	rank := map[Kind]int{Transient: 2, Garbage: 1}
	for _, e := range errs[1:] {
		if rank[e.Kind] > rank[first.Kind] {
			first = e
		}
	}
	out := *first
	for _, e := range errs {
		if e != first {
			out.Others = append(out.Others, e)
			if e.Kind == Transient && e.RetryAfter < out.RetryAfter && first.Kind == Transient {
				out.RetryAfter = e.RetryAfter
			}
		}
	}
	return &out
}
