package perdure_test

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/perdure/perdure"
)

// Equal JSON values have the same hash however they are written, and different values differ.
func TestActionHashDependsOnlyOnContent(t *testing.T) {
	hash := func(text string) string {
		t.Helper()
		h, err := ActionHash(json.RawMessage(text))
		if err != nil || len(h) != len("sha256:")+64 {
			t.Fatalf("ActionHash(%s) = %q, %v, want sha256: and 64 digits", text, h, err)
		}
		return h
	}
	// Made with: printf '{"a":[1,2.50,"é\\n"],"b":null}' | sha256sum, where \n is a backslash and
	// an n.
	const want = "sha256:43b15683d46e0c2c9d3d3253a7ee108951cede60b85a4c30b6bebc9bd76e03ae"
	if got := hash(`{"b":null,"a":[1,2.50,"é\n"]}`); got != want {
		t.Errorf("hash of the example = %s, want %s", got, want)
	}
	for _, same := range [][2]string{
		{`{"a":1,"b":{"x":true,"y":[1,2]}}`, " {\n \"b\" : {\"y\":[1 ,2],\"x\":true}, \"a\":1 }\n"},
		{`"a/b<é\u20ac"`, `"\u0061\/b\u003cé€"`},
		{`"\b\t\n\f\r\u000b"`, `"\u0008\u0009\u000A\u000c\u000D\u000B"`},
		{`"\ud83d\ude00"`, `"😀"`},
	} {
		if hash(same[0]) != hash(same[1]) {
			t.Errorf("%s and %s have different hashes, want the same", same[0], same[1])
		}
	}
	for _, differ := range [][2]string{{`1`, `1.0`}, {`1`, `"1"`}, {`[1,2]`, `[2,1]`}, {`{"a":1}`, `{"a":2}`},
		{`{"a":1}`, `{"A":1}`}, {`"a"`, `"a "`}, {`[]`, `{}`},
		{`["a,b"]`, `["a","b"]`}, {`"\\n"`, `"\n"`}, {`{"a":{"b":1}}`, `{"a.b":1}`}, {`null`, `false`}, {`""`, `" "`},
		{`"\u00e9"`, `"e\u0301"`}} {
		if hash(differ[0]) == hash(differ[1]) {
			t.Errorf("%s and %s have the same hash, want different ones", differ[0], differ[1])
		}
	}
	for _, bad := range []string{``, ` `, `{`, `1 2`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, "\"\xff\"", `"\ud800"`,
		`"\u0000"`, strings.Repeat("[", 70) + strings.Repeat("]", 70)} {
		if h, err := ActionHash(json.RawMessage(bad)); CodeOf(err) != CodeInvalid {
			t.Errorf("ActionHash(%.20s) = %q, %v, want the code %s", bad, h, err, CodeInvalid)
		}
	}
}

func TestAnswerIsCheckedAgainstItsForm(t *testing.T) {
	form := []FormField{{Name: "s", Type: FieldString}, {Name: "t", Type: FieldText}, {Name: "n", Type: FieldNumber},
		{Name: "b", Type: FieldBoolean, Required: true},
		{Name: "c", Type: FieldChoice, Options: []string{"x", "y"}}}
	for answer, field := range map[string]string{
		`{"b":true}`:  "",
		`{"b":false}`: "",
		`{"b":true,"s":"one line","t":"two\nlines","n":1e400,"c":"y"}`: "",
		`{"b":true,"s":null,"t":"","n":null,"c":""}`:                   "",
		``:                            "answer.b",
		`{}`:                          "answer.b",
		`{"b":null}`:                  "answer.b",
		`{"b":"true"}`:                "answer.b",
		`{"b":1}`:                     "answer.b",
		`{"b":true,"n":"1"}`:          "answer.n",
		`{"b":true,"s":"two\nlines"}`: "answer.s",
		`{"b":true,"s":["a"]}`:        "answer.s",
		`{"b":true,"t":{}}`:           "answer.t",
		`{"b":true,"c":"z"}`:          "answer.c",
		`{"b":true,"c":["x"]}`:        "answer.c",
		`{"b":true,"z":1,"more":2}`:   "answer.more",
		`{"B":true}`:                  "answer.b",
		`[]`:                          "answer",
		`null`:                        "answer",
		`"yes"`:                       "answer",
		`{"b":true,"s":"` + strings.Repeat("x", MaxText+1) + `"}`: "answer.s",
	} {
		err := CheckAnswer(form, json.RawMessage(answer))
		e, _ := err.(*Error)
		if field == "" && err != nil || field != "" && (e == nil || e.Code != CodeAnswerInvalid || e.Field != field) {
			t.Errorf("CheckAnswer(%.60s) = %v, want an error for the field %q (none if empty)", answer, err, field)
		}
	}
	if CheckAnswer(nil, nil) != nil || CheckAnswer(nil, json.RawMessage(`{}`)) == nil {
		t.Error("without a form: an empty answer is refused, or an object is accepted")
	}
}

func TestWorkerKeysMayNotDecide(t *testing.T) {
	for _, c := range []struct {
		key Key
		ok  bool
	}{
		{Key{}, false},
		{Key{Scopes: []Scope{ScopeApprove}}, true},
		{Key{Scopes: []Scope{ScopeApprove, ScopeRead, ScopeControl, ScopeCreate, ScopeKeys, ScopeWebhooks}}, true},
		{Key{Scopes: []Scope{ScopeApprove, ScopePoll}}, false},
		{Key{Scopes: []Scope{ScopeApprove, ScopeReport}}, false},
		{Key{Scopes: Scopes}, false},
		{Key{Scopes: Scopes, Platform: true}, true},
		{Key{Scopes: []Scope{ScopeRead, ScopePoll}, Platform: true}, false},
	} {
		if err := c.key.MayDecide(); (err == nil) != c.ok || err != nil && CodeOf(err) != CodeForbidden {
			t.Errorf("key %+v: MayDecide = %v, want allowed %v", c.key, err, c.ok)
		}
	}
}
