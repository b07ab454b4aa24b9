package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure"
)

// A crowd is a memory with executions that come and go. Each has reserved 100 bytes for its thread.
type crowd struct {
	t     *testing.T
	m     *memory
	held  map[string]*holding
	stop  map[string]context.CancelFunc
	begun []string
	told  []string
}

const unit = 100

// newCrowd makes one whose bounds take so many executions that read their threads.
func newCrowd(t *testing.T, all, each int64) *crowd {
	return &crowd{t: t, m: newMemory(all*(baseBytes+unit), each*(baseBytes+unit)), held: make(map[string]*holding),
		stop: make(map[string]context.CancelFunc)}
}

// come has executions come, one after the other. The first letter of a name is the tenant.
func (c *crowd) come(names ...string) {
	for _, name := range names {
		ctx, stop := context.WithCancelCause(c.t.Context())
		c.stop[name] = func() { stop(errors.New("stopped")) }
		go func() {
			h, err := c.m.enter(ctx, perdure.TenantID(name[:1]), perdure.RunID(name), unit,
				func() { c.told = append(c.told, name) })
			if err != nil {
				return
			}
			c.held[name] = h
			c.begun = append(c.begun, name)
		}()
		synctest.Wait()
	}
}

// end has executions end.
func (c *crowd) end(names ...string) {
	for _, name := range names {
		c.held[name].end()
		synctest.Wait()
	}
}

// want compares what has begun since the last time.
func (c *crowd) want(names ...string) {
	c.t.Helper()
	if got := c.begun; !slices.Equal(got, names) {
		c.t.Errorf("begun have %v, want %v", got, names)
	}
	c.begun = nil
}

func TestConversationsWaitForMemory(t *testing.T) {
	for name, f := range map[string]func(c *crowd){
		"a tenant at its bound holds up nobody else": func(c *crowd) {
			c.come("a1", "a2", "a3", "a4", "b1", "b2")
			c.want("a1", "a2", "b1", "b2")
			if want := []string{"a3", "a4"}; !slices.Equal(c.told, want) {
				c.t.Errorf("told to wait are %v, want %v", c.told, want)
			}
			if tenants, all := c.m.full(); fmt.Sprint(tenants, all) != "[a] false" {
				c.t.Errorf("full are %v (all: %t), want a", tenants, all)
			}
			c.end("b1")
			c.want()
			c.end("a1")
			c.want("a3")
		},
		"tenants take turns": func(c *crowd) {
			c.come("a1", "a2", "b1", "b2")
			c.want("a1", "a2", "b1", "b2")
			c.come("c1", "c2", "d1", "e1")
			if _, all := c.m.full(); !all {
				c.t.Error("the memory of all is not full, want it")
			}
			c.end("a1", "a2", "b1", "b2")
			c.want("c1", "d1", "e1", "c2")
		},
		"room that is not needed is given back": func(c *crowd) {
			c.come("a1", "a2", "a3")
			c.want("a1", "a2")
			c.held["a1"].shrink()
			synctest.Wait()
			c.want() // it needs what all have beside their messages
			c.held["a2"].shrink()
			c.end("a2")
			c.want("a3")
		},
		"one that is stopped while it waits leaves its place": func(c *crowd) {
			c.come("a1", "a2", "a3", "a4")
			c.stop["a3"]()
			synctest.Wait()
			c.want("a1", "a2")
			c.end("a1")
			c.want("a4")
			c.end("a2", "a4")
			if len(c.m.tenants) != 0 || c.m.used != 0 || len(c.m.turns) != 0 {
				c.t.Errorf("in the end there are %d bytes of %d tenants, want none", c.m.used, len(c.m.tenants))
			}
		},
		"one that needs more than there is begins alone": func(c *crowd) {
			c.m.needs["a2"] = 9 * (baseBytes + unit)
			c.come("a1", "a2", "b1")
			c.want("a1", "b1")
			c.end("a1")
			c.want() // the bound of all is not for it either
			c.end("b1")
			c.want("a2")
		},
		"the first one grows, and another gives way": func(c *crowd) {
			c.m.all = 0 // without a bound of all
			c.come("a1", "a2", "b1")
			c.held["a1"].grow(baseBytes)
			if c.held["a1"].crowds() || !c.held["a2"].crowds() || c.held["b1"].crowds() {
				c.t.Error("not exactly the second one of the tenant gives way")
			}
			had := c.held["a2"].bytes
			c.begun = nil
			c.end("a2")
			c.come("a2") // its run is granted again
			c.want()
			c.end("a1")
			c.want("a2")
			if c.held["a2"].bytes != had {
				c.t.Errorf("the next execution has room for %d bytes, want %d", c.held["a2"].bytes, had)
			}
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(newCrowd(t, 4, 2)) })
		})
	}
}
