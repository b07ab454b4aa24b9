package perdure

import (
	"testing"
	"time"
)

func TestRetryIsClaimableOnceItsJournalIsCopied(t *testing.T) {
	p := DefaultPolicy()
	r := Run{ID: "r", RetryOf: "o", State: Queued, Attempt: 1, MaxAttempts: 3, CreatedAt: start0, ReadyAt: start0,
		DeadlineAt: start0.Add(time.Hour), CopyTo: 3}
	apply := func(e Event, now Instant) error {
		next, _, err := p.Apply(r, e, now)
		r = next
		return err
	}
	if err := apply(JournalCopied{Entries: 2}, start0); err != nil || r.Ready || r.JournalSeq != 2 {
		t.Fatalf("after 2 of 3 entries: ready = %v, journal_seq = %d, %v", r.Ready, r.JournalSeq, err)
	}
	if at := start0.Add(CopyPause); r.AlarmAt != at {
		t.Errorf("alarm = %s, want %s: the next part", r.AlarmAt, at)
	}
	for _, e := range []Event{Due{}, Due{Now: true}, JournalCopied{Entries: 2}, Granted{Worker: "w"}} {
		if err := apply(e, start0.Add(time.Second)); CodeOf(err) != CodeWrongState {
			t.Errorf("%s while the journal is copied: %v, want %s", EventName(e), err, CodeWrongState)
		}
	}
	later := start0.Add(time.Minute)
	if err := apply(JournalCopied{Entries: 1}, later); err != nil || !r.Ready || r.ReadyAt != later {
		t.Errorf("after 3 of 3 entries: ready = %v since %s, %v, want true since %s", r.Ready, r.ReadyAt, err, later)
	}
	if err := apply(Granted{Worker: "w"}, later); err != nil {
		t.Errorf("Granted: %v", err)
	}
}
