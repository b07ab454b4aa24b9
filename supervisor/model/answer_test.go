package model

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

const weather, forecast = `{"city":"Delft"}`, `{"days":3,"where":{"x":"}{"}}`

// Each row is a way in which endpoints send the same answer.
func TestAnswerIsAssembled(t *testing.T) {
	two := []mockmodel.Call{{Name: "weather", Arguments: weather, ID: "call_a"},
		{Name: "forecast", Arguments: forecast, ID: "call_b"}}
	same := []mockmodel.Call{{Name: "weather", Arguments: weather}, {Name: "weather", Arguments: weather}}
	none := []mockmodel.Call{{Name: "now"}, {Name: "date"}}
	for _, x := range []struct {
		name   string
		answer mockmodel.Answer
		text   string
		calls  string // name and arguments of each
	}{
		{"text in words", mockmodel.Answer{Text: "Take an umbrella."}, "Take an umbrella.", ""},
		{"text in characters", mockmodel.Answer{Text: "Neem één paraplu.", Pieces: 1}, "Neem één paraplu.", ""},
		{"no text", mockmodel.Answer{}, "", ""},
		{"OpenRouter's comments", mockmodel.Answer{Text: "a b", Quirks: quirks(mockmodel.QuirkComments)}, "a b", ""},
		{"CRLF", mockmodel.Answer{Text: "a b", Quirks: quirks(mockmodel.QuirkCRLF, mockmodel.QuirkComments)}, "a b",
			""},
		{"no [DONE]", mockmodel.Answer{Text: "a b", Quirks: quirks(mockmodel.QuirkNoDone)}, "a b", ""},
		{"[DONE] without a finish_reason", mockmodel.Answer{Text: "a b", Quirks: quirks(mockmodel.QuirkNoFinish)},
			"a b", ""},
		{"no usage", mockmodel.Answer{Text: "a b", Quirks: quirks(mockmodel.QuirkNoUsage)}, "a b", ""},
		{"another Content-Type", mockmodel.Answer{Text: "a b", Quirks: quirks(mockmodel.QuirkPlainType)}, "a b", ""},
		{"JSON in spite of stream", mockmodel.Answer{Text: "a b", Quirks: quirks(mockmodel.QuirkNoStream)}, "a b", ""},
		{"calls as JSON in spite of stream", mockmodel.Answer{ToolCalls: two,
			Quirks: quirks(mockmodel.QuirkNoStream)}, "",
			"weather" + weather + " forecast" + forecast},
		{"calls in fragments", mockmodel.Answer{ToolCalls: two}, "", "weather" + weather + " forecast" + forecast},
		{"calls after text", mockmodel.Answer{Text: "Let me see.", ToolCalls: two, Pieces: 1}, "Let me see.",
			"weather" + weather + " forecast" + forecast},
		{"fragments of calls in turns", mockmodel.Answer{ToolCalls: two, Quirks: quirks(mockmodel.QuirkInterleave)}, "",
			"weather" + weather + " forecast" + forecast},
		{"whole calls", mockmodel.Answer{ToolCalls: two, Quirks: quirks(mockmodel.QuirkWholeCalls)}, "",
			"weather" + weather + " forecast" + forecast},
		{"all calls in one chunk", mockmodel.Answer{ToolCalls: two, Quirks: quirks(mockmodel.QuirkAtOnce)}, "",
			"weather" + weather + " forecast" + forecast},
		{"all calls in one chunk, without indices", mockmodel.Answer{ToolCalls: two,
			Quirks: quirks(mockmodel.QuirkAtOnce, mockmodel.QuirkNoIndex)}, "", "weather" + weather + " forecast" +
			forecast},
		{"Ollama's index 0 for every call", mockmodel.Answer{ToolCalls: two,
			Quirks: quirks(mockmodel.QuirkWholeCalls, mockmodel.QuirkIndexZero)}, "", "weather" + weather +
			" forecast" + forecast},
		{"index 0 for every call, in fragments", mockmodel.Answer{ToolCalls: two,
			Quirks: quirks(mockmodel.QuirkIndexZero)}, "", "weather" + weather + " forecast" + forecast},
		{"no indices, in fragments", mockmodel.Answer{ToolCalls: two, Quirks: quirks(mockmodel.QuirkNoIndex)}, "",
			"weather" + weather + " forecast" + forecast},
		{"no ids", mockmodel.Answer{ToolCalls: two, Quirks: quirks(mockmodel.QuirkNoID)}, "",
			"weather" + weather + " forecast" + forecast},
		{"no ids, in turns", mockmodel.Answer{ToolCalls: two, Quirks: quirks(mockmodel.QuirkNoID,
			mockmodel.QuirkInterleave)}, "",
			"weather" + weather + " forecast" + forecast},
		{"neither ids nor indices", mockmodel.Answer{ToolCalls: two,
			Quirks: quirks(mockmodel.QuirkNoID, mockmodel.QuirkNoIndex)}, "", "weather" + weather + " forecast" +
			forecast},
		{"no ids and index 0 for every call", mockmodel.Answer{ToolCalls: two,
			Quirks: quirks(mockmodel.QuirkNoID, mockmodel.QuirkIndexZero)}, "", "weather" + weather + " forecast" +
			forecast},
		{"the same call twice, without ids and with index 0", mockmodel.Answer{ToolCalls: same,
			Quirks: quirks(mockmodel.QuirkNoID, mockmodel.QuirkIndexZero, mockmodel.QuirkWholeCalls)}, "",
			"weather" + weather + " weather" + weather},
		{"calls without arguments", mockmodel.Answer{ToolCalls: none}, "", "now{} date{}"},
		{"calls without arguments, ids and indices", mockmodel.Answer{ToolCalls: none,
			Quirks: quirks(mockmodel.QuirkNoID, mockmodel.QuirkNoIndex)}, "", "now{} date{}"},
		{"calls that finish with stop", mockmodel.Answer{ToolCalls: none, Finish: "stop"}, "", "now{} date{}"},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := serve(t, Options{}, mockmodel.Rule{Answer: x.answer})
			checkAnswer(t, w.mustAsk(t), x.text, x.calls)
			eventually.True(t, "the end of the answer", func() bool { return w.Requests()[0].Ended == "complete" })
		})
	}
}

