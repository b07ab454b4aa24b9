package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/store"
)

// nodeName returns a name that no other node has, because the store records waiters by node. On a
// shared store it ends with the node's instance: one host may run several nodes, and containers
// often have the same host name and process id.
func nodeName(shared bool, id string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	if shared {
		host += "-" + id
	}
	return host
}

// DefaultStartWait is StartWait of perdure serve.
const DefaultStartWait = time.Minute

// waitPause is the pause between two tries to open a store that can't be reached.
const waitPause = 500 * time.Millisecond

// ErrAway means that Open has waited for PostgreSQL as long as StartWait allows.
var ErrAway = errors.New("gave up waiting for the store")

// await tries to start until it succeeds. It waits for a PostgreSQL that can't be used yet.
func (opt *Options) await(start func() (*Server, error)) (*Server, error) {
	for began := time.Now(); ; time.Sleep(waitPause) {
		s, err := start()
		if err == nil || opt.Store == "" || !store.Unreachable(err) {
			return s, err
		}
		waited := time.Since(began)
		if opt.StartWait > 0 && opt.Waiting != nil && !opt.Waiting(store.Address(opt.Store), err) ||
			waited+waitPause > opt.StartWait {
			return nil, fmt.Errorf("%w (%w after %s)", err, ErrAway, waited.Round(time.Second))
		}
	}
}

// openBell opens the doorbell between this node and the others.
func (opt Options) openBell(st *store.Store) (doorbell.Bell, error) {
	bell := doorbell.Options{URL: opt.Doorbell, Logger: opt.Logger}
	if bell.URL == "" {
		bell.URL = opt.Store
	}
	where := "in the process"
	if bell.URL != "" && bell.URL != "none" {
		where = doorbell.Mask(bell.URL)
		// The first pass inserts a name unless there is one, the second reads it. Two nodes that
		// start at once thus get the same name.
		op := &spaceOp{}
		for range 2 {
			if err := st.Do(context.Background(), op); err != nil {
				return nil, err
			}
		}
		bell.Space = op.name
	}
	if bell.URL == opt.Store && opt.Store != "" {
		bell.Admit, bell.Current = st.Primaries()
	}
	kind := "SQLite in memory"
	if opt.Store != "" {
		kind = doorbell.Mask(opt.Store)
	} else if opt.Dir != "" {
		kind = "SQLite in " + opt.Dir
	}
	if opt.Logger != nil {
		opt.Logger.LogAttrs(context.Background(), slog.LevelInfo, "opened", slog.String("store", kind),
			slog.String("doorbell", where), slog.String("node", opt.Node))
	}
	return doorbell.Open(bell)
}

// spaceOp reads or makes the name that the nodes of one store share. It separates them from the
// nodes of other stores on the same NATS server.
type spaceOp struct{ name string }

func (*spaceOp) Needs() []store.Ref { return nil }

func (op *spaceOp) Do(tx *store.Tx) (err error) {
	if op.name, err = tx.Meta.Get("doorbell"); err == nil && op.name == "" {
		tx.Stage("INSERT INTO meta (name,value) VALUES ('doorbell',?) ON CONFLICT (name) DO NOTHING", rand.Text())
	}
	return err
}

// followPrimary gives a service that tells the nodes of each other's failovers. A node that was sent
// to another primary rings, and a node that hears a ring has its store look for itself.
func (s *Server) followPrimary(bell doorbell.Bell) func(context.Context) error {
	return func(ctx context.Context) error {
		topic := doorbell.Run("", "primary")
		for ctx.Err() == nil {
			rung, stop := bell.Listen(topic)
			select {
			case <-rung:
				s.store.LookAgain()
			case <-s.store.Replaced():
				bell.Ring(topic)
			case <-ctx.Done():
			}
			stop()
		}
		return nil
	}
}
