package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

// times is a rule that is used a number of times.
func times(n int, a mockmodel.Answer) mockmodel.Rule { return mockmodel.Rule{Times: n, Answer: a} }

var hello = mockmodel.Rule{Answer: mockmodel.Answer{Text: "Hello."}}

func TestTransientFailuresAreRetried(t *testing.T) {
	for _, x := range []struct {
		name   string
		answer mockmodel.Answer
	}{
		{"a fault", mockmodel.Answer{Status: 500}},
		{"a rate limit", mockmodel.Answer{Status: 429, RetryAfter: "0.001"}},
		{"a connection that breaks", mockmodel.Answer{Text: "Hell", Fault: mockmodel.FaultCut}},
		{"a stream that is cut", mockmodel.Answer{Text: "Hell no.", Fault: mockmodel.FaultClose, FaultAfter: 1}},
		{"garbage", mockmodel.Answer{Text: "Hell", Fault: mockmodel.FaultGarbage}},
		{"an error within the stream", mockmodel.Answer{Text: "Hell", Fault: mockmodel.FaultError}},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := serve(t, Options{Retries: 3}, times(2, x.answer), hello)
			if res := w.mustAsk(t); res.Message.Content != "Hello." || res.Attempts != 3 {
				t.Errorf("text %q after %d attempts, want Hello. after 3", res.Message.Content, res.Attempts)
			}
			w = serve(t, Options{Retries: 2}, times(3, x.answer), hello)
			w.mustFail(t)
			if n := len(w.Requests()); n != 3 {
				t.Errorf("%d requests with 2 retries, want 3", n)
			}
		})
	}
}

func TestRefusalIsNotRetried(t *testing.T) {
	w := serve(t, Options{Retries: 3}, times(1, mockmodel.Answer{Status: 400}), hello)
	if e := w.mustFail(t); e.Code != CodeRefused {
		t.Errorf("code %s, want %s", e.Code, CodeRefused)
	}
	if n := len(w.Requests()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestFallbackAnswers(t *testing.T) {
	first := func(a mockmodel.Answer) mockmodel.Rule {
		return mockmodel.Rule{Match: mockmodel.Match{Model: "big"}, Answer: a}
	}
	two := []Endpoint{{Model: "big", Key: "one"}, {Model: "small", Key: "two"}}
	for _, x := range []struct {
		name     string
		answer   mockmodel.Answer
		requests []string
	}{
		{"after retries", mockmodel.Answer{Status: 503}, []string{"big", "big", "small"}},
		{"after a refusal", mockmodel.Answer{Status: 404}, []string{"big", "small"}},
		{"after a long Retry-After", mockmodel.Answer{Status: 429, RetryAfter: "3600"}, []string{"big", "small"}},
		{"after a stream that is cut", mockmodel.Answer{Text: "a b", Fault: mockmodel.FaultCut, FaultAfter: 1},
			[]string{"big", "big", "small"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := serve(t, Options{Retries: 1, Models: two}, first(x.answer),
				mockmodel.Rule{Match: mockmodel.Match{Key: "two"}, Answer: hello.Answer})
			res := w.mustAsk(t)
			if res.Message.Content != "Hello." || res.Endpoint != 1 || res.Model != "small" ||
				res.Attempts != len(x.requests) {
				t.Errorf("answer = %+v, want Hello. of the second endpoint", res)
			}
			var got []string
			for _, r := range w.Requests() {
				got = append(got, r.Model)
			}
			if !slices.Equal(got, x.requests) {
				t.Errorf("requests to %v, want %v", got, x.requests)
			}
		})
	}
}

// The caller is told of each attempt that fails, and how long it takes until the next.
func TestCallerIsToldOfRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := newClient(t, Options{Retries: 1, Models: []Endpoint{{BaseURL: "http://a/v1", Model: "a"},
			{BaseURL: "http://b/v1", Model: "b"}}}, func(*http.Request) (*http.Response, error) {
			if n++; n < 3 {
				return respond(429, map[string]string{"Retry-After": "30"}, strings.NewReader("")), nil
			}
			return respond(200, nil, strings.NewReader(frames(says("Hi"), stops("stop")))), nil
		})
		var told []string
		r := question("Hello?")
		r.OnRetry = func(e *Error, pause time.Duration) {
			told = append(told, fmt.Sprint(e.Model, " ", e.Code, " ",
				pause))
		}
		res, err := c.Complete(t.Context(), r)
		want := []string{"a model_rate_limited 30s", "a model_rate_limited 0s"}
		if err != nil || res.Endpoint != 1 || !slices.Equal(told, want) {
			t.Errorf("answer = %+v (error %v), told %q; want the second endpoint's, and %q", res, err, told, want)
		}
	})
}

