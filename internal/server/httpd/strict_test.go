package httpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// bodyTypes are the types of the bodies that routes take, each once.
func bodyTypes() (out []reflect.Type) {
	for _, r := range (&Server{}).table() {
		if r.in != reflect.TypeFor[none]() && !slices.Contains(out, r.in) {
			out = append(out, r.in)
		}
	}
	return out
}

// agree checks that checkStrict refuses what the walk over the tokens of encoding/json refuses, for the same field and
// with the same code, and that what is taken is decoded as encoding/json does. It tells whether it is taken.
func agree(t testing.TB, b []byte, of reflect.Type) (taken bool) {
	t.Helper()
	into := reflect.New(of).Interface()
	got, want := decodeStrict(b, into), walkTokens(b, of)
	if (got == nil) != (want == nil) || perdure.CodeOf(got) != perdure.CodeOf(want) {
		t.Fatalf("as %s: %v, want %v\n%.2000q", of, got, want, b)
	}
	if want != nil {
		// Where JSON ends is found by one before and by the other after the field.
		noJSON := strings.Contains(got.Error(), "is not valid JSON") ||
			strings.Contains(want.Error(), "is not valid JSON")
		if x, y := got.(*perdure.Error), want.(*perdure.Error); x.Field != y.Field && !noJSON {
			t.Fatalf("as %s: %v, want %v\n%.2000q", of, got, want, b)
		}
		return false
	}
	plain := reflect.New(of).Interface()
	if err := json.Unmarshal(b, plain); err != nil || !reflect.DeepEqual(into, plain) {
		t.Fatalf("as %s: decoded as\n%+v\nwant (%v)\n%+v\n%.2000q", of, into, err, plain, b)
	}
	return true
}

