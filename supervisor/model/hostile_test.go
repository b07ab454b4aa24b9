package model

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// Servers that send without end, in every way. Nothing is kept beyond a bound, and the call ends.
func TestEndlessAnswersAreBounded(t *testing.T) {
	const limit = 16 << 10
	for _, x := range []struct{ name, first, then string }{
		{"a line", "data: ", strings.Repeat("x", 1000)},
		{"a comment", ": ", strings.Repeat("x", 1000)},
		{"comments", "", ": OPENROUTER PROCESSING\n\n"},
		{"a frame of many lines", "", "data: x\n"},
		{"empty lines", "", "\n"},
		{"spaces before anything", " ", strings.Repeat(" ", 1000)},
		{"lines that are no events", "", "hello\n"},
		{"empty chunks", "", frames(`{"choices":[]}`)},
		{"empty texts", "", frames(says(""))},
		{"text", "", frames(says(strings.Repeat("x", 100)))},
		{"reasoning", "", frames(`{"choices":[{"index":0,"delta":{"reasoning":"` + strings.Repeat("x", 100) + `"}}]}`)},
		{"calls", "", frames(calling(`{"function":{"name":"a","arguments":"{}"}}`))},
		{"calls with many names", "", frames(calling(`{"index":0,"function":{"name":"abc"}}`))},
		{"arguments", "", frames(calling(`{"index":0,"id":"a","function":{"name":"a","arguments":"xxxxxxxx"}}`))},
		{"JSON", `{"choices":[`, `{"index":1},`},
		{"nested JSON", "", `[`},
		{"text after the end", frames(stops("stop")), frames(says("x"))},
	} {
		for _, zipped := range []bool{false, true} {
			t.Run(x.name, func(t *testing.T) {
				var sent atomic.Int64
				w := serveHTTP(t, Options{MaxAnswer: limit}, http.HandlerFunc(func(w http.ResponseWriter,
					r *http.Request) {
					var out io.Writer = w
					if zipped {
						w.Header().Set("Content-Encoding", "gzip")
						z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
						out = z
					}
					then := strings.Repeat(x.then, 1+(16<<10)/len(x.then))
					_, err := io.WriteString(out, x.first)
					for err == nil && sent.Load() < 1024*limit {
						_, err = io.WriteString(out, then)
						sent.Add(int64(len(then)))
					}
				}))
				res, err := w.ask(t)
				if x.name == "text after the end" {
					if err != nil || res.Finish != "stop" {
						t.Errorf("answer = %+v (error %v), want one that ended with stop", res, err)
					}
					return
				}
				var e *Error
				if !errors.As(err, &e) || e.Code != CodeGarbage || e.Kind == Transient {
					t.Errorf("answer = %+v (error %v), want garbage that is not tried for long", res, err)
				}
				if n := sent.Load(); n >= 1024*limit && !zipped {
					t.Errorf("%d bytes were sent, want the connection to be closed long before", n)
				}
			})
		}
	}
}

// A server that drips bytes without ever sending a token is no faster than a silent one.
func TestDrippingBytesAreNoTokens(t *testing.T) {
	w := serveHTTP(t, Options{Models: []Endpoint{{FirstToken: 100 * time.Millisecond}}},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"`)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
					io.WriteString(w, "x")
					w.(http.Flusher).Flush()
				}
			}
		}))
	if e := w.mustFail(t); e.Code != CodeTimeout {
		t.Errorf("error %v, want %s", e, CodeTimeout)
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	w := serveHTTP(t, Options{Models: []Endpoint{{Key: "secret"}}}, http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			t.Errorf("request to %s: the conversation went elsewhere", r.URL.Path)
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	if e := w.mustFail(t); e.Code != CodeRefused || e.Status != http.StatusTemporaryRedirect {
		t.Errorf("error %+v, want %s", e, CodeRefused)
	}
}

// Errors with long and deep bodies are read as far as is useful.
func TestErrorBodyIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"long":   `{"error":{"message":"` + strings.Repeat("x", 10<<20) + `"}}`,
		"nested": strings.Repeat(`{"error":`, 1<<20),
		"arrays": strings.Repeat(`[`, 1<<20),
		"binary": strings.Repeat("\x00\xff", 1<<20),
	} {
		w := serveHTTP(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, text)
		}))
		if e := w.mustFail(t); e.Code != CodeRefused || len(e.Error()) > 5000 {
			t.Errorf("%s: code %s, %d bytes; want %s with at most 5000", name, e.Code, len(e.Error()), CodeRefused)
		}
	}
}