// If no endpoint answers, the error is one that may pass, and names the others.
func TestErrorOfSeveralEndpoints(t *testing.T) {
	w := serve(t, Options{Models: []Endpoint{{Model: "a"}, {Model: "b"}, {Model: "c"}}},
		mockmodel.Rule{Match: mockmodel.Match{Model: "a"}, Answer: mockmodel.Answer{Status: 404}},
		mockmodel.Rule{Match: mockmodel.Match{Model: "b"}, Answer: mockmodel.Answer{Status: 429, RetryAfter: "3600"}},
		mockmodel.Rule{Match: mockmodel.Match{Model: "c"}, Answer: mockmodel.Answer{Status: 503, RetryAfter: "60"}})
	e := w.mustFail(t)
	if e.Model != "b" || e.Kind != Transient || e.RetryAfter != time.Minute || len(e.Others) != 2 {
		t.Errorf("error = %+v, want that of b, after the shortest Retry-After, with two others", e)
	}
	for _, part := range []string{"model a: HTTP 404", "model b: HTTP 429", "model c: HTTP 503"} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("error %q lacks %q", e.Error(), part)
		}
	}
}

// Text that was passed on can't be taken back, unless the caller says how.
func TestAnswerBeginsAgainOnlyIfTheCallerCanTakeItBack(t *testing.T) {
	rules := []mockmodel.Rule{times(1, mockmodel.Answer{Text: "Hell no", Fault: mockmodel.FaultCut, FaultAfter: 1}),
		hello}
	for _, fallback := range []bool{false, true} {
		opt := Options{Retries: 3}
		if fallback {
			opt = Options{Models: []Endpoint{{}, {}}}
		}
		var text strings.Builder
		r := question("Hello?")
		r.OnText = func(s string) error { text.WriteString(s); return nil }

		w := serve(t, opt, rules...)
		_, err := w.Complete(t.Context(), r)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeCutOff || text.String() != "Hell " || len(w.Requests()) != 1 {
			t.Errorf("fallback %v: text %q after %d requests, error %v; want one request, and the error of the cut",
				fallback,
				text.String(), len(w.Requests()), err)
		}

		text.Reset()
		w = serve(t, opt, rules...)
		r.OnRestart = func(cause *Error) { text.Reset(); text.WriteString("[" + string(cause.Code) + "]") }
		if res, err := w.Complete(t.Context(), r); err != nil || res.Attempts != 2 {
			t.Errorf("fallback %v: %+v (error %v), want an answer of the second attempt", fallback, res, err)
		}
		if text.String() != "[model_cut_off]Hello." {
			t.Errorf("fallback %v: text %q, want that of the second attempt alone", fallback, text.String())
		}
	}
}

// The tokens of a failed attempt are counted.
func TestLostTokensAreCounted(t *testing.T) {
	cut := mockmodel.Answer{Text: strings.Repeat("rain ", 100), Fault: mockmodel.FaultCut, FaultAfter: 80}
	w := serve(t, Options{Retries: 2, Prices: map[string]Price{"m": {Output: 1e6}}}, times(2, cut), hello)
	res := w.mustAsk(t)
	if res.Lost.Output != 2*100 || !res.Lost.Estimated || res.Lost.Cost != 200 || res.Lost.Input == 0 {
		t.Errorf("lost = %+v, want 100 tokens of output for each of 2 attempts", res.Lost)
	}
	w = serve(t, Options{Retries: 1}, times(2, cut), hello)
	if e := w.mustFail(t); e.Lost.Output != 200 {
		t.Errorf("lost = %+v, want 200 tokens of output", e.Lost)
	}
}

