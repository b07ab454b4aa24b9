package httpd

import (
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/httpd/feed"
)

// countRuns counts runs. The answer is at most countTTL old.
func countRuns(c *call, _ *none) (int, *api.RunCounts, error) {
	f, err := runFilterParams(c)
	if err != nil {
		return 0, nil, err
	}
	key := countKey{c.tenant(), filterKey(&f)}
	if out := c.s.counts.get(key); out != nil {
		return 0, out, nil
	}
	// Thousands of rows are looked at. Calls that wait for their tenant's turn meanwhile use the same counts.
	end, err := c.share.turn(c.Context(), largePage)
	if err != nil {
		return 0, nil, err
	}
	defer end()
	if out := c.s.counts.get(key); out != nil {
		return 0, out, nil
	}
	live, err := c.s.engine.Runs.CountLive(c.Context(), c.tenant(), f)
	if err != nil {
		return 0, nil, err
	}
	ended, err := c.s.engine.Runs.CountEnded(c.Context(), c.tenant(), f)
	if err != nil {
		return 0, nil, err
	}
	out := feed.ShowCounts(c.s.engine.Now(), live, ended)
	c.s.counts.put(key, out)
	return 0, out, nil
}
