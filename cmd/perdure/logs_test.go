package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestPrintEvent(t *testing.T) {
	for _, x := range []struct {
		typ        perdure.LineType
		data, want string
	}{
		{perdure.LineHeartbeat, `{"run_id":"r","activity":"reading the mail"}`, "reading the mail\n"},
		{perdure.LineHeartbeat, `{"run_id":"r"}`, "its worker is there\n"},
		{perdure.LineHeartbeat, `[]`, "[]\n"},
		{perdure.LineStarted, `{"run_id":"r","attempt":1}`, "{\"attempt\":1}\n"},
		{"x:text", `"` + strings.Repeat("é", 100) + `"`, `"` + strings.Repeat("é", 69) + "…\n"},
	} {
		var out strings.Builder
		if err := printEvent(&out, &api.Event{Type: x.typ, Data: json.RawMessage(x.data)}, false); err != nil ||
			!strings.HasSuffix(out.String(), " "+x.want) {
			t.Errorf("printEvent of %s %s = %q (error %v), want it to end with %q", x.typ, x.data, &out, err, x.want)
		}
	}
}

func TestRepeatedTextIsPrintedOnce(t *testing.T) {
	for name, x := range map[string]struct {
		data []string
		want string
	}{
		"no try":    {[]string{`{"text":"a"}`, `"b"`}, `"a" "b"`},
		"continued": {[]string{`{"try":1,"text":"On"}`, `{"try":1,"text":"ce"}`}, `"On" "ce"`},
		"repeated": {[]string{`{"try":1,"text":"Once"}`, `{"try":2,"text":"On"}`, `{"try":2,"text":"ce"}`},
			`"Once"`},
		"repeated, and more": {[]string{`{"try":1,"text":"On"}`, `{"try":2,"text":"Once"}`, `{"try":2,"text":"!"}`},
			`"On" "ce" "!"`},
		"different": {[]string{`{"try":1,"text":"Once"}`, `{"try":2,"text":"On"}`, `{"try":2,"text":"ly"}`},
			`"Once" (again, and different) "Only"`},
		"told late": {[]string{`{"try":1,"text":"a"}`, `{"try":2,"text":"ab"}`, `{"try":1,"text":"x"}`},
			`"a" "b"`},
		"repeated in parts": {[]string{`{"try":1,"text":"abc"}`, `{"try":2,"text":"ab"}`, `{"try":3,"text":"abcd"}`},
			`"abc" "d"`},
		"of two steps": {[]string{`{"step":"a","try":1,"text":"x"}`, `{"step":"b","try":1,"text":"x"}`,
			`{"step":"a","try":2,"text":"xy"}`}, `"x" "x" "y"`},
		"control characters": {[]string{`{"text":"a\u001b[2J\nb"}`}, `"a\u001b[2J\nb"`},
	} {
		var out strings.Builder
		p := eventPrinter{w: &out}
		for i, data := range x.data {
			e := &api.Event{Seq: int64(i + 1), Type: perdure.LineDelta, Data: json.RawMessage(data)}
			if err := p.print(e); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			_, text, _ := strings.Cut(line, string(perdure.LineDelta))
			got = append(got, strings.TrimSpace(text))
		}
		if text := strings.Join(got, " "); text != x.want {
			t.Errorf("%s: printed %s, want %s", name, text, x.want)
		}
	}
}

func TestFollowedLogShowsRepeatedTextOnce(t *testing.T) {
	c, _ := live(t)
	run, err := c.Start(t.Context(), perdure.Submission{Kind: "talks"})
	if err != nil {
		t.Fatal(err)
	}
	polled, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("Poll = %+v, %v, want the run", polled, err)
	}
	lease := polled.Runs[0]
	for n, text := range []string{"Once upon", "Once upon a time"} {
		data := fmt.Sprintf(`{"step":"tell#1","try":%d,"text":%q}`, n+1, text)
		commit := perdure.Commit{ID: fmt.Sprint(n), RunID: lease.RunID, Epoch: lease.Epoch,
			Events: []perdure.Emitted{{Type: perdure.LineDelta, Data: json.RawMessage(data)}}}
		if n == 1 {
			commit.Outcome = &perdure.Outcome{Type: perdure.OutcomeComplete}
		}
		if res, err := session.Of(c).Commit(t.Context(), "w", commit); err != nil || !res[0].OK {
			t.Fatalf("Commit = %+v, %v", res, err)
		}
	}
	for _, command := range []string{"logs -f", "fg"} {
		out, stderr := mustRun(t, 0, append(strings.Fields(command), string(run.RunID))...)
		if out += stderr; strings.Count(out, "Once upon") != 1 || !strings.Contains(out, `" a time"`) {
			t.Errorf("%s prints %s, want the repeated text once and then the rest", command, out)
		}
	}
}
