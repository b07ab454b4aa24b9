package supervisor

import (
	"context"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// The memory of conversations.
//
// Every execution of a conversation or a worker has an account of the bytes that it holds: the texts of
// its messages, each counted three times, because the journal has them too and a request is made of
// them. The accounts of a tenant have a bound, and so have all together.
//
// An execution begins with the most that reading a thread takes. If there is no room for that, it waits
// and holds nothing meanwhile but its lease. When it has read the thread, it gives back what it does not
// need. From then on it grows without waiting: one that waited while it holds something could wait for
// another that waits for it. If the bound is passed by that, an execution hands its run back between two
// calls of the model. The run is granted again, and waits until there is room for all that it has. The
// execution that began first goes on, so that there always is one that ends.
//
// Tenants that wait take turns. Those of a tenant are served in the order in which they came. A tenant
// whose own bound is reached holds up nobody else.

const (
	// textCopies is how often a text is counted.
	textCopies = 3
	// messageBytes is what a message takes beside its text.
	messageBytes = 256
	// baseBytes is what an execution takes beside its messages, and pageBytes what a page of a thread
	// takes while it is read: the answer, its JSON and the messages.
	baseBytes = 64 << 10
	pageBytes = 3 << 20
)

// waitingForMemory is the activity of a run that has no room, and the type of the line in its log.
const waitingForMemory = "waiting_for_memory"

// A memory is what conversations hold together.
type memory struct {
	// all and each are the bounds of all tenants and of one, in bytes. Zero means none.
	all, each int64

	mu      sync.Mutex
	used    int64
	tenants map[perdure.TenantID]*tenantMemory
	// turns has the tenants that have somebody waiting, the next one first.
	turns []perdure.TenantID
	// order counts the executions.
	order int64
	// needs is what runs need that were handed back.
	needs map[perdure.RunID]int64
}

// maxNeeds limits the runs whose needs are kept. One that is forgotten is handed back again.
const maxNeeds = 1000

// A tenantMemory is what the conversations of a tenant hold.
type tenantMemory struct {
	used int64
	// holders are in the order in which they began, and waiting in the order in which they came.
	holders []*holding
	waiting []*holding
}

func newMemory(all, each int64) *memory {
	return &memory{all: all, each: each, tenants: make(map[perdure.TenantID]*tenantMemory),
		needs: make(map[perdure.RunID]int64)}
}

// of returns the memory of a tenant. The caller holds m.mu.
func (m *memory) of(t perdure.TenantID) *tenantMemory {
	tm := m.tenants[t]
	if tm == nil {
		tm = new(tenantMemory)
		m.tenants[t] = tm
	}
	return tm
}

// A holding is the account of one execution. A nil one counts nothing.
type holding struct {
	m      *memory
	tenant perdure.TenantID
	run    perdure.RunID
	// bytes is what counts: the texts, at least those that an execution had whose run was handed back,
	// and what is reserved for reading the thread.
	bytes, text, least, reserved int64
	// order is its place among all that have begun. ready is closed when it begins.
	order int64
	ready chan struct{}
}

// enter waits until there is room for an execution, with what reading its thread takes. waits is called
// before it has to wait.
func (m *memory) enter(
	ctx context.Context, t perdure.TenantID, run perdure.RunID, reading int64, waits func(),
) (*holding, error) {
	m.mu.Lock()
	h := &holding{m: m, tenant: t, run: run, least: m.needs[run], reserved: reading, ready: make(chan struct{})}
	h.bytes = h.sum()
	delete(m.needs, run)
	tm := m.of(t)
	if tm.waiting = append(tm.waiting, h); len(tm.waiting) == 1 {
		m.turns = append(m.turns, t)
	}
	m.admit()
	m.mu.Unlock()
	select {
	case <-h.ready:
		return h, nil
	default:
	}
	waits()
	select {
	case <-h.ready:
		return h, nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-h.ready: // it got room in the same moment
		m.leave(h)
	default:
		tm.waiting = without(tm.waiting, h)
		if len(tm.waiting) == 0 {
			m.turns = without(m.turns, t)
		}
		m.forget(t)
		m.admit()
	}
	return nil, context.Cause(ctx)
}

// without removes an element of a list.
func without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return y == x })
}

