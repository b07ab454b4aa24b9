package store

import (
	"errors"
	"sync"
)

// idle has sessions that nobody uses. The last one that was used is used next: it has its
// statements prepared and its connection open. The others are for reads at the same time.
type idle struct {
	// count has an element for each session. A caller that has received one may call pop.
	count chan struct{}

	mu   sync.Mutex
	list []Conn
}

func newIdle(most int) *idle { return &idle{count: make(chan struct{}, most)} }

// put adds a session.
func (i *idle) put(s Conn) {
	i.mu.Lock()
	i.list = append(i.list, s)
	i.mu.Unlock()
	i.count <- struct{}{}
}

// pop takes the session that was put last.
func (i *idle) pop() Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	last := len(i.list) - 1
	s := i.list[last]
	i.list = i.list[:last]
	return s
}

// close closes the sessions that nobody uses.
func (i *idle) close() error {
	if i == nil {
		return nil
	}
	var errs []error
	for {
		select {
		case <-i.count:
			errs = append(errs, i.pop().Close())
		default:
			return errors.Join(errs...)
		}
	}
}