// ordinary are bodies as clients send them.
var ordinary = []struct {
	name string
	of   reflect.Type
	body string
}{
	{"submission", reflect.TypeFor[api.StartRun](),
		`{"kind":"report","input":{"topic":"tides","depth":3,"sources":["a","b"],"strict":true,"after":null},
"queue":"default","class":"background",
		"priority":-3,"timeout":"10m","delay":"1m30s","run_at":"2026-01-02T15:04:05.123456Z","max_attempts":5,
"metadata":{"team":"sea","cost":"low"},"messages":[{"role":"user",
"content":"tell me of \u003ctides\u003e \ud83d\ude00"}],"wait":"30s"}`},
	{"poll", reflect.TypeFor[pollBody](),
		`{"queues":["default","mail"],"kinds":["report"],"slots":32,"wait":"30s","start":true,"news":true,` +
			`"holding":[{"run_id":"r","epoch":3}]}`},
	{"heartbeat", reflect.TypeFor[api.Beats](),
		`{"runs":[{"run_id":"0196f0a1-0000-7000-8000-000000000001","epoch":3,"activity":"thinking",` +
			`"progress":{"done":0.25,"of":1e3}},{"run_id":"0196f0a1-0000-7000-8000-000000000002","epoch":1,` +
			`"cancel_ack":true}]}`},
	{"release", reflect.TypeFor[api.ReleaseRuns](),
		`{"runs":[{"run_id":"0196f0a1-0000-7000-8000-000000000001","epoch":3}]}`},
	{"ends", reflect.TypeFor[api.Commits](), `{"commits":[` +
		strings.TrimSuffix(strings.Repeat(`{"commit_id":"c1","run_id":"0196f0a1-0000-7000-8000-000000000001",`+
			`"epoch":1,"outcome":{"type":"complete","result":{"ok":true,"n":12}}},`, 16), ",") + `]}`},
	{"step", reflect.TypeFor[api.Commits](),
		`{"commits":[{"commit_id":"c1","run_id":"0196f0a1-0000-7000-8000-000000000001","epoch":1,` +
			`"journal":[{"key":"ask#1","value":{"model":"m","text":"` +
			strings.Repeat(`a line of an answer\n\"quoted\" 日本 `, 40) +
			`","usage":{"in":812,"out":344,"cost":0.0031}}},{"key":"now","value":1.5e-7},{"key":"none",` +
			`"value":null}],` +
			`"ack":[1,2,3]}]}`},
	{"fan-out", reflect.TypeFor[api.Commits](),
		`{"commits":[{"commit_id":"c2","run_id":"0196f0a1-0000-7000-8000-000000000001","epoch":1,
"journal":[{"key":"plan","value":["a","b"]}],
		"children":[{"key":"a","kind":"part","input":{"part":1},"queue":"parts","timeout":"5m","metadata":{"n":"1"}},
{"key":"b","kind":"part","input":{"part":2},"on_parent_end":"cancel"}],
		"waits":[{"id":"all","type":"children","mode":"all","keys":["a","b"],"timeout":"never","on_stall":true},
{"id":"ok","type":"approval","name":"send","approval":{"title":"Send it?","action":{"to":"all"},"form":[{"name":"n",
"type":"number","required":true}]}}],
		"close":["old"],"messages":[{"role":"assistant","content":{"text":"at work"}}],
"events":[{"type":"app:progress","data":{"at":1}},{"type":"app:delta","data":"to"}],"outcome":{"type":"suspend",
"waits":["all","ok"]}}]}`},
	{"failure", reflect.TypeFor[api.Commits](),
		`{ "commits" : [ {"commit_id":"c3","run_id":"0196f0a1-0000-7000-8000-000000000001",` +
			`"epoch":9007199254740993,"cancel_ack":false,"outcome":{"type":"fail","error":{"code":"tool",` +
			`"message":"it said \"no\""},"retryable":false}}]}` + "\n"},
	{"vector", reflect.TypeFor[api.UseCallback](), `{"result":[` + strings.Repeat(`0.0123456789,-1.5e-05,`, 1500) +
		`0]}`},
	{"signal", reflect.TypeFor[api.SendSignal](), `{"data":{"go":true}}`},
	{"decision", reflect.TypeFor[api.Decide](),
		`{"decision":"approve","comment":"fine","answer":{"n":3},"action_hash":"ab"}`},
	{"nothing", reflect.TypeFor[api.CancelRun](), `{}`},
}

func TestStrictAcceptsOrdinaryBodies(t *testing.T) {
	for _, o := range ordinary {
		if !agree(t, []byte(o.body), o.of) {
			t.Errorf("%s is refused: %v", o.name, checkStrict([]byte(o.body), o.of))
		}
	}
	for _, of := range bodyTypes() {
		for seed := range uint64(100) {
			g := gen{Rand: rand.New(rand.NewPCG(seed, 0))}
			g.value(of)
			if !agree(t, g.Bytes(), of) {
				t.Fatalf("%s: %v\n%s", of, checkStrict(g.Bytes(), of), g.Bytes())
			}
		}
	}
}

// Two readers that have nothing in common say the same: of the requests that are refused, and of bodies of any route
// with something odd in them.
func TestStrictAgreesWithTokens(t *testing.T) {
	stage.NoRace(t)
	stage.NoStore(t)
	types := bodyTypes()
	for _, rows := range badRows(t) {
		for _, row := range rows {
			b := []byte(strings.ReplaceAll(row.body(t), "$EPOCH", "1"))
			if len(b) > maxBody {
				continue // nobody reads it
			}
			as := types
			if len(b) > 1<<20 { // these take their time, and are meant for a few
				as = []reflect.Type{reflect.TypeFor[api.StartRun](), reflect.TypeFor[api.Commits](),
					reflect.TypeFor[api.Beats](), reflect.TypeFor[api.UseCallback]()}
			}
			for _, of := range as {
				agree(t, b, of)
			}
		}
	}
	for _, value := range oddValues {
		agree(t, []byte(`{"data":`+value+`}`), reflect.TypeFor[api.SendSignal]())
		agree(t, []byte(`{"data":[{"in":`+value+`}]}`), reflect.TypeFor[api.SendSignal]())
		for name := range fieldsOf(reflect.TypeFor[api.StartRun]()) {
			agree(t, []byte(`{"`+name+`":`+value+`}`), reflect.TypeFor[api.StartRun]())
		}
	}
	var taken, refused int
	for _, of := range types {
		for seed := range uint64(1500) {
			g := gen{Rand: rand.New(rand.NewPCG(seed, 1)), odd: 0.05}
			g.value(of)
			b := g.Bytes()
			if seed%3 == 0 {
				b = g.garble(b)
			}
			if agree(t, b, of) {
				taken++
			} else {
				refused++
			}
		}
	}
	if taken < 1000 || refused < 1000 {
		t.Errorf("the odd bodies are of one kind: %d taken, %d refused", taken, refused)
	}
}