func TestErrorOfTheCallersFunctionEndsTheCall(t *testing.T) {
	own := errors.New("the disk is full")
	for _, fault := range []string{"", mockmodel.FaultCut} {
		w := serve(t, Options{Retries: 3, Models: []Endpoint{{}, {}}},
			mockmodel.Rule{Answer: mockmodel.Answer{Reasoning: "a", Text: "b c", Fault: fault, FaultAfter: 2}})
		r := question("Hello?")
		r.OnText = func(string) error { return own }
		if res, err := w.Complete(t.Context(), r); !errors.Is(err, own) || res != nil || len(w.Requests()) != 1 {
			t.Errorf("%+v, error %v after %d requests; want the function's own error after 1", res, err,
				len(w.Requests()))
		}
	}
}

func TestContextEndsTheCall(t *testing.T) {
	why := errors.New("the user has left")
	for _, x := range []struct {
		name   string
		answer mockmodel.Answer
	}{
		{"in silence", mockmodel.Answer{Text: "a b c", Fault: mockmodel.FaultSilence, FaultAfter: 1}},
		{"in an endless answer", mockmodel.Answer{Text: "rain ", Repeat: 10_000_000}},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := serve(t, Options{Retries: 3}, mockmodel.Rule{Answer: x.answer})
			ctx, cancel := context.WithCancelCause(t.Context())
			r := question("Hello?")
			r.OnText = func(string) error { cancel(why); return nil }
			if res, err := w.Complete(ctx, r); !errors.Is(err, why) || len(w.Requests()) != 1 {
				t.Errorf("%+v, error %v after %d requests; want the context's cause after 1", res, err,
					len(w.Requests()))
			}
		})
	}
}

// roundTrip is a transport without a network, for tests in virtual time.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	io.Copy(io.Discard, r.Body)
	return f(r)
}

func respond(status int, header map[string]string, body io.Reader) *http.Response {
	res := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(body)}
	for k, v := range header {
		res.Header.Set(k, v)
	}
	return res
}

// newClient returns a client for tests in virtual time.
func newClient(t *testing.T, opt Options, f roundTrip) *Client {
	t.Helper()
	if len(opt.Models) == 0 {
		opt.Models = []Endpoint{{BaseURL: "http://model/v1", Model: "m"}}
	}
	opt.Transport = f
	c, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPausesBetweenAttempts(t *testing.T) {
	for _, x := range []struct {
		name       string
		opt        Options
		retryAfter string
		pauses     [][2]time.Duration // the shortest and the longest of each
	}{
		{"they double, with jitter", Options{Retries: 4}, "", [][2]time.Duration{
			{250 * time.Millisecond, 500 * time.Millisecond}, {500 * time.Millisecond, time.Second},
			{time.Second, 2 * time.Second}, {2 * time.Second, 4 * time.Second}}},
		{"they are bounded", Options{Retries: 3, Backoff: 10 * time.Second}, "", [][2]time.Duration{
			{5 * time.Second, 10 * time.Second}, {10 * time.Second, 20 * time.Second}, {10 * time.Second,
				20 * time.Second}}},
		{"Retry-After is honoured", Options{Retries: 2}, "30", [][2]time.Duration{
			{30 * time.Second, 30 * time.Second}, {30 * time.Second, 30 * time.Second}}},
		{"a short Retry-After does not shorten them", Options{Retries: 1}, "0", [][2]time.Duration{
			{250 * time.Millisecond, 500 * time.Millisecond}}},
		{"a long Retry-After is left to the caller", Options{Retries: 5}, "61", nil},
		{"as long as is allowed", Options{Retries: 1, MaxWait: time.Hour}, "3600", [][2]time.Duration{{time.Hour,
			time.Hour}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Time
				c := newClient(t, x.opt, func(*http.Request) (*http.Response, error) {
					at = append(at, time.Now())
					return respond(503, map[string]string{"Retry-After": x.retryAfter}, strings.NewReader("")), nil
				})
				_, err := c.Complete(t.Context(), question("Hello?"))
				var e *Error
				if !errors.As(err, &e) || len(at) != len(x.pauses)+1 {
					t.Fatalf("%d attempts, error %v; want %d", len(at), err, len(x.pauses)+1)
				}
				for i, p := range x.pauses {
					if got := at[i+1].Sub(at[i]); got < p[0] || got > p[1] {
						t.Errorf("pause %d = %s, want %s to %s", i+1, got, p[0], p[1])
					}
				}
			})
		})
	}
}

