package perdure

import "testing"

func TestNotificationIDEncodesItsParts(t *testing.T) {
	n := Notification{RunID: "0199c2a0-1234-7abc-8def-0123456789ab", Seq: 70000,
		Webhook: RunWebhookID("t", "https://example.com")}
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
	if RunWebhookID("t", "https://example.com") == RunWebhookID("u", "https://example.com") {
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
		if err := CheckEvents("events", c.events); err != nil {
			t.Errorf("CheckEvents(%v) = %v, want no error", c.events, err)
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