// read reads a stream without a network.
func read(r io.Reader, limit int) (*answer, error) {
	a := &answer{limit: limit, clock: newTokenClock(time.Hour, time.Hour, func(error) {})}
	defer a.clock.pause()
	a.onText = func(string) error { return nil }
	b := bufio.NewReaderSize(r, 16)
	whole, err := startsJSON(b)
	switch {
	case err != nil:
		return a, err
	case whole:
		return a, a.readWhole(b, 2*limit)
	}
	return a, a.readStream(newFrames(b, 2*limit))
}

// The result of a stream does not depend on how the network cuts it, is within its bounds, and is
// complete only if the stream says so.
func FuzzStream(f *testing.F) {
	f.Add([]byte(frames(says("Hi"), stops("stop"), `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
		"[DONE]")))
	f.Add([]byte(": OPENROUTER PROCESSING\r\n\r\ndata: " +
		calling(`{"index":0,"id":"a","function":{"name":"b","arguments":"{\"c\":"}}`) +
		"\r\n\r\ndata: " + calling(`{"index":0,"function":{"arguments":"1}"}},{"function":{"name":"d"}}`) +
		"\r\rdata: [DONE]"))
	f.Add([]byte(frames(says("Hi"), `{"error":{"message":"x","code":502}}`)))
	f.Add([]byte(`{"choices":[{"message":{"content":[{"type":"text","text":"Hi"}]},"finish_reason":"stop"}]}`))
	f.Add([]byte("event: error\ndata: {\"object\":\"error\",\"message\":\"x\"}\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		const limit = 4 << 10
		want, wantErr := read(bytes.NewReader(in), limit)
		for _, r := range []io.Reader{iotest.OneByteReader(bytes.NewReader(in)), iotest.HalfReader(bytes.NewReader(in)),
			iotest.DataErrReader(bytes.NewReader(in))} {
			got, err := read(r, limit)
			if (err == nil) != (wantErr == nil) || got.text.String() != want.text.String() ||
				got.finish != want.finish ||
				got.complete() != want.complete() || len(got.calls.list) != len(want.calls.list) {
				t.Fatalf("%q: %q %q %v, want %q %q %v", in, got.text.String(), got.finish, err, want.text.String(),
					want.finish, wantErr)
			}
		}
		if want.text.Len()+want.thoughts.Len() > limit || len(want.calls.list) > maxCalls {
			t.Fatalf("%q: %d bytes and %d calls, over the limits", in, want.text.Len()+want.thoughts.Len(),
				len(want.calls.list))
		}
		if want.complete() && !bytes.Contains(in, []byte("finish")) && !bytes.Contains(in, []byte("[DONE]")) &&
			!bytes.Contains(in, []byte(`\u`)) && !bytes.Contains(bytes.ToLower(in), []byte("finish")) {
			t.Fatalf("%q: the answer is complete, and nothing says so", in)
		}
		ids := make(map[string]bool)
		for _, c := range want.calls.finished() {
			if c.ID == "" || ids[c.ID] || c.Invalid == "" && !isObject(c.Arguments) {
				t.Fatalf("%q: call %+v, want an id of its own, and an object as arguments of a valid call", in, c)
			}
			ids[c.ID] = true
			_ = sentName(c.Name)
		}
	})
}
