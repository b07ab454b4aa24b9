package mockmodel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// serve starts a scripted model.
func serve(t *testing.T, s Script) (*Handler, string) {
	t.Helper()
	h, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return h, srv.URL
}

// post sends a body, and returns the status and all that comes.
func post(t *testing.T, url, key, body string) (int, http.Header, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(text), err
}

// asks is a body with messages.
func asks(stream bool, messages ...string) string {
	return fmt.Sprintf(`{"model":"mock","stream":%v,"stream_options":{"include_usage":true},"messages":[%s]}`, stream,
		strings.Join(messages, ","))
}

func user(text string) string { return fmt.Sprintf(`{"role":"user","content":%q}`, text) }

const (
	calls = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",` +
		`"function":{"name":"df","arguments":"{}"}}]}`
	result = `{"role":"tool","tool_call_id":"c1","content":"45% used"}`
)

// The wire format, to the byte.
func TestWireFormat(t *testing.T) {
	_, url := serve(t, Script{Rules: []Rule{
		{Match: Match{Last: "call"}, Answer: Answer{Text: "So: ", Reasoning: "hm", ToolCalls: []Call{
			{Name: "df", Arguments: map[string]any{"of": "{{last}}"}, ID: "c1"}}}},
		{Answer: Answer{Text: "Hi there."}}}})
	body := asks(true, user("Hi"))
	id := mustRead(t, body).id
	envelope := func(choices, more string) string {
		return `{"id":"chatcmpl-` + id +
			`","object":"chat.completion.chunk","created":1735689600,"model":"mock","choices":[` + choices +
			`]` + more + `}`
	}
	chunk := func(delta, finish string) string {
		return "data: " + envelope(`{"index":0,"delta":`+delta+`,"finish_reason":`+finish+`}`, "") + "\n\n"
	}
	_, header, got, err := post(t, url, "", body)
	want := chunk(`{"role":"assistant","content":""}`, "null") + chunk(`{"content":"Hi "}`, "null") +
		chunk(`{"content":"there."}`, "null") +
		chunk(`{}`, `"stop"`) +
		"data: " + envelope("", counted(body, 2)) +
		"\n\ndata: [DONE]\n\n"
	if err != nil || got != want || header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("stream (error %v, type %s) =\n%s\nwant\n%s", err, header.Get("Content-Type"), got, want)
	}

	body = asks(true, user("call"))
	id = mustRead(t, body).id
	_, _, got, err = post(t, url, "", body)
	want = chunk(`{"role":"assistant","content":""}`, "null") + chunk(`{"reasoning":"hm"}`, "null") +
		chunk(`{"content":"So: "}`, "null") +
		chunk(`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"df","arguments":""}}]}`,
			"null") +
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"of\":\"c"}}]}`, "null") +
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"all\"}"}}]}`, "null") + chunk(`{}`, `"tool_calls"`) +
		"data: " + envelope("", counted(body, 5)) +
		"\n\ndata: [DONE]\n\n"
	if err != nil || got != want {
		t.Errorf("stream with a call (error %v) =\n%s\nwant\n%s", err, got, want)
	}

	body = asks(false, user("call"))
	id = mustRead(t, body).id
	_, _, got, err = post(t, url, "", body)
	want = `{"id":"chatcmpl-` + id +
		`","object":"chat.completion","created":1735689600,"model":"mock","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"So: ","reasoning":"hm","tool_calls":[{"index":0,"id":"c1",` +
		`"type":"function",` +
		`"function":{"name":"df","arguments":"{\"of\":\"call\"}"}}]},"finish_reason":"tool_calls"}]` + counted(body,
		5) + "}"
	if err != nil || got != want {
		t.Errorf("answer without a stream (error %v) =\n%s\nwant\n%s", err, got, want)
	}
}

// counted is the usage of an answer: a token for four bytes of the request, and for each piece.
func counted(body string, pieces int) string {
	tokens := (len(body) + 3) / 4
	return fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, tokens, pieces,
		tokens+pieces)
}