// A call whose context ends before the next attempt could begin returns at once, with the reason.
func TestCallDoesNotWaitPastItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, Options{}, func(*http.Request) (*http.Response, error) {
			return respond(429, map[string]string{"Retry-After": "30"}, strings.NewReader("")), nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 29*time.Second)
		defer cancel()
		began := time.Now()
		_, err := c.Complete(ctx, question("Hello?"))
		var e *Error
		if !errors.As(err, &e) || e.RetryAfter != 30*time.Second || time.Since(began) != 0 {
			t.Errorf("error %v after %s, want that of the endpoint at once", err, time.Since(began))
		}
	})
}

func TestContextEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, Options{}, func(*http.Request) (*http.Response, error) {
			return respond(429, map[string]string{"Retry-After": "30"}, strings.NewReader("")), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		began := time.Now()
		if _, err := c.Complete(ctx, question("Hello?")); !errors.Is(err, context.Canceled) ||
			time.Since(began) != 10*time.Second {
			t.Errorf("error %v after %s, want %v after 10s", err, time.Since(began), context.Canceled)
		}
	})
}

// A pipeBody is the body of an answer that a test writes while it is read. It breaks with its
// request.
func pipeBody(r *http.Request) (*http.Response, *io.PipeWriter) {
	read, write := io.Pipe()
	context.AfterFunc(r.Context(), func() { write.CloseWithError(r.Context().Err()) })
	return respond(200, nil, read), write
}

// The timeouts of providers, in virtual time: each endpoint falls silent, at once or after a token.
func TestTimeoutsOfProviders(t *testing.T) {
	for _, x := range []struct {
		url, provider  string
		first, between time.Duration
	}{
		{"http://localhost:11434/v1", "", 30 * time.Second, 2 * time.Minute},
		{"http://ollama.internal/v1", "", 30 * time.Second, 2 * time.Minute},
		{"https://openrouter.ai/api/v1", "", time.Minute, time.Minute},
		{"https://api.openai.com/v1", "", time.Minute, time.Minute},
		{"http://gpu:8000/v1", "Ollama", 30 * time.Second, 2 * time.Minute},
		{"http://gpu:11434/v1", "vllm", time.Minute, time.Minute},
	} {
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprint(x.url, x.provider, begun), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newClient(t, Options{Retries: -1, Models: []Endpoint{{BaseURL: x.url, Provider: x.provider,
						Model: "m"}}},
						func(r *http.Request) (*http.Response, error) {
							res, w := pipeBody(r)
							if begun {
								go io.WriteString(w, frames(says("Hi")))
							}
							return res, nil
						})
					began, want := time.Now(), x.first
					if begun {
						want = x.between
					}
					_, err := c.Complete(t.Context(), question("Hello?"))
					var e *Error
					if !errors.As(err, &e) || e.Code != CodeTimeout || time.Since(began) != want {
						t.Errorf("error %v after %s, want %s after %s", err, time.Since(began), CodeTimeout, want)
					}
				})
			})
		}
	}
}

// The time that the caller takes for a piece is not the endpoint's.
func TestSlowCallerIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, Options{Retries: -1}, func(r *http.Request) (*http.Response, error) {
			res, w := pipeBody(r)
			go func() {
				io.WriteString(w, frames(says("a")))
				io.WriteString(w, frames(says("b"), stops("stop"), "[DONE]")) // when the first is read
				w.Close()
			}()
			return res, nil
		})
		r := question("Hello?")
		r.OnText = func(string) error { time.Sleep(time.Hour); return nil }
		if res, err := c.Complete(t.Context(), r); err != nil || res.Message.Content != "ab" {
			t.Errorf("answer = %+v (error %v), want ab", res, err)
		}
	})
}

