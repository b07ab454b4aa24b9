package perdure

import "testing"

func TestANotificationIDHoldsWhatItNames(t *testing.T) {
	n := Notification{RunID: "0199c2a0-1234-7abc-8def-0123456789ab", Seq: 70000, Webhook: RunWebhookID("t", "https://example.com")}
	run, seq, w, ok := ParseNotificationID(n.ID())
	if !ok || run != n.RunID || seq != n.Seq || w != n.Webhook {
		t.Errorf("%s: %s %d %s %v", n.ID(), run, seq, w, ok)
	}
	for _, bad := range []string{"", "msg_", "msg_AAAA", n.ID()[:len(n.ID())-1], n.ID() + "A", "dlv" + n.ID()[3:], n.ID() + "=", n.ID() + "\n"} {
		if _, _, _, ok := ParseNotificationID(bad); ok {
			t.Errorf("%q is taken for an id", bad)
		}
	}
	if RunWebhookID("t", "https://example.com") == RunWebhookID("u", "https://example.com") {
		t.Error("two tenants share a webhook")
	}
}

func TestAWebhookIsToldWhatItAsksFor(t *testing.T) {
	for _, c := range []struct {
		events     []string
		wants, not []string
	}{
		{nil, []string{LineCompleted, LineSlow, LineStale, LineDeadLettered}, []string{LineStarted, LineHeartbeat, LineDelta, "x:a"}},
		{[]string{"*"}, []string{LineCompleted, LineStarted, "x:a", LineMessage}, []string{LineHeartbeat, LineDelta}},
		{[]string{"run:*"}, []string{LineCompleted, LineStarted}, []string{LineHeartbeat, "x:a", LineMessage}},
		{[]string{LineHeartbeat, "x:a"}, []string{LineHeartbeat, "x:a"}, []string{"x:ab", LineCompleted}},
	} {
		if err := CheckEvents("events", c.events); err != nil {
			t.Error(err)
		}
		for _, l := range c.wants {
			if !WantsLine(c.events, l) {
				t.Errorf("%v lacks %s", c.events, l)
			}
		}
		for _, l := range c.not {
			if WantsLine(c.events, l) {
				t.Errorf("%v has %s", c.events, l)
			}
		}
	}
}