func FuzzStrictAgrees(f *testing.F) {
	types := bodyTypes()
	for _, rows := range badRows(f) {
		for _, row := range rows {
			if b := row.body(f); len(b) < 4<<10 {
				f.Add(uint8(len(b)), []byte(b))
			}
		}
	}
	for _, o := range ordinary {
		f.Add(uint8(slices.Index(types, o.of)), []byte(o.body))
	}
	for _, value := range oddValues {
		if len(value) < 4<<10 {
			f.Add(uint8(slices.Index(types, reflect.TypeFor[api.SendSignal]())), []byte(`{"data":`+value+`}`))
		}
	}
	f.Fuzz(func(t *testing.T, of uint8, b []byte) { agree(t, b, types[int(of)%len(types)]) })
}

// oddValues are right in some places, and nowhere else.
var oddValues = []string{
	`null`, `true`, `false`, `nul`, `tru`, `True`, `0`, `-0`, `-`, `01`, `1.`, `.5`, `1e`, `1e+`, `+1`, `1.5`, `1e2`,
	`-1.5E-3`, `1e308`, `1e309`, `-1e999`, `0.1e-999`, `9223372036854775807`, `9223372036854775808`,
	strings.Repeat("9", 300), strings.Repeat("9", 309), `-` + strings.Repeat("9", 310), `"30s"`, `"-30s"`, `"never"`,
	`" 30s "`, `"3\u0030s"`, `"2026-01-02T15:04:05Z"`, `"2026-13-02T15:04:05Z"`, `"2026-01-02"`,
	`""`, `"a`, `"\"`, `"\x"`, `"\u12"`, `"\u12g4"`, `"\u0000"`, `"\ud800"`, `"\udc00"`, `"\ud83d\ude00"`,
	`"\uD83D\uDE00"`, `"\ud800\u0041"`, `"\\u0000"`, `"\\\u0000"`, "\"\x00\"", "\"\x1f\"", "\"\n\"", "\"\x7f\"",
	"\"\xff\"", "\"\xed\xa0\x80\"", "\"\u2028\"",
	`{}`, `[]`, `[,]`, `[1,]`, `[1 2]`, `[1`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":1`,
	`[null]`, `["a",null]`, `[1,"a"]`, `{"a":null}`, `{"a":"b"}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"\u0061":1}`,
	`{"":1,"":2}`,
	`{"a":{"b":1},"b":{"a":1}}`, `{"a":{"b":1},"a":1}`, `[{"a":1},{"a":1}]`, `{"x":[{"a":1,"b":{"a":1,"a":1}}]}`,
	`{"A":1,"a":2}`, " \t\r\n1 ", "1\v", `1/**/`, `1}{`, `1} `, `1},`, `NaN`,
	strings.Repeat("[", 63) + strings.Repeat("]", 63), strings.Repeat("[", 64) + strings.Repeat("]", 64),
	strings.Repeat("[", 65) + strings.Repeat("]", 65), strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64),
	strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), strings.Repeat("[", 20_000),
	`[` + strings.Repeat(`"a",`, 999) + `"a"]`, `[` + strings.Repeat(`"a",`, 1000) + `"a"]`,
	`[` + strings.Repeat("1,", 1000) + `1]`, many(100), many(1000), many(1001), `{"k0":"v",` + many(200)[1:],
	`"` + strings.Repeat("x", perdure.MaxValue-2) + `"`, `"` + strings.Repeat("x", perdure.MaxValue-1) + `"`,
	`[` + strings.Repeat(" ", perdure.MaxValue) + `]`, strings.Repeat(" ", perdure.MaxValue) + `1`,
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":"v"`, i)
	}
	return "{" + b.String()[1:] + "}"
}