// Each row is a stream that a provider has sent, or one like it.
func TestStreamsOfProviders(t *testing.T) {
	head := func(index, id, name string) string {
		return `{` + index + `"id":"` + id + `","type":"function","function":{"name":"` + name + `","arguments":""}}`
	}
	tail := func(index, args string) string {
		return `{` + index + `"function":{"arguments":"` + strings.ReplaceAll(args, `"`, `\"`) + `"}}`
	}
	end := stops("tool_calls")
	for _, x := range []struct{ name, body, text, calls string }{
		{"content as parts", frames(`{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"Hi"},`+
			`{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}}]}`, stops("stop")), "Hi", ""},
		{"a refusal is text", frames(`{"choices":[{"index":0,"delta":{"content":null,"refusal":"No."}}]}`,
			stops("stop")),
			"No.", ""},
		{"other choices are ignored", frames(`{"choices":[{"index":1,"delta":{"content":"B"},"finish_reason":"stop"},`+
			`{"index":0,"delta":{"content":"A"}}]}`, stops("stop")), "A", ""},
		{"a whole message in a frame", frames(`{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},` +
			`"finish_reason":"stop"}]}`), "Hi", ""},
		{"the whole message again at the end", frames(says("Hi"), `{"choices":[{"index":0,"delta":{},`+
			`"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}`), "Hi", ""},
		{"empty choices and empty data", "\n\n" + frames(`{"choices":[],"prompt_filter_results":[]}`, "", says("Hi"),
			`{"choices":[]}`, stops("stop")), "Hi", ""},
		{"null for everything",
			frames(`{"id":null,"model":null,"choices":[{"index":0,"delta":{"role":null,"content":null,`+
				`"tool_calls":null},"finish_reason":null}],"usage":null,"error":null}`, says("Hi"), stops("stop")),
			"Hi",
			""},
		{"fields of other types",
			frames(`{"id":7,"model":7,"created":"now","choices":[{"index":"0","delta":{"content":"Hi",`+
				`"refusal":false,"reasoning":{}}}],"usage":"none"}`, stops("stop")), "Hi", ""},
		{"a byte order mark", "\xef\xbb\xbf" + frames(says("Hi"), stops("stop")), "Hi", ""},
		{"a last frame without its end", frames(says("Hi")) + "data: " + stops("stop"), "Hi", ""},
		{"events with ids and names", "id: 1\nevent: message\nretry: 5\n" + frames(says("Hi"), stops("stop"),
			"[DONE]"), "Hi", ""},
		{"what follows [DONE]", frames(says("Hi"), stops("stop"), " [DONE] ", "{"), "Hi", ""},
		{"garbage after the end", frames(says("Hi"), stops("stop"), "{"), "Hi", ""},
		{"an error after the end", frames(says("Hi"), stops("stop"), `{"error":{"message":"late"}}`), "Hi", ""},
		{"a NUL is left out", frames(says(`H\u0000i`), stops("stop")), "Hi", ""},
		{"arguments as an object",
			frames(calling(`{"index":0,"id":"a","function":{"name":"weather","arguments":`+weather+`}}`), end),
			"", "weather" + weather},
		{"id and name in every fragment", frames(
			calling(`{"index":0,"id":"a","function":{"name":"weather","arguments":"{\"city\":"}}`),
			calling(`{"index":0,"id":"a","function":{"name":"weather","arguments":"\"Delft\"}"}}`),
			calling(`{"index":0,"id":"a","function":{"name":"weather","arguments":""}}`), end), "", "weather" +
			weather},
		{"name in every fragment, without ids", frames(
			calling(`{"index":0,"function":{"name":"weather","arguments":"{\"city\":"}}`),
			calling(`{"index":0,"function":{"name":"weather","arguments":"\"Delft\"}"}}`),
			calling(`{"index":0,"function":{"name":"weather","arguments":""}}`), end), "", "weather" + weather},
		{"an id that comes late", frames(calling(`{"index":0,"function":{"name":"weather","arguments":""}}`),
			calling(`{"index":0,"id":"a","function":{"arguments":"{}"}}`), end), "", "weather{}"},
		{"a name in fragments", frames(calling(head(`"index":0,`, "a", "wea")),
			calling(`{"index":0,"function":{"name":"ther","arguments":"{}"}}`), end), "", "weather{}"},
		{"the head of the second call with the index of the first", frames(
			calling(head(`"index":0,`, "a", "weather")), calling(tail(`"index":0,`, weather)),
			calling(head(`"index":0,`, "b", "forecast")), calling(tail(`"index":1,`, forecast)), end),
			"", "weather" + weather + " forecast" + forecast},
		{"no arguments, and the index 0 for every call", frames(calling(head(`"index":0,`, "a", "now")),
			calling(head(`"index":0,`, "b", "date")), end), "", "now{} date{}"},
		{"indices that begin with 1", frames(calling(head(`"index":1,`, "a", "weather")), calling(tail(`"index":1,`,
			weather)),
			calling(head(`"index":2,`, "b", "now")), end), "", "weather" + weather + " now{}"},
		{"one id for two calls", frames(calling(head(`"index":0,`, "a", "weather")), calling(tail(`"index":0,`,
			weather)),
			calling(head(`"index":1,`, "a", "now")), calling(tail(`"index":1,`, "{}")), end), "", "weather" +
			weather + " now{}"},
		{"a call again, whole, at the end", frames(calling(head(`"index":0,`, "a", "weather")),
			calling(tail(`"index":0,`, weather)),
			calling(`{"index":0,"id":"a","function":{"name":"weather","arguments":"{\"city\":\"Delft\"}"}}`), end),
			"", "weather" + weather},
		{"an index far out", frames(calling(head(`"index":1000000000,`, "a", "now")), calling(head(`"index":-5,`, "b",
			"date")), end),
			"", "now{} date{}"},
	} {
		t.Run(x.name, func(t *testing.T) {
			checkAnswer(t, serve(t, Options{}, body(x.body)).mustAsk(t), x.text, x.calls)
		})
	}
}

