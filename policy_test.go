package perdure

import (
	"strings"
	"testing"
	"time"
)

// A timeout that is too long for a task says which class takes it, if one does.
func TestTimeoutAboveTheGreatestNamesAnotherClass(t *testing.T) {
	p := DefaultPolicy()
	between := Duration(p.Timeouts.Of(Task).Max + time.Second)
	above := Duration(p.Timeouts.Of(Agent).Max + time.Second)
	for _, c := range []struct {
		class   Class
		timeout Duration
		refused bool
		named   bool
	}{
		{Task, between, true, true}, {Agent, between, false, false},
		{Task, above, true, false}, {Agent, above, true, false},
	} {
		_, err := p.Deadline(c.class, c.timeout, 0)
		if (err != nil) != c.refused || err != nil && strings.Contains(err.Error(), "class agent takes it") != c.named {
			t.Errorf("%s with %s: %v; refused = %t and names class agent = %t wanted", c.class,
				time.Duration(c.timeout), err, c.refused, c.named)
		}
	}
}
