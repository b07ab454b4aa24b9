package perdure

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestCheckValueRefusesBadJSON(t *testing.T) {
	for value, code := range map[string]Code{
		`{"a":1}`: "", `null`: "", `"\u00e9"`: "", `"\ud83d\ude00"`: "", `"\\u0000"`: "", `1e400`: "",
		``: CodeInvalid, `{`: CodeInvalid, `{"a":1} x`: CodeInvalid, `"\u0000"`: CodeInvalid, `"\ud800"`: CodeInvalid,
		`"\udc00"`:       CodeInvalid,
		`"\ud800\u0041"`: CodeInvalid, `"\ud800x"`: CodeInvalid, `"\ud800`: CodeInvalid, "\"\xff\"": CodeInvalid,
		"\"\x00\"": CodeInvalid, `NaN`: CodeInvalid,
		`{"a\u0000":1}`: CodeInvalid, "\xef\xbb\xbf1": CodeInvalid,
		`"` + strings.Repeat("a", MaxValue) + `"`: CodeTooLarge,
	} {
		if got := CodeOf(CheckValue("v", json.RawMessage(value))); got != code {
			t.Errorf("CheckValue(%.40q): code %q, want %q", value, got, code)
		}
	}
}

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"job": true, "check-disk": true, "a/b:c#1": true, "größe": true, "_x": true, "two words": true,
		strings.Repeat("a", MaxName):   true,
		strings.Repeat("a", MaxName+1): false,

		" a": false, "a ": false, "..": false, "../etc/passwd": false, "a/../b": false, "/abs": false, "": false,
		"-rf": false, "a\x00b": false, "a\nb": false, "a\u202eb": false, "a\u200bb": false, "a'b": false,
		`a"b`: false, "a%b": false, "a;b": false, "a\\b": false, "a*": false, "\xff": false,
	} {
		if got := CheckName("kind", name) == nil; got != ok {
			t.Errorf("CheckName(%q) accepts it: %v, want %v", name, got, ok)
		}
	}
}

func TestSubmissionErrorNamesTheField(t *testing.T) {
	for field, s := range map[string]Submission{
		"kind":               {},
		"queue":              {Kind: "k", Queue: "a b "},
		"class":              {Kind: "k", Class: "thing"},
		"priority":           {Kind: "k", Priority: 101},
		"max_attempts":       {Kind: "k", MaxAttempts: -1},
		"input":              {Kind: "k", Input: json.RawMessage(`{`)},
		"delay":              {Kind: "k", Delay: Duration(time.Second), RunAt: start0},
		"multitask_strategy": {Kind: "k", MultitaskStrategy: "shove"},
		"on_disconnect":      {Kind: "k", OnDisconnect: "explode"},
		"messages":           {Kind: "k", Messages: []Message{{Role: "user", Content: json.RawMessage(`"hi"`)}}},
		"messages[0].role":   {Kind: "k", ThreadID: "t", Messages: []Message{{Content: json.RawMessage(`"hi"`)}}},
		"metadata":           {Kind: "k", Metadata: map[string]string{"": "v"}},
		"metadata.a":         {Kind: "k", Metadata: map[string]string{"a": "\x00"}},
		"webhook":            {Kind: "k", Webhook: "x"},
		"webhook_events":     {Kind: "k", Webhook: "https://example.com", WebhookEvents: []string{"llm:delta"}},
	} {
		err := s.Validate()
		e, _ := err.(*Error)
		if e == nil || e.Field != field {
			t.Errorf("%s: Validate = %v, want an error for this field", field, err)
		}
	}
	s := Submission{Kind: "k", ThreadID: "t"}
	if err := s.Validate(); err != nil || s.Class != Agent || s.Queue != DefaultQueue ||
		s.MultitaskStrategy != MultitaskEnqueue {
		t.Errorf("defaults: %+v, %v, want class agent, the queue %s and enqueue", s, err, DefaultQueue)
	}
}