// checkAnswer compares an answer, and checks that its calls have ids.
func checkAnswer(t *testing.T, got *Response, text, calls string) {
	t.Helper()
	var list []string
	ids := make(map[string]bool)
	for _, c := range got.Message.ToolCalls {
		list = append(list, c.Name+c.Arguments)
		if c.Invalid != "" || c.ID == "" || ids[c.ID] {
			t.Errorf("call %+v, want a valid one with an id of its own", c)
		}
		ids[c.ID] = true
	}
	if got.Message.Role != Assistant || got.Message.Content != text || strings.Join(list, " ") != calls {
		t.Errorf("answer: role %s, text %q, calls %q; want the text %q and the calls %q", got.Message.Role,
			got.Message.Content,
			list, text, calls)
	}
	if got.Finish == "" || got.Model == "" || got.Attempts != 1 {
		t.Errorf("answer = %+v, want one with a reason and a model, from 1 attempt", got)
	}
}

func quirks(list ...string) []string { return list }

// An id that an endpoint leaves out is made in a form that every endpoint accepts.
func TestMissingCallIDIsMade(t *testing.T) {
	w := serve(t, Options{}, mockmodel.Rule{Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{{Name: "now"}},
		Quirks: quirks(mockmodel.QuirkNoID)}})
	if id := w.mustAsk(t).Message.ToolCalls[0].ID; !regexp.MustCompile(`^[A-Z0-9]{9}$`).MatchString(id) {
		t.Errorf("id = %q, want nine letters and digits", id)
	}
}

