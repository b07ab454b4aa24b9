package model

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

func TestUsageIsCounted(t *testing.T) {
	usage := func(text string) string { return `{"choices":[],"usage":` + text + `}` }
	for _, x := range []struct {
		name, body string
		want       Usage
	}{
		{"in the last chunk", frames(says("Hi"), stops("stop"), usage(`{"prompt_tokens":1000,"completion_tokens":10,`+
			`"prompt_tokens_details":{"cached_tokens":400},"completion_tokens_details":{"reasoning_tokens":4}}`),
			"[DONE]"),
			Usage{Input: 1000, CachedInput: 400, Output: 10, Reasoning: 4}},
		{"as a running total",
			frames(`{"choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":{"prompt_tokens":5,`+
				`"completion_tokens":1}}`,
				`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,`+
					`"completion_tokens":2}}`),
			Usage{Input: 5, Output: 2}},
		{"as floats", frames(says("Hi"), stops("stop"), usage(`{"prompt_tokens":5.0,"completion_tokens":2.0}`)),
			Usage{Input: 5, Output: 2}},
		{"as zeros", frames(says("Hi"), stops("stop"), usage(`{"prompt_tokens":0,"completion_tokens":0}`)),
			Usage{Input: 13, Output: 1, Estimated: true}},
		{"not at all", frames(says("Hi"), stops("stop")), Usage{Input: 13, Output: 1, Estimated: true}},
		{"of another type", frames(says("Hi"), stops("stop"), usage(`[1]`)), Usage{Input: 13, Output: 1,
			Estimated: true}},
		{"absurd", frames(says("Hi"), stops("stop"), usage(`{"prompt_tokens":1e300,"completion_tokens":-5,`+
			`"prompt_tokens_details":{"cached_tokens":1e300}}`)), Usage{Input: 1e9, CachedInput: 1e9}},
		{"of calls", frames(calling(`{"index":0,"id":"a","function":{"name":"weather",`+
			`"arguments":"{\"city\":\"Delft\"}"}}`),
			stops("tool_calls")), Usage{Input: 13, Output: 14, Estimated: true}},
	} {
		t.Run(x.name, func(t *testing.T) {
			if got := serve(t, Options{}, body(x.body)).mustAsk(t).Usage; got != x.want {
				t.Errorf("usage = %+v, want %+v", got, x.want)
			}
		})
	}
}

func TestPricesAreOfAMillionTokens(t *testing.T) {
	for _, x := range []struct {
		price Price
		usage Usage
		want  float64
	}{
		{Price{}, Usage{Input: 5, Output: 5}, 0},
		{Price{Input: 2, Output: 10}, Usage{Input: 1_000_000, Output: 500_000}, 7},
		{Price{Input: 2, Output: 10}, Usage{Input: 1_000_000, CachedInput: 500_000}, 2},
		{Price{Input: 2, CachedInput: 0.5}, Usage{Input: 1_000_000, CachedInput: 500_000}, 1.25},
	} {
		if got := x.price.Of(x.usage); got != x.want {
			t.Errorf("%+v costs %g by %+v, want %g", x.usage, got, x.price, x.want)
		}
	}
}

// Without a price the cost is the one that OpenRouter says. A price may be that of the model that
// answered.
func TestCostWithoutPrice(t *testing.T) {
	text := frames(`{"model":"big-2026","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":1000000,"completion_tokens":1,"cost":0.25}}`)
	if u := serve(t, Options{}, body(text)).mustAsk(t).Usage; u.Cost != 0.25 {
		t.Errorf("cost = %g, want that of the endpoint, 0.25", u.Cost)
	}
	prices := map[string]Price{"big-2026": {Input: 3}}
	if u := serve(t, Options{Prices: prices}, body(text)).mustAsk(t).Usage; u.Cost != 3 {
		t.Errorf("cost = %g, want 3 by the price of the model that answered", u.Cost)
	}
}

func TestTokensAreEstimated(t *testing.T) {
	for _, x := range []struct {
		text string
		want int
	}{{"", 0}, {"a", 1}, {"abcd", 1}, {"abcde", 2}, {"日本語", 3}, {"één", 2 + 1}, {"\xff\xfe", 2},
		{strings.Repeat("rain ", 100), 125}} {
		if got := EstimateTokens(x.text); got != x.want {
			t.Errorf("EstimateTokens(%.20q) = %d, want %d", x.text, got, x.want)
		}
	}
	r := question("four")
	plain := r.EstimateTokens()
	r.Tools = []Tool{{Name: "weather", Description: "the weather of a city"}}
	r.Messages = append(r.Messages, Message{Role: Assistant, ToolCalls: []ToolCall{{Name: "weather",
		Arguments: weather}}})
	if got := r.EstimateTokens(); plain != 8 || got != plain+(8+2+6)+(4+8+2+4) {
		t.Errorf("requests have %d and %d tokens, want 8 and %d", plain, got, 8+16+18)
	}
}