// A gen writes a body of a type.
type gen struct {
	*rand.Rand
	bytes.Buffer
	odd float64 // how often something odd stands in a place
}

func (g *gen) one(of ...string) { g.WriteString(of[g.IntN(len(of))]) }

func (g *gen) value(t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	g.one("", "", "", " ", "\n\t")
	switch {
	case g.Len() > 1 && g.Float64() < g.odd:
		for {
			v := oddValues[g.IntN(len(oddValues))]
			if len(v) < 40<<10 {
				g.WriteString(v)
				return
			}
		}
	case isRaw(t):
		g.one(`null`, `"text"`, `-1.25e-3`, `[1,[2,{"a":[]}],""]`,
			`{"a":{"b":1,"c":"\u003c\n"},"b":[{"a":true},{"a":false}]}`, "{ }", `"日本 😀"`)
	case t == reflect.TypeFor[perdure.Duration]():
		g.one(`"30s"`, `"1h15m"`, `"never"`, `"0s"`)
	case t == reflect.TypeFor[perdure.Instant]():
		g.one(`"2026-01-02T15:04:05Z"`, `"2026-01-02T15:04:05.000001+02:00"`)
	case t.Kind() == reflect.Struct:
		fields := fieldsOf(t)
		names := slices.Sorted(maps.Keys(fields))
		g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		g.object(names[:g.IntN(len(names)+1)], func(name string) {
			of := fields[name]
			switch {
			case g.IntN(8) == 0:
				g.WriteString("null")
			case g.odd == 0 && boundsOf(t)[name].zero && of == reflect.TypeFor[perdure.Duration]():
				g.one(`"30s"`, `"1h15m"`)
			case g.odd == 0 && boundsOf(t)[name].zero:
				g.one("1", "42", "-1") // any other mistake is reported by the reader
			default:
				g.value(of)
			}
		})
	case t.Kind() == reflect.Map:
		g.object([]string{"a", "b", "日本", "a b", ""}[:g.IntN(6)], func(string) { g.value(t.Elem()) })
	case t.Kind() == reflect.Slice:
		g.WriteByte('[')
		for i := range g.IntN(4) {
			if i > 0 {
				g.WriteByte(',')
			}
			g.value(t.Elem())
		}
		g.WriteByte(']')
	case t.Kind() == reflect.Bool:
		g.one("true", "false")
	case t.Kind() == reflect.String:
		g.one(`""`, `"a"`, `"default"`, `"a \"b\" \u00e9 \\ \/"`, `"日本 😀"`)
	default:
		g.one("0", "-1", "42", "2147483647")
	}
	g.one("", "", "", " ")
}

func (g *gen) object(names []string, value func(name string)) {
	g.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			g.WriteByte(',')
		}
		if g.Float64() < g.odd {
			switch g.IntN(4) {
			case 0:
				name = strings.ToUpper(name)
			case 1:
				name = names[g.IntN(len(names))]
			case 2:
				name = `\u0061` + name
			case 3:
				name = "of_no_field"
			}
		}
		g.WriteString(`"` + name + `":`)
		value(names[i])
	}
	g.WriteByte('}')
}