func mustRead(t *testing.T, body string) *request {
	t.Helper()
	q, err := readRequest([]byte(body), "")
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestFirstRuleThatMatchesAnswers(t *testing.T) {
	said := `{"role":"assistant","content":"Hello."}`
	system := `{"role":"system","content":"You watch disks."}`
	for _, x := range []struct {
		name  string
		match Match
		yes   []string // messages, or bodies
		no    []string
	}{
		{"turn", Match{Turn: 2}, []string{user("a") + "," + said + "," + user("b")}, []string{user("a")}},
		{"step", Match{Step: 2}, []string{user("a") + "," + calls + "," + result},
			[]string{user("a"), user("a") + "," + said + "," + user("b")}},
		{"role", Match{Role: "tool"}, []string{user("a") + "," + calls + "," + result}, []string{user("tool")}},
		{"last", Match{Last: "disk"}, []string{user("the disk, please")}, []string{user("a"), user("disk") + "," +
			said + "," + user("b")}},
		{"last, in parts", Match{Last: "disk"},
			[]string{`{"role":"user","content":[{"type":"text","text":"my disk"}]}`}, []string{user("a")}},
		{"regexp", Match{Regexp: `^d.sk$`}, []string{user("disk")}, []string{user("disks")}},
		{"tool", Match{Tool: "df"}, []string{user("a") + "," + calls + "," + result}, []string{user("df")}},
		{"another tool", Match{Tool: "du"}, nil, []string{user("a") + "," + calls + "," + result}},
		{"tool_result", Match{ToolResult: "45%"}, []string{user("a") + "," + calls + "," + result},
			[]string{user("45%")}},
		{"system", Match{System: "disks"}, []string{system + "," + user("a")}, []string{user("disks")}},
		{"all of them", Match{Turn: 1, Last: "disk", System: "disks", Model: "mock", Key: "k"}, []string{system +
			"," + user("disk")},
			[]string{user("disk")}},
		{"model", Match{Model: "other"}, nil, []string{user("a")}},
		{"key", Match{Key: "other"}, nil, []string{user("a")}},
		{"offers", Match{Offers: "df"}, []string{user("a") +
			`],"tools":[{"type":"function","function":{"name":"df"}}`}, []string{user("a")}},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, url := serve(t, Script{Rules: []Rule{{Match: x.match, Answer: Answer{Text: "yes"}},
				{Answer: Answer{Text: "no"}}}})
			for want, list := range map[string][]string{"yes": x.yes, "no": x.no} {
				for _, messages := range list {
					_, _, got, err := post(t, url, "k", asks(false, messages))
					if err != nil || !strings.Contains(got, `"content":"`+want+`"`) {
						t.Errorf("%s: %s (error %v), want %s", messages, got, err, want)
					}
				}
			}
		})
	}
}

func TestRuleIsUsedSoManyTimes(t *testing.T) {
	h, url := serve(t, Script{Rules: []Rule{{Name: "busy", Times: 2, Answer: Answer{Status: 503}},
		{Answer: Answer{Text: "Hi"}}}})
	for range 2 {
		for i, want := range []int{503, 503, 200, 200} {
			if status, _, _, err := post(t, url, "", asks(true, user("Hi"))); err != nil || status != want {
				t.Errorf("request %d: status %d (error %v), want %d", i+1, status, err, want)
			}
		}
		if r := h.Requests(); len(r) != 4 || r[0].Rule != "busy" || r[2].Rule != "2" || r[3].N != 4 {
			t.Errorf("records = %+v, want 4, of the rules busy and 2", r)
		}
		h.Reset()
	}
}

// The same request gets the same answer, to the byte.
func TestAnswersAreDeterministic(t *testing.T) {
	_, url := serve(t, Script{Rules: []Rule{{Answer: Answer{Text: "Hi", ToolCalls: []Call{{Name: "a"}, {Name: "b"}}}}}})
	_, _, first, _ := post(t, url, "", asks(true, user("Hi")))
	_, _, second, _ := post(t, url, "", asks(true, user("Hi")))
	_, _, other, _ := post(t, url, "", asks(true, user("Ho")))
	ids := regexp.MustCompile(`"id":"call_[0-9a-f_]+"`)
	if first != second || len(ids.FindAllString(first, -1)) != 2 || ids.FindString(first) == ids.FindString(other) {
		t.Errorf("answers\n%s\n%s\n%s\nwant the first two the same, and other ids in the third", first, second, other)
	}
}