// The request as an endpoint gets it.
func TestRequestOnTheWire(t *testing.T) {
	w := serve(t, Options{Models: []Endpoint{{Model: "big", Header: map[string]string{"X-Title": "Perdure"}}}}, hello)
	temperature := 0.0
	r := Request{Messages: []Message{{Role: System, Content: "Be brief."}, {Role: User, Content: "Rain?"},
		{Role: Assistant, ToolCalls: []ToolCall{{ID: "a", Name: "weather", Arguments: weather}, {ID: "b",
			Name: "get weather!", Arguments: `{"x`}}},
		{Role: ToolRole, ToolCallID: "a", Content: ""}, {Role: ToolRole, ToolCallID: "b", Content: "no"}},
		Tools: []Tool{{Name: "weather", Description: "of a city",
			Parameters: json.RawMessage(`{"type":"object"}`)}, {Name: "now"}},
		Temperature: &temperature, MaxTokens: 7, ToolChoice: "weather"}
	if _, err := w.Complete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	const want = `{"model":"big","messages":[{"role":"system","content":"Be brief."},{"role":"user",` +
		`"content":"Rain?"},` +
		`{"role":"assistant","content":null,"tool_calls":[` +
		`{"id":"a","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Delft\"}"}},` +
		`{"id":"b","type":"function","function":{"name":"get_weather_",` +
		`"arguments":"{\"invalid_arguments\":\"{\\\"x\"}"}}]},` +
		`{"role":"tool","content":"","tool_call_id":"a"},{"role":"tool","content":"no","tool_call_id":"b"}],` +
		`"tools":[{"type":"function","function":{"name":"weather","description":"of a city",` +
		`"parameters":{"type":"object"}}},` +
		`{"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}],` +
		`"tool_choice":{"function":{"name":"weather"},"type":"function"},"temperature":0,"max_tokens":7,` +
		`"stream":true,` +
		`"stream_options":{"include_usage":true}}`
	if got := string(w.Requests()[0].Body); got != want {
		t.Errorf("request =\n%s\nwant\n%s", got, want)
	}
}

func TestMalformedRequestIsRefused(t *testing.T) {
	w := serve(t, Options{}, hello)
	for _, x := range []struct {
		request Request
		want    string
	}{
		{Request{}, "at least one message"},
		{Request{Messages: []Message{{Content: "Hi"}}}, "messages[0] has no role"},
		{Request{Messages: question("Hi").Messages, Tools: []Tool{{Name: "get weather"}}}, `the name "get weather"`},
		{Request{Messages: question("Hi").Messages, Tools: []Tool{{Name: "a", Parameters: json.RawMessage(`[]`)}}},
			"no JSON object"},
	} {
		_, err := w.Complete(t.Context(), x.request)
		if err == nil || !strings.Contains(err.Error(), x.want) || len(w.Requests()) != 0 {
			t.Errorf("error %v after %d requests, want one with %q and no request", err, len(w.Requests()), x.want)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := Endpoint{BaseURL: "https://api.openai.com/v1", Model: "m"}
	with := func(change func(e *Endpoint)) Options {
		e := good
		change(&e)
		return Options{Models: []Endpoint{good, e}}
	}
	for _, x := range []struct {
		name string
		opt  Options
		want string
	}{
		{"good", Options{Models: []Endpoint{good}}, ""},
		{"no model", Options{}, "at least one"},
		{"no URL", with(func(e *Endpoint) { e.BaseURL = "" }), "models[1]: the base URL"},
		{"no scheme", with(func(e *Endpoint) { e.BaseURL = "api.openai.com/v1" }), "models[1]: the base URL"},
		{"another scheme", with(func(e *Endpoint) { e.BaseURL = "file:///etc/passwd" }), "models[1]: the base URL"},
		{"a query", with(func(e *Endpoint) { e.BaseURL += "?api-version=1" }), "a query"},
		{"a password", with(func(e *Endpoint) { e.BaseURL = "https://a:b@c/v1" }), "a user"},
		{"no name", with(func(e *Endpoint) { e.Model = "" }), "no name"},
		{"a negative timeout", with(func(e *Endpoint) { e.FirstToken = -time.Second }), "negative"},
		{"a key with a line end", with(func(e *Endpoint) { e.Key = "a\nb" }), "line end"},
		{"a malformed header", with(func(e *Endpoint) { e.Header = map[string]string{"X-Title": "a\nb"} }), "X-Title"},
		{"a negative pause", Options{Models: []Endpoint{good}, Backoff: -1}, "not negative"},
		{"a negative price", Options{Models: []Endpoint{good}, Prices: map[string]Price{"m": {Input: -1}}}, "price"},
		{"a price that is no number", Options{Models: []Endpoint{good},
			Prices: map[string]Price{"m": {Input: math.NaN()}}}, "price"},
	} {
		_, err := New(x.opt)
		if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: error %v, want %q", x.name, err, x.want)
		}
	}
}

func TestBaseURLForms(t *testing.T) {
	for _, base := range []string{"http://h/v1", "http://h/v1/", "http://h/v1/chat/completions",
		"http://h/v1/chat/completions/"} {
		c, err := New(Options{Models: []Endpoint{{BaseURL: base, Model: "m"}}})
		if err != nil || c.endpoints[0].url != "http://h/v1/chat/completions" {
			t.Errorf("%s: address %s (error %v), want http://h/v1/chat/completions", base, c.endpoints[0].url, err)
		}
	}
}

func TestKeyIsNotPrinted(t *testing.T) {
	e := Endpoint{BaseURL: "http://h/v1", Key: "secret", Model: "m"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, []any{e, Options{Models: []Endpoint{e}}}) +
			fmt.Sprintf(verb, &e); strings.Contains(text, "secret") {
			t.Errorf("%s prints %s, want no key in it", verb, text)
		}
	}
}

// A response goes into a journal and comes back the same.
func TestResponseSurvivesJSON(t *testing.T) {
	w := serve(t, Options{}, mockmodel.Rule{Answer: mockmodel.Answer{Text: "Hi", Reasoning: "hm",
		ToolCalls: []mockmodel.Call{
			{Name: "weather", Arguments: `{"city`}}}})
	want := w.mustAsk(t)
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Response
	if err := json.Unmarshal(text, &got); err != nil || fmt.Sprint(got) != fmt.Sprint(*want) {
		t.Errorf("response after JSON = %+v (error %v), want %+v", got, err, *want)
	}
}
