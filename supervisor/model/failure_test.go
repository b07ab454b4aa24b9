package model

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

// Each row is a failure of an endpoint, and what it means to a caller.
func TestFailuresAreTyped(t *testing.T) {
	status := func(n int, body string) mockmodel.Answer { return mockmodel.Answer{Status: n, Body: body} }
	fault := func(name string, after int) mockmodel.Answer {
		return mockmodel.Answer{Text: "Take an umbrella.", Fault: name, FaultAfter: after}
	}
	stream := func(data ...string) mockmodel.Answer { return mockmodel.Answer{Body: frames(data...)} }
	inStream := func(e any) mockmodel.Answer {
		return mockmodel.Answer{Text: "Take an umbrella.", Fault: mockmodel.FaultError, FaultAfter: 1, Error: e}
	}
	type object = map[string]any
	for _, x := range []struct {
		name   string
		answer mockmodel.Answer
		kind   Kind
		code   perdure.Code
		status int
		text   string // a part of the message
	}{
		{"a fault of the endpoint", status(500, ""), Transient, CodeUnavailable, 500, "internal server error"},
		{"a bad gateway with a page", status(502, "<html>bad gateway</html>"), Transient, CodeUnavailable, 502,
			"<html>"},
		{"busy", status(503, ""), Transient, CodeUnavailable, 503, ""},
		{"overloaded", status(529, `{"error":{"type":"overloaded_error","message":"Overloaded"}}`), Transient,
			CodeUnavailable, 529,
			"Overloaded"},
		{"a timeout of a proxy", status(504, ""), Transient, CodeUnavailable, 504, ""},
		{"a timeout that the endpoint reports", status(408, ""), Transient, CodeUnavailable, 408, ""},
		{"the rate is limited", status(429, ""), Transient, CodeRateLimited, 429, "too many"},
		{"no money left, with the status of a rate limit", status(429,
			`{"error":{"message":"You exceeded your current quota","type":"insufficient_quota",`+
				`"code":"insufficient_quota"}}`),
			Permanent, CodeRefused, 429, "quota"},
		{"no money left", status(402, `{"error":{"code":402,"message":"Insufficient credits"}}`), Permanent,
			CodeRefused, 402, "credits"},
		{"a bad request", status(400, ""), Permanent, CodeRefused, 400, ""},
		{"a wrong key", status(401, ""), Permanent, CodeRefused, 401, ""},
		{"not allowed", status(403, ""), Permanent, CodeRefused, 403, ""},
		{"no such model", status(404, `{"error":{"message":"model \"m\" not found","type":"not_found_error"}}`),
			Permanent,
			CodeRefused, 404, `model "m" not found`},
		{"not processable", status(422, `{"detail":[{"msg":"field required"}]}`), Permanent, CodeRefused, 422,
			"field required"},
		{"a redirect", mockmodel.Answer{Status: 307, Header: map[string]string{"Location": "/elsewhere"}}, Permanent,
			CodeRefused, 307, ""},
		{"vLLM's error", status(400,
			`{"object":"error","message":"no tools here","type":"BadRequestError","code":400}`), Permanent,
			CodeRefused, 400, "no tools here"},
		{"Ollama's error", status(404, `{"error":"model 'm' not found, try pulling it first"}`), Permanent,
			CodeRefused, 404, "pulling"},
		{"Gemini's error", status(429,
			`[{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED"}}]`), Transient,
			CodeRateLimited, 429, "slow down"},
		{"the provider behind OpenRouter", status(400, `{"error":{"code":400,"message":"Provider returned error",`+
			`"metadata":{"raw":"tool_use ids must be unique"}}}`), Permanent, CodeRefused, 400, "ids must be unique"},

		{"an error with fields of other types", status(400, `{"error":{"code":null,"message":"no","metadata":"none"}}`),
			Permanent, CodeRefused, 400, "no"},

		{"OpenRouter's error within a stream", inStream(object{"code": 502, "message": "Provider disconnected"}),
			Transient,
			CodeUnavailable, 502, "Provider disconnected"},
		{"a rate limit within a stream", inStream(object{"code": 429, "message": "slow down"}), Transient,
			CodeRateLimited, 429, ""},
		{"a refusal within a stream", inStream(object{"code": 403, "message": "flagged"}), Permanent, CodeRefused,
			403, "flagged"},
		{"a refusal without a number", inStream(object{"type": "invalid_request_error", "message": "no"}), Permanent,
			CodeRefused, 0, "no"},
		{"an error that is a text", inStream("it broke"), Transient, CodeUnavailable, 0, "it broke"},
		{"an error that says nothing", inStream(true), Transient, CodeUnavailable, 0, "does not say"},
		{"vLLM's error within a stream", stream(says("Hi"), `{"object":"error","message":"engine died","code":500}`),
			Transient,
			CodeUnavailable, 500, "engine died"},
		{"an error of the event", mockmodel.Answer{Body: "event: error\ndata: {\"message\":\"oops\"}\n\n"}, Transient,
			CodeUnavailable, 0, "oops"},
		{"an error of the choice", stream(`{"choices":[{"index":0,"error":{"code":502,"message":"upstream"}}]}`),
			Transient,
			CodeUnavailable, 502, "upstream"},
		{"finish_reason error", stream(says("Hi"), stops("error")), Transient, CodeUnavailable, 0, "failed"},
		{"an error as JSON with the status 200", status(200, `{"error":{"code":502,"message":"down"}}`), Transient,
			CodeUnavailable,
			502, "down"},

		{"the connection breaks at the beginning", fault(mockmodel.FaultCut, 0), Transient, CodeCutOff, 0, "broke"},
		{"the connection breaks in the middle", fault(mockmodel.FaultCut, 2), Transient, CodeCutOff, 0, "broke"},
		{"the stream ends in order, without a finish_reason", fault(mockmodel.FaultClose, 2), Transient, CodeCutOff,
			0, "ended before"},
		{"the stream ends in order, with nothing", fault(mockmodel.FaultClose, 0), Transient, CodeCutOff, 0,
			"ended before"},
		{"an empty answer", mockmodel.Answer{Body: "\n"}, Transient, CodeCutOff, 0, "ended before"},
		{"nothing but [DONE]", stream("[DONE]"), Transient, CodeCutOff, 0, "ended before"},
		{"[DONE] in the middle of a tool call", stream(
			calling(`{"index":0,"id":"a","function":{"name":"weather","arguments":"{\"city\":"}}`), "[DONE]"),
			Transient, CodeCutOff, 0, ""},
		{"the stream is cut in a tool call", mockmodel.Answer{ToolCalls: []mockmodel.Call{{Name: "weather",
			Arguments: weather}},
			Fault: mockmodel.FaultCut, FaultAfter: 2}, Transient, CodeCutOff, 0, "broke"},
		{"JSON is cut", mockmodel.Answer{Text: "Hi", Fault: mockmodel.FaultCut,
			Quirks: quirks(mockmodel.QuirkNoStream)}, Transient,
			CodeCutOff, 0, "broke"},

		{"a frame is no JSON", fault(mockmodel.FaultGarbage, 1), Garbage, CodeGarbage, 0, "no JSON"},
		{"a page with the status 200", status(200, "<html>\n<p>Please log in: now\n</html>"), Permanent, CodeGarbage,
			200, "a page of HTML"},
		{"other JSON", status(200, `{"hello":"world"}`), Garbage, CodeGarbage, 0, "no answer"},
		{"broken JSON", status(200, `{"choices":[`), Garbage, CodeGarbage, 0, "no JSON"},
		{"choices of another type", stream(`{"choices":"none"}`), Garbage, CodeGarbage, 0, "no JSON"},
		{"lines of JSON", status(200, says("a")+"\n"+stops("stop")), Garbage, CodeGarbage, 0, "no JSON"},
	} {
		t.Run(x.name, func(t *testing.T) {
			e := serve(t, Options{}, mockmodel.Rule{Answer: x.answer}).mustFail(t)
			if e.Kind != x.kind || e.Code != x.code || e.Status != x.status || !strings.Contains(e.Error(), x.text) {
				t.Errorf("error: kind %s, code %s, status %d: %v; want kind %s, code %s, status %d and %q", e.Kind,
					e.Code,
					e.Status, e, x.kind, x.code, x.status, x.text)
			}
			if e.Permanent() != (x.kind == Permanent) || e.FailureCode() != x.code || e.Model != "m" {
				t.Errorf("error of model %q: permanent %v, code %s; want those of %s", e.Model, e.Permanent(),
					e.FailureCode(), x.code)
			}
			if !errors.Is(e, &perdure.Error{Code: x.code}) || errors.Is(e, &perdure.Error{Code: "other"}) {
				t.Error("errors.Is does not compare the code")
			}
		})
	}
}