// A conversation that providers refuse is refused.
func TestConversationsAreChecked(t *testing.T) {
	call := func(id, name, args string) string {
		return fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":%q,"type":"function","function":{"name":%q,`+
			`"arguments":%q}}]}`, id, name, args)
	}
	for _, x := range []struct{ name, messages, want string }{
		{"no messages", ``, "messages is empty"},
		{"an unknown role", `{"role":"robot","content":"a"}`, "no role"},
		{"no content", `{"role":"user"}`, "no content"},
		{"an empty answer", user("a") + `,{"role":"assistant","content":""},` + user("b"),
			"neither content nor tool_calls"},
		{"a call without a result", user("a") + "," + calls + "," + user("b"), "have no result"},
		{"a call at the end", user("a") + "," + calls, "have no result"},
		{"a result without a call", user("a") + "," + result, "names no call"},
		{"a result twice", user("a") + "," + calls + "," + result + "," + result, "names no call"},
		{"a call without an id", user("a") + "," + call("", "df", "{}"), "empty or used twice"},
		{"a malformed name", user("a") + "," + call("c1", "d f", "{}") + "," + result, "a call of type"},
		{"malformed arguments", user("a") + "," + call("c1", "df", "{") + "," + result, "no JSON object"},
		{"arguments that are no object", user("a") + "," + call("c1", "df", "null") + "," + result, "no JSON object"},
		{"a malformed tool", user("a") + `],"tools":[{"type":"function","function":{"name":"d f"}}`, "does not match"},
		{"no JSON", `{`, "not JSON"},
	} {
		h, url := serve(t, Script{Rules: []Rule{{Answer: Answer{Text: "Hi"}}}})
		status, _, got, err := post(t, url, "", asks(true, x.messages))
		if err != nil || status != 400 || !strings.Contains(got, x.want) || h.Requests()[0].Ended != "refused" {
			t.Errorf("%s: status %d, %s (error %v); want 400 and %q", x.name, status, got, err, x.want)
		}
	}
	_, url := serve(t, Script{Lenient: true, Rules: []Rule{{Answer: Answer{Text: "Hi"}}}})
	if status, _, got, _ := post(t, url, "", asks(true, result)); status != 200 {
		t.Errorf("lenient: status %d, %s; want 200", status, got)
	}
}

func TestRefusals(t *testing.T) {
	s := Script{Key: "good", Context: 100, Rules: []Rule{{Match: Match{Last: "known"}, Answer: Answer{Text: "Hi"}}}}
	_, url := serve(t, s)
	for _, x := range []struct {
		name, key, text string
		status          int
		want            string
	}{
		{"a good request", "good", "known", 200, "Hi"},
		{"a wrong key", "bad", "known", 401, "invalid_api_key"},
		{"no rule", "good", "strange", 400, "no_rule"},
		{"a long conversation", "good", strings.Repeat("known ", 100), 400, "context_length_exceeded"},
	} {
		if status, _, got, err := post(t, url, x.key, asks(true, user(x.text))); err != nil || status != x.status ||
			!strings.Contains(got, x.want) {
			t.Errorf("%s: status %d, %s (error %v); want %d and %q", x.name, status, got, err, x.status, x.want)
		}
	}
}

// How each fault looks on the wire, and in the record.
func TestFaults(t *testing.T) {
	for _, x := range []struct {
		name   string
		answer Answer
		broken bool
		has    string
		ended  string
		pieces int
	}{
		{"cut", Answer{Text: "a b c", Fault: FaultCut, FaultAfter: 2}, true, `"b "`, FaultCut, 2},
		{"cut in a call", Answer{ToolCalls: []Call{{Name: "df", Arguments: "{}"}}, Fault: FaultCut, FaultAfter: 1},
			true, `"df"`, FaultCut, 1},
		{"close", Answer{Text: "a b c", Fault: FaultClose, FaultAfter: 1}, false, `"a "`, FaultClose, 1},
		{"close after all", Answer{Text: "a b c", Fault: FaultClose, FaultAfter: 99}, false, `"c"`, FaultClose, 3},
		{"error", Answer{Text: "a b c", Fault: FaultError, FaultAfter: 1}, false, `"Provider disconnected"`,
			FaultError, 1},
		{"garbage", Answer{Text: "a b c", Fault: FaultGarbage, FaultAfter: 1}, false, "{\"content\":\"\n",
			FaultGarbage, 1},
		{"a rate limit", Answer{Status: 429, RetryAfter: "7"}, false, "rate_limit_exceeded", "refused", 0},
		{"a fault", Answer{Status: 500}, false, "server_error", "refused", 0},
		{"a body", Answer{Body: "<html>"}, false, "<html>", "refused", 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			h, url := serve(t, Script{Rules: []Rule{{Answer: x.answer}}})
			_, header, got, err := post(t, url, "", asks(true, user("Hi")))
			if (err != nil) != x.broken || !strings.Contains(got, x.has) || strings.Contains(got, "[DONE]") {
				t.Errorf("answer = %q (error %v), want %q in it, no end, and broken %v", got, err, x.has, x.broken)
			}
			if header.Get("Retry-After") != x.answer.RetryAfter {
				t.Errorf("Retry-After = %q, want %q", header.Get("Retry-After"), x.answer.RetryAfter)
			}
			eventually.True(t, "the end of the answer", func() bool { return h.Requests()[0].Ended != "" })
			if r := h.Requests()[0]; r.Ended != x.ended || r.Pieces != x.pieces {
				t.Errorf("record: ended %q after %d pieces, want %q after %d", r.Ended, r.Pieces, x.ended, x.pieces)
			}
		})
	}
}