// admit gives room to those that wait, one of each tenant at a time. The caller holds m.mu.
func (m *memory) admit() {
	for passed := 0; passed < len(m.turns); {
		t := m.turns[0]
		tm := m.tenants[t]
		h := tm.waiting[0]
		if m.each > 0 && tm.used+h.bytes > m.each && len(tm.holders) > 0 {
			m.turns = append(m.turns[1:], t)
			passed++
			continue
		}
		if m.all > 0 && m.used+h.bytes > m.all && m.used > 0 {
			return // this tenant is the next one
		}
		passed = 0
		tm.waiting, tm.holders = tm.waiting[1:], append(tm.holders, h)
		m.order++
		h.order = m.order
		m.add(tm, h.bytes)
		close(h.ready)
		if m.turns = m.turns[1:]; len(tm.waiting) > 0 {
			m.turns = append(m.turns, t)
		}
	}
}

// add counts bytes. The caller holds m.mu.
func (m *memory) add(tm *tenantMemory, bytes int64) {
	tm.used += bytes
	m.used += bytes
}

// forget removes a tenant that holds nothing. The caller holds m.mu.
func (m *memory) forget(t perdure.TenantID) {
	if tm := m.tenants[t]; tm != nil && len(tm.holders) == 0 && len(tm.waiting) == 0 {
		delete(m.tenants, t)
	}
}

// leave gives everything back. The caller holds m.mu.
func (m *memory) leave(h *holding) {
	tm := m.of(h.tenant)
	m.add(tm, -h.bytes)
	tm.holders = without(tm.holders, h)
	h.bytes = 0
	m.forget(h.tenant)
	m.admit()
}

// end gives everything back.
func (h *holding) end() {
	if h == nil {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.m.leave(h)
}

// grow counts the bytes of a text that the conversation holds from now on.
func (h *holding) grow(bytes int) {
	if h == nil {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.text += textCopies * int64(bytes)
	h.count()
}

// sum returns the bytes that count.
func (h *holding) sum() int64 { return baseBytes + max(h.text, h.least) + h.reserved }

// count counts them anew. The caller holds m.mu.
func (h *holding) count() {
	n := h.sum()
	h.m.add(h.m.of(h.tenant), n-h.bytes)
	h.bytes = n
}

// shrink gives back what was reserved for the reading of a thread.
func (h *holding) shrink() {
	if h == nil {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.reserved = 0
	h.count()
	h.m.admit()
}

// crowds tells whether the execution has to give way, because there is more in memory than may be. The
// need is noted for the next one. The first of a tenant stays, and so does the first of all.
func (h *holding) crowds() bool {
	if h == nil {
		return false
	}
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	tm := m.of(h.tenant)
	over := m.each > 0 && tm.used > m.each && tm.holders[0] != h
	if m.all > 0 && m.used > m.all {
		for _, other := range m.tenants {
			over = over || len(other.holders) > 0 && other.holders[0].order < h.order
		}
	}
	if over {
		if len(m.needs) >= maxNeeds {
			clear(m.needs)
		}
		m.needs[h.run] = max(h.text, h.least)
	}
	return over
}

// full returns the tenants whose conversations have to wait because of their own bound, and whether
// those of all tenants have.
func (m *memory) full() (tenants []perdure.TenantID, all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.turns {
		tm := m.tenants[t]
		if m.each > 0 && tm.used+tm.waiting[0].bytes > m.each {
			tenants = append(tenants, t)
		} else {
			all = true
		}
	}
	return tenants, all
}

// textBytes returns the size of a message.
func textBytes(m *model.Message) int {
	n := messageBytes + len(m.Content) + len(m.Reasoning)
	for _, c := range m.ToolCalls {
		n += len(c.ID) + len(c.Name) + len(c.Arguments) + len(c.Extra)
	}
	return n
}

// hold waits until there is room for an execution. The lease of the run is kept meanwhile, and its log
// and its activity tell that it waits.
func (s *Supervisor) hold(ctx *agent.Context) (*holding, error) {
	info, _ := worker.Info(ctx)
	return s.memory.enter(ctx, info.Tenant, ctx.RunID(), s.readingBytes(), func() {
		worker.Heartbeat(ctx, waitingForMemory)
		_ = worker.Emit(ctx, "x:"+waitingForMemory, map[string]int64{"max_tenant_memory": s.opt.MaxTenantMemory,
			"max_memory": s.opt.MaxMemory}) // it is for people
	})
}

// readingBytes returns what is reserved for the reading of a thread: a page of it, and the texts that fit
// the window.
func (s *Supervisor) readingBytes() int64 {
	return pageBytes + textCopies*bytesPerToken*int64(s.opt.Window)
}

// Full returns the tenants whose conversations wait for memory, and whether those of all tenants do. It
// is for worker.Options.Full: a worker then leases no more of them.
func (s *Supervisor) Full() (tenants []perdure.TenantID, all bool) { return s.memory.full() }
