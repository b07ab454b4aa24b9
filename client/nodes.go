package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// nodes are the addresses of servers with the same store. All calls of a client go to one of them,
// the current one, until that fails; then the next one is the current one.
type nodes struct {
	addresses []string
	// turn counts the changes. The current address is that at turn modulo the number of addresses.
	turn atomic.Int64
}

// newNodes splits addresses that are separated by commas.
func newNodes(text string) *nodes {
	n := new(nodes)
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimRight(strings.TrimSpace(one), "/"); one != "" {
			n.addresses = append(n.addresses, one)
		}
	}
	if len(n.addresses) == 0 {
		n.addresses = []string{""} // refused by check
	}
	return n
}

// check returns an error for the first address that is no URL.
func (n *nodes) check() error {
	for _, a := range n.addresses {
		if !strings.HasPrefix(a, "http://") && !strings.HasPrefix(a, "https://") {
			return api.NewProblem(perdure.CodeInvalid,
				fmt.Sprintf("the server's address is %q: it has to be a URL such as http://127.0.0.1:7373", a), "")
		}
	}
	return nil
}

// current returns the address for the next attempt, and its turn.
func (n *nodes) current() (address string, turn int64) {
	turn = n.turn.Load()
	return n.addresses[turn%int64(len(n.addresses))], turn
}

// leave makes the next address the current one, if the one of the turn still is. Of several calls that
// fail at the same server only the first changes it. leave returns false if there is no other address.
func (n *nodes) leave(turn int64) bool {
	if len(n.addresses) < 2 {
		return false
	}
	n.turn.CompareAndSwap(turn, turn+1)
	return true
}

// leave makes later attempts go to the next address if a failure is of the server, and not of the
// call. It returns false if the next attempt goes to the same address.
func (c *Client) leave(turn int64, f *failure) bool {
	if !f.node || !c.nodes.leave(turn) {
		return false
	}
	if address, now := c.nodes.current(); now == turn+1 {
		c.log.Debug("the next address is used", "address", address, "error", f.err)
	}
	return true
}

// unanswered tells whether a server has failed an attempt that ended with an error: it was not reached,
// or did not answer in time. An attempt that its caller ended early says nothing about the server. began
// is when the attempt began, and wait is how long the server may have delayed the answer.
func unanswered(ctx context.Context, err error, began time.Time, wait time.Duration) bool {
	switch {
	case errors.Is(err, http.ErrServerClosed):
		return true
	case ctx.Err() == nil, errors.Is(context.Cause(ctx), errSilent):
		return true
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return time.Since(began) >= wait+answerGrace/2
	}
	return false
}

// A round counts the addresses that failed one after the other. Each is tried once before a pause.
type round struct{ failed int }

// next tells whether an address that was left is followed by one that was not tried yet.
func (r *round) next(c *Client, left bool) bool {
	if r.failed++; left && r.failed < len(c.nodes.addresses) {
		return true
	}
	r.failed = 0
	return false
}
