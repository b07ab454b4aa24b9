package embedded_test

import (
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/tcpline"
)

// over gives the address of a store over a line.
func over(t *testing.T, store string) (address string, line *tcpline.Line) {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	line = tcpline.New(t, u.Host)
	u.Host = line.Addr()
	return u.String(), line
}

// TestStartThatLosesPostgreSQLWaits: a start whose PostgreSQL goes away in the middle of it waits until that is
// back, wherever the start was, and goes on. No key of the first start gets lost.
func TestStartThatLosesPostgreSQLWaits(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name  string
		used  bool // the store has had its first start
		after bool // the statement arrives, and its answer gets lost
		at    []string
	}{
		{"while its settings are read", true, false, []string{"current_setting($1::text)"}},
		{"while it says which server it is", true, false, []string{"pg_control_system"}},
		{"while the lock of the migration is taken", true, false, []string{"pg_try_advisory_lock"}},
		{"while the schema is read", true, false, []string{"SELECT value FROM meta WHERE name='schema'"}},
		{"while a new schema is made", false, false, []string{"CREATE TABLE"}},
		{"while a new schema is committed", false, true, []string{"CREATE TABLE", "COMMIT"}},
		{"while its timeline is written", false, true, []string{"'timeline',$1"}},
		{"while its clock is read", true, false, []string{"SELECT (extract(epoch FROM clock_timestamp())"}},
		{"while the last sweep is looked up", true, false, []string{"name='sweep'"}},
		{"while the name of the doorbell is written", false, true, []string{"'doorbell'", "COMMIT"}},
		{"while the root secret is written", false, true, []string{"'doorbell'", "secret", "COMMIT"}},
		{"while the first key is written", false, false, []string{"'doorbell'", "bootstrap", "COMMIT"}},
		{"after the first key was written", false, true, []string{"'doorbell'", "bootstrap", "COMMIT"}},
		{"while the key is looked up", true, false, []string{"FROM keys"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			direct := pgtest.New(t)
			opt := embedded.Options{Dir: t.TempDir(), StartWait: 2 * time.Minute,
				Logger: slog.New(slog.DiscardHandler)}
			var line *tcpline.Line
			opt.Store, line = over(t, direct)
			if x.used {
				s, err := embedded.Open(opt)
				if err != nil {
					t.Fatal(err)
				}
				s.Close()
			}
			cut := line.CutAt(x.after, x.at...)
			var waited sync.Once
			opt.Waiting = func(_ string, why error) bool {
				waited.Do(func() {
					select {
					case <-cut:
					default:
						t.Errorf("it waits, and nothing was cut: %v", why)
					}
					t.Logf("it waits: %v", why)
					line.Set(tcpline.State{})
				})
				return true
			}
			s, err := embedded.Open(opt)
			if err != nil {
				t.Fatalf("the start has failed: %v", err)
			}
			defer s.Close()
			select {
			case <-cut:
			default:
				t.Error("the start did not come to this statement")
			}
			if status, _ := call(t, s, "GET", "/api/v1/runs", ""); status != 200 {
				t.Errorf("a call with the key %q = %d, want 200", s.Key(), status)
			}
		})
	}
}