// The words of a model are data: calls that nobody can carry out are returned, and say why.
func TestInvalidCallsAreReturned(t *testing.T) {
	for _, x := range []struct{ name, tool, arguments, want string }{
		{"no JSON", "weather", `{"city": Delft}`, "no JSON"},
		{"cut JSON", "weather", `{"city":`, "no JSON"},
		{"two values", "weather", `{} {}`, "no JSON"},
		{"an array", "weather", `["Delft"]`, "no JSON object"},
		{"a text", "weather", `"Delft"`, "no JSON object"},
		{"a number", "weather", `5`, "no JSON object"},
		{"no name", "", `{}`, "no tool"},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := serve(t, Options{}, mockmodel.Rule{Match: mockmodel.Match{Turn: 1},
				Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{
					{Name: x.tool, Arguments: x.arguments, ID: "a"}, {Name: "now", ID: "b"}}}},
				mockmodel.Rule{Match: mockmodel.Match{Turn: 2}, Answer: mockmodel.Answer{Text: "Sorry."}})
			r := question("Will it rain?")
			got, err := w.Complete(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			c := got.Message.ToolCalls
			if len(c) != 2 || !strings.Contains(c[0].Invalid, x.want) || c[0].Arguments != x.arguments ||
				c[1].Invalid != "" {
				t.Errorf("calls = %+v, want the first with its text, invalid because of %q, and the second valid", c,
					x.want)
			}
			// The endpoint, which checks conversations, accepts the call and its answer.
			r.Messages = append(r.Messages, got.Message, Message{Role: ToolRole, ToolCallID: "a", Content: "error: " +
				c[0].Invalid},
				Message{Role: ToolRole, ToolCallID: "b", Content: "noon"})
			if got, err = w.Complete(t.Context(), r); err != nil || got.Message.Content != "Sorry." {
				t.Errorf("second answer = %+v (error %v), want Sorry.", got, err)
			}
		})
	}
}

func TestPiecesArePassedInOrder(t *testing.T) {
	w := serve(t, Options{}, mockmodel.Rule{Answer: mockmodel.Answer{Reasoning: "Rain is wet.",
		Text: "Take an umbrella."}})
	var got []string
	r := question("Will it rain?")
	r.OnText = func(s string) error { got = append(got, s); return nil }
	r.OnReasoning = func(s string) error { got = append(got, "("+s+")"); return nil }
	tokens := 0
	r.OnToken = func() { tokens++ }
	res, err := w.Complete(t.Context(), r)
	want := []string{"(Rain )", "(is )", "(wet.)", "Take ", "an ", "umbrella."}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("pieces = %q (error %v), want %q", got, err, want)
	}
	if res.Message.Reasoning != "Rain is wet." || res.Message.Content != "Take an umbrella." {
		t.Errorf("reasoning %q, text %q; want both apart", res.Message.Reasoning, res.Message.Content)
	}
	if tokens != len(got) {
		t.Errorf("%d tokens, want %d", tokens, len(got))
	}
}

// DeepSeek and vLLM call the field reasoning_content; some send both, with the same text.
func TestReasoningIsReadOnce(t *testing.T) {
	for _, fields := range []string{`"reasoning":"hm"`, `"reasoning_content":"hm"`,
		`"reasoning":"hm","reasoning_content":"hm"`} {
		w := serve(t, Options{}, body(frames(`{"choices":[{"index":0,"delta":{`+fields+`}}]}`, says("Hi"),
			stops("stop"))))
		if got := w.mustAsk(t); got.Message.Reasoning != "hm" || got.Message.Content != "Hi" {
			t.Errorf("%s: reasoning %q, text %q; want hm and Hi", fields, got.Message.Reasoning, got.Message.Content)
		}
	}
}

func TestHundredThousandTokens(t *testing.T) {
	w := serve(t, Options{}, mockmodel.Rule{Answer: mockmodel.Answer{Text: "rain ", Repeat: 100_000}})
	pieces := 0
	r := question("Go on.")
	r.OnText = func(string) error { pieces++; return nil }
	res, err := w.Complete(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if pieces != 100_000 || len(res.Message.Content) != 500_000 || res.Usage.Output != 100_000 {
		t.Errorf("%d pieces, %d bytes, %d tokens; want 100 000 pieces and tokens with 500 000 bytes", pieces,
			len(res.Message.Content), res.Usage.Output)
	}
}