// A stream that stays open after the answer is left after a moment.
func TestStreamThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, Options{Retries: -1}, func(r *http.Request) (*http.Response, error) {
			res, w := pipeBody(r)
			go io.WriteString(w, frames(says("a"), stops("stop")))
			return res, nil
		})
		began := time.Now()
		if res, err := c.Complete(t.Context(), question("Hello?")); err != nil || res.Message.Content != "a" ||
			!res.Usage.Estimated {
			t.Errorf("answer = %+v (error %v), want a, with an estimated usage", res, err)
		}
		if took := time.Since(began); took != finishGrace {
			t.Errorf("the call took %s, want %s", took, finishGrace)
		}
	})
}

// Endpoints refuse fields that they do not know. The request is sent again without them, also when
// several calls learn it at the same time, and later calls do not send them.
func TestUnknownFieldsAreLeftOut(t *testing.T) {
	refuse := map[string]string{
		`"stream_options"`: `{"detail":"Extra inputs are not permitted: stream_options"}`,
		`"max_tokens"`: `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this ` +
			`model. Use ` +
			`'max_completion_tokens' instead."}}`,
		`"temperature"`: `{"error":{"message":"Unsupported value: 'temperature' does not support 0.2 with this ` +
			`model."}}`,
	}
	var mu sync.Mutex
	requests := 0
	w := serveHTTP(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		requests++
		mu.Unlock()
		for field, answer := range refuse {
			if strings.Contains(string(text), field) {
				w.WriteHeader(http.StatusUnprocessableEntity)
				io.WriteString(w, answer)
				return
			}
		}
		io.WriteString(w, frames(says("Hello."), stops("stop")))
	}))
	r := question("Hello?")
	temperature := 0.2
	r.MaxTokens, r.Temperature = 100, &temperature
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if res, err := w.Complete(t.Context(), r); err != nil || res.Message.Content != "Hello." {
				t.Errorf("answer = %+v (error %v), want Hello.", res, err)
			}
		})
	}
	calls.Wait()
	mu.Lock()
	before := requests
	mu.Unlock()
	_, err := w.Complete(t.Context(), r)
	mu.Lock()
	defer mu.Unlock()
	if err != nil || requests-before != 1 {
		t.Errorf("%d requests (error %v), want 1: the endpoint is known", requests-before, err)
	}
}

// DeepSeek demands the reasoning of its calls, and Gemini their signature. Others refuse both.
func TestReasoningAndSignaturesArePassedBack(t *testing.T) {
	const signature = `{"google":{"thought_signature":"c2ln"}}`
	for _, x := range []struct{ name, refused, message, sent, unsent string }{
		{"DeepSeek", `"reasoning_content":"hm"`,
			"The reasoning_content in the thinking mode must be passed back to the API.",
			`"reasoning_content":"hm"`, ""},
		{"Gemini", signature, "Function call is missing a thought_signature", signature, `"reasoning_content"`},
		{"strict", "", "Unknown parameter: 'messages[1].tool_calls[0].extra_content'.", "", "extra_content"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var last string
			w := serveHTTP(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, _ := io.ReadAll(r.Body)
				last = string(text)
				good := strings.Contains(last, x.refused)
				if x.refused == "" {
					good = !strings.Contains(last, x.unsent)
				}
				switch {
				case !strings.Contains(last, `"tool"`):
					io.WriteString(w, frames(`{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}`, calling(
						`{"index":0,"id":"a","function":{"name":"now","arguments":"{}"},"extra_content":`+
							signature+`}`),
						stops("tool_calls")))
				case !good:
					w.WriteHeader(http.StatusBadRequest)
					io.WriteString(w, `{"error":{"message":"`+x.message+`"}}`)
				default:
					io.WriteString(w, frames(says("Noon."), stops("stop")))
				}
			}))
			r := question("What time is it?")
			res, err := w.Complete(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			r.Messages = append(r.Messages, res.Message, Message{Role: ToolRole, ToolCallID: "a", Content: "12:00"})
			if res, err = w.Complete(t.Context(), r); err != nil || res.Message.Content != "Noon." {
				t.Fatalf("answer = %+v (error %v), want Noon.", res, err)
			}
			if !strings.Contains(last, x.sent) || x.unsent != "" && strings.Contains(last, x.unsent) {
				t.Errorf("last request = %s, want %q in it and not %q", last, x.sent, x.unsent)
			}
		})
	}
}