func TestCommitErrorNamesTheField(t *testing.T) {
	one := json.RawMessage(`1`)
	many := make([]JournalEntry, MaxList+1)
	for field, c := range map[string]Commit{
		"commit_id":      {RunID: "r"},
		"run_id":         {ID: "c"},
		"journal":        {ID: "c", RunID: "r", Journal: many},
		"journal[0].key": {ID: "c", RunID: "r", Journal: []JournalEntry{{Value: one}}},
		"journal[1].key": {ID: "c", RunID: "r",
			Journal: []JournalEntry{{Key: "a", Value: one}, {Key: "a", Value: one}}},
		"journal[0].value": {ID: "c", RunID: "r", Journal: []JournalEntry{{Key: "a"}}},
		"children[0].key":  {ID: "c", RunID: "r", Children: []Spawn{{Kind: "k"}}},
		"children[1].key": {ID: "c", RunID: "r",
			Children: []Spawn{{Key: "a", Kind: "k"}, {Key: "a", Kind: "k"}}},
		"waits[0].type": {ID: "c", RunID: "r", Waits: []WaitSpec{{ID: "w", Type: "hope"}}},
		"waits[0].mode": {ID: "c", RunID: "r",
			Waits: []WaitSpec{{ID: "w", Type: WaitChildren, Mode: "some", Keys: []string{"a"}}}},
		"waits[0].keys":    {ID: "c", RunID: "r", Waits: []WaitSpec{{ID: "w", Type: WaitChildren}}},
		"waits[0].timeout": {ID: "c", RunID: "r", Waits: []WaitSpec{{ID: "w", Type: WaitTimer}}},
		"waits[0].name":    {ID: "c", RunID: "r", Waits: []WaitSpec{{ID: "w", Type: WaitSignal}}},
		"waits[0]": {ID: "c", RunID: "r",
			Waits: []WaitSpec{{ID: "w", Type: WaitSignal, Name: "s", Mode: ModeAll}}},
		"events[0].type": {ID: "c", RunID: "r", Events: []Emitted{{Type: "run:completed"}}},
		"events[0].data": {ID: "c", RunID: "r",
			Events: []Emitted{{Type: "x:y", Data: json.RawMessage(`{`)}}},
		"messages[0].content": {ID: "c", RunID: "r", Messages: []Message{{Role: "user"}}},
		"outcome.type":        {ID: "c", RunID: "r", Outcome: &Outcome{Type: "shrug"}},
		"outcome.error":       {ID: "c", RunID: "r", Outcome: &Outcome{Type: OutcomeFail}},
		"outcome.result": {ID: "c", RunID: "r",
			Outcome: &Outcome{Type: OutcomeComplete, Result: json.RawMessage(`{`)}},
		"outcome": {ID: "c", RunID: "r", Outcome: &Outcome{Type: OutcomeSuspend, Result: one}},
		"outcome.summary": {ID: "c", RunID: "r",
			Outcome: &Outcome{Type: OutcomeComplete, Summary: strings.Repeat("a", MaxText+1)}},
		"children[0].on_parent_end": {ID: "c", RunID: "r",
			Children: []Spawn{{Key: "a", Kind: "k", OnParentEnd: "weep"}}},
	} {
		err := c.Validate()
		e, _ := err.(*Error)
		if e == nil || e.Field != field {
			t.Errorf("%s: Validate = %v, want an error for this field", field, err)
		}
	}
}

func TestWorkersMayWriteOnlyTheirTypes(t *testing.T) {
	for typ, ok := range map[LineType]bool{
		"run:progress": true, "worker:tool_started": true, "llm:delta": true, "x:mine": true,
		"x:": false, "x:\x00": false, "run:completed": false, "worker:completed": false, "message:appended": false,
		"": false,
	} {
		if got := WorkerMayWrite(typ); got != ok {
			t.Errorf("WorkerMayWrite(%q) = %v, want %v", typ, got, ok)
		}
	}
}