// These are the words of providers whose context is full.
func TestContextLengthIsRecognised(t *testing.T) {
	for _, x := range []struct {
		name, body string
		status     int
	}{
		{"OpenAI's code", `{"error":{"message":"Too long.","type":"invalid_request_error",` +
			`"code":"context_length_exceeded"}}`, 400},
		{"OpenAI's words", `{"error":{"message":"This model's maximum context length is 8192 tokens. However, your ` +
			`messages ` +
			`resulted in 8545 tokens."}}`, 400},
		{"OpenAI's other words", `{"error":{"message":"Your input exceeds the context window of this model"}}`, 400},
		{"OpenRouter", `{"error":{"code":400,"message":"This endpoint's maximum context length is 40960 tokens. ` +
			`However, you ` +
			`requested about 42988 tokens"}}`, 400},
		{"vLLM", `{"object":"error","message":"You passed 1015 input tokens and requested 10 output tokens. ` +
			`However, the model's ` +
			`context length is only 1024 tokens","code":400}`, 400},
		{"SGLang", `{"error":{"message":"Requested token count exceeds the model's maximum context length of ` +
			`202752 tokens."}}`, 400},
		{"llama.cpp", `{"error":{"code":400,"message":"the request exceeds the available context size. try ` +
			`increasing it"}}`, 400},
		{"LM Studio", `{"error":"Trying to keep the first 5000 tokens when context overflows: that is greater than ` +
			`the context length"}`, 400},
		{"Anthropic", `{"error":{"message":"prompt is too long: 213462 tokens > 200000 maximum"}}`, 400},
		{"Gemini", `[{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of ` +
			`tokens allowed"}}]`, 400},
		{"xAI", `{"error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}`,
			400},
		{"Groq", `{"error":{"message":"Please reduce the length of the messages or completion."}}`, 400},
		{"a body that is too large", `Payload Too Large`, 413},
		{"a status 500", `{"error":{"message":"the request exceeds the available context size"}}`, 500},
		{"within a stream", frames(`{"error":{"code":400,"message":"prompt is too long"}}`), 200},
		{"within a stream, without a number", frames(`{"error":{"message":"prompt is too long"}}`), 200},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := serve(t, Options{Retries: 3, Models: []Endpoint{{}, {Model: "fallback"}}},
				mockmodel.Rule{Answer: mockmodel.Answer{Status: x.status, Body: x.body}})
			if e := w.mustFail(t); e.Code != CodeContextLength || e.Kind != Permanent {
				t.Errorf("error: kind %s, code %s: %v; want %s", e.Kind, e.Code, e, CodeContextLength)
			}
			if n := len(w.Requests()); n != 1 {
				t.Errorf("%d requests, want 1: neither a retry nor a fallback makes a conversation shorter", n)
			}
		})
	}
	for _, text := range []string{"The context is missing", "max_tokens is too large for this model",
		"length must be positive"} {
		w := serve(t, Options{}, mockmodel.Rule{Answer: mockmodel.Answer{Status: 400, Body: `{"error":{"message":"` +
			text + `"}}`}})
		if e := w.mustFail(t); e.Code != CodeRefused {
			t.Errorf("%s: code %s, want %s", text, e.Code, CodeRefused)
		}
	}
}