// A caller who leaves ends an answer that would never end.
func TestSilenceEndsWithTheCaller(t *testing.T) {
	for _, x := range []struct {
		name   string
		answer Answer
		ended  string
	}{
		{"hang", Answer{Fault: FaultHang}, FaultHang},
		{"silence", Answer{Fault: FaultSilence}, FaultSilence},
		{"silence with comments", Answer{Fault: FaultSilence, Quirks: []string{QuirkComments}}, FaultSilence},
		{"a slow first token", Answer{Text: "a", FirstToken: perdure.Duration(time.Hour)}, "left"},
		{"dripping", Answer{Text: "a b", Between: perdure.Duration(time.Hour)}, "left"},
		{"endless", Answer{Text: "a ", Repeat: maxRepeat}, "left"},
	} {
		t.Run(x.name, func(t *testing.T) {
			h, url := serve(t, Script{Rules: []Rule{{Answer: x.answer}}})
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", url+"/chat/completions", strings.NewReader(asks(true,
				user("Hi"))))
			if err != nil {
				t.Fatal(err)
			}
			left := make(chan error, 1)
			go func() {
				res, err := http.DefaultClient.Do(req)
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
				left <- err
			}()
			eventually.True(t, "the request", func() bool { return len(h.Requests()) == 1 })
			cancel()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want %v", err, context.Canceled)
			}
			eventually.True(t, "the end of the answer", func() bool { return h.Requests()[0].Ended != "" })
			if r := h.Requests()[0]; r.Ended != x.ended {
				t.Errorf("record: ended %q, want %q", r.Ended, x.ended)
			}
		})
	}
}