func TestDurationsAndInstantsInJSON(t *testing.T) {
	var d Duration
	for text, want := range map[string]Duration{`"30s"`: Duration(30 * time.Second),
		`"1h15m"`: Duration(75 * time.Minute), `"never"`: Never} {
		if err := json.Unmarshal([]byte(text), &d); err != nil || d != want {
			t.Errorf("reading %s = %s, %v, want %s", text, d, err, want)
		}
		if b, _ := json.Marshal(want); want == Never && string(b) != text {
			t.Errorf("%s is written as %s", text, b)
		}
	}
	for _, text := range []string{`"-1s"`, `"soon"`, `5`, `"1e9"`} {
		if json.Unmarshal([]byte(text), &d) == nil {
			t.Errorf("the duration %s is accepted, want an error", text)
		}
	}
	b, _ := json.Marshal(start0)
	var back Instant
	if err := json.Unmarshal(b, &back); err != nil || back != start0 || string(b) != `"2026-01-02T03:04:05.000000Z"` {
		t.Errorf("%s is written as %s and read back as %s, %v", start0, b, back, err)
	}
}

func FuzzCheckValue(f *testing.F) {
	f.Add([]byte(`{"a":"\ud83d\ude00"}`))
	f.Add([]byte(`"\ud800"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if CheckValue("v", b) != nil {
			return
		}
		// An accepted value can be decoded and encoded without a replaced character.
		var v any
		dec := json.NewDecoder(strings.NewReader(string(b)))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("accepted, and not JSON: %q", b)
		}
		encoded, _ := json.Marshal(v)
		out := string(encoded)
		had := strings.Contains(string(b), "fffd") || strings.Contains(string(b), "\ufffd")
		if strings.Contains(out, "\\ufffd") && !had || strings.Contains(out, `\u0000`) {
			t.Fatalf("accepted, and a character was replaced: %q becomes %q", b, out)
		}
	})
}

func TestListsOfACommitShareOneLimit(t *testing.T) {
	keys := make([]string, 400)
	for i := range keys {
		keys[i] = "k"
	}
	acks := make([]int64, 300)
	full := func() Commit {
		return Commit{ID: "c", RunID: "r", Ack: acks, Close: keys[:200],
			Waits:   []WaitSpec{{ID: "a", Type: WaitTimer, Timeout: 1}, {ID: "b", Type: WaitChildren, Keys: keys}},
			Outcome: &Outcome{Type: OutcomeComplete, ContinueOn: keys[:99]}}
	}
	c := full()
	if err := c.Validate(); err != nil || c.Entries() != MaxCommitEntries {
		t.Errorf("a commit of %d entries: %v, want %d entries and no error", c.Entries(), err, MaxCommitEntries)
	}
	c = full()
	c.Outcome.ContinueOn = keys[:100]
	if err := c.Validate(); CodeOf(err) != CodeOverBound || err.(*Error).Field != "ack" {
		t.Errorf("a commit of %d entries: %v, want %s of its longest list", c.Entries(), err, CodeOverBound)
	}
	big := json.RawMessage(`"` + strings.Repeat("x", MaxValue-2) + `"`)
	c = Commit{ID: "c", RunID: "r"}
	for i := range 9 {
		c.Events = append(c.Events, Emitted{Type: "x:e", Data: big})
		if err := c.Validate(); (err == nil) != (i < 8) || i == 8 && CodeOf(err) != CodeOverBound {
			t.Errorf("a commit of %d bytes: %v, want %s above %d bytes", c.Size(), err, CodeOverBound, MaxCommitBytes)
		}
	}
	s := Submission{Kind: "k", ThreadID: "t", Input: json.RawMessage(`1`)}
	for range 8 {
		s.Messages = append(s.Messages, Message{Role: "user", Content: big})
	}
	if err := s.Validate(); CodeOf(err) != CodeOverBound {
		t.Errorf("a submission of %d bytes: %v, want %s", s.Size(), err, CodeOverBound)
	}
	s.Messages = s.Messages[1:]
	if err := s.Validate(); err != nil {
		t.Errorf("a submission of %d bytes: %v, want no error", s.Size(), err)
	}
}
