package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// named has the counters of a metric whose label values are known in advance. All exist from the
// start, at 0.
type named struct{ by map[string]prometheus.Counter }

func (m *Metrics) named(metric string, values ...string) *named {
	v := m.counter(metric)
	n := &named{by: make(map[string]prometheus.Counter, len(values))}
	for _, x := range values {
		n.by[x] = v.WithLabelValues(x)
	}
	return n
}

func (n *named) inc(value string) {
	if c := n.by[value]; c != nil {
		c.Inc()
	}
}

// Names from callers, such as queues, become label values up to maxLabels. The others share one
// value.
const (
	maxLabels = 100
	maxLength = 128
	other     = "other"
)

// capped has the counters of a metric whose label values come from callers.
type capped struct {
	vec  *prometheus.CounterVec
	size int // number of labels

	mu sync.RWMutex
	by map[[2]string]prometheus.Counter
}

func newCapped(v *prometheus.CounterVec, labels int) *capped {
	return &capped{vec: v, size: labels, by: make(map[[2]string]prometheus.Counter)}
}

func (c *capped) inc(values ...string) {
	var key [2]string
	copy(key[:], values)
	c.mu.RLock()
	counter := c.by[key]
	c.mu.RUnlock()
	if counter == nil {
		counter = c.add(key)
	}
	counter.Inc()
}

func (c *capped) add(key [2]string) prometheus.Counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if counter := c.by[key]; counter != nil {
		return counter
	}
	if len(c.by) >= maxLabels {
		return c.vec.WithLabelValues([]string{other, other}[:c.size]...)
	}
	counter := c.vec.WithLabelValues([]string{label(key[0]), label(key[1])}[:c.size]...)
	c.by[key] = counter
	return counter
}

// label makes a name a valid label value.
func label(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxLength)], "")
}
