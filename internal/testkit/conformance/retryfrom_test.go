package conformance

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

func TestRetryEndsIfItsOriginalIsLostWhileItIsCopied(t *testing.T) {
	for _, x := range []struct {
		name, lose string
		code       perdure.Code
	}{
		{"entries", "DELETE FROM journal WHERE run_id=? AND seq>300", perdure.CodeDamaged},
		{"run", "DELETE FROM runs WHERE id=?", perdure.CodeOrphaned},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := NewWorld(t, storetest.Open(t, store.Options{}))
			orig := w.longJournal(1000)
			r := w.retry(orig, "")
			w.do(corrupt{x.lose, []any{string(orig)}})
			w.restart()
			w.pass(time.Second)
			w.ended(r.ID, perdure.Failed, x.code)
		})
	}
}