func TestRetryAfterIsRead(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, x := range []struct {
		name, header, ms, body string
		want                   time.Duration
	}{
		{"nothing", "", "", "", 0},
		{"seconds", "7", "", "", 7 * time.Second},
		{"a fraction", "1.5", "", "", 1500 * time.Millisecond},
		{"zero", "0", "", "", 0},
		{"a date", now.Add(90 * time.Second).Format(http.TimeFormat), "", "", 90 * time.Second},
		{"a date that has passed", now.Add(-time.Hour).Format(http.TimeFormat), "", "", 0},
		{"milliseconds", "1", "250", "", 250 * time.Millisecond},
		{"a negative number", "-5", "", "", 0},
		{"no number", "soon", "", "", 0},
		{"no finite number", "NaN", "", "", 0},
		{"very long", "1e30", "", "", 24 * time.Hour},
		{"a date far away", "Fri, 31 Dec 9999 23:59:59 GMT", "", "", 24 * time.Hour},
		{"OpenAI's words", "", "", `{"error":{"message":"Rate limit reached. Please try again in 1m2.5s. Visit …"}}`,
			62500 * time.Millisecond},
		{"OpenAI's words, short", "", "", `{"error":{"message":"Please try again in 20ms."}}`, 20 * time.Millisecond},
		{"Gemini's field", "", "", `[{"error":{"code":429,"message":"slow","details":[{"retryDelay": "32s"}]}}]`,
			32 * time.Second},
		{"the header wins", "3", "", `{"error":{"message":"Please try again in 9s"}}`, 3 * time.Second},
		{"words that are no time", "", "", `{"error":{"message":"try again in 9999999999999999999s"}}`, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			// The endpoint's clock is that of its header Date.
			header := map[string]string{"Date": now.Format(http.TimeFormat)}
			if x.ms != "" {
				header["Retry-After-Ms"] = x.ms
			}
			w := serve(t, Options{}, mockmodel.Rule{Answer: mockmodel.Answer{Status: 429, Body: x.body,
				RetryAfter: x.header, Header: header}})
			if e := w.mustFail(t); e.RetryAfter != x.want || e.Code != CodeRateLimited {
				t.Errorf("code %s, RetryAfter = %s; want %s and %s", e.Code, e.RetryAfter, CodeRateLimited, x.want)
			}
		})
	}
}

