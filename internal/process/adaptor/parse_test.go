package adaptor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// load returns an adaptor of an engine that exists.
func load(t testing.TB, name string) *Adaptor {
	t.Helper()
	a, err := Load(name, "")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// describe writes facts as lines.
func describe(facts []Fact) string {
	var b strings.Builder
	for _, f := range facts {
		switch f := f.(type) {
		case Text:
			fmt.Fprintf(&b, "text %q", f.Delta)
			if f.Message != "" {
				fmt.Fprintf(&b, " of %q", f.Message)
			}
		case ToolStarted:
			fmt.Fprintf(&b, "started %s %s %s", f.ID, f.Name, f.Input)
		case ToolEnded:
			fmt.Fprintf(&b, "ended %s %s %s", f.ID, f.Name, f.Output)
			if f.Failed {
				fmt.Fprintf(&b, " failed %q", f.Error)
			}
		case End:
			fmt.Fprintf(&b, "end %q", f.Text)
			if f.Failed {
				fmt.Fprintf(&b, " failed %q", f.Error)
			}
		case Usage:
			fmt.Fprintf(&b, "usage %d %d %g", f.InputTokens, f.OutputTokens, f.CostUSD)
		default:
			fmt.Fprintf(&b, "%s %s", strings.ToLower(reflect.TypeOf(f).Name()), f)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The files of testdata have the lines of a process, and after each the facts that it states, indented.
func TestLinesOfAgents(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 4 {
		t.Fatalf("files = %v (error %v), want at least four", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			engine, _, _ := strings.Cut(filepath.Base(file), "_")
			a := load(t, strings.TrimSuffix(engine, ".txt"))
			line, want := "", ""
			check := func() {
				if got := describe(a.Parse([]byte(line))); got != want {
					t.Errorf("%s\nstates\n%swant\n%s", line, got, want)
				}
			}
			for next := range strings.Lines(string(text)) {
				if fact, ok := strings.CutPrefix(next, "\t"); ok {
					want += fact
					continue
				}
				check()
				line, want = strings.TrimSuffix(next, "\n"), ""
			}
			check()
		})
	}
}

// Hostile output of a process makes no fact that the log refuses, and is parsed quickly.
func TestHostileLines(t *testing.T) {
	deep := strings.Repeat(`{"message":`, 9000) + "1" + strings.Repeat("}", 9000)
	deeper := strings.Repeat("[", 200_000)
	long := strings.Repeat("x", MaxLine-200)
	many := strings.TrimSuffix(strings.Repeat(`{"type":"tool_use","id":"a","name":"b"},`, 20_000), ",")
	for name, c := range map[string]struct {
		line string
		want string
		some int // facts that come at least, when want is empty
	}{
		"nothing":             {"", "", 0},
		"plain text":          {"Compiling…", "", 0},
		"half an object":      {`{"type":"system","subtype":"in`, "", 0},
		"an array":            {`[{"type":"result"}]`, "", 0},
		"two objects":         {`{"type":"result"} {"type":"result"}`, "", 0},
		"a line that is long": {`{"type":"result","result":"` + long + long + `"}`, "", 0},
		"deep nesting":        {deep, "", 0},
		"deeper than parsers": {deeper, "", 0},
		"deep content": {`{"type":"assistant","message":{"content":[{"type":"tool_use","id":"a","name":"b","input":` +
			strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}]}}`,
			"started a b \"" + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\"\nstatus running\n", 0},
		"wrong types": {`{"type":"result","session_id":7,"result":{"a":1},"is_error":"true","total_cost_usd":"1",` +
			`"usage":{"input_tokens":-5,"output_tokens":1e300}}`, "status waiting\nend \"\"\n", 0},
		"a type that is no text": {`{"type":["result"]}`, "", 0},
		"content that is text":   {`{"type":"user","message":{"content":"hello"}}`, "", 0},
		"no message":             {`{"type":"assistant","message":null}`, "", 0},
		"elements of all types":  {`{"type":"assistant","message":{"content":[1,"a",null,[],{}]}}`, "", 0},
		"a session that is an option": {`{"type":"system","subtype":"init","session_id":"--dangerous"}`,
			"status processing\n", 0},
		"a session that is long": {`{"type":"system","subtype":"init","session_id":"` + strings.Repeat("a", 201) + `"}`,
			"status processing\n", 0},
		"a tool without an id": {`{"type":"assistant","message":{"content":[{"type":"tool_use","name":"b"}]}}`,
			"status running\n", 0},
		"a NUL and half a character": {`{"type":"assistant","message":{"content":[{"type":"text",` +
			`"text":"a\u0000b\ud800"},` +
			`{"type":"tool_use","id":"a","name":"b","input":{"x":"\u0000"}}]}}`,
			"text \"a\uFFFDb\uFFFD\"\ntext \"\\n\" of \"a\uFFFDb\uFFFD\"\nstarted a b " +
				"\"{\\\"x\\\":\\\"\\\\u0000\\\"}\"\nstatus running\n", 0},
		"bytes that are no text": {"{\"type\":\"assistant\",\"message\":{\"content\":[" +
			"{\"type\":\"tool_use\",\"id\":\"a\"," +
			"\"name\":\"b\",\"input\":\"\xff\"}]}}", "started a b \"\uFFFD\"\nstatus running\n", 0},
		"an escaped name": {`{"t\u0079pe":"result"}`, "status waiting\nend \"\"\n", 0},
		"many blocks":     {`{"type":"assistant","message":{"content":[` + many + `]}}`, "", maxElements},
		"a megabyte of text": {`{"type":"assistant","message":{"content":[{"type":"text","text":"` +
			long[:MaxLine-300] +
			`"}]}}`, "", 60},
		"a tool call of a megabyte": {`{"type":"assistant","message":{"content":[{"type":"tool_use","id":"a",` +
			`"name":"b",` +
			`"input":"` + long[:MaxLine-300] + `"}]}}`, "", 2},
	} {
		facts := load(t, "claude-code").Parse([]byte(c.line))
		if got := describe(facts); c.some == 0 && got != c.want {
			t.Errorf("%s states\n%.400swant\n%.400s", name, got, c.want)
		}
		if len(facts) < c.some {
			t.Errorf("%s states %d facts, want at least %d", name, len(facts), c.some)
		}
		checkFacts(t, name, facts)
	}
}

// checkFacts fails if a log would refuse facts.
func checkFacts(t testing.TB, name string, facts []Fact) {
	t.Helper()
	if len(facts) > maxFacts {
		t.Errorf("%s states %d facts, want at most %d", name, len(facts), maxFacts)
	}
	for _, f := range facts {
		b, err := perdure.Marshal(f)
		if err == nil {
			err = perdure.CheckValue("fact", b)
		}
		if limit := 8 * maxText; err != nil || len(b) > limit {
			t.Errorf("%s: %.100s has %d bytes (error %v), want at most %d that a log takes", name, b, len(b),
				err, limit)
		}
		if s, ok := f.(Session); ok && strings.HasPrefix(string(s), "-") {
			t.Errorf("%s: session %q looks like an option", name, s)
		}
	}
}

func TestTextInPartsIsSaidOnce(t *testing.T) {
	part := func(text string) string {
		return `{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":` +
			text + `}}}`
	}
	whole := func(text string) string {
		return `{"type":"assistant","message":{"content":[{"type":"text","text":` + text + `}]}}`
	}
	big := `"` + strings.Repeat("é", maxText) + `"`
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"parts, then the whole": {[]string{part(`"Let me "`), part(`"look."`), whole(`"Let me look."`)},
			"Let me look.\n"},
		"the whole alone": {[]string{whole(`"One."`), whole(`"Two.\n"`)}, "One.\nTwo.\n"},
		"another whole":   {[]string{part(`"Let me"`), whole(`"Sorry."`)}, "Let me\nSorry.\n"},
		"more than is kept": {[]string{part(big), part(`"a"`), whole(big[:len(big)-1] + `a"`)},
			strings.Repeat("é", maxText) + "a\n"},
		"parts at the end": {[]string{part(`"Bye"`), `{"type":"result","result":"Bye"}`}, "Bye\n"},
	} {
		a := load(t, "claude-code")
		got := ""
		for _, l := range c.lines {
			for _, f := range a.Parse([]byte(l)) {
				if x, ok := f.(Text); ok {
					got += x.Delta
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: text %.80q of %d bytes, want %.80q of %d", name, got, len(got), c.want, len(c.want))
		}
	}
}

func TestContinue(t *testing.T) {
	for _, c := range []struct{ engine, command, session, want, err string }{
		{"claude-code", "claude -p more", "s-1", "claude -p more --resume s-1", ""},
		{"claude-code", "claude --verbose -- -p", "s-1", "claude --verbose --resume s-1 -- -p", ""},
		{"claude-code", "claude", "s-1", "claude --resume s-1", ""},
		{"codex", "codex exec --json --sandbox read-only more", "0199-a",
			"codex exec --json --sandbox read-only resume 0199-a more", ""},
		{"codex", "codex exec resume {session} more", "0199-a", "codex exec resume 0199-a more", ""},
		{"codex", "codex", "0199-a", "codex resume 0199-a", ""},
		{"gemini", "gemini -p more", "6b1e", "gemini -p more --resume 6b1e", ""},
		{"generic", "mine --session={session}", "x", "mine --session=x", ""},
		{"generic", "mine", "x", "", "has no sessions"},
		{"claude-code", "claude", "", "", "no id of a session"},
		{"claude-code", "claude", "--help", "", "no id of a session"},
		{"claude-code", "claude", "a b", "", "no id of a session"},
		{"claude-code", "", "s", "", "no command"},
	} {
		command := strings.Fields(c.command)
		before := strings.Join(command, " ")
		got, err := load(t, c.engine).Continue(command, c.session)
		if strings.Join(got, " ") != c.want || (err == nil) != (c.err == "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q with session %q = %q (error %v), want %q (error %q)", c.engine, c.command, c.session,
				got, err,
				c.want, c.err)
		}
		if after := strings.Join(command, " "); after != before {
			t.Errorf("the command became %q", after)
		}
	}
}

func TestLoad(t *testing.T) {
	for _, name := range Names("") {
		a := load(t, name)
		if a.Engine() != name || a.Reads() != (name != Generic) {
			t.Errorf("engine %s = %s, reads %v", name, a.Engine(), a.Reads())
		}
	}
	if got := strings.Join(Names(""), " "); got != "claude-code codex gemini generic" {
		t.Errorf("engines = %s", got)
	}
	if a := load(t, ""); a.Engine() != Generic || a.Parse([]byte(`{"type":"result"}`)) != nil {
		t.Errorf("no name = engine %s, want %s without facts", a.Engine(), Generic)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mine", `{"name":"mine","rules":[{"when":{"kind":"talk"},"text":"words"}]}`)
	write("codex", `{"name":"codex","rules":[{"when":{"kind":"talk"},"text":"words"}]}`)
	for _, name := range []string{"mine", "codex"} {
		a, err := Load(name, dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(a.Parse([]byte(`{"kind":"talk","words":"hi"}`))); got != "text \"hi\"\ntext \"\\n\" of "+
			"\"hi\"\n" {
			t.Errorf("engine %s of the folder states %q", name, got)
		}
	}
	if got := strings.Join(Names(dir), " "); got != "claude-code codex gemini generic mine" {
		t.Errorf("engines with those of a folder = %s", got)
	}
	for _, name := range []string{"none", "../codex", "Codex", "a/b", strings.Repeat("a", 65), "."} {
		if _, err := Load(name, dir); !errors.Is(err, ErrUnknown) {
			t.Errorf("Load(%q): error %v, want %v", name, err, ErrUnknown)
		}
	}
	for text, want := range map[string]string{
		``:                                      "EOF",
		`{"name":"other"}`:                      `of the engine "other"`,
		`{"name":"bad"} {}`:                     "follows",
		`{"name":"bad","rule":[]}`:              "unknown field",
		`{"name":"bad","rules":[{"text":"a"}]}`: "rules[0]: when",
		`{"name":"bad","rules":[{"when":{"a":1}}]}`:                                   "facts",
		`{"name":"bad","rules":[{"when":{"a":{}},"text":"a"}]}`:                       "a string",
		`{"name":"bad","rules":[{"when":{"a":[[]]},"text":"a"}]}`:                     "a string",
		`{"name":"bad","rules":[{"when":{"a":1},"text":"a..b"}]}`:                     "no path",
		`{"name":"bad","rules":[{"when":{"a":1},"partial":true,"status":"running"}]}`: "partial",
		`{"name":"bad","rules":[{"when":{"a":1},"status":"asleep"}]}`:                 "status",
		`{"name":"bad","rules":[{"when":{"a":1},"each":"b"}]}`:                        "go together",
		`{"name":"bad","rules":[{"when":{"a":1},"tool_ended":{"name":"b"}}]}`:         "its id",
		`{"name":"bad","rules":[{"when":{"a":1},"end":{"failed_when":{"a":{}}}}]}`:    "a string",
		`{"name":"bad","rules":[{"when":{"a":1},"each":"b",` +
			`"rules":[{"each":"c","rules":[{"status":"running"}]}]}]}`: "each",
		`{"name":"bad","continue":{"args":["--resume"],"place":"end"}}`:    "{session}",
		`{"name":"bad","continue":{"args":["{session}"],"place":"first"}}`: "place",
		`{"name":"bad","comment":["` + strings.Repeat("x", maxFile) +
			`"]}`: "larger",
	} {
		write("bad", text)
		if _, err := Load("bad", dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load of %.80s: error %v, want one with %q", text, err, want)
		}
	}
}

// The engine that the documentation shows is one, and understands what its comment says.
func TestDocumentedEngine(t *testing.T) {
	page, err := os.ReadFile("../../../docs/processes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json engine\n")
	text, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/processes.md has no engine: this test looks at nothing")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := Load("mine", dir)
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		`{"event":"start","conversation":{"id":"c1"}}`: "session c1\nstatus " +
			"processing\n",
		`{"event":"say","from":"model","words":"hi"}`: "text \"hi\"\ntext \"\\n\" " +
			"of \"hi\"\n",
		`{"event":"say","from":"user","words":"hi"}`:                                  "",
		`{"event":"called","call":"7","ok":false,"why":"x"}`:                          "ended 7   failed \"x\"\n",
		`{"event":"end","ok":true,"answer":"42","tokens":{"in":1,"out":2},"usd":0.5}`: "usage 1 2 0.5\nend \"42\"\n",
	} {
		if got := describe(a.Parse([]byte(line))); got != want {
			t.Errorf("%s states\n%swant\n%s", line, got, want)
		}
	}
	if got, err := a.Continue([]string{"mine"}, "c1"); err != nil ||
		strings.Join(got, " ") != "mine --conversation c1" {
		t.Errorf("continuation = %q (error %v)", got, err)
	}
	for _, name := range Names("") {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("docs/processes.md does not list the engine %s", name)
		}
	}
}

// Reading without decoding finds the same values as decoding does.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "\t") {
				f.Add([]byte(line))
			}
		}
	}
	f.Add([]byte(`{"a" : [1, {"b":"\"}"} , null ] ,"type":"x\\"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, name := range Names("") {
			checkFacts(t, name, load(t, name).Parse(line))
		}
		if !json.Valid(line) {
			return
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(line, &object) == nil && object != nil {
			got := make(map[string]string)
			members(line, func(key, value []byte) bool {
				var k string
				if err := json.Unmarshal([]byte(`"`+string(key)+`"`), &k); err != nil {
					t.Fatalf("name %q: %v", key, err)
				}
				got[k] = string(value)
				return true
			})
			if len(got) != len(object) {
				t.Fatalf("%q has members %q, want %d", line, got, len(object))
			}
			for k, v := range object {
				if got[k] != string(v) {
					t.Errorf("%q: member %q = %q, want %q", line, k, got[k], v)
				}
			}
		}
		var array []json.RawMessage
		if json.Unmarshal(line, &array) == nil {
			n := 0
			elements(line, func(v []byte) bool {
				if n >= len(array) || string(v) != string(array[n]) {
					t.Fatalf("%q: element %d = %q, want one of %q", line, n, v, array)
				}
				n++
				return true
			})
			if n != len(array) {
				t.Errorf("%q has %d elements, want %d", line, n, len(array))
			}
		}
	})
}