// garble copies, drops or replaces a few bytes.
func (g *gen) garble(b []byte) []byte {
	b = bytes.Clone(b)
	for range 1 + g.IntN(2) {
		from := g.IntN(len(b))
		to := min(from+1+g.IntN(12), len(b))
		switch g.IntN(4) {
		case 0:
			b = slices.Insert(b, from, b[from:to]...)
		case 1:
			b = slices.Delete(b, from, min(to, from+len(b)-1))
		case 2:
			b[from] = `{}[]",:\u0n1-. eE`[g.IntN(17)]
		case 3:
			b = slices.Insert(b, from, `{}[]",:\u0n1-. eE`[g.IntN(17)])
		}
	}
	return b
}

func BenchmarkStrict(b *testing.B) {
	for _, o := range ordinary {
		body := []byte(o.body)
		for _, way := range []struct {
			name string
			f    func() error
		}{
			{"check", func() error { return checkStrict(body, o.of) }},
			{"unmarshal", func() error { return json.Unmarshal(body, reflect.New(o.of).Interface()) }},
			{"decode", func() error { return decodeStrict(body, reflect.New(o.of).Interface()) }},
		} {
			b.Run(o.name+"/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					if err := way.f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// Answers speak of runs and of what was asked, and not of the server's own types and layouts.
func TestRefusalsDoNotLeakInternals(t *testing.T) {
	w := newWorld(t, setup{})
	queued := w.start(`{"kind":"job"}`)
	g := w.running(`{"kind":"other"}`)
	w.commits(g, `"waits":[{"id":"s","type":"signal","name":"go"}],"outcome":{"type":"suspend"}`)
	start := func(id, epoch any) string {
		return string(w.do("POST", "/api/v1/workers/w/start", `{"runs":[{"run_id":%q,"epoch":%v}]}`, id, epoch).body)
	}
	texts := []string{start(queued, 0), start(g["run_id"], g["epoch"]), string(w.commit(g, complete).body),
		string(w.do("POST", "/api/v1/runs", `{"kind":"job","run_at":"tomorrow"}`).body),
		string(w.do("POST", "/api/v1/runs", `{"kind":"job","run_at":"2026-13-01T00:00:00Z"}`).body),
		string(w.do("POST", "/api/v1/runs", `{"kind":"job","run_at":5}`).body)}
	for _, row := range perdure.Transitions {
		for _, text := range texts {
			if regexp.MustCompile(`\b` + row.On + `\b`).MatchString(text) {
				t.Errorf("an answer has the event %s: %s", row.On, text)
			}
		}
	}
	for _, text := range texts {
		for _, leak := range []string{"2006-01-02", "parsing time", "Time.UnmarshalJSON", "cannot parse"} {
			if strings.Contains(text, leak) {
				t.Errorf("an answer has %q: %s", leak, text)
			}
		}
	}
}

// A wait's timeout is exact: one of 0s passes at once. Without one the wait has suspend_timeout.
func TestWaitTimeoutOfZeroPassesAtOnce(t *testing.T) {
	for _, c := range []struct {
		name, wait string
		passed     bool
	}{
		{"0s", `{"id":"s","type":"signal","name":"go","timeout":"0s"}`, true},
		{"callback of 0s", `{"id":"s","type":"callback","timeout":"0s"}`, true},
		{"none", `{"id":"s","type":"signal","name":"go"}`, false},
		{"null", `{"id":"s","type":"signal","name":"go","timeout":null}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{})
			g := w.running(`{"kind":"job"}`)
			w.commits(g, `"waits":[`+c.wait+`]`)
			opened := w.events(fmt.Sprint(g["run_id"]))
			line := opened[len(opened)-1]
			passed := line["data"].(obj)["timeout_at"] == line["at"]
			if line["type"] != "wait:opened" || passed != c.passed {
				t.Errorf("%v: passes at once: %v, want %v", line, passed, c.passed)
			}
		})
	}
}
