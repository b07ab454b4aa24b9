package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure/api"
)

// PutSchedule makes a schedule, or changes the one of this name. A deploy may repeat it: a schedule
// whose plan is the same keeps its next instant.
func (c *Client) PutSchedule(
	ctx context.Context, name string, in api.PutSchedule, opts ...CallOptions,
) (*api.Schedule, error) {
	r := &request{method: "PUT", path: path(v1+"/schedules/%s", name), body: in}
	return answer[api.Schedule](ctx, c, r, opts...)
}

// CreateSchedule makes a schedule. A name that is taken is perdure.CodeNameTaken.
func (c *Client) CreateSchedule(ctx context.Context, in api.PutSchedule, opts ...CallOptions) (*api.Schedule, error) {
	return answer[api.Schedule](ctx, c, &request{method: "POST", path: v1 + "/schedules", body: in}, opts...)
}

// Schedules lists the schedules of the tenant by name.
func (c *Client) Schedules(ctx context.Context) ([]api.Schedule, error) {
	return pages(ctx, c, v1+"/schedules", func(p *api.Schedules) ([]api.Schedule, string) {
		return p.Schedules, p.NextCursor
	})
}

// Schedule returns a schedule.
func (c *Client) Schedule(ctx context.Context, name string) (*api.Schedule, error) {
	return answer[api.Schedule](ctx, c, &request{method: "GET", path: path(v1+"/schedules/%s", name)})
}

// UpcomingInstants lists the next n instants of a schedule.
func (c *Client) UpcomingInstants(ctx context.Context, name string, n int) ([]api.UpcomingInstant, error) {
	q := url.Values{"n": {strconv.Itoa(n)}}
	out, err := answer[api.Upcoming](ctx, c,
		&request{method: "GET", path: path(v1+"/schedules/%s/next", name), query: q})
	if err != nil {
		return nil, err
	}
	return out.Instants, nil
}

// PauseSchedule pauses a schedule. Instants that come until it is resumed are missed.
func (c *Client) PauseSchedule(ctx context.Context, name string, opts ...CallOptions) (*api.Schedule, error) {
	return answer[api.Schedule](ctx, c, &request{method: "POST", path: path(v1+"/schedules/%s/pause", name)}, opts...)
}

// ResumeSchedule ends the pause of a schedule. Its missed instants are made up for according to
// its plan.
func (c *Client) ResumeSchedule(ctx context.Context, name string, opts ...CallOptions) (*api.Schedule, error) {
	return answer[api.Schedule](ctx, c, &request{method: "POST", path: path(v1+"/schedules/%s/resume", name)}, opts...)
}

// TriggerSchedule starts a run of a schedule now.
func (c *Client) TriggerSchedule(ctx context.Context, name string, opts ...CallOptions) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "POST", path: path(v1+"/schedules/%s/trigger", name)}, opts...)
}

// DeleteSchedule deletes a schedule. Runs that it has started go on.
func (c *Client) DeleteSchedule(ctx context.Context, name string, opts ...CallOptions) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/schedules/%s", name)}, nil, opts...)
	return err
}