// A provider may repeat the key in its message, and anything else.
func TestErrorIsFitForALog(t *testing.T) {
	const key = "sk-very-secret-key"
	w := serve(t, Options{Models: []Endpoint{{Key: key}}}, mockmodel.Rule{Answer: mockmodel.Answer{Status: 401,
		Body: `{"error":{"message":"Incorrect API key provided: ` + key + `\u0007 ` + strings.Repeat("é", 5000) +
			`"}}`}})
	text := w.mustFail(t).Error()
	if strings.Contains(text, key) || strings.Contains(text, "\a") || len(text) > 2200 || !strings.Contains(text,
		"provided: ***") {
		t.Errorf("error = %d bytes: %.100q…; want at most 2200, without the key and control characters", len(text),
			text)
	}
	if got := w.Requests()[0].Key; got != "-key" {
		t.Errorf("key of the request ends with %q, want -key", got)
	}
}

func TestEndpointThatIsNotThere(t *testing.T) {
	w := serve(t, Options{}, mockmodel.Echo().Rules...)
	gone, err := New(Options{Retries: -1, Models: []Endpoint{{BaseURL: "http://127.0.0.1:1/v1", Model: "m"}}})
	if err != nil {
		t.Fatal(err)
	}
	w.Client = gone
	if e := w.mustFail(t); e.Kind != Transient || e.Code != CodeUnavailable || errors.Unwrap(e) == nil {
		t.Errorf("error %+v, want %s with its cause", e, CodeUnavailable)
	}
}

func TestNoTokenInTime(t *testing.T) {
	const short = 50 * time.Millisecond
	for _, x := range []struct {
		name           string
		first, between time.Duration
		answer         mockmodel.Answer
		text           string
	}{
		{"no status", short, patience, mockmodel.Answer{Fault: mockmodel.FaultHang}, "no token within 50ms"},
		{"nothing but the role", short, patience, mockmodel.Answer{Fault: mockmodel.FaultSilence},
			"no token within 50ms"},
		{"nothing but comments", short, patience, mockmodel.Answer{Fault: mockmodel.FaultSilence,
			Quirks: quirks(mockmodel.QuirkComments)},
			"no token within 50ms"},
		{"a slow first token", short, patience, mockmodel.Answer{Text: "late", FirstToken: perdure.Duration(patience)},
			"no token within 50ms"},
		{"a slow refusal", short, patience, mockmodel.Answer{Status: 500, FirstToken: perdure.Duration(patience)},
			"no token within 50ms"},
		{"silence in the middle", patience, short, mockmodel.Answer{Text: "a b c", Fault: mockmodel.FaultSilence,
			FaultAfter: 2},
			"no further token within 50ms"},
		{"silence in a tool call", patience, short, mockmodel.Answer{ToolCalls: []mockmodel.Call{{Name: "weather",
			Arguments: weather}},
			Fault: mockmodel.FaultSilence, FaultAfter: 2}, "no further token within 50ms"},
		{"comments in the middle", patience, short, mockmodel.Answer{Text: "a b c", Fault: mockmodel.FaultSilence,
			FaultAfter: 2,
			Quirks:     quirks(mockmodel.QuirkComments)}, "no further token within 50ms"},
		{"JSON that does not come to its end", short, patience, mockmodel.Answer{Text: "a b c",
			Fault:  mockmodel.FaultSilence,
			Quirks: quirks(mockmodel.QuirkNoStream)}, "no token within 50ms"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, Options{Models: []Endpoint{{FirstToken: x.first, BetweenTokens: x.between}}},
				mockmodel.Rule{Answer: x.answer})
			e := w.mustFail(t)
			if e.Kind != Transient || e.Code != CodeTimeout || !strings.Contains(e.Error(), x.text) {
				t.Errorf("error: kind %s, code %s: %v; want %s, %s and %q", e.Kind, e.Code, e, Transient, CodeTimeout,
					x.text)
			}
		})
	}
}

// Tokens that drip are tokens: nothing limits the time of the whole call.
func TestDrippingTokensAreInTime(t *testing.T) {
	const between = 400 * time.Millisecond
	w := serve(t, Options{Models: []Endpoint{{FirstToken: between, BetweenTokens: between}}},
		mockmodel.Rule{Answer: mockmodel.Answer{
			Text: strings.Repeat("rain ", 30), Between: perdure.Duration(20 * time.Millisecond)}})
	began := time.Now()
	if res := w.mustAsk(t); len(res.Message.Content) != 150 {
		t.Errorf("text has %d bytes, want 150", len(res.Message.Content))
	}
	if took := time.Since(began); took < between {
		t.Errorf("the call took %s, want more than a single token may take", took)
	}
}
