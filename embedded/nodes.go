package embedded

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"

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
