package perdure

import (
	"errors"
	"testing"
)

func TestNotificationIDEncodesItsParts(t *testing.T) {
	n := Notification{RunID: "0199c2a0-1234-7abc-8def-0123456789ab", Seq: 70000,
		Webhook: RunWebhookID("t", "https://example.com", "")}
	run, seq, w, ok := ParseNotificationID(n.ID())
	if !ok || run != n.RunID || seq != n.Seq || w != n.Webhook {
		t.Errorf("ParseNotificationID(%s) = %s, %d, %s, %v, want %s, %d, %s, true",
			n.ID(), run, seq, w, ok, n.RunID, n.Seq, n.Webhook)
	}
	for _, bad := range []string{"", "msg_", "msg_AAAA", n.ID()[:len(n.ID())-1], n.ID() + "A", "dlv" + n.ID()[3:],
		n.ID() + "=", n.ID() + "\n"} {
		if _, _, _, ok := ParseNotificationID(bad); ok {
			t.Errorf("ParseNotificationID(%q) accepts it, want it refused", bad)
		}
	}
	if RunWebhookID("t", "https://example.com", "") == RunWebhookID("t", "https://example.com", FormatOpenAI) {
		t.Error("two formats have the same webhook id for the same URL")
	}
	if RunWebhookID("t", "https://example.com", "") == RunWebhookID("u", "https://example.com", "") {
		t.Error("two tenants have the same webhook id for the same URL")
	}
}

func TestWebhookEventsSelectLines(t *testing.T) {
	for _, c := range []struct {
		events     []string
		wants, not []LineType
	}{
		{nil, []LineType{LineCompleted, LineSlow, LineStale, LineDeadLettered},
			[]LineType{LineStarted, LineHeartbeat, LineDelta, "x:a"}},
		{[]string{"*"}, []LineType{LineCompleted, LineStarted, "x:a", LineMessage},
			[]LineType{LineHeartbeat, LineDelta}},
		{[]string{"run:*"}, []LineType{LineCompleted, LineStarted}, []LineType{LineHeartbeat, "x:a", LineMessage}},
		{[]string{"run:heartbeat", "x:a"}, []LineType{LineHeartbeat, "x:a"}, []LineType{"x:ab", LineCompleted}},
	} {
		if err := checkEvents("events", c.events); err != nil {
			t.Errorf("checkEvents(%v) = %v, want no error", c.events, err)
		}
		for _, l := range c.wants {
			if !WantsLine(c.events, l) {
				t.Errorf("WantsLine(%v, %s) = false, want true", c.events, l)
			}
		}
		for _, l := range c.not {
			if WantsLine(c.events, l) {
				t.Errorf("WantsLine(%v, %s) = true, want false", c.events, l)
			}
		}
	}
}

// A format that is not Perdure's own has events of its own, and takes no others.
func TestFormatHasItsEvents(t *testing.T) {
	for _, c := range []struct {
		format WebhookFormat
		events []string
		stored WebhookFormat
		n      int
		code   Code
	}{
		{"", nil, "", 0, ""},
		{FormatPerdure, []string{"*"}, "", 1, ""},
		{FormatOpenAI, nil, FormatOpenAI, len(endsAndQuestions), ""},
		{FormatLangGraph, []string{"run:completed"}, FormatLangGraph, 1, ""},
		{FormatLangGraph, []string{"run:*"}, "", 0, CodeInvalid},
		{FormatOpenAI, []string{"run:completed", "x:a"}, "", 0, CodeInvalid},
		{"slack", nil, "", 0, CodeUnknownFormat},
		{"OpenAI", nil, "", 0, CodeUnknownFormat},
	} {
		f, events, err := CheckFormat("format", c.format, "events", c.events)
		var e *Error
		if errors.As(err, &e) && e.Code == c.code {
			continue
		}
		if err != nil || c.code != "" || f != c.stored || len(events) != c.n || checkEvents("", events) != nil {
			t.Errorf("CheckFormat(%q, %v) = %q, %v, %v, want %q with %d events or %q", c.format, c.events, f, events,
				err, c.stored, c.n, c.code)
		}
	}
}

// OpenAI's format tells of the runs of its door, and of each run that came with the webhook.
func TestFormatTellsOfItsRuns(t *testing.T) {
	of, other := &Run{Metadata: `{"door.openai":"{}"}`}, &Run{Metadata: `{"a":"\"door.openai\""}`}
	for _, c := range []struct {
		w         Webhook
		of, other bool
	}{
		{Webhook{Scope: OfTenant}, true, true}, {Webhook{Scope: OfTenant, Format: FormatLangGraph}, true, true},
		{Webhook{Scope: OfThread, Format: FormatOpenAI}, true, false},
		{Webhook{Scope: OfRun, Format: FormatOpenAI}, true, true},
	} {
		if of, other := c.w.Tells(of), c.w.Tells(other); of != c.of || other != c.other {
			t.Errorf("%s %q tells of runs of the door and of others: %v, %v, want %v, %v", c.w.Scope, c.w.Format, of,
				other, c.of, c.other)
		}
	}
}
