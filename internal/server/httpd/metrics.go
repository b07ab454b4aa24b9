package httpd

import "github.com/perdure/perdure"

// serveMetrics answers a scrape of Prometheus with the handler of [Options.Metrics].
func serveMetrics(c *call) error {
	if c.s.opt.Metrics == nil {
		return perdure.Errorf(perdure.CodeNotFound, "this server keeps no metrics")
	}
	c.s.opt.Metrics.ServeHTTP(deadlineWriter{c.w, c.s}, c.Request)
	return nil
}