func TestRecordOverHTTP(t *testing.T) {
	_, url := serve(t, Echo())
	post(t, url, "sk-secret", asks(true, user("Hi")))
	post(t, url, "", "no JSON")
	get := func(method, origin, host string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url+"/requests", nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		if host != "" {
			req.Host = host
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	status, text := get("GET", "", "")
	var list []Record
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != 200 || len(list) != 2 {
		t.Fatalf("status %d, %s (error %v); want two records", status, text, err)
	}
	if string(list[0].Body) != asks(true, user("Hi")) || list[0].Key != "cret" || !list[0].Stream ||
		string(list[1].Body) != `"no JSON"` {
		t.Errorf("records = %s, want both bodies, and the end of the key", text)
	}
	for _, x := range [][2]string{{"http://evil.example", ""}, {"", "evil.example"}} {
		if status, text := get("GET", x[0], x[1]); status != 403 {
			t.Errorf("record for a web page: status %d, %s; want 403", status, text)
		}
	}
	if status, _ := get("DELETE", "", ""); status != 204 {
		t.Errorf("status of DELETE = %d, want 204", status)
	}
	if _, text := get("GET", "", "localhost:1"); text != "[]\n" {
		t.Errorf("records after DELETE = %s, want none", text)
	}
}

func TestRecordIsBounded(t *testing.T) {
	h, err := New(Echo())
	if err != nil {
		t.Fatal(err)
	}
	h.most = 4000
	big := bytes.Repeat([]byte(" "), h.most/4)
	big[0] = '1'
	for range 10 {
		h.record(nil, big)
	}
	if r := h.Requests(); len(r) != 4 || r[3].N != 10 {
		t.Errorf("%d records of %d bytes, want the last 4", len(r), len(big))
	}
	h.most = maxRecorded
	for range maxRecords + 5 {
		h.record(nil, []byte("1"))
	}
	if n := len(h.Requests()); n != maxRecords {
		t.Errorf("%d records, want %d", n, maxRecords)
	}
}

func TestOtherRoutes(t *testing.T) {
	_, url := serve(t, Script{Models: []string{"a", "b"}, Rules: Echo().Rules})
	for _, x := range []struct {
		path   string
		status int
		want   string
	}{
		{"/v1/models", 200, `"id":"b"`}, {"/models", 200, `"object":"list"`}, {"/v1/embeddings", 404, "not_found"},
		{"/v1/chat/completions", 404, "not_found"},
	} {
		res, err := http.Get(url + x.path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != x.status || !strings.Contains(string(text), x.want) {
			t.Errorf("GET %s: status %d, %s; want %d and %q", x.path, res.StatusCode, text, x.status, x.want)
		}
	}
}

func TestScriptsAreChecked(t *testing.T) {
	for _, x := range []struct{ name, text, want string }{
		{"no rules", `models = ["a"]`, "at least one"},
		{"no TOML", `[[rule]`, "expected"},
		{"an unknown name", "[[rule]]\nanswr = {}", `unknown field "answr"`},
		{"an unknown fault", "[[rule]]\nname = 'x'\nanswer = { fault = 'explode' }",
			`rule 1 (x): there is no fault "explode"`},
		{"an unknown quirk", "[[rule]]\nanswer = { quirks = ['odd'] }", `there is no quirk "odd"`},
		{"a broken expression", "[[rule]]\nmatch = { regexp = '(' }", "missing closing )"},
		{"a broken delay", "[[rule]]\nanswer = { first_token = '2 seconds' }", "is not a duration"},
		{"a long delay", "[[rule]]\nanswer = { between = '1000h' }", "may be 0 to 86400"},
		{"a negative number", "[[rule]]\ntimes = -1", "times is -1"},
		{"many repetitions", "[[rule]]\nanswer = { repeat = 10000001 }", "repeat is"},
		{"a strange status", "[[rule]]\nanswer = { status = 42 }", "status is 42"},
		{"strange arguments", "[[rule]]\nanswer = { tool_calls = [{ name = 'a', arguments = 5 }] }",
			"neither a table nor a text"},
	} {
		if _, err := ParseTOML([]byte(x.text)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: error %v, want %q", x.name, err, x.want)
		}
	}
}

func TestScriptFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.toml": "[[rule]]\nanswer = { text = 'Hi', first_token = '2s' }",
		"a.json": `{"rule":[{"answer":{"text":"Hi","first_token":"2s"}}]}`,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Load(path)
		if err != nil || len(s.Rules) != 1 || s.Rules[0].Answer.Text != "Hi" ||
			time.Duration(s.Rules[0].Answer.FirstToken) != 2*time.Second {
			t.Errorf("%s: script %+v (error %v), want one rule that says Hi after 2s", name, s, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "big.toml"), bytes.Repeat([]byte("#"), maxScript+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(filepath.Join(dir, "big.toml")); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a large file: error %v, want its bound", err)
	}
}

// The scripts on the page are valid, and it names all faults and quirks.
func TestPageDescribesTheScript(t *testing.T) {
	page, err := os.ReadFile("../../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```toml script\n(.*?)^```$").FindAllSubmatch(page, -1)
	if len(blocks) < 3 {
		t.Errorf("the page has %d scripts, want some", len(blocks))
	}
	for _, b := range blocks {
		if _, err := ParseTOML(b[1]); err != nil {
			t.Errorf("error %v in\n%s", err, b[1])
		}
	}
	for _, name := range append(faults[1:], quirks...) {
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("the page does not name %s", name)
		}
	}
	for _, v := range []any{Script{}, Rule{}, Match{}, Answer{}} {
		text, _ := json.Marshal(v)
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		for name := range fields {
			if !bytes.Contains(page, []byte("`"+name+"`")) {
				t.Errorf("the page does not name the field %s of %T", name, v)
			}
		}
	}
}
